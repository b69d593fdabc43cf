//! Watches for what others changed in the store: pauses, opened sequences, the retry backlog.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use lazaret_core::LetterState;
use lazaret_core::store::{PauseScope, Result};

use crate::events::Event;
use crate::feed::{self, Shards};
use crate::gate::change_or;
use crate::shared::{Component, Shared};

/// Looks at regular times, and whenever a pause has to be written down, for as long as it is polled.
pub(crate) async fn look_out(shared: Arc<Shared>, components: Vec<Arc<Component>>, shards: Shards) {
    let mut changed = shared.gate.watch();
    loop {
        change_or(&mut changed, Some(shared.options.refresh)).await;
        shared.flight.lose_patience();
        // What lies in the source may grow while nothing of it is read: the intake tells how much.
        shared.calmer.notify_one();
        if let Err(error) = look(&shared, &components, &shards).await {
            tracing::debug!(%error, "the store could not be asked for changes");
            tokio::time::sleep(shared.options.refresh).await;
        }
    }
}

async fn look(shared: &Arc<Shared>, components: &[Arc<Component>], shards: &Shards) -> Result<()> {
    for pause in shared.gate.unstored() {
        shared.store.pause(&shared.name, pause.scope.clone(), &pause.by).await?;
        shared.gate.stored(&pause.scope);
    }
    reload_pauses(shared).await?;
    let mut backlog = 0;
    for component in components {
        feed::refresh(component, shards).await?;
        if shared.options.budget.backlog.is_some() {
            let counts = shared.store.counts(&component.queue).await?;
            backlog += counts.of(LetterState::Retrying);
        }
    }
    let full = shared.backlog_full(backlog);
    if shared.backlog_full.swap(full, Ordering::AcqRel) != full {
        let consumer = shared.name.as_str();
        match full {
            true => tracing::warn!(
                consumer,
                backlog,
                "so many letters wait for a retry that no more messages are read"
            ),
            false => tracing::info!(consumer, backlog, "messages are read again"),
        }
        shared.gate.poke();
    }
    Ok(())
}

/// Takes over the pauses that the store knows, and tells what changed.
pub(crate) async fn reload_pauses(shared: &Arc<Shared>) -> Result<()> {
    let asked = shared.gate.ask_pauses();
    let pauses = shared.store.pauses(&shared.name).await?;
    let (new, gone) = shared.gate.set_pauses(asked, pauses);
    for pause in &new {
        shared.tell(&Event::Paused { scope: &pause.scope, why: &pause.by.why });
    }
    for pause in &gone {
        if pause.scope == PauseScope::Consumer {
            shared.reset_fuse();
        }
        shared.tell(&Event::Resumed { scope: &pause.scope });
    }
    Ok(())
}
