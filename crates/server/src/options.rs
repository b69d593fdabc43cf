//! Options of the server; the defaults are closed and bounded.

use std::time::Duration;

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
    /// The maximum number of letter ids in a request.
    pub named_letters: usize,
    /// The maximum number of letters per bulk change.
    pub bulk_letters: usize,
    /// The time until the response must start.
    pub request_timeout: Duration,
    /// The timeout of an import.
    pub import_timeout: Duration,
    /// The timeout for receiving the request headers.
    pub header_timeout: Duration,
    /// The maximum size of the request headers, in bytes.
    pub header_bytes: usize,
    /// The maximum number of open connections.
    pub connections: usize,
    /// The maximum number of concurrent requests.
    pub requests: usize,
    /// The maximum number of open streams: events, exports and the audit.
    pub streams: usize,
    /// The number of past events kept for clients that resume.
    pub events: usize,
    /// The keep-alive interval of event streams.
    pub heartbeat: Duration,
    /// The maximum number of stored idempotency keys.
    pub idempotency_keys: usize,
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
            named_letters: 10_000,
            bulk_letters: 1000,
            request_timeout: Duration::from_secs(30),
            import_timeout: Duration::from_secs(600),
            header_timeout: Duration::from_secs(10),
            header_bytes: 64 * 1024,
            connections: 1024,
            requests: 256,
            streams: 128,
            events: 4096,
            heartbeat: Duration::from_secs(15),
            idempotency_keys: 10_000,
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
    /// Limits on sizes, numbers and durations.
    pub limits: Limits,
}
