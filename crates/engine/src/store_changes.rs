//! Wakes the tasks of a consumer when the store announces a change, whether by this process or by
//! another one.
//!
//! A notification only shortens a wait. All of these tasks also poll by themselves, after
//! [`refresh`](crate::Options::refresh) at the latest, so any notification may be lost.

use std::sync::Arc;

use futures_util::future::join_all;
use lazaret_core::store::{Changes, Topic};

use crate::component::Component;

/// Waits for notifications for as long as it is polled.
pub(crate) async fn run(components: Vec<Arc<Component>>) {
    let Some(first) = components.first() else { return };
    let subscribe = |topic| first.store.changes(vec![topic]);
    let due = components.iter().map(|component| {
        let changes = subscribe(Topic::Due(component.queue.clone()));
        on_each(changes, || component.signals.retry.notify_one())
    });
    let operations = on_each(subscribe(Topic::Operations), || {
        components.iter().for_each(|component| component.signals.replay.notify_one());
    });
    let pauses = on_each(subscribe(Topic::Pauses(first.identity.consumer.clone())), || {
        first.guards.gate.notify_watchers();
        // The end of a sequence's pause makes the sequence due. The end of a replay pause lets
        // operations continue.
        for component in &components {
            component.signals.retry.notify_one();
            component.signals.replay.notify_one();
        }
    });
    tokio::join!(join_all(due), operations, pauses);
}

async fn on_each(mut changes: Changes, wake: impl Fn()) {
    loop {
        changes.changed().await;
        wake();
    }
}
