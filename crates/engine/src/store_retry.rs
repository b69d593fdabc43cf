//! Retries store calls until they succeed, and holds the source meanwhile (I9).

use std::future::Future;
use std::time::Duration;

use backon::{BackoffBuilder, ExponentialBackoff, ExponentialBuilder};
use lazaret_core::policy::CapacityPolicy;
use lazaret_core::store::{self, ErrorKind, StoreError};

use crate::component::Component;
use crate::error::Error;
use crate::events::Event;
use crate::gate::StoreOutage;
use crate::telemetry::Counters;

const MIN_DELAY: Duration = Duration::from_millis(20);
const MAX_DELAY: Duration = Duration::from_secs(5);

/// The reason why work on a message ends before it is settled. The message will be delivered again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Abandoned {
    /// The partition is being revoked, or the consumer ends.
    Revoked,
    /// The store granted the partition to another instance.
    Fenced,
}

/// Calls the store until the call succeeds. The source is held meanwhile. A fenced caller gives up. A
/// permanent error ends the consumer.
pub(crate) async fn retry_until_ok<T, F, Fut>(component: &Component, mut call: F) -> Result<T, Abandoned>
where
    F: FnMut() -> Fut,
    Fut: Future<Output = store::Result<T>>,
{
    let mut retry = StoreRetry::new(component);
    loop {
        match call().await {
            Ok(value) => return Ok(value),
            Err(error) => retry.failed(error).await?,
        }
    }
}

/// Returns the delays between the calls of one operation: exponential, without jitter, without end.
pub(crate) fn backoff(min_delay: Duration, max_delay: Duration) -> ExponentialBackoff {
    ExponentialBuilder::default()
        .with_min_delay(min_delay)
        .with_max_delay(max_delay)
        .with_factor(2.0)
        .without_max_times()
        .build()
}

/// The state of a store call that is being retried.
pub(crate) struct StoreRetry<'a> {
    component: &'a Component,
    backoff: ExponentialBackoff,
    max_delay: Duration,
    outage: Option<StoreOutage>,
}

impl<'a> StoreRetry<'a> {
    pub(crate) fn new(component: &'a Component) -> Self {
        Self::with_max_delay(component, MAX_DELAY)
    }

    pub(crate) fn with_max_delay(component: &'a Component, max_delay: Duration) -> Self {
        Self { component, backoff: backoff(MIN_DELAY, max_delay), max_delay, outage: None }
    }

    /// Waits before the next call if that call may succeed.
    pub(crate) async fn failed(&mut self, error: StoreError) -> Result<(), Abandoned> {
        match error.kind() {
            ErrorKind::Fenced => Err(Abandoned::Fenced),
            kind if !kind.is_temporary() => {
                self.component.lifecycle.fail(Error::Store(error));
                Err(Abandoned::Revoked)
            }
            _ => {
                self.wait(&error).await;
                Ok(())
            }
        }
    }

    /// Reports a temporary error, holds the source, and waits.
    pub(crate) async fn wait(&mut self, error: &StoreError) {
        let Component { queue, telemetry, guards, .. } = self.component;
        Counters::add(&telemetry.counters.hand_off_failures, 1);
        telemetry.emit(&Event::HandOffFailed { queue, kind: error.kind(), error: &error.to_string() });
        let disk = match error.kind() == ErrorKind::Full && error.limit().is_none() {
            true => describe_disk(self.component).await,
            false => None,
        };
        guards.gate.explain_outage(error, disk.as_deref());
        self.outage.get_or_insert_with(|| guards.gate.store_outage());
        tokio::time::sleep(self.backoff.next().unwrap_or(self.max_delay)).await;
    }
}

/// Describes the disk of the store, if the store knows it.
async fn describe_disk(component: &Component) -> Option<String> {
    let Component { store, guards, options, .. } = component;
    let capacity = options.dead_letter.as_ref().map_or(CapacityPolicy::NONE, |letters| letters.capacity);
    let disk = capacity.disk(&store.occupancy().await.ok()?)?;
    guards.ask_place(&**store).await;
    Some(disk.describe(guards.place()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_double_up_to_the_longest_and_never_end() {
        // The factor is a float, so delays are only exact to the microsecond.
        let millis = |delay: &Duration| (delay.as_micros() + 1) / 1_000;
        let delays: Vec<Duration> = backoff(MIN_DELAY, MAX_DELAY).take(1_000).collect();
        assert_eq!(delays[..4].iter().map(millis).collect::<Vec<_>>(), [20, 40, 80, 160]);
        assert_eq!((delays.len(), delays[999]), (1_000, MAX_DELAY));
    }
}
