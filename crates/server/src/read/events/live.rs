//! The live part of an event stream.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use jiff::Timestamp;
use tokio::sync::broadcast::Receiver;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::view::EventView;
use super::{EventParams, reset};
use crate::event_feed::{Events, Feed, Latest, Published, Subscription};

/// The comment that keeps an idle connection open.
const STILL_HERE: &[u8] = b": still here\n\n";

/// Where a subscriber gets its events from.
pub(super) enum Source {
    /// Each event, as it is published.
    Each(Receiver<Arc<Published>>),
    /// The latest events, from time to time.
    Latest(Latest),
}

impl Source {
    /// Subscribes. Returns the missed events as well.
    pub(super) fn subscribe(feed: &Feed, latest: bool, last: Option<&str>) -> (Events, Self) {
        if latest {
            let (missed, latest) = feed.follow(last);
            return (missed, Self::Latest(latest));
        }
        let Subscription { missed, receiver } = feed.subscribe(last);
        (missed, Self::Each(receiver))
    }

    /// Waits for events. `None` for a subscriber that lags too far behind: it is disconnected, and resumes from the last event that it
    /// received.
    async fn next(&mut self) -> Option<Events> {
        match self {
            Self::Each(receiver) => {
                let published = receiver.recv().await.ok()?;
                Some(Events { lost: false, events: vec![published] })
            }
            Self::Latest(latest) => Some(latest.look().await),
        }
    }
}

/// What ends a stream.
pub(super) struct Ends {
    /// Cancelled when the server stops.
    pub(super) stopping: CancellationToken,
    /// Cancelled when the tokens are replaced, or at the end of a session.
    pub(super) replaced: CancellationToken,
    /// When the subscriber's token expires.
    pub(super) expires: Option<Instant>,
}

impl Ends {
    async fn reached(&self) {
        let expired = async {
            match self.expires {
                Some(time) => tokio::time::sleep_until(time).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = self.stopping.cancelled() => {}
            () = self.replaced.cancelled() => {}
            () = expired => {}
        }
    }
}

/// The live part of a stream.
pub(super) struct Live {
    pub(super) view: EventView,
    pub(super) params: EventParams,
    pub(super) source: Source,
    pub(super) ends: Ends,
    /// The time after which an idle connection gets a comment.
    pub(super) heartbeat: Duration,
}

impl Live {
    /// The next part of the stream; `None` ends it.
    pub(super) async fn next(&mut self) -> Option<Bytes> {
        let idle = tokio::time::sleep(self.heartbeat);
        let end = self.ends.reached();
        tokio::pin!(idle, end);
        loop {
            tokio::select! {
                () = &mut end => return None,
                events = self.source.next() => {
                    let events = events?;
                    let part = tokio::select! {
                        () = &mut end => return None,
                        part = encode(&self.view, &self.params, &events) => part,
                    };
                    if part.is_some() {
                        return part;
                    }
                }
                () = &mut idle => return Some(Bytes::from_static(STILL_HERE)),
            }
        }
    }
}

/// The events to send, if there are any. A single one is sent as the bytes that all its subscribers share.
async fn encode(view: &EventView, params: &EventParams, events: &Events) -> Option<Bytes> {
    let feed = &view.app.feed;
    let selected = params.select(view, &events.events).await;
    match selected.as_slice() {
        [] if !events.lost => None,
        [one] if !events.lost => Some(feed.frame(one)),
        _ => {
            let mut part = Vec::new();
            if events.lost {
                part.extend_from_slice(&reset(Timestamp::now()));
            }
            selected.iter().for_each(|one| part.extend_from_slice(&feed.frame(one)));
            Some(part.into())
        }
    }
}

#[cfg(test)]
mod tests {
    use lazaret_api::{Event, EventKind, Identity, Scope, Via};
    use lazaret_memory::MemoryStore;

    use super::*;
    use crate::app::App;
    use crate::auth::{Caller, Session};
    use crate::server::Server;

    fn app() -> App {
        Server::builder(Arc::new(MemoryStore::default())).build().app
    }

    /// A subscriber who may see these consumers; all without any.
    fn subscriber(app: &App, allowed: &[&str], latest: bool) -> Live {
        let identity = Identity {
            name: "ada".to_owned(),
            person: "ada".to_owned(),
            authenticated: true,
            scopes: vec![Scope::Read],
            expires_at: None,
            consumers: allowed.iter().map(|consumer| (*consumer).to_owned()).collect(),
        };
        let caller = Caller { identity, via: Via::Api, claim: None, session: Session::default() };
        let params = EventParams { consumer: None, kind: None, last_event_id: None, latest };
        let (_, source) = Source::subscribe(&app.feed, latest, None);
        let (stopping, replaced) = (CancellationToken::new(), CancellationToken::new());
        let ends = Ends { stopping, replaced, expires: None };
        let view = EventView { app: app.clone(), caller };
        Live { view, params, source, ends, heartbeat: Duration::from_secs(3600) }
    }

    fn publish(app: &App, kind: EventKind, consumer: Option<&str>, attempt: u32) {
        let event = Event::new(kind, Timestamp::UNIX_EPOCH);
        app.feed.publish(Event { consumer: consumer.map(str::to_owned), attempt: Some(attempt), ..event });
    }

    /// Consumer and attempt of each event.
    fn told(part: &[u8]) -> Vec<(Option<String>, Option<u32>)> {
        let data = std::str::from_utf8(part).unwrap().lines().filter_map(|line| line.strip_prefix("data: "));
        let events = data.map(|data| serde_json::from_str::<Event>(data).unwrap());
        events.map(|event| (event.consumer, event.attempt)).collect()
    }

    fn of(consumer: &str, attempt: u32) -> (Option<String>, Option<u32>) {
        (Some(consumer.to_owned()), Some(attempt))
    }

    #[tokio::test(start_paused = true)]
    async fn subscribers_share_bytes_and_get_only_what_their_rights_allow() {
        let app = app();
        let mut both = [subscriber(&app, &[], false), subscriber(&app, &[], false)];
        let mut shop = subscriber(&app, &["shop"], false);
        let mut mail = subscriber(&app, &["mail"], false);
        publish(&app, EventKind::Failed, Some("shop"), 1);
        publish(&app, EventKind::Operation, None, 2);
        publish(&app, EventKind::Failed, Some("mail"), 3);
        let [first, second] = &mut both;
        for expected in [of("shop", 1), (None, Some(2)), of("mail", 3)] {
            let (first, second) = (first.next().await.unwrap(), second.next().await.unwrap());
            assert_eq!(told(&first), [expected]);
            assert_eq!(first.as_ptr(), second.as_ptr(), "encoded once");
        }
        assert_eq!(told(&shop.next().await.unwrap()), [of("shop", 1)]);
        assert_eq!(told(&mail.next().await.unwrap()), [of("mail", 3)]);
        let more = tokio::time::timeout(Duration::from_secs(60), shop.next()).await;
        assert!(more.is_err(), "nothing else is for the shop");
    }

    #[tokio::test(start_paused = true)]
    async fn followers_get_the_latest_of_each_kind_and_consumer_that_they_may_see() {
        let app = app();
        let mut all = subscriber(&app, &[], true);
        let mut shop = subscriber(&app, &["shop"], true);
        for attempt in 1..=5 {
            publish(&app, EventKind::Failed, Some("shop"), attempt);
            publish(&app, EventKind::Failed, Some("mail"), attempt);
        }
        publish(&app, EventKind::Poison, Some("shop"), 9);
        assert_eq!(told(&all.next().await.unwrap()), [of("shop", 5), of("mail", 5), of("shop", 9)]);
        assert_eq!(told(&shop.next().await.unwrap()), [of("shop", 5), of("shop", 9)]);
        // What it may not see does not end the wait, and is not told later.
        publish(&app, EventKind::Failed, Some("mail"), 6);
        assert!(tokio::time::timeout(Duration::from_secs(60), shop.next()).await.is_err());
        publish(&app, EventKind::Failed, Some("shop"), 7);
        assert_eq!(told(&shop.next().await.unwrap()), [of("shop", 7)]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_stream_ends_during_a_pause_and_an_idle_one_says_that_it_is_there() {
        let app = app();
        let mut live = subscriber(&app, &[], true);
        assert_eq!(live.next().await.unwrap(), STILL_HERE);
        publish(&app, EventKind::Failed, None, 1);
        assert_eq!(told(&live.next().await.unwrap()).len(), 1);
        publish(&app, EventKind::Failed, None, 2);
        live.ends.stopping.cancel();
        assert_eq!(live.next().await, None);
    }
}
