//! The contract for triage.

use async_trait::async_trait;
use lazaret_core::letter::{Letter, LetterId};
use lazaret_core::query::Query;
use lazaret_core::store::{
    Actor, Change, Expired, Group, GroupId, GroupsPage, GroupsRequest, LettersPage, Matches, QueueSummary,
    Result, Scrubbed, Triage, stored_digest_key,
};
use lazaret_core::{QueueName, Timestamp};

use crate::store::PostgresStore;
use crate::transaction::transaction;

#[async_trait]
impl Triage for PostgresStore {
    async fn find(&self, query: &Query, after: Option<&str>, limit: usize) -> Result<LettersPage> {
        // A page is read with its payloads.
        let needs_scan = query.needs_scan() || limit > 1;
        let _turn = if needs_scan { Some(self.turn_to_scan("find").await?) } else { None };
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
        let key = stored_digest_key(self).await?;
        Ok(transaction!(self, "change", |tx| tx.change(&queue, letter, change, by, &key)))
    }

    async fn purge(&self, queue: &QueueName, letter: LetterId, by: &Actor) -> Result<()> {
        let queue = self.queue("purge", queue).await?;
        transaction!(self, "purge", |tx| tx.purge(&queue, letter, by));
        Ok(())
    }

    async fn erase(&self, queue: &QueueName, letter: LetterId, by: &Actor) -> Result<Letter> {
        let queue = self.queue("erase", queue).await?;
        Ok(transaction!(self, "erase", |tx| tx.erase(&queue, letter, by)))
    }

    async fn scrub(&self) -> Result<Scrubbed> {
        self.scrubbed().await
    }

    async fn scrubbed(&self) -> Result<Scrubbed> {
        Ok(Scrubbed::ByServer(
            "PostgreSQL keeps earlier versions of rows until VACUUM, in its write-ahead log and in archives of that; run \
             `VACUUM FULL` on the tables of the schema to rewrite them at once",
        ))
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
        let _turn = if query.needs_scan() { Some(self.turn_to_scan("count").await?) } else { None };
        Ok(transaction!(self, "count", begin_snapshot, |tx| tx.count_matches(query)))
    }

    async fn group(&self, id: &GroupId) -> Result<Option<Group>> {
        self.group_of(id).await
    }
}
