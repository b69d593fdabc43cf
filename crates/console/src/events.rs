//! Live updates: the latest events of the API, reduced to the information that something changed. The
//! API sends them at most twice a second, and less often the more browsers listen. Each browser responds
//! by loading its page, so the total cost does not grow with the number of browsers.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::time::Duration;

use axum::body::{Body, BodyDataStream};
use axum::http::{HeaderValue, Method, header};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::{Stream, StreamExt};

use crate::visit::{Page, Visit};

/// The interval of comments that keep the connection open.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// The maximum length of a line. Longer lines are cut.
const MAX_LINE: usize = 64;

pub(crate) async fn stream(visit: Visit) -> Response {
    let events = match visit.api.send(Method::GET, "/v1/events?latest=true", Body::empty(), &[]).await {
        Ok(events) => events,
        Err(problem) => return visit.respond::<Page>(Err(problem)),
    };
    let changes = changes(events.into_body().into_data_stream());
    let changes = changes.map(|kinds| Ok::<_, Infallible>(Event::default().event("change").data(kinds)));
    let mut response = Sse::new(changes).keep_alive(KeepAlive::new().interval(KEEP_ALIVE)).into_response();
    let headers = response.headers_mut();
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

/// The events of the API as they are read.
struct Changes {
    body: BodyDataStream,
    /// The line being read.
    line: Vec<u8>,
    /// The kinds of events since the last update.
    kinds: BTreeSet<String>,
}

/// Returns the kinds of events that happened, separated by commas. The stream ends with the API's
/// stream, and the browser then reconnects.
fn changes(body: BodyDataStream) -> impl Stream<Item = String> {
    let changes = Changes { body, line: Vec::new(), kinds: BTreeSet::new() };
    futures_util::stream::unfold(changes, |mut changes| async move {
        let kinds = changes.next().await?;
        Some((kinds, changes))
    })
}

impl Changes {
    async fn next(&mut self) -> Option<String> {
        while self.kinds.is_empty() {
            let part = self.body.next().await?.ok()?;
            self.read(&part);
        }
        Some(std::mem::take(&mut self.kinds).into_iter().collect::<Vec<_>>().join(","))
    }

    /// Reads the kinds from a part of the stream.
    fn read(&mut self, part: &[u8]) {
        for byte in part {
            if *byte != b'\n' {
                if self.line.len() < MAX_LINE {
                    self.line.push(*byte);
                }
                continue;
            }
            if let Some(kind) = self.line.strip_prefix(b"event:") {
                self.kinds.insert(String::from_utf8_lossy(kind).trim().to_owned());
            }
            self.line.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the updates of a stream with these parts.
    async fn updates(parts: Vec<&'static str>) -> Vec<String> {
        let parts = futures_util::stream::iter(parts.into_iter().map(Ok::<_, Infallible>));
        changes(Body::from_stream(parts).into_data_stream()).collect().await
    }

    #[tokio::test]
    async fn the_events_of_a_part_are_one_update() {
        let part = "id: 1\nevent: poison\ndata: {}\n\nid: 2\nevent: failed\ndata: {\"event: x\"}\n\nevent: failed\n\n";
        assert_eq!(updates(vec!["retry: 2000\n\n", part, ": still here\n\n"]).await, ["failed,poison"]);
    }

    #[tokio::test]
    async fn events_are_read_however_they_are_cut() {
        let parts = vec!["eve", "nt: failed\ndata: {}\n\nevent:oper", "ation\ndata: x\n\n"];
        assert_eq!(updates(parts).await, ["failed", "operation"]);
    }
}
