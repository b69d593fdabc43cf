//! The change stream source keeps the contract of all sources.

use std::sync::Arc;

use async_trait::async_trait;
use bson::doc;
use lazaret_core::handler::{Delivery, FromDelivery};
use lazaret_core::source::{Commit, Source, SourceError, SourceEvent};
use lazaret_core::{Partition, StreamName};
use lazaret_memory::MemoryStore;
use lazaret_source_mongodb::{Document, MongoSource};
use lazaret_testkit::suite::source::{Capabilities, SourceHarness};
use lazaret_testkit::{SideBySide, source_test_suite};

use crate::support::{self, Shop, expire_lease, server};

/// Two collections as two partitions. The cases compare payloads as they were given, so the source is [`Unwrapped`].
struct Collections {
    shop: Shop,
    store: Arc<MemoryStore>,
}

impl Collections {
    async fn new() -> Self {
        let server = server().expect("the suite runs only with a server");
        Self { shop: Shop::new(server).await, store: Arc::new(MemoryStore::default()) }
    }
}

impl Drop for Collections {
    fn drop(&mut self) {
        let (client, database) = (self.shop.client.clone(), self.shop.database.clone());
        tokio::spawn(async move { client.database(&database).drop().await });
    }
}

#[async_trait]
impl SourceHarness for Collections {
    fn capabilities(&self) -> Capabilities {
        // Settled ranges are kept, but without the last offset, which events of a transaction may share: see `stream.rs`.
        Capabilities { groups: false, settled_ranges: false, finite: false }
    }

    fn stream(&self) -> StreamName {
        "orders".into()
    }

    fn partitions(&self) -> u32 {
        2
    }

    async fn push(&mut self, partition: u32, payload: &str) {
        let collection = self.shop.collection(&format!("orders{partition}"));
        collection.insert_one(doc! { "payload": payload }).await.unwrap();
    }

    async fn finish(&mut self) {
        unreachable!("it says that it is not finite")
    }

    async fn open(&mut self) -> Box<dyn Source> {
        let mut sources: Vec<(Box<dyn Source>, Partition)> = Vec::new();
        for partition in 0..self.partitions() {
            let name = format!("orders{partition}");
            // A consumer that was dropped has crashed. Its lease has ended.
            expire_lease(&*self.store, &name).await;
            let options = self.shop.options(&name);
            let source = MongoSource::open(options, self.store.clone()).unwrap();
            let inner = source.partition();
            sources.push((Box::new(Unwrapped(source)), inner));
        }
        Box::new(SideBySide::new(self.stream(), sources))
    }

    async fn expel(&mut self, _nth: usize) {
        unreachable!("it says that it has no groups")
    }
}

/// A source whose payloads are the field `payload` of the documents.
struct Unwrapped(MongoSource);

#[async_trait]
impl Source for Unwrapped {
    async fn next(&mut self) -> Result<SourceEvent, SourceError> {
        let mut event = self.0.next().await?;
        if let SourceEvent::Messages(messages) = &mut event {
            for message in messages {
                let delivery = Delivery::new(message.clone());
                let Document(document) = Document::<bson::Document>::from_delivery(&delivery).unwrap();
                message.payload = Some(document.get_str("payload").unwrap().to_owned().into());
            }
        }
        Ok(event)
    }

    async fn commit(&mut self, commits: Vec<Commit>) -> Result<(), SourceError> {
        self.0.commit(commits).await
    }

    fn pause(&mut self, partitions: &[Partition]) {
        self.0.pause(partitions);
    }

    fn resume(&mut self, partitions: &[Partition]) {
        self.0.resume(partitions);
    }

    fn rewind(&mut self, partitions: &[Partition]) {
        self.0.rewind(partitions);
    }

    async fn revoked(&mut self, partitions: &[Partition]) -> Result<(), SourceError> {
        self.0.revoked(partitions).await
    }

    async fn close(&mut self) -> Result<(), SourceError> {
        self.0.close().await
    }
}

source_test_suite!(change_streams, io if support::server_is_there, Collections::new);
