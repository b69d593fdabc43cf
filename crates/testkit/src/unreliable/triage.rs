//! The operators' side of a store that fails by a seed.

use async_trait::async_trait;
use jiff::Timestamp;
use lazaret_core::query::Query;
use lazaret_core::store::{
    Actor, Change, Expired, Group, GroupId, GroupsPage, GroupsRequest, LettersPage, Matches, QueueSummary,
    Result, Triage,
};
use lazaret_core::{Letter, LetterId, QueueName};

use super::Unreliable;

#[async_trait]
impl<S: Triage> Triage for Unreliable<S> {
    async fn find(&self, query: &Query, after: Option<&str>, limit: usize) -> Result<LettersPage> {
        self.call("find", self.inner.find(query, after, limit)).await
    }

    async fn count(&self, query: &Query) -> Result<Matches> {
        self.call("count", self.inner.count(query)).await
    }

    async fn groups(&self, request: &GroupsRequest) -> Result<GroupsPage> {
        self.call("groups", self.inner.groups(request)).await
    }

    async fn group(&self, id: &GroupId) -> Result<Option<Group>> {
        self.call("group", self.inner.group(id)).await
    }

    async fn queues(&self) -> Result<Vec<QueueSummary>> {
        self.call("queues", self.inner.queues()).await
    }

    async fn change(
        &self,
        queue: &QueueName,
        letter: LetterId,
        change: &Change,
        by: &Actor,
    ) -> Result<Letter> {
        self.call("change", self.inner.change(queue, letter, change, by)).await
    }

    async fn purge(&self, queue: &QueueName, letter: LetterId, by: &Actor) -> Result<()> {
        self.call("purge", self.inner.purge(queue, letter, by)).await
    }

    async fn expire(
        &self,
        queue: &QueueName,
        closed_before: Option<Timestamp>,
        limit: usize,
    ) -> Result<Expired> {
        self.call("expire", self.inner.expire(queue, closed_before, limit)).await
    }
}
