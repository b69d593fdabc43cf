//! The letters that a poll will try next, loaded together: a round trip for many, not several for each.
//!
//! Only replays are loaded ahead: they try one letter of a sequence, so no letter changes what was loaded of another one. Their sequences
//! are locked, as far as that is possible at once.

use std::collections::{HashMap, HashSet, VecDeque};

use lazaret_core::store::rules::Pending;
use lazaret_core::store::{Action, OperationMachine, PayloadDigest};
use lazaret_core::{LetterId, SequenceId};
use uuid::Uuid;

use super::polling::{ItemState, left_meanwhile};
use crate::error::Work;
use crate::letter_row::{HeldLetter, select_letter};
use crate::sequence_row::{OpenSequence, select_sequence, sequence_key};
use crate::store::Queue;
use crate::transaction::Transaction;
use crate::values::{bound, letter_id, limit as rows_of, unsigned};
use crate::views::FENCES;

/// Number of pending letters in a page, those behind the ones to try included (I7).
const PAGE: usize = 512;
/// Number of letters of a page that are loaded together at least: a poll passes those in flight before it comes to one to try.
const LOADED: usize = 64;

const TRY_LOCK: &str = select_sequence!(
    "FROM unnest($2::uuid[]) AS k (hash) CROSS JOIN LATERAL (
         SELECT * FROM sequences x WHERE x.qid = $1 AND x.hash = k.hash FOR UPDATE SKIP LOCKED) s"
);
const EXIST: &str = "SELECT k.hash FROM unnest($2::uuid[]) AS k (hash)
    WHERE EXISTS (SELECT 1 FROM sequences WHERE qid = $1 AND hash = k.hash OFFSET 0)";
const LETTERS: &str = select_letter!(light "FROM letters l WHERE l.id = ANY($2) AND l.qid + 0 = $1");
const DIGESTS: &str = "SELECT l.id, sha256(p.payload) FROM letters l JOIN payloads p ON p.lid = l.lid
    WHERE l.id = ANY($2) AND l.qid + 0 = $1";
/// Those of these letters that are still pending in an unfinished operation that was started before this one. `OFFSET 0` keeps the server
/// from reading all letters of the operations before.
pub(super) const IN_EARLIER: &str = "SELECT u.letter FROM unnest($2::uuid[]) AS u (letter)
    CROSS JOIN LATERAL (SELECT x.plan FROM items x WHERE x.letter = u.letter AND x.outcome IS NULL OFFSET 0) i
    JOIN operations o ON o.plan = i.plan WHERE o.operation < $1 AND o.ended_at IS NULL";
/// `OFFSET 0` keeps the server from reading all sequences of a queue that seems small.
const HEADS: &str = select_letter!(
    "FROM unnest($2::uuid[]) AS k (hash) CROSS JOIN LATERAL (
         SELECT x.sid, x.head_idx FROM sequences x WHERE x.qid = $1 AND x.hash = k.hash OFFSET 0) s
     JOIN letters l ON l.sid = s.sid AND l.idx = s.head_idx JOIN payloads p ON p.lid = l.lid"
);

/// What was loaded ahead.
#[derive(Default)]
pub(super) struct Ahead {
    limit: usize,
    pending: VecDeque<(Pending, SequenceId)>,
    /// By letter; `None` if another transaction works on its sequence.
    states: HashMap<LetterId, Option<ItemState>>,
    heads: HashMap<i64, HeldLetter>,
    fences: VecDeque<u64>,
}

impl Ahead {
    /// For a poll that returns at most this many letters.
    pub(super) fn of(limit: usize) -> Self {
        Self { limit: limit.max(LOADED), ..Self::default() }
    }

    /// The state of a letter, if it was loaded: `Some(None)` if another transaction works on its sequence.
    pub(super) fn state(&mut self, letter: LetterId) -> Option<Option<ItemState>> {
        self.states.remove(&letter)
    }

    /// The head of a sequence, and a fence for its lease.
    pub(super) fn head(&mut self, open: &OpenSequence) -> Option<(HeldLetter, u64)> {
        let head = self.heads.remove(&open.sid)?;
        Some((head, self.fences.pop_front()?))
    }
}

impl Transaction<'_> {
    /// The next pending letter of the queue, from this ordinal on.
    pub(super) async fn next_ahead(
        &mut self,
        machine: &OperationMachine,
        queue: &Queue,
        ahead: &mut Ahead,
        from: u64,
    ) -> Work<Option<(Pending, SequenceId)>> {
        let plan = machine.operation.plan;
        if machine.operation.action != Action::Retry {
            return Ok(self.next_pending(plan, queue.qid, from, 1).await?.pop_front());
        }
        while ahead.pending.front().is_some_and(|(item, _)| item.ordinal < from) {
            ahead.pending.pop_front();
        }
        if ahead.pending.is_empty() {
            ahead.pending = self.next_pending(plan, queue.qid, from, PAGE).await?;
            self.load_ahead(machine, queue, ahead).await?;
        }
        Ok(ahead.pending.front().cloned())
    }

    /// Loads the first pending letter of each sequence of the page.
    async fn load_ahead(&mut self, machine: &OperationMachine, queue: &Queue, ahead: &mut Ahead) -> Work<()> {
        let (mut from, mut items) = (0, Vec::new());
        for (item, sequence) in &ahead.pending {
            if item.ordinal >= from && items.len() < ahead.limit {
                from = item.last + 1;
                items.push((item.letter, sequence.clone()));
            }
        }
        if items.is_empty() {
            return Ok(());
        }
        let keys: Vec<Uuid> = items.iter().map(|(_, sequence)| sequence_key(sequence)).collect();
        let ids: Vec<Uuid> = items.iter().map(|(letter, _)| letter.as_uuid()).collect();
        let operation = bound(machine.operation.id.0);
        let [locked, exist, letters, digests, earlier, heads, fences] = self
            .query_all([
                (TRY_LOCK, &[&queue.qid, &keys]),
                (EXIST, &[&queue.qid, &keys]),
                (LETTERS, &[&queue.qid, &ids]),
                (DIGESTS, &[&queue.qid, &ids]),
                (IN_EARLIER, &[&operation, &ids]),
                (HEADS, &[&queue.qid, &keys]),
                (FENCES, &[&rows_of(items.len())]),
            ])
            .await?;
        for row in &locked {
            self.unit.hold(OpenSequence::read(row)?);
        }
        let exist: HashSet<Uuid> = exist.iter().map(|row| Ok(row.try_get(0)?)).collect::<Work<_>>()?;
        let mut held = HashMap::new();
        for row in &letters {
            let letter = HeldLetter::read(row, &queue.name)?;
            // A purged letter is as one that never was.
            if !letter.is_purged() {
                held.insert(letter.letter.id, letter);
            }
        }
        let mut of_payload = HashMap::new();
        for row in &digests {
            let bytes: Option<Vec<u8>> = row.try_get(1)?;
            if let Some(Ok(bytes)) = bytes.map(TryInto::try_into) {
                of_payload.insert(letter_id(row.try_get(0)?)?, PayloadDigest::from_bytes(bytes));
            }
        }
        let earlier: HashSet<LetterId> =
            earlier.iter().map(|row| letter_id(row.try_get(0)?)).collect::<Work<_>>()?;
        for row in &heads {
            let head = HeldLetter::read(row, &queue.name)?;
            ahead.heads.insert(head.sid.unwrap_or_default(), head);
        }
        ahead.fences = fences.iter().map(|row| unsigned(row.try_get(0)?)).collect::<Work<_>>()?;
        for ((letter, sequence), key) in items.into_iter().zip(keys) {
            let open = self.unit.sequence(queue, &sequence).cloned();
            if open.is_none() && exist.contains(&key) {
                ahead.states.insert(letter, None);
                continue;
            }
            self.unit.hold_absent(queue, &sequence);
            let held = held.remove(&letter);
            if held.as_ref().is_some_and(|held| left_meanwhile(held, &sequence)) {
                ahead.states.insert(letter, None);
                continue;
            }
            let open = open.filter(|_| held.as_ref().is_some_and(|held| held.letter.state.is_open()));
            let digest = of_payload.remove(&letter).unwrap_or_else(|| PayloadDigest::of(None));
            let in_earlier = earlier.contains(&letter);
            ahead.states.insert(letter, Some(ItemState { held, digest, open, in_earlier }));
        }
        Ok(())
    }
}
