//! Claims the stored sequences that are due and sends them to their shards.

use std::sync::Arc;
use std::time::Duration;

use crate::admission::{self, AttemptOf};
use crate::component::Component;
use crate::flow::{Shards, ToShard};
use crate::gate::change_or;
use crate::store_refresh;
use crate::store_retry::retry_until_ok;
use crate::stored::{Places, Purpose, Run};
use crate::time::{Moment, until};

/// The maximum number of sequences in one claim.
const CLAIM_LIMIT: usize = 256;
/// The delay after an error, and after a claim that returned nothing.
const RETRY_DELAY: Duration = Duration::from_millis(100);

/// Schedules the retries of one queue until the consumer drains. `places` limits the number of sequences
/// that run at once.
pub(crate) async fn schedule(component: Arc<Component>, shards: Shards, places: Places) {
    until_drained(&component, || round(&component, &shards, &places)).await;
}

/// Repeats a round of work on stored letters until the consumer drains.
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

/// Claims the sequences that are due, then waits until more may be due.
async fn round(component: &Arc<Component>, shards: &Shards, places: &Places) {
    let Component { queue, store, options, identity, guards, .. } = &**component;
    // Components share the places and wait for them in order.
    let Some(place) = places.take().await else { return };
    let mut changed = guards.gate.watch();
    if let Err(again) = admission::may_claim(component, AttemptOf::Retry) {
        drop(place);
        return change_or(&mut changed, again.map(|again| until(component.now(), again))).await;
    }
    // A sequence without a place would be leased for nothing, so never claim more sequences than there
    // are places.
    let most = if guards.gate.is_open() { CLAIM_LIMIT } else { 1 };
    let held = places.fill(place, most);
    let limit = held.len();
    let claimed_at = Moment::now(&*component.clock);
    let claims = store.claim_due(queue, &identity.instance, options.lease, limit).await;
    let Ok(claims) = claims else {
        drop(held);
        return tokio::time::sleep(RETRY_DELAY).await;
    };
    let (all, none) = (claims.len() == limit, claims.is_empty());
    for (claim, place) in claims.into_iter().zip(held) {
        let (component, purpose, place) = (component.clone(), Purpose::Retry, Some(place));
        let run = Run { component, claim, claimed_at, purpose, place, open: None };
        let shard = run.hash().shard(shards.len());
        shards[shard].push(ToShard::Run(Box::new(run)));
    }
    if !guards.gate.is_open() {
        return tokio::time::sleep(RETRY_DELAY).await;
    }
    if all {
        return;
    }
    let next = store.next_due(queue).await;
    let wait = match next {
        Ok(Some(next)) => match until(component.now(), next) {
            // Due only by our clock: the store's clock is behind.
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
