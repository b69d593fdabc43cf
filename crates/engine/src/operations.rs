//! Carries operations out: takes letters whose turn has come and brings their sequences to their shards.
//!
//! What may be done when (schedule, approval, ramp, stop rule, rate) is the store's to decide, so that several processes
//! and restarts change nothing about it. Here is only the pair of hands.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::time::Instant;

use crate::feed::Shards;
use crate::gate::change_or;
use crate::scheduler::until_drained;
use crate::shard::ToShard;
use crate::shared::{Component, until};
use crate::stored::{Purpose, Run};

/// How many letters are polled at once at most.
const TAKE_LIMIT: usize = 64;
/// How long to wait after an error.
const PAUSE: Duration = Duration::from_millis(100);
/// An operation that goes on by then is under way. One that is to start tomorrow keeps nobody from ending today.
const SOON: Duration = Duration::from_secs(60);

/// Carries out the operations on one queue until the consumer drains. `places` bounds how many letters are replayed at
/// once.
pub(crate) async fn operate(component: Arc<Component>, shards: Shards, places: Arc<Semaphore>) {
    until_drained(&component, || round(&component, &shards, &places)).await;
}

/// Takes what has its turn, then waits for the next time to look.
async fn round(component: &Arc<Component>, shards: &Shards, places: &Arc<Semaphore>) {
    let shared = &component.shared;
    let Ok(place) = places.clone().acquire_owned().await else { return };
    let mut changed = shared.gate.watch();
    let now = shared.now();
    if let Err(again) = shared.gate.allows_stored(true, now) {
        drop(place);
        component.operating.store(false, Ordering::Release);
        return change_or(&mut changed, again.map(|again| until(now, again))).await;
    }
    // A turn that finds no place would hold its sequence for nothing: never take more than there is room for.
    let mut held = vec![place];
    while held.len() < TAKE_LIMIT
        && let Ok(place) = places.clone().try_acquire_owned()
    {
        held.push(place);
    }
    let limit = held.len();
    let claimed_at = Instant::now();
    let lease = shared.options.lease;
    let polled = match shared.store.poll_work(&component.queue, &shared.instance, lease, limit).await {
        Ok(polled) => polled,
        Err(error) => {
            drop(held);
            tracing::debug!(%error, "the store could not be asked for operations");
            return tokio::time::sleep(PAUSE).await;
        }
    };
    let busy = polled.items.len() == limit || polled.settled > 0;
    let soon = polled.again_at.is_some_and(|again| until(shared.now(), again) <= SOON);
    component.operating.store(busy || soon || !polled.items.is_empty(), Ordering::Release);
    for (turn, place) in polled.items.into_iter().zip(held) {
        let purpose = Purpose::Replay(turn.operation.to_string());
        let run = Run { component: component.clone(), claim: turn.claim, claimed_at, purpose, open: None };
        let shard = run.hash().shard(shards.len());
        shards[shard].push(ToShard::Run(Box::new(run), place));
    }
    if polled.settled > 0 {
        // Acts may have let something go on.
        component.due.notify_one();
    }
    if busy {
        return;
    }
    let refresh = shared.options.refresh;
    let wait = polled.again_at.map_or(refresh, |again| until(shared.now(), again).min(refresh));
    tokio::select! {
        biased;
        () = component.turn_over.notified() => {}
        () = tokio::time::sleep(wait) => {}
    }
}
