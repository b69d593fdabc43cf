//! Tells how operations move on: the store is asked, while anybody listens.

use std::collections::HashMap;
use std::time::Duration;

use jiff::Timestamp;
use lazaret_api::{Event, EventKind, Operation};
use lazaret_core::store::OperationId;

use crate::app::App;

/// How often the store is asked.
const EVERY: Duration = Duration::from_millis(500);
/// How many of the latest operations are looked at.
const LATEST: usize = 50;

/// Tells changes of operations until the server stops.
pub(crate) async fn watch_operations(app: App) {
    let mut known: HashMap<OperationId, Timestamp> = HashMap::new();
    loop {
        tokio::select! {
            () = app.stopping.cancelled() => return,
            () = tokio::time::sleep(EVERY) => {}
        }
        if !app.feed.has_listeners() {
            known.clear();
            continue;
        }
        let Ok(page) = app.store.operations(None, LATEST).await else { continue };
        let first = known.is_empty();
        let mut seen = HashMap::with_capacity(page.operations.len());
        for operation in page.operations.iter().rev() {
            seen.insert(operation.id, operation.updated_at);
            // Who has just come is told of what is under way, not of what is long over.
            let news = match known.get(&operation.id) {
                Some(before) => *before != operation.updated_at,
                None => !first || !operation.state.is_over(),
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
