//! `GET /v1/events`: server-sent events with resume.

mod live;
mod view;

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
use view::EventView;

/// The reconnection time of clients.
const RECONNECT_AFTER: Duration = Duration::from_secs(2);

/// The events to send.
#[derive(Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(crate) struct EventParams {
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
        let consumer = match (&self.consumer, &event.consumer) {
            (Some(wanted), Some(consumer)) => wanted == consumer,
            // Events without a consumer, such as those of operations, are sent to everybody who sees them.
            _ => true,
        };
        let kind = self.kind.as_ref();
        let kind = kind.is_none_or(|kinds| kinds.split(',').any(|kind| kind.trim() == event.kind.as_str()));
        event.kind == EventKind::Reset || (consumer && kind)
    }

    /// Those of these events to send, in their order.
    async fn select<'a>(&self, view: &EventView, events: &'a [Arc<Published>]) -> Vec<&'a Published> {
        let mut known = HashSet::new();
        let mut selected = Vec::new();
        // The last ones first: they stand for those before them where only the latest are sent.
        for one in events.iter().rev() {
            let one: &Published = one;
            let subject = (one.event.kind, one.event.consumer.as_deref());
            if self.latest && known.contains(&subject) {
                continue;
            }
            if self.matches(&one.event) && view.shows(&one.event).await {
                known.insert(subject);
                selected.push(one);
            }
        }
        selected.reverse();
        selected
    }
}

pub(crate) async fn events(
    State(app): State<App>,
    Params(params): Params<EventParams>,
    caller: Caller,
    headers: HeaderMap,
) -> Result<Response> {
    params.check()?;
    let permit = stream_permit(&app, &caller)?;
    let left = caller.identity.expires_at.map(|end| end.duration_since(app.clock.now()));
    let expires = left.map(|left| Instant::now() + Duration::try_from(left).unwrap_or_default());
    let last = headers.get("last-event-id").and_then(|last| last.to_str().ok());
    let last = last.map(str::to_owned).or_else(|| params.last_event_id.clone());
    let (missed, source) = Source::subscribe(&app.feed, params.latest, last.as_deref());
    let ends = Ends { stopping: app.stopping.clone(), replaced: caller.session.replaced.clone(), expires };
    let heartbeat = app.options.limits.heartbeat;
    let view = EventView { app, caller };
    let first = first_part(&view, &params, &missed).await;
    let live = Live { view, params, source, ends, heartbeat };
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
async fn first_part(view: &EventView, params: &EventParams, missed: &Events) -> Bytes {
    let mut part = format!("retry: {}\n\n", RECONNECT_AFTER.as_millis()).into_bytes();
    if missed.lost {
        part.extend_from_slice(&reset(view.app.clock.now()));
    }
    for published in params.select(view, &missed.events).await {
        part.extend_from_slice(&view.app.feed.frame(published));
    }
    part.into()
}

/// The event that some were lost. Without an id: a client that disconnects here and resumes receives it again.
fn reset(now: Timestamp) -> Bytes {
    frame(None, &Event::new(EventKind::Reset, now))
}
