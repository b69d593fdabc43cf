//! Lazaret: the failure-handling layer for event consumers.
//!
//! Lazaret runs between an event source and a handler. When the handler fails, it decides by rules
//! whether to retry now, retry later, park, dead-letter, quarantine or skip the message. It keeps the
//! messages of one key in order while every other key flows on. It never commits the source position
//! past a message whose outcome is not durable.
//!
//! This is the crate to depend on. It re-exports the [vocabulary](#structs), the [`handler`] side, the
//! pure [`policy`] functions, the contracts for a [`store`] and a [`source`], and the engine that runs a
//! [`Consumer`].
//!
#![cfg_attr(feature = "memory", doc = "```")]
#![cfg_attr(not(feature = "memory"), doc = "```ignore")]
//! use std::sync::Arc;
//!
//! use lazaret::memory::{MemoryLog, MemoryStore};
//! use lazaret::prelude::*;
//!
//! #[derive(serde::Deserialize)]
//! struct Order {
//!     id: u32,
//!     cents: i64,
//! }
//!
//! async fn on_order(Json(order): Json<Order>, Attempt(attempt): Attempt) -> Result<(), HandlerError> {
//!     if order.cents < 0 {
//!         // A reason says what kind of failure it is. This kind is not retried: the message becomes a dead letter.
//!         return Err(HandlerError::msg("a negative total").reason(Reason::DOMAIN_INVALID));
//!     }
//!     println!("order {} on attempt {attempt}", order.id);
//!     Ok(())
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let log = MemoryLog::new("orders", 1);
//! log.push(0, "ada", r#"{"id": 1, "cents": 1250}"#);
//! log.push(0, "bob", r#"{"id": 2, "cents": -1}"#);
//! log.push(0, "bob", r#"{"id": 3, "cents": 400}"#);
//! log.close();
//! let store = Arc::new(MemoryStore::default());
//!
//! let consumer = Consumer::builder("shop")
//!     .source(log.join())
//!     .store(store.clone())
//!     .handler(on_order)
//!     .until_idle()
//!     .build()?;
//! let queue = consumer.queue().clone();
//! let stats = consumer.run(CancellationToken::new()).await?;
//!
//! // Order 1 was handled. Order 2 is dead, and order 3 waits behind it because it has the same key.
//! let counts = store.counts(&queue).await?;
//! assert_eq!(stats.handled, 1);
//! assert_eq!((counts.of(LetterState::Dead), counts.of(LetterState::Waiting)), (1, 1));
//! assert_eq!(log.committed(0), Some(2));
//! # Ok(())
//! # }
//! ```
//!
//! # Features
//!
//! - `memory` (default): the `memory` module, a store and a source in memory.
//! - `signal` (default): `Consumer::run_until_ctrl_c`.
//! - `anyhow`: handlers may return `anyhow::Error`.
//! - `sqlite`: the `sqlite` module, a store in one file, with an inbox that is a source.
//! - `file`: the `file` module, a source for files with one JSON message per line.
//! - `encryption`: the `encryption` module, which encrypts the content of stores.
//! - `flight-recorder`: the `flight` module, which finds messages that crash the process.
//! - `handlers`: the `handlers` module, handlers in any language, over HTTP or as commands.
//! - `macros`: the `declare` module, consumers declared with attributes.
//! - `kafka`: the `kafka` module, a source for Kafka, retry topics, and dead-letter topics, which can be
//!   adopted and mirrored.
//! - `mongodb`: the `mongodb` module, a source for MongoDB change streams, a store in MongoDB, and the
//!   adoption of FlowWarden's dead letters and positions.
//! - `postgres`: the `postgres` module, a store and an inbox in PostgreSQL, a source for an outbox,
//!   exactly-once effects, and the adoption of Axon's dead letters.
//! - `server`: the `server` module, the HTTP API over a store and the consumers of this process.
//! - `console`: the `console` module, the web console over that API.
//! - `full`: all of these.

pub use lazaret_core::{
    clock, failure, fingerprint, handler, letter, message, policy, query, recorder, redaction, relay,
    sequence, source, store,
};

pub use lazaret_core::{
    Clock, ConsumerName, Failure, Fingerprint, FlightRecorder, Grouping, HandlerError, Headers, Letter,
    LetterId, LetterState, LetterStore, Message, MessageId, Operation, Partition, Phase, Position, QueueName,
    Reason, Relay, Schema, SequenceId, Sequencing, Source, Store, StreamName, SystemClock, Timestamp,
    UnknownVerdict, Verdict,
};
pub use lazaret_engine::{
    BuildError, Builder, Consumer, DeadLetterOptions, DedupeOptions, Error, Event, Filter, FuseState, Handle,
    InvalidSchedule, Observer, Options, ReplayOptions, ReplayReport, Replayer, Reprocess, Schedule, Stats,
    Timeout,
};
pub use tokio_util::sync::CancellationToken;

#[cfg(feature = "macros")]
pub mod declare;

/// Handlers in any language, called over HTTP or run as commands.
#[cfg(feature = "handlers")]
pub mod handlers {
    pub use lazaret_handlers::{
        CommandHandler, CommandOptions, Error, HEADER_BYTES_LIMIT, HEADERS_LIMIT, HttpHandler, HttpOptions,
        HttpVersion, Mode, NAME_BYTES_LIMIT,
    };
}

/// The source for Kafka, which is a member of a consumer group; retry topics, with which the broker
/// holds failed messages; and dead-letter topics.
///
/// ```no_run
/// use std::sync::Arc;
/// use std::time::Duration;
///
/// use lazaret::kafka::{KafkaOptions, KafkaRelay, KafkaSource, RetryTopics};
/// use lazaret::policy::{RetryPolicy, Strategy};
/// use lazaret::prelude::*;
///
/// # async fn example(store: Arc<dyn Store>) -> Result<(), Box<dyn std::error::Error>> {
/// let retry = RetryPolicy {
///     strategy: Strategy::Topics,
///     initial_delay: Duration::from_secs(60),
///     multiplier: 10.0,
///     max_delay: Duration::from_secs(3600),
///     ..RetryPolicy::default()
/// };
/// let kafka = KafkaOptions::new("127.0.0.1:9092", "notification-service", ["case-events"]);
/// // case-events.notification-service.retry.1m and .retry.10m, and case-events.notification-service.dlt
/// let topics = RetryTopics::for_policy("notification-service", &retry).creating_topics();
/// let relay = KafkaRelay::open(&kafka, topics).await?;
///
/// let consumer = Consumer::builder("notification-service")
///     .source(KafkaSource::open_with(kafka, &relay)?)
///     .store(store)
///     .handler(|message: Message| async move { println!("{}", message.id) })
///     .retry(retry)
///     .relay(relay)
///     .build()?;
/// consumer.run(CancellationToken::new()).await?;
/// # Ok(())
/// # }
/// ```
#[cfg(feature = "kafka")]
pub mod kafka {
    pub use lazaret_adopt::kafka as adopt;
    pub use lazaret_adopt::mirror::{Mirror, MirrorState};
    pub use lazaret_source_kafka::{KafkaOptions, KafkaRelay, KafkaSource, KafkaState, RetryTopics, headers};
}

/// The source for MongoDB change streams, and the store in MongoDB.
///
/// ```no_run
/// use std::sync::Arc;
///
/// use lazaret::mongodb::{Document, MongoSource, MongoSourceOptions, MongoStore, MongoStoreOptions};
/// use lazaret::prelude::*;
///
/// # #[derive(serde::Deserialize)] struct Order { total: f64 }
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let uri = "mongodb://127.0.0.1:27017/shop";
/// let store = Arc::new(MongoStore::connect(uri, MongoStoreOptions::default()).await?);
/// let source = MongoSource::open(MongoSourceOptions::collection(uri, "shop", "orders"), store.clone())?;
/// let consumer = Consumer::builder("orders")
///     .source(source)
///     .store(store)
///     .handler(|Document(order): Document<Order>| async move { println!("{}", order.total) })
///     .build()?;
/// consumer.run(CancellationToken::new()).await?;
/// # Ok(())
/// # }
/// ```
#[cfg(feature = "mongodb")]
pub mod mongodb {
    pub use lazaret_adopt::flowwarden;
    pub use lazaret_source_mongodb::{
        Before, BeforeChange, ChangeEvent, CheckpointOptions, Decision, Deployment, Document, DocumentKey,
        ErrorClass, ForeignAnchor, ForeignAnchorKind, ForeignPosition, FullDocument, LeaseOptions,
        MongoSource, MongoSourceOptions, MongoStatus, Namespace, OnHistoryLost, OnInvalidate, OperationType,
        OplogWindow, ProbeError, Probed, RestartPolicy, ResumePoint, Server, Start, StoreCollections,
        StreamState, TakeOverError, TakeOverOptions, TakenOver, Transaction, TransactionInfo, TruncatedArray,
        UpdateDescription, bson, driver, headers,
    };
    pub use lazaret_store_mongodb::{
        CollectionSharding, Layout, MongoStore, MongoStoreOptions, flowwarden_document,
    };
}

/// The store in PostgreSQL, the source for a transactional outbox, and transactions for handlers, which
/// give exactly-once effects.
///
/// ```no_run
/// use lazaret::postgres::{PostgresStore, PostgresStoreOptions};
///
/// # async fn open() -> Result<(), lazaret::store::StoreError> {
/// let store = PostgresStore::connect("postgres://lazaret@db.example/shop", PostgresStoreOptions::default()).await?;
/// # Ok(())
/// # }
/// ```
#[cfg(feature = "postgres")]
pub mod postgres {
    pub use lazaret_adopt::axon;
    pub use lazaret_source_postgres::{Ack, Columns, OutboxOptions, OutboxSource, OutboxState, OutboxStatus};
    pub use lazaret_store_postgres::{
        ExactlyOnce, ExactlyOnceOptions, InboxLog, InboxOptions, InboxSource, InboxStatus, Marks,
        PostgresStore, PostgresStoreOptions, Tx, driver,
    };
}

/// The store and the source in memory, for tests, demos and first steps. Their content is lost with the
/// process.
#[cfg(feature = "memory")]
pub mod memory {
    pub use lazaret_memory::{MemberId, MemoryLog, MemorySource, MemoryStore};
}

/// The store in one SQLite file: letters, audit, checkpoints, the idempotent receiver, and an inbox that
/// is a source.
#[cfg(feature = "sqlite")]
pub mod sqlite {
    pub use lazaret_store_sqlite::{
        AuditCheck, Backlog, Durability, FORMAT_VERSION, InboxLog, InboxOptions, InboxSource, Options,
        Posted, SqliteStore,
    };
}

/// The HTTP API: triage and replay of letters, inboxes for messages, and a stream of events.
#[cfg(feature = "server")]
pub mod server {
    pub use lazaret_server::{
        Approval, Builder, Error, InvalidTokenHash, Limits, Options, Posted, Registry, Server, StoreNotice,
        Token, TokenHash, Tokens, generate_token, openapi,
    };
}

/// The web console: pages over the HTTP API of the same process.
///
/// ```
/// use std::sync::Arc;
/// # #[cfg(feature = "memory")] {
/// let store = Arc::new(lazaret::memory::MemoryStore::default());
/// let server = lazaret::server::Server::builder(store)
///     .pages(lazaret::console::router)
///     .problem_page(lazaret::console::problem_page)
///     .build();
/// # let _ = server;
/// # }
/// ```
#[cfg(feature = "console")]
pub mod console {
    pub use lazaret_console::{InvalidOidc, OidcOptions, Options, pages, problem_page, router};
}

/// Metrics, log lines, alerts and, with the feature `otlp`, traces.
#[cfg(feature = "telemetry")]
pub mod telemetry {
    #[cfg(feature = "otlp")]
    pub use lazaret_telemetry::traces;
    pub use lazaret_telemetry::{
        AttemptLayer, BUCKETS, Error, LogObserver, Metrics, Overview, QueueOverview, alerts, logs, names,
    };
}

/// The source for files with one JSON message per line.
#[cfg(feature = "file")]
pub mod file {
    pub use lazaret_source_file::{FileSource, Options};
}

/// Encryption of the content of stores. Wrap the store in a [`SealedStore`](encryption::SealedStore). If
/// only other instances encrypt and this one has no key, wrap it in a
/// [`PlainStore`](encryption::PlainStore).
#[cfg(feature = "encryption")]
pub mod encryption {
    pub use lazaret_sealing::{
        EncryptionKey, InvalidKey, KeyError, KeyId, KeyRing, PlainStore, SealedInbox, SealedSource,
        SealedStore, WrappedKey,
    };
}

/// Finds messages that crash the process: by an abort, by exhausting memory or by a stack overflow.
#[cfg(feature = "flight-recorder")]
pub mod flight {
    pub use lazaret_flight_recorder::{MappedRecorder, OpenError, Options};
}

pub mod prelude;

/// Compiles the Rust code of the Kafka guide, which keeps it up to date.
#[cfg(all(doctest, feature = "kafka", feature = "sqlite"))]
#[doc = include_str!("../../../docs/kafka.md")]
struct KafkaGuide;

/// Compiles the Rust code of the MongoDB guide.
#[cfg(all(doctest, feature = "mongodb", feature = "sqlite"))]
#[doc = include_str!("../../../docs/mongodb.md")]
struct MongodbGuide;

/// Compiles the Rust code of the guide to the MongoDB store.
#[cfg(all(doctest, feature = "mongodb"))]
#[doc = include_str!("../../../docs/store-mongodb.md")]
struct MongodbStoreGuide;

/// Compiles the Rust code of the guide to the PostgreSQL store.
#[cfg(all(doctest, feature = "postgres"))]
#[doc = include_str!("../../../docs/postgres.md")]
struct PostgresStoreGuide;

/// Compiles the Rust code of the guide to idempotency.
#[cfg(all(doctest, feature = "postgres"))]
#[doc = include_str!("../../../docs/idempotency.md")]
struct IdempotencyGuide;

/// Compiles the Rust code of the guide to the outbox.
#[cfg(all(doctest, feature = "postgres", feature = "memory"))]
#[doc = include_str!("../../../docs/outbox.md")]
struct OutboxGuide;

/// Compiles the Rust code of the guide to adopting dead letters.
#[cfg(all(doctest, feature = "kafka", feature = "mongodb", feature = "postgres", feature = "sqlite"))]
#[doc = include_str!("../../../docs/adopt.md")]
struct AdoptGuide;

/// Compiles the Rust code of the guide to handlers.
#[cfg(all(doctest, feature = "handlers", feature = "memory"))]
#[doc = include_str!("../../../docs/handlers.md")]
struct HandlersGuide;

/// Compiles the Rust code of the guide to the library.
#[cfg(all(
    doctest,
    feature = "memory",
    feature = "signal",
    feature = "anyhow",
    feature = "sqlite",
    feature = "file",
    feature = "flight-recorder"
))]
#[doc = include_str!("../../../docs/library.md")]
struct LibraryGuide;

/// Compiles the Rust code of the guide to attributes.
#[cfg(all(doctest, feature = "macros", feature = "memory"))]
#[doc = include_str!("../../../docs/attributes.md")]
struct AttributesGuide;

/// Compiles and runs the Rust code of the README, which keeps it up to date.
#[cfg(all(doctest, feature = "memory"))]
#[doc = include_str!("../../../README.md")]
struct Readme;
