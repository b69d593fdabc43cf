//! A stream that is disturbed between its events, and has to read all of them once, in order.

use std::sync::Arc;
use std::time::Duration;

use bson::{Document, doc};
use lazaret_core::Message;
use lazaret_memory::MemoryStore;
use lazaret_source_mongodb::{MongoSourceOptions, StreamState};
use mongodb::Collection;
use mongodb::options::{ReadConcern, WriteConcern};

use super::{LONG, Reading, Shop};

/// How long a write may take before it is tried again: a server that is frozen does not answer.
const WRITE_LIMIT: Duration = Duration::from_secs(10);

/// A source that reads.
pub(crate) async fn started(options: MongoSourceOptions, store: &Arc<MemoryStore>) -> Reading {
    let mut reading = Reading::open(options, store.clone());
    reading.until_status("it reads", |status| status.state == StreamState::Reading).await;
    reading
}

/// Asks until there is an answer.
pub(crate) async fn until<T, F: Future<Output = Option<T>>>(what: &str, ask: impl Fn() -> F) -> T {
    let asked = async {
        loop {
            if let Some(answer) = ask().await {
                return answer;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(LONG, asked).await.unwrap_or_else(|_| panic!("timed out waiting for {what}"))
}

/// Inserts a document, however long the server has no primary. It does not get lost with a primary.
pub(crate) async fn insert(orders: &Collection<Document>, id: &str) {
    until("a primary that keeps a document", || async {
        let written = orders.insert_one(doc! { "_id": id }).write_concern(WriteConcern::majority());
        match tokio::time::timeout(WRITE_LIMIT, written.into_future()).await.ok()? {
            Ok(_) => Some(()),
            // The answer to an earlier attempt was lost. What it has written may be lost with a primary.
            Err(error) if error.to_string().contains("E11000") => {
                let kept = orders.find_one(doc! { "_id": id }).read_concern(ReadConcern::majority());
                kept.await.ok()?.map(|_| ())
            }
            Err(_) => None,
        }
    })
    .await;
}

/// The ids of the documents of all messages.
pub(crate) fn documents(reading: &Reading) -> Vec<String> {
    let id = |message: &Message| {
        let key: serde_json::Value = serde_json::from_slice(message.key.as_deref().unwrap()).unwrap();
        key["_id"].as_str().unwrap().to_owned()
    };
    reading.messages.iter().map(id).collect()
}

/// A stream that is disturbed after some events, and reads all of them once, in order.
pub(crate) struct Disturbed {
    pub(crate) reading: Reading,
    orders: Collection<Document>,
    expected: Vec<String>,
}

impl Disturbed {
    pub(crate) async fn start(shop: &Shop, options: MongoSourceOptions) -> Self {
        let reading = started(options, &Arc::new(MemoryStore::default())).await;
        Self { reading, orders: shop.collection("orders"), expected: Vec::new() }
    }

    /// Inserts a document, and reads up to its event.
    pub(crate) async fn read_next(&mut self) {
        let id = format!("order-{}", self.expected.len());
        insert(&self.orders, &id).await;
        self.reading.until(&format!("{id} has come"), |reading| documents(reading).contains(&id)).await;
        self.expected.push(id);
        assert_eq!(documents(&self.reading), self.expected, "{:?}", self.reading.errors);
    }

    pub(crate) async fn end(self) {
        let errors = &self.reading.errors;
        assert!(errors.iter().all(|error| error.is_temporary()), "{errors:?}");
        self.reading.close().await;
    }
}
