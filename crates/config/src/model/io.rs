//! The configuration of sources and handlers.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use serde_json::Value as Json;

use super::enums::{
    BeforeChange, FullDocument, HistoryLost, OnInvalidate, OperationType, OutboxAck, StartPosition,
};
use super::secret::Secret;
use crate::secrets::redacted;

/// The source of messages.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Source {
    /// Messages posted to this process over HTTP.
    Inbox,
    /// A file with one JSON message per line.
    File {
        /// The path of the file.
        path: PathBuf,
        /// Whether to wait at the end of the file for new lines.
        follow: bool,
    },
    /// Kafka topics.
    Kafka(KafkaSource),
    /// A MongoDB change stream.
    Mongodb(MongodbSource),
    /// A transactional outbox in PostgreSQL.
    PostgresOutbox(PostgresOutboxSource),
}

impl Source {
    /// Returns the key of the source in the file.
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Inbox => "inbox",
            Self::File { .. } => "file",
            Self::Kafka(_) => "kafka",
            Self::Mongodb(_) => "mongodb",
            Self::PostgresOutbox(_) => "postgres-outbox",
        }
    }
}

/// Kafka topics, read as a member of a consumer group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KafkaSource {
    /// The bootstrap brokers: a comma-separated list.
    pub brokers: String,
    /// The topics to read.
    pub topics: Vec<String>,
    /// The consumer group. Default: the name of the consumer.
    pub group: String,
    /// Properties of librdkafka.
    pub properties: Vec<(String, Secret)>,
    /// Headers with the message id. The first header present is used.
    pub id_headers: Vec<String>,
    /// Headers with the event type. The first header present is used.
    pub type_headers: Vec<String>,
    /// Headers with the correlation id. The first header present is used.
    pub correlation_headers: Vec<String>,
    /// The id of the group's static member, or `dynamic` for a dynamic member. `None` derives it from
    /// the store, if the store is a file.
    pub member: Option<String>,
    /// The ids of stores that this daemon's store replaces.
    pub replaced_stores: Vec<String>,
    /// The maximum wait for topics that do not exist yet.
    pub topic_timeout: Duration,
    /// Whether a log without an id may be read as a new one when the saved position cannot belong to it.
    /// Otherwise that is an error.
    pub may_start_fresh: bool,
}

impl KafkaSource {
    /// The value of `member` that requests dynamic membership.
    pub const DYNAMIC_MEMBER: &'static str = "dynamic";
}

/// The change stream of a MongoDB collection, a database or a whole deployment.
#[derive(Clone, Debug, PartialEq)]
pub struct MongodbSource {
    /// The connection string.
    pub uri: Secret,
    /// The database. `None` watches all databases.
    pub database: Option<String>,
    /// The collection. `None` watches the whole database.
    pub collection: Option<String>,
    /// The full-document mode.
    pub full_document: FullDocument,
    /// The pre-image mode.
    pub before_change: BeforeChange,
    /// The operations to read. If empty, all are read.
    pub operations: Vec<OperationType>,
    /// The aggregation stages.
    pub pipeline: Vec<Json>,
    /// The start position.
    pub start: StartPosition,
    /// The action when the saved position is no longer in the oplog, or is later than the server's
    /// latest change.
    pub on_history_lost: HistoryLost,
    /// The action when the stream is invalidated, for example by a drop of its collection.
    pub on_invalidate: OnInvalidate,
    /// The schedule for saving the position.
    pub checkpoint: Checkpoint,
    /// The delays and the limit for reopening a failed stream.
    pub restart: Restart,
    /// Whether one instance reads and the others stand by.
    pub single_leader: bool,
    /// The name of this instance. `None` uses the host name.
    pub instance: Option<String>,
}

/// A table of a PostgreSQL database whose rows are messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PostgresOutboxSource {
    /// The connection URL.
    pub dsn: Secret,
    /// The table.
    pub table: String,
    /// The column of the id.
    pub id: String,
    /// The column of the key.
    pub key: String,
    /// The column of the event type.
    pub event_type: String,
    /// The column of the payload.
    pub payload: String,
    /// The column of the headers.
    pub headers: String,
    /// The column of the event time.
    pub created_at: String,
    /// How settled rows are acknowledged.
    pub ack: OutboxAck,
    /// The notification channel.
    pub channel: String,
    /// The maximum wait for a notification.
    pub poll: Duration,
    /// The time after which the server ends an unresponsive session.
    pub session_timeout: Duration,
    /// Whether to create the table and its trigger.
    pub setup: bool,
    /// The position to give up.
    pub start_over: Option<u64>,
}

/// The schedule for saving the position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Checkpoint {
    /// The number of messages after which the position is saved.
    pub every: u64,
    /// The maximum interval between saves. `None` turns it off.
    pub interval: Option<Duration>,
    /// The interval between saves while the stream is idle. `None` turns it off.
    pub idle_heartbeat: Option<Duration>,
}

/// The schedule for reopening a failed change stream.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Restart {
    /// The maximum number of restarts without progress. `None` means unlimited.
    pub max_attempts: Option<u32>,
    /// The delay before the first restart.
    pub initial_delay: Duration,
    /// The factor between consecutive delays.
    pub multiplier: f64,
    /// The maximum delay.
    pub max_delay: Duration,
}

/// The handler of messages.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Handler {
    /// An HTTP service that receives a POST request for each attempt.
    Http(HttpHandler),
    /// A program.
    Command(CommandHandler),
    /// Methods of the program that declares the consumer. See [`declared`](crate::declared).
    Declared,
}

impl Handler {
    /// Returns the timeout of an attempt. Returns `None` if the program sets it.
    pub const fn timeout(&self) -> Option<Duration> {
        match self {
            Self::Http(http) => Some(http.timeout),
            Self::Command(command) => Some(command.timeout),
            Self::Declared => None,
        }
    }
}

/// An HTTP service that receives a POST request for each attempt.
#[derive(Clone, PartialEq, Eq)]
pub struct HttpHandler {
    /// The URL.
    pub url: String,
    /// The timeout of an attempt.
    pub timeout: Duration,
    /// Additional request headers.
    pub headers: Vec<(String, Secret)>,
    /// Whether to use HTTP/2 with prior knowledge.
    pub http2: bool,
    /// The maximum number of connections. Default: `concurrency`.
    pub max_connections: usize,
    /// A PEM file with trusted certificate authorities.
    pub tls_ca: Option<PathBuf>,
}

/// Redacts a password in the URL.
impl fmt::Debug for HttpHandler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpHandler")
            .field("url", &redacted(&self.url, &[]))
            .field("timeout", &self.timeout)
            .field("headers", &self.headers)
            .field("http2", &self.http2)
            .field("max_connections", &self.max_connections)
            .field("tls_ca", &self.tls_ca)
            .finish()
    }
}

/// A program that runs once per attempt, or as a long-running worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommandHandler {
    /// The program and its arguments. Never empty.
    pub program: Vec<String>,
    /// The timeout of an attempt.
    pub timeout: Duration,
    /// How the program is executed.
    pub mode: CommandMode,
    /// The maximum number of processes. With `None`, it depends on the mode.
    pub workers: Option<usize>,
    /// Environment variables of the program.
    pub env: Vec<(String, Secret)>,
    /// Environment variables to inherit in addition to the default ones. A name that ends with `*` is a
    /// prefix.
    pub inherit_env: Vec<String>,
}

/// How a program is executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum CommandMode {
    /// One process per attempt.
    Once,
    /// Long-running workers, which read and write one JSON line per attempt.
    Lines,
}
