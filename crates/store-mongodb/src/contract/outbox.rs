//! The contract for the letters that ended, until they were announced.

use async_trait::async_trait;
use lazaret_core::QueueName;
use lazaret_core::store::{EndsPage, Outbox, Result};

use crate::store::MongoStore;

#[async_trait]
impl Outbox for MongoStore {
    async fn watch_ends(&self, queue: &QueueName) -> Result<()> {
        self.watch(queue).await
    }

    async fn ends(&self, queue: &QueueName, after: u64, limit: usize) -> Result<EndsPage> {
        self.page_of_ends(queue, after, limit).await
    }

    async fn forget_ends(&self, queue: &QueueName, up_to: u64) -> Result<()> {
        self.forget_up_to(queue, up_to).await
    }

    async fn unwatch_ends(&self, queue: &QueueName) -> Result<()> {
        self.unwatch(queue).await
    }
}
