//! Handing out the letters of operations, and doing acts.

use std::time::Duration;

use lazaret_core::store::rules::{self, ItemAction, LeaseKind, Need, Pending, Poll, Serving, Swept};
use lazaret_core::store::{Claim, OperationId, OperationMachine, Outcome, PolledWork, Result};
use lazaret_core::{QueueName, SequenceId, Timestamp};

use crate::DocumentStore;
use crate::commit::Change;
use crate::database::{ItemOutcome, Left, SequenceDoc};

/// Serves one operation: the parameters of the call.
struct Poller<'a> {
    store: &'a DocumentStore,
    queue: &'a QueueName,
    owner: &'a str,
    lease: Duration,
    now: Timestamp,
    id: OperationId,
}

/// What became of a letter.
enum Looked {
    Tried(Box<Claim>),
    Acted,
    Postponed,
    /// It has changed since the plan was frozen.
    Changed,
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
        let mut poll = Poll::new(limit, now);
        for (_, id) in live {
            Poller { store: self, queue, owner, lease, now, id }.serve(&mut poll)?;
        }
        Ok(poll.finish())
    }
}

impl Poller<'_> {
    /// Moves the operation on, and returns it as it stands then.
    fn advanced(&self) -> Result<Option<OperationMachine>> {
        let advanced = self.store.change_plan(self.id, |doc, _| {
            let left = self.store.advance(doc, self.now);
            Ok((doc.machine.clone(), left))
        })?;
        Ok(advanced.flatten())
    }

    /// Changes the machine of the operation. The document of the plan decides what is counted; the one in memory follows it.
    fn with_machine(&self, change: impl Fn(&mut OperationMachine)) -> Result<()> {
        self.store.change_plan(self.id, |doc, _| {
            doc.machine.iter_mut().for_each(&change);
            Ok(((), Vec::new()))
        })?;
        Ok(())
    }

    fn next_pending(&self, from: u64) -> Result<Option<Pending>> {
        Ok(self.store.plan_of(self.id)?.and_then(|doc| doc.value.next_pending(self.queue, from)))
    }

    /// Serves the operation as far as it can proceed now.
    fn serve(&self, poll: &mut Poll) -> Result<()> {
        let Some(machine) = self.advanced()? else { return Ok(()) };
        let mut serving = Serving::new(poll, machine);
        loop {
            match serving.next() {
                Need::Advance => {
                    if let Some(machine) = self.advanced()? {
                        serving.machine = machine;
                    }
                    serving.advanced();
                }
                Need::Pending(from) => serving.pending(self.next_pending(from)?),
                Need::Item(item) => self.inspect(&mut serving, &item)?,
                Need::Pace(item) => self.pace(&mut serving, &item)?,
                Need::Sweep => serving.swept(self.sweep()?),
                Need::Left => serving.left(self.next_pending(0)?.is_some()),
                Need::Done => break,
            }
        }
        if serving.given() > 0 {
            let now = self.now;
            self.store.change_plan(self.id, |doc, _| {
                doc.served_at = Some(now);
                Ok(((), Vec::new()))
            })?;
        }
        Ok(())
    }

    /// The current sequence of a letter.
    fn sequence_of(&self, item: &Pending) -> Result<Option<SequenceId>> {
        Ok(self.store.letter_doc(self.queue, item.letter)?.map(|doc| doc.sequence))
    }

    /// Performs the action on one letter.
    fn inspect(&self, serving: &mut Serving<'_>, item: &Pending) -> Result<()> {
        let looked = match self.sequence_of(item)? {
            Some(sequence) => self.decide(serving, item, &sequence)?,
            None => Looked::Changed,
        };
        let now = self.now;
        match looked {
            Looked::Tried(claim) => {
                serving.tried(item, *claim);
                self.with_machine(|machine| machine.spend(1, now))?;
            }
            Looked::Acted => serving.acted(item),
            Looked::Postponed => serving.postponed(item),
            Looked::Changed => {
                self.write_outcome(item, Outcome::SkippedChanged)?;
                serving.skipped(item);
            }
        }
        Ok(())
    }

    fn write_outcome(&self, item: &Pending, outcome: Outcome) -> Result<()> {
        self.store.change_plan(self.id, |doc, now| {
            doc.write(item.ordinal..=item.ordinal, outcome, now);
            Ok(((), Vec::new()))
        })?;
        Ok(())
    }

    /// Decides about one letter, and leases its sequence or acts on it, in one write on the version that the rule was asked about.
    /// With two, another call could come between: the lease would be that of another letter, or a letter would be skipped that
    /// has become the head meanwhile.
    fn decide(&self, serving: &Serving<'_>, item: &Pending, sequence: &SequenceId) -> Result<Looked> {
        let (operation, by) = (&serving.machine.operation, serving.machine.actor());
        self.store.change(self.queue, sequence, |view| {
            let letter = view.letter(item.letter);
            if letter.as_ref().is_some_and(|letter| letter.sequence != *view.sequence) {
                // It has just left.
                return Ok((Looked::Postponed, None));
            }
            let asked = self.store.item_view(view, letter.as_ref(), operation.id);
            match (serving.action(item, &asked), letter) {
                (ItemAction::Try, Some(_)) => {
                    let kind = LeaseKind::Operation(operation.id);
                    let taken = view.lease_head(self.owner, self.lease, kind);
                    Ok(taken.map_or((Looked::Postponed, None), |(claim, change)| {
                        (Looked::Tried(Box::new(claim)), Some(change))
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
                    Ok((Looked::Acted, Some(change)))
                }
                (ItemAction::Postpone, _) => Ok((Looked::Postponed, None)),
                (ItemAction::Skip | ItemAction::Try | ItemAction::Act(_), _) => Ok((Looked::Changed, None)),
            }
        })
    }

    /// Applies the rate of the operation to the letters that its act has released.
    fn pace(&self, serving: &mut Serving<'_>, item: &Pending) -> Result<()> {
        let mut paced = 0;
        if let Some(sequence) = self.sequence_of(item)? {
            paced = self.store.change(self.queue, &sequence, |view| {
                let Some(row) = view.doc.row.as_ref() else { return Ok((0, None)) };
                let Some(from) = serving.released_from(row) else { return Ok((0, None)) };
                let Some((row, letters)) = serving.pace(view.released_letters(from), row) else {
                    return Ok((0, None));
                };
                let doc = SequenceDoc { row: Some(row), ..view.doc.clone() };
                Ok((letters, Some(Change { doc, left: Vec::new() })))
            })?;
            let now = self.now;
            self.with_machine(|machine| _ = machine.pace_released(paced, now))?;
        }
        serving.paced(paced);
        Ok(())
    }

    /// Skips the letters of a cancelled operation whose leases were lost.
    fn sweep(&self) -> Result<Swept> {
        let mut swept = Swept::default();
        let Some(stored) = self.store.plan_of(self.id)? else { return Ok(swept) };
        let Some(machine) = &stored.value.machine else { return Ok(swept) };
        for (queue, item) in stored.value.all_pending().filter(|(queue, _)| *queue == self.queue) {
            if self.store.is_tried(queue, &item, &machine.operation)? {
                swept.in_flight = true;
            } else {
                self.write_outcome(&item, Outcome::SkippedCancelled)?;
                swept.skipped += 1;
            }
        }
        Ok(swept)
    }
}
