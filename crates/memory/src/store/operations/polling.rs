//! Polls the letters of operations, and performs acts.

use std::time::Duration;

use jiff::Timestamp;
use lazaret_core::QueueName;
use lazaret_core::store::rules::{
    self, ItemAction, ItemView, LeaseKind, Need, Pending, Poll, Serving, Swept,
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
        let mut poll = Poll::new(limit, now);
        let mut poller = Poller { owner, lease, now, queue, operations, audit };
        for id in live {
            poller.serve(&mut poll, id)?;
        }
        self.release_ended();
        Ok(poll.finish())
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
    fn serve(&mut self, poll: &mut Poll, id: OperationId) -> Result<()> {
        let Some(machine) = self.operations.machine(id).cloned() else { return Ok(()) };
        let mut serving = Serving::new(poll, machine);
        let mut is_unpaused = false;
        loop {
            match serving.next() {
                Need::Advance => {
                    self.operations.advance(&mut serving.machine, self.now, self.audit);
                    if self.operations.ignores_pause_of(&serving.machine.operation) {
                        serving.machine.operation.state = OperationState::Running;
                        is_unpaused = true;
                    }
                    serving.advanced();
                }
                Need::Pending(from) => {
                    let item = self.next_pending(&serving.machine, from);
                    serving.pending(item);
                }
                Need::Item(item) => self.inspect(&mut serving, &item)?,
                Need::Pace(item) => self.pace(&mut serving, &item),
                Need::Sweep => {
                    let swept = self.sweep(&serving.machine);
                    serving.swept(swept);
                }
                Need::Left => {
                    let left = self.next_pending(&serving.machine, 0).is_some();
                    serving.left(left);
                }
                Need::Done => break,
            }
        }
        let (given, mut machine) = (serving.given(), serving.machine);
        if is_unpaused && machine.operation.state == OperationState::Running {
            machine.operation.state = OperationState::Paused;
        }
        self.operations.write(machine);
        if given > 0 {
            self.operations.mark_served(id, self.now);
        }
        Ok(())
    }

    /// Performs the action on one letter.
    fn inspect(&mut self, serving: &mut Serving<'_>, item: &Pending) -> Result<()> {
        let operation = serving.machine.operation.id;
        let view = self.view(&serving.machine, item);
        let sequence = view.letter.map(|letter| letter.sequence.clone());
        match (serving.action(item, &view), sequence) {
            (ItemAction::Try, Some(sequence)) => {
                let kind = LeaseKind::Operation(operation);
                let claim = self.queue.lease_sequence(&sequence, self.owner, self.lease, kind, self.now);
                serving.tried(item, claim);
            }
            (ItemAction::Act(act), _) => {
                let (audit, operations) = (&mut *self.audit, &mut *self.operations);
                let mut step = Step { now: self.now, audit, operations, fences_hold: true };
                self.queue.act(item.letter, act, &serving.machine.actor(), &mut step)?;
                self.write_outcome(&serving.machine, item, Outcome::Ok);
                serving.acted(item);
            }
            (ItemAction::Postpone, _) => serving.postponed(item),
            (ItemAction::Skip | ItemAction::Try, _) => {
                self.write_outcome(&serving.machine, item, Outcome::SkippedChanged);
                if item.is_last()
                    && let Some(sequence) = self.operations.planned_sequence(operation, item.letter)
                {
                    self.queue.unreserve_one(&sequence, operation);
                }
                serving.skipped(item);
            }
        }
        Ok(())
    }

    /// Applies the rate of the operation to the letters that its act has released.
    fn pace(&mut self, serving: &mut Serving<'_>, item: &Pending) {
        let mut paced = 0;
        if let Some(sequence) = self.queue.letter(item.letter).map(|letter| letter.sequence.clone())
            && let Some(row) = self.queue.row(&sequence)
            && let Some(from) = serving.released_from(row)
            && let Some((row, letters)) = serving.pace(self.queue.released_letters(&sequence, from), row)
        {
            self.queue.put_row(&sequence, row);
            paced = letters;
        }
        serving.paced(paced);
    }

    /// Skips the letters of a cancelled operation whose leases were lost.
    fn sweep(&mut self, machine: &OperationMachine) -> Swept {
        let mut swept = Swept::default();
        let mut from = 0;
        while let Some(item) = self.next_pending(machine, from) {
            from = item.ordinal + 1;
            if rules::is_tried(&machine.operation, &self.view(machine, &item)) {
                swept.in_flight = true;
            } else {
                self.write_outcome(machine, &item, Outcome::SkippedCancelled);
                swept.skipped += 1;
            }
        }
        swept
    }
}
