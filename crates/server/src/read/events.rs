//! `GET /v1/events`: server-sent events with resume.

use std::convert::Infallible;
use std::time::Duration;

use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, header};
use axum::response::sse::{self, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::{Stream, StreamExt};
use lazaret_api::{Event, EventKind};
use serde::Deserialize;
use tokio::sync::broadcast::Receiver;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::api_error::{ApiError, Result};
use crate::app::App;
use crate::auth::Caller;
use crate::event_feed::{Numbered, Subscription};
use crate::extract::Params;
use crate::ndjson::{StreamPermit, stream_permit};

/// The reconnection time of clients.
const RECONNECT_AFTER: Duration = Duration::from_secs(2);

/// The events to send.
#[derive(Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(crate) struct EventParams {
    /// The consumers that the token is limited to; empty for all.
    #[serde(skip)]
    allowed: Vec<String>,
    /// Only events of this consumer.
    consumer: Option<String>,
    /// Only events of these kinds, separated by commas.
    kind: Option<String>,
    /// Same as the header `Last-Event-ID`, for clients that cannot set headers.
    last_event_id: Option<String>,
}

impl EventParams {
    /// Rejects unknown kinds: no such event would ever be sent.
    fn check(&self) -> Result<()> {
        let mut kinds = self.kind.iter().flat_map(|kinds| kinds.split(',')).map(str::trim);
        match kinds.find(|kind| !EventKind::ALL.iter().any(|known| known.as_str() == *kind)) {
            Some(unknown) => Err(ApiError::invalid("kind", format!("unknown event kind {unknown:?}"))),
            None => Ok(()),
        }
    }

    fn matches(&self, event: &Event) -> bool {
        let is_allowed = |consumer: &String| self.allowed.contains(consumer);
        if !self.allowed.is_empty()
            && event.kind != EventKind::Reset
            && !event.consumer.as_ref().is_some_and(is_allowed)
        {
            return false;
        }
        let consumer = match (&self.consumer, &event.consumer) {
            (Some(wanted), Some(consumer)) => wanted == consumer,
            // Events without a consumer, such as those of operations, are sent to every subscriber.
            _ => true,
        };
        let kind = self.kind.as_ref();
        let kind = kind.is_none_or(|kinds| kinds.split(',').any(|kind| kind.trim() == event.kind.as_str()));
        event.kind == EventKind::Reset || (consumer && kind)
    }
}

pub(crate) async fn events(
    State(app): State<App>,
    Params(mut params): Params<EventParams>,
    caller: Caller,
    headers: HeaderMap,
) -> Result<Response> {
    params.check()?;
    params.allowed.clone_from(&caller.identity.consumers);
    let permit = stream_permit(&app, &caller)?;
    let left = caller.identity.expires_at.map(|end| end.duration_since(app.clock.now()));
    let expires = left.map(|left| Instant::now() + Duration::try_from(left).unwrap_or_default());
    let last_id = headers.get("last-event-id").and_then(|last| last.to_str().ok());
    let subscription = app.feed.subscribe(last_id.or(params.last_event_id.as_deref()));
    let replaced = caller.session.replaced.clone();
    let keep_alive = KeepAlive::new().interval(app.options.limits.heartbeat).text("still here");
    let stream = stream(app, params, subscription, expires, replaced, permit);
    let mut response = Sse::new(stream).keep_alive(keep_alive).into_response();
    let headers = response.headers_mut();
    // Instead of the `no-cache` of `Sse`: nothing of the API is stored.
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    Ok(response)
}

/// The live part of a stream.
struct Live {
    app: App,
    params: EventParams,
    receiver: Receiver<Numbered>,
    /// When the subscriber's token expires.
    expires: Option<Instant>,
    /// Cancelled when the tokens are replaced.
    replaced: CancellationToken,
    _permit: StreamPermit,
}

/// The missed events, followed by the live ones.
fn stream(
    app: App,
    params: EventParams,
    subscription: Subscription,
    expires: Option<Instant>,
    replaced: CancellationToken,
    permit: StreamPermit,
) -> impl Stream<Item = std::result::Result<sse::Event, Infallible>> {
    let Subscription { lost, missed, receiver } = subscription;
    let mut first = vec![sse::Event::default().retry(RECONNECT_AFTER)];
    if lost {
        // Without an id: a client that disconnects here and resumes receives it again.
        first.push(encode(None, &Event::new(EventKind::Reset, app.clock.now())));
    }
    let matching = missed.iter().filter(|(_, event)| params.matches(event));
    first.extend(matching.map(|(number, event)| encode(Some(app.feed.id(*number)), event)));
    let live = Live { app, params, receiver, expires, replaced, _permit: permit };
    let live = futures_util::stream::unfold(live, |mut live| async move {
        let next = live.next().await?;
        Some((next, live))
    });
    futures_util::stream::iter(first).chain(live).map(Ok)
}

impl Live {
    /// The next matching event; `None` ends the stream.
    async fn next(&mut self) -> Option<sse::Event> {
        loop {
            tokio::select! {
                () = self.app.stopping.cancelled() => return None,
                () = self.replaced.cancelled() => return None,
                () = sleep_until(self.expires) => return None,
                // A subscriber that lags too far behind is disconnected. It resumes from the last event that it received.
                received = self.receiver.recv() => {
                    let (number, event) = received.ok()?;
                    if self.params.matches(&event) {
                        return Some(encode(Some(self.app.feed.id(number)), &event));
                    }
                }
            }
        }
    }
}

/// Waits until this time; for ever without one.
async fn sleep_until(time: Option<Instant>) {
    match time {
        Some(time) => tokio::time::sleep_until(time).await,
        None => std::future::pending().await,
    }
}

/// Encodes an event: id, kind and JSON in one line of data.
fn encode(id: Option<String>, event: &Event) -> sse::Event {
    let encoded = match id {
        Some(id) => sse::Event::default().id(id),
        None => sse::Event::default(),
    };
    encoded.event(event.kind.as_str()).data(serde_json::to_string(event).unwrap_or_default())
}
