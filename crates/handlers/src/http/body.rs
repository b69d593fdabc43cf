//! Reads the start of a response body.

use reqwest::Response;
use tokio::time::{Instant, timeout_at};

use super::cause::{is_invalid_response, root_cause};

/// The maximum size of a body that is read to its end so that the connection can be reused. Reading more
/// would be slower than a new connection.
const DRAIN_LIMIT: usize = 64 * 1024;

/// The start of a body.
pub(super) struct Body {
    /// The bytes that were kept.
    pub(super) bytes: Vec<u8>,
    pub(super) ending: Ending,
}

/// The way in which a body ended.
pub(super) enum Ending {
    /// The end was reached.
    Complete,
    /// The body exceeds the limit. The connection is dropped.
    Truncated,
    /// The connection closed before the end.
    Broken(String),
    /// The encoding of the body is invalid.
    Invalid(String),
    /// The deadline passed.
    TimedOut,
}

impl Body {
    /// Reads the body. Keeps up to `limit` bytes of its start and discards the rest.
    pub(super) async fn read(response: Response, limit: usize, deadline: Instant) -> Self {
        let mut bytes = Vec::new();
        let ending = match timeout_at(deadline, drain(response, limit, &mut bytes)).await {
            Ok(ending) => ending,
            Err(_) => Ending::TimedOut,
        };
        Self { bytes, ending }
    }
}

async fn drain(mut response: Response, limit: usize, bytes: &mut Vec<u8>) -> Ending {
    let mut drained = 0;
    loop {
        match response.chunk().await {
            Ok(None) => return Ending::Complete,
            Ok(Some(chunk)) => {
                let available = limit - bytes.len();
                bytes.extend_from_slice(&chunk[..chunk.len().min(available)]);
                drained += chunk.len();
                if drained > DRAIN_LIMIT.max(limit) {
                    return Ending::Truncated;
                }
            }
            Err(error) => {
                let error = error.without_url();
                let is_invalid = is_invalid_response(&error);
                return if is_invalid { Ending::Invalid } else { Ending::Broken }(root_cause(&error));
            }
        }
    }
}
