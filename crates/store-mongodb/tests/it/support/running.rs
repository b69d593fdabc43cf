//! A consumer whose handler refuses all messages until it is repaired, while servers fail.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lazaret_core::handler::Context;
use lazaret_core::policy::{RetryPolicy, Strategy};
use lazaret_core::query::Query;
use lazaret_core::store::{LetterStore, Triage};
use lazaret_core::{HandlerError, QueueName, Reason};
use lazaret_engine::{Consumer, Error as EngineError, Event, Handle, Options, Stats};
use lazaret_memory::MemoryLog;
use lazaret_store_mongodb::MongoStore;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// How long to wait for what must occur.
pub(crate) const LONG: Duration = Duration::from_secs(240);
const KEYS: u64 = 6;

pub(crate) fn queue() -> QueueName {
    QueueName::of("orders", "orders")
}

fn refused() -> HandlerError {
    HandlerError::foreign("Invalid", "no such order").reason(Reason::DOMAIN_INVALID)
}

/// A consumer whose handler refuses all messages until it is repaired.
pub(crate) struct Running {
    log: MemoryLog,
    pub(crate) messages: u64,
    stored: mpsc::UnboundedReceiver<()>,
    pub(crate) repaired: Arc<AtomicBool>,
    pub(crate) handle: Handle,
    drain: CancellationToken,
    task: JoinHandle<Result<Stats, EngineError>>,
}

impl Running {
    pub(crate) fn start(store: Arc<MongoStore>) -> Self {
        let (log, repaired) = (MemoryLog::new("events", 2), Arc::new(AtomicBool::new(false)));
        let (sender, stored) = mpsc::unbounded_channel();
        let is_repaired = repaired.clone();
        let handler = move |_context: Context| {
            let repaired = is_repaired.clone();
            async move { if repaired.load(Ordering::SeqCst) { Ok(()) } else { Err(refused()) } }
        };
        let observer = move |event: &Event<'_>| {
            if let Event::LetterStored { .. } = event {
                sender.send(()).ok();
            }
        };
        let retry = RetryPolicy { max_attempts: 1, strategy: Strategy::Ordered, ..RetryPolicy::default() };
        let options = Options { breaker: None, fuse: None, retry, ..Options::default() };
        let consumer = Consumer::builder("orders").source(log.join()).store(store).handler(handler);
        let consumer = consumer.options(options).observer(observer).build().unwrap();
        let (handle, drain) = (consumer.handle(), CancellationToken::new());
        let task = tokio::spawn(Box::pin(consumer.run(drain.clone())));
        Self { log, messages: 0, stored, repaired, handle, drain, task }
    }

    /// Adds a message of each key.
    pub(crate) fn push(&mut self) {
        for key in 0..KEYS {
            let payload = self.messages.to_string();
            self.log.push((key % 2) as u32, format!("k{key}"), payload);
            self.messages += 1;
        }
    }

    /// Waits until each message of a push has its letter.
    pub(crate) async fn until_stored(&mut self) {
        for _ in 0..KEYS {
            let stored = tokio::time::timeout(LONG, self.stored.recv()).await;
            stored.expect("timed out waiting for a letter").unwrap();
        }
    }

    pub(crate) async fn end(self) {
        self.drain.cancel();
        self.task.await.unwrap().unwrap();
    }
}

/// The positions of all letters, for each key in the order of its sequence.
async fn positions(store: &MongoStore, messages: usize) -> BTreeMap<String, Vec<u64>> {
    let mut of_key = BTreeMap::new();
    for head in store.heads(&queue(), None, 100).await.unwrap().heads {
        let letters = store.sequence(&queue(), &head.sequence, 0, messages).await.unwrap();
        let offsets = letters.iter().map(|letter| letter.message.position.offset).collect();
        of_key.insert(head.sequence.to_string(), offsets);
    }
    of_key
}

/// Each message has one letter, in order.
pub(crate) async fn assert_stored_once(store: &MongoStore, messages: u64) {
    let messages = usize::try_from(messages).unwrap();
    let all = Query::parse("state:open or state:closed").unwrap();
    let letters = store.find(&all, None, messages * 2).await.unwrap().letters;
    let mut payloads: Vec<_> = letters.iter().map(|letter| letter.message.payload.clone().unwrap()).collect();
    payloads.sort();
    payloads.dedup();
    assert_eq!((letters.len(), payloads.len()), (messages, messages), "each message has one letter");
    let of_key = positions(store, messages).await;
    let is_complete = |offsets: &Vec<u64>| offsets.is_sorted() && offsets.len() * of_key.len() == messages;
    assert!(of_key.values().all(is_complete), "{of_key:?}");
}
