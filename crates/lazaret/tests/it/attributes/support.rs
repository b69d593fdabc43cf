//! Shared parts of the tests: a log in memory, a run of a declared consumer, and its result.

use std::sync::Arc;

use lazaret::declare::DeclaredConsumer;
use lazaret::memory::{MemoryLog, MemoryStore};
use lazaret::prelude::*;
use lazaret::store::AuditEntry;
use lazaret::{Operation, Stats};

/// Declares a change stream with these attributes and resolves it without a file.
macro_rules! declared {
    ($([$($attribute:tt)*])*) => {{
        struct Orders;

        #[lazaret::declare::change_stream(collection = "orders")]
        $(#[$($attribute)*])*
        impl Orders {
            #[on_change]
            async fn changed(&self) {}
        }

        lazaret::declare::Declare::declare(Orders).consumer().unwrap_or_else(|found| panic!("{}", found.plain()))
    }};
}
pub(crate) use declared;

/// The result of a run.
pub(crate) struct Ran {
    pub(crate) stats: Stats,
    pub(crate) store: Arc<MemoryStore>,
    pub(crate) queue: QueueName,
    pub(crate) committed: Option<u64>,
}

impl Ran {
    /// Returns the letter of the only message, open or closed.
    pub(crate) async fn letter(&self) -> Letter {
        let id = LetterId::of(&self.queue, &"orders/0/0".into());
        self.store
            .get(&self.queue, id)
            .await
            .expect("the memory store answers")
            .expect("the message has a letter")
    }

    pub(crate) async fn count(&self, state: LetterState) -> u64 {
        self.store.counts(&self.queue).await.expect("the memory store answers").of(state)
    }

    pub(crate) async fn audit(&self) -> Vec<AuditEntry> {
        self.store.audit(0, 100).await.expect("the memory store answers")
    }
}

/// Returns a change of a document.
pub(crate) fn change(operation: Operation, payload: &'static str) -> impl FnOnce(Message) -> Message {
    move |mut message| {
        message.operation = Some(operation);
        message.with_key("ada").with_payload(payload)
    }
}

/// Runs a consumer over messages until no work is left.
pub(crate) async fn run<B: FnOnce(Message) -> Message>(
    declared: &DeclaredConsumer,
    messages: impl IntoIterator<Item = B>,
) -> Ran {
    let log = MemoryLog::new("orders", 1);
    for build in messages {
        log.push_with(0, build);
    }
    log.close();
    let store = Arc::new(MemoryStore::default());
    let builder = declared.builder().expect("a valid schedule");
    let consumer =
        builder.source(log.join()).store(store.clone()).until_idle().build().expect("valid options");
    let queue = consumer.queue().clone();
    let stats = consumer.run(CancellationToken::new()).await.expect("the stream does not end with an error");
    Ran { stats, store, queue, committed: log.committed(0) }
}
