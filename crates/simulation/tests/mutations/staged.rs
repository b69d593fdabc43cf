//! One engine on a memory store whose calls take as long as a test says.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use lazaret_core::handler::{Delivery, Handle as Handler, HandlerFuture};
use lazaret_core::policy::RetryPolicy;
use lazaret_core::store::{Act, Actor, Call, ErrorKind, LetterStore, Result, StoreError};
use lazaret_core::{HandlerError, LetterId, LetterState, MessageId, QueueName, Reason, Verdict};
use lazaret_engine::mutation::Mutation;
use lazaret_engine::{Consumer, Handle, Options};
use lazaret_memory::{MemoryLog, MemoryStore};
use lazaret_testkit::TokioClock;
use tokio_util::sync::CancellationToken;

/// The name of the consumer and of its component.
pub(crate) const NAME: &str = "staged";

/// How long the next call of an operation takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Line {
    /// The request takes this long.
    SlowRequest(Duration),
    /// The answer takes this long.
    SlowAnswer(Duration),
    /// The caller is told at once that nothing is known; the request takes this long.
    Lost(Duration),
}

/// A memory store behind a line that a test disturbs.
#[derive(Default)]
pub(crate) struct Staged {
    inner: MemoryStore,
    disturbed: Mutex<Vec<(&'static str, Line)>>,
}

impl Staged {
    async fn send<T: Send + 'static>(
        &self,
        call: Call,
        effect: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        let line = {
            let mut disturbed = self.disturbed.lock().unwrap();
            let next = disturbed.iter().position(|(operation, _)| *operation == call.operation);
            next.map(|next| disturbed.remove(next).1)
        };
        match line {
            None => effect.await,
            Some(Line::SlowRequest(time)) => {
                tokio::time::sleep(time).await;
                effect.await
            }
            Some(Line::SlowAnswer(time)) => {
                let answer = effect.await;
                tokio::time::sleep(time).await;
                answer
            }
            Some(Line::Lost(time)) => {
                tokio::spawn(async move {
                    tokio::time::sleep(time).await;
                    effect.await
                });
                Err(StoreError::maybe(ErrorKind::Unavailable, call.operation, "no answer"))
            }
        }
    }
}

lazaret_core::forward_store! {
    impl LetterStore for Staged {}
    impl Operations for Staged {}
    impl Triage for Staged {}
    impl Audit for Staged {}

    shared: |this| Arc::new(this.inner.clone());
    around: |this, call, run| this.send(call, run).await;
}

/// An engine with two attempts at once that consumes two partitions.
pub(crate) struct Stage {
    pub(crate) store: Arc<Staged>,
    pub(crate) log: MemoryLog,
    handle: Option<Handle>,
    handled: Arc<Mutex<Vec<String>>>,
}

/// A handler that does what the payload says: `fine`, `dead`, `later`, which fails once, or so many milliseconds.
#[derive(Clone)]
struct Obedient(Arc<Mutex<Vec<String>>>);

impl Handler for Obedient {
    fn handle(&self, delivery: Delivery) -> HandlerFuture {
        let handled = self.0.clone();
        Box::pin(async move {
            let message = delivery.message();
            match message.payload.as_deref() {
                Some(b"dead") => Err(HandlerError::msg("refused").verdict(Verdict::DeadLetter)),
                Some(b"later") if delivery.letter().is_none() => {
                    Err(HandlerError::msg("not yet").reason(Reason::DEPENDENCY_UNAVAILABLE))
                }
                payload => {
                    let text = payload.and_then(|payload| std::str::from_utf8(payload).ok());
                    if let Some(millis) = text.and_then(|text| text.parse().ok()) {
                        pass(millis).await;
                    }
                    handled.lock().unwrap().push(message.id.to_string());
                    Ok(())
                }
            }
        })
    }
}

impl Stage {
    pub(crate) fn new() -> Self {
        let store = Staged { inner: MemoryStore::new(Arc::new(TokioClock::new())), ..Staged::default() };
        let log = MemoryLog::new("stream", 2);
        Self { store: Arc::new(store), log, handle: None, handled: Arc::default() }
    }

    /// Starts the engine, with this bug.
    pub(crate) fn start(&mut self, mutation: Option<Mutation>) {
        let retry = RetryPolicy {
            hold: Duration::ZERO,
            max_attempts: 3,
            initial_delay: Duration::from_millis(100),
            jitter: 0.0,
            ..RetryPolicy::default()
        };
        // Only what the engine is told, never what it finds by itself later.
        let refresh = Duration::from_secs(3_600);
        let options = Options { retry, refresh, shards: 1, concurrency: 2, mutation, ..Options::default() };
        let consumer = Consumer::builder(NAME)
            .source(self.log.join())
            .store(self.store.clone())
            .clock(Arc::new(TokioClock::new()))
            .options(options)
            .component(NAME, Obedient(self.handled.clone()))
            .build()
            .unwrap();
        self.handle = Some(consumer.handle());
        tokio::spawn(consumer.run(CancellationToken::new()));
    }

    /// Makes the next call of an operation take this long.
    pub(crate) fn disturb(&self, operation: &'static str, line: Line) {
        self.store.disturbed.lock().unwrap().push((operation, line));
    }

    /// Publishes a message that is handled as the payload says.
    pub(crate) fn publish(&self, payload: &'static str) -> MessageId {
        self.publish_in(0, "key", payload)
    }

    /// Publishes such a message in this partition.
    pub(crate) fn publish_in(&self, partition: u32, key: &'static str, payload: &'static str) -> MessageId {
        let position = self.log.push(partition, key, payload);
        format!("stream/{partition}/{}", position.offset).into()
    }

    /// Publishes such a message and lets some time pass.
    pub(crate) async fn publish_and_wait(&self, payload: &'static str) -> MessageId {
        let id = self.publish(payload);
        pass(50).await;
        id
    }

    /// Changes a letter in the store, as another process does.
    pub(crate) async fn act(&self, message: &MessageId, act: Act) {
        self.store.inner.act(&queue(), LetterId::of(&queue(), message), act, &by()).await.unwrap();
    }

    /// Changes a letter by way of the engine.
    pub(crate) async fn act_by_engine(&self, message: &MessageId, act: Act) {
        let replayer = self.handle.as_ref().and_then(|handle| handle.replayer(NAME)).unwrap();
        replayer.act(LetterId::of(&queue(), message), act, &by()).await.unwrap();
    }

    /// The state of the letter of a message.
    pub(crate) async fn letter(&self, message: &MessageId) -> Option<LetterState> {
        self.store.inner.lookup(&queue(), std::slice::from_ref(message)).await.unwrap()[0]
    }

    pub(crate) fn is_handled(&self, message: &MessageId) -> bool {
        self.handled.lock().unwrap().iter().any(|id| id == message.as_str())
    }
}

pub(crate) fn queue() -> QueueName {
    QueueName::of(NAME, NAME)
}

pub(crate) fn by() -> Actor {
    Actor::new("ada", "cli", "to set the stage")
}

/// Lets this many virtual milliseconds pass.
pub(crate) async fn pass(millis: u64) {
    tokio::time::sleep(Duration::from_millis(millis)).await;
}
