//! Reads from the store what others changed: pauses, opened sequences, the retry backlog.

use std::sync::Arc;

use lazaret_core::LetterState;
use lazaret_core::store::{PauseScope, Result};

use crate::component::Component;
use crate::events::Event;
use crate::flow::Shards;
use crate::gate::change_or;
use crate::guards::BacklogState;
use crate::sequence_sync;

/// Refreshes at a regular interval, and whenever a pause has to be written, for as long as it is polled.
pub(crate) async fn run(components: Vec<Arc<Component>>, shards: Shards) {
    let Some(Component { options, guards, lifecycle, flight, .. }) = components.first().map(|first| &**first)
    else {
        return;
    };
    let mut changed = guards.gate.watch();
    loop {
        change_or(&mut changed, Some(options.refresh)).await;
        flight.expire_suspects();
        // The lag of the source may grow while nothing of it is read: the intake publishes it.
        lifecycle.activity.notify_one();
        if let Err(error) = refresh(&components, &shards).await {
            tracing::debug!(%error, "store not refreshed");
            tokio::time::sleep(options.refresh).await;
        }
    }
}

async fn refresh(components: &[Arc<Component>], shards: &Shards) -> Result<()> {
    let Some(first) = components.first() else { return Ok(()) };
    let Component { identity, store, guards, options, .. } = &**first;
    for pause in guards.gate.unstored() {
        store.pause(&identity.consumer, pause.scope.clone(), &pause.by).await?;
        guards.gate.stored(&pause.scope);
    }
    catch_up(first).await?;
    let mut backlog = 0;
    for component in components {
        sequence_sync::sync(component, shards).await?;
        if options.budget.backlog.is_some() {
            let counts = store.counts(&component.queue).await?;
            backlog += counts.of(LetterState::Retrying);
        }
    }
    if let Some(state) = guards.update_backlog(backlog) {
        let consumer = identity.consumer.as_str();
        match state {
            BacklogState::Full => tracing::warn!(consumer, backlog, "retry backlog full, reading paused"),
            BacklogState::Accepting => {
                tracing::info!(consumer, backlog, "retry backlog below its limit, reading resumed");
            }
        }
        guards.gate.notify_watchers();
    }
    Ok(())
}

/// Reads the store's time and the pauses. Nothing may run before that.
pub(crate) async fn catch_up(component: &Component) -> Result<()> {
    component.clock.ask(&*component.store).await?;
    reload_pauses(component).await
}

/// Loads the pauses of the consumer from the store, and reports what changed.
pub(crate) async fn reload_pauses(component: &Component) -> Result<()> {
    let Component { identity, store, guards, telemetry, .. } = component;
    let (new, ended) = loop {
        let asked = guards.gate.ask_pauses();
        let pauses = store.pauses(&identity.consumer).await?;
        if let Some(changes) = guards.gate.set_pauses(asked, pauses) {
            break changes;
        }
    };
    for pause in &new {
        telemetry.emit(&Event::Paused { scope: &pause.scope, why: &pause.by.why });
    }
    for pause in &ended {
        if pause.scope == PauseScope::Consumer {
            guards.reset_fuse();
        }
        telemetry.emit(&Event::Resumed { scope: &pause.scope });
    }
    Ok(())
}
