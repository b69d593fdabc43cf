//! Grants and hand-offs.

pub(crate) mod later;

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};

use lazaret_core::letter::LetterId;
use lazaret_core::store::rules::{
    self, Entry, GrantRow, HandOffRequest, HandOffView, Head, LetterView, SequenceChange, SequenceRow, Slot,
};
use lazaret_core::store::{ErrorKind, Grant, HandOff, Limits, Placed, Result};
use lazaret_core::{Letter, LetterState, Partition, SequenceId};
use tokio_postgres::Row;
use uuid::Uuid;

use self::later::LaterLetters;
use crate::error::{Fault, Work};
use crate::pauses::{PAUSED, pauses_lock, sequence_pause};
use crate::sequence_row::sequence_key;
use crate::store::{PostgresStore, Queue, first};
use crate::transaction::Transaction;
use crate::unit::HeldGrant;
use crate::values::{Columns, bound, letter_id, lock_key, number, partition, state, text, unsigned};
use crate::views::{LOCK_SEQUENCES, index_of};

const HAND_OFF: &str = "hand_off";

/// If a queue has fewer free sequences than this, the calls that open some wait for each other, so that the limit is exact.
const NEAR_LIMIT: u64 = 1000;

const LOCK_GRANTS: &str = "SELECT g.stream, g.partition, g.fence, g.turn, g.horizon FROM grants g
    JOIN unnest($2::text[], $3::bigint[]) AS u (stream, partition) ON g.stream = u.stream AND g.partition = u.partition
    WHERE g.qid = $1 ORDER BY g.stream, g.partition FOR UPDATE OF g";
const HORIZONS: &str =
    "SELECT g.horizon FROM unnest($2::text[], $3::bigint[]) WITH ORDINALITY AS u (stream, partition, place)
    LEFT JOIN grants g ON g.qid = $1 AND g.stream = u.stream AND g.partition = u.partition ORDER BY u.place";
/// Locks the pauses of a consumer, as [`pauses`](crate::pauses) has it, and reads the revision of its queue.
const LOCK_PAUSES: &str =
    "SELECT pg_advisory_xact_lock_shared($1), (SELECT revision FROM queues WHERE qid = $2)";
/// The time behind all locks, and new numbers for letters.
const CLOCK_AND_NUMBERS: &str = "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint * 1000,
    ARRAY(SELECT nextval('numbers') FROM generate_series(1, $1::bigint))";
/// `+ 0` keeps the server from reading all letters of a queue that seems small.
pub(crate) const HELD: &str = "SELECT id, state FROM letters WHERE id = ANY($1) AND qid + 0 = $2";
const SEQUENCES: &str = "SELECT coalesce(sum(sequences), 0)::bigint FROM counts WHERE qid = $1";
const LOCK: &str = "SELECT pg_advisory_xact_lock($1)";
const MOVED: &str = "SELECT lid, idx FROM letters WHERE sid = $1 AND idx >= $2 ORDER BY idx FOR UPDATE";
const MOVE: &str = "UPDATE letters l SET idx = u.idx FROM unnest($1::bigint[], $2::bigint[]) AS u (lid, idx)
    WHERE l.lid = u.lid";

/// What a call knows beside its sequences and grants.
struct Intake<'a> {
    limits: &'a Limits,
    revision: u64,
    /// Open sequences of the queue before the call.
    sequences: u64,
    held: HashMap<LetterId, LetterState>,
    /// The sequences that are paused, by the key of their pause.
    paused: HashSet<Uuid>,
    numbers: VecDeque<i64>,
    later: LaterLetters,
}

fn read_grant(row: &Row) -> Work<(Partition, GrantRow)> {
    let mut c = Columns::of(row);
    let partition = partition(c.text()?, c.get()?)?;
    let (fence, turn) = (c.unsigned()?, c.unsigned()?);
    let horizon = c.get::<Option<i64>>()?.map(unsigned).transpose()?;
    Ok((partition, GrantRow { fence, turn, horizon }))
}

/// The columns of partitions, an array each.
fn partition_arrays<'p>(partitions: impl IntoIterator<Item = &'p Partition>) -> (Vec<String>, Vec<i64>) {
    let column =
        |partition: &Partition| (text(partition.stream.as_str()).into_owned(), partition.number().stored());
    partitions.into_iter().map(column).unzip()
}

impl PostgresStore {
    /// The horizons of these partitions, in order.
    pub(crate) async fn read_horizons(
        &self,
        queue: &Queue,
        partitions: &[Partition],
    ) -> Result<Vec<Option<u64>>> {
        const NAME: &str = "horizons";
        let (streams, indexes) = partition_arrays(partitions);
        let rows = self.ask(NAME, HORIZONS, &[&queue.qid, &streams, &indexes]).await?;
        let read = |row: &Row| Columns::of(row).get::<Option<i64>>()?.map(unsigned).transpose();
        rows.iter().map(read).collect::<Work<_>>().map_err(|fault| fault.into_error(NAME))
    }
}

impl Transaction<'_> {
    fn hold_grants<'p>(
        &mut self,
        queue: &Queue,
        partitions: impl IntoIterator<Item = &'p Partition>,
        rows: &[Row],
    ) -> Work<()> {
        for row in rows {
            let (partition, row) = read_grant(row)?;
            self.unit.grants.insert((queue.qid, partition), HeldGrant { stored: true, changed: false, row });
        }
        for partition in partitions {
            let new = HeldGrant { stored: false, changed: false, row: GrantRow::default() };
            self.unit.grants.entry((queue.qid, partition.clone())).or_insert(new);
        }
        Ok(())
    }

    fn grant(&self, queue: &Queue, partition: &Partition) -> GrantRow {
        self.unit.grants.get(&(queue.qid, partition.clone())).map(|held| held.row).unwrap_or_default()
    }

    fn set_grant(&mut self, queue: &Queue, partition: &Partition, row: GrantRow) {
        if let Some(held) = self.unit.grants.get_mut(&(queue.qid, partition.clone())) {
            held.changed |= held.row != row;
            held.row = row;
        }
    }

    pub(crate) async fn assign(&mut self, queue: &Queue, partitions: &[Partition]) -> Work<Vec<Grant>> {
        let (streams, indexes) = partition_arrays(partitions);
        let rows = self.query(LOCK_GRANTS, &[&queue.qid, &streams, &indexes]).await?;
        self.hold_grants(queue, partitions, &rows)?;
        let mut grants = Vec::with_capacity(partitions.len());
        for partition in partitions {
            let row = self.grant(queue, partition).granted();
            self.set_grant(queue, partition, row);
            grants.push(Grant { partition: partition.clone(), fence: row.fence, horizon: row.horizon });
        }
        Ok(grants)
    }

    pub(crate) async fn hand_off_all(
        &mut self,
        queue: &Queue,
        limits: &Limits,
        items: &[HandOff],
    ) -> Work<Vec<Result<Placed>>> {
        let mut intake = self.load_intake(queue, limits, items).await?;
        intake.later = self.load_later(queue, &intake.held, items).await?;
        // The sequences with a refused item, and the kind of the error.
        let mut refused: HashMap<&SequenceId, ErrorKind> = HashMap::new();
        let mut answers = Vec::with_capacity(items.len());
        for item in items {
            let sequence = &item.letter.sequence;
            match self.hand_off(queue, &mut intake, item, refused.get(sequence).copied()).await {
                Ok(placed) => answers.push(Ok(placed)),
                // Refusals precede any change by the item, so the items before it stand.
                Err(Fault::Refused(error)) => {
                    refused.entry(sequence).or_insert(error.kind());
                    answers.push(Err(error));
                }
                Err(fault) => return Err(fault),
            }
        }
        Ok(answers)
    }

    /// Locks and loads all that the items need, in one round trip. The revision is read before the sequences: one that is opened later
    /// has a higher one.
    async fn load_intake<'l>(
        &mut self,
        queue: &Queue,
        limits: &'l Limits,
        items: &[HandOff],
    ) -> Work<Intake<'l>> {
        let mut partitions: BTreeMap<Partition, ()> = BTreeMap::new();
        let mut names: BTreeMap<&SequenceId, ()> = BTreeMap::new();
        for HandOff { letter, grant, .. } in items {
            partitions.insert(letter.message.partition(), ());
            partitions.extend(grant.iter().map(|grant| (grant.partition.clone(), ())));
            names.insert(&letter.sequence, ());
        }
        let (streams, indexes) = partition_arrays(partitions.keys());
        let keys: Vec<Uuid> = names.keys().map(|name| sequence_key(name)).collect();
        let pauses = names.keys().map(|name| sequence_pause(name)).collect::<Work<Vec<Uuid>>>()?;
        let ids: Vec<Uuid> = items.iter().map(|item| item.letter.id.as_uuid()).collect();
        let (consumer, count) = (text(queue.name.consumer()), i64::try_from(items.len()).unwrap_or(i64::MAX));
        let lock = pauses_lock(self.store.schema(), queue.name.consumer());
        let [pauses_locked, grants, open, held, paused, clock] = self
            .query_all([
                (LOCK_PAUSES, &[&lock, &queue.qid]),
                (LOCK_GRANTS, &[&queue.qid, &streams, &indexes]),
                (LOCK_SEQUENCES, &[&queue.qid, &keys]),
                (HELD, &[&ids, &queue.qid]),
                (PAUSED, &[&consumer, &pauses]),
                (CLOCK_AND_NUMBERS, &[&count]),
            ])
            .await?;
        self.set_now(&clock)?;
        self.hold_grants(queue, partitions.keys(), &grants)?;
        self.hold_sequences(queue, names.into_keys(), &open)?;
        let read_held = |row: &Row| Ok((letter_id(row.try_get(0)?)?, state(row.try_get(1)?)?));
        let mut intake = Intake {
            limits,
            revision: first(&pauses_locked, |row| unsigned(row.try_get(1)?))?.unwrap_or_default(),
            sequences: 0,
            held: held.iter().map(read_held).collect::<Work<_>>()?,
            paused: paused.iter().map(|row| Ok(row.try_get(0)?)).collect::<Work<_>>()?,
            numbers: first(&clock, |row| Ok(row.try_get::<_, Vec<i64>>(1)?))?.unwrap_or_default().into(),
            later: LaterLetters::new(),
        };
        let Some(max) = limits.max_sequences else { return Ok(intake) };
        intake.sequences = self.count_sequences(queue).await?;
        let needed = intake.sequences.saturating_add(items.len() as u64).saturating_add(NEAR_LIMIT);
        if needed > max {
            let lock = lock_key(&["lazaret limit", self.store.schema(), queue.name.as_str()]);
            self.query(LOCK, &[&lock]).await?;
            intake.sequences = self.count_sequences(queue).await?;
        }
        Ok(intake)
    }

    async fn count_sequences(&self, queue: &Queue) -> Work<u64> {
        let rows = self.query(SEQUENCES, &[&queue.qid]).await?;
        Ok(first(&rows, |row| unsigned(row.try_get(0)?))?.unwrap_or_default())
    }

    async fn hand_off(
        &mut self,
        queue: &Queue,
        intake: &mut Intake<'_>,
        item: &HandOff,
        refused: Option<ErrorKind>,
    ) -> Work<Placed> {
        let HandOff { letter, placement, grant } = item;
        let (partition, offset) = (letter.message.partition(), letter.message.position.offset);
        if let Some(grant) = grant {
            number(grant.turn, "turn", HAND_OFF)?;
            // Not that of the partition for a message that returned from a retry topic.
            let admitted = self.grant(queue, &grant.partition).admit(grant)?;
            self.set_grant(queue, &grant.partition, admitted);
        }
        number(offset, "offset", HAND_OFF)?;
        let known = self.grant(queue, &partition);
        let open = self.unit.sequence(queue, &letter.sequence);
        let opened = self.unit.counts.get(&queue.qid).map_or(0, |counted| counted.sequences);
        let request = HandOffRequest {
            id: letter.id,
            queue: &letter.queue,
            state: letter.state,
            message: &letter.message.id,
            offset,
            placement: *placement,
            granted: grant.is_some(),
        };
        let view = HandOffView {
            queue: &queue.name,
            held: intake.held.get(&letter.id).copied(),
            refused,
            horizon: known.horizon,
            row: open.map(|open| &open.row),
            sequences: intake.sequences.saturating_add_signed(opened),
            revision: intake.revision,
            limits: intake.limits,
        };
        let entry = rules::hand_off(&request, &view)?;
        let slot = match (entry, open.map(|open| (open.sid, open.row.clone()))) {
            (Entry::Insert, Some((sid, row))) => {
                let known = intake.later.get(&sid).and_then(|of_sequence| of_sequence.get(&letter.id));
                let later = match known {
                    Some(later) => *later,
                    // Letters of this call are to be found in the table, too.
                    None => {
                        self.write_rows().await?;
                        self.first_later(&[(sid, letter)]).await?.pop().flatten()
                    }
                };
                rules::place(&letter.sequence, &row, later, self.now())?
            }
            _ => Slot::End,
        };
        let placed = match entry {
            Entry::Held(state) => Placed::Held(state),
            Entry::NotOpen(revision) => Placed::NotOpen(revision),
            Entry::Closed => Placed::Closed,
            Entry::Open => Placed::Opened,
            Entry::Append | Entry::Insert => Placed::Appended,
        };
        if !matches!(placed, Placed::Held(_) | Placed::NotOpen(_)) {
            self.put(queue, intake, letter, slot).await?;
            intake.held.insert(letter.id, letter.state);
        }
        if entry.raises_horizon(*placement) {
            self.set_grant(queue, &partition, self.grant(queue, &partition).raised(offset));
        }
        Ok(placed)
    }

    /// Stores a letter at its place.
    async fn put(&mut self, queue: &Queue, intake: &mut Intake<'_>, letter: &Letter, slot: Slot) -> Work<()> {
        let lid = intake.numbers.pop_front();
        let lid = lid.ok_or_else(|| Fault::Corrupt("the server gave too few numbers".to_owned()))?;
        if let Some(open) = self.unit.sequence(queue, &letter.sequence) {
            intake.later.remove(&open.sid);
        }
        let index = self.index_at(queue, &letter.sequence, slot, lid).await?;
        let (now, cause) = (self.now(), letter.cause.as_ref());
        if !letter.state.is_open() {
            self.unit.audit.push(rules::skip_audit(letter.id, letter.state, cause));
        }
        let view = LetterView {
            id: letter.id,
            index,
            state: letter.state,
            due_at: letter.due_at,
            enqueued_at: now,
            touched_at: now,
            group: cause.map(|cause| cause.fingerprint),
        };
        let row = self.unit.sequence(queue, &letter.sequence).map(|open| open.row.clone());
        let paused = row.is_none() && intake.paused.contains(&sequence_pause(&letter.sequence)?);
        let effects = rules::insert(&view, letter.last_failed_at, row.as_ref(), paused, now);
        self.unit.insert(queue, lid, letter.clone(), effects, now)
    }

    /// The index of a slot. `number` is that of the letter.
    pub(crate) async fn index_at(
        &mut self,
        queue: &Queue,
        sequence: &SequenceId,
        slot: Slot,
        number: i64,
    ) -> Work<u64> {
        let free = index_of(number)?;
        match slot {
            Slot::At(index) => Ok(index),
            Slot::End => Ok(free),
            Slot::MoveBehind(from) => {
                self.move_behind(queue, sequence, from).await?;
                Ok(free)
            }
        }
    }

    /// Moves all letters of a sequence from this index on to new indexes at the end, in their order.
    async fn move_behind(&mut self, queue: &Queue, sequence: &SequenceId, from: u64) -> Work<()> {
        let Some(open) = self.unit.sequence(queue, sequence).cloned() else { return Ok(()) };
        self.write_rows().await?;
        let rows = self.query(MOVED, &[&open.sid, &bound(from)]).await?;
        let (mut lids, mut indexes, mut head) = (Vec::new(), Vec::new(), open.row.head);
        for (row, number) in rows.iter().zip(self.numbers(rows.len()).await?) {
            let (old, index) = (unsigned(row.try_get(1)?)?, index_of(number)?);
            lids.push(row.try_get::<_, i64>(0)?);
            indexes.push(bound(index));
            if old == open.row.head.index {
                head = Head { index, ..head };
            }
        }
        self.query(MOVE, &[&lids, &indexes]).await?;
        let row = SequenceRow { head, ..open.row };
        self.unit.change_sequence(queue, sequence, None, SequenceChange::Put(row))
    }
}
