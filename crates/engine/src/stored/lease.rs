//! The lease of a run: its renewal, its loss and its release.
//!
//! A lease that expires counts as an attempt at its letter, because nothing else tells whether one had begun. A run that waits for
//! its attempt says so in the lease, and takes that back before the attempt begins: a crash charges no letter that only waited.

use std::pin::Pin;
use std::time::Duration;

use lazaret_core::store::{ErrorKind, Lease, LeaseUse};
use tokio::sync::{Mutex, watch};
use tokio::time::Instant;

use super::run::{Purpose, RunEnd};
use crate::component::Component;

/// The longest time between two renewals of a lease, or of a claim in the duplicate filter: a store whose clock was set back
/// may shorten a long one (`rules::clamp_row`, `Dedupe::claim`).
pub(crate) const RENEW_INTERVAL: Duration = Duration::from_secs(10);
/// The time for which a run waits before it says so in its lease: most waits for a permit are shorter, and cost no write.
const SHORT_WAIT: Duration = Duration::from_millis(50);

/// The lease of a run.
pub(super) struct RunLease<'a> {
    component: &'a Component,
    pub(super) lease: &'a Lease,
    /// The store keeps for replays whether they wait, and nothing depends on it.
    is_replay: bool,
    /// Locked during a renewal: renewals for different uses must not overtake each other.
    state: Mutex<State>,
    /// A settlement is under way, or was the last one under this lease: a settlement that does not continue with the next
    /// letter ends the lease.
    settling: watch::Sender<bool>,
}

struct State {
    valid_until: Instant,
    /// As the store knows it. After an error it may be the other one: `Wait`, so that it is written before an attempt.
    used_for: LeaseUse,
}

impl State {
    /// The time until which work under the lease is safe, whatever becomes of it: nobody else can claim the sequence.
    fn safe_until(&self, component: &Component) -> Instant {
        self.valid_until - component.options.lease / 10
    }
}

/// The answer to a renewal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Renewal {
    Done,
    /// It failed, and there is time to try again.
    Again,
    /// The lease is not current any more.
    Fenced,
    /// It was not renewed in time.
    Late,
}

impl<'a> RunLease<'a> {
    /// The lease lasts at least from `claimed_at`.
    pub(super) fn new(
        component: &'a Component,
        lease: &'a Lease,
        purpose: &Purpose,
        claimed_at: Instant,
    ) -> Self {
        let valid_until = claimed_at + component.options.lease;
        Self {
            component,
            lease,
            is_replay: *purpose != Purpose::Retry,
            state: Mutex::new(State { valid_until, used_for: LeaseUse::Attempt }),
            settling: watch::Sender::new(false),
        }
    }

    /// Records that a settlement begins. It may end the lease before its answer arrives.
    pub(super) fn settlement_begins(&self) {
        self.settling.send_replace(true);
    }

    /// Records that the lease continues with the next letter.
    pub(super) fn continues(&self) {
        self.settling.send_replace(false);
    }

    /// Waits while a settlement is under way: its answer says what became of the lease. Never returns once a settlement has
    /// ended the lease.
    pub(super) async fn settled(&self) {
        // The sender lives as long as this.
        _ = self.settling.subscribe().wait_for(|settling| !*settling).await;
    }

    /// Waits for `ready`. If that takes a while, the lease says so.
    pub(super) async fn wait<T>(&self, mut ready: Pin<&mut impl Future<Output = T>>) -> T {
        if let Ok(value) = tokio::time::timeout(SHORT_WAIT, ready.as_mut()).await {
            return value;
        }
        self.waits_for(Duration::MAX).await;
        ready.await
    }

    /// Records in the lease that its run waits for this long. Best effort: without it, a crash during the wait counts as an
    /// attempt.
    pub(super) async fn waits_for(&self, time: Duration) {
        if self.is_replay || time <= SHORT_WAIT {
            return;
        }
        let mut state = self.state.lock().await;
        if state.used_for == LeaseUse::Attempt {
            _ = self.renew(&mut state, LeaseUse::Wait).await;
            state.used_for = LeaseUse::Wait;
        }
    }

    /// Returns `true` when an attempt may begin at once under this lease; otherwise it [is prepared](Self::attempts) first.
    pub(super) fn is_for_attempt(&self) -> bool {
        self.state.try_lock().is_ok_and(|state| state.used_for == LeaseUse::Attempt)
    }

    /// Records in the lease that its run is about to make an attempt. Never returns if that is not possible:
    /// [`keep`](Self::keep) ends the run.
    pub(super) async fn attempts(&self) {
        let mut state = self.state.lock().await;
        while state.used_for != LeaseUse::Attempt {
            match self.renew(&mut state, LeaseUse::Attempt).await {
                Renewal::Done => {}
                Renewal::Again => tokio::time::sleep(self.retry_delay()).await,
                Renewal::Fenced | Renewal::Late => {
                    drop(state);
                    return std::future::pending().await;
                }
            }
        }
    }

    /// Renews the lease until that fails. Returns while there is still time left on it, so that the work is dropped before
    /// another instance can claim the sequence (I6).
    pub(super) async fn keep(&self) {
        // A store whose clock was set back may shorten a long lease: see `clamp_lease`.
        let interval = (self.component.options.lease / 3).min(RENEW_INTERVAL);
        let mut wait = interval;
        loop {
            let safe_until = self.state.lock().await.safe_until(self.component);
            tokio::time::sleep_until((Instant::now() + wait).min(safe_until)).await;
            let mut state = self.state.lock().await;
            let used_for = state.used_for;
            wait = match self.renew(&mut state, used_for).await {
                Renewal::Done => interval,
                Renewal::Again => self.retry_delay(),
                Renewal::Fenced => {
                    drop(state);
                    return self.settled().await;
                }
                Renewal::Late => return,
            };
        }
    }

    /// Asks the store once, and waits for the answer for as long as the lease is safe to use.
    async fn renew(&self, state: &mut State, used_for: LeaseUse) -> Renewal {
        let (length, asked_at) = (self.component.options.lease, Instant::now());
        let safe_until = state.safe_until(self.component);
        let renewal = self.component.store.renew(self.lease, length, used_for);
        match tokio::time::timeout_at(safe_until, renewal).await {
            Ok(Ok(_)) => {
                *state = State { valid_until: asked_at + length, used_for };
                Renewal::Done
            }
            Ok(Err(error)) if error.kind() == ErrorKind::Fenced => Renewal::Fenced,
            Ok(Err(_)) if Instant::now() < safe_until => Renewal::Again,
            Ok(Err(_)) | Err(_) => Renewal::Late,
        }
    }

    fn retry_delay(&self) -> Duration {
        self.component.options.lease / 20
    }

    /// Reports that the run ends because its lease is lost.
    pub(super) fn lost(&self) -> RunEnd {
        self.component.telemetry.report_lost_lease(&self.component.queue, &self.lease.sequence);
        RunEnd::Stopped
    }

    /// Releases the lease of a run that was interrupted. Best effort: a lease that is not released expires.
    pub(super) async fn release(&self) -> RunEnd {
        let _ = self.component.store.release(self.lease).await;
        RunEnd::Stopped
    }

    /// Ends a run that is cut off. If a settlement is under way, its attempt was made and must count (I4): the lease is not released, and
    /// expires if the settlement was not stored.
    pub(super) async fn abort(&self) -> RunEnd {
        let is_settling = *self.settling.borrow();
        if is_settling { RunEnd::Stopped } else { self.release().await }
    }
}
