//! Handing out the letters of operations, and doing acts.

use std::time::Duration;

use bson::doc;
use lazaret_core::store::rules::{
    self, ItemAction, LeaseKind, Pending, Poll, PollDecision, PollStep, StageCursor,
};
use lazaret_core::store::{Claim, OperationId, OperationMachine, Outcome, PolledWork, Result};
use lazaret_core::{QueueName, SequenceId, Timestamp};

use crate::commit::View;
use crate::database::project;
use crate::documents::left::{Left, OutcomeDoc};
use crate::documents::letter::Held;
use crate::documents::plan::PlanDoc;
use crate::store::MongoStore;

/// One call: who asks, and what it has handed out.
struct Poller<'a> {
    store: &'a MongoStore,
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

impl MongoStore {
    pub(crate) async fn poll(
        &self,
        queue: &QueueName,
        owner: &str,
        lease: Duration,
        limit: usize,
    ) -> Result<PolledWork> {
        self.catch_up().await?;
        let now = self.now().await?;
        // The one served longest ago comes first.
        let sort = doc! { "servedAt": 1, "operation.id": 1 };
        let pending = doc! { "pending": { "$gt": 0_i64 } };
        let docs: Vec<PlanDoc> = project(&self.db().plans, pending, bson::Document::new(), sort).await?;
        let mut poller = Poller { store: self, queue, owner, lease, now, poll: Poll::new(limit, now) };
        for doc in docs {
            let Some(machine) = doc.machine() else { continue };
            if self.next_pending(doc.id, queue, 0).await?.is_some() {
                Box::pin(poller.serve(machine.operation.id, doc.id)).await?;
            }
        }
        Ok(poller.poll.finish())
    }
}

impl Poller<'_> {
    /// Moves an operation on, and returns it as it stands then.
    async fn advanced(&self, id: OperationId) -> Result<Option<OperationMachine>> {
        while let Some(mut view) = self.store.load_plan(id).await? {
            let before = view.machine.clone();
            self.store.advance(&mut view, self.now).await?;
            let machine = view.machine.clone();
            if machine == before || self.store.commit_plan(view).await? {
                return Ok(Some(machine));
            }
        }
        Ok(None)
    }

    /// Changes the machine of an operation.
    async fn with_machine(
        &self,
        id: OperationId,
        change: impl Fn(&mut OperationMachine) + Send,
    ) -> Result<()> {
        while let Some(mut view) = self.store.load_plan(id).await? {
            change(&mut view.machine);
            if self.store.commit_plan(view).await? {
                break;
            }
        }
        Ok(())
    }

    /// Does for one operation what can be done now.
    async fn serve(&mut self, id: OperationId, plan: i64) -> Result<()> {
        let given = self.poll.given();
        let Some(mut machine) = self.advanced(id).await? else { return Ok(()) };
        match self.poll.begin(&machine) {
            PollDecision::Nothing => {}
            PollDecision::Run(stage) => {
                let stopped = self.run(&mut machine, plan, stage).await?;
                let left = self.store.next_pending(plan, self.queue, 0).await?.is_some();
                self.poll.end(&machine, stopped, left);
            }
            PollDecision::Sweep => self.sweep(id, plan).await?,
        }
        if self.poll.given() > given {
            self.store.serve_plan(id, self.now).await?;
        }
        Ok(())
    }

    /// Gives the letters of a running operation their turn, stage by stage. When to go on, if that is known.
    async fn run(
        &mut self,
        machine: &mut OperationMachine,
        plan: i64,
        mut stage: StageCursor,
    ) -> Result<Option<Timestamp>> {
        let id = machine.operation.id;
        loop {
            let item = self.store.next_pending(plan, self.queue, stage.from()).await?;
            match (self.poll.step(machine, &stage, item.as_ref().map(|(item, _)| item)), item) {
                (PollStep::Inspect, Some((item, sequence))) => {
                    self.look(machine, &mut stage, &item, &sequence).await?;
                }
                (PollStep::Stop(at), _) => return Ok(Some(at)),
                _ => {
                    if let Some(advanced) = self.advanced(id).await? {
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
    async fn look(
        &mut self,
        machine: &mut OperationMachine,
        stage: &mut StageCursor,
        item: &Pending,
        sequence: &SequenceId,
    ) -> Result<()> {
        let (id, now) = (machine.operation.id, self.now);
        let mut sequence = sequence.clone();
        let turn = loop {
            let mut view = self.store.load(self.queue, &sequence).await?;
            let held = self.store.letter_of(&view, item.letter).await?;
            if let Some(held) = &held
                && held.letter.state.is_open()
                && held.letter.sequence != sequence
            {
                // It left the sequence that it had at the freeze.
                sequence = held.letter.sequence.clone();
                continue;
            }
            let turn = self.decide(machine, item, held, &mut view).await;
            if let Some(turn) = self.store.commit(view, turn).await? {
                break turn;
            }
        };
        match turn {
            Turn::Tried(claim) => {
                self.poll.tried(machine, stage, item, *claim);
                self.with_machine(id, |machine| machine.spend(1, now)).await?;
            }
            Turn::Acted => {
                self.poll.acted(machine, stage, item);
                self.pace(machine, item, &sequence).await?;
            }
            Turn::Postpone => self.poll.postponed(machine, stage, item),
            Turn::Skip => {
                while let Some(mut view) = self.store.load_plan(id).await? {
                    let (ordinal, outcome) = (item.ordinal, Outcome::SkippedChanged);
                    let ordinals = ordinal..=ordinal;
                    self.store.write_items(&mut view, ordinals, Vec::new(), outcome, now).await?;
                    if self.store.commit_plan(view).await? {
                        break;
                    }
                }
                self.poll.skipped(machine, stage, item);
            }
        }
        Ok(())
    }

    /// Decides about one letter, and leases its sequence or acts on it, in one write on the version that the rule was asked about.
    /// With two, another call could come between: the lease would be that of another letter, or a letter would be skipped that
    /// has become the head meanwhile.
    async fn decide(
        &self,
        machine: &OperationMachine,
        item: &Pending,
        held: Option<Held>,
        view: &mut View,
    ) -> Result<Turn> {
        let (operation, by) = (&machine.operation, machine.actor());
        let ask = |asked: &rules::ItemView<'_>| rules::item_action(operation, item, asked);
        let action = self.store.ask(view, held.as_ref(), operation.id, ask).await?;
        match (action, held) {
            (ItemAction::Try, Some(_)) => {
                let kind = LeaseKind::Operation(operation.id);
                let taken = self.store.lease_head(view, self.owner, self.lease, kind).await?;
                Ok(taken.map_or(Turn::Postpone, |claim| Turn::Tried(Box::new(claim))))
            }
            (ItemAction::Act(act), Some(held)) => {
                let next = self.store.next_of(view, held.letter.index).await?;
                let effects = rules::act(act, &held.letter, view.row.as_ref(), next, &by, view.now)?;
                view.apply(held, effects)?;
                let outcome = OutcomeDoc::new(operation.id, item.letter, Outcome::Ok, self.now);
                view.leave(Left::Outcome(outcome.spending()));
                Ok(Turn::Acted)
            }
            (ItemAction::Postpone, _) => Ok(Turn::Postpone),
            (ItemAction::Skip | ItemAction::Try | ItemAction::Act(_), _) => Ok(Turn::Skip),
        }
    }

    /// Gives the letters that an act lets run automatically the pace of the operation.
    async fn pace(
        &self,
        machine: &mut OperationMachine,
        item: &Pending,
        sequence: &SequenceId,
    ) -> Result<()> {
        let paced = loop {
            let mut view = self.store.load(self.queue, sequence).await?;
            let paced = self.decide_pace(machine, item, &mut view).await;
            if let Some(paced) = self.store.commit(view, paced).await? {
                break paced;
            }
        };
        if paced > 0 {
            let now = self.now;
            machine.pace_released(paced, now);
            self.with_machine(machine.operation.id, |machine| _ = machine.pace_released(paced, now)).await?;
        }
        Ok(())
    }

    async fn decide_pace(&self, machine: &OperationMachine, item: &Pending, view: &mut View) -> Result<u64> {
        let Some(row) = view.row.clone() else { return Ok(0) };
        let Some(from) = self.poll.released_from(machine, item, &row) else { return Ok(0) };
        let letters = self.store.released_letters(view, from).await?;
        let Some(row) = self.poll.paced(&mut machine.clone(), letters, &row) else { return Ok(0) };
        let letters = row.pace.map_or(0, |pace| pace.left);
        view.put(Some(row));
        Ok(letters)
    }

    /// Skips the letters of a cancelled operation whose lease was lost.
    async fn sweep(&mut self, id: OperationId, plan: i64) -> Result<()> {
        let Some(view) = self.store.load_plan(id).await? else { return Ok(()) };
        let tried = self.store.tried(&view.machine.operation).await?;
        let mut counted = view.machine.clone();
        let mut from = 0;
        while let Some((item, _)) = self.store.next_pending(plan, self.queue, from).await? {
            from = item.ordinal + 1;
            if !self.poll.swept(&mut counted, tried.contains(&item.letter)) {
                continue;
            }
            while let Some(mut view) = self.store.load_plan(id).await? {
                let (ordinals, outcome) = (item.ordinal..=item.ordinal, Outcome::SkippedCancelled);
                self.store.write_items(&mut view, ordinals, Vec::new(), outcome, self.now).await?;
                if self.store.commit_plan(view).await? {
                    break;
                }
            }
        }
        Ok(())
    }
}
