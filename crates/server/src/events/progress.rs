//! Tells how operations move on: the store is asked, while anybody listens.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use lazaret_api::{Event, EventKind, Operation};
use lazaret_core::store::{self, OperationId, OperationState};

use crate::app::App;

/// How often the store is asked.
const EVERY: Duration = Duration::from_millis(500);
/// How far the store's clock may be behind ours. Who is told of a change twice has lost nothing.
const SLACK: SignedDuration = SignedDuration::from_secs(2);
/// How many of the latest operations are looked at, over or not.
const LATEST: usize = 50;
/// How many of those that are under way are looked at.
const UNDER_WAY: usize = 200;

/// How operations stood when somebody looked last: when each had changed, and its state.
type Known = HashMap<OperationId, (Timestamp, OperationState)>;

/// Tells changes of operations until the server stops.
pub(crate) async fn watch_operations(app: App) {
    let mut known = Known::new();
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
        let Ok(operations) = look(&app, &known).await else { continue };
        for operation in operations.values() {
            let seen = known.get(&operation.id).map(|(updated_at, _)| updated_at);
            if is_news(seen, operation.updated_at, silent_until) {
                tell(&app, operation.into());
            }
        }
        let stand = |operation: &store::Operation| (operation.updated_at, operation.state);
        known = operations.iter().map(|(id, operation)| (*id, stand(operation))).collect();
    }
}

/// Whether an operation that was updated then has moved on since it was last seen, or else since anybody listens.
fn is_news(seen: Option<&Timestamp>, updated_at: Timestamp, silent_until: Timestamp) -> bool {
    match seen {
        Some(seen) => *seen != updated_at,
        None => updated_at + SLACK >= silent_until,
    }
}

/// The latest operations, those that are under way however old, and those that were when somebody looked last: they have ended
/// since. The oldest comes first.
async fn look(app: &App, known: &Known) -> store::Result<BTreeMap<OperationId, store::Operation>> {
    let latest = app.store.operations(None, LATEST).await?.operations;
    let under_way = app.store.under_way(UNDER_WAY).await?;
    let mut seen: BTreeMap<_, _> = latest.into_iter().chain(under_way).map(|one| (one.id, one)).collect();
    for (id, (_, state)) in known {
        if !state.is_over() && !seen.contains_key(id) {
            seen.extend(app.store.operation(*id).await?.map(|operation| (*id, operation)));
        }
    }
    Ok(seen)
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
