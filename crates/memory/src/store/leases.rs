//! Leases and settlements.

use std::time::Duration;

use jiff::Timestamp;
use lazaret_core::SequenceId;
use lazaret_core::letter::LetterId;
use lazaret_core::store::rules::{
    self, AfterSettle, HeldLease, LeaseKind, LetterView, SequenceRow, SettleView,
};
use lazaret_core::store::{Claim, Lease, LeaseUse, Result, Settled, Settlement};

use super::Step;
use super::queue::{Queue, Row};

impl Queue {
    pub(super) fn claim_due(
        &mut self,
        owner: &str,
        lease: Duration,
        limit: usize,
        now: Timestamp,
    ) -> Vec<Claim> {
        self.clamp_rows(lease, now);
        self.end_expired_leases(now);
        let due = self.due.iter().take_while(|(due, _)| *due <= now).take(limit);
        let sequences: Vec<SequenceId> = due.map(|(_, sequence)| sequence.clone()).collect();
        let claims =
            sequences.iter().map(|sequence| self.lease_sequence(sequence, owner, lease, LeaseKind::Due, now));
        claims.collect()
    }

    /// Corrects the leases and due times that a clock which was set back prolongs.
    fn clamp_rows(&mut self, lease: Duration, now: Timestamp) {
        if !self.clock_watch.went_back(now) {
            return;
        }
        let clamped = |(sequence, row): (&SequenceId, &Row)| {
            Some((sequence.clone(), row.head(), rules::clamp_row(&row.state, lease, now)?))
        };
        let rows: Vec<(SequenceId, LetterId, SequenceRow)> = self.open.iter().filter_map(clamped).collect();
        for (sequence, head, row) in rows {
            if self.row(&sequence).is_some_and(|before| before.head != row.head)
                && let Some(letter) = self.letters.get_mut(&head)
            {
                row.head.date(letter);
                letter.last_touched_at = now;
            }
            self.put_row(&sequence, row);
        }
    }

    /// Returns sequences with an expired lease and a due head to the due index, so that they are ordered by their due
    /// time like all others. Each lease expires once, so this costs no more than the claims did.
    fn end_expired_leases(&mut self, now: Timestamp) {
        while let Some((_, sequence)) = self.busy.first().filter(|(free, _)| *free <= now).cloned() {
            let row = self.row(&sequence).expect("a busy sequence is open").expired();
            self.put_row(&sequence, row);
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
        self.row(sequence).filter(|row| !row.is_leased(now))?;
        Some(self.lease_sequence(sequence, owner, lease, LeaseKind::Replay, now))
    }

    /// Leases an open sequence, under a new fence.
    pub(super) fn lease_sequence(
        &mut self,
        sequence: &SequenceId,
        owner: &str,
        lease: Duration,
        kind: LeaseKind,
        now: Timestamp,
    ) -> Claim {
        self.fence += 1;
        let row = self.open.get(sequence).expect("only open sequences are leased");
        let mut head = self.stored(row.head()).clone();
        let (interrupted, lost) = (row.state.was_interrupted(now), row.state.was_lost(now));
        let row = row.state.claimed(owner, lease, kind, self.fence, now);
        row.head.date(&mut head);
        let lease = row.lease_of(&self.name, sequence).expect("it was claimed above");
        self.put_row(sequence, row);
        Claim { lease, head, interrupted, lost }
    }

    /// The row under a lease. Without fencing, every lease is current.
    fn leased(&self, lease: &Lease, step: &Step<'_>) -> Option<SequenceRow> {
        let mut row = self.row(&lease.sequence)?.clone();
        if !step.fences_hold {
            let kind = row.lease.as_ref().map_or(LeaseKind::Due, |held| held.kind);
            let used_for = row.lease.as_ref().map(|held| held.used_for).unwrap_or_default();
            let (owner, fence) = (lease.owner.clone(), lease.fence);
            row.lease = Some(HeldLease { owner, fence, until: Timestamp::MAX, kind, used_for });
        }
        Some(row)
    }

    pub(super) fn renew(
        &mut self,
        lease: &Lease,
        duration: Duration,
        used_for: LeaseUse,
        step: &Step<'_>,
    ) -> Result<Lease> {
        let row = self.leased(lease, step);
        let (row, lease) = rules::renew(row.as_ref(), lease, duration, used_for, step.now)?;
        self.put_row(&lease.sequence, row);
        Ok(lease)
    }

    pub(super) fn release(&mut self, lease: &Lease, step: Step<'_>) {
        let Some((row, operation)) = rules::release(self.row(&lease.sequence), lease) else { return };
        self.put_row(&lease.sequence, row);
        if let (Some(operation), Some(row)) = (operation, self.open.get(&lease.sequence)) {
            step.operations.release_item(operation, row.head(), step.now);
        }
    }

    /// Settles the head of a leased sequence. `take_next`: an operation takes the letter behind, if it may.
    pub(super) fn settle(
        &mut self,
        lease: &Lease,
        id: LetterId,
        settlement: Settlement,
        take_next: bool,
        mut step: Step<'_>,
    ) -> Result<Settled> {
        let row = self.leased(lease, &step);
        let head = self.open.get(&lease.sequence).map(|row| LetterView::of(self.stored(row.head())));
        let next = head.and_then(|head| self.next(&lease.sequence, head.index));
        let view = SettleView { row: row.as_ref(), head, next, now: step.now };
        let mut settle = rules::settle(&view, lease, id, settlement)?;
        if let Some((operation, outcome)) = settle.outcome {
            let continues = step.operations.settle_item(operation, id, outcome, step.now, step.audit);
            settle.effects.reserve(continues.then_some(operation));
            if !continues
                && lease.sequence.origin().is_some()
                && let Some(planned) = step.operations.planned_sequence(operation, id)
            {
                // The letters behind it are in the sequence that it has left.
                self.unreserve_one(&planned, operation);
            }
            let takes = match (settle.untaken(), next) {
                (Some(row), Some(next)) if take_next && continues => {
                    step.operations.take_next(operation, self.stored(next.id), row, step.now)
                }
                _ => false,
            };
            if takes {
                settle.take_next();
            }
            if let Some(from) = settle.released_from()
                && let Some(pace) = step.operations.pace_released(
                    operation,
                    self.released_letters(&lease.sequence, from),
                    step.now,
                )
            {
                settle.effects.pace(pace, step.now);
            }
        }
        self.apply(id, settle.effects, &mut step);
        Ok(match settle.after {
            AfterSettle::Next => {
                let row = self.open.get(&lease.sequence).expect("a lease continues in an open sequence");
                let mut next = self.stored(row.head()).clone();
                row.state.head.date(&mut next);
                Settled::Next(Box::new(next))
            }
            AfterSettle::Closed => Settled::Closed,
            AfterSettle::Blocked => Settled::Blocked,
            AfterSettle::Requeued => Settled::Requeued,
        })
    }
}
