//! Options of the server; the defaults are closed and bounded.

use std::time::Duration;

use lazaret_core::redaction::Redaction;
use lazaret_core::store::DraftLimits;

use crate::auth::{SessionLimits, TrustedProxy};

/// Limits on sizes, numbers and durations (I7).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The largest inbox message, in bytes.
    pub message_bytes: usize,
    /// The largest inbox batch, in bytes.
    pub batch_bytes: usize,
    /// The largest body of any other request, in bytes.
    pub json_bytes: usize,
    /// The largest import, in bytes. It is held in memory: letters are sorted before the first is imported.
    pub import_bytes: usize,
    /// The default page size.
    pub page: usize,
    /// The maximum page size.
    pub max_page: usize,
    /// The maximum number of letters in a plan.
    pub plan_letters: u64,
    /// The limits on plans that were not started.
    pub drafts: DraftLimits,
    /// The maximum number of letter ids in a request.
    pub named_letters: usize,
    /// The maximum number of letters per bulk change.
    pub bulk_letters: usize,
    /// The time from the end of a request's body until the response must start.
    pub request_timeout: Duration,
    /// The same time for an import.
    pub import_timeout: Duration,
    /// The timeout for receiving the headers of the first request of a connection.
    pub header_timeout: Duration,
    /// The maximum size of the request headers, in bytes.
    pub header_bytes: usize,
    /// The maximum number of open connections. Beyond it, a connection without an authenticated request in progress is closed,
    /// those without any authenticated request first.
    pub connections: usize,
    /// The maximum number of open connections from one IP address. Beyond it, one of them is closed in the same way.
    pub connections_per_peer: usize,
    /// The number of further connections that answer health checks only, for when all others have such a request. A peer has a
    /// quarter of them, and beyond that the one without progress for longest is closed.
    pub health_connections: usize,
    /// How long a connection may be open between two requests, the headers of the second one included.
    pub idle_timeout: Duration,
    /// How long a client may read nothing of a response.
    pub write_timeout: Duration,
    /// The interval of HTTP/2 pings, and the timeout of their answers.
    pub http2_keep_alive: Duration,
    /// The maximum number of concurrent requests of an HTTP/2 connection.
    pub http2_streams: u32,
    /// The maximum number of concurrent requests with a valid token or session, or of all without tokens.
    pub requests: usize,
    /// The maximum number of concurrent requests without a valid token or session. They take none of the other places.
    pub anonymous_requests: usize,
    /// The maximum number of such requests of one client, over all its connections: an IPv4 address, or the network of an IPv6
    /// address.
    pub anonymous_requests_per_peer: usize,
    /// The largest form of such a request, in bytes. It takes no share of [`body_bytes`](Self::body_bytes).
    pub anonymous_form_bytes: usize,
    /// The timeout for receiving such a form.
    pub anonymous_form_timeout: Duration,
    /// The maximum number of concurrent requests with one token.
    pub requests_per_token: usize,
    /// The maximum number of concurrent reads that may examine many letters: counts, lists, facets, plans. Further ones wait; the
    /// callers are served in turn.
    pub scans: usize,
    /// The maximum number of such reads with one token.
    pub scans_per_token: usize,
    /// The maximum number of such reads with one token that wait.
    pub scans_waiting_per_token: usize,
    /// The maximum number of open streams: events, exports and the audit.
    pub streams: usize,
    /// The maximum number of open streams with one token.
    pub streams_per_token: usize,
    /// The maximum number of open exports of full letters.
    pub exports: usize,
    /// The bytes of all request bodies that may be in memory.
    pub body_bytes: usize,
    /// The bytes of the request bodies of one token that may be in memory.
    pub body_bytes_per_token: usize,
    /// How slowly a body may arrive, in bytes per second, after the first [`header_timeout`](Self::header_timeout).
    pub body_bytes_per_second: u32,
    /// The maximum number of messages in an inbox batch.
    pub batch_messages: usize,
    /// The maximum number of letters in an import.
    pub import_letters: usize,
    /// The largest id of a message, in bytes.
    pub id_bytes: usize,
    /// The largest key of a message, in bytes.
    pub key_bytes: usize,
    /// The largest type of a message, in bytes; also of its content type and its correlation id.
    pub type_bytes: usize,
    /// The largest headers of a message, names and values, in bytes.
    pub message_header_bytes: usize,
    /// The number of past events kept for clients that resume.
    pub events: usize,
    /// The keep-alive interval of event streams.
    pub heartbeat: Duration,
    /// The maximum number of stored idempotency keys.
    pub idempotency_keys: usize,
    /// The bytes of all stored responses.
    pub idempotency_bytes: usize,
    /// How long idempotency keys are stored.
    pub idempotency_window: Duration,
    /// The grace period for running requests at shutdown.
    pub drain: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            message_bytes: 1024 * 1024,
            batch_bytes: 16 * 1024 * 1024,
            json_bytes: 2 * 1024 * 1024,
            import_bytes: 64 * 1024 * 1024,
            page: 100,
            max_page: 1000,
            plan_letters: 1_000_000,
            drafts: DraftLimits::default(),
            named_letters: 10_000,
            bulk_letters: 1000,
            request_timeout: Duration::from_secs(30),
            import_timeout: Duration::from_secs(600),
            header_timeout: Duration::from_secs(10),
            header_bytes: 64 * 1024,
            connections: 1024,
            connections_per_peer: 512,
            health_connections: 16,
            idle_timeout: Duration::from_secs(60),
            write_timeout: Duration::from_secs(60),
            http2_keep_alive: Duration::from_secs(20),
            http2_streams: 64,
            requests: 256,
            anonymous_requests: 16,
            anonymous_requests_per_peer: 8,
            anonymous_form_bytes: 8 * 1024,
            anonymous_form_timeout: Duration::from_secs(5),
            requests_per_token: 64,
            scans: 8,
            scans_per_token: 2,
            scans_waiting_per_token: 16,
            streams: 128,
            streams_per_token: 32,
            exports: 16,
            body_bytes: 256 * 1024 * 1024,
            body_bytes_per_token: 128 * 1024 * 1024,
            body_bytes_per_second: 16 * 1024,
            batch_messages: 10_000,
            import_letters: 100_000,
            id_bytes: 1024,
            key_bytes: 4096,
            type_bytes: 1024,
            message_header_bytes: 64 * 1024,
            events: 4096,
            heartbeat: Duration::from_secs(15),
            idempotency_keys: 10_000,
            idempotency_bytes: 32 * 1024 * 1024,
            idempotency_window: Duration::from_secs(24 * 3600),
            drain: Duration::from_secs(10),
        }
    }
}

/// Options of the server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Accepted host names besides loopback names: `lazaret.example.com`. With tokens and without names, every name is
    /// accepted.
    pub hosts: Vec<String>,
    /// How long browsers use nothing but TLS for this host (`Strict-Transport-Security`), in responses over TLS that this server ends.
    /// Names of this machine get no such header, because it would hold for other programs on it. `None` to send none.
    pub strict_transport: Option<Duration>,
    /// Limits on sizes, numbers and durations.
    pub limits: Limits,
    /// The sessions of pages.
    pub sessions: SessionLimits,
    /// The reverse proxy in front of the server; `None` if there is none whose headers are trusted.
    pub proxy: Option<TrustedProxy>,
    /// The values of letters that are shown only with the scope `reveal` and a reason.
    pub redaction: Redaction,
}
