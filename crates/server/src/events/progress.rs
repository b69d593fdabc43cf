//! Tells how operations move on: the store is asked, while anybody listens.

use std::collections::HashMap;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use lazaret_api::{Event, EventKind, Operation};
use lazaret_core::store::OperationId;

use crate::app::App;

/// How often the store is asked.
const EVERY: Duration = Duration::from_millis(500);
/// How far the store's clock may be behind ours. Who is told of a change twice has lost nothing.
const SLACK: SignedDuration = SignedDuration::from_secs(2);
/// How many of the latest operations are looked at.
const LATEST: usize = 50;

/// Tells changes of operations until the server stops.
pub(crate) async fn watch_operations(app: App) {
    let mut known: HashMap<OperationId, Timestamp> = HashMap::new();
    // What happened before anybody listened is no news.
    let mut silent_until = app.clock.now();
    loop {
        tokio::select! {
            () = app.stopping.cancelled() => return,
            () = tokio::time::sleep(EVERY) => {}
        }
        if !app.feed.has_listeners() {
            known.clear();
            silent_until = app.clock.now();
            continue;
        }
        let Ok(page) = app.store.operations(None, LATEST).await else { continue };
        let mut seen = HashMap::with_capacity(page.operations.len());
        for operation in page.operations.iter().rev() {
            seen.insert(operation.id, operation.updated_at);
            if is_news(known.get(&operation.id), operation.updated_at, silent_until) {
                tell(&app, operation.into());
            }
        }
        known = seen;
    }
}

/// Whether an operation that was updated then has moved on since it was last seen, or else since anybody listens.
fn is_news(seen: Option<&Timestamp>, updated_at: Timestamp, silent_until: Timestamp) -> bool {
    match seen {
        Some(seen) => *seen != updated_at,
        None => updated_at + SLACK >= silent_until,
    }
}

/// Tells how an operation stands.
pub(crate) fn tell(app: &App, operation: Operation) {
    let event = Event::new(EventKind::Operation, app.clock.now());
    app.feed.publish(Event { operation: Some(operation), ..event });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stood_still_before_anybody_listened_is_no_news() {
        let at = |second| Timestamp::from_second(second).unwrap();
        assert!(!is_news(None, at(10), at(100)), "it waits for approval since long ago");
        assert!(is_news(None, at(101), at(100)));
        assert!(is_news(None, at(99), at(100)), "clocks may differ a little");
        assert!(!is_news(Some(&at(101)), at(101), at(100)));
        assert!(is_news(Some(&at(101)), at(102), at(100)));
    }
}
