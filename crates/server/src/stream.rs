//! Answers that go on: one JSON value a line, made while it is read.

use axum::body::Body;
use axum::http::{HeaderMap, HeaderValue, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures_util::Stream;
use lazaret_api::Code;
use serde::Serialize;
use tokio::sync::OwnedSemaphorePermit;

use crate::app::App;
use crate::fault::{Fault, Result};

/// The media type of one JSON value a line.
pub(crate) const NDJSON: &str = "application/x-ndjson";

/// Whether the client wants one value a line.
pub(crate) fn wants_lines(headers: &HeaderMap) -> bool {
    let accepted = headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok());
    let mut kinds = accepted.flat_map(|value| value.split(','));
    kinds.any(|kind| matches!(kind.split(';').next().map(str::trim), Some(NDJSON | "application/jsonl")))
}

/// The right to read a stream; there are so many at once.
pub(crate) fn permit(app: &App) -> Result<OwnedSemaphorePermit> {
    let permit = app.streams.clone().try_acquire_owned();
    permit.map_err(|_| Fault::new(Code::Busy, "too many streams are read").retry_after(5))
}

/// A page on the way out: its lines, and where to go on.
pub(crate) struct Chunk<C> {
    pub(crate) lines: Vec<u8>,
    pub(crate) next: Option<C>,
}

/// What a stream does next.
enum Turn<C> {
    Send(Chunk<C>),
    Ask(C),
    End,
}

/// Adds a value as a line.
pub(crate) fn push_line(lines: &mut Vec<u8>, value: &impl Serialize) {
    // Plain data cannot fail to be written into memory.
    if serde_json::to_writer(&mut *lines, value).is_ok() {
        lines.push(b'\n');
    }
}

/// Answers page after page, each asked for when the one before was sent. One page is in memory at a time (I7). When the
/// store fails on the way the connection is broken off, so that nobody takes a part for the whole.
pub(crate) fn answer<C, F, N>(
    app: &App,
    first: Chunk<C>,
    permit: OwnedSemaphorePermit,
    next_page: N,
) -> Response
where
    C: Send + 'static,
    F: Future<Output = Result<Chunk<C>>> + Send + 'static,
    N: Fn(C) -> F + Send + Sync + 'static,
{
    let stopping = app.stopping.clone();
    let pages = futures_util::stream::unfold(Turn::Send(first), move |turn| {
        // The permit lives as long as the stream.
        let _held = &permit;
        let stopping = stopping.clone();
        let asked = match turn {
            Turn::Send(chunk) => Ok(chunk),
            Turn::Ask(at) => Err(Some(next_page(at))),
            Turn::End => Err(None),
        };
        async move {
            let chunk = match asked {
                Ok(chunk) => Ok(chunk),
                Err(_) if stopping.is_cancelled() => Err("the server is stopping".to_owned()),
                Err(page) => page?.await.map_err(|fault| fault.problem.to_string()),
            };
            Some(match chunk {
                Ok(Chunk { lines, next }) => (Ok(Bytes::from(lines)), next.map_or(Turn::End, Turn::Ask)),
                Err(why) => (Err(std::io::Error::other(why)), Turn::End),
            })
        }
    });
    respond(pages)
}

fn respond(pages: impl Stream<Item = std::io::Result<Bytes>> + Send + 'static) -> Response {
    let mut response = Body::from_stream(pages).into_response();
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(NDJSON));
    response
}
