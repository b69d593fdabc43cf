//! The contract for triage.

use async_trait::async_trait;
use lazaret_core::letter::{Letter, LetterId};
use lazaret_core::query::Query;
use lazaret_core::store::{
    Actor, Change, Expired, Group, GroupId, GroupsPage, GroupsRequest, LettersPage, Matches, QueueSummary,
    Result, Triage,
};
use lazaret_core::{QueueName, Timestamp};

use crate::store::PostgresStore;
use crate::transaction::transaction;

#[async_trait]
impl Triage for PostgresStore {
    async fn find(&self, query: &Query, after: Option<&str>, limit: usize) -> Result<LettersPage> {
        Ok(transaction!(self, "find", begin_snapshot, |tx| tx.find(query, after, limit)))
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
        let queue = self.queue("change", queue).await?;
        Ok(transaction!(self, "change", |tx| tx.change(&queue, letter, change, by)))
    }

    async fn purge(&self, queue: &QueueName, letter: LetterId, by: &Actor) -> Result<()> {
        let queue = self.queue("purge", queue).await?;
        transaction!(self, "purge", |tx| tx.purge(&queue, letter, by));
        Ok(())
    }

    async fn expire(
        &self,
        queue: &QueueName,
        closed_before: Option<Timestamp>,
        limit: usize,
    ) -> Result<Expired> {
        let queue = self.queue("expire", queue).await?;
        self.expire_letters(&queue, closed_before, limit).await
    }

    async fn count(&self, query: &Query) -> Result<Matches> {
        Ok(transaction!(self, "count", begin_snapshot, |tx| tx.count_matches(query)))
    }

    async fn group(&self, id: &GroupId) -> Result<Option<Group>> {
        self.group_of(id).await
    }
}
