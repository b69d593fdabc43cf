//! Views for the rules: sequences under lock, letters, and numbers.

use lazaret_core::letter::{Edit, LetterId};
use lazaret_core::store::rules::{FIRST_INDEX, INDEX_STEP, LetterLookup, released_letters};
use lazaret_core::{Letter, SequenceId};
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;
use uuid::Uuid;

use crate::error::{Fault, Work};
use crate::letter_row::{HeldLetter, select_letter};
use crate::sequence_row::{OpenSequence, select_sequence, sequence_key};
use crate::store::{Queue, first};
use crate::transaction::Transaction;
use crate::values::{Columns, bound, state, unsigned};

/// In the order of their keys, so that two calls never wait for each other. One look into the index for each: a server that is to sort the
/// rows of `hash = ANY($2)` by itself rather reads the whole index in that order.
pub(crate) const LOCK_SEQUENCES: &str = select_sequence!(
    "FROM (SELECT DISTINCT hash FROM unnest($2::uuid[]) AS k (hash) ORDER BY hash) k
     CROSS JOIN LATERAL (SELECT * FROM sequences x WHERE x.qid = $1 AND x.hash = k.hash FOR UPDATE) s"
);
const TRY_LOCK: &str =
    select_sequence!("FROM sequences s WHERE s.qid = $1 AND s.hash = $2 FOR UPDATE SKIP LOCKED");
const EXISTS: &str = "SELECT 1 FROM sequences WHERE qid = $1 AND hash = $2";
const LETTER: &str = select_letter!(light "FROM letters l WHERE l.id = $1 AND l.qid = $2 FOR UPDATE");
const FIRST_FROM: &str =
    select_letter!(light "FROM letters l WHERE l.sid = $1 AND l.idx >= $2 ORDER BY l.idx LIMIT 1");
const WHOLE: &str = select_letter!("FROM letters l LEFT JOIN payloads p ON p.lid = l.lid WHERE l.lid = $1");
pub(crate) const EDITS: &str =
    "SELECT lid, who, at, why, original FROM edits WHERE lid = ANY($1) ORDER BY lid, number";
const STATES: &str = "SELECT state FROM letters WHERE sid = $1 AND idx >= $2 ORDER BY idx";
const NUMBERS: &str = "SELECT nextval('numbers') FROM generate_series(1, $1::bigint)";
pub(crate) const FENCES: &str = "SELECT nextval('fences') FROM generate_series(1, $1::bigint)";

/// The answer to a try for the lock of a sequence.
pub(crate) enum Tried {
    /// It is not open.
    Absent,
    /// Another transaction works on it.
    Busy,
    Locked(Box<OpenSequence>),
}

/// The index of a letter at the end of its queue, by its number.
pub(crate) fn index_of(number: i64) -> Work<u64> {
    Ok(FIRST_INDEX + unsigned(number)? * INDEX_STEP)
}

/// The numbers of an answer.
fn numbers(rows: &[Row]) -> Work<Vec<i64>> {
    rows.iter().map(|row| Ok(row.try_get(0)?)).collect()
}

/// An edit, and the row of its letter.
pub(crate) fn read_edit(row: &Row) -> Work<(i64, Edit)> {
    let mut c = Columns::of(row);
    let lid = c.get()?;
    Ok((lid, Edit { by: c.text()?, at: c.time()?, why: c.text()?, original: c.bytes()? }))
}

impl Transaction<'_> {
    /// Remembers sequences of an answer to [`LOCK_SEQUENCES`], and that the others of these are not open.
    pub(crate) fn hold_sequences<'n>(
        &mut self,
        queue: &Queue,
        names: impl IntoIterator<Item = &'n SequenceId>,
        rows: &[Row],
    ) -> Work<()> {
        for row in rows {
            self.unit.hold(OpenSequence::read(row)?);
        }
        names.into_iter().for_each(|name| self.unit.hold_absent(queue, name));
        Ok(())
    }

    /// Locks sequences that are not locked yet.
    pub(crate) async fn lock_sequences(&mut self, queue: &Queue, names: &[SequenceId]) -> Work<()> {
        let names: Vec<&SequenceId> = names.iter().filter(|name| !self.unit.holds(queue, name)).collect();
        if names.is_empty() {
            return Ok(());
        }
        let keys: Vec<Uuid> = names.iter().map(|name| sequence_key(name)).collect();
        let rows = self.query(LOCK_SEQUENCES, &[&queue.qid, &keys]).await?;
        self.hold_sequences(queue, names, &rows)
    }

    /// A sequence, locked, if it is open.
    pub(crate) async fn sequence(&mut self, queue: &Queue, name: &SequenceId) -> Work<Option<OpenSequence>> {
        self.lock_sequences(queue, std::slice::from_ref(name)).await?;
        Ok(self.unit.sequence(queue, name).cloned())
    }

    /// A sequence, locked, if that is possible at once.
    pub(crate) async fn try_sequence(&mut self, queue: &Queue, name: &SequenceId) -> Work<Tried> {
        if !self.unit.holds(queue, name) {
            let key = sequence_key(name);
            let parameters: &[&(dyn ToSql + Sync)] = &[&queue.qid, &key];
            let [locked, exists] = self.query_all([(TRY_LOCK, parameters), (EXISTS, parameters)]).await?;
            if locked.is_empty() && !exists.is_empty() {
                return Ok(Tried::Busy);
            }
            self.hold_sequences(queue, [name], &locked)?;
        }
        Ok(self
            .unit
            .sequence(queue, name)
            .cloned()
            .map_or(Tried::Absent, |open| Tried::Locked(Box::new(open))))
    }

    /// A letter without its key, headers, payload and edits, locked.
    pub(crate) async fn letter(&self, queue: &Queue, id: LetterId) -> Work<LetterLookup<HeldLetter>> {
        let rows = self.query(LETTER, &[&id.as_uuid(), &queue.qid]).await?;
        Ok(match first(&rows, |row| HeldLetter::read(row, &queue.name))? {
            None => LetterLookup::Absent,
            Some(held) if held.is_purged() => LetterLookup::Purged(held.letter.state),
            Some(held) => LetterLookup::Letter(held),
        })
    }

    /// The first letter of a sequence from this index on, without its key, headers, payload and edits.
    pub(crate) async fn first_from(&self, queue: &Queue, sid: i64, index: u64) -> Work<Option<HeldLetter>> {
        let rows = self.query(FIRST_FROM, &[&sid, &bound(index)]).await?;
        first(&rows, |row| HeldLetter::read(row, &queue.name))
    }

    /// A whole letter by the number of its row.
    pub(crate) async fn whole(&self, queue: &Queue, lid: i64) -> Work<Letter> {
        let rows = self.query(WHOLE, &[&lid]).await?;
        let held = first(&rows, |row| HeldLetter::read(row, &queue.name))?;
        let held = held.ok_or_else(|| Fault::Corrupt(format!("the letter in row {lid} is missing")))?;
        self.with_edits(held).await
    }

    /// The letter with its edits.
    pub(crate) async fn with_edits(&self, held: HeldLetter) -> Work<Letter> {
        let mut letter = held.letter;
        if held.edits > 0 {
            let rows = self.query(EDITS, &[&vec![held.lid]]).await?;
            letter.edits = rows.iter().map(|row| Ok(read_edit(row)?.1)).collect::<Work<_>>()?;
        }
        Ok(letter)
    }

    /// Number of letters of a sequence that run automatically from this index on. Linear in them.
    pub(crate) async fn released_letters(&self, sid: i64, from: u64) -> Work<u64> {
        let rows = self.query(STATES, &[&sid, &bound(from)]).await?;
        let states = rows.iter().map(|row| state(row.try_get(0)?)).collect::<Work<Vec<_>>>()?;
        Ok(released_letters(states))
    }

    /// New numbers for letters, in order.
    pub(crate) async fn numbers(&self, count: usize) -> Work<Vec<i64>> {
        let count = i64::try_from(count).unwrap_or(i64::MAX);
        numbers(&self.query(NUMBERS, &[&count]).await?)
    }
}
