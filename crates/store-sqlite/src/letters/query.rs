//! Searches and counts letters.
//!
//! A search scans rows from the newest to the oldest, along the most selective index (see [`compile`]). An SQL condition on each
//! row decides the match; where it cannot, the letter is read and matched. A call reads a bounded
//! number of rows and bytes (I7).

mod compile;

use bytes::Bytes;
use jiff::Timestamp;
use lazaret_core::query::Query;
use lazaret_core::store::{ErrorKind, LettersPage, Matches, StoreError};
use lazaret_core::{Letter, QueueName};
use rusqlite::{Connection, Statement, params_from_iter};

use super::first;
use crate::error::{Fault, Work};
use crate::readers::View;
use crate::rows::{read_letter, select_letter, state, time, unsigned};
use compile::{Condition, Part, Sql};

/// Maximum number of letters of a page.
const PAGE_LIMIT: usize = 1000;

/// The bounds of a call.
#[derive(Clone, Copy, Debug)]
struct Bounds {
    rows: u64,
    /// Bytes of keys, headers and payloads.
    bytes: usize,
}

const FIND: Bounds = Bounds { rows: 10_000, bytes: 64 << 20 };
const COUNT: Bounds = Bounds { rows: 8_000, bytes: 64 << 20 };

/// The letters that match, the latest enqueued first.
pub(crate) fn find(view: &View<'_>, query: &Query, after: Option<&str>, limit: usize) -> Work<LettersPage> {
    find_within(view, query, after, limit, FIND)
}

/// The number of letters that match.
pub(crate) fn count(view: &View<'_>, query: &Query) -> Work<Matches> {
    count_within(view, query, COUNT)
}

/// Calls the visitor with the row of every letter that matches, without bounds.
pub(crate) fn each_row(
    connection: &Connection,
    now: i64,
    query: &Query,
    mut visit: impl FnMut(i64) -> Work<()>,
) -> Work<()> {
    let search = Search::new(connection, now, query)?;
    let all = Bounds { rows: u64::MAX, bytes: usize::MAX };
    search.run(i64::MAX, all, |lid, _| visit(lid).map(|()| true)).map(drop)
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
    let search = Search::new(view.connection, view.now, query)?;
    let mut letters = Vec::new();
    let end = search.run(before, bounds, |_, whole| {
        letters.push(whole()?);
        Ok(letters.len() < limit)
    })?;
    Ok(LettersPage { letters, next: end.map(|lid| lid.to_string()) })
}

fn count_within(view: &View<'_>, query: &Query, bounds: Bounds) -> Work<Matches> {
    let search = Search::new(view.connection, view.now, query)?;
    if let Some(letters) = search.counted()? {
        return Ok(Matches { letters, exact: true });
    }
    let mut letters = 0;
    let end = search.run(i64::MAX, bounds, |_, _| {
        letters += 1;
        Ok(true)
    })?;
    Ok(Matches { letters, exact: end.is_none() })
}

/// A cursor is the number of the last row that was read.
fn parse_cursor(text: &str) -> Work<i64> {
    let canonical = text.parse().ok().filter(|lid: &i64| *lid > 0 && lid.to_string() == text);
    canonical.ok_or_else(|| {
        let context = format!("invalid cursor {text:?}");
        Fault::Refused(StoreError::not_done(ErrorKind::Invalid, "find", context))
    })
}

/// Reads the whole of a letter that matches.
type Whole<'w> = &'w mut dyn FnMut() -> Work<Letter>;

/// A query in execution.
struct Search<'a> {
    connection: &'a Connection,
    query: &'a Query,
    queues: Vec<(i64, QueueName)>,
    now: Timestamp,
}

impl<'a> Search<'a> {
    fn new(connection: &'a Connection, now: i64, query: &'a Query) -> Work<Self> {
        let mut select = connection.prepare_cached("SELECT qid, name FROM queues ORDER BY qid")?;
        let rows =
            select.query_map([], |row| Ok((row.get(0)?, QueueName::from(row.get::<_, String>(1)?))))?;
        let queues = rows.collect::<rusqlite::Result<_>>()?;
        Ok(Self { connection, query, queues, now: time(now) })
    }

    fn queue(&self, qid: i64) -> Work<&QueueName> {
        let place = self.queues.binary_search_by_key(&qid, |(qid, _)| *qid);
        place.map(|place| &self.queues[place].1).map_err(|_| Fault::Corrupt(format!("queue {qid} not found")))
    }

    /// The number of letters that match, if the counters of the queues suffice.
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

    /// Calls the visitor with each letter that matches, from below this row on, until it stops. Returns the last row read, if
    /// more may follow.
    fn run(
        &self,
        before: i64,
        bounds: Bounds,
        mut visit: impl FnMut(i64, Whole<'_>) -> Work<bool>,
    ) -> Work<Option<i64>> {
        let condition = Condition::of(self.query, &self.queues, self.now);
        let arms = compile::walk(self.query, &self.queues, self.connection)?;
        if matches!(condition.part, Part::Never) || arms.is_empty() {
            return Ok(None);
        }
        let mut check = match condition.part {
            Part::Sometimes(sql) => Some(Check::new(self.connection, sql)?),
            _ => None,
        };
        let Sql { text, parameters } = in_order(arms, before);
        let mut select = self.connection.prepare(&text)?;
        let mut rows = select.query(params_from_iter(parameters))?;
        let mut reader = Reader { search: self, exact: condition.exact, bytes: 0 };
        let mut looked_at = 0;
        while let Some(row) = rows.next()? {
            let lid = row.get(0)?;
            looked_at += 1;
            let fits = check.as_mut().map_or(Ok(true), |check| check.holds(lid))?;
            let continues = !fits || reader.show(lid, row.get(1)?, &mut visit)?;
            if !continues || looked_at >= bounds.rows || reader.bytes >= bounds.bytes {
                // Without remaining rows there is no next page.
                return Ok(rows.next()?.map(|_| lid));
            }
        }
        Ok(None)
    }
}

/// The rows of all arms below this one, newest first. Arms whose index has that order are merged, not sorted.
fn in_order(arms: Vec<Sql>, before: i64) -> Sql {
    let text: Vec<String> =
        arms.iter().map(|arm| format!("SELECT lid, qid FROM letters {} AND lid < ?", arm.text)).collect();
    let parameters = arms.into_iter().flat_map(|arm| arm.parameters.into_iter().chain([before.into()]));
    Sql { text: text.join(" UNION ALL ") + " ORDER BY lid DESC", parameters: parameters.collect() }
}

/// Decides by its columns whether a row can match.
struct Check<'a> {
    select: Statement<'a>,
    parameters: usize,
}

impl<'a> Check<'a> {
    fn new(connection: &'a Connection, condition: Sql) -> Work<Self> {
        let sql = format!("SELECT {} FROM letters WHERE lid = ?", condition.text);
        let mut select = connection.prepare(&sql)?;
        let parameters = condition.parameters.len();
        for (place, value) in (1..).zip(condition.parameters) {
            select.raw_bind_parameter(place, value)?;
        }
        Ok(Self { select, parameters })
    }

    fn holds(&mut self, lid: i64) -> Work<bool> {
        self.select.raw_bind_parameter(self.parameters + 1, lid)?;
        let mut rows = self.select.raw_query();
        Ok(rows.next()?.map_or(Ok(false), |row| row.get(0))?)
    }
}

/// Reads letters and matches those that the columns could not decide.
struct Reader<'a> {
    search: &'a Search<'a>,
    /// `true` if every row that meets the condition is a match.
    exact: bool,
    /// The bytes of messages read so far.
    bytes: usize,
}

impl Reader<'_> {
    /// Calls the visitor with a letter if it matches, and returns `true` to continue.
    fn show(
        &mut self,
        lid: i64,
        qid: i64,
        visit: &mut impl FnMut(i64, Whole<'_>) -> Work<bool>,
    ) -> Work<bool> {
        let query = self.search.query;
        let mut read = None;
        if !self.exact {
            // Most letters that are read do not match: the parts that the query does not use are not loaded.
            let letter = if query.needs_payload() { self.whole(lid, qid)? } else { self.light(lid, qid)? };
            if !query.matches(&letter, self.search.now) {
                return Ok(true);
            }
            read = Some(letter).filter(|_| query.needs_payload());
        }
        let mut whole = || match read.take() {
            Some(letter) => Ok(letter),
            None => self.whole(lid, qid),
        };
        visit(lid, &mut whole)
    }

    fn whole(&mut self, lid: i64, qid: i64) -> Work<Letter> {
        let letter = self.read(select_letter!("WHERE lid = ?1"), lid, qid)?;
        let message = &letter.message;
        let size = |bytes: &Option<Bytes>| bytes.as_ref().map_or(0, Bytes::len);
        self.bytes += message.headers.byte_size() + size(&message.key) + size(&message.payload);
        Ok(letter)
    }

    /// A letter without key, headers and payload.
    fn light(&self, lid: i64, qid: i64) -> Work<Letter> {
        self.read(select_letter!(light "WHERE lid = ?1"), lid, qid)
    }

    fn read(&self, sql: &str, lid: i64, qid: i64) -> Work<Letter> {
        let queue = self.search.queue(qid)?;
        let mut select = self.search.connection.prepare_cached(sql)?;
        let letter = first(select.query([lid])?, |row| read_letter(row, queue))?;
        letter.ok_or_else(|| Fault::Corrupt(format!("the letter in row {lid} is missing")))
    }
}

#[cfg(test)]
mod tests;
