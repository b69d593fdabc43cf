//! Leases and settlements.

use std::time::Duration;

use lazaret_core::letter::LetterId;
use lazaret_core::store::rules::{self, AfterSettle, LeaseKind, LetterView, SequenceRow, SettleView};
use lazaret_core::store::{
    Claim, ErrorKind, Lease, LeaseUse, Outcome, Result, Settled, Settlement, StoreError,
};
use lazaret_core::{QueueName, SequenceId, Timestamp};

use crate::DocumentStore;
use crate::commit::{Change, View};
use crate::database::{ItemOutcome, Left, SequenceDoc};

/// When the scheduler may claim a sequence at the earliest.
fn free_at(row: &SequenceRow) -> Option<Timestamp> {
    let schedule = row.schedule();
    schedule.due.or(schedule.busy)
}

impl View<'_> {
    fn put(&self, row: SequenceRow) -> Change {
        Change { doc: SequenceDoc { row: Some(row), ..self.doc.clone() }, left: Vec::new() }
    }

    /// The head under a new lease; `None` if the sequence is not open.
    pub(crate) fn lease_head(
        &self,
        owner: &str,
        lease: Duration,
        kind: LeaseKind,
    ) -> Option<(Claim, Change)> {
        let row = self.doc.row.as_ref()?;
        let mut head = self.open_from(0).next()?;
        let fence = self.doc.fence + 1;
        let (interrupted, lost) = (row.was_interrupted(self.now), row.was_lost(self.now));
        let row = row.claimed(owner, lease, kind, fence, self.now);
        row.head.date(&mut head);
        let lease = row.lease_of(self.queue, self.sequence)?;
        let mut change = self.put(row);
        change.doc.fence = fence;
        Some((Claim { lease, head, interrupted, lost }, change))
    }

    /// The row without what a clock that was set back prolongs. Its head has another due time then, and so has the letter.
    fn clamped(&self, lease: Duration) -> Option<Change> {
        let before = self.doc.row.as_ref()?;
        let row = rules::clamp_row(before, lease, self.now)?;
        let mut change = self.put(row.clone());
        if row.head != before.head
            && let Some(mut letter) = self.open_from(0).next()
        {
            row.head.date(&mut letter);
            letter.last_touched_at = self.now;
            change.left.push(Left::letter(&letter, false, self.now));
        }
        Some(change)
    }
}

impl DocumentStore {
    pub(crate) fn claim_due_now(
        &self,
        queue: &QueueName,
        owner: &str,
        lease: Duration,
        limit: usize,
    ) -> Result<Vec<Claim>> {
        let now = self.clock.now();
        // The store keeps no state between calls, so it looks at every row in every call.
        for (sequence, _) in self.rows(queue)? {
            self.change(queue, &sequence, |view| Ok(((), view.clamped(lease))))?;
        }
        let is_due = |row: &SequenceRow| free_at(row).is_some_and(|at| at <= now);
        let mut due = self.rows(queue)?;
        due.retain(|(_, row)| is_due(row));
        due.sort_by_key(|(sequence, row)| (row.head.due, sequence.clone()));
        let mut claims = Vec::new();
        for (sequence, _) in due {
            if claims.len() >= limit {
                break;
            }
            // Another worker may have been faster: the row decides again when it is claimed.
            claims.extend(self.take(queue, &sequence, owner, lease, LeaseKind::Due, is_due)?);
        }
        Ok(claims)
    }

    pub(crate) fn earliest_due(&self, queue: &QueueName) -> Result<Option<Timestamp>> {
        Ok(self.rows(queue)?.iter().filter_map(|(_, row)| free_at(row)).min())
    }

    /// Leases an open sequence if `may_take` says so.
    pub(crate) fn take(
        &self,
        queue: &QueueName,
        sequence: &SequenceId,
        owner: &str,
        lease: Duration,
        kind: LeaseKind,
        may_take: impl Fn(&SequenceRow) -> bool,
    ) -> Result<Option<Claim>> {
        self.change(queue, sequence, |view| {
            let taken = match &view.doc.row {
                Some(row) if may_take(row) => view.lease_head(owner, lease, kind),
                _ => None,
            };
            Ok(taken.map_or((None, None), |(claim, change)| (Some(claim), Some(change))))
        })
    }

    pub(crate) fn renew_lease(&self, lease: &Lease, duration: Duration, used_for: LeaseUse) -> Result<Lease> {
        self.change(&lease.queue, &lease.sequence, |view| {
            let (row, lease) = rules::renew(view.doc.row.as_ref(), lease, duration, used_for, view.now)?;
            Ok((lease, Some(view.put(row))))
        })
    }

    pub(crate) fn release_lease(&self, lease: &Lease) -> Result<()> {
        self.change(&lease.queue, &lease.sequence, |view| {
            let Some((row, operation)) = rules::release(view.doc.row.as_ref(), lease) else {
                return Ok(((), None));
            };
            let mut change = view.put(row);
            // The turn of its letter comes again, unless the operation is over.
            let over = operation.filter(|operation| self.is_over(*operation));
            if let (Some(operation), Some((_, letter))) = (over, view.doc.letters.first_key_value()) {
                let (outcome, at) = (Outcome::SkippedCancelled, view.now);
                let outcome =
                    ItemOutcome { operation, letter: *letter, outcome, spend: false, released: 0, at };
                change.left.push(Left::Outcome(outcome));
            }
            Ok(((), Some(change)))
        })
    }

    pub(crate) fn settle_head(
        &self,
        lease: &Lease,
        id: LetterId,
        settlement: &Settlement,
        take_next: bool,
    ) -> Result<Settled> {
        self.change(&lease.queue, &lease.sequence, |view| {
            // 1. The view: the row, the letter at its head, the letter behind it.
            let head = view.open_from(0).next();
            let mut behind = head.as_ref().and_then(|head| view.open_from(head.index + 1).next());
            let asked = SettleView {
                row: view.doc.row.as_ref(),
                head: head.as_ref().map(LetterView::of),
                next: behind.as_ref().map(LetterView::of),
                now: view.now,
            };
            // 2. The rule.
            let mut settle = rules::settle(&asked, lease, id, settlement.clone())?;
            let outcome = settle.outcome.map(|(operation, outcome)| {
                let continues = self.continues(operation, id, outcome);
                settle.effects.reserve(continues.then_some(operation));
                let takes = match (settle.untaken(), &behind) {
                    (Some(row), Some(next)) if take_next && continues => {
                        self.takes_next(operation, id, next, row, view.now)
                    }
                    _ => false,
                };
                if takes {
                    settle.take_next();
                }
                let released = settle.released_from().map_or(0, |from| view.released_letters(from));
                let pace = self.pace(operation, released, view.now);
                if let Some(pace) = pace {
                    settle.effects.pace(pace, view.now);
                }
                let released = pace.map_or(0, |pace| pace.left);
                ItemOutcome { operation, letter: id, outcome, spend: false, released, at: view.now }
            });
            // 3. The effects.
            let head = head.ok_or_else(|| missing(id))?;
            let (_, mut change) = view.apply(head, settle.effects);
            if let (Some(row), Some(behind)) = (&change.doc.row, &mut behind) {
                row.head.date(behind);
            }
            change.left.extend(outcome.map(Left::Outcome));
            let settled = match settle.after {
                AfterSettle::Next => Settled::Next(Box::new(behind.ok_or_else(|| missing(id))?)),
                AfterSettle::Closed => Settled::Closed,
                AfterSettle::Blocked => Settled::Blocked,
                AfterSettle::Requeued => Settled::Requeued,
            };
            Ok((settled, Some(change)))
        })
    }
}

fn missing(id: LetterId) -> StoreError {
    StoreError::not_done(ErrorKind::Corrupt, "settle", format!("a letter at or behind {id} is missing"))
}
