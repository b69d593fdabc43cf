//! The outbox of an unreliable store.

use async_trait::async_trait;
use lazaret_core::QueueName;
use lazaret_core::store::{EndsPage, Outbox, Result};

use super::Unreliable;

#[async_trait]
impl<S: Outbox> Outbox for Unreliable<S> {
    async fn watch_ends(&self, queue: &QueueName) -> Result<()> {
        self.call("watch_ends", self.inner.watch_ends(queue)).await
    }

    async fn ends(&self, queue: &QueueName, after: u64, limit: usize) -> Result<EndsPage> {
        self.call("ends", self.inner.ends(queue, after, limit)).await
    }

    async fn forget_ends(&self, queue: &QueueName, up_to: u64) -> Result<()> {
        self.call("forget_ends", self.inner.forget_ends(queue, up_to)).await
    }

    async fn unwatch_ends(&self, queue: &QueueName) -> Result<()> {
        self.call("unwatch_ends", self.inner.unwatch_ends(queue)).await
    }
}
