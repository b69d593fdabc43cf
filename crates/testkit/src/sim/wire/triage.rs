//! The operators' side of the store, over the same wire.

use async_trait::async_trait;
use lazaret_core::query::Query;
use lazaret_core::store::{
    Actor, Change, Expired, Group, GroupId, GroupsPage, GroupsRequest, LettersPage, Matches, QueueSummary,
    Result, Triage,
};
use lazaret_core::{Letter, LetterId, QueueName, Timestamp};

use super::{Wire, send};

#[async_trait]
impl Triage for Wire {
    async fn find(&self, query: &Query, after: Option<&str>, limit: usize) -> Result<LettersPage> {
        let (store, query, after) = (self.store.clone(), query.clone(), after.map(str::to_owned));
        self.call("find", false, async move { store.find(&query, after.as_deref(), limit).await }).await
    }

    async fn count(&self, query: &Query) -> Result<Matches> {
        send!(self, false, count(query))
    }

    async fn groups(&self, request: &GroupsRequest) -> Result<GroupsPage> {
        send!(self, false, groups(request))
    }

    async fn group(&self, id: &GroupId) -> Result<Option<Group>> {
        send!(self, false, group(id))
    }

    async fn queues(&self) -> Result<Vec<QueueSummary>> {
        send!(self, false, queues())
    }

    async fn change(
        &self,
        queue: &QueueName,
        letter: LetterId,
        change: &Change,
        by: &Actor,
    ) -> Result<Letter> {
        let (store, queue, change, by) = (self.store.clone(), queue.clone(), change.clone(), by.clone());
        self.call("change", false, async move { store.change(&queue, letter, &change, &by).await }).await
    }

    async fn purge(&self, queue: &QueueName, letter: LetterId, by: &Actor) -> Result<()> {
        let (store, queue, by) = (self.store.clone(), queue.clone(), by.clone());
        self.call("purge", false, async move { store.purge(&queue, letter, &by).await }).await
    }

    async fn expire(
        &self,
        queue: &QueueName,
        closed_before: Option<Timestamp>,
        limit: usize,
    ) -> Result<Expired> {
        let (store, queue) = (self.store.clone(), queue.clone());
        self.call("expire", true, async move { store.expire(&queue, closed_before, limit).await }).await
    }
}
