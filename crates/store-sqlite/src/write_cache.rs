//! The writer's cache of counters: queues, grants, [`groups`], [`operations`] and [`inboxes`], so that a hand-off, a settlement or a post
//! need not read them back.
//!
//! The numbers of a queue (its last index, fence, revision, its counters) change with nearly every write. They are
//! changed here and written once per group, before its commit. The changes of a request
//! are kept apart until it has succeeded, so a failed one has no effect. Nor has one that read or wrote the file before it was refused: its
//! savepoint takes the rows back, so what it wrote is a change again, and what it read is forgotten. After a write of another process,
//! everything is read again.

pub(crate) mod groups;
pub(crate) mod inboxes;
pub(crate) mod operations;

use std::collections::HashMap;
use std::mem::take;

use lazaret_core::store::rules::{self, ClockWatch, GrantRow};
use lazaret_core::{Partition, QueueName, Timestamp};
use rusqlite::{Connection, OptionalExtension, params};

use crate::error::Work;
use crate::rows::{bound, unsigned};
use groups::Groups;
use inboxes::Inboxes;
use operations::Operations;

/// The index below the first letter of a queue, as a column.
const FIRST_INDEX: i64 = rules::FIRST_INDEX.cast_signed();

/// `true` if a queue with this last index ever held a letter: each takes one.
pub(crate) fn is_used(index: i64) -> bool {
    index > FIRST_INDEX
}

/// The numbers of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct QueueNumbers {
    pub(crate) qid: i64,
    pub(crate) revision: i64,
    /// The last lease fence.
    pub(crate) fence: i64,
    /// The last index at an end.
    pub(crate) index: i64,
    /// Number of open sequences.
    pub(crate) sequences: i64,
    pub(crate) by_state: [i64; 9],
    /// `true` if a sequence of the consumer is paused: only then pauses are queried.
    pub(crate) has_pauses: bool,
    /// `true` if the ends of its letters are listed.
    pub(crate) is_watched: bool,
}

type GrantKey = (i64, Partition);

/// A cached value and its value in the file.
struct Cached<T> {
    now: T,
    written: Option<T>,
}

/// The writer's cache.
#[derive(Default)]
pub(crate) struct WriteCache {
    queues: HashMap<QueueName, Cached<QueueNumbers>>,
    grants: HashMap<GrantKey, Cached<GrantRow>>,
    pub(crate) groups: Groups,
    pub(crate) operations: Operations,
    pub(crate) inboxes: Inboxes,
    /// The changes of the current request.
    new_queues: HashMap<QueueName, QueueNumbers>,
    new_grants: HashMap<GrantKey, GrantRow>,
    /// `true` if every queue must read its pauses again.
    forget_queues: bool,
    data_version: Option<i64>,
    /// The store's time at the last claim of each queue. Not a copy of what is in the file: it outlives a write of another process,
    /// and a transaction that is rolled back.
    clock_watches: HashMap<QueueName, ClockWatch>,
    /// The queues whose leases were looked through since the last commit.
    clamped: Vec<QueueName>,
    /// `true` if content was erased since the writer last looked. It outlives a rollback: a rewrite too many removes nothing.
    pub(crate) has_erased: bool,
}

impl WriteCache {
    /// Starts a group of requests: clears the cache if another connection has written since the last one.
    pub(crate) fn begin(&mut self, connection: &Connection) -> rusqlite::Result<()> {
        let mut pragma = connection.prepare_cached("PRAGMA data_version")?;
        let version: i64 = pragma.query_row([], |row| row.get(0))?;
        if self.data_version != Some(version) {
            self.clear();
            self.data_version = Some(version);
        }
        Ok(())
    }

    /// Clears what is a copy of the file.
    fn clear(&mut self) {
        let (clock_watches, clamped) = (take(&mut self.clock_watches), take(&mut self.clamped));
        *self = Self { clock_watches, clamped, has_erased: self.has_erased, ..Self::default() };
    }

    /// Clears the cache after its transaction was rolled back.
    pub(crate) fn roll_back(&mut self) {
        self.clear();
        self.forget_clamped();
    }

    /// The transaction was committed.
    pub(crate) fn committed(&mut self) {
        self.clamped.clear();
    }

    /// Returns `true` if the leases of a queue are to be looked through, because the clock was set back.
    pub(crate) fn clock_went_back(&mut self, queue: &QueueName, now: Timestamp) -> bool {
        let went_back = self.clock_watches.entry(queue.clone()).or_default().went_back(now);
        if went_back {
            self.clamped.push(queue.clone());
        }
        went_back
    }

    /// Forgets the clock of queues whose leases may have been changed in vain.
    fn forget_clamped(&mut self) {
        for queue in self.clamped.drain(..) {
            self.clock_watches.remove(&queue);
        }
    }

    /// Keeps the changes of the current request.
    pub(crate) fn keep(&mut self, connection: &Connection) -> Work<()> {
        for (name, numbers) in self.new_queues.drain() {
            let known = self.queues.entry(name).or_insert(Cached { now: numbers, written: None });
            known.now = numbers;
        }
        for (key, numbers) in self.new_grants.drain() {
            self.grants.entry(key).or_insert(Cached { now: numbers, written: None }).now = numbers;
        }
        self.groups.keep();
        self.operations.keep();
        self.inboxes.keep();
        if take(&mut self.forget_queues) {
            self.write(connection)?;
            self.queues.clear();
        }
        Ok(())
    }

    /// Discards the changes of the current request.
    pub(crate) fn undo(&mut self) {
        self.new_queues.clear();
        self.new_grants.clear();
        self.groups.undo();
        self.operations.undo();
        self.inboxes.undo();
        self.forget_queues = false;
        self.forget_clamped();
    }

    /// Discards the changes of the current request, and forgets what is a copy of the file: its savepoint is rolled back, and the request may
    /// have read what it had written itself.
    pub(crate) fn undo_with_savepoint(&mut self) {
        self.undo();
        self.queues.retain(|_, known| known.written != Some(known.now));
        self.grants.retain(|_, known| known.written != Some(known.now));
        self.groups.forget_copies();
        self.operations.forget_copies();
        self.inboxes.forget_copies();
    }

    /// Writes the changes since the last group.
    pub(crate) fn write(&mut self, connection: &Connection) -> Work<()> {
        for known in self.queues.values_mut().filter(|known| known.written != Some(known.now)) {
            write_queue(connection, &known.now, known.written.as_ref())?;
            known.written = Some(known.now);
        }
        for ((qid, partition), known) in &mut self.grants {
            if known.written == Some(known.now) {
                continue;
            }
            write_grant(connection, *qid, partition, &known.now)?;
            known.written = Some(known.now);
        }
        self.groups.write(connection)?;
        self.operations.write(connection)?;
        self.inboxes.write(connection)
    }

    /// The numbers of a queue, which is created if necessary.
    pub(crate) fn queue(&mut self, connection: &Connection, name: &QueueName) -> Work<QueueNumbers> {
        if let Some(numbers) = self.new_queues.get(name) {
            return Ok(*numbers);
        }
        if let Some(known) = self.queues.get(name) {
            return Ok(known.now);
        }
        if let Some(numbers) = read_queue(connection, name)? {
            self.queues.insert(name.clone(), Cached { now: numbers, written: Some(numbers) });
            return Ok(numbers);
        }
        let mut insert =
            connection.prepare_cached("INSERT INTO queues (name, consumer, idx) VALUES (?1, ?2, ?3)")?;
        insert.execute(params![name.as_str(), name.consumer(), FIRST_INDEX])?;
        let numbers = QueueNumbers {
            qid: connection.last_insert_rowid(),
            revision: 0,
            fence: 0,
            index: FIRST_INDEX,
            sequences: 0,
            by_state: [0; 9],
            has_pauses: has_pauses(connection, name)?,
            is_watched: false,
        };
        self.new_queues.insert(name.clone(), numbers);
        Ok(numbers)
    }

    pub(crate) fn set_queue(&mut self, name: &QueueName, numbers: QueueNumbers) {
        self.new_queues.insert(name.clone(), numbers);
    }

    /// Makes every queue read its pauses again.
    pub(crate) fn pauses_changed(&mut self) {
        self.forget_queues = true;
    }

    /// The current grant of a partition, if there is one.
    pub(crate) fn grant(
        &mut self,
        connection: &Connection,
        qid: i64,
        partition: &Partition,
    ) -> Work<Option<GrantRow>> {
        let key = (qid, partition.clone());
        if let Some(numbers) = self.new_grants.get(&key) {
            return Ok(Some(*numbers));
        }
        if let Some(known) = self.grants.get(&key) {
            return Ok(Some(known.now));
        }
        let mut select = connection.prepare_cached(
            "SELECT fence, horizon, turn FROM grants WHERE qid = ?1 AND stream = ?2 AND partition = ?3",
        )?;
        let number = partition.number().stored();
        let stored = select.query_row(params![qid, partition.stream.as_str(), number], |row| {
            Ok((row.get(0)?, row.get::<_, Option<i64>>(1)?, row.get(2)?))
        });
        let Some((fence, horizon, turn)) = stored.optional()? else { return Ok(None) };
        let horizon = horizon.map(unsigned).transpose()?;
        let row = GrantRow { fence: unsigned(fence)?, horizon, turn: unsigned(turn)? };
        self.grants.insert(key, Cached { now: row, written: Some(row) });
        Ok(Some(row))
    }

    pub(crate) fn set_grant(&mut self, qid: i64, partition: &Partition, numbers: GrantRow) {
        self.new_grants.insert((qid, partition.clone()), numbers);
    }
}

/// `true` if the ends of this queue are listed.
fn is_watched(connection: &Connection, qid: i64) -> Work<bool> {
    Ok(connection.prepare_cached("SELECT 1 FROM watched WHERE qid = ?1")?.exists([qid])?)
}

fn has_pauses(connection: &Connection, name: &QueueName) -> Work<bool> {
    let mut select = connection
        .prepare_cached("SELECT 1 FROM pauses WHERE consumer = ?1 AND scope LIKE '{\"sequence\"%' LIMIT 1")?;
    Ok(select.exists([name.consumer()])?)
}

fn read_queue(connection: &Connection, name: &QueueName) -> Work<Option<QueueNumbers>> {
    let mut select = connection
        .prepare_cached("SELECT qid, revision, fence, idx, sequences FROM queues WHERE name = ?1")?;
    let numbers = select.query_row([name.as_str()], |row| {
        Ok(QueueNumbers {
            qid: row.get(0)?,
            revision: row.get(1)?,
            fence: row.get(2)?,
            index: row.get(3)?,
            sequences: row.get(4)?,
            by_state: [0; 9],
            has_pauses: false,
            is_watched: false,
        })
    });
    let Some(mut numbers) = numbers.optional()? else { return Ok(None) };
    numbers.by_state = read_counts(connection, numbers.qid)?;
    numbers.has_pauses = has_pauses(connection, name)?;
    numbers.is_watched = is_watched(connection, numbers.qid)?;
    Ok(Some(numbers))
}

/// Number of letters of a queue in each state.
pub(crate) fn read_counts(connection: &Connection, qid: i64) -> Work<[i64; 9]> {
    let mut counts = [0; 9];
    let mut select = connection.prepare_cached("SELECT state, n FROM counts WHERE qid = ?1")?;
    let mut rows = select.query([qid])?;
    while let Some(row) = rows.next()? {
        let state = crate::rows::state(row.get(0)?)?;
        counts[state as usize] = row.get(1)?;
    }
    Ok(counts)
}

fn write_queue(connection: &Connection, numbers: &QueueNumbers, written: Option<&QueueNumbers>) -> Work<()> {
    let mut update = connection.prepare_cached(
        "UPDATE queues SET revision = ?2, fence = ?3, idx = ?4, sequences = ?5 WHERE qid = ?1",
    )?;
    update.execute(params![
        numbers.qid,
        numbers.revision,
        numbers.fence,
        numbers.index,
        numbers.sequences
    ])?;
    let before = written.map_or([0; 9], |written| written.by_state);
    let mut upsert = connection.prepare_cached(
        "INSERT INTO counts (qid, state, n) VALUES (?1, ?2, ?3)
         ON CONFLICT (qid, state) DO UPDATE SET n = excluded.n",
    )?;
    for (state, (now, before)) in (0_i64..).zip(numbers.by_state.iter().zip(before)) {
        if *now != before {
            upsert.execute([numbers.qid, state, *now])?;
        }
    }
    Ok(())
}

fn write_grant(connection: &Connection, qid: i64, partition: &Partition, numbers: &GrantRow) -> Work<()> {
    let mut upsert = connection.prepare_cached(
        "INSERT INTO grants (qid, stream, partition, fence, horizon, turn) VALUES (?1, ?2, ?3, ?4, ?5, ?6)
         ON CONFLICT (qid, stream, partition)
         DO UPDATE SET fence = excluded.fence, horizon = excluded.horizon, turn = excluded.turn",
    )?;
    let GrantRow { fence, horizon, turn } = numbers;
    let [fence, turn] = [*fence, *turn].map(bound);
    let horizon = horizon.map(bound);
    let number = partition.number().stored();
    upsert.execute(params![qid, partition.stream.as_str(), number, fence, horizon, turn])?;
    Ok(())
}

#[cfg(test)]
mod tests;
