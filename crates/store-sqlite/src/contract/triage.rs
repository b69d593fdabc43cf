//! Searches, groups, queues, annotations and expiry.

use async_trait::async_trait;
use jiff::Timestamp;
use lazaret_core::QueueName;
use lazaret_core::letter::{Letter, LetterId};
use lazaret_core::query::Query;
use lazaret_core::store::{
    Actor, Change, Expired, Group, GroupId, GroupsPage, GroupsRequest, LettersPage, Matches, QueueSummary,
    Result, Scrubbed, StoreError, Triage, stored_digest_key,
};

use crate::erasure_mark;
use crate::letters::{Changed, Queue, edits, groups, query};
use crate::readers::View;
use crate::store::SqliteStore;

#[async_trait]
impl Triage for SqliteStore {
    async fn find(&self, query: &Query, after: Option<&str>, limit: usize) -> Result<LettersPage> {
        // A page is read with its payloads.
        let needs_scan = query.needs_scan() || limit > 1;
        let (query, after) = (query.clone(), after.map(str::to_owned));
        let find = move |view: &View<'_>| query::find(view, &query, after.as_deref(), limit);
        if needs_scan { self.scan("find", find).await } else { self.ask("find", find).await }
    }

    async fn count(&self, query: &Query) -> Result<Matches> {
        let (needs_scan, query) = (query.needs_scan(), query.clone());
        let count = move |view: &View<'_>| query::count(view, &query);
        if needs_scan { self.scan("count", count).await } else { self.ask("count", count).await }
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
        let key = stored_digest_key(self).await?;
        let work = move |queue: &mut Queue<'_>| queue.change(letter, &change, &by, &key);
        let Changed { mut letter, lid, edits } = Self::change(self, "change", queue, work).await?;
        if edits == 0 {
            return Ok(letter);
        }
        // Read beside the writer, because the originals can be large.
        let read = self.ask("change", move |view| edits::read(view.connection, lid, edits)).await;
        letter.edits = read.map_err(|error| {
            let context = format!("the letter was changed, but its edits could not be read: {error}");
            StoreError::maybe(error.kind(), "change", context)
        })?;
        Ok(letter)
    }

    async fn purge(&self, queue: &QueueName, letter: LetterId, by: &Actor) -> Result<()> {
        let by = by.clone();
        Self::change(self, "purge", queue, move |queue| queue.purge(letter, &by)).await
    }

    async fn erase(&self, queue: &QueueName, letter: LetterId, by: &Actor) -> Result<Letter> {
        let by = by.clone();
        Self::change(self, "erase", queue, move |queue| queue.erase(letter, &by)).await
    }

    async fn scrub(&self) -> Result<Scrubbed> {
        self.rewrite_file().await?;
        Ok(Scrubbed::Done)
    }

    async fn scrubbed(&self) -> Result<Scrubbed> {
        // An erasure is committed at once, so the redo log adds nothing.
        let mark = self.ask_committed("scrubbed", |view| erasure_mark::read(view.connection)).await?;
        Ok(match (mark, self.rewrite_failure()) {
            (None, _) => Scrubbed::Done,
            (Some(_), None) => Scrubbed::UnderWay,
            (Some(_), Some(why)) => Scrubbed::Failed(why),
        })
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
