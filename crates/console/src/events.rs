//! Live updates: the events of the API, reduced to the fact that something changed, at most twice a second.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::time::Duration;

use axum::body::{Body, BodyDataStream};
use axum::http::{HeaderValue, Method, header};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::{Stream, StreamExt};
use tokio::time::Instant;

use crate::visit::{Page, Visit};

/// The shortest time between two updates.
const PAUSE: Duration = Duration::from_millis(500);
/// The interval of comments that keep the connection open.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// The longest line that is read; longer ones are cut.
const MAX_LINE: usize = 64;

pub(crate) async fn stream(visit: Visit) -> Response {
    let events = match visit.api.send(Method::GET, "/v1/events", Body::empty(), &[]).await {
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

/// The events of the API, as they are read.
struct Changes {
    body: BodyDataStream,
    /// The line that is being read.
    line: Vec<u8>,
    /// The kinds since the last update.
    kinds: BTreeSet<String>,
    /// When the next update may be sent.
    next: Instant,
}

/// The kinds of events that happened, separated by commas. The stream ends with that of the API, and the browser connects again.
fn changes(body: BodyDataStream) -> impl Stream<Item = String> {
    let changes = Changes { body, line: Vec::new(), kinds: BTreeSet::new(), next: Instant::now() };
    futures_util::stream::unfold(changes, |mut changes| async move {
        let kinds = changes.next().await?;
        Some((kinds, changes))
    })
}

impl Changes {
    async fn next(&mut self) -> Option<String> {
        loop {
            tokio::select! {
                chunk = self.body.next() => self.read(&chunk?.ok()?),
                () = tokio::time::sleep_until(self.next), if !self.kinds.is_empty() => {
                    self.next = Instant::now() + PAUSE;
                    return Some(std::mem::take(&mut self.kinds).into_iter().collect::<Vec<_>>().join(","));
                }
            }
        }
    }

    /// Reads the kinds out of a part of the stream.
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

    /// A stream of these parts that stays open.
    fn open(parts: Vec<&'static str>) -> impl Stream<Item = String> {
        let parts = futures_util::stream::iter(parts.into_iter().map(Ok::<_, Infallible>));
        changes(Body::from_stream(parts.chain(futures_util::stream::pending())).into_data_stream())
    }

    #[tokio::test(start_paused = true)]
    async fn events_are_joined_however_they_are_cut() {
        let mut changes = Box::pin(open(vec![
            "eve",
            "nt: failed\ndata: {}\n\nevent:oper",
            "ation\ndata: x\n\nevent: failed\n\n",
        ]));
        let mut seen = BTreeSet::new();
        while seen.len() < 2 {
            seen.extend(changes.next().await.unwrap().split(',').map(str::to_owned));
        }
        assert_eq!(seen, BTreeSet::from(["failed".to_owned(), "operation".to_owned()]));
    }

    #[tokio::test(start_paused = true)]
    async fn updates_are_at_least_half_a_second_apart() {
        let event = || Ok::<_, Infallible>("event: failed\n\n");
        let many = futures_util::stream::unfold(0, move |n| async move {
            tokio::time::sleep(Duration::from_millis(10)).await;
            (n < 1000).then(|| (event(), n + 1))
        });
        let started = Instant::now();
        let updates: Vec<String> = changes(Body::from_stream(many).into_data_stream()).collect().await;
        let seconds = started.elapsed().as_secs_f64();
        assert!(
            seconds > 9.0 && updates.len() as f64 <= seconds * 2.0 + 1.0,
            "{} in {seconds} s",
            updates.len()
        );
    }
}
