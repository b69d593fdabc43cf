//! Live updates: the events of the API, reduced to the fact that something changed, at most twice a second, and more rarely the more
//! browsers listen. Each browser answers with a load of its page, so all of them together cost the same, however many they are.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use axum::body::{Body, BodyDataStream};
use axum::extract::State;
use axum::http::{HeaderValue, Method, header};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::{Stream, StreamExt};
use tokio::time::Instant;

use crate::routes::Console;
use crate::visit::{Page, Visit};

/// The shortest time between two updates of a browser.
const PAUSE: Duration = Duration::from_millis(500);
/// The time between two updates of all browsers together.
const PAUSE_OF_ALL: Duration = Duration::from_millis(200);
/// The interval of comments that keep the connection open.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// The longest line that is read; longer ones are cut.
const MAX_LINE: usize = 64;

/// The browsers that listen.
#[derive(Clone, Debug, Default)]
pub(crate) struct Listeners(Arc<AtomicU32>);

impl Listeners {
    fn join(&self) -> Listener {
        self.0.fetch_add(1, Ordering::Relaxed);
        Listener(self.clone())
    }
}

/// A browser that listens, until it is dropped.
struct Listener(Listeners);

impl Listener {
    /// The time until the next update of this browser.
    fn pause(&self) -> Duration {
        PAUSE.max(PAUSE_OF_ALL * self.0.0.load(Ordering::Relaxed))
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::Relaxed);
    }
}

pub(crate) async fn stream(State(console): State<Console>, visit: Visit) -> Response {
    let events = match visit.api.send(Method::GET, "/v1/events", Body::empty(), &[]).await {
        Ok(events) => events,
        Err(problem) => return visit.respond::<Page>(Err(problem)),
    };
    let changes = changes(events.into_body().into_data_stream(), console.listeners.join());
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
    listener: Listener,
}

/// The kinds of events that happened, separated by commas. The stream ends with that of the API, and the browser connects again.
fn changes(body: BodyDataStream, listener: Listener) -> impl Stream<Item = String> {
    let changes = Changes { body, line: Vec::new(), kinds: BTreeSet::new(), next: Instant::now(), listener };
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
                    self.next = Instant::now() + self.listener.pause();
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
        let body = Body::from_stream(parts.chain(futures_util::stream::pending())).into_data_stream();
        changes(body, Listeners::default().join())
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

    /// The updates of one browser among these, while something happens all the time for ten seconds.
    async fn updates_among(listeners: &Listeners) -> usize {
        let event = || Ok::<_, Infallible>("event: failed\n\n");
        let many = futures_util::stream::unfold(0, move |n| async move {
            tokio::time::sleep(Duration::from_millis(10)).await;
            (n < 1000).then(|| (event(), n + 1))
        });
        let started = Instant::now();
        let body = Body::from_stream(many).into_data_stream();
        let updates: Vec<String> = changes(body, listeners.join()).collect().await;
        assert!(started.elapsed() > Duration::from_secs(9), "the clock of the test runs");
        updates.len()
    }

    #[tokio::test(start_paused = true)]
    async fn updates_are_at_least_half_a_second_apart() {
        let updates = updates_among(&Listeners::default()).await;
        assert!((15..=21).contains(&updates), "{updates}");
    }

    #[tokio::test(start_paused = true)]
    async fn the_more_browsers_listen_the_rarer_each_is_told() {
        let listeners = Listeners::default();
        let others: Vec<Listener> = (0..24).map(|_| listeners.join()).collect();
        let updates = updates_among(&listeners).await;
        assert!((2..=3).contains(&updates), "{updates}");
        drop(others);
        assert_eq!(listeners.0.load(Ordering::Relaxed), 0, "nobody is left");
    }
}
