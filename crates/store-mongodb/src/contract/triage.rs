//! The contract for triage.

use async_trait::async_trait;
use lazaret_core::letter::{Letter, LetterId};
use lazaret_core::query::Query;
use lazaret_core::store::{
    Actor, Change, Expired, Group, GroupId, GroupsPage, GroupsRequest, LettersPage, Matches, QueueSummary,
    Result, Scrubbed, Triage,
};
use lazaret_core::{QueueName, Timestamp};

use crate::store::MongoStore;

#[async_trait]
impl Triage for MongoStore {
    async fn find(&self, query: &Query, after: Option<&str>, limit: usize) -> Result<LettersPage> {
        self.search(query, after, limit).await
    }

    async fn count(&self, query: &Query) -> Result<Matches> {
        self.count_matching(query).await
    }

    async fn groups(&self, request: &GroupsRequest) -> Result<GroupsPage> {
        self.list_groups(request).await
    }

    async fn queues(&self) -> Result<Vec<QueueSummary>> {
        self.summaries().await
    }

    async fn change(
        &self,
        queue: &QueueName,
        letter: LetterId,
        change: &Change,
        by: &Actor,
    ) -> Result<Letter> {
        self.edit(queue, letter, change, by).await
    }

    async fn purge(&self, queue: &QueueName, letter: LetterId, by: &Actor) -> Result<()> {
        self.purge_letter(queue, letter, Some(by)).await
    }

    async fn erase(&self, queue: &QueueName, letter: LetterId, by: &Actor) -> Result<Letter> {
        self.erase_letter(queue, letter, by).await
    }

    async fn scrub(&self) -> Result<Scrubbed> {
        self.scrubbed().await
    }

    async fn scrubbed(&self) -> Result<Scrubbed> {
        Ok(Scrubbed::ByServer(
            "MongoDB reuses the space of replaced documents some time, and its oplog and journal keep them for a while; run \
             `compact` on the collections and resync replicas to rewrite them at once",
        ))
    }

    async fn expire(
        &self,
        queue: &QueueName,
        closed_before: Option<Timestamp>,
        limit: usize,
    ) -> Result<Expired> {
        self.expire_letters(queue, closed_before, limit).await
    }

    async fn group(&self, id: &GroupId) -> Result<Option<Group>> {
        self.group_of(id).await
    }
}
