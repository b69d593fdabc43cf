//! Sources and handlers as values.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use serde_json::Value as Json;

use super::Secret;
use crate::secrets::painted;

/// Where messages come from.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Source {
    /// Messages that are sent to this process over HTTP.
    Inbox,
    /// A file with one JSON message a line.
    File {
        /// The file.
        path: PathBuf,
        /// Whether to wait for more at its end.
        follow: bool,
    },
    /// Topics of Kafka.
    Kafka(KafkaSource),
    /// Changes of a MongoDB collection.
    Mongodb(MongodbSource),
}

impl Source {
    /// The key that it has in the file.
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Inbox => "inbox",
            Self::File { .. } => "file",
            Self::Kafka(_) => "kafka",
            Self::Mongodb(_) => "mongodb",
        }
    }
}

/// Topics of Kafka, as a member of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KafkaSource {
    /// Hosts and ports, separated by commas.
    pub brokers: String,
    /// What to read.
    pub topics: Vec<String>,
    /// The consumer group: the consumer's name unless given.
    pub group: String,
    /// Properties of librdkafka.
    pub properties: Vec<(String, Secret)>,
    /// Headers of which the first that is there is the id.
    pub id_headers: Vec<String>,
    /// Headers of which the first that is there is the event type.
    pub type_headers: Vec<String>,
    /// Headers of which the first that is there is the correlation id.
    pub correlation_headers: Vec<String>,
}

/// Changes of a MongoDB collection.
#[derive(Clone, Debug, PartialEq)]
pub struct MongodbSource {
    /// Where to find the cluster.
    pub uri: Secret,
    /// The database.
    pub database: String,
    /// The collection.
    pub collection: String,
    /// `default`, `update-lookup`, `when-available` or `required`.
    pub full_document: &'static str,
    /// Stages of an aggregation.
    pub pipeline: Vec<Json>,
    /// `resume` or `latest`.
    pub start: &'static str,
    /// `fail`, `resume-from-now` or `resume-from-oplog-start`.
    pub on_history_lost: &'static str,
    /// How often the place is saved.
    pub checkpoint: Checkpoint,
    /// Whether one instance reads and the others stand by.
    pub single_leader: bool,
}

/// How often the place in the changes is saved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Checkpoint {
    /// After so many messages.
    pub every: u64,
    /// And at least so often; `None` for never.
    pub interval: Option<Duration>,
    /// How often it is moved on while nothing comes; `None` for never.
    pub idle_heartbeat: Option<Duration>,
}

/// Who handles messages.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Handler {
    /// A service that gets a POST for each attempt.
    Http(HttpHandler),
    /// A program.
    Command(CommandHandler),
}

impl Handler {
    /// How long one attempt may take.
    pub const fn timeout(&self) -> Duration {
        match self {
            Self::Http(http) => http.timeout,
            Self::Command(command) => command.timeout,
        }
    }
}

/// A service that gets a POST for each attempt.
#[derive(Clone, PartialEq, Eq)]
pub struct HttpHandler {
    /// Where to send it.
    pub url: String,
    /// How long one attempt may take.
    pub timeout: Duration,
    /// Headers to send along.
    pub headers: Vec<(String, Secret)>,
    /// Whether to speak HTTP/2 from the first byte on.
    pub http2: bool,
    /// How many connections are kept open at most; as many as `concurrency` unless given.
    pub max_connections: usize,
    /// A PEM file with the authorities to trust.
    pub tls_ca: Option<PathBuf>,
}

/// Without the password that may stand in the URL.
impl fmt::Debug for HttpHandler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpHandler")
            .field("url", &painted(&self.url, &[]))
            .field("timeout", &self.timeout)
            .field("headers", &self.headers)
            .field("http2", &self.http2)
            .field("max_connections", &self.max_connections)
            .field("tls_ca", &self.tls_ca)
            .finish()
    }
}

/// A program that is run for each attempt, or kept running.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommandHandler {
    /// The program and its arguments; never empty.
    pub program: Vec<String>,
    /// How long one attempt may take.
    pub timeout: Duration,
    /// How it is called.
    pub mode: CommandMode,
    /// How many processes run at once; `None` leaves it to the mode.
    pub workers: Option<usize>,
    /// Variables for the program.
    pub env: Vec<(String, Secret)>,
}

/// How a program is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CommandMode {
    /// A process for each attempt.
    Once,
    /// Processes that stay: one JSON line in, one out.
    Lines,
}
