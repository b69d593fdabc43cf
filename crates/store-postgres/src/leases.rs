//! Leases and settlements.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use lazaret_core::SequenceId;
use lazaret_core::letter::LetterId;
use lazaret_core::store::rules::{self, AfterSettle, Head, LeaseKind, SequenceChange, SettleView};
use lazaret_core::store::{Claim, Lease, LeaseUse, Result, Settled, Settlement};
use tokio_postgres::Row;
use uuid::Uuid;

use crate::error::{Fault, Work};
use crate::letter_row::{HeldLetter, select_letter};
use crate::operations::{Behind, ItemOutcome, NextHead};
use crate::sequence_row::{OpenSequence, select_sequence, sequence_key};
use crate::store::{Queue, first};
use crate::transaction::{CLOCK, Transaction};
use crate::values::{bound, limit as rows_of, nanos, unsigned};
use crate::views::{FENCES, LOCK_SEQUENCES};

pub(crate) const DUE: &str = select_sequence!(
    "FROM sequences s WHERE s.qid = $1 AND s.free_at <= $2 ORDER BY s.free_at LIMIT $3 FOR UPDATE SKIP LOCKED"
);
const PROLONGED: &str = select_sequence!(
    "FROM sequences s WHERE s.qid = $1 AND (s.lease_until > $2 OR s.touched > $3) ORDER BY s.hash FOR UPDATE"
);
pub(crate) const HEADS: &str = select_letter!(
    "FROM unnest($1::bigint[], $2::bigint[]) AS u (sid, idx) JOIN letters l ON l.sid = u.sid AND l.idx = u.idx
     JOIN payloads p ON p.lid = l.lid"
);
const HEAD: &str = select_letter!(
    "FROM sequences s JOIN letters l ON l.sid = s.sid AND l.idx = s.head_idx JOIN payloads p ON p.lid = l.lid
     WHERE s.qid = $1 AND s.hash = $2"
);
/// The payload of a head is not needed: it is in the hands of the one who settles it. `OFFSET 0` keeps the server from reading all
/// sequences of a queue that seems small.
pub(crate) const HEADS_AND_NEXT: &str = select_letter!(
    "FROM unnest($2::uuid[]) AS k (hash) CROSS JOIN LATERAL (
         SELECT x.sid, x.head_idx FROM sequences x WHERE x.qid = $1 AND x.hash = k.hash OFFSET 0) s
     CROSS JOIN LATERAL (
         SELECT * FROM letters x WHERE x.sid = s.sid AND x.idx >= s.head_idx ORDER BY x.idx LIMIT 2) l
     LEFT JOIN payloads p ON p.lid = l.lid AND l.idx > s.head_idx ORDER BY l.sid, l.idx"
);

/// Who claims, for how long.
#[derive(Clone, Copy)]
pub(crate) struct Claimant<'a> {
    pub(crate) owner: &'a str,
    pub(crate) lease: Duration,
}

/// A settlement of the head of a sequence.
#[derive(Clone, Debug)]
pub(crate) struct SettleItem {
    pub(crate) lease: Lease,
    pub(crate) letter: LetterId,
    pub(crate) settlement: Settlement,
    /// An operation takes the letter behind, if it may.
    pub(crate) take_next: bool,
}

/// What the rules have decided about a settlement, with what they saw.
struct Ruled {
    settle: rules::Settle,
    open: Option<OpenSequence>,
    head: Option<HeldLetter>,
    next: Option<HeldLetter>,
}

fn missing(sequence: &SequenceId) -> Fault {
    Fault::Corrupt(format!("sequence {sequence} is open without a letter"))
}

impl Transaction<'_> {
    pub(crate) async fn claim_due(
        &mut self,
        queue: &Queue,
        claimant: Claimant<'_>,
        limit: usize,
    ) -> Work<Vec<Claim>> {
        self.read_clock().await?;
        if self.store.clock_went_back(&queue.name, self.now()) {
            self.clamp_rows(queue, claimant.lease).await?;
            self.write_rows().await?;
        }
        let rows = self.query(DUE, &[&queue.qid, &nanos(self.now()), &rows_of(limit)]).await?;
        let mut due = rows.iter().map(OpenSequence::read).collect::<Work<Vec<_>>>()?;
        if due.is_empty() {
            return Ok(Vec::new());
        }
        due.sort_by_key(|open| open.row.due());
        let (sids, indexes): (Vec<i64>, Vec<i64>) =
            due.iter().map(|open| (open.sid, bound(open.row.head.index))).unzip();
        let [heads, fences] =
            self.query_all([(HEADS, &[&sids, &indexes]), (FENCES, &[&rows_of(due.len())])]).await?;
        let read = |row: &Row| HeldLetter::read(row, &queue.name);
        let mut heads = heads.iter().map(read).collect::<Work<Vec<_>>>()?;
        let mut claims = Vec::with_capacity(due.len());
        for (open, fence) in due.into_iter().zip(&fences) {
            let place = heads.iter().position(|head| head.sid == Some(open.sid));
            let head = heads.swap_remove(place.ok_or_else(|| missing(&open.name))?);
            self.unit.hold(open.clone());
            let fence = unsigned(fence.try_get(0)?)?;
            claims.push(self.lease(queue, &open, head, claimant, LeaseKind::Due, fence).await?);
        }
        Ok(claims)
    }

    /// Corrects the leases and due times that a clock which was set back prolongs.
    async fn clamp_rows(&mut self, queue: &Queue, lease: Duration) -> Work<()> {
        let now = self.now();
        let end = nanos(rules::latest_lease_end(lease, now));
        // Planned for these times: there is an index for each of them, and a plan for any time reads all sequences.
        for row in self.query_once(PROLONGED, &[&queue.qid, &end, &nanos(now)]).await? {
            let open = OpenSequence::read(&row)?;
            let Some(row) = rules::clamp_row(&open.row, lease, now) else { continue };
            self.unit.hold(open.clone());
            if row.head != open.row.head {
                self.date_head(queue, &open, &row.head).await?;
            }
            self.unit.change_sequence(queue, &open.name, None, SequenceChange::Put(row))?;
        }
        Ok(())
    }

    /// Touches the letter at the head, and gives it the due time of its row.
    async fn date_head(&mut self, queue: &Queue, open: &OpenSequence, head: &Head) -> Work<()> {
        let held = self.first_from(queue, open.sid, head.index).await?;
        let mut held = held.ok_or_else(|| missing(&open.name))?;
        head.date(&mut held.letter);
        held.letter.last_touched_at = self.now();
        self.unit.letters.insert(held.lid, held);
        Ok(())
    }

    pub(crate) async fn claim(
        &mut self,
        queue: &Queue,
        sequence: &SequenceId,
        claimant: Claimant<'_>,
    ) -> Work<Option<Claim>> {
        let (key, one) = (sequence_key(sequence), 1_i64);
        let [open, head, fence, clock] = self
            .query_all([
                (LOCK_SEQUENCES, &[&queue.qid, &vec![key]]),
                (HEAD, &[&queue.qid, &key]),
                (FENCES, &[&one]),
                (CLOCK, &[]),
            ])
            .await?;
        self.set_now(&clock)?;
        self.hold_sequences(queue, [sequence], &open)?;
        let open =
            self.unit.sequence(queue, sequence).filter(|open| !open.row.is_leased(self.now())).cloned();
        let Some(open) = open else { return Ok(None) };
        let head =
            first(&head, |row| HeldLetter::read(row, &queue.name))?.ok_or_else(|| missing(sequence))?;
        let fence = first(&fence, |row| unsigned(row.try_get(0)?))?.unwrap_or_default();
        self.lease(queue, &open, head, claimant, LeaseKind::Replay, fence).await.map(Some)
    }

    /// Leases a locked sequence for a letter of an operation, under a new fence.
    pub(crate) async fn lease_for(
        &mut self,
        queue: &Queue,
        open: &OpenSequence,
        claimant: Claimant<'_>,
        kind: LeaseKind,
    ) -> Work<Claim> {
        let (sids, indexes, one) = (vec![open.sid], vec![bound(open.row.head.index)], 1_i64);
        let [head, fence] = self.query_all([(HEADS, &[&sids, &indexes]), (FENCES, &[&one])]).await?;
        let head =
            first(&head, |row| HeldLetter::read(row, &queue.name))?.ok_or_else(|| missing(&open.name))?;
        let fence = first(&fence, |row| unsigned(row.try_get(0)?))?.unwrap_or_default();
        self.lease(queue, open, head, claimant, kind, fence).await
    }

    pub(crate) async fn lease(
        &mut self,
        queue: &Queue,
        open: &OpenSequence,
        head: HeldLetter,
        claimant: Claimant<'_>,
        kind: LeaseKind,
        fence: u64,
    ) -> Work<Claim> {
        let Claimant { owner, lease } = claimant;
        let row = open.row.claimed(owner, lease, kind, fence, self.now());
        let (interrupted, lost) = (open.row.was_interrupted(self.now()), open.row.was_lost(self.now()));
        let lease = row.lease_of(&queue.name, &open.name).ok_or_else(|| missing(&open.name))?;
        let mut head = self.with_edits(head).await?;
        row.head.date(&mut head);
        self.unit.change_sequence(queue, &open.name, None, SequenceChange::Put(row))?;
        Ok(Claim { lease, head, interrupted, lost })
    }

    /// Locks the sequence of a lease and reads the clock.
    async fn sequence_of(&mut self, queue: &Queue, lease: &Lease) -> Work<Option<OpenSequence>> {
        let keys = vec![sequence_key(&lease.sequence)];
        let [open, clock] = self.query_all([(LOCK_SEQUENCES, &[&queue.qid, &keys]), (CLOCK, &[])]).await?;
        self.set_now(&clock)?;
        self.hold_sequences(queue, [&lease.sequence], &open)?;
        Ok(self.unit.sequence(queue, &lease.sequence).cloned())
    }

    pub(crate) async fn renew(
        &mut self,
        queue: &Queue,
        lease: &Lease,
        duration: Duration,
        used_for: LeaseUse,
    ) -> Work<Lease> {
        let open = self.sequence_of(queue, lease).await?;
        let row = open.as_ref().map(|open| &open.row);
        let (row, renewed) = rules::renew(row, lease, duration, used_for, self.now())?;
        self.unit.change_sequence(queue, &lease.sequence, None, SequenceChange::Put(row))?;
        Ok(renewed)
    }

    pub(crate) async fn release(&mut self, queue: &Queue, lease: &Lease) -> Work<()> {
        let Some(open) = self.sequence_of(queue, lease).await? else { return Ok(()) };
        let Some((row, operation)) = rules::release(Some(&open.row), lease) else { return Ok(()) };
        let index = row.head.index;
        self.unit.change_sequence(queue, &lease.sequence, None, SequenceChange::Put(row))?;
        if let Some(operation) = operation
            && let Some(head) = self.first_from(queue, open.sid, index).await?
        {
            self.release_item(operation, head.letter.id).await?;
        }
        Ok(())
    }

    /// Settles the heads of sequences, each of them another one. An item that the rules refuse changes nothing.
    pub(crate) async fn settle_all(
        &mut self,
        queue: &Queue,
        items: &[SettleItem],
    ) -> Work<Vec<Result<Settled>>> {
        let keys: Vec<Uuid> = items.iter().map(|item| sequence_key(&item.lease.sequence)).collect();
        // An operation may have reserved the sequence that a letter has left.
        let origins: Vec<SequenceId> = items.iter().filter_map(|item| item.lease.sequence.origin()).collect();
        let locked: Vec<Uuid> = keys.iter().copied().chain(origins.iter().map(sequence_key)).collect();
        let [open, letters, clock] = self
            .query_all([
                (LOCK_SEQUENCES, &[&queue.qid, &locked]),
                (HEADS_AND_NEXT, &[&queue.qid, &keys]),
                (CLOCK, &[]),
            ])
            .await?;
        self.set_now(&clock)?;
        let sequences = items.iter().map(|item| &item.lease.sequence);
        self.hold_sequences(queue, sequences.chain(&origins), &open)?;
        let mut by_sequence: HashMap<i64, VecDeque<HeldLetter>> = HashMap::new();
        for row in &letters {
            let held = HeldLetter::read(row, &queue.name)?;
            by_sequence.entry(held.sid.unwrap_or_default()).or_default().push_back(held);
        }
        let mut answers = Vec::with_capacity(items.len());
        for item in items {
            let open = self.unit.sequence(queue, &item.lease.sequence).cloned();
            let mut letters =
                open.as_ref().and_then(|open| by_sequence.remove(&open.sid)).unwrap_or_default();
            let (head, next) = (letters.pop_front(), letters.pop_front());
            let view = SettleView {
                row: open.as_ref().map(|open| &open.row),
                head: head.as_ref().map(HeldLetter::view),
                next: next.as_ref().map(HeldLetter::view),
                now: self.now(),
            };
            let ruled = rules::settle(&view, &item.lease, item.letter, item.settlement.clone());
            answers.push(ruled.map(|settle| Ruled { settle, open, head, next }));
        }
        let outcomes: Vec<ItemOutcome> = answers
            .iter()
            .zip(items)
            .filter_map(|(answer, item)| {
                let Ruled { settle, next, .. } = answer.as_ref().ok()?;
                let (operation, outcome) = settle.outcome?;
                let next = settle.untaken().zip(next.as_ref()).filter(|_| item.take_next);
                let next = next.map(|(row, held)| NextHead { row, held });
                let (sequence, letter) = (&item.lease.sequence, item.letter);
                Some(ItemOutcome { operation, sequence, letter, outcome, next })
            })
            .collect();
        let mut behind = self.settle_items(queue, &outcomes).await?.into_iter();
        let mut settled = Vec::with_capacity(items.len());
        let mut left = Vec::new();
        for (answer, item) in answers.into_iter().zip(items) {
            settled.push(match answer {
                Ok(mut ruled) => {
                    if let Some((operation, _)) = ruled.settle.outcome {
                        let behind = behind.next().unwrap_or_default();
                        let continues = matches!(behind, Behind::Reserved | Behind::Taken);
                        ruled.settle.effects.reserve(continues.then_some(operation));
                        if behind == Behind::Taken {
                            ruled.settle.take_next();
                        }
                        if behind == Behind::Left {
                            left.extend(item.lease.sequence.origin().map(|origin| (origin, operation)));
                        }
                    }
                    Ok(self.apply_settled(queue, item, ruled).await?)
                }
                Err(error) => Err(error),
            });
        }
        // After the settlements, of which one may be about such a sequence.
        for (origin, operation) in left {
            self.unreserve(queue, &origin, operation)?;
        }
        Ok(settled)
    }

    /// Applies what the rules have decided about one item.
    async fn apply_settled(&mut self, queue: &Queue, item: &SettleItem, ruled: Ruled) -> Work<Settled> {
        let Ruled { mut settle, open, head, next } = ruled;
        if let Some((operation, _)) = settle.outcome
            && self.unit.paced.contains(&operation)
            && let (Some(open), Some(from)) = (&open, settle.released_from())
            && let Some(pace) = self.pace_released(operation, open.sid, from).await?
        {
            settle.effects.pace(pace, self.now());
        }
        let head = head.ok_or_else(|| missing(&item.lease.sequence))?;
        let next_head = settle.effects.sequence.row().map(|row| row.head);
        let number = match &settle.effects.detached {
            Some(_) => self.numbers(1).await?.into_iter().next(),
            None => None,
        };
        let now = self.now();
        self.unit.apply(queue, head, settle.effects, number, now)?;
        Ok(match (settle.after, next) {
            (AfterSettle::Next, Some(next)) => {
                let mut next = self.with_edits(next).await?;
                next_head.iter().for_each(|head| head.date(&mut next));
                Settled::Next(Box::new(next))
            }
            (AfterSettle::Requeued, _) => Settled::Requeued,
            (AfterSettle::Closed, _) => Settled::Closed,
            (AfterSettle::Blocked | AfterSettle::Next, _) => Settled::Blocked,
        })
    }
}
