//! Selects the letters of a plan on readers, which may take long: a query may have to read every payload.
//!
//! The [decision](super::freezing) checks that they are still the ones that were selected, by their revisions. The few that changed are
//! matched again.

use std::collections::BTreeSet;

use lazaret_core::QueueName;
use lazaret_core::letter::LetterId;
use lazaret_core::query::Query;
use lazaret_core::store::{ErrorKind, PayloadDigest, PlanRequest, Result, Selection, StoreError};
use rusqlite::{Connection, OptionalExtension, params};

use super::table;
use crate::error::Work;
use crate::letters::query;
use crate::readers::View;
use crate::rows::id_bytes;
use crate::store::SqliteStore;

/// Maximum size of the letters that are read to match the query of a plan, in bytes (I7). Letters that are decided by their columns
/// are not read.
const READ_LIMIT: u64 = 1 << 30;
/// Number of selected letters beyond the maximum of a plan, for those that are excluded because of others (I7).
const ROOM: u64 = 100_000;
pub(super) const FREEZE: &str = "freeze";
/// Number of ids that are looked up at a time.
const PAGE: usize = 200;

/// A letter as it was selected.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Candidate {
    pub(crate) lid: i64,
    pub(crate) revision: i64,
    pub(crate) digest: PayloadDigest,
}

/// A row of a letter that was selected.
pub(crate) enum CandidateRow {
    Open(Candidate),
    /// It is excluded.
    Closed,
}

impl CandidateRow {
    /// Reads the row, and returns its size.
    pub(crate) fn read(connection: &Connection, lid: i64) -> Work<(Self, usize)> {
        let mut select = connection.prepare_cached(
            "SELECT sid IS NULL, revision, payload FROM letters LEFT JOIN payloads USING (lid) WHERE lid = ?1",
        )?;
        let read = select.query_row([lid], |row| {
            if row.get(0)? {
                return Ok((Self::Closed, 0));
            }
            let size = row.get_ref(2)?.as_blob_or_null()?.map_or(0, <[u8]>::len);
            let digest = table::payload_of(row, 2)?;
            Ok((Self::Open(Candidate { lid, revision: row.get(1)?, digest }), size))
        });
        Ok(read?)
    }
}

/// Selected letters.
#[derive(Debug, Default)]
pub(crate) struct Candidates {
    pub(crate) open: Vec<Candidate>,
    /// Number of closed ones.
    pub(crate) closed: u64,
    /// Number of ids without a letter.
    pub(crate) missing: u64,
    /// Size of the letters that were read to match them, in bytes.
    pub(crate) read: u64,
}

impl Candidates {
    /// Adds a letter, and returns `true` to go on.
    pub(crate) fn add(&mut self, row: CandidateRow) -> bool {
        match row {
            CandidateRow::Open(candidate) => self.open.push(candidate),
            CandidateRow::Closed => self.closed += 1,
        }
        true
    }

    fn extend(&mut self, other: Self) {
        self.open.extend(other.open);
        self.closed += other.closed;
        self.missing += other.missing;
        self.read += other.read;
    }

    /// Replaces those in these rows, which have changed, by what they are now.
    fn replace(&mut self, changed: &[i64], now: Self) {
        let changed: BTreeSet<&i64> = changed.iter().collect();
        self.open.retain(|candidate| !changed.contains(&candidate.lid));
        self.extend(now);
    }

    fn check(&self, request: &PlanRequest, read_limit: u64) -> Result<()> {
        let refuse = |context| Err(StoreError::not_done(ErrorKind::Invalid, "freeze", context));
        if self.open.len() as u64 > request.max_letters.saturating_add(ROOM) {
            let most = request.max_letters;
            return refuse(format!(
                "the plan has more than {} letters, the limit is {most}",
                self.open.len() - 1
            ));
        }
        if self.read > read_limit {
            let mebibytes = read_limit >> 20;
            return refuse(format!(
                "the query has to read more than {mebibytes} MiB of letters; restrict it by group, reason, type, state or time"
            ));
        }
        Ok(())
    }
}

impl SqliteStore {
    /// Selects the letters of a plan, on readers, in bounded pages.
    pub(super) async fn select(&self, request: &PlanRequest) -> Result<Candidates> {
        match &request.selection {
            Selection::Query(query) => self.select_matching(request, query, READ_LIMIT).await,
            Selection::Letters(letters) => {
                let letters: BTreeSet<&(QueueName, LetterId)> = letters.iter().collect();
                let letters: Vec<_> = letters.into_iter().cloned().collect();
                let mut found = Candidates::default();
                for page in letters.chunks(PAGE) {
                    let page = page.to_vec();
                    found.extend(self.scan(FREEZE, move |view| by_id(view, &page)).await?);
                }
                Ok(found)
            }
        }
    }

    async fn select_matching(
        &self,
        request: &PlanRequest,
        query: &Query,
        read_limit: u64,
    ) -> Result<Candidates> {
        let mut found = Candidates::default();
        let mut before = Some(i64::MAX);
        while let Some(row) = before {
            let query = query.clone();
            let (page, next) = self.scan(FREEZE, move |view| query::candidates(view, &query, row)).await?;
            found.extend(page);
            found.check(request, read_limit)?;
            before = next;
        }
        Ok(found)
    }

    /// Selects letters again that have changed since they were selected.
    pub(super) async fn select_again(
        &self,
        request: &PlanRequest,
        mut selected: Candidates,
        changed: Vec<i64>,
    ) -> Result<Candidates> {
        for page in changed.chunks(PAGE) {
            let (selection, rows) = (request.selection.clone(), page.to_vec());
            let question = move |view: &View<'_>| among(view.connection, view.now, &selection, &rows);
            let now = self.scan(FREEZE, question).await?;
            selected.replace(page, now);
        }
        Ok(selected)
    }
}

/// Those of these rows that are selected now.
pub(super) fn among(
    connection: &Connection,
    now: i64,
    selection: &Selection,
    rows: &[i64],
) -> Work<Candidates> {
    match selection {
        Selection::Query(query) => query::candidates_among(connection, now, query, rows),
        Selection::Letters(_) => {
            let mut found = Candidates::default();
            for lid in rows {
                found.add(CandidateRow::read(connection, *lid)?.0);
            }
            Ok(found)
        }
    }
}

fn by_id(view: &View<'_>, letters: &[(QueueName, LetterId)]) -> Work<Candidates> {
    let mut select = view.connection.prepare_cached(
        "SELECT lid FROM letters WHERE id = ?1 AND qid = (SELECT qid FROM queues WHERE name = ?2)",
    )?;
    let mut found = Candidates::default();
    for (queue, id) in letters {
        view.check()?;
        let lid = select.query_row(params![id_bytes(*id), queue.as_str()], |row| row.get(0)).optional()?;
        match lid {
            Some(lid) => _ = found.add(CandidateRow::read(view.connection, lid)?.0),
            None => found.missing += 1,
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests;
