//! Handing out the letters of operations whose turn has come, and doing acts.

use std::time::Duration;

use jiff::Timestamp;
use lazaret_core::QueueName;
use lazaret_core::letter::{Letter, LetterState};
use lazaret_core::store::{
    Act, Action, OperationId, OperationMachine, OperationState, Outcome, PolledWork, Result, WorkItem,
};

use super::table::{OperationTable, Pending};
use crate::store::audit::AuditLog;
use crate::store::queue::Queue;
use crate::store::{State, Step};

/// What came of a letter whose turn may have come.
enum Next {
    /// It is to be tried.
    Try(Box<WorkItem>),
    /// The act was done.
    Done,
    /// It is left out.
    Skip,
    /// Somebody holds its sequence, or a pause does.
    Later,
}

/// One call: who asks, for how many letters, and what it works with.
struct Taker<'a> {
    owner: &'a str,
    lease: Duration,
    limit: usize,
    now: Timestamp,
    queue: &'a mut Queue,
    operations: &'a mut OperationTable,
    audit: &'a mut AuditLog,
    /// How many letters had their turn in this call.
    given: usize,
    taken: PolledWork,
}

impl State {
    pub(super) fn take_turns(
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
        let taken = PolledWork::default();
        let mut taker = Taker { owner, lease, limit, now, queue, operations, audit, given: 0, taken };
        for id in live {
            taker.serve(id)?;
        }
        Ok(taker.taken)
    }

    /// Skips every letter without an outcome but those that are being tried. Write the machine after it.
    pub(super) fn cancel_pending(&mut self, machine: &mut OperationMachine, now: Timestamp) {
        for (queue, item) in self.operations.all_pending(machine.operation.plan) {
            let queue = self.queues.get(&queue);
            if !queue.is_some_and(|queue| is_tried(queue, &item, machine.operation.id, now)) {
                self.operations.settle_one(machine, item.ordinal, Outcome::SkippedCancelled, now);
            }
        }
        self.queues.values_mut().for_each(|queue| queue.unreserve(machine.operation.id));
    }
}

/// Whether a letter is being tried for this operation.
fn is_tried(queue: &Queue, item: &Pending, operation: OperationId, now: Timestamp) -> bool {
    let row = queue.letter(item.letter).and_then(|letter| queue.open.get(&letter.sequence));
    row.is_some_and(|row| {
        let lease = row.lease.as_ref().filter(|lease| lease.until > now);
        row.head() == item.letter && lease.is_some_and(|lease| lease.operation == Some(operation))
    })
}

/// Whether somebody has put the letter into quarantine since it was frozen.
fn is_quarantined_since(item: &Pending, letter: &Letter) -> bool {
    letter.state == LetterState::Quarantined && item.state != LetterState::Quarantined
}

impl Taker<'_> {
    fn again(&mut self, at: Timestamp) {
        self.taken.again_at = Some(self.taken.again_at.map_or(at, |earlier| earlier.min(at)));
    }

    fn next_pending(&self, machine: &OperationMachine, from: usize) -> Option<Pending> {
        self.operations.next_pending(machine.operation.plan, &self.queue.name, from)
    }

    /// Does for one operation what can be done now, and says when to ask again.
    fn serve(&mut self, id: OperationId) -> Result<()> {
        let Some(mut machine) = self.operations.machine(id).cloned() else { return Ok(()) };
        let given = self.given;
        self.operations.advance(&mut machine, self.now, self.audit);
        match machine.operation.state {
            OperationState::Running => {
                let again_at = self.serve_running(&mut machine)?;
                let left = self.next_pending(&machine, 0).is_some();
                if machine.operation.state == OperationState::Running && left {
                    self.again(again_at.unwrap_or_else(|| self.now + OperationMachine::ASK_AGAIN));
                }
            }
            OperationState::Scheduled => self.again(machine.operation.rollout.start_at.unwrap_or(self.now)),
            OperationState::Cancelled => self.sweep(&mut machine),
            _ => {}
        }
        self.operations.write(machine);
        if self.given > given {
            self.operations.mark_served(id, self.now);
        }
        Ok(())
    }

    /// Gives the letters of a running operation their turn, stage by stage. When to ask again, if that is known.
    fn serve_running(&mut self, machine: &mut OperationMachine) -> Result<Option<Timestamp>> {
        loop {
            let allowance = machine.allowance();
            let mut from = 0;
            while let Some(item) = self.next_pending(machine, from)
                && (item.ordinal as u64) < allowance
            {
                if self.given >= self.limit {
                    return Ok(Some(self.now));
                }
                if machine.pace(self.now) == 0 {
                    return Ok(Some(machine.pace_at(self.now)));
                }
                from = item.ordinal + 1;
                match self.step(machine, &item)? {
                    Next::Try(turn) => {
                        self.taken.items.push(*turn);
                        self.given += 1;
                        machine.spend(1, self.now);
                        from = item.last + 1;
                    }
                    Next::Done => {
                        self.operations.settle_one(machine, item.ordinal, Outcome::Ok, self.now);
                        self.taken.settled += 1;
                        self.given += 1;
                        machine.spend(1, self.now);
                    }
                    Next::Skip => {
                        self.operations.settle_one(machine, item.ordinal, Outcome::SkippedChanged, self.now);
                        if item.ordinal == item.last {
                            self.give_back(machine, &item);
                        }
                        self.taken.settled += 1;
                    }
                    // Those behind it must wait for it, too.
                    Next::Later if machine.operation.action == Action::Retry => from = item.last + 1,
                    Next::Later => {}
                }
            }
            self.operations.advance(machine, self.now, self.audit);
            if machine.allowance() <= allowance {
                return Ok(None);
            }
        }
    }

    /// Looks at one letter and does what its turn asks for.
    fn step(&mut self, machine: &OperationMachine, item: &Pending) -> Result<Next> {
        let operation = machine.operation.id;
        let letter = self.queue.letter(item.letter).filter(|letter| letter.state.is_open());
        let row = letter.and_then(|letter| self.queue.open.get(&letter.sequence));
        let (Some(letter), Some(row)) = (letter, row) else { return Ok(Next::Skip) };
        let leased = row.is_leased(self.now);
        let in_earlier = self.operations.is_in_earlier(item.letter, operation);
        if let Some(act) = machine.operation.action.act() {
            let changed = in_earlier
                || (act == Act::Park && letter.state == LetterState::Parked)
                || (act == Act::Release && is_quarantined_since(item, letter));
            return match (leased && letter.index <= row.head_index(), changed) {
                (true, _) => Ok(Next::Later),
                (_, true) => Ok(Next::Skip),
                _ => self.do_act(machine, item, act),
            };
        }
        if leased || self.queue.paused.contains(&letter.sequence) {
            return Ok(Next::Later);
        }
        let changed = row.head() != item.letter
            || is_quarantined_since(item, letter)
            || in_earlier
            || letter.payload_left_out;
        if changed {
            return Ok(Next::Skip);
        }
        let sequence = letter.sequence.clone();
        let claim = self.queue.claim_turn(&sequence, self.owner, self.lease, self.now, operation);
        Ok(Next::Try(Box::new(WorkItem { operation, claim })))
    }

    fn do_act(&mut self, machine: &OperationMachine, item: &Pending, act: Act) -> Result<Next> {
        let step = Step {
            now: self.now,
            audit: &mut *self.audit,
            operations: &mut *self.operations,
            fences_hold: true,
        };
        self.queue.act(item.letter, act, &machine.actor(), step)?;
        Ok(Next::Done)
    }

    /// Lets the sequence of a letter run by itself again, if this operation kept it.
    fn give_back(&mut self, machine: &OperationMachine, item: &Pending) {
        let Some(letter) = self.queue.letter(item.letter) else { return };
        let sequence = letter.sequence.clone();
        let reserved = self.queue.open.get(&sequence).and_then(|row| row.reserved);
        if reserved == Some(machine.operation.id) {
            self.queue.reserve(&sequence, None);
        }
    }

    /// Skips the letters of a cancelled operation whose lease was lost.
    fn sweep(&mut self, machine: &mut OperationMachine) {
        let mut from = 0;
        while let Some(item) = self.next_pending(machine, from) {
            from = item.ordinal + 1;
            if is_tried(self.queue, &item, machine.operation.id, self.now) {
                self.again(self.now + OperationMachine::ASK_AGAIN);
            } else {
                self.operations.settle_one(machine, item.ordinal, Outcome::SkippedCancelled, self.now);
                self.taken.settled += 1;
            }
        }
    }
}
