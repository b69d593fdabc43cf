//! Leases and settlements.

use std::time::Duration;

use bson::{Document, doc};
use lazaret_core::letter::LetterId;
use lazaret_core::store::rules::{self, AfterSettle, LeaseKind, LetterView, SequenceRow, SettleView};
use lazaret_core::store::{
    Claim, ErrorKind, Lease, LeaseUse, OperationId, Outcome, Result, Settled, Settlement, StoreError,
};
use lazaret_core::{QueueName, SequenceId, Timestamp};

use crate::commit::View;
use crate::database::project;
use crate::documents::left::{Left, OutcomeDoc};
use crate::documents::sequence::SequenceDoc;
use crate::store::MongoStore;
use crate::values::{int, nanos, time, uint};

/// Number of sequences that a look for due ones reads at once.
const PAGE: usize = 100;
/// Number of sequences that a look for the next due time reads first.
const FIRST: usize = 8;

fn is_due(row: &SequenceRow, now: Timestamp) -> bool {
    let schedule = row.schedule();
    schedule.due.or(schedule.busy).is_some_and(|at| at <= now)
}

impl MongoStore {
    /// The head under a new lease; `None` if the sequence is not open.
    pub(crate) async fn lease_head(
        &self,
        view: &mut View,
        owner: &str,
        lease: Duration,
        kind: LeaseKind,
    ) -> Result<Option<Claim>> {
        let Some(row) = view.row.clone() else { return Ok(None) };
        let Some(held) = self.first_open(view, 1).await?.into_iter().next() else { return Ok(None) };
        let mut head = held.letter;
        view.doc.fence += 1;
        let (interrupted, lost) = (row.was_interrupted(view.now), row.was_lost(view.now));
        let row = row.claimed(owner, lease, kind, uint(view.doc.fence), view.now);
        row.head.date(&mut head);
        let lease = row.lease_of(&view.doc.queue, &view.doc.sequence);
        view.put(Some(row));
        Ok(lease.map(|lease| Claim { lease, head, interrupted, lost }))
    }

    /// Leases an open sequence if it is due, or for a replay.
    async fn take(
        &self,
        queue: &QueueName,
        sequence: &SequenceId,
        owner: &str,
        lease: Duration,
        kind: LeaseKind,
    ) -> Result<Option<Claim>> {
        loop {
            let mut view = self.load(queue, sequence).await?;
            let may_take = view.row.as_ref().is_some_and(|row| match kind {
                LeaseKind::Due => is_due(row, view.now),
                _ => !row.is_leased(view.now),
            });
            let claim =
                if may_take { self.lease_head(&mut view, owner, lease, kind).await } else { Ok(None) };
            if let Some(claim) = self.commit(view, claim).await? {
                return Ok(claim);
            }
        }
    }

    pub(crate) async fn claim_sequence(
        &self,
        queue: &QueueName,
        sequence: &SequenceId,
        owner: &str,
        lease: Duration,
    ) -> Result<Option<Claim>> {
        self.take(queue, sequence, owner, lease, LeaseKind::Replay).await
    }

    pub(crate) async fn claim_due_now(
        &self,
        queue: &QueueName,
        owner: &str,
        lease: Duration,
        limit: usize,
    ) -> Result<Vec<Claim>> {
        let now = self.now().await?;
        if self.clock_went_back(queue, now) {
            self.clamp_rows(queue, lease, now).await?;
        }
        let mut claims = Vec::new();
        if limit == 0 {
            return Ok(claims);
        }
        let paused = self.paused_sequences(queue).await?;
        let (page, mut last) = (PAGE.max(limit), None);
        loop {
            let mut free = self.free_sequences(queue, nanos(now), last.as_ref(), page).await?;
            let more = free.len() == page;
            let end = free.pop();
            let mut due: Vec<(Option<i64>, SequenceId)> =
                free.iter().chain(&end).map(|free| (free.due(), free.sequence.clone())).collect();
            due.retain(|(_, sequence)| !paused.contains(sequence));
            due.sort();
            for (_, sequence) in due {
                if claims.len() >= limit {
                    return Ok(claims);
                }
                // Another worker may have been faster: the row decides again when it is claimed.
                claims.extend(self.take(queue, &sequence, owner, lease, LeaseKind::Due).await?);
            }
            if !more || claims.len() >= limit {
                return Ok(claims);
            }
            // Those that were claimed are not free any more; the others are paused or kept by an operation.
            last = end;
        }
    }

    /// Rows that a clock that was set back would keep leased or waiting for too long.
    async fn clamp_rows(&self, queue: &QueueName, lease: Duration, now: Timestamp) -> Result<()> {
        let ahead = doc! { "queue": queue.as_str(), "open": true, "latest": { "$gt": nanos(now) } };
        let docs: Vec<SequenceDoc> =
            project(&self.db().sequences, ahead, Document::new(), Document::new()).await?;
        for doc in docs {
            loop {
                let mut view = self.load(queue, &doc.sequence).await?;
                let clamped = self.clamp(&mut view, lease).await;
                if self.commit(view, clamped).await?.is_some() {
                    break;
                }
            }
        }
        Ok(())
    }

    async fn clamp(&self, view: &mut View, lease: Duration) -> Result<()> {
        let Some(before) = view.row.clone() else { return Ok(()) };
        let Some(row) = rules::clamp_row(&before, lease, view.now) else { return Ok(()) };
        // Its head has another due time then, and so has the letter.
        if row.head != before.head
            && let Some(mut held) = self.first_open(view, 1).await?.into_iter().next()
        {
            row.head.date(&mut held.letter);
            held.letter.last_touched_at = view.now;
            view.write_letter(&held, false)?;
        }
        view.put(Some(row));
        Ok(())
    }

    pub(crate) async fn earliest_due(&self, queue: &QueueName) -> Result<Option<Timestamp>> {
        let paused = self.paused_sequences(queue).await?;
        // The first one is the answer, unless it is paused or kept by an operation.
        let (mut page, mut last) = (FIRST, None);
        loop {
            let mut free = self.free_sequences(queue, i64::MAX, last.as_ref(), page).await?;
            let more = free.len() == page;
            let end = free.pop();
            for free in free.iter().chain(&end) {
                let is_kept = match free.reserved() {
                    Some(operation) => {
                        self.keeps(OperationId(uint(operation)), queue, &free.sequence).await?
                    }
                    None => false,
                };
                if !is_kept && !paused.contains(&free.sequence) {
                    return Ok(Some(time(free.free_at)));
                }
            }
            if !more {
                return Ok(None);
            }
            (page, last) = (PAGE, end);
        }
    }

    pub(crate) async fn renew_lease(
        &self,
        lease: &Lease,
        duration: Duration,
        used_for: LeaseUse,
    ) -> Result<Lease> {
        loop {
            let mut view = self.load(&lease.queue, &lease.sequence).await?;
            let renewed = rules::renew(view.row.as_ref(), lease, duration, used_for, view.now);
            let renewed = renewed.map(|(row, lease)| {
                view.put(Some(row));
                lease
            });
            if let Some(lease) = self.commit(view, renewed).await? {
                return Ok(lease);
            }
        }
    }

    pub(crate) async fn release_lease(&self, lease: &Lease) -> Result<()> {
        loop {
            let mut view = self.load(&lease.queue, &lease.sequence).await?;
            if let Some((row, operation)) = rules::release(view.row.as_ref(), lease) {
                view.put(Some(row));
                // The turn of its letter comes again, unless the operation is over.
                if let Some(operation) = operation
                    && self.is_over(operation).await?
                    && let Some(head) = self.first_open(&mut view, 1).await?.first()
                {
                    let outcome = Outcome::SkippedCancelled;
                    let outcome = OutcomeDoc::new(operation, head.letter.id, outcome, view.now);
                    view.leave(Left::Outcome(outcome));
                }
            }
            if self.commit(view, Ok(())).await?.is_some() {
                return Ok(());
            }
        }
    }

    /// Settles the head of a leased sequence. `take_next`: an operation takes the letter behind, if it may.
    pub(crate) async fn settle_head(
        &self,
        lease: &Lease,
        id: LetterId,
        settlement: &Settlement,
        take_next: bool,
    ) -> Result<Settled> {
        loop {
            let mut view = self.load(&lease.queue, &lease.sequence).await?;
            let settled = self.decide_settlement(&mut view, lease, id, settlement, take_next).await;
            if let Some(settled) = self.commit(view, settled).await? {
                return Ok(settled);
            }
        }
    }

    async fn decide_settlement(
        &self,
        view: &mut View,
        lease: &Lease,
        id: LetterId,
        settlement: &Settlement,
        take_next: bool,
    ) -> Result<Settled> {
        // 1. The view: the row, the letter at its head, the letter behind it.
        let mut letters = self.first_open(view, 2).await?.into_iter();
        let (head, mut behind) = (letters.next(), letters.next());
        let asked = SettleView {
            row: view.row.as_ref(),
            head: head.as_ref().map(|head| LetterView::of(&head.letter)),
            next: behind.as_ref().map(|next| LetterView::of(&next.letter)),
            now: view.now,
        };
        // 2. The rule.
        let mut settle = rules::settle(&asked, lease, id, settlement.clone())?;
        let mut outcome = None;
        if let Some((operation, of_letter)) = settle.outcome {
            let continues = self.continues(operation, id, of_letter).await?;
            settle.effects.reserve(continues.then_some(operation));
            let takes = match (settle.untaken(), &behind) {
                (Some(row), Some(next)) if take_next && continues => {
                    Box::pin(self.takes_next(operation, id, next, row, view.now)).await?
                }
                _ => false,
            };
            if takes {
                settle.take_next();
            }
            let released = match settle.released_from() {
                // The head leaves the sequence by this settlement.
                Some(from) => self.released_letters(view, from).await?,
                None => 0,
            };
            let pace = self.pace(operation, released, view.now).await?;
            if let Some(pace) = pace {
                settle.effects.pace(pace, view.now);
            }
            let released = pace.map_or(0, |pace| pace.left);
            outcome = Some(OutcomeDoc::new(operation, id, of_letter, view.now).releasing(released));
        }
        // 3. The effects.
        let head = head.ok_or_else(|| missing(id))?;
        view.apply(head, settle.effects)?;
        if let (Some(row), Some(behind)) = (&view.row, &mut behind) {
            row.head.date(&mut behind.letter);
        }
        if let Some(outcome) = outcome {
            view.leave(Left::Outcome(outcome));
        }
        Ok(match settle.after {
            AfterSettle::Next => Settled::Next(Box::new(behind.ok_or_else(|| missing(id))?.letter)),
            AfterSettle::Closed => Settled::Closed,
            AfterSettle::Blocked => Settled::Blocked,
            AfterSettle::Requeued => Settled::Requeued,
        })
    }

    /// The sequences that are leased for an operation now, with the letters at their heads.
    pub(crate) async fn leased_for(&self, operation: OperationId) -> Result<Vec<View>> {
        let filter = doc! { "row.lease.operation": int(operation.0) };
        let docs: Vec<SequenceDoc> =
            project(&self.db().sequences, filter, Document::new(), Document::new()).await?;
        let mut views = Vec::new();
        for doc in docs {
            views.push(self.load(&doc.queue, &doc.sequence).await?);
        }
        views.retain(|view| view.row.as_ref().is_some_and(|row| row.operation(view.now) == Some(operation)));
        Ok(views)
    }
}

fn missing(id: LetterId) -> StoreError {
    StoreError::not_done(ErrorKind::Corrupt, "settle", format!("a letter at or behind {id} is missing"))
}
