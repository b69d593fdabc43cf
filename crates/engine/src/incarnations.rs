//! The incarnations of streams that a consumer has seen, for its source.

use std::sync::Arc;

use async_trait::async_trait;
use lazaret_core::ConsumerName;
use lazaret_core::incarnation::{Beginning, IncarnationRegistry, Incarnations};
use lazaret_core::store::{Result, Store};

use crate::component::Component;

/// The incarnations that the store of a consumer keeps.
pub(crate) struct SeenIncarnations {
    store: Arc<dyn Store>,
    consumer: ConsumerName,
}

impl SeenIncarnations {
    pub(crate) fn of(component: &Component) -> Self {
        Self { store: component.store.clone(), consumer: component.identity.consumer.clone() }
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
}
