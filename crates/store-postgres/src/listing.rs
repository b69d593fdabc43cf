//! Reads of letters and queues.

use std::collections::HashMap;

use lazaret_core::letter::{Edit, Letter, LetterId, LetterState};
use lazaret_core::store::{Counts, ErrorKind, HeadsPage, Occupancy, OpenedPage, Result, StoreError};
use lazaret_core::{SequenceId, Timestamp};
use tokio_postgres::Row;
use uuid::Uuid;

use crate::error::Work;
use crate::groups::read_counts;
use crate::letter_row::{HeldLetter, select_letter};
use crate::sequence_row::sequence_key;
use crate::store::{PostgresStore, Queue, first};
use crate::values::{Columns, bound, letter_id, limit as rows_of, state, time, unsigned, untext};
use crate::views::{EDITS, read_edit};

pub(crate) const OPENED: &str = "SELECT q.revision, s.name, s.revision FROM queues q LEFT JOIN LATERAL (
        SELECT name, revision FROM sequences WHERE qid = q.qid AND revision > $2 ORDER BY revision LIMIT $3) s ON true
    WHERE q.qid = $1 ORDER BY s.revision";
pub(crate) const LOOKUP: &str = "SELECT id, state FROM letters WHERE id = ANY($1) AND qid + 0 = $2";
pub(crate) const NEXT_DUE: &str =
    "SELECT free_at FROM sequences WHERE qid = $1 AND free_at IS NOT NULL ORDER BY free_at LIMIT 1";
const GET: &str =
    select_letter!("FROM letters l JOIN payloads p ON p.lid = l.lid WHERE l.id = $1 AND l.qid = $2");
const SEQUENCE: &str = select_letter!(
    "FROM sequences s JOIN letters l ON l.sid = s.sid JOIN payloads p ON p.lid = l.lid
     WHERE s.qid = $1 AND s.hash = $2 AND l.idx >= $3 ORDER BY l.idx LIMIT $4"
);
const SIZE: &str = "SELECT count FROM sequences WHERE qid = $1 AND hash = $2";
pub(crate) const HEADS: &str = select_letter!(
    ", s.touched, s.sid FROM (SELECT sid, touched, head_idx FROM sequences WHERE qid = $1 AND (touched, sid) > ($2, $3)
         ORDER BY touched, sid LIMIT $4) s
     JOIN letters l ON l.sid = s.sid AND l.idx = s.head_idx JOIN payloads p ON p.lid = l.lid ORDER BY s.touched, s.sid"
);
const COUNTS: &str = "SELECT coalesce(sum(sequences), 0)::bigint, coalesce(sum(retrying), 0)::bigint,
    coalesce(sum(dead), 0)::bigint, coalesce(sum(parked), 0)::bigint, coalesce(sum(quarantined), 0)::bigint,
    coalesce(sum(waiting), 0)::bigint, coalesce(sum(resolved), 0)::bigint, coalesce(sum(evicted), 0)::bigint,
    coalesce(sum(skipped), 0)::bigint, coalesce(sum(expired), 0)::bigint FROM counts WHERE qid = $1";
/// The tables of the schema with their indexes.
const ROOM: &str = "SELECT coalesce(sum(pg_total_relation_size(c.oid)), 0)::bigint FROM pg_namespace n
    JOIN pg_class c ON c.relnamespace = n.oid AND c.relkind = 'r' WHERE n.nspname = $1";
/// The places of the columns behind those of a letter.
const TOUCHED: usize = 29;
const SID: usize = 30;

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

    pub(crate) fn parse(text: &str) -> Result<Self> {
        let parts = text
            .split_once('/')
            .and_then(|(touched, sid)| Some(Self { touched: touched.parse().ok()?, sid: sid.parse().ok()? }));
        parts.ok_or_else(|| {
            let context = format!("invalid cursor {text:?}");
            StoreError::not_done(ErrorKind::Invalid, "heads", context)
        })
    }
}

impl PostgresStore {
    pub(crate) async fn list_opened(&self, queue: &Queue, revision: u64, limit: usize) -> Result<OpenedPage> {
        const NAME: &str = "opened_since";
        let limit = limit.max(1);
        let wanted = rows_of(limit.saturating_add(1));
        let rows = self.ask(NAME, OPENED, &[&queue.qid, &bound(revision), &wanted]).await?;
        let read = || -> Work<OpenedPage> {
            let mut current = revision;
            let mut page = Vec::with_capacity(rows.len());
            for row in &rows {
                let mut c = Columns::of(row);
                current = current.max(c.unsigned()?);
                if let (Some(name), Some(opened)) = (c.get::<Option<String>>()?, c.get::<Option<i64>>()?) {
                    page.push((SequenceId::new(untext(name)), unsigned(opened)?));
                }
            }
            let more = page.len() > limit;
            page.truncate(limit);
            let last = page.last().filter(|_| more).map_or(current, |(_, opened)| *opened);
            let sequences = page.into_iter().map(|(name, _)| name).collect();
            Ok(OpenedPage { sequences, revision: last, more })
        };
        read().map_err(|fault| fault.into_error(NAME))
    }

    pub(crate) async fn states_of(
        &self,
        queue: &Queue,
        ids: &[LetterId],
    ) -> Result<Vec<Option<LetterState>>> {
        let keys: Vec<Uuid> = ids.iter().map(LetterId::as_uuid).collect();
        let rows = self.ask("lookup", LOOKUP, &[&keys, &queue.qid]).await?;
        let read = |row: &Row| -> Work<(LetterId, LetterState)> {
            Ok((letter_id(row.try_get(0)?)?, state(row.try_get(1)?)?))
        };
        let found: Work<HashMap<LetterId, LetterState>> = rows.iter().map(read).collect();
        let found = found.map_err(|fault| fault.into_error("lookup"))?;
        Ok(ids.iter().map(|id| found.get(id).copied()).collect())
    }

    pub(crate) async fn earliest_due(&self, queue: &Queue) -> Result<Option<Timestamp>> {
        let rows = self.ask("next_due", NEXT_DUE, &[&queue.qid]).await?;
        first(&rows, |row| Ok(time(row.try_get(0)?))).map_err(|fault| fault.into_error("next_due"))
    }

    /// The whole letters of an answer.
    pub(crate) async fn whole_letters(
        &self,
        operation: &'static str,
        queue: &Queue,
        rows: &[Row],
    ) -> Result<Vec<Letter>> {
        let read = |row: &Row| HeldLetter::read(row, &queue.name);
        let held: Work<Vec<HeldLetter>> = rows.iter().map(read).collect();
        let held = held.map_err(|fault| fault.into_error(operation))?;
        let edited: Vec<i64> = held.iter().filter(|held| held.edits > 0).map(|held| held.lid).collect();
        let mut edits: HashMap<i64, Vec<Edit>> = HashMap::new();
        if !edited.is_empty() {
            for row in self.ask(operation, EDITS, &[&edited]).await? {
                let (lid, edit) = read_edit(&row).map_err(|fault| fault.into_error(operation))?;
                edits.entry(lid).or_default().push(edit);
            }
        }
        let whole = held.into_iter().map(|held| {
            let edits = edits.remove(&held.lid).unwrap_or_default();
            Letter { edits, ..held.letter }
        });
        Ok(whole.collect())
    }

    pub(crate) async fn letter_by_id(&self, queue: &Queue, id: LetterId) -> Result<Option<Letter>> {
        let rows = self.ask("get", GET, &[&id.as_uuid(), &queue.qid]).await?;
        Ok(self.whole_letters("get", queue, &rows).await?.pop())
    }

    pub(crate) async fn letters_of(
        &self,
        queue: &Queue,
        sequence: &SequenceId,
        from: u64,
        limit: usize,
    ) -> Result<Vec<Letter>> {
        let key = sequence_key(sequence);
        let rows = self.ask("sequence", SEQUENCE, &[&queue.qid, &key, &bound(from), &rows_of(limit)]).await?;
        self.whole_letters("sequence", queue, &rows).await
    }

    pub(crate) async fn size_of(&self, queue: &Queue, sequence: &SequenceId) -> Result<u64> {
        let rows = self.ask("sequence_size", SIZE, &[&queue.qid, &sequence_key(sequence)]).await?;
        let size = first(&rows, |row| unsigned(row.try_get(0)?));
        Ok(size.map_err(|fault| fault.into_error("sequence_size"))?.unwrap_or_default())
    }

    pub(crate) async fn list_heads(
        &self,
        queue: &Queue,
        after: Option<Cursor>,
        limit: usize,
    ) -> Result<HeadsPage> {
        let limit = limit.max(1);
        let Cursor { touched, sid } = after.unwrap_or(Cursor { touched: i64::MIN, sid: i64::MIN });
        let wanted = rows_of(limit.saturating_add(1));
        let mut rows = self.ask("heads", HEADS, &[&queue.qid, &touched, &sid, &wanted]).await?;
        let more = rows.len() > limit;
        rows.truncate(limit);
        let cursor = |row: &Row| -> Work<Cursor> {
            Ok(Cursor { touched: row.try_get(TOUCHED)?, sid: row.try_get(SID)? })
        };
        let last = rows.last().filter(|_| more).map(cursor).transpose();
        let last = last.map_err(|fault| fault.into_error("heads"))?;
        let heads = self.whole_letters("heads", queue, &rows).await?;
        Ok(HeadsPage { heads, next: last.map(Cursor::text) })
    }

    /// The room that the tables take. What is free beside them, the server does not tell.
    pub(crate) async fn measure(&self) -> Result<Occupancy> {
        let rows = self.ask("occupancy", ROOM, &[&self.schema()]).await?;
        let used = first(&rows, |row| unsigned(row.try_get(0)?));
        let used = used.map_err(|fault| fault.into_error("occupancy"))?;
        Ok(Occupancy { used, ..Occupancy::default() })
    }

    pub(crate) async fn count_queue(&self, queue: &Queue) -> Result<Counts> {
        let rows = self.ask("counts", COUNTS, &[&queue.qid]).await?;
        let counts = first(&rows, |row| read_counts(&mut Columns::of(row)));
        Ok(counts.map_err(|fault| fault.into_error("counts"))?.unwrap_or_default())
    }
}
