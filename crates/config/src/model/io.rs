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
    /// Messages that are posted to this process over HTTP.
    Inbox,
    /// A file with one JSON message per line.
    File {
        /// The path of the file.
        path: PathBuf,
        /// Whether to wait for new lines at the end.
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
    /// Headers with the message id; the first present header is used.
    pub id_headers: Vec<String>,
    /// Headers with the event type; the first present header is used.
    pub type_headers: Vec<String>,
    /// Headers with the correlation id; the first present header is used.
    pub correlation_headers: Vec<String>,
    /// The id of the static member of the group; `dynamic` for a dynamic member. `None`: derived from the store, if it is a file.
    pub member: Option<String>,
    /// Ids of stores that the store of this daemon replaces.
    pub replaced_stores: Vec<String>,
    /// The maximum wait for topics that do not exist yet.
    pub topic_timeout: Duration,
    /// A log without an id is read as a new one when the position cannot be one of it; otherwise that is an error.
    pub may_start_fresh: bool,
}

impl KafkaSource {
    /// The `member` that asks for dynamic membership.
    pub const DYNAMIC_MEMBER: &'static str = "dynamic";
}

/// The change stream of a MongoDB collection, a database or a whole deployment.
#[derive(Clone, Debug, PartialEq)]
pub struct MongodbSource {
    /// The connection string.
    pub uri: Secret,
    /// The database; `None` watches all of them.
    pub database: Option<String>,
    /// The collection; `None` watches the whole database.
    pub collection: Option<String>,
    /// The full-document mode.
    pub full_document: FullDocument,
    /// The pre-image mode.
    pub before_change: BeforeChange,
    /// The operations to read; empty for all.
    pub operations: Vec<OperationType>,
    /// The aggregation stages.
    pub pipeline: Vec<Json>,
    /// The start position.
    pub start: StartPosition,
    /// The action when the saved position is no longer in the oplog, or later than all that the server has.
    pub on_history_lost: HistoryLost,
    /// The action when the stream was invalidated, as by a drop of its collection.
    pub on_invalidate: OnInvalidate,
    /// How often the position is saved.
    pub checkpoint: Checkpoint,
    /// When a failed stream is opened again.
    pub restart: Restart,
    /// Whether one instance reads and the others stand by.
    pub single_leader: bool,
    /// The name of this instance; `None` is the name of the host.
    pub instance: Option<String>,
}

/// A table of a PostgreSQL database, whose rows are messages.
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
    /// The channel of notifications.
    pub channel: String,
    /// The longest wait for a notification.
    pub poll: Duration,
    /// The time after which the server ends a session that does not respond.
    pub session_timeout: Duration,
    /// Whether to create the table and its trigger.
    pub setup: bool,
    /// The position that is given up.
    pub start_over: Option<u64>,
}

/// How often the position is saved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Checkpoint {
    /// After this number of messages.
    pub every: u64,
    /// At least this often; `None` is off.
    pub interval: Option<Duration>,
    /// This often while the stream is idle; `None` is off.
    pub idle_heartbeat: Option<Duration>,
}

/// When a failed change stream is opened again.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Restart {
    /// The maximum number of restarts without progress; `None` is unlimited.
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
    /// The timeout of an attempt; `None` if the program sets it.
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
    /// The program and its arguments; never empty.
    pub program: Vec<String>,
    /// The timeout of an attempt.
    pub timeout: Duration,
    /// How the program is executed.
    pub mode: CommandMode,
    /// The maximum number of processes; `None` depends on the mode.
    pub workers: Option<usize>,
    /// Environment variables of the program.
    pub env: Vec<(String, Secret)>,
    /// The inherited environment variables, in addition to the default ones. A name that ends with `*` is a prefix.
    pub inherit_env: Vec<String>,
}

/// How a program is executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum CommandMode {
    /// One process per attempt.
    Once,
    /// Long-running workers: one JSON line in, one out.
    Lines,
}
