//! Finds the stored sequences that are due and brings them to their shards.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::time::Instant;

use crate::feed::Shards;
use crate::gate::change_or;
use crate::lookout;
use crate::patience::patiently;
use crate::shard::ToShard;
use crate::shared::{Component, until};
use crate::stored::{Purpose, Run};

/// How many sequences are claimed at once at most.
const CLAIM_LIMIT: usize = 64;
/// How long to wait after an error, and between claims that came to nothing.
const PAUSE: Duration = Duration::from_millis(100);

/// Schedules the retries of one queue until the consumer drains. `places` bounds how many sequences run at once.
pub(crate) async fn schedule(component: Arc<Component>, shards: Shards, places: Arc<Semaphore>) {
    until_drained(&component, || round(&component, &shards, &places)).await;
}

/// Works on what is stored, round after round, until the consumer drains.
pub(crate) async fn until_drained<F: Future<Output = ()>>(component: &Component, round: impl Fn() -> F) {
    // Nothing may run before it is known what is paused.
    if patiently(component, || lookout::reload_pauses(&component.shared)).await.is_err() {
        return;
    }
    loop {
        tokio::select! {
            biased;
            () = component.shared.drain.cancelled() => return,
            () = round() => {}
        }
    }
}

/// Claims what is due, then waits for the next time to look.
async fn round(component: &Arc<Component>, shards: &Shards, places: &Arc<Semaphore>) {
    let shared = &component.shared;
    // Components share the places, and each waits for its turn: the first place is held from here on, so that no two
    // hand it to and fro.
    let Ok(place) = places.clone().acquire_owned().await else { return };
    let mut place = Some(place);
    let mut changed = shared.gate.watch();
    let now = shared.now();
    if let Err(again) = shared.gate.allows_stored(false, now) {
        drop(place);
        return change_or(&mut changed, again.map(|again| until(now, again))).await;
    }
    let limit = if shared.gate.is_open() { CLAIM_LIMIT.min(1 + places.available_permits()) } else { 1 };
    let claimed_at = Instant::now();
    let lease = shared.options.lease;
    let claims = shared.store.claim_due(&component.queue, &shared.instance, lease, limit).await;
    let Ok(claims) = claims else {
        drop(place);
        return tokio::time::sleep(PAUSE).await;
    };
    let all = claims.len() == limit;
    for claim in claims {
        let Some(place) = place.take().or_else(|| places.clone().try_acquire_owned().ok()) else {
            // Another component was quicker. Best effort: a lease that is not given back ends by itself.
            let _ = shared.store.release(&claim.lease).await;
            continue;
        };
        let purpose = Purpose::Retry;
        let run = Run { component: component.clone(), claim, claimed_at, purpose, open: None };
        let shard = run.hash().shard(shards.len());
        shards[shard].push(ToShard::Run(Box::new(run), place));
    }
    drop(place);
    if !shared.gate.is_open() {
        return tokio::time::sleep(PAUSE).await;
    }
    if all {
        return;
    }
    let next = shared.store.next_due(&component.queue).await;
    let wait = match next {
        Ok(Some(next)) => until(shared.now(), next).min(shared.options.refresh),
        Ok(None) => shared.options.refresh,
        Err(_) => PAUSE,
    };
    tokio::select! {
        biased;
        () = component.due.notified() => {}
        () = tokio::time::sleep(wait) => {}
    }
}
