//! Runs operations: polls the letters to replay and sends their sequences to their shards.
//!
//! The store decides what may be done when (schedule, approval, ramp, stop rule, rate). Therefore
//! multiple processes and restarts do not affect these rules.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use lazaret_core::policy::BreakerState;

use crate::admission::{self, AttemptOf};
use crate::component::Component;
use crate::flow::{Shards, ToShard};
use crate::gate::change_or;
use crate::scheduler::until_drained;
use crate::stored::{Places, Purpose, Run};
use crate::time::{Moment, until};

/// The maximum number of letters in one poll.
const POLL_LIMIT: usize = 256;
/// The delay after an error.
const RETRY_DELAY: Duration = Duration::from_millis(100);
/// An operation that continues within this time counts as active. An operation that starts tomorrow does
/// not keep a consumer from ending today.
const SOON: Duration = Duration::from_secs(60);

/// Runs the operations on one queue until the consumer drains. `places` limits the number of letters
/// that are replayed at once.
pub(crate) async fn operate(component: Arc<Component>, shards: Shards, places: Places) {
    until_drained(&component, || round(&component, &shards, &places)).await;
}

/// Polls the letters to replay, then waits until there may be more.
async fn round(component: &Arc<Component>, shards: &Shards, places: &Places) {
    let Component { queue, store, options, identity, signals, .. } = &**component;
    let Some(place) = places.take().await else { return };
    let mut changed = component.guards.gate.watch();
    if let Err(again) = admission::may_claim(component, AttemptOf::Replay) {
        drop(place);
        // While probes are in flight, operations stay active: they continue when the probes have ended.
        if component.guards.gate.breaker(component.guards.steady_now()) != Some(BreakerState::HalfOpen) {
            signals.operations_active.store(false, Ordering::Release);
        }
        return change_or(&mut changed, again.map(|again| until(component.now(), again))).await;
    }
    // A letter without a place would hold its sequence for nothing, so never poll more letters than
    // there are places. A half-open breaker admits only a few attempts.
    let most = if component.guards.gate.is_open() { POLL_LIMIT } else { 1 };
    let held = places.fill(place, most);
    let limit = held.len();
    let claimed_at = Moment::now(&*component.clock);
    let polled = match store.poll_work(queue, &identity.instance, options.lease, limit).await {
        Ok(polled) => polled,
        Err(error) => {
            drop(held);
            tracing::debug!(%error, "operations not polled");
            return tokio::time::sleep(RETRY_DELAY).await;
        }
    };
    let none = polled.items.is_empty() && polled.settled == 0;
    let busy = polled.items.len() == limit || polled.settled > 0;
    let soon = polled.again_at.is_some_and(|again| until(component.now(), again) <= SOON);
    signals.operations_active.store(busy || soon || !polled.items.is_empty(), Ordering::Release);
    for (item, place) in polled.items.into_iter().zip(held) {
        let purpose = Purpose::Replay(item.operation.to_string());
        let (component, claim, place) = (component.clone(), item.claim, Some(place));
        let run = Run { component, claim, claimed_at, purpose, place, open: None };
        let shard = run.hash().shard(shards.len());
        shards[shard].push(ToShard::Run(Box::new(run)));
    }
    if polled.settled > 0 {
        // Letters may have been released.
        signals.retry.notify_one();
    }
    if busy {
        return;
    }
    let refresh = options.refresh;
    let wait = match polled.again_at.map(|again| until(component.now(), again)) {
        None => refresh,
        // Due only by our clock: the store's clock is behind.
        Some(Duration::ZERO) if none => RETRY_DELAY,
        Some(wait) => wait.min(refresh),
    };
    tokio::select! {
        biased;
        () = signals.replay.notified() => {}
        () = tokio::time::sleep(wait) => {}
    }
}
