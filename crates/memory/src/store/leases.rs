//! Handing out work and writing down what became of it.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use lazaret_core::letter::{LetterId, LetterState};
use lazaret_core::store::{
    Actor, Claim, ErrorKind, Lease, OperationId, Outcome, Requeue, Result, Settled, Settlement, StoreError,
};
use lazaret_core::{Message, SequenceId};

use super::queue::{LeaseRow, Queue, due_of};
use super::{Step, later};

impl Queue {
    pub(super) fn claim_due(
        &mut self,
        owner: &str,
        lease: Duration,
        limit: usize,
        now: Timestamp,
    ) -> Vec<Claim> {
        self.end_expired_leases(now);
        let due = self.due.iter().take_while(|(due, _)| *due <= now).take(limit);
        let sequences: Vec<SequenceId> = due.map(|(_, sequence)| sequence.clone()).collect();
        sequences.iter().map(|sequence| self.take(sequence, owner, lease, now, false, None)).collect()
    }

    /// Gives back the sequences whose lease has ended and whose head is due, so that they are ordered by their due
    /// time like all others. Each lease is ended once, so this costs no more than the claims did.
    fn end_expired_leases(&mut self, now: Timestamp) {
        while let Some((_, sequence)) = self.busy.first().filter(|(free, _)| *free <= now).cloned() {
            self.open.get_mut(&sequence).expect("a busy sequence is open").lease = None;
            self.refresh(&sequence);
        }
    }

    pub(super) fn next_due(&self) -> Option<Timestamp> {
        let (due, busy) = (self.due.first(), self.busy.first());
        due.into_iter().chain(busy).map(|(time, _)| *time).min()
    }

    pub(super) fn claim(
        &mut self,
        sequence: &SequenceId,
        owner: &str,
        lease: Duration,
        now: Timestamp,
    ) -> Option<Claim> {
        self.open.get(sequence).filter(|row| !row.is_leased(now))?;
        Some(self.take(sequence, owner, lease, now, true, None))
    }

    /// Leases an open sequence to somebody for one turn of an operation.
    pub(super) fn claim_turn(
        &mut self,
        sequence: &SequenceId,
        owner: &str,
        lease: Duration,
        now: Timestamp,
        operation: OperationId,
    ) -> Claim {
        self.take(sequence, owner, lease, now, true, Some(operation))
    }

    /// Leases an open sequence to somebody, under a fence that was never given before.
    fn take(
        &mut self,
        sequence: &SequenceId,
        owner: &str,
        lease: Duration,
        now: Timestamp,
        replay: bool,
        operation: Option<OperationId>,
    ) -> Claim {
        self.fence += 1;
        let (fence, until) = (self.fence, later(now, lease));
        let row = self.open.get_mut(sequence).expect("only open sequences are leased");
        row.lease = Some(LeaseRow { owner: owner.to_owned(), fence, until, replay, operation });
        let head = row.head();
        self.refresh(sequence);
        let lease = Lease {
            queue: self.name.clone(),
            sequence: sequence.clone(),
            owner: owner.to_owned(),
            fence,
            until,
        };
        Claim { lease, head: self.stored(head).clone() }
    }

    /// Checks that a lease is the current one and has not ended (I6).
    fn check_lease(&self, lease: &Lease, step: &Step<'_>, operation: &'static str) -> Result<()> {
        let row = self.open.get(&lease.sequence);
        let current = row.and_then(|row| row.lease.as_ref());
        let holds = current.is_some_and(|held| held.fence == lease.fence && held.until > step.now);
        if holds || (!step.fences_hold && row.is_some()) {
            return Ok(());
        }
        let state = match current {
            _ if row.is_none() => "the sequence is closed".to_owned(),
            Some(held) if held.fence == lease.fence => format!("it ended at {}", held.until),
            Some(held) => format!("{} holds the sequence under fence {}", held.owner, held.fence),
            None => "nobody holds the sequence".to_owned(),
        };
        let context = format!("lease {} of {} is not current: {state}", lease.fence, lease.sequence);
        Err(StoreError::not_done(ErrorKind::Fenced, operation, context))
    }

    pub(super) fn renew(&mut self, lease: &Lease, duration: Duration, step: &Step<'_>) -> Result<Lease> {
        self.check_lease(lease, step, "renew")?;
        let until = later(step.now, duration);
        let row = self.open.get_mut(&lease.sequence).expect("a lease is held on an open sequence");
        if let Some(held) = &mut row.lease {
            held.until = until;
        }
        self.refresh(&lease.sequence);
        Ok(Lease { until, ..lease.clone() })
    }

    pub(super) fn release(&mut self, lease: &Lease, step: Step<'_>) {
        let Some(row) = self.open.get_mut(&lease.sequence) else {
            return;
        };
        if let Some(held) = row.lease.take_if(|held| held.fence == lease.fence) {
            let head = row.head();
            self.refresh(&lease.sequence);
            if let Some(operation) = held.operation {
                step.operations.give_back_item(operation, head, step.now);
            }
        }
    }

    pub(super) fn settle(
        &mut self,
        lease: &Lease,
        id: LetterId,
        settlement: Settlement,
        mut step: Step<'_>,
    ) -> Result<Settled> {
        self.check_lease(lease, &step, "settle")?;
        let row = self.open.get(&lease.sequence).expect("a lease is held on an open sequence");
        let operation = row.lease.as_ref().and_then(|held| held.operation);
        if row.head() != id {
            let context = format!("letter {id} is not the head of {}", lease.sequence);
            return Err(StoreError::not_done(ErrorKind::NotFound, "settle", context));
        }
        let outcome = match &settlement {
            Settlement::Requeue(_) => Outcome::FailedAgain,
            Settlement::Resolve(_) | Settlement::Evict(_) | Settlement::Skip(_) => Outcome::Ok,
        };
        let settled = self.write_settlement(&lease.sequence, id, settlement, &mut step)?;
        if let Some(operation) = operation {
            let goes_on = step.operations.settle_item(operation, id, outcome, step.now, step.audit);
            self.reserve(&lease.sequence, goes_on.then_some(operation));
        }
        Ok(settled)
    }

    fn write_settlement(
        &mut self,
        sequence: &SequenceId,
        id: LetterId,
        settlement: Settlement,
        step: &mut Step<'_>,
    ) -> Result<Settled> {
        match settlement {
            Settlement::Requeue(requeue) => return self.requeue(sequence, id, *requeue, step.now),
            Settlement::Resolve(attempt) => {
                self.close(id, LetterState::Resolved, step.now);
                if let Some(attempt) = attempt {
                    self.stored_mut(id).record(attempt);
                }
            }
            Settlement::Evict(why) => self.give_up(id, LetterState::Evicted, "evict", why, step),
            Settlement::Skip(why) => self.give_up(id, LetterState::Skipped, "skip", why, step),
        }
        Ok(self.go_on(sequence, step.now))
    }

    /// Closes a letter without a success, and says so in the audit (I11).
    fn give_up(
        &mut self,
        id: LetterId,
        state: LetterState,
        action: &'static str,
        why: String,
        step: &mut Step<'_>,
    ) {
        let before = self.close(id, state, step.now);
        let (before, after) = (Some(before.as_str()), Some(state.as_str()));
        step.audit.write(step.now, &Actor::engine(why), action, id.to_string(), before, after);
    }

    /// Moves a lease to the next letter, or ends it: with the sequence, or because the letter may not run now.
    fn go_on(&mut self, sequence: &SequenceId, now: Timestamp) -> Settled {
        let row = self.open.get_mut(sequence).expect("the sequence of a letter that was just closed");
        let Some((_, next)) = row.letters.first_key_value() else {
            self.refresh(sequence);
            return Settled::Closed;
        };
        let next = self.letters.get(next).expect("a row names letters that are stored");
        let replay = row.lease.as_ref().is_some_and(|lease| lease.replay);
        let may_run = due_of(next).is_some_and(|due| due <= now) && !self.paused.contains(sequence);
        // In an operation each letter has a turn of its own.
        let is_turn = row.lease.as_ref().is_some_and(|lease| lease.operation.is_some());
        let settled = if !is_turn && (replay || may_run) {
            Settled::Next(next.clone())
        } else {
            row.lease = None;
            Settled::Blocked
        };
        self.refresh(sequence);
        settled
    }

    fn requeue(
        &mut self,
        sequence: &SequenceId,
        id: LetterId,
        requeue: Requeue,
        now: Timestamp,
    ) -> Result<Settled> {
        if !requeue.state.is_open() {
            let context = format!("letter {id} cannot be requeued as {}", requeue.state);
            return Err(StoreError::not_done(ErrorKind::Invalid, "settle", context));
        }
        let before = self.set_state(id, requeue.state, now);
        let letter = self.stored_mut(id);
        let group = letter.cause.as_ref().map(|cause| cause.fingerprint);
        letter.due_at = requeue.due_at.filter(|_| requeue.state == LetterState::Retrying);
        letter.attempts = requeue.attempts;
        letter.crash_attempts = requeue.crash_attempts;
        letter.replay_attempts = requeue.replay_attempts;
        letter.poison = requeue.poison;
        letter.diagnostics = requeue.diagnostics;
        if requeue.leave_out_payload && !letter.payload_left_out {
            letter.payload_left_out = true;
            letter.message = Arc::new(Message { payload: None, ..(*letter.message).clone() });
        }
        let failed = requeue.attempt.as_ref().is_some_and(|attempt| attempt.failure.is_some());
        let is_new = requeue.cause.is_some();
        if failed || is_new {
            let at = requeue.attempt.as_ref().map_or(now, |attempt| attempt.at);
            letter.first_failed_at.get_or_insert(at);
            letter.last_failed_at = Some(at);
        }
        if let Some(cause) = requeue.cause {
            letter.cause = Some(cause);
        }
        if let Some(attempt) = requeue.attempt {
            letter.record(attempt);
        }
        let ended = (letter.id, letter.state, letter.attempts);
        if failed || is_new {
            self.failed_again(id, group, now);
        }
        self.list_ended(ended, Some(before));
        self.open.get_mut(sequence).expect("a lease is held on an open sequence").lease = None;
        self.refresh(sequence);
        Ok(Settled::Requeued)
    }
}
