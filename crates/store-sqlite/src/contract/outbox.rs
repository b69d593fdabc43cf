//! The letters that ended, until they were announced.

use async_trait::async_trait;
use lazaret_core::QueueName;
use lazaret_core::store::{EndsPage, Outbox, Result};

use crate::letters::ends;
use crate::store::SqliteStore;

#[async_trait]
impl Outbox for SqliteStore {
    async fn watch_ends(&self, queue: &QueueName) -> Result<()> {
        self.change("watch_ends", queue, |queue| queue.watch_ends()).await
    }

    async fn ends(&self, queue: &QueueName, after: u64, limit: usize) -> Result<EndsPage> {
        let found = self.list("ends", queue, move |listing| ends::page(listing, after, limit)).await?;
        Ok(found.unwrap_or_default())
    }

    async fn forget_ends(&self, queue: &QueueName, up_to: u64) -> Result<()> {
        self.change("forget_ends", queue, move |queue| queue.forget_ends(up_to)).await
    }

    async fn unwatch_ends(&self, queue: &QueueName) -> Result<()> {
        self.change("unwatch_ends", queue, |queue| queue.unwatch_ends()).await
    }
}
