//! Searches, groups, queues, annotations and expiry.

use async_trait::async_trait;
use jiff::Timestamp;
use lazaret_core::QueueName;
use lazaret_core::letter::{Letter, LetterId};
use lazaret_core::query::Query;
use lazaret_core::store::{
    Actor, Change, Expired, Group, GroupId, GroupsPage, GroupsRequest, LettersPage, Matches, QueueSummary,
    Result, StoreError, Triage,
};

use crate::letters::{Changed, Queue, edits, groups, query};
use crate::store::SqliteStore;

#[async_trait]
impl Triage for SqliteStore {
    async fn find(&self, query: &Query, after: Option<&str>, limit: usize) -> Result<LettersPage> {
        let (query, after) = (query.clone(), after.map(str::to_owned));
        self.ask("find", move |view| query::find(view, &query, after.as_deref(), limit)).await
    }

    async fn count(&self, query: &Query) -> Result<Matches> {
        let query = query.clone();
        self.ask("count", move |view| query::count(view, &query)).await
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
        let work = move |queue: &mut Queue<'_>| queue.change(letter, &change, &by);
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

    async fn expire(
        &self,
        queue: &QueueName,
        closed_before: Option<Timestamp>,
        limit: usize,
    ) -> Result<Expired> {
        Self::change(self, "expire", queue, move |queue| queue.expire(closed_before, limit)).await
    }
}
