//! The letters of a queue that ended, until they were announced.
//!
//! Ends are forgotten up to a number, so none may appear below one that was read. A call that ends letters of a watched queue therefore takes
//! its numbers from a row that it locks until its commit. Watching begins with the letters that have ended before: it keeps writers of letters out
//! meanwhile, so that each end is either found there or listed by its own call.

use std::collections::{BTreeMap, HashMap};

use lazaret_core::store::{End, EndsPage, Result};
use lazaret_core::{Letter, LetterId, LetterState};
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;
use uuid::Uuid;

use crate::error::Work;
use crate::letter_row::select_letter;
use crate::store::{PostgresStore, Queue, first};
use crate::transaction::{Transaction, transaction};
use crate::values::{Columns, bound, letter_id, limit as rows_of, small, state, state_number, unsigned};

/// Takes numbers for the ends of each watched queue, and lists them. `back` counts from the last one of the queue.
pub(crate) const LIST_ENDS: &str = "WITH numbered AS (UPDATE watched w SET last = w.last + u.ended
        FROM unnest($1::bigint[], $2::bigint[]) AS u (qid, ended) WHERE w.qid = u.qid AND w.active
        RETURNING w.qid, w.last)
    INSERT INTO ends (qid, number, letter, state, attempts)
    SELECT n.qid, n.last - e.back, e.letter, e.state, e.attempts
    FROM unnest($3::bigint[], $4::bigint[], $5::uuid[], $6::smallint[], $7::bigint[])
    AS e (qid, back, letter, state, attempts) JOIN numbered n ON n.qid = e.qid";
const IS_WATCHED: &str = "SELECT 1 FROM watched WHERE qid = $1 AND active";
const KEEP_WRITERS_OUT: &str = "LOCK TABLE letters IN SHARE MODE";
const WATCH: &str = "INSERT INTO watched AS w (qid, active, last) VALUES ($1, true, 0)
    ON CONFLICT (qid) DO UPDATE SET active = true WHERE NOT w.active RETURNING 1";
/// In the order in which they were enqueued, which is that of their rows.
const LIST_ENDED: &str = "WITH listed AS (INSERT INTO ends (qid, number, letter, state, attempts)
        SELECT l.qid, w.last + row_number() OVER (ORDER BY l.lid), l.id, l.state, l.attempts
        FROM letters l JOIN watched w ON w.qid = l.qid
        WHERE l.qid = $1 AND l.sid IS NOT NULL AND l.state = ANY($2) RETURNING 1)
    UPDATE watched SET last = last + (SELECT count(*) FROM listed) WHERE qid = $1";
const UNWATCH: &str = "UPDATE watched SET active = false WHERE qid = $1";
const FORGET_ALL: &str = "DELETE FROM ends WHERE qid = $1";
const FORGET: &str = "DELETE FROM ends WHERE qid = $1 AND number <= $2";
const PAGE: &str = "SELECT number, letter, state, attempts FROM ends WHERE qid = $1 AND number > $2
    ORDER BY number LIMIT $3";
const LEFT: &str = "SELECT count(*) FROM ends WHERE qid = $1 AND number > $2";
/// Without those that were purged.
const LETTERS: &str =
    select_letter!("FROM letters l JOIN payloads p ON p.lid = l.lid WHERE l.id = ANY($1) AND l.qid + 0 = $2");

/// A letter that ended in a call.
#[derive(Debug)]
pub(crate) struct NewEnd {
    pub(crate) qid: i64,
    pub(crate) id: LetterId,
    pub(crate) state: LetterState,
    pub(crate) attempts: u32,
}

/// The columns of ends, an array each, and how many each queue has.
#[derive(Default)]
pub(crate) struct EndArrays {
    queues: (Vec<i64>, Vec<i64>),
    qid: Vec<i64>,
    back: Vec<i64>,
    letter: Vec<Uuid>,
    state: Vec<i16>,
    attempts: Vec<i64>,
}

impl EndArrays {
    pub(crate) fn of(ends: Vec<NewEnd>) -> Self {
        let mut arrays = Self::default();
        let mut behind: BTreeMap<i64, i64> = BTreeMap::new();
        for end in ends.into_iter().rev() {
            let back = behind.entry(end.qid).or_default();
            arrays.qid.push(end.qid);
            arrays.back.push(*back);
            arrays.letter.push(end.id.as_uuid());
            arrays.state.push(state_number(end.state));
            arrays.attempts.push(end.attempts.into());
            *back += 1;
        }
        arrays.queues = behind.into_iter().unzip();
        arrays
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.qid.is_empty()
    }

    pub(crate) fn parameters(&self) -> Vec<&(dyn ToSql + Sync)> {
        let (queues, counts) = &self.queues;
        vec![queues, counts, &self.qid, &self.back, &self.letter, &self.state, &self.attempts]
    }
}

impl PostgresStore {
    pub(crate) async fn watch(&self, queue: &Queue) -> Result<()> {
        // Asked first: a mirror that starts again keeps nobody out.
        if self.ask("watch_ends", IS_WATCHED, &[&queue.qid]).await?.is_empty() {
            transaction!(self, "watch_ends", |tx| tx.watch(queue));
        }
        Ok(())
    }

    pub(crate) async fn unwatch(&self, queue: &Queue) -> Result<()> {
        transaction!(self, "unwatch_ends", |tx| tx.unwatch(queue));
        Ok(())
    }

    pub(crate) async fn forget(&self, queue: &Queue, up_to: u64) -> Result<()> {
        self.write_once("forget_ends", FORGET, &[&queue.qid, &bound(up_to)]).await
    }

    pub(crate) async fn page_of_ends(&self, queue: &Queue, after: u64, limit: usize) -> Result<EndsPage> {
        const NAME: &str = "ends";
        let rows = self.ask(NAME, PAGE, &[&queue.qid, &bound(after), &rows_of(limit)]).await?;
        let read: Work<Vec<End>> = rows.iter().map(read_end).collect();
        let mut ends = read.map_err(|fault| fault.into_error(NAME))?;
        let last = ends.last().map_or(after, |end| end.number);
        let left = self.ask(NAME, LEFT, &[&queue.qid, &bound(last)]).await?;
        let left = first(&left, |row| unsigned(row.try_get(0)?)).map_err(|fault| fault.into_error(NAME))?;
        let ids: Vec<Uuid> = ends.iter().map(|end| end.id.as_uuid()).collect();
        let rows = self.ask(NAME, LETTERS, &[&ids, &queue.qid]).await?;
        let letters = self.whole_letters(NAME, queue, &rows).await?;
        let letters: HashMap<LetterId, Letter> =
            letters.into_iter().map(|letter| (letter.id, letter)).collect();
        // A letter can end more than once.
        ends.iter_mut().for_each(|end| end.letter = letters.get(&end.id).cloned());
        Ok(EndsPage { ends, left: left.unwrap_or_default() })
    }
}

fn read_end(row: &Row) -> Work<End> {
    let mut c = Columns::of(row);
    let (number, id) = (c.unsigned()?, letter_id(c.get()?)?);
    Ok(End { number, id, state: state(c.get()?)?, attempts: small(c.get()?)?, letter: None })
}

impl Transaction<'_> {
    async fn watch(&self, queue: &Queue) -> Work<()> {
        self.query(KEEP_WRITERS_OUT, &[]).await?;
        // Unless another process was faster.
        if !self.query(WATCH, &[&queue.qid]).await?.is_empty() {
            let ended = [LetterState::Dead, LetterState::Parked, LetterState::Quarantined].map(state_number);
            self.query(LIST_ENDED, &[&queue.qid, &ended.as_slice()]).await?;
        }
        Ok(())
    }

    async fn unwatch(&self, queue: &Queue) -> Work<()> {
        self.query(UNWATCH, &[&queue.qid]).await?;
        self.query(FORGET_ALL, &[&queue.qid]).await?;
        Ok(())
    }
}
