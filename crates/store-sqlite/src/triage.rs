//! The operators' side of the store in terms of requests and questions.

use std::collections::HashMap;

use async_trait::async_trait;
use jiff::Timestamp;
use lazaret_core::QueueName;
use lazaret_core::letter::{Letter, LetterId};
use lazaret_core::query::Query;
use lazaret_core::store::{
    Actor, Change, ErrorKind, Expired, Group, GroupId, GroupsPage, GroupsRequest, LettersPage, Matches,
    QueueSummary, Result, StoreError, Triage,
};

use crate::error::Work;
use crate::letters::groups;
use crate::readers::View;
use crate::rows::{read_letter, select_letter, time};
use crate::store::SqliteStore;

/// The letters before this row that match, the latest taken in first, each with the number of its row.
fn matching(view: &View<'_>, query: &Query, before: i64, limit: usize) -> Work<Vec<(i64, Letter)>> {
    let mut select = view.connection.prepare_cached("SELECT qid, name FROM queues")?;
    let queues = select.query_map([], |row| Ok((row.get(0)?, QueueName::from(row.get::<_, String>(1)?))))?;
    let queues: HashMap<i64, QueueName> = queues.collect::<rusqlite::Result<_>>()?;
    let mut whole = view.connection.prepare_cached(select_letter!("WHERE lid = ?1"))?;
    let mut select =
        view.connection.prepare_cached("SELECT lid, qid FROM letters WHERE lid < ?1 ORDER BY lid DESC")?;
    let mut rows = select.query([before])?;
    let mut found = Vec::new();
    while let Some(row) = rows.next()?
        && found.len() < limit
    {
        let lid = row.get(0)?;
        let Some(queue) = queues.get(&row.get(1)?) else { continue };
        // A purged letter has a row of its own, but no payload.
        let Some(letter) = whole.query([lid])?.next()?.map(|row| read_letter(row, queue)).transpose()? else {
            continue;
        };
        if query.matches(&letter, time(view.now)) {
            found.push((lid, letter));
        }
    }
    Ok(found)
}

#[async_trait]
impl Triage for SqliteStore {
    async fn find(&self, query: &Query, after: Option<&str>, limit: usize) -> Result<LettersPage> {
        let before = after.map_or(Ok(i64::MAX), str::parse).map_err(|_| {
            let context = format!("{after:?} is not a cursor of this store");
            StoreError::not_done(ErrorKind::Invalid, "find", context)
        })?;
        let (query, limit) = (query.clone(), limit.max(1));
        self.ask("find", move |view| {
            let mut found = matching(view, &query, before, limit.saturating_add(1))?;
            let more = found.len() > limit;
            found.truncate(limit);
            let next = found.last().filter(|_| more).map(|(lid, _)| lid.to_string());
            Ok(LettersPage { letters: found.into_iter().map(|(_, letter)| letter).collect(), next })
        })
        .await
    }

    async fn count(&self, query: &Query) -> Result<Matches> {
        let query = query.clone();
        self.ask("count", move |view| {
            let found = matching(view, &query, i64::MAX, usize::MAX)?;
            Ok(Matches { letters: found.len() as u64, exact: true })
        })
        .await
    }

    async fn groups(&self, request: &GroupsRequest) -> Result<GroupsPage> {
        let request = request.clone();
        self.ask("groups", move |view| groups::groups(view.connection, view.now, &request)).await
    }

    async fn group(&self, id: &GroupId) -> Result<Option<Group>> {
        let id = id.clone();
        self.ask("group", move |view| groups::group(view.connection, view.now, &id)).await
    }

    async fn queues(&self) -> Result<Vec<QueueSummary>> {
        self.ask("queues", |view| groups::queues(view.connection)).await
    }

    async fn change(
        &self,
        queue: &QueueName,
        letter: LetterId,
        change: &Change,
        by: &Actor,
    ) -> Result<Letter> {
        let (change, by) = (change.clone(), by.clone());
        Self::change(self, "change", queue, move |queue| queue.note(letter, &change, &by)).await
    }

    async fn purge(&self, queue: &QueueName, letter: LetterId, by: &Actor) -> Result<()> {
        let by = by.clone();
        Self::change(self, "purge", queue, move |queue| queue.purge(letter, &by)).await
    }

    async fn expire(
        &self,
        queue: &QueueName,
        closed_before: Option<Timestamp>,
        limit: usize,
    ) -> Result<Expired> {
        Self::change(self, "expire", queue, move |queue| queue.expire(closed_before, limit)).await
    }
}
