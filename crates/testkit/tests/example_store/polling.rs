//! Handing out the letters of operations, and doing acts.

use std::time::Duration;

use lazaret_core::store::rules::{
    self, ItemAction, LeaseKind, Pending, Poll, PollDecision, PollStep, StageCursor,
};
use lazaret_core::store::{Claim, OperationId, OperationMachine, Outcome, PolledWork, Result};
use lazaret_core::{QueueName, SequenceId, Timestamp};

use crate::DocumentStore;
use crate::commit::Change;
use crate::database::{ItemOutcome, Left, SequenceDoc};

/// One call: who asks, and what it has handed out.
struct Poller<'a> {
    store: &'a DocumentStore,
    queue: &'a QueueName,
    owner: &'a str,
    lease: Duration,
    now: Timestamp,
    poll: Poll,
}

/// What was decided about a letter of an operation.
enum Turn {
    /// Its sequence was leased.
    Tried(Box<Claim>),
    /// The act was done.
    Acted,
    Postpone,
    Skip,
}

impl DocumentStore {
    pub(crate) fn poll(
        &self,
        queue: &QueueName,
        owner: &str,
        lease: Duration,
        limit: usize,
    ) -> Result<PolledWork> {
        self.catch_up()?;
        let now = self.clock.now();
        // The one served longest ago comes first.
        let mut live = self.db.plans.scan(.., |_, doc| {
            let machine = doc.value.machine.as_ref()?;
            doc.value.next_pending(queue, 0).map(|_| (doc.value.served_at, machine.operation.id))
        });
        live.sort_unstable();
        let mut poller = Poller { store: self, queue, owner, lease, now, poll: Poll::new(limit, now) };
        for (_, id) in live {
            poller.serve(id)?;
        }
        Ok(poller.poll.finish())
    }
}

impl Poller<'_> {
    /// Moves an operation on, and returns it as it stands then.
    fn advanced(&self, id: OperationId) -> Result<Option<OperationMachine>> {
        let advanced = self.store.change_plan(id, |doc, _| {
            let left = self.store.advance(doc, self.now);
            Ok((doc.machine.clone(), left))
        })?;
        Ok(advanced.flatten())
    }

    fn next_pending(&self, id: OperationId, from: u64) -> Result<Option<Pending>> {
        Ok(self.store.plan_of(id)?.and_then(|doc| doc.value.next_pending(self.queue, from)))
    }

    /// Does for one operation what can be done now.
    fn serve(&mut self, id: OperationId) -> Result<()> {
        let given = self.poll.given();
        let Some(mut machine) = self.advanced(id)? else { return Ok(()) };
        match self.poll.begin(&machine) {
            PollDecision::Nothing => {}
            PollDecision::Run(stage) => {
                let stopped = self.run(&mut machine, stage)?;
                let left = self.next_pending(id, 0)?.is_some();
                self.poll.end(&machine, stopped, left);
            }
            PollDecision::Sweep => self.sweep(id)?,
        }
        if self.poll.given() > given {
            let now = self.now;
            self.store.change_plan(id, |doc, _| {
                doc.served_at = Some(now);
                Ok(((), Vec::new()))
            })?;
        }
        Ok(())
    }

    /// Gives the letters of a running operation their turn, stage by stage. When to go on, if that is known.
    fn run(&mut self, machine: &mut OperationMachine, mut stage: StageCursor) -> Result<Option<Timestamp>> {
        let id = machine.operation.id;
        loop {
            let item = self.next_pending(id, stage.from())?;
            match (self.poll.step(machine, &stage, item.as_ref()), item) {
                (PollStep::Inspect, Some(item)) => self.look(machine, &mut stage, &item)?,
                (PollStep::Stop(at), _) => return Ok(Some(at)),
                _ => {
                    if let Some(advanced) = self.advanced(id)? {
                        *machine = advanced;
                    }
                    let Some(next) = self.poll.next_stage(machine, &stage) else { return Ok(None) };
                    stage = next;
                }
            }
        }
    }

    /// Looks at one letter and does what its turn asks for. The document of the plan has the last word on what was counted;
    /// the machine in memory follows it.
    fn look(
        &mut self,
        machine: &mut OperationMachine,
        stage: &mut StageCursor,
        item: &Pending,
    ) -> Result<()> {
        let (id, now) = (machine.operation.id, self.now);
        let sequence = self.store.letter_doc(self.queue, item.letter)?.map(|doc| doc.sequence);
        let turn = match &sequence {
            Some(sequence) => self.decide(machine, item, sequence)?,
            None => Turn::Skip,
        };
        match turn {
            Turn::Tried(claim) => {
                self.poll.tried(machine, stage, item, *claim);
                self.store.change_plan(id, |doc, _| {
                    doc.machine.iter_mut().for_each(|machine| machine.spend(1, now));
                    Ok(((), Vec::new()))
                })?;
            }
            Turn::Acted => {
                self.poll.acted(machine, stage, item);
                if let Some(sequence) = &sequence {
                    self.pace(machine, item, sequence)?;
                }
            }
            Turn::Postpone => self.poll.postponed(machine, stage, item),
            Turn::Skip => {
                self.store.change_plan(id, |doc, _| {
                    doc.write(item.ordinal..=item.ordinal, Outcome::SkippedChanged, now);
                    Ok(((), Vec::new()))
                })?;
                self.poll.skipped(machine, stage, item);
            }
        }
        Ok(())
    }

    /// Decides about one letter, and leases its sequence or acts on it, in one write on the version that the rule was asked about.
    /// With two, another call could come between: the lease would be that of another letter, or a letter would be skipped that
    /// has become the head meanwhile.
    fn decide(&self, machine: &OperationMachine, item: &Pending, sequence: &SequenceId) -> Result<Turn> {
        let (operation, by) = (&machine.operation, machine.actor());
        self.store.change(self.queue, sequence, |view| {
            let letter = view.letter(item.letter);
            if letter.as_ref().is_some_and(|letter| letter.sequence != *view.sequence) {
                // It has just left.
                return Ok((Turn::Postpone, None));
            }
            let asked = self.store.item_view(view, letter.as_ref(), operation.id);
            match (rules::item_action(operation, item, &asked), letter) {
                (ItemAction::Try, Some(_)) => {
                    let kind = LeaseKind::Operation(operation.id);
                    let taken = view.lease_head(self.owner, self.lease, kind);
                    Ok(taken.map_or((Turn::Postpone, None), |(claim, change)| {
                        (Turn::Tried(Box::new(claim)), Some(change))
                    }))
                }
                (ItemAction::Act(act), Some(letter)) => {
                    let next = view.next(letter.index).map(|next| next.head(view.now));
                    let effects = rules::act(act, &letter, view.doc.row.as_ref(), next, &by, view.now)?;
                    let (_, mut change) = view.apply(letter, effects);
                    change.left.push(Left::Outcome(ItemOutcome {
                        operation: operation.id,
                        letter: item.letter,
                        outcome: Outcome::Ok,
                        spend: true,
                        released: 0,
                        at: self.now,
                    }));
                    Ok((Turn::Acted, Some(change)))
                }
                (ItemAction::Postpone, _) => Ok((Turn::Postpone, None)),
                (ItemAction::Skip | ItemAction::Try | ItemAction::Act(_), _) => Ok((Turn::Skip, None)),
            }
        })
    }

    /// Gives the letters that an act lets run automatically the pace of the operation.
    fn pace(&self, machine: &mut OperationMachine, item: &Pending, sequence: &SequenceId) -> Result<()> {
        let paced = self.store.change(self.queue, sequence, |view| {
            let Some(row) = view.doc.row.as_ref() else { return Ok((0, None)) };
            let released = self.poll.released_from(machine, item, row);
            let letters = released.map_or(0, |from| view.released_letters(from));
            let Some(row) = self.poll.paced(&mut machine.clone(), letters, row) else {
                return Ok((0, None));
            };
            let letters = row.pace.map_or(0, |pace| pace.left);
            let doc = SequenceDoc { row: Some(row), ..view.doc.clone() };
            Ok((letters, Some(Change { doc, left: Vec::new() })))
        })?;
        let now = self.now;
        machine.pace_released(paced, now);
        self.store.change_plan(machine.operation.id, |doc, _| {
            doc.machine.iter_mut().for_each(|machine| _ = machine.pace_released(paced, now));
            Ok(((), Vec::new()))
        })?;
        Ok(())
    }

    /// Skips the letters of a cancelled operation whose lease was lost.
    fn sweep(&mut self, id: OperationId) -> Result<()> {
        let Some(stored) = self.store.plan_of(id)? else { return Ok(()) };
        let items = stored.value.all_pending().filter(|(queue, _)| *queue == self.queue);
        for (queue, item) in items {
            let operation = stored.value.machine.as_ref().map(|machine| machine.operation.clone());
            let tried = match &operation {
                Some(operation) => self.store.is_tried(queue, &item, operation)?,
                None => false,
            };
            let mut counted = stored.value.machine.clone();
            if let Some(machine) = counted.as_mut()
                && self.poll.swept(machine, tried)
            {
                self.store.change_plan(id, |doc, now| {
                    doc.write(item.ordinal..=item.ordinal, Outcome::SkippedCancelled, now);
                    Ok(((), Vec::new()))
                })?;
            }
        }
        Ok(())
    }
}
