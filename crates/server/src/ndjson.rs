//! NDJSON responses: one JSON value per line, streamed page by page.

use std::sync::Arc;

use axum::body::Body;
use axum::http::{HeaderMap, HeaderValue, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures_util::Stream;
use lazaret_api::Code;
use serde::Serialize;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::api_error::{ApiError, Result};
use crate::app::App;
use crate::auth::Caller;
use crate::per_token::{Resource, Share};

/// The media type of NDJSON.
pub(crate) const NDJSON: &str = "application/x-ndjson";

/// Returns `true` if the client accepts NDJSON.
pub(crate) fn accepts_ndjson(headers: &HeaderMap) -> bool {
    let accepted = headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok());
    let mut kinds = accepted.flat_map(|value| value.split(','));
    kinds.any(|kind| matches!(kind.split(';').next().map(str::trim), Some(NDJSON | "application/jsonl")))
}

/// The place of an open stream, in all and of its token.
pub(crate) struct StreamPermit {
    caller: Caller,
    _stream: OwnedSemaphorePermit,
    _export: Option<OwnedSemaphorePermit>,
    _share: Share,
}

fn acquire(semaphore: &Arc<Semaphore>, what: &str) -> Result<OwnedSemaphorePermit> {
    let permit = semaphore.clone().try_acquire_owned();
    permit.map_err(|_| ApiError::new(Code::Busy, format!("too many open {what}")).retry_after(5))
}

/// Acquires a permit for a stream.
pub(crate) fn stream_permit(app: &App, caller: &Caller) -> Result<StreamPermit> {
    let _share = app.by_token.take(caller, Resource::Streams, 1)?;
    let _stream = acquire(&app.streams, "streams")?;
    Ok(StreamPermit { caller: caller.clone(), _stream, _export: None, _share })
}

/// Acquires a permit for an export of full letters, which needs more memory than other streams.
pub(crate) fn export_permit(app: &App, caller: &Caller) -> Result<StreamPermit> {
    let _export = Some(acquire(&app.exports, "exports")?);
    Ok(StreamPermit { _export, ..stream_permit(app, caller)? })
}

/// One page of lines, and the cursor of the next.
pub(crate) struct Chunk<C> {
    pub(crate) lines: Vec<u8>,
    pub(crate) next: Option<C>,
}

/// The next step of a stream.
enum Step<C> {
    Send(Chunk<C>),
    Load(C),
    End,
}

/// Appends a value as a line.
pub(crate) fn push_line(lines: &mut Vec<u8>, value: &impl Serialize) {
    // Serializing plain data into memory cannot fail.
    if serde_json::to_writer(&mut *lines, value).is_ok() {
        lines.push(b'\n');
    }
}

/// Streams pages, each loaded after the previous one was sent. One page is in memory at a time (I7). When the store fails
/// midway, or the caller's token is revoked or expires, the connection is aborted, so that the client does not mistake a part for
/// the whole.
pub(crate) fn respond<C, F, N>(app: &App, first: Chunk<C>, permit: StreamPermit, next_page: N) -> Response
where
    C: Send + 'static,
    F: Future<Output = Result<Chunk<C>>> + Send + 'static,
    N: Fn(C) -> F + Send + Sync + 'static,
{
    let app = app.clone();
    let pages = futures_util::stream::unfold(Step::Send(first), move |step| {
        // The whole permit lives as long as the stream; a closure that names its field alone would drop the rest.
        let permit = &permit;
        let refused = refusal(&app, &permit.caller);
        let loading = match step {
            Step::Send(chunk) => Ok(chunk),
            Step::Load(at) => Err(Some(next_page(at))),
            Step::End => Err(None),
        };
        async move {
            let chunk = match (loading, refused) {
                (Ok(chunk), _) => Ok(chunk),
                (Err(None), _) => return None,
                (Err(Some(_)), Some(why)) => Err(why.to_owned()),
                (Err(Some(page)), None) => page.await.map_err(|error| error.problem.to_string()),
            };
            Some(match chunk {
                Ok(Chunk { lines, next }) => (Ok(Bytes::from(lines)), next.map_or(Step::End, Step::Load)),
                Err(why) => (Err(std::io::Error::other(why)), Step::End),
            })
        }
    });
    into_response(pages)
}

/// Why a stream must not go on, if so.
fn refusal(app: &App, caller: &Caller) -> Option<&'static str> {
    if app.stopping.is_cancelled() {
        return Some("the server is stopping");
    }
    (!app.still_accepts(caller)).then_some("the token was revoked or has expired")
}

fn into_response(pages: impl Stream<Item = std::io::Result<Bytes>> + Send + 'static) -> Response {
    let mut response = Body::from_stream(pages).into_response();
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(NDJSON));
    response
}
