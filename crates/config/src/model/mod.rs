//! The configuration as values that a program works with.

mod build;
mod consumer;
mod io;

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;

pub(crate) use build::{breaker_policy, fuse_policy, poison_policy, retry_policy};
pub use consumer::{Advanced, Approval, Consumer, DeadLetter, Order, Replay, Reprocess, Retry, RetryTopics};
pub use io::{
    Checkpoint, CommandHandler, CommandMode, Handler, HttpHandler, KafkaSource, MongodbSource, Source,
};

use crate::document::Document;
use crate::forms::{Address, StoreAt};

/// A whole configuration that was checked.
///
/// ```
/// use lazaret_config::{check, Handler, NoEnv, Source};
/// let text = "
/// consumers:
///   orders:
///     source: { inbox: {} }
///     handler: { http: { url: 'http://127.0.0.1:8080/events' } }
/// ";
/// let config = check("lazaret.yaml", text.as_bytes(), &NoEnv).config.unwrap();
/// assert_eq!(config.listen.to_string(), "127.0.0.1:7117");
/// let orders = config.consumer("orders").unwrap();
/// assert!(matches!(orders.source, Source::Inbox));
/// assert_eq!(orders.retry.policy.max_attempts, 3);
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Config {
    /// Where the API is served.
    pub listen: Address,
    /// Where letters and positions are kept.
    pub store: StoreAt,
    /// The consumers, in the order of the file.
    pub consumers: Vec<Consumer>,
    /// Who may use the API; `None` is everybody who can reach it.
    pub auth: Option<Auth>,
    /// Names under which the API may be called, beside its own.
    pub hosts: Vec<String>,
    /// How large requests may be.
    pub limits: RequestLimits,
    /// Whom to tell when something happens.
    pub webhooks: Vec<Webhook>,
    /// Logs and traces.
    pub telemetry: Telemetry,
    /// The folder of the flight recorder; `None` is off.
    pub flight_recorder: Option<PathBuf>,
    /// What was read, for explanations.
    pub(crate) document: Arc<Document>,
}

impl Config {
    /// A consumer by its name.
    pub fn consumer(&self, name: &str) -> Option<&Consumer> {
        self.consumers.iter().find(|consumer| consumer.name == name)
    }

    pub(crate) fn new(document: Document) -> Self {
        build::config(document)
    }
}

/// A text that is never shown.
///
/// ```
/// let secret = lazaret_config::Secret::new("hunter2");
/// assert_eq!(format!("{secret:?}"), "***");
/// assert_eq!(secret.reveal(), "hunter2");
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Hides a text.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The text.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

/// Who may use the API.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Auth {
    /// A file with tokens.
    pub tokens_file: Option<PathBuf>,
    /// Tokens in the configuration itself.
    pub tokens: Vec<Token>,
}

/// A token, without its text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Token {
    /// Who this is.
    pub name: String,
    /// `sha256:` and 64 hexadecimal digits.
    pub hash: String,
    /// What it may do.
    pub scopes: Vec<&'static str>,
    /// When it ends to be good.
    pub expires: Option<Timestamp>,
}

/// How large requests may be, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestLimits {
    /// The body of a request.
    pub body: u64,
    /// The body of a batch for an inbox.
    pub batch: u64,
    /// All headers together.
    pub headers: u64,
}

/// A URL that gets a POST for each event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Webhook {
    /// Where to send it.
    pub url: String,
    /// What signs requests.
    pub secret: Option<Secret>,
    /// Which events are sent.
    pub events: Vec<&'static str>,
    /// How long the receiver may take.
    pub timeout: Duration,
}

/// Logs and traces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Telemetry {
    /// Where traces are sent.
    pub otlp_endpoint: Option<String>,
    /// Whether log lines are JSON.
    pub json_logs: bool,
    /// How much is logged: `error`, `warn`, `info`, `debug` or `trace`.
    pub log_level: &'static str,
    /// Whether the words of failures are logged.
    pub log_error_messages: bool,
}
