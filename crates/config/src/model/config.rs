//! The top level of the configuration.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use lazaret_core::redaction::Redaction;

use super::console::Console;
use super::consumer::Consumer;
use super::enums::{LogFormat, LogLevel};
use super::secret::Secret;
use crate::document::Document;
use crate::formats::{Address, StoreLocation};

/// A complete and valid configuration.
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
    /// The address of the API.
    pub listen: Address,
    /// The store for letters and positions.
    pub store: StoreLocation,
    /// The consumers, in file order.
    pub consumers: Vec<Consumer>,
    /// The authentication of API clients. `None` leaves the API unauthenticated.
    pub auth: Option<Auth>,
    /// Additional host names of the API.
    pub hosts: Vec<String>,
    /// The certificate and key of the API. `None` serves plain HTTP.
    pub tls: Option<Tls>,
    /// A Unix socket that also serves the API.
    pub socket: Option<PathBuf>,
    /// The web console.
    pub console: Console,
    /// The redaction rules for values of letters.
    pub redact: Redaction,
    /// The encryption of stored content. `None` stores it in the clear.
    pub encryption: Option<Encryption>,
    /// The limits of requests.
    pub limits: RequestLimits,
    /// The receivers of alerts.
    pub webhooks: Vec<Webhook>,
    /// The base URL of the documentation, for the runbook links of alerts.
    pub docs_url: Option<String>,
    /// The thresholds of alerts.
    pub alert_thresholds: AlertThresholds,
    /// Logs and traces.
    pub telemetry: Telemetry,
    /// The directory of the flight recorder. `None` turns it off.
    pub flight_recorder: Option<PathBuf>,
    /// The values as read from the file, with locations.
    pub(crate) document: Arc<Document>,
}

impl Config {
    /// Returns a consumer by name.
    pub fn consumer(&self, name: &str) -> Option<&Consumer> {
        self.consumers.iter().find(|consumer| consumer.name == name)
    }
}

/// The authentication of API clients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Auth {
    /// A file with tokens.
    pub tokens_file: Option<PathBuf>,
    /// Tokens in the configuration itself.
    pub tokens: Vec<Token>,
}

/// An API token, as a hash.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Token {
    /// The name of the client.
    pub name: String,
    /// `sha256:` and 64 hexadecimal digits.
    pub hash: String,
    /// The scopes, by their names in the API.
    pub scopes: Vec<&'static str>,
    /// The expiry time.
    pub expires: Option<Timestamp>,
    /// The person. `None` stands for a person with the token's name.
    pub person: Option<String>,
    /// The consumers that the token is limited to. If empty, the token is valid for all.
    pub consumers: Vec<String>,
}

/// The TLS files of the API, in PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tls {
    /// The certificate, followed by the certificates of its issuers.
    pub certificate: PathBuf,
    /// The private key.
    pub key: PathBuf,
    /// How long browsers must use TLS only. Zero sends no such policy.
    pub hsts: Duration,
}

/// The encryption of stored content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Encryption {
    /// The keys. The first one encrypts.
    pub keys: Vec<KeySource>,
}

/// The origin of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeySource {
    /// A file.
    File(PathBuf),
    /// A program that prints the key.
    Command {
        /// The program and its arguments.
        program: Vec<String>,
        /// The timeout of the program.
        timeout: Duration,
    },
}

/// The limits of requests. Sizes are in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestLimits {
    /// The maximum size of a request body.
    pub body: u64,
    /// The maximum size of an inbox batch.
    pub batch: u64,
    /// The maximum size of all headers.
    pub headers: u64,
    /// The maximum number of messages in an inbox batch.
    pub batch_messages: usize,
    /// The maximum number of open connections.
    pub connections: usize,
    /// The maximum number of open connections from one address.
    pub connections_per_peer: usize,
    /// The maximum number of concurrent requests with one token.
    pub requests_per_token: usize,
    /// The maximum number of plans per person that were not started.
    pub drafts_per_person: usize,
    /// The maximum number of plans that were not started.
    pub drafts: usize,
    /// The number of letters in plans that were not started at which no further plan is frozen.
    pub draft_letters: u64,
}

/// The thresholds at which alerts fire.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AlertThresholds {
    /// The time window for rates. It is also the time that a failed consumer has to recover before an
    /// alert fires.
    pub window: Duration,
    /// Retries per second.
    pub retry_rate: f64,
    /// The share of failed attempts in a retry storm.
    pub storm_share: f64,
    /// The minimum number of failures in a window for a retry storm.
    pub storm_failures: u64,
    /// The time for which a message is retried.
    pub retry_age: Duration,
    /// The age of a running attempt.
    pub attempt_age: Duration,
    /// The number of consecutive windows in which messages wait and none is handled.
    pub blocked_windows: u32,
    /// The duration of a pause.
    pub paused_for: Duration,
    /// The time until the next letter of a queue expires.
    pub expires_within: Duration,
    /// The time without a new event that resolves an alert which has no end of its own.
    pub quiet: Duration,
}

/// A URL that receives a POST request for each event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Webhook {
    /// The URL.
    pub url: String,
    /// The secret that signs requests.
    pub secret: Option<Secret>,
    /// The events to send.
    pub events: Vec<&'static str>,
    /// The timeout of a request.
    pub timeout: Duration,
}

/// Logs and traces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Telemetry {
    /// The OTLP endpoint for traces.
    pub otlp_endpoint: Option<String>,
    /// The format of log lines.
    pub log_format: LogFormat,
    /// The minimum level of log lines.
    pub log_level: LogLevel,
    /// Whether the messages of failures are logged.
    pub log_error_messages: bool,
}
