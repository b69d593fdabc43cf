//! Reads the body of an answer, as much of it as is wanted.

use lazaret_core::failure::MESSAGE_LIMIT;
use reqwest::Response;
use tokio::time::{Instant, timeout_at};

use super::handler::innermost;

/// How much of a body is read to its end, so that the connection can be used again. To read more costs more than a new
/// connection does.
const DRAIN_LIMIT: usize = 64 * 1024;

/// The beginning of a body.
pub(super) struct Body {
    /// What is kept of it.
    pub(super) bytes: Vec<u8>,
    pub(super) ending: Ending,
}

/// How a body ended.
pub(super) enum Ending {
    /// All of it was read.
    Whole,
    /// It goes on; nobody wants the rest. The connection is given up.
    Cut,
    /// The connection ended before the body did.
    Broken(String),
    /// There was no more time.
    Late,
}

impl Body {
    /// Reads the body. Keeps its beginning if that is wanted, and drops the rest.
    pub(super) async fn read(response: Response, is_wanted: bool, deadline: Instant) -> Self {
        let limit = if is_wanted { MESSAGE_LIMIT } else { 0 };
        let mut bytes = Vec::new();
        let ending = match timeout_at(deadline, drain(response, limit, &mut bytes)).await {
            Ok(ending) => ending,
            Err(_) => Ending::Late,
        };
        Self { bytes, ending }
    }
}

async fn drain(mut response: Response, limit: usize, bytes: &mut Vec<u8>) -> Ending {
    let mut drained = 0;
    loop {
        match response.chunk().await {
            Ok(None) => return Ending::Whole,
            Ok(Some(chunk)) => {
                let room = limit - bytes.len();
                bytes.extend_from_slice(&chunk[..chunk.len().min(room)]);
                drained += chunk.len();
                if drained > DRAIN_LIMIT {
                    return Ending::Cut;
                }
            }
            Err(error) => return Ending::Broken(innermost(&error.without_url())),
        }
    }
}
