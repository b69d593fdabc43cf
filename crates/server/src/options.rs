//! What one can choose, with defaults that are closed and bounded.

use std::time::Duration;

/// How large, how many and how long (I7).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The largest message that an inbox takes, in bytes of its body.
    pub message_bytes: usize,
    /// The largest batch that an inbox takes.
    pub batch_bytes: usize,
    /// The largest body of any other request.
    pub json_bytes: usize,
    /// The largest import. Its letters are put in order before the first is taken in, so all of it is in memory.
    pub import_bytes: usize,
    /// How many things stand on a page unless the request says otherwise.
    pub page: usize,
    /// How many things stand on a page at most.
    pub max_page: usize,
    /// How many letters a plan may hold.
    pub plan_letters: u64,
    /// How many letters may be named in one request.
    pub named_letters: usize,
    /// How many letters a change of many touches in one call.
    pub bulk_letters: usize,
    /// How long a request may take until its answer begins.
    pub request_timeout: Duration,
    /// How long an import may take.
    pub import_timeout: Duration,
    /// How long a client may take to send the head of a request.
    pub header_timeout: Duration,
    /// How many bytes the head of a request may have.
    pub header_bytes: usize,
    /// How many connections are open at once.
    pub connections: usize,
    /// How many requests are worked on at once.
    pub requests: usize,
    /// How many clients read events, exports or the audit at once.
    pub streams: usize,
    /// How many events are kept for clients that come back.
    pub events: usize,
    /// How long an open stream of events stays silent at most.
    pub heartbeat: Duration,
    /// How many answers are kept under their idempotency keys.
    pub idempotency_keys: usize,
    /// How long they are kept.
    pub idempotency_window: Duration,
    /// How long requests that are being worked on have to end when the server stops.
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

/// How the server behaves.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Names under which the server may be asked, besides those of this machine: `lazaret.example.com`. Where tokens are
    /// configured and this is empty, every name is fine.
    pub hosts: Vec<String>,
    /// How large, how many and how long.
    pub limits: Limits,
}
