//! The letters that ended, until they were announced.

use async_trait::async_trait;
use lazaret_core::QueueName;
use lazaret_core::store::{EndsPage, Outbox, Result};

use crate::store::PostgresStore;

#[async_trait]
impl Outbox for PostgresStore {
    async fn watch_ends(&self, queue: &QueueName) -> Result<()> {
        self.watch(&self.queue("watch_ends", queue).await?).await
    }

    async fn ends(&self, queue: &QueueName, after: u64, limit: usize) -> Result<EndsPage> {
        match self.find_queue("ends", queue).await? {
            Some(queue) => self.page_of_ends(&queue, after, limit).await,
            None => Ok(EndsPage::default()),
        }
    }

    async fn forget_ends(&self, queue: &QueueName, up_to: u64) -> Result<()> {
        match self.find_queue("forget_ends", queue).await? {
            Some(queue) => self.forget(&queue, up_to).await,
            None => Ok(()),
        }
    }

    async fn unwatch_ends(&self, queue: &QueueName) -> Result<()> {
        match self.find_queue("unwatch_ends", queue).await? {
            Some(queue) => self.unwatch(&queue).await,
            None => Ok(()),
        }
    }
}
