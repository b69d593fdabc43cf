//! Searches and counts letters.
//!
//! A search scans rows from the newest to the oldest, along the most selective index (see [`compile`]). An SQL condition on each
//! row decides the match; where it cannot, the letter is read and matched. A call reads a bounded
//! number of rows and bytes (I7).

mod compile;
mod groups;

use bytes::Bytes;
use jiff::Timestamp;
use lazaret_core::letter::Edit;
use lazaret_core::query::Query;
use lazaret_core::store::{ErrorKind, LettersPage, Matches, StoreError};
use lazaret_core::{Letter, QueueName};
use rusqlite::{Connection, Statement, params_from_iter};

use super::{edits, first};
use crate::error::{Fault, Work};
use crate::operations::{CandidateRow, Candidates};
use crate::readers::View;
use crate::rows::{byte_size, read_letter, select_letter, state, time, unsigned};
use compile::{Condition, Part, Sql};

/// Maximum number of letters of a page.
const PAGE_LIMIT: usize = 1000;

/// The bounds of a call.
#[derive(Clone, Copy, Debug)]
struct Bounds {
    rows: u64,
    /// Bytes of letters and their messages.
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

/// The letters that match for a plan, from below this row on, and the last row read if more may follow.
pub(crate) fn candidates(view: &View<'_>, query: &Query, before: i64) -> Work<(Candidates, Option<i64>)> {
    let search = Search::new(view.connection, view.now, query)?.checked_by(view);
    let mut found = Candidates::default();
    let scan = search.run(before, FIND, |letter| letter.candidate().map(|letter| found.add(letter)))?;
    found.read = scan.read as u64;
    Ok((found, scan.end))
}

/// Those of these rows that match now.
pub(crate) fn candidates_among(
    connection: &Connection,
    now: i64,
    query: &Query,
    rows: &[i64],
) -> Work<Candidates> {
    let search = Search::new(connection, now, query)?;
    let mut found = Candidates::default();
    search.examine(rows, |letter| letter.candidate().map(|letter| found.add(letter)))?;
    Ok(found)
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
    let search = Search::new(view.connection, view.now, query)?.checked_by(view);
    let mut letters = Vec::new();
    let scan = search.run(before, bounds, |letter| {
        letters.push(letter.whole()?);
        Ok(letters.len() < limit)
    })?;
    Ok(LettersPage { letters, next: scan.end.map(|lid| lid.to_string()) })
}

fn count_within(view: &View<'_>, query: &Query, bounds: Bounds) -> Work<Matches> {
    let search = Search::new(view.connection, view.now, query)?.checked_by(view);
    if let Some(letters) = search.counted()? {
        return Ok(Matches { letters, exact: true });
    }
    let mut letters = 0;
    let scan = search.run(i64::MAX, bounds, |_| {
        letters += 1;
        Ok(true)
    })?;
    Ok(Matches { letters, exact: scan.end.is_none() })
}

/// A cursor is the number of the last row that was read.
fn parse_cursor(text: &str) -> Work<i64> {
    let canonical = text.parse().ok().filter(|lid: &i64| *lid > 0 && lid.to_string() == text);
    canonical.ok_or_else(|| {
        let context = format!("invalid cursor {text:?}");
        Fault::Refused(StoreError::not_done(ErrorKind::Invalid, "find", context))
    })
}

/// The end of a scan.
#[derive(Default)]
struct Scan {
    /// The last row read, if more may follow.
    end: Option<i64>,
    /// Size of the letters that were read to match them, in bytes.
    read: usize,
}

/// A query in execution.
struct Search<'a> {
    connection: &'a Connection,
    query: &'a Query,
    queues: Vec<(i64, QueueName)>,
    now: Timestamp,
    /// Tells when to stop; `None` on the writer.
    view: Option<&'a View<'a>>,
}

impl<'a> Search<'a> {
    fn new(connection: &'a Connection, now: i64, query: &'a Query) -> Work<Self> {
        let mut select = connection.prepare_cached("SELECT qid, name FROM queues ORDER BY qid")?;
        let rows =
            select.query_map([], |row| Ok((row.get(0)?, QueueName::from(row.get::<_, String>(1)?))))?;
        let queues = rows.collect::<rusqlite::Result<_>>()?;
        Ok(Self { connection, query, queues, now: time(now), view: None })
    }

    /// Ends the search when the query of this view has to end.
    fn checked_by(mut self, view: &'a View<'a>) -> Self {
        self.view = Some(view);
        self
    }

    fn check(&self) -> Work<()> {
        self.view.map_or(Ok(()), View::check)
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

    /// The matcher for single rows; `None` if no letter can match.
    fn matcher(&self) -> Work<Option<Matcher<'_>>> {
        let condition = Condition::of(self.query, &self.queues, self.now);
        let check = match condition.part {
            Part::Never => return Ok(None),
            Part::Always => None,
            Part::Sometimes(sql) => Some(Check::new(self.connection, sql)?),
        };
        Ok(Some(Matcher {
            check,
            reader: Reader { search: self, exact: condition.exact, bytes: 0, read: 0 },
        }))
    }

    /// Calls the visitor with each letter that matches, from below this row on, until it stops or a bound is reached.
    fn run(
        &self,
        before: i64,
        bounds: Bounds,
        mut visit: impl FnMut(Found<'_, '_>) -> Work<bool>,
    ) -> Work<Scan> {
        let arms = compile::walk(self.query, &self.queues, self.connection)?;
        let Some(mut matcher) = self.matcher()?.filter(|_| !arms.is_empty()) else {
            return Ok(Scan::default());
        };
        let Sql { text, parameters } = in_order(arms, before);
        let mut select = self.connection.prepare(&text)?;
        let mut rows = select.query(params_from_iter(parameters))?;
        let mut looked_at = 0;
        while let Some(row) = rows.next()? {
            self.check()?;
            let lid = row.get(0)?;
            looked_at += 1;
            let continues = matcher.show(lid, row.get(1)?, &mut visit)?;
            if !continues || looked_at >= bounds.rows || matcher.reader.bytes >= bounds.bytes {
                // Without remaining rows there is no next page.
                let end = rows.next()?.map(|_| lid);
                return Ok(Scan { end, read: matcher.reader.read });
            }
        }
        Ok(Scan { end: None, read: matcher.reader.read })
    }

    /// Calls the visitor with each of these rows that matches.
    fn examine(&self, rows: &[i64], mut visit: impl FnMut(Found<'_, '_>) -> Work<bool>) -> Work<()> {
        let Some(mut matcher) = self.matcher()? else { return Ok(()) };
        let mut select = self.connection.prepare_cached("SELECT qid FROM letters WHERE lid = ?1")?;
        for lid in rows {
            let qid = select.query_row([lid], |row| row.get(0))?;
            matcher.show(*lid, qid, &mut visit)?;
        }
        Ok(())
    }
}

/// Matches rows.
struct Matcher<'a> {
    /// `None` if every row can match.
    check: Option<Check<'a>>,
    reader: Reader<'a>,
}

impl Matcher<'_> {
    /// Calls the visitor with a letter if it matches, and returns `true` to continue.
    fn show(
        &mut self,
        lid: i64,
        qid: i64,
        visit: &mut impl FnMut(Found<'_, '_>) -> Work<bool>,
    ) -> Work<bool> {
        let fits = self.check.as_mut().map_or(Ok(true), |check| check.holds(lid))?;
        if fits { self.reader.show(lid, qid, visit) } else { Ok(true) }
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
    /// The bytes of letters read so far.
    bytes: usize,
    /// The bytes of those that were read to match them.
    read: usize,
}

impl<'a> Reader<'a> {
    fn show(
        &mut self,
        lid: i64,
        qid: i64,
        visit: &mut impl FnMut(Found<'_, 'a>) -> Work<bool>,
    ) -> Work<bool> {
        let query = self.search.query;
        let mut read = None;
        if !self.exact {
            // Most letters that are read do not match: the parts that the query does not use are not loaded.
            let before = self.bytes;
            let letter = if query.needs_payload() { self.message(lid, qid)? } else { self.light(lid, qid)? };
            self.read = self.read.saturating_add(self.bytes - before);
            if !query.matches(&letter, self.search.now) {
                return Ok(true);
            }
            read = Some(letter).filter(|_| query.needs_payload());
        }
        visit(Found { reader: self, lid, qid, read })
    }

    /// A letter without its edits.
    fn message(&mut self, lid: i64, qid: i64) -> Work<Letter> {
        self.load(select_letter!("WHERE lid = ?1"), lid, qid)
    }

    /// A letter without key, headers, payload and edits.
    fn light(&mut self, lid: i64, qid: i64) -> Work<Letter> {
        self.load(select_letter!(light "WHERE lid = ?1"), lid, qid)
    }

    fn load(&mut self, sql: &str, lid: i64, qid: i64) -> Work<Letter> {
        let queue = self.search.queue(qid)?;
        let mut select = self.search.connection.prepare_cached(sql)?;
        let letter = first(select.query([lid])?, |row| Ok((read_letter(row, queue)?, byte_size(row)?)))?;
        let missing = || Fault::Corrupt(format!("the letter in row {lid} is missing"));
        let (letter, bytes) = letter.ok_or_else(missing)?;
        self.bytes = self.bytes.saturating_add(bytes);
        Ok(letter)
    }

    fn edits(&mut self, lid: i64) -> Work<Vec<Edit>> {
        let mut select = self.search.connection.prepare_cached("SELECT edits FROM letters WHERE lid = ?1")?;
        let number = select.query_row([lid], |row| row.get(0))?;
        let edits = edits::read(self.search.connection, lid, number)?;
        let sizes = edits.iter().map(|edit| edit.original.as_ref().map_or(0, Bytes::len));
        self.bytes = self.bytes.saturating_add(sizes.sum());
        Ok(edits)
    }

    /// The letter for a plan. Its payload is not copied.
    fn candidate(&mut self, lid: i64) -> Work<CandidateRow> {
        let (letter, bytes) = CandidateRow::read(self.search.connection, lid)?;
        self.bytes = self.bytes.saturating_add(bytes);
        Ok(letter)
    }
}

/// A letter that matches, as far as it was read.
struct Found<'r, 'a> {
    reader: &'r mut Reader<'a>,
    lid: i64,
    qid: i64,
    read: Option<Letter>,
}

impl Found<'_, '_> {
    /// Reads the whole letter.
    fn whole(self) -> Work<Letter> {
        let Self { reader, lid, qid, read } = self;
        let mut letter = read.map_or_else(|| reader.message(lid, qid), Ok)?;
        letter.edits = reader.edits(lid)?;
        Ok(letter)
    }

    fn candidate(self) -> Work<CandidateRow> {
        self.reader.candidate(self.lid)
    }
}

#[cfg(test)]
mod tests;
