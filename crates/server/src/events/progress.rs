//! Tells how operations move on: the store is asked, while anybody listens.

use std::collections::HashMap;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use lazaret_api::{Event, EventKind, Operation};
use lazaret_core::store::OperationId;

use crate::app::App;

/// How often the store is asked.
const EVERY: Duration = Duration::from_millis(500);
/// How far the store's clock may be behind ours. Who is told of an end twice has lost nothing.
const SLACK: SignedDuration = SignedDuration::from_secs(2);
/// How many of the latest operations are looked at.
const LATEST: usize = 50;

/// Tells changes of operations until the server stops.
pub(crate) async fn watch_operations(app: App) {
    let mut known: HashMap<OperationId, Timestamp> = HashMap::new();
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
        let Ok(page) = app.store.operations(None, LATEST).await else { continue };
        let mut seen = HashMap::with_capacity(page.operations.len());
        for operation in page.operations.iter().rev() {
            seen.insert(operation.id, operation.updated_at);
            let news = match known.get(&operation.id) {
                Some(before) => *before != operation.updated_at,
                None => !operation.state.is_over() || operation.updated_at + SLACK >= silent_until,
            };
            if news {
                tell(&app, operation.into());
            }
        }
        known = seen;
    }
}

/// Tells how an operation stands.
pub(crate) fn tell(app: &App, operation: Operation) {
    let event = Event::new(EventKind::Operation, app.clock.now());
    app.feed.publish(Event { operation: Some(operation), ..event });
}
