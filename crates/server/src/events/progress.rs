//! Tells how operations move on: the store is asked, while anybody listens.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use lazaret_api::{Event, EventKind, Operation};
use lazaret_core::store::{self, OperationId, OperationState};

use crate::app::App;

/// How often the store is asked.
const EVERY: Duration = Duration::from_millis(500);
/// How far the store's clock may be behind ours. Who is told of an end twice has lost nothing.
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
    // What was over before anybody listened is no news.
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
            let news = match known.get(&operation.id) {
                Some((before, _)) => *before != operation.updated_at,
                None => !operation.state.is_over() || operation.updated_at + SLACK >= silent_until,
            };
            if news {
                tell(&app, operation.into());
            }
        }
        let stand = |operation: &store::Operation| (operation.updated_at, operation.state);
        known = operations.iter().map(|(id, operation)| (*id, stand(operation))).collect();
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
