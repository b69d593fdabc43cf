//! `GET /v1/events`: server-sent events with resume.

use std::convert::Infallible;
use std::time::Duration;

use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures_util::Stream;
use lazaret_api::{Event, EventKind};
use serde::Deserialize;
use tokio::sync::OwnedSemaphorePermit;
use tokio::sync::broadcast::Receiver;
use tokio::time::Instant;

use super::feed::{Numbered, Resumed};
use crate::app::App;
use crate::auth::Caller;
use crate::extract::Params;
use crate::fault::{Fault, Result};
use crate::stream::permit;

/// Which events are wanted.
#[derive(Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(crate) struct Wanted {
    /// Only those of this consumer.
    consumer: Option<String>,
    /// Only those of these kinds, separated by commas.
    kind: Option<String>,
    /// As the header `Last-Event-ID`, for who cannot set headers.
    last_event_id: Option<String>,
}

impl Wanted {
    /// Refuses a kind that there is not: nobody would ever hear of it.
    fn check(&self) -> Result<()> {
        let mut kinds = self.kind.iter().flat_map(|kinds| kinds.split(',')).map(str::trim);
        match kinds.find(|kind| !EventKind::ALL.iter().any(|known| known.as_str() == *kind)) {
            Some(unknown) => {
                Err(Fault::invalid("kind", format!("there are no events of the kind {unknown:?}")))
            }
            None => Ok(()),
        }
    }

    fn wants(&self, event: &Event) -> bool {
        let consumer = match (&self.consumer, &event.consumer) {
            (Some(wanted), Some(consumer)) => wanted == consumer,
            // What belongs to no consumer, such as an operation, is for everybody.
            _ => true,
        };
        let kind = self.kind.as_ref();
        let kind = kind.is_none_or(|kinds| kinds.split(',').any(|kind| kind.trim() == event.kind.as_str()));
        event.kind == EventKind::Reset || (consumer && kind)
    }
}

pub(crate) async fn events(
    State(app): State<App>,
    Params(wanted): Params<Wanted>,
    caller: Caller,
    headers: HeaderMap,
) -> Result<Response> {
    wanted.check()?;
    let permit = permit(&app)?;
    let left = caller.identity.expires_at.map(|end| end.duration_since(app.clock.now()));
    let ends = left.map(|left| Instant::now() + Duration::try_from(left).unwrap_or_default());
    let header = headers.get("last-event-id").and_then(|last| last.to_str().ok());
    let resumed = app.feed.listen(header.or(wanted.last_event_id.as_deref()));
    let mut response = Body::from_stream(stream(app, wanted, resumed, ends, permit)).into_response();
    let answer = response.headers_mut();
    answer.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    answer.insert("x-accel-buffering", HeaderValue::from_static("no"));
    Ok(response)
}

/// What a listener hears next.
struct Listening {
    app: App,
    wanted: Wanted,
    /// What is written before anything new, the next one last.
    first: Vec<Bytes>,
    line: Receiver<Numbered>,
    /// When the listener's token ends.
    ends: Option<Instant>,
    _permit: OwnedSemaphorePermit,
}

fn stream(
    app: App,
    wanted: Wanted,
    resumed: Resumed,
    ends: Option<Instant>,
    permit: OwnedSemaphorePermit,
) -> impl Stream<Item = std::result::Result<Bytes, Infallible>> {
    let Resumed { lost, missed, line } = resumed;
    let mut first = vec![Bytes::from_static(b"retry: 2000\n\n")];
    if lost {
        // Without an id: who breaks off here and comes back is told again.
        first.push(text(None, &Event::new(EventKind::Reset, app.clock.now())));
    }
    let wanted_ones = missed.iter().filter(|(_, event)| wanted.wants(event));
    first.extend(wanted_ones.map(|(number, event)| text(Some(app.feed.id(*number)), event)));
    first.reverse();
    let listening = Listening { app, wanted, first, line, ends, _permit: permit };
    futures_util::stream::unfold(listening, |mut listening| async move {
        let next = listening.next().await?;
        Some((Ok(next), listening))
    })
}

impl Listening {
    /// What is to be written next; `None` ends the stream.
    async fn next(&mut self) -> Option<Bytes> {
        if let Some(first) = self.first.pop() {
            return Some(first);
        }
        let silence = tokio::time::sleep(self.app.options.limits.heartbeat);
        tokio::pin!(silence);
        loop {
            tokio::select! {
                () = self.app.stopping.cancelled() => return None,
                () = at(self.ends) => return None,
                () = &mut silence => return Some(Bytes::from_static(b": still here\n\n")),
                // A listener that lags too far behind is cut off. It comes back with the last event that it saw.
                heard = self.line.recv() => {
                    let (number, event) = heard.ok()?;
                    if self.wanted.wants(&event) {
                        return Some(text(Some(self.app.feed.id(number)), &event));
                    }
                }
            }
        }
    }
}

/// Waits until this time; for ever when there is none.
async fn at(time: Option<Instant>) {
    match time {
        Some(time) => tokio::time::sleep_until(time).await,
        None => std::future::pending().await,
    }
}

/// An event as it is written. JSON has no line breaks of its own, so one line of data is enough.
fn text(id: Option<String>, event: &Event) -> Bytes {
    let data = serde_json::to_string(event).unwrap_or_default();
    let id = id.map_or_else(String::new, |id| format!("id: {id}\n"));
    Bytes::from(format!("{id}event: {}\ndata: {data}\n\n", event.kind.as_str()))
}
