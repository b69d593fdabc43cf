//! Finding and counting letters with a query.
//!
//! The rows are walked over from the newest to the oldest, along the index that leads to the fewest (see
//! [`compile`]). For each row SQLite says whether it can match; where that is not certain, the letter is read and asked.
//! A call looks at a bounded number of rows and bytes (I7).

mod compile;

use jiff::Timestamp;
use lazaret_core::query::Query;
use lazaret_core::store::{ErrorKind, LettersPage, Matches, StoreError};
use lazaret_core::{Letter, QueueName};
use rusqlite::{Connection, Row, params_from_iter};

use super::first;
use crate::error::{Fault, Work};
use crate::readers::View;
use crate::rows::{read_letter, select_letter, state, time, unsigned};
use compile::{Condition, Part, Sql, Walk};

/// How many letters a page holds at most.
const PAGE_LIMIT: usize = 1000;

/// How much a call may look at.
#[derive(Clone, Copy, Debug)]
struct Bounds {
    rows: u64,
    /// Bytes of keys, headers and payloads.
    bytes: usize,
}

const FIND: Bounds = Bounds { rows: 10_000, bytes: 64 << 20 };
const COUNT: Bounds = Bounds { rows: 100_000, bytes: 256 << 20 };

/// The letters that match, the latest taken in first.
pub(crate) fn find(view: &View<'_>, query: &Query, after: Option<&str>, limit: usize) -> Work<LettersPage> {
    find_within(view, query, after, limit, FIND)
}

/// How many letters match.
pub(crate) fn count(view: &View<'_>, query: &Query) -> Work<Matches> {
    count_within(view, query, COUNT)
}

fn find_within(
    view: &View<'_>,
    query: &Query,
    after: Option<&str>,
    limit: usize,
    bounds: Bounds,
) -> Work<LettersPage> {
    let before = after.map_or(Ok(i64::MAX), parse_cursor)?;
    let limit = limit.clamp(1, PAGE_LIMIT);
    let search = Search::new(view, query)?;
    let mut letters = Vec::new();
    let end = search.run(before, bounds, |whole| {
        letters.extend(whole()?);
        Ok(letters.len() < limit)
    })?;
    Ok(LettersPage { letters, next: end.map(|lid| lid.to_string()) })
}

fn count_within(view: &View<'_>, query: &Query, bounds: Bounds) -> Work<Matches> {
    let search = Search::new(view, query)?;
    if let Some(letters) = search.counted()? {
        return Ok(Matches { letters, exact: true });
    }
    let mut letters = 0;
    let end = search.run(i64::MAX, bounds, |_| {
        letters += 1;
        Ok(true)
    })?;
    Ok(Matches { letters, exact: end.is_none() })
}

/// A cursor is the number of the last row that was looked at.
fn parse_cursor(text: &str) -> Work<i64> {
    let canonical = text.parse().ok().filter(|lid: &i64| *lid > 0 && lid.to_string() == text);
    canonical.ok_or_else(|| {
        let context = format!("{text:?} is not a cursor of this store");
        Fault::Refused(StoreError::not_done(ErrorKind::Invalid, "find", context))
    })
}

/// Reads a whole letter that has been found to match; `None` when only its trace is left.
type Whole<'w> = &'w mut dyn FnMut() -> Work<Option<Letter>>;

/// A query on its way over the rows.
struct Search<'a> {
    connection: &'a Connection,
    query: &'a Query,
    queues: Vec<(i64, QueueName)>,
    now: Timestamp,
}

impl<'a> Search<'a> {
    fn new(view: &View<'a>, query: &'a Query) -> Work<Self> {
        let mut select = view.connection.prepare_cached("SELECT qid, name FROM queues ORDER BY qid")?;
        let rows =
            select.query_map([], |row| Ok((row.get(0)?, QueueName::from(row.get::<_, String>(1)?))))?;
        let queues = rows.collect::<rusqlite::Result<_>>()?;
        Ok(Self { connection: view.connection, query, queues, now: time(view.now) })
    }

    fn queue(&self, qid: i64) -> Work<&QueueName> {
        let place = self.queues.binary_search_by_key(&qid, |(qid, _)| *qid);
        place
            .map(|place| &self.queues[place].1)
            .map_err(|_| Fault::Corrupt(format!("there is no queue {qid}")))
    }

    /// How many letters match, if the counters of the queues can tell.
    fn counted(&self) -> Work<Option<u64>> {
        let mut select = self.connection.prepare_cached("SELECT qid, state, n FROM counts")?;
        let mut rows = select.query([])?;
        let mut letters = 0;
        while let Some(row) = rows.next()? {
            match self.query.matches_all_of(self.queue(row.get(0)?)?, state(row.get(1)?)?) {
                Some(true) => letters += unsigned(row.get(2)?)?,
                Some(false) => {}
                None => return Ok(None),
            }
        }
        Ok(Some(letters))
    }

    /// Shows each letter that matches, from below this row on, until the visitor has enough. The last row looked at, if
    /// there may be more behind it.
    fn run(
        &self,
        before: i64,
        bounds: Bounds,
        mut visit: impl FnMut(Whole<'_>) -> Work<bool>,
    ) -> Work<Option<i64>> {
        let condition = Condition::of(self.query, &self.queues, self.now);
        let fits = match condition.part {
            Part::Never => return Ok(None),
            Part::Always => Sql { text: "1".into(), parameters: Vec::new() },
            Part::Sometimes(sql) => sql,
        };
        let walk = Walk::of(self.query, &self.queues, self.connection)?;
        if walk.is_nowhere() {
            return Ok(None);
        }
        let way = walk.sql();
        let sql =
            format!("SELECT lid, qid, {} FROM letters {} AND lid < ? ORDER BY lid DESC", fits.text, way.text);
        let mut select = self.connection.prepare(&sql)?;
        let parameters = fits.parameters.into_iter().chain(way.parameters).chain([before.into()]);
        let mut rows = select.query(params_from_iter(parameters))?;
        let mut reader = Reader { search: self, exact: condition.exact, bytes: 0 };
        let mut looked_at = 0;
        while let Some(row) = rows.next()? {
            let lid = row.get(0)?;
            looked_at += 1;
            let goes_on = !row.get::<_, bool>(2)? || reader.show(lid, row.get(1)?, &mut visit)?;
            if !goes_on || looked_at >= bounds.rows || reader.bytes >= bounds.bytes {
                // If nothing is left, nobody has to ask for it.
                return Ok(rows.next()?.map(|_| lid));
            }
        }
        Ok(None)
    }
}

/// Reads letters and decides where the rows could not.
struct Reader<'a> {
    search: &'a Search<'a>,
    /// Whether every row that fits is a match.
    exact: bool,
    /// The bytes of messages read so far.
    bytes: usize,
}

impl Reader<'_> {
    /// Shows a letter to the visitor if it matches, and says whether to go on.
    fn show(&mut self, lid: i64, qid: i64, visit: &mut impl FnMut(Whole<'_>) -> Work<bool>) -> Work<bool> {
        let search = self.search;
        let matches = |letter: &Letter| search.query.matches(letter, search.now);
        let mut read = None;
        if !self.exact {
            // Most letters that are asked do not match: what the query does not look at is left where it is.
            let letter =
                if search.query.needs_payload() { self.whole(lid, qid)? } else { light(search, lid, qid)? };
            if !letter.as_ref().is_some_and(matches) {
                return Ok(true);
            }
            read = letter.filter(|_| search.query.needs_payload());
        }
        let mut whole = || match read.take() {
            Some(letter) => Ok(Some(letter)),
            None => self.whole(lid, qid),
        };
        visit(&mut whole)
    }

    fn whole(&mut self, lid: i64, qid: i64) -> Work<Option<Letter>> {
        let queue = self.search.queue(qid)?;
        let mut select = self.search.connection.prepare_cached(select_letter!("WHERE lid = ?1"))?;
        let letter = first(select.query([lid])?, |row: &Row<'_>| read_letter(row, queue))?;
        let size = |letter: &Letter| {
            let message = &letter.message;
            let bytes = |bytes: &Option<bytes::Bytes>| bytes.as_ref().map_or(0, bytes::Bytes::len);
            message.headers.byte_size() + bytes(&message.key) + bytes(&message.payload)
        };
        self.bytes += letter.as_ref().map_or(0, size);
        Ok(letter)
    }
}

/// A letter without key, headers and payload.
fn light(search: &Search<'_>, lid: i64, qid: i64) -> Work<Option<Letter>> {
    let queue = search.queue(qid)?;
    let mut select = search.connection.prepare_cached(select_letter!(light "WHERE lid = ?1"))?;
    first(select.query([lid])?, |row| read_letter(row, queue))
}

#[cfg(test)]
mod tests;
