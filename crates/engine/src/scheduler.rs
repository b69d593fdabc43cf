//! Claims the stored sequences that are due and sends them to their shards.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::time::Instant;

use crate::admission::{self, AttemptOf};
use crate::component::Component;
use crate::flow::{Shards, ToShard};
use crate::gate::change_or;
use crate::store_refresh;
use crate::store_retry::retry_until_ok;
use crate::stored::{Purpose, Run};
use crate::time::until;

/// The number of sequences that are claimed at once at most.
const CLAIM_LIMIT: usize = 64;
/// The delay after an error, and between claims that returned nothing.
const RETRY_DELAY: Duration = Duration::from_millis(100);

/// Schedules the retries of one queue until the consumer drains. `places` bounds how many sequences run at once.
pub(crate) async fn schedule(component: Arc<Component>, shards: Shards, places: Arc<Semaphore>) {
    until_drained(&component, || round(&component, &shards, &places)).await;
}

/// Repeats a round of work on what is stored, until the consumer drains.
pub(crate) async fn until_drained<F: Future<Output = ()>>(component: &Component, round: impl Fn() -> F) {
    if retry_until_ok(component, || store_refresh::catch_up(component)).await.is_err() {
        return;
    }
    loop {
        tokio::select! {
            biased;
            () = component.lifecycle.drain.cancelled() => return,
            () = round() => {}
        }
    }
}

/// Claims what is due, then waits until more may be due.
async fn round(component: &Arc<Component>, shards: &Shards, places: &Arc<Semaphore>) {
    let Component { queue, store, options, identity, guards, .. } = &**component;
    // Components share the places and wait for them in order: the first place is held from here on, so that two components
    // do not pass it to each other forever.
    let Ok(place) = places.clone().acquire_owned().await else { return };
    let mut place = Some(place);
    let mut changed = guards.gate.watch();
    if let Err(again) = admission::may_claim(component, AttemptOf::Retry) {
        drop(place);
        return change_or(&mut changed, again.map(|again| until(component.now(), again))).await;
    }
    let limit = if guards.gate.is_open() { CLAIM_LIMIT.min(1 + places.available_permits()) } else { 1 };
    let claimed_at = Instant::now();
    let claims = store.claim_due(queue, &identity.instance, options.lease, limit).await;
    let Ok(claims) = claims else {
        drop(place);
        return tokio::time::sleep(RETRY_DELAY).await;
    };
    let (all, none) = (claims.len() == limit, claims.is_empty());
    for claim in claims {
        let Some(place) = place.take().or_else(|| places.clone().try_acquire_owned().ok()) else {
            // Another component took the place. Best effort: a lease that is not released expires.
            let _ = store.release(&claim.lease).await;
            continue;
        };
        let purpose = Purpose::Retry;
        let run = Run { component: component.clone(), claim, claimed_at, purpose, open: None };
        let shard = run.hash().shard(shards.len());
        shards[shard].push(ToShard::Run(Box::new(run), place));
    }
    drop(place);
    if !guards.gate.is_open() {
        return tokio::time::sleep(RETRY_DELAY).await;
    }
    if all {
        return;
    }
    let next = store.next_due(queue).await;
    let wait = match next {
        Ok(Some(next)) => match until(component.now(), next) {
            // Due by our clock alone: that of the store is behind.
            Duration::ZERO if none => RETRY_DELAY,
            wait => wait.min(options.refresh),
        },
        Ok(None) => options.refresh,
        Err(_) => RETRY_DELAY,
    };
    tokio::select! {
        biased;
        () = component.signals.retry.notified() => {}
        () = tokio::time::sleep(wait) => {}
    }
}
