//! Searches and counts letters.
//!
//! A search scans rows from the newest to the oldest, along the most selective index (see [`walk`](mod@walk)). An SQL condition on each row
//! decides the match; where it cannot, the letter is read and matched. A call reads a bounded number of rows and bytes (I7).

mod compile;
mod walk;

use jiff::Timestamp;
use lazaret_core::query::Query;
use lazaret_core::store::{ErrorKind, LettersPage, Matches, StoreError};
use lazaret_core::{Letter, QueueName};
use tokio_postgres::types::ToSql;

use crate::error::{Fault, Work};
use crate::groups::read_counts;
use crate::letter_row::{HeldLetter, select_letter};
use crate::store::Queue;
use crate::transaction::Transaction;
use crate::values::{Columns, limit as rows_of};
use compile::{Condition, Part, Sql};
use walk::{Arm, Groups, walk};

/// Maximum number of letters of a page.
const PAGE_LIMIT: usize = 1000;
/// Number of letters that are read at a time.
const CHUNK: usize = 64;

/// The bounds of a call.
#[derive(Clone, Copy, Debug)]
struct Bounds {
    rows: usize,
    /// Bytes of letters and their messages.
    bytes: usize,
}

const FIND: Bounds = Bounds { rows: 10_000, bytes: 64 << 20 };
const COUNT: Bounds = Bounds { rows: 8_000, bytes: 64 << 20 };

const QUEUES: &str = "SELECT qid, name FROM queues ORDER BY qid";
const GROUPS: &str =
    "SELECT qid, fingerprint FROM failure_groups UNION SELECT qid, fingerprint FROM group_notes";
const COUNTS: &str = "SELECT qid, sum(sequences)::bigint, sum(retrying)::bigint, sum(dead)::bigint, sum(parked)::bigint,
    sum(quarantined)::bigint, sum(waiting)::bigint, sum(resolved)::bigint, sum(evicted)::bigint, sum(skipped)::bigint,
    sum(expired)::bigint FROM counts GROUP BY qid";
const LETTERS: &str = select_letter!(
    "FROM letters l JOIN payloads p ON p.lid = l.lid WHERE l.lid = ANY($1) ORDER BY l.lid DESC"
);
const LIGHT: &str = select_letter!(light "FROM letters l WHERE l.lid = ANY($1) ORDER BY l.lid DESC");

/// A cursor is the number of the last row that was read.
fn parse_cursor(text: &str) -> Work<i64> {
    let canonical = text.parse().ok().filter(|lid: &i64| *lid > 0 && lid.to_string() == text);
    canonical.ok_or_else(|| {
        let context = format!("invalid cursor {text:?}");
        Fault::Refused(StoreError::not_done(ErrorKind::Invalid, "find", context))
    })
}

/// A query in execution.
pub(crate) struct Search<'q> {
    query: &'q Query,
    queues: Vec<Queue>,
    now: Timestamp,
    arms: Vec<Arm>,
    condition: Condition,
}

/// The end of a scan.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Scan {
    /// The last row read, if more may follow.
    pub(crate) end: Option<i64>,
    /// Size of the letters that were read, in bytes.
    pub(crate) bytes: usize,
}

impl Search<'_> {
    pub(crate) fn queue(&self, qid: i64) -> Work<&QueueName> {
        let place = self.queues.binary_search_by_key(&qid, |queue| queue.qid);
        place
            .map(|place| &self.queues[place].name)
            .map_err(|_| Fault::Corrupt(format!("queue {qid} not found")))
    }

    /// The rows below this one, newest first, each with whether it can match.
    fn rows(&self, before: i64, rows: usize) -> Sql {
        let most = rows_of(rows);
        let mut parameters = Vec::new();
        let mut arms = Vec::with_capacity(self.arms.len());
        for Sql { text, parameters: of_arm } in self.arms.iter().map(|arm| arm.page(before, most)) {
            arms.push(text);
            parameters.extend(of_arm);
        }
        let (condition, of_condition) = match &self.condition.part {
            Part::Always => ("true", Vec::new()),
            Part::Never => ("false", Vec::new()),
            Part::Sometimes(Sql { text, parameters }) => (text.as_str(), parameters.clone()),
        };
        // The scan comes first in the text, and its parameters with it.
        parameters.extend(of_condition);
        let arms = arms.join(" UNION ALL ");
        let text = format!(
            "WITH scan AS MATERIALIZED (SELECT lid FROM ({arms}) a ORDER BY lid DESC LIMIT {most})
             SELECT l.lid, {condition} FROM scan JOIN letters l ON l.lid = scan.lid ORDER BY l.lid DESC"
        );
        Sql::new(text, parameters)
    }
}

impl Transaction<'_> {
    pub(crate) async fn search<'q>(&mut self, query: &'q Query) -> Work<Search<'q>> {
        self.read_clock().await?;
        let mut queues = Vec::new();
        for row in self.query(QUEUES, &[]).await? {
            let mut c = Columns::of(&row);
            queues.push(Queue { qid: c.get()?, name: QueueName::from(c.text()?) });
        }
        let groups = match Groups::of(query, &queues) {
            Groups::Known(groups) => groups,
            Groups::AmongAll => {
                let rows = self.query(GROUPS, &[]).await?;
                rows.iter().map(|row| Ok((row.try_get(0)?, row.try_get(1)?))).collect::<Work<_>>()?
            }
        };
        let condition = Condition::of(query, &queues, self.now());
        let arms = match condition.part {
            Part::Never => Vec::new(),
            _ => walk(query, &queues, &groups),
        };
        Ok(Search { query, now: self.now(), arms, condition, queues })
    }

    /// Visits the letters that match below this row, newest first: as many as `most`, or fewer if a bound is reached. `whole` ones are
    /// loaded with all they have, others only as far as they have to be matched.
    async fn scan(
        &self,
        search: &Search<'_>,
        before: i64,
        bounds: Bounds,
        (most, whole): (usize, bool),
        mut visit: impl FnMut(i64, Option<Letter>),
    ) -> Work<Scan> {
        if search.arms.is_empty() {
            return Ok(Scan::default());
        }
        let scanned = self.scan_rows(search, before, bounds.rows.saturating_add(1)).await?;
        let is_cut = scanned.len() > bounds.rows;
        let scanned = &scanned[..scanned.len().min(bounds.rows)];
        let last = scanned.last().map(|(lid, _)| *lid);
        let fitting: Vec<i64> = scanned.iter().filter(|(_, fits)| *fits).map(|(lid, _)| *lid).collect();
        // Without remaining rows there is no next page.
        let end_at = |lid: i64| Some(lid).filter(|_| is_cut || last.is_some_and(|last| last < lid));
        if search.condition.exact && !whole {
            fitting.iter().take(most).for_each(|lid| visit(*lid, None));
            let end = fitting.get(most.wrapping_sub(1)).and_then(|lid| end_at(*lid));
            return Ok(Scan { end: end.or(last.filter(|_| is_cut)), bytes: 0 });
        }
        let needs_payload = whole || search.query.needs_payload();
        let (mut bytes, mut found) = (0, 0);
        for chunk in fitting.chunks(CHUNK.min(most)) {
            for row in self.query(if needs_payload { LETTERS } else { LIGHT }, &[&chunk]).await? {
                let held = HeldLetter::read(&row, search.queue(row.try_get(1)?)?)?;
                let lid = held.lid;
                bytes += held.byte_size();
                if search.condition.exact || search.query.matches(&held.letter, search.now) {
                    let letter = if whole { Some(self.with_edits(held).await?) } else { None };
                    visit(lid, letter);
                    found += 1;
                }
                if found >= most || bytes >= bounds.bytes {
                    return Ok(Scan { end: end_at(lid), bytes });
                }
            }
        }
        Ok(Scan { end: last.filter(|_| is_cut), bytes })
    }

    /// The rows of a scan, newest first, each with whether it can match.
    async fn scan_rows(&self, search: &Search<'_>, before: i64, most: usize) -> Work<Vec<(i64, bool)>> {
        let sql = search.rows(before, most);
        let parameters: Vec<&(dyn ToSql + Sync)> =
            sql.parameters.iter().map(|value| &**value as &(dyn ToSql + Sync)).collect();
        let rows = self.query_once(&sql.numbered(), &parameters).await?;
        rows.iter().map(|row| Ok((row.try_get(0)?, row.try_get(1)?))).collect()
    }

    pub(crate) async fn find(
        &mut self,
        query: &Query,
        after: Option<&str>,
        limit: usize,
    ) -> Work<LettersPage> {
        let before = after.map_or(Ok(i64::MAX), parse_cursor)?;
        let search = self.search(query).await?;
        let mut letters = Vec::new();
        let most = limit.clamp(1, PAGE_LIMIT);
        let scan = self.scan(&search, before, FIND, (most, true), |_, letter| letters.extend(letter)).await?;
        Ok(LettersPage { letters, next: scan.end.map(|lid| lid.to_string()) })
    }

    pub(crate) async fn count_matches(&mut self, query: &Query) -> Work<Matches> {
        let search = self.search(query).await?;
        if let Some(letters) = self.counted(&search).await? {
            return Ok(Matches { letters, exact: true });
        }
        let mut letters = 0;
        let scan = self.scan(&search, i64::MAX, COUNT, (usize::MAX, false), |_, _| letters += 1).await?;
        Ok(Matches { letters, exact: scan.end.is_none() })
    }

    /// The number of letters that match, if the counters of the queues suffice.
    async fn counted(&self, search: &Search<'_>) -> Work<Option<u64>> {
        let mut letters = 0;
        for row in self.query(COUNTS, &[]).await? {
            let mut c = Columns::of(&row);
            let queue = search.queue(c.get()?)?;
            let counts = read_counts(&mut c)?;
            for state in lazaret_core::LetterState::ALL {
                match search.query.matches_all_of(queue, state) {
                    Some(true) => letters += counts.of(state),
                    Some(false) => {}
                    None => return Ok(None),
                }
            }
        }
        Ok(Some(letters))
    }

    /// The rows of letters that match for a plan, below this row: a page, and where to go on.
    pub(crate) async fn matching_rows(&self, search: &Search<'_>, before: i64) -> Work<(Vec<i64>, Scan)> {
        let mut rows = Vec::new();
        let scan = self.scan(search, before, FIND, (usize::MAX, false), |lid, _| rows.push(lid)).await?;
        Ok((rows, scan))
    }
}

#[cfg(test)]
impl Transaction<'_> {
    /// The plan of the scan of a query.
    pub(crate) async fn explain(&mut self, query: &Query) -> Work<String> {
        let search = self.search(query).await?;
        let sql = search.rows(i64::MAX, FIND.rows);
        let parameters: Vec<&(dyn ToSql + Sync)> =
            sql.parameters.iter().map(|value| &**value as &(dyn ToSql + Sync)).collect();
        let rows = self.query_once(&format!("EXPLAIN {}", sql.numbered()), &parameters).await?;
        let lines = rows.iter().map(|row| Ok(row.try_get(0)?)).collect::<Work<Vec<String>>>()?;
        Ok(lines.join("\n"))
    }
}
