//! One queue inside a transaction: views for the rules of [`lazaret_core::store::rules`], and their effects.
//!
//! [`sequences`] reads and writes the rows of open sequences, [`apply`] writes the effects of a rule. [`intake`], [`leases`]
//! and [`acts`] load views for one kind of request each; [`edits`] stores replaced payloads; [`notes`] stores the attempts of messages that wait in memory.
//! [`groups`], [`ends`] and [`listing`] run queries. None of them scans all letters; [`query`], which searches
//! letters, reads a bounded number of them at a time.

mod acts;
mod apply;
pub(crate) mod edits;
pub(crate) mod ends;
pub(crate) mod groups;
mod intake;
mod leases;
pub(crate) mod listing;
pub(crate) mod notes;
pub(crate) mod query;
mod sequences;

pub(crate) use acts::Changed;
#[cfg(test)]
pub(crate) use acts::{CLOSED_BEFORE, EXPIRING};
#[cfg(test)]
pub(crate) use leases::PROLONGED;
pub(crate) use sequences::{OpenSequence, set_schedule};
#[cfg(test)]
pub(crate) use sequences::{OpenSequenceRow, select_sequence};

use lazaret_core::letter::LetterId;
use lazaret_core::store::rules::{LetterLookup, LetterView, released_letters};
use lazaret_core::{Failure, Fingerprint, Letter, LetterState, QueueName, Reason, Timestamp};
use rusqlite::{Connection, Row, params};

use crate::error::{Fault, Work};
use crate::rows::{self, UndecodedLetter, bound, first, id_bytes, letter_id, select_letter, time, unsigned};
use crate::step::Step;
use crate::write_cache::{QueueNumbers, WriteCache};

/// A queue in a request. Its counters are kept once the request has succeeded.
pub(crate) struct Queue<'a> {
    pub(crate) connection: &'a Connection,
    pub(crate) name: &'a QueueName,
    pub(crate) numbers: QueueNumbers,
    pub(crate) cache: &'a mut WriteCache,
    pub(crate) now: i64,
}

/// A letter as the rules see it, and the number of its row.
pub(crate) struct LetterRow {
    lid: i64,
    view: LetterView,
}

/// The columns of a [`LetterRow`].
struct LetterColumns {
    lid: i64,
    id: LetterId,
    index: u64,
    state: LetterState,
    due_at: Option<Timestamp>,
    enqueued_at: Timestamp,
    touched_at: Timestamp,
    gid: Option<i64>,
}

/// A query for [`LetterColumns::read`].
macro_rules! select_letter_row {
    ($rest:literal) => {
        concat!("SELECT lid, id, idx, state, due_at, enqueued_at, touched_at, gid ", $rest)
    };
}
use select_letter_row;

impl LetterColumns {
    fn read(row: &Row<'_>) -> Work<Self> {
        Ok(Self {
            lid: row.get(0)?,
            id: letter_id(row.get_ref(1)?.as_blob().map_err(rusqlite::Error::from)?)?,
            index: unsigned(row.get(2)?)?,
            state: rows::state(row.get(3)?)?,
            due_at: row.get::<_, Option<i64>>(4)?.map(time),
            enqueued_at: time(row.get(5)?),
            touched_at: time(row.get(6)?),
            gid: row.get(7)?,
        })
    }
}

impl Step<'_> {
    /// Runs a change on a queue, which is created if necessary.
    pub(crate) fn queue<T>(
        &mut self,
        name: &QueueName,
        work: impl FnOnce(&mut Queue<'_>) -> Work<T>,
    ) -> Work<T> {
        let numbers = self.cache.queue(self.connection, name)?;
        let mut queue =
            Queue { connection: self.connection, name, numbers, cache: self.cache, now: self.now };
        let answer = work(&mut queue)?;
        let numbers = queue.numbers;
        self.cache.set_queue(name, numbers);
        Ok(answer)
    }
}

impl Queue<'_> {
    fn time(&self) -> Timestamp {
        time(self.now)
    }

    /// The fingerprint of a group by its number.
    fn group_name(&mut self, gid: Option<i64>) -> Work<Option<Fingerprint>> {
        gid.map(|gid| self.cache.groups.fingerprint(self.connection, gid)).transpose()
    }

    fn found(&mut self, row: LetterColumns) -> Work<LetterRow> {
        let LetterColumns { lid, id, index, state, due_at, enqueued_at, touched_at, gid } = row;
        let group = self.group_name(gid)?;
        Ok(LetterRow { lid, view: LetterView { id, index, state, due_at, enqueued_at, touched_at, group } })
    }

    /// The letters of a query made with `select_letter_row`.
    fn find_all(&mut self, sql: &str, parameters: impl rusqlite::Params) -> Work<Vec<LetterRow>> {
        let mut select = self.connection.prepare_cached(sql)?;
        let mut rows = select.query(parameters)?;
        let mut page = Vec::new();
        while let Some(row) = rows.next()? {
            page.push(self.found(LetterColumns::read(row)?)?);
        }
        Ok(page)
    }

    /// The first letter of a sequence from this index on.
    fn first_from(&mut self, sid: i64, index: i64) -> Work<Option<LetterRow>> {
        let mut select = self.connection.prepare_cached(select_letter_row!(
            "FROM letters WHERE sid = ?1 AND idx >= ?2 ORDER BY idx LIMIT 1"
        ))?;
        let row = first(select.query([sid, index])?, LetterColumns::read)?;
        row.map(|row| self.found(row)).transpose()
    }

    /// The first two letters of a sequence from this index on.
    fn first_two_from(&mut self, sid: i64, index: i64) -> Work<(Option<LetterRow>, Option<LetterRow>)> {
        let sql = select_letter_row!("FROM letters WHERE sid = ?1 AND idx >= ?2 ORDER BY idx LIMIT 2");
        let mut letters = self.find_all(sql, [sid, index])?.into_iter();
        Ok((letters.next(), letters.next()))
    }

    /// Number of letters of a sequence that run automatically from this index on. Linear in them.
    pub(crate) fn released_letters(&self, sid: i64, from: u64) -> Work<u64> {
        let mut select = self
            .connection
            .prepare_cached("SELECT state FROM letters WHERE sid = ?1 AND idx >= ?2 ORDER BY idx")?;
        let mut rows = select.query([sid, bound(from)])?;
        let mut states = Vec::new();
        while let Some(row) = rows.next()? {
            let state = rows::state(row.get(0)?)?;
            states.push(state);
            if !state.is_automatic() {
                break;
            }
        }
        Ok(released_letters(states))
    }

    /// The state of the letter with this id in this queue, if it exists.
    fn state_of(&self, id: LetterId) -> Work<Option<LetterState>> {
        let mut select =
            self.connection.prepare_cached("SELECT state FROM letters WHERE id = ?1 AND qid = ?2")?;
        let rows = select.query(params![id_bytes(id), self.numbers.qid])?;
        first(rows, |row| rows::state(row.get(0)?))
    }

    /// A letter without its key, headers, payload and edits, and its row.
    pub(crate) fn light(&self, id: LetterId) -> Work<LetterLookup<(i64, Letter)>> {
        Ok(match self.row_of(id)? {
            LetterLookup::Letter(lid) => LetterLookup::Letter((lid, self.light_by_row(lid)?)),
            LetterLookup::Purged(state) => LetterLookup::Purged(state),
            LetterLookup::Absent => LetterLookup::Absent,
        })
    }

    /// The number of a letter's row.
    pub(crate) fn row_of(&self, id: LetterId) -> Work<LetterLookup<i64>> {
        let mut select = self.connection.prepare_cached(
            "SELECT lid, state, sid IS NULL AND closed_at IS NULL FROM letters WHERE id = ?1 AND qid = ?2",
        )?;
        let found = first(select.query(params![id_bytes(id), self.numbers.qid])?, |row| {
            Ok((row.get::<_, i64>(0)?, rows::state(row.get(1)?)?, row.get::<_, bool>(2)?))
        })?;
        Ok(match found {
            None => LetterLookup::Absent,
            Some((_, state, true)) => LetterLookup::Purged(state),
            Some((lid, _, false)) => LetterLookup::Letter(lid),
        })
    }

    pub(crate) fn light_by_row(&self, lid: i64) -> Work<Letter> {
        let mut letter = self.light_undecoded(lid)?.shown();
        if letter.cause.is_none()
            && let Some(why) = &letter.message.undecodable
        {
            letter.cause = self.cause_from_columns(lid, why)?;
        }
        Ok(letter)
    }

    /// The cause of a letter whose body is damaged, as far as it is counted: its group and its reason.
    fn cause_from_columns(&self, lid: i64, why: &str) -> Work<Option<Failure>> {
        let mut select = self.connection.prepare_cached(
            "SELECT groups.fingerprint, letters.reason FROM letters JOIN groups USING (gid) WHERE lid = ?1",
        )?;
        first(select.query([lid])?, |row| {
            let corrupt = || Fault::Corrupt(format!("failed to decode the group of the letter in row {lid}"));
            let fingerprint = row.get_ref(0)?.as_str().map_err(rusqlite::Error::from)?;
            let fingerprint: Fingerprint = fingerprint.parse().map_err(|_| corrupt())?;
            let reason: String = row.get(1)?;
            let reason = Reason::new(&*reason).unwrap_or_else(|_| Reason::from_words(&reason));
            Ok(Failure { fingerprint, ..Failure::new(reason, "unknown", why) })
        })
    }

    /// A letter without its key, headers, payload and edits.
    pub(crate) fn light_undecoded(&self, lid: i64) -> Work<UndecodedLetter> {
        self.by_row(select_letter!(light "WHERE lid = ?1"), lid, |row| UndecodedLetter::read(row, self.name))
    }

    /// The whole letter at the head of a sequence.
    fn whole_head(&self, sid: i64, index: i64) -> Work<Option<UndecodedLetter>> {
        let mut select = self
            .connection
            .prepare_cached(select_letter!("WHERE sid = ?1 AND idx >= ?2 ORDER BY idx LIMIT 1"))?;
        first(select.query([sid, index])?, |row| UndecodedLetter::read_whole(self.connection, row, self.name))
    }

    /// A whole letter by the number of its row, [to be shown](UndecodedLetter::shown).
    pub(crate) fn whole(&self, lid: i64) -> Work<Letter> {
        Ok(self.whole_undecoded(lid)?.shown())
    }

    pub(crate) fn whole_undecoded(&self, lid: i64) -> Work<UndecodedLetter> {
        let read = |row: &Row<'_>| UndecodedLetter::read_whole(self.connection, row, self.name);
        self.by_row(select_letter!("WHERE lid = ?1"), lid, read)
    }

    /// A letter with its message, but without its edits, and their number. It is changed, so a damaged one is refused.
    fn without_edits(&self, lid: i64) -> Work<(Letter, i64)> {
        let read =
            |row: &Row<'_>| Ok((UndecodedLetter::read(row, self.name)?.decode()?, rows::edits_of(row)?.1));
        self.by_row(select_letter!("WHERE lid = ?1"), lid, read)
    }

    fn by_row<T>(&self, sql: &str, lid: i64, read: impl FnOnce(&Row<'_>) -> Work<T>) -> Work<T> {
        let mut select = self.connection.prepare_cached(sql)?;
        let letter = first(select.query([lid])?, read)?;
        letter.ok_or_else(|| Fault::Corrupt(format!("the letter in row {lid} is missing")))
    }
}
