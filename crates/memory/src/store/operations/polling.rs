//! Polls the letters of operations, and performs acts.

use std::time::Duration;

use jiff::Timestamp;
use lazaret_core::QueueName;
use lazaret_core::store::rules::{
    self, ItemAction, ItemView, LeaseKind, Pending, Poll, PollDecision, PollStep, StageCursor,
};
use lazaret_core::store::{
    OperationId, OperationMachine, OperationState, Outcome, PayloadDigest, PolledWork, Result,
};

use super::table::OperationTable;
use crate::store::audit::AuditLog;
use crate::store::queue::Queue;
use crate::store::{State, Step};

/// One call: its parameters and the state that it changes.
struct Poller<'a> {
    owner: &'a str,
    lease: Duration,
    now: Timestamp,
    queue: &'a mut Queue,
    operations: &'a mut OperationTable,
    audit: &'a mut AuditLog,
    poll: Poll,
}

impl State {
    pub(super) fn poll_work(
        &mut self,
        queue: &QueueName,
        now: Timestamp,
        owner: &str,
        lease: Duration,
        limit: usize,
    ) -> Result<PolledWork> {
        let live = self.operations.live(queue);
        if live.is_empty() {
            return Ok(PolledWork::default());
        }
        let (queue, Step { audit, operations, .. }) = self.queue_mut(queue, now);
        let poll = Poll::new(limit, now);
        let mut poller = Poller { owner, lease, now, queue, operations, audit, poll };
        for id in live {
            poller.serve(id)?;
        }
        let work = poller.poll.finish();
        self.release_ended();
        Ok(work)
    }

    /// Skips every letter without an outcome except those in flight. The caller stores the machine.
    pub(super) fn cancel_pending(&mut self, machine: &mut OperationMachine, now: Timestamp) {
        let plan = machine.operation.plan;
        for (queue, item) in self.operations.all_pending(plan) {
            let tried = self.queues.get(&queue).is_some_and(|queue| {
                rules::is_tried(&machine.operation, &view(queue, &self.operations, &item, machine, now))
            });
            if !tried {
                let ordinals = item.ordinal..=item.ordinal;
                let written = self.operations.write_outcomes(plan, ordinals, Outcome::SkippedCancelled);
                machine.count(Outcome::SkippedCancelled, written, now);
            }
        }
        self.unreserve(machine.operation.id);
    }
}

fn view<'a>(
    queue: &'a Queue,
    operations: &OperationTable,
    item: &Pending,
    machine: &OperationMachine,
    now: Timestamp,
) -> ItemView<'a> {
    let letter = queue.letter(item.letter);
    let row = letter.and_then(|letter| queue.row(&letter.sequence));
    let in_earlier = operations.is_in_earlier(item.letter, machine.operation.id);
    let digest = PayloadDigest::of(letter.and_then(|letter| letter.message.payload.as_deref()));
    ItemView { letter, digest, row, in_earlier, now }
}

impl Poller<'_> {
    fn next_pending(&self, machine: &OperationMachine, from: u64) -> Option<Pending> {
        self.operations.next_pending(machine.operation.plan, &self.queue.name, from)
    }

    fn view(&self, machine: &OperationMachine, item: &Pending) -> ItemView<'_> {
        view(self.queue, self.operations, item, machine, self.now)
    }

    fn write_outcome(&mut self, machine: &OperationMachine, item: &Pending, outcome: Outcome) {
        self.operations.write_outcomes(machine.operation.plan, item.ordinal..=item.ordinal, outcome);
    }

    /// Serves one operation as far as it can proceed now.
    fn serve(&mut self, id: OperationId) -> Result<()> {
        let Some(mut machine) = self.operations.machine(id).cloned() else { return Ok(()) };
        let given = self.poll.given();
        self.operations.advance(&mut machine, self.now, self.audit);
        let is_unpaused = self.operations.ignores_pause_of(&machine.operation);
        if is_unpaused {
            machine.operation.state = OperationState::Running;
        }
        match self.poll.begin(&machine) {
            PollDecision::Nothing => {}
            PollDecision::Run(stage) => {
                let stopped = self.run(&mut machine, stage)?;
                let left = self.next_pending(&machine, 0).is_some();
                self.poll.end(&machine, stopped, left);
            }
            PollDecision::Sweep => self.sweep(&mut machine),
        }
        if is_unpaused && machine.operation.state == OperationState::Running {
            machine.operation.state = OperationState::Paused;
        }
        self.operations.write(machine);
        if self.poll.given() > given {
            self.operations.mark_served(id, self.now);
        }
        Ok(())
    }

    /// Runs the letters of a running operation, stage by stage. Returns when to continue, if known.
    fn run(&mut self, machine: &mut OperationMachine, mut stage: StageCursor) -> Result<Option<Timestamp>> {
        loop {
            let item = self.next_pending(machine, stage.from());
            match (self.poll.step(machine, &stage, item.as_ref()), item) {
                (PollStep::Inspect, Some(item)) => self.inspect(machine, &mut stage, &item)?,
                (PollStep::Stop(at), _) => return Ok(Some(at)),
                _ => {
                    self.operations.advance(machine, self.now, self.audit);
                    let Some(next) = self.poll.next_stage(machine, &stage) else { return Ok(None) };
                    stage = next;
                }
            }
        }
    }

    /// Decides the action on one letter and performs it.
    fn inspect(
        &mut self,
        machine: &mut OperationMachine,
        stage: &mut StageCursor,
        item: &Pending,
    ) -> Result<()> {
        let operation = machine.operation.id;
        let view = self.view(machine, item);
        let sequence = view.letter.map(|letter| letter.sequence.clone());
        match (rules::item_action(&machine.operation, item, &view), sequence) {
            (ItemAction::Try, Some(sequence)) => {
                let kind = LeaseKind::Operation(operation);
                let claim = self.queue.lease_sequence(&sequence, self.owner, self.lease, kind, self.now);
                self.poll.tried(machine, stage, item, claim);
            }
            (ItemAction::Act(act), sequence) => {
                let (audit, operations) = (&mut *self.audit, &mut *self.operations);
                let mut step = Step { now: self.now, audit, operations, fences_hold: true };
                self.queue.act(item.letter, act, &machine.actor(), &mut step)?;
                self.write_outcome(machine, item, Outcome::Ok);
                self.poll.acted(machine, stage, item);
                if let Some(sequence) = sequence
                    && let Some(row) = self.queue.row(&sequence)
                    && let Some(from) = self.poll.released_from(machine, item, row)
                    && let letters = self.queue.released_letters(&sequence, from)
                    && let Some(row) = self.poll.paced(machine, letters, row)
                {
                    self.queue.put_row(&sequence, row);
                }
            }
            (ItemAction::Postpone, _) => self.poll.postponed(machine, stage, item),
            (ItemAction::Skip | ItemAction::Try, _) => {
                self.write_outcome(machine, item, Outcome::SkippedChanged);
                if self.poll.skipped(machine, stage, item)
                    && let Some(sequence) = self.operations.planned_sequence(operation, item.letter)
                {
                    self.queue.unreserve_one(&sequence, operation);
                }
            }
        }
        Ok(())
    }

    /// Skips the letters of a cancelled operation whose lease was lost.
    fn sweep(&mut self, machine: &mut OperationMachine) {
        let mut from = 0;
        while let Some(item) = self.next_pending(machine, from) {
            from = item.ordinal + 1;
            let tried = rules::is_tried(&machine.operation, &self.view(machine, &item));
            if self.poll.swept(machine, tried) {
                self.write_outcome(machine, &item, Outcome::SkippedCancelled);
            }
        }
    }
}
