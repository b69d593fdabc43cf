//! Handing out work and writing down what became of it.

use std::time::Duration;

use lazaret_core::letter::{AttemptRecord, LetterId};
use lazaret_core::store::{Actor, Claim, ErrorKind, Lease, Outcome, Requeue, Settled, Settlement};
use lazaret_core::{LetterState, SequenceId};
use rusqlite::params;

use super::{Found, LeaseRow, Queue, SequenceRow, select_sequence};
use crate::audit;
use crate::error::{Fault, Work};
use crate::rows::{Body, id_bytes, later, limit as rows_of, nanos, time, unsigned};

impl Queue<'_> {
    pub(crate) fn claim_due(&mut self, owner: &str, lease: Duration, limit: usize) -> Work<Vec<Claim>> {
        self.end_expired_leases()?;
        let mut select = self.connection.prepare_cached(select_sequence!(
            "FROM sequences WHERE qid = ?1 AND due <= ?2 ORDER BY due LIMIT ?3"
        ))?;
        let due: rusqlite::Result<Vec<SequenceRow>> =
            select.query_map([self.facts.qid, self.now, rows_of(limit)], SequenceRow::read)?.collect();
        due?.into_iter().map(|row| self.take(row, owner, lease, false, None)).collect()
    }

    /// Gives back the sequences whose lease has ended and whose head is due, so that they are ordered by their due
    /// time like all others. Each lease is ended once, so this costs no more than the claims did.
    fn end_expired_leases(&self) -> Work<()> {
        let mut update = self.connection.prepare_cached(
            "UPDATE sequences SET lease_owner = NULL, lease_fence = NULL, lease_until = NULL, lease_replay = NULL,
             lease_operation = NULL, due = head_due, busy = NULL WHERE qid = ?1 AND busy <= ?2",
        )?;
        update.execute([self.facts.qid, self.now])?;
        Ok(())
    }

    pub(crate) fn claim(
        &mut self,
        sequence: &SequenceId,
        owner: &str,
        lease: Duration,
    ) -> Work<Option<Claim>> {
        match self.sequence(sequence)? {
            Some(row) if !row.is_leased(self.now) => self.take(row, owner, lease, true, None).map(Some),
            _ => Ok(None),
        }
    }

    /// Leases an open sequence to somebody for one turn of an operation.
    pub(crate) fn claim_turn(
        &mut self,
        row: SequenceRow,
        owner: &str,
        lease: Duration,
        operation: i64,
    ) -> Work<Claim> {
        self.take(row, owner, lease, true, Some(operation))
    }

    /// Leases an open sequence to somebody, under a fence that was never given before.
    fn take(
        &mut self,
        mut row: SequenceRow,
        owner: &str,
        lease: Duration,
        replay: bool,
        operation: Option<i64>,
    ) -> Work<Claim> {
        self.facts.fence += 1;
        let (fence, until) = (self.facts.fence, later(self.now, lease));
        row.lease = Some(LeaseRow { owner: owner.to_owned(), fence, until, replay, operation });
        self.write_lease(&row)?;
        let head = self.head(row.sid)?;
        let head = head.ok_or_else(|| Fault::Corrupt(format!("{} is open without a letter", row.name)))?;
        let lease = Lease {
            queue: self.name.clone(),
            sequence: row.name,
            owner: owner.to_owned(),
            fence: unsigned(fence)?,
            until: time(until),
        };
        Ok(Claim { lease, head: self.whole(head.lid)? })
    }

    /// The row under a lease that is the current one and has not ended (I6).
    fn leased(&self, lease: &Lease, operation: &'static str) -> Work<SequenceRow> {
        let row = self.sequence(&lease.sequence)?;
        let current = row.as_ref().and_then(|row| row.lease.as_ref());
        let is_current = current.is_some_and(|held| u64::try_from(held.fence) == Ok(lease.fence));
        let state = match (current, row.is_some()) {
            (_, false) => "the sequence is closed".to_owned(),
            (Some(held), _) if is_current && held.until <= self.now => {
                format!("it ended at {}", time(held.until))
            }
            (Some(held), _) if !is_current => {
                format!("{} holds the sequence under fence {}", held.owner, held.fence)
            }
            (None, _) => "nobody holds the sequence".to_owned(),
            _ => String::new(),
        };
        match row {
            Some(row) if state.is_empty() => Ok(row),
            _ => {
                let context = format!("lease {} of {} is not current: {state}", lease.fence, lease.sequence);
                Self::refuse(ErrorKind::Fenced, operation, context)
            }
        }
    }

    pub(crate) fn renew(&self, lease: Lease, duration: Duration) -> Work<Lease> {
        let mut row = self.leased(&lease, "renew")?;
        let until = later(self.now, duration);
        if let Some(held) = &mut row.lease {
            held.until = until;
        }
        self.write_lease(&row)?;
        Ok(Lease { until: time(until), ..lease })
    }

    pub(crate) fn release(&self, lease: &Lease) -> Work<()> {
        let Some(mut row) = self.sequence(&lease.sequence)? else {
            return Ok(());
        };
        if let Some(held) = row.lease.take_if(|held| u64::try_from(held.fence) == Ok(lease.fence)) {
            self.write_lease(&row)?;
            if let (Some(operation), Some(head)) = (held.operation, self.head(row.sid)?) {
                self.give_back_item(operation, head.id)?;
            }
        }
        Ok(())
    }

    pub(crate) fn settle(&mut self, lease: &Lease, id: LetterId, settlement: Settlement) -> Work<Settled> {
        let mut row = self.leased(lease, "settle")?;
        let head = self.head(row.sid)?.filter(|head| head.id == id_bytes(id));
        let Some(head) = head else {
            let context = format!("letter {id} is not the head of {}", lease.sequence);
            return Self::refuse(ErrorKind::NotFound, "settle", context);
        };
        if let Some(operation) = row.lease.as_ref().and_then(|held| held.operation) {
            let outcome = match &settlement {
                Settlement::Requeue(_) => Outcome::FailedAgain,
                Settlement::Resolve(_) | Settlement::Evict(_) | Settlement::Skip(_) => Outcome::Ok,
            };
            let goes_on = self.settle_item(operation, head.id, outcome)?;
            row.reserved = goes_on.then_some(operation);
        }
        match settlement {
            Settlement::Requeue(requeue) => self.requeue(row, &head, id, *requeue),
            Settlement::Resolve(attempt) => {
                if let Some(attempt) = attempt {
                    self.record(&head, attempt)?;
                }
                self.close_and_go_on(row, &head, LetterState::Resolved)
            }
            Settlement::Evict(why) => self.give_up(row, &head, id, LetterState::Evicted, ("evict", why)),
            Settlement::Skip(why) => self.give_up(row, &head, id, LetterState::Skipped, ("skip", why)),
        }
    }

    /// Closes a letter without a success, and says so in the audit (I11).
    fn give_up(
        &mut self,
        row: SequenceRow,
        head: &Found,
        id: LetterId,
        state: LetterState,
        (action, why): (&str, String),
    ) -> Work<Settled> {
        let (before, after) = (Some(head.state.as_str()), Some(state.as_str()));
        let by = Actor::engine(why);
        audit::write(self.connection, self.now, &by, action, &id.to_string(), before, after)?;
        self.close_and_go_on(row, head, state)
    }

    /// Closes the head and moves the lease to the next letter, or ends it: with the sequence, or because the letter
    /// may not run now.
    fn close_and_go_on(&mut self, mut row: SequenceRow, head: &Found, state: LetterState) -> Work<Settled> {
        self.close(&mut row, head, state)?;
        let next = self.head(row.sid)?;
        let replay = row.lease.as_ref().is_some_and(|lease| lease.replay);
        let may_run = next.as_ref().and_then(Found::due).is_some_and(|due| due <= self.now) && !row.paused;
        // In an operation each letter has a turn of its own.
        let is_turn = row.lease.as_ref().is_some_and(|lease| lease.operation.is_some());
        if is_turn || (!replay && !may_run) {
            row.lease = None;
        }
        self.write_row(&mut row, next.as_ref())?;
        match next {
            None => Ok(Settled::Closed),
            Some(_) if row.lease.is_none() => Ok(Settled::Blocked),
            Some(next) => Ok(Settled::Next(Box::new(self.whole(next.lid)?))),
        }
    }

    pub(crate) fn body(&self, lid: i64) -> Work<Body> {
        let mut select = self.connection.prepare_cached("SELECT body FROM letters WHERE lid = ?1")?;
        let body = super::first(select.query([lid])?, |row| {
            Body::decode(row.get_ref(0)?.as_blob().map_err(rusqlite::Error::from)?)
        })?;
        body.ok_or_else(|| Fault::Corrupt(format!("the letter in row {lid} is gone")))
    }

    /// Remembers an attempt in the history of a letter.
    fn record(&self, letter: &Found, attempt: AttemptRecord) -> Work<()> {
        let mut body = self.body(letter.lid)?;
        body.record(attempt);
        let mut update = self.connection.prepare_cached("UPDATE letters SET body = ?2 WHERE lid = ?1")?;
        update.execute(params![letter.lid, body.encode()?])?;
        Ok(())
    }

    fn requeue(
        &mut self,
        mut row: SequenceRow,
        head: &Found,
        id: LetterId,
        requeue: Requeue,
    ) -> Work<Settled> {
        if !requeue.state.is_open() {
            let context = format!("letter {id} cannot be requeued as {}", requeue.state);
            return Self::refuse(ErrorKind::Invalid, "settle", context);
        }
        let mut body = self.body(head.lid)?;
        let failed = requeue.attempt.as_ref().is_some_and(|attempt| attempt.failure.is_some());
        let failed_at = (failed || requeue.cause.is_some())
            .then(|| requeue.attempt.as_ref().map_or(self.now, |attempt| nanos(attempt.at)));
        body.diagnostics = requeue.diagnostics;
        if requeue.leave_out_payload && !body.payload_left_out {
            body.payload_left_out = true;
            let mut update =
                self.connection.prepare_cached("UPDATE payloads SET payload = NULL WHERE lid = ?1")?;
            update.execute([head.lid])?;
        }
        if let Some(cause) = requeue.cause {
            body.cause = Some(cause);
        }
        if let Some(attempt) = requeue.attempt {
            body.record(attempt);
        }
        let gid = match failed_at {
            Some(at) => self.failed_again(head, body.cause.as_ref(), at)?,
            None => head.gid,
        };
        self.count(Some(head.standing()), Some((gid, requeue.state)))?;
        let mut update = self.connection.prepare_cached(
            "UPDATE letters SET state = ?2, due_at = ?3, touched_at = ?4, attempts = ?5, crash_attempts = ?6,
             replay_attempts = ?7, poison = ?8, first_failed_at = coalesce(first_failed_at, ?9),
             last_failed_at = coalesce(?9, last_failed_at), body = ?10, gid = ?11, reason = ?12 WHERE lid = ?1",
        )?;
        update.execute(params![
            head.lid,
            requeue.state as i64,
            requeue.due_at.filter(|_| requeue.state == LetterState::Retrying).map(nanos),
            self.now,
            requeue.attempts,
            requeue.crash_attempts,
            requeue.replay_attempts,
            requeue.poison,
            failed_at,
            body.encode()?,
            gid,
            body.reason(),
        ])?;
        self.list_end(id, Some(head.state), requeue.state, requeue.attempts)?;
        row.lease = None;
        self.refresh(&mut row)?;
        Ok(Settled::Requeued)
    }
}
