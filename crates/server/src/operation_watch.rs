//! Publishes the progress of operations: polls the store while there are subscribers.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use lazaret_api::{Event, EventKind, Operation};
use lazaret_core::store::{self, OperationId, OperationState};

use crate::app::App;

/// The poll interval.
const INTERVAL: Duration = Duration::from_millis(500);
/// The clock skew tolerated between store and server. A change that is published twice does no harm.
const CLOCK_SKEW: SignedDuration = SignedDuration::from_secs(2);
/// The number of latest operations per poll, in any state.
const LATEST: usize = 50;
/// The number of operations in progress per poll.
const IN_PROGRESS: usize = 200;

/// Time of the last change and state of each operation at the last poll.
type Known = HashMap<OperationId, (Timestamp, OperationState)>;

/// Publishes changes of operations until the server stops.
pub(crate) async fn watch_operations(app: App) {
    let mut known = Known::new();
    // Changes from before the first subscriber are not published.
    let mut since = app.clock.now();
    loop {
        tokio::select! {
            () = app.stopping.cancelled() => return,
            () = tokio::time::sleep(INTERVAL) => {}
        }
        if !app.feed.has_subscribers() {
            known.clear();
            since = app.clock.now();
            continue;
        }
        let Ok(operations) = poll(&app, &known).await else { continue };
        for operation in operations.values() {
            let last = known.get(&operation.id).map(|(updated_at, _)| updated_at);
            if has_changed(last, operation.updated_at, since) {
                publish(&app, operation.into());
            }
        }
        let state = |operation: &store::Operation| (operation.updated_at, operation.state);
        known = operations.iter().map(|(id, operation)| (*id, state(operation))).collect();
    }
}

/// Returns `true` if an operation changed since the last poll, or, when it was not known then, since there are subscribers.
fn has_changed(last: Option<&Timestamp>, updated_at: Timestamp, since: Timestamp) -> bool {
    match last {
        Some(last) => *last != updated_at,
        None => updated_at + CLOCK_SKEW >= since,
    }
}

/// Reads the latest operations, those in progress however old, and those that were in progress at the last poll and have ended
/// since. The oldest comes first.
async fn poll(app: &App, known: &Known) -> store::Result<BTreeMap<OperationId, store::Operation>> {
    let latest = app.store.operations(None, LATEST).await?.operations;
    let in_progress = app.store.under_way(IN_PROGRESS).await?;
    let mut found: BTreeMap<_, _> = latest.into_iter().chain(in_progress).map(|one| (one.id, one)).collect();
    for (id, (_, state)) in known {
        if !state.is_over() && !found.contains_key(id) {
            found.extend(app.store.operation(*id).await?.map(|operation| (*id, operation)));
        }
    }
    Ok(found)
}

/// Publishes an operation.
pub(crate) fn publish(app: &App, operation: Operation) {
    let event = Event::new(EventKind::Operation, app.clock.now());
    app.feed.publish(Event { operation: Some(operation), ..event });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_from_before_the_first_subscriber_are_not_published() {
        let at = |second| Timestamp::from_second(second).unwrap();
        assert!(!has_changed(None, at(10), at(100)), "awaiting approval since long ago");
        assert!(has_changed(None, at(101), at(100)));
        assert!(has_changed(None, at(99), at(100)), "within the clock skew");
        assert!(!has_changed(Some(&at(101)), at(101), at(100)));
        assert!(has_changed(Some(&at(101)), at(102), at(100)));
    }
}
