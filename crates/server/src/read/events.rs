//! `GET /v1/events`: server-sent events with resume.

mod live;

use std::collections::HashSet;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderName, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures_util::StreamExt;
use jiff::Timestamp;
use lazaret_api::{Event, EventKind};
use serde::Deserialize;
use tokio::time::Instant;

use crate::api_error::{ApiError, Result};
use crate::app::App;
use crate::auth::Caller;
use crate::event_feed::{Events, Published, frame};
use crate::extract::Params;
use crate::ndjson::stream_permit;
use live::{Ends, Live, Source};

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
    /// Only the latest event of each kind and consumer, from time to time.
    #[serde(default)]
    latest: bool,
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

    /// Those of these events to send, in their order.
    fn select<'a>(&self, events: &'a [Arc<Published>]) -> Vec<&'a Published> {
        let matching = events.iter().map(|published| &**published).filter(|one| self.matches(&one.event));
        if !self.latest {
            return matching.collect();
        }
        let mut known = HashSet::new();
        let is_latest = |one: &&'a Published| known.insert((one.event.kind, one.event.consumer.as_deref()));
        let mut latest: Vec<&Published> = matching.rev().filter(is_latest).collect();
        latest.reverse();
        latest
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
    let last = headers.get("last-event-id").and_then(|last| last.to_str().ok());
    let last = last.map(str::to_owned).or_else(|| params.last_event_id.clone());
    let (missed, source) = Source::subscribe(&app.feed, params.latest, last.as_deref());
    let first = first_part(&app, &params, &missed);
    let live = Live {
        feed: app.feed.clone(),
        params,
        source,
        ends: Ends { stopping: app.stopping.clone(), replaced: caller.session.replaced, expires },
        heartbeat: app.options.limits.heartbeat,
    };
    let live = futures_util::stream::unfold((live, permit), |(mut live, permit)| async move {
        let next = live.next().await?;
        Some((next, (live, permit)))
    });
    let parts = futures_util::stream::iter([first]).chain(live).map(Ok::<_, Infallible>);
    let headers = [
        (header::CONTENT_TYPE, "text/event-stream"),
        // Nothing of the API is stored.
        (header::CACHE_CONTROL, "no-store"),
        (HeaderName::from_static("x-accel-buffering"), "no"),
    ];
    Ok((headers, Body::from_stream(parts)).into_response())
}

/// The start of a stream: the reconnection time, and the missed events.
fn first_part(app: &App, params: &EventParams, missed: &Events) -> Bytes {
    let mut part = format!("retry: {}\n\n", RECONNECT_AFTER.as_millis()).into_bytes();
    if missed.lost {
        part.extend_from_slice(&reset(app.clock.now()));
    }
    for published in params.select(&missed.events) {
        part.extend_from_slice(&app.feed.frame(published));
    }
    part.into()
}

/// The event that some were lost. Without an id: a client that disconnects here and resumes receives it again.
fn reset(now: Timestamp) -> Bytes {
    frame(None, &Event::new(EventKind::Reset, now))
}
