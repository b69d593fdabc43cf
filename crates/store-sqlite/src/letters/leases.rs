//! Views for leases and settlements.

use std::time::Duration;

use lazaret_core::SequenceId;
use lazaret_core::letter::LetterId;
use lazaret_core::store::rules::{self, AfterSettle, Head, LeaseKind, SequenceChange, SettleView};
use lazaret_core::store::{Lease, LeaseUse, Settled, Settlement};

use rusqlite::params;

use super::apply::Stored;
use super::sequences::{OpenSequenceRow, select_sequence};
use super::{OpenSequence, Queue};
use crate::error::{Fault, Work};
use crate::operations::{Behind, NextHead};
use crate::rows::{UndecodedLetter, bound, limit as rows_of, nanos, unsigned};
use crate::undecoded_claims::UndecodedClaim;

/// The sequences of a queue whose leases end after a time, or that were touched after one.
pub(crate) const PROLONGED: &str =
    select_sequence!("FROM sequences WHERE qid = ?1 AND (lease_until > ?2 OR touched > ?3)");

impl Queue<'_> {
    pub(crate) fn claim_due(
        &mut self,
        owner: &str,
        lease: Duration,
        limit: usize,
    ) -> Work<Vec<UndecodedClaim>> {
        self.end_expired_leases()?;
        let mut select = self.connection.prepare_cached(select_sequence!(
            "FROM sequences WHERE qid = ?1 AND due <= ?2 ORDER BY due LIMIT ?3"
        ))?;
        let mut rows = select.query([self.numbers.qid, self.now, rows_of(limit)])?;
        let mut due = Vec::new();
        while let Some(row) = rows.next()? {
            due.push(OpenSequenceRow::read(row)?);
        }
        let mut claims = Vec::with_capacity(due.len());
        for row in due {
            let open = self.opened(row)?;
            claims.push(self.lease_sequence(&open, owner, lease, LeaseKind::Due, None)?);
        }
        Ok(claims)
    }

    /// Corrects the leases and due times that a clock which was set back prolongs.
    pub(crate) fn clamp_rows(&mut self, lease: Duration) -> Work<()> {
        let now = self.time();
        let mut select = self.connection.prepare_cached(PROLONGED)?;
        let lease_end = nanos(rules::latest_lease_end(lease, now));
        let mut rows = select.query([self.numbers.qid, lease_end, self.now])?;
        let mut prolonged = Vec::new();
        while let Some(row) = rows.next()? {
            prolonged.push(OpenSequenceRow::read(row)?);
        }
        for row in prolonged {
            let open = self.opened(row)?;
            let Some(row) = rules::clamp_row(&open.row, lease, now) else { continue };
            if row.head != open.row.head {
                self.date_head(&open, &row.head)?;
            }
            self.write_sequence(None, Some(&open), &SequenceChange::Put(row))?;
        }
        Ok(())
    }

    /// Touches the letter at the head, and gives it the due time of its row.
    fn date_head(&mut self, open: &OpenSequence, head: &Head) -> Work<()> {
        let missing = || Fault::Corrupt(format!("sequence {} is open without a letter", open.name));
        let lid = self.first_from(open.sid, bound(head.index))?.ok_or_else(missing)?.lid;
        let mut letter = self.light_by_row(lid)?;
        head.date(&mut letter);
        let mut update = self.connection.prepare_cached(
            "UPDATE letters SET due_at = ?2, touched_at = ?3, revision = revision + 1 WHERE lid = ?1",
        )?;
        update.execute(params![lid, letter.due_at.map(nanos), self.now])?;
        Ok(())
    }

    /// Returns sequences with an expired lease and a due head to the due index, so that they are ordered by their due
    /// time like all others: `SequenceRow::expired`. Each lease expires once, so this costs no more than the claims did.
    fn end_expired_leases(&self) -> Work<()> {
        let mut update = self.connection.prepare_cached(
            "UPDATE sequences SET lease_until = 0, due = max(head_due, ifnull(pace_next, head_due)), busy = NULL
             WHERE qid = ?1 AND busy <= ?2",
        )?;
        update.execute([self.numbers.qid, self.now])?;
        Ok(())
    }

    pub(crate) fn claim(
        &mut self,
        sequence: &SequenceId,
        owner: &str,
        lease: Duration,
    ) -> Work<Option<UndecodedClaim>> {
        let open = self.sequence(sequence)?.filter(|open| !open.row.is_leased(self.time()));
        open.map(|open| self.lease_sequence(&open, owner, lease, LeaseKind::Replay, None)).transpose()
    }

    /// Leases an open sequence, under a new fence. `head` is its whole first letter, if that was read before.
    pub(crate) fn lease_sequence(
        &mut self,
        open: &OpenSequence,
        owner: &str,
        lease: Duration,
        kind: LeaseKind,
        head: Option<UndecodedLetter>,
    ) -> Work<UndecodedClaim> {
        let missing = || Fault::Corrupt(format!("sequence {} is open without a letter", open.name));
        self.numbers.fence += 1;
        let row = open.row.claimed(owner, lease, kind, unsigned(self.numbers.fence)?, self.time());
        self.write_sequence(None, Some(open), &SequenceChange::Put(row.clone()))?;
        let lease = row.lease_of(self.name, &open.name).ok_or_else(missing)?;
        let (interrupted, lost) = (open.row.was_interrupted(self.time()), open.row.was_lost(self.time()));
        let mut head = match head {
            Some(head) => head,
            None => self.whole_head(open.sid, bound(open.row.head.index))?.ok_or_else(missing)?,
        };
        row.head.date(&mut head.letter);
        Ok(UndecodedClaim { lease, head, interrupted, lost })
    }

    pub(crate) fn renew(&mut self, lease: &Lease, duration: Duration, used_for: LeaseUse) -> Work<Lease> {
        let open = self.sequence(&lease.sequence)?;
        let row = open.as_ref().map(|open| &open.row);
        let (row, renewed) = rules::renew(row, lease, duration, used_for, self.time())?;
        if let Some(open) = open {
            self.write_lease(open.sid, &row)?;
        }
        Ok(renewed)
    }

    pub(crate) fn release(&mut self, lease: &Lease) -> Work<()> {
        let Some(open) = self.sequence(&lease.sequence)? else { return Ok(()) };
        let Some((row, operation)) = rules::release(Some(&open.row), lease) else { return Ok(()) };
        self.write_lease(open.sid, &row)?;
        let head = self.first_from(open.sid, bound(row.head.index))?;
        match (operation, head) {
            (Some(operation), Some(head)) => self.release_item(operation, head.view.id),
            _ => Ok(()),
        }
    }

    /// Settles the head of a leased sequence. `take_next`: an operation takes the letter behind, if it may.
    pub(crate) fn settle(
        &mut self,
        lease: &Lease,
        id: LetterId,
        settlement: Settlement,
        take_next: bool,
    ) -> Work<Settled> {
        let open = self.sequence(&lease.sequence)?;
        let (mut head, mut next) = (None, None);
        if let Some(open) = &open {
            (head, next) = self.first_two_from(open.sid, bound(open.row.head.index))?;
        }
        let view = SettleView {
            row: open.as_ref().map(|open| &open.row),
            head: head.as_ref().map(|head| head.view),
            next: next.as_ref().map(|next| next.view),
            now: self.time(),
        };
        let mut settle = rules::settle(&view, lease, id, settlement)?;
        let mut taken = None;
        if let Some((operation, outcome)) = settle.outcome {
            let candidate = match (settle.untaken(), &next) {
                (Some(row), Some(next)) if take_next => {
                    Some(NextHead { lid: next.lid, id: next.view.id, row })
                }
                _ => None,
            };
            let behind = self.settle_item(operation, (&lease.sequence, id), outcome, candidate)?;
            settle.effects.reserve(behind.is_reserved().then_some(operation));
            if let Behind::Taken(letter) = behind {
                settle.take_next();
                taken = Some(letter);
            }
            if let (Some(open), Some(from)) = (&open, settle.released_from())
                && let Some(pace) = self.pace_released(operation, open.sid, from)?
            {
                settle.effects.pace(pace, self.time());
            }
        }
        let head = head.ok_or_else(|| Fault::Corrupt(format!("letter {id} has no row")))?;
        let stored = Stored { lid: head.lid, id, sequence: None };
        let next_head = settle.effects.sequence.row().map(|row| row.head);
        self.apply(&stored, open.as_ref(), settle.effects)?;
        Ok(match (settle.after, next) {
            (AfterSettle::Next, Some(next)) => {
                let mut next = match taken {
                    Some(taken) => taken,
                    None => match self.whole_undecoded(next.lid)?.decode() {
                        Ok(next) => Box::new(next),
                        // It fails alone: its lease keeps it aside, and the letter before it is settled.
                        Err(Fault::Corrupt(damage)) => {
                            tracing::error!(%damage, "letter behind a settled one not decoded");
                            return Ok(Settled::Blocked);
                        }
                        Err(fault) => return Err(fault),
                    },
                };
                next_head.iter().for_each(|head| head.date(&mut next));
                Settled::Next(next)
            }
            (AfterSettle::Requeued, _) => Settled::Requeued,
            (AfterSettle::Closed, _) => Settled::Closed,
            (AfterSettle::Blocked | AfterSettle::Next, _) => Settled::Blocked,
        })
    }
}
