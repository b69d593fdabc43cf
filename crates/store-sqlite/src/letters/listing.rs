//! Queries of letters, on a consistent snapshot.

use lazaret_core::letter::LetterId;
use lazaret_core::store::{AttemptNote, Counts, ErrorKind, HeadsPage, OpenedPage, StoreError};
use lazaret_core::{Letter, LetterState, Partition, QueueName, SequenceId, Timestamp};
use rusqlite::{Connection, OptionalExtension, params};

use super::notes;
use crate::error::{Fault, Work};
use crate::rows::{
    UndecodedLetter, bound, first, id_bytes, limit as rows_of, read_whole, select_letter, state, time,
    unsigned,
};
use crate::write_cache::read_counts;

/// A queue to query. It does not exist before the first write.
pub(crate) struct Listing<'a> {
    pub(crate) connection: &'a Connection,
    name: &'a QueueName,
    pub(crate) qid: i64,
    revision: i64,
    sequences: i64,
}

impl<'a> Listing<'a> {
    pub(crate) fn of(connection: &'a Connection, name: &'a QueueName) -> Work<Option<Self>> {
        let mut select =
            connection.prepare_cached("SELECT qid, revision, sequences FROM queues WHERE name = ?1")?;
        let found = select.query_row([name.as_str()], |row| {
            Ok(Self { connection, name, qid: row.get(0)?, revision: row.get(1)?, sequences: row.get(2)? })
        });
        Ok(found.optional()?)
    }

    pub(crate) fn opened_since(&self, revision: u64, limit: usize) -> Work<OpenedPage> {
        let limit = limit.max(1);
        let mut select = self.connection.prepare_cached(
            "SELECT name, revision FROM sequences WHERE qid = ?1 AND revision > ?2 ORDER BY revision LIMIT ?3",
        )?;
        let rows = select
            .query_map([self.qid, bound(revision), rows_of(limit.saturating_add(1))], |row| {
                Ok((row.get::<_, String>(0)?, row.get::<_, i64>(1)?))
            })?;
        let mut page: Vec<(String, i64)> = rows.collect::<rusqlite::Result<_>>()?;
        let more = page.len() > limit;
        page.truncate(limit);
        let last = page.last().map_or(self.revision, |(_, revision)| *revision);
        Ok(OpenedPage {
            revision: if more { unsigned(last)? } else { unsigned(self.revision)?.max(revision) },
            sequences: page.into_iter().map(|(name, _)| SequenceId::new(name)).collect(),
            more,
        })
    }

    pub(crate) fn horizons(&self, partitions: &[Partition]) -> Work<Vec<Option<u64>>> {
        let mut select = self
            .connection
            .prepare_cached("SELECT horizon FROM grants WHERE qid = ?1 AND stream = ?2 AND partition = ?3")?;
        let mut horizons = Vec::with_capacity(partitions.len());
        for partition in partitions {
            let number = partition.number().stored();
            let rows = select.query(params![self.qid, partition.stream.as_str(), number])?;
            let horizon = first(rows, |row| row.get::<_, Option<i64>>(0)?.map(unsigned).transpose())?;
            horizons.push(horizon.flatten());
        }
        Ok(horizons)
    }

    pub(crate) fn lookup(&self, ids: &[LetterId]) -> Work<Vec<Option<LetterState>>> {
        let mut select =
            self.connection.prepare_cached("SELECT state FROM letters WHERE id = ?1 AND qid = ?2")?;
        let mut states = Vec::with_capacity(ids.len());
        for id in ids {
            let rows = select.query(params![id_bytes(*id), self.qid])?;
            states.push(first(rows, |row| state(row.get(0)?))?);
        }
        Ok(states)
    }

    pub(crate) fn attempt_notes(&self, partitions: &[Partition]) -> Work<Vec<AttemptNote>> {
        notes::attempt_notes(self.connection, self.qid, partitions)
    }

    pub(crate) fn next_due(&self) -> Work<Option<Timestamp>> {
        let earliest = |sql| -> Work<Option<i64>> {
            Ok(self.connection.prepare_cached(sql)?.query_row([self.qid], |row| row.get(0))?)
        };
        let due = earliest("SELECT min(due) FROM sequences WHERE qid = ?1 AND due IS NOT NULL")?;
        let busy = earliest("SELECT min(busy) FROM sequences WHERE qid = ?1 AND busy IS NOT NULL")?;
        Ok(due.into_iter().chain(busy).min().map(time))
    }

    pub(crate) fn get(&self, id: LetterId) -> Work<Option<Letter>> {
        Ok(self.undecoded(id)?.map(UndecodedLetter::shown))
    }

    pub(super) fn undecoded(&self, id: LetterId) -> Work<Option<UndecodedLetter>> {
        let mut select = self.connection.prepare_cached(select_letter!("WHERE id = ?1 AND qid = ?2"))?;
        let rows = select.query(params![id_bytes(id), self.qid])?;
        first(rows, |row| UndecodedLetter::read_whole(self.connection, row, self.name))
    }

    /// The number and the size of an open sequence.
    fn open(&self, sequence: &SequenceId) -> Work<Option<(i64, i64)>> {
        let mut select = self
            .connection
            .prepare_cached("SELECT sid, count FROM sequences WHERE qid = ?1 AND name = ?2")?;
        let found = select
            .query_row(params![self.qid, sequence.as_str()], |row| Ok((row.get(0)?, row.get(1)?)))
            .optional()?;
        Ok(found)
    }

    pub(crate) fn sequence(&self, sequence: &SequenceId, from: u64, limit: usize) -> Work<Vec<Letter>> {
        let Some((sid, _)) = self.open(sequence)? else { return Ok(Vec::new()) };
        let mut select = self
            .connection
            .prepare_cached(select_letter!("WHERE sid = ?1 AND idx >= ?2 ORDER BY idx LIMIT ?3"))?;
        let mut rows = select.query([sid, bound(from), rows_of(limit)])?;
        let mut letters = Vec::new();
        while let Some(row) = rows.next()? {
            letters.push(read_whole(self.connection, row, self.name)?);
        }
        Ok(letters)
    }

    pub(crate) fn sequence_size(&self, sequence: &SequenceId) -> Work<u64> {
        unsigned(self.open(sequence)?.map_or(0, |(_, count)| count))
    }

    pub(crate) fn counts(&self) -> Work<Counts> {
        let mut by_state = [0; 9];
        for (count, stored) in by_state.iter_mut().zip(read_counts(self.connection, self.qid)?) {
            *count = unsigned(stored)?;
        }
        Ok(Counts { sequences: unsigned(self.sequences)?, by_state })
    }

    pub(crate) fn heads(&self, after: Option<Cursor>, limit: usize) -> Work<HeadsPage> {
        let limit = limit.max(1);
        let wanted = limit.saturating_add(1);
        let mut places = Vec::new();
        // First the others with the touch time of the last head returned, then those touched later.
        if let Some(Cursor { touched, sid }) = after {
            let sql =
                "SELECT touched, sid, head_idx FROM sequences WHERE qid = ?1 AND touched = ?2 AND sid > ?3
                       ORDER BY sid LIMIT ?4";
            self.places(sql, [self.qid, touched, sid, rows_of(wanted)], &mut places)?;
        }
        let rest = rows_of(wanted - places.len().min(wanted));
        match after {
            Some(Cursor { touched, .. }) => {
                let sql = "SELECT touched, sid, head_idx FROM sequences WHERE qid = ?1 AND touched > ?2
                           ORDER BY touched, sid LIMIT ?3";
                self.places(sql, [self.qid, touched, rest], &mut places)?;
            }
            None => {
                let sql = "SELECT touched, sid, head_idx FROM sequences WHERE qid = ?1
                           ORDER BY touched, sid LIMIT ?2";
                self.places(sql, [self.qid, rest], &mut places)?;
            }
        }
        let more = places.len() > limit;
        places.truncate(limit);
        let next = places.last().filter(|_| more).map(|(cursor, _)| cursor.text());
        Ok(HeadsPage { heads: self.letters_at(&places)?, next })
    }

    fn places<const N: usize>(
        &self,
        sql: &str,
        parameters: [i64; N],
        places: &mut Vec<(Cursor, i64)>,
    ) -> Work<()> {
        let mut select = self.connection.prepare_cached(sql)?;
        let mut rows = select.query(rusqlite::params_from_iter(parameters))?;
        while let Some(row) = rows.next()? {
            places.push((Cursor { touched: row.get(0)?, sid: row.get(1)? }, row.get(2)?));
        }
        Ok(())
    }

    fn letters_at(&self, places: &[(Cursor, i64)]) -> Work<Vec<Letter>> {
        let mut select = self.connection.prepare_cached(select_letter!("WHERE sid = ?1 AND idx = ?2"))?;
        let mut letters = Vec::with_capacity(places.len());
        for (Cursor { sid, .. }, index) in places {
            let letter =
                first(select.query([sid, index])?, |row| read_whole(self.connection, row, self.name))?;
            let missing = || Fault::Corrupt(format!("the head of sequence {sid} is missing"));
            letters.push(letter.ok_or_else(missing)?);
        }
        Ok(letters)
    }
}

/// A cursor in the list of heads: the touch time of the last one returned, and the number of its sequence.
#[derive(Clone, Copy)]
pub(crate) struct Cursor {
    touched: i64,
    sid: i64,
}

impl Cursor {
    fn text(self) -> String {
        format!("{}/{}", self.touched, self.sid)
    }

    pub(crate) fn parse(text: &str) -> Result<Self, StoreError> {
        let parts = text
            .split_once('/')
            .and_then(|(touched, sid)| Some(Self { touched: touched.parse().ok()?, sid: sid.parse().ok()? }));
        parts.ok_or_else(|| {
            let context = format!("invalid cursor {text:?}");
            StoreError::not_done(ErrorKind::Invalid, "heads", context)
        })
    }
}
