//! The incarnations of streams that a consumer has seen. Its source reads them.

use std::sync::Arc;

use async_trait::async_trait;
use lazaret_core::incarnation::{Beginning, IncarnationRegistry, Incarnations};
use lazaret_core::store::{Result, Store};
use lazaret_core::{ConsumerName, Partition, QueueName};

use crate::component::Component;

/// The incarnations that a consumer's store keeps.
pub(crate) struct SeenIncarnations {
    store: Arc<dyn Store>,
    consumer: ConsumerName,
    /// The queues of the consumer's components.
    queues: Vec<QueueName>,
}

impl SeenIncarnations {
    pub(crate) fn of(first: &Component, components: &[Arc<Component>]) -> Self {
        let queues = components.iter().map(|component| component.queue.clone()).collect();
        Self { store: first.store.clone(), consumer: first.identity.consumer.clone(), queues }
    }
}

#[async_trait]
impl IncarnationRegistry for SeenIncarnations {
    async fn incarnations(&self) -> Result<Incarnations> {
        self.store.incarnations(&self.consumer).await
    }

    async fn begin(&self, beginning: &Beginning) -> Result<Incarnations> {
        self.store.begin_incarnation(&self.consumer, beginning).await
    }

    async fn horizons(&self, partitions: &[Partition]) -> Result<Vec<Option<u64>>> {
        let mut highest = vec![None; partitions.len()];
        for queue in &self.queues {
            let horizons = self.store.horizons(queue, partitions).await?;
            highest.iter_mut().zip(horizons).for_each(|(highest, horizon)| *highest = horizon.max(*highest));
        }
        Ok(highest)
    }
}
