//! The lease of a run: its renewal, its loss and its release.

use std::time::Duration;

use lazaret_core::store::{ErrorKind, Lease};
use tokio::sync::watch;
use tokio::time::Instant;

use super::run::RunEnd;
use crate::component::Component;

/// The longest time between two renewals of a lease.
const RENEW_INTERVAL: Duration = Duration::from_secs(10);

/// The lease of a run.
pub(super) struct RunLease<'a> {
    component: &'a Component,
    pub(super) lease: &'a Lease,
    /// The time of the claim: the lease lasts at least from here.
    claimed_at: Instant,
    /// A settlement is under way, or was the last one under this lease: a settlement that does not continue with the next
    /// letter ends the lease.
    settling: watch::Sender<bool>,
}

impl<'a> RunLease<'a> {
    pub(super) fn new(component: &'a Component, lease: &'a Lease, claimed_at: Instant) -> Self {
        Self { component, lease, claimed_at, settling: watch::Sender::new(false) }
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

    /// Renews the lease until that fails. Returns while there is still time left on it, so that the work is dropped before
    /// another instance can claim the sequence (I6).
    pub(super) async fn keep(&self) {
        let Self { component, lease, claimed_at, .. } = self;
        let length = component.options.lease;
        let mut valid_until = *claimed_at + length;
        // A store whose clock was set back may shorten a long lease: see `clamp_lease`.
        let interval = (length / 3).min(RENEW_INTERVAL);
        let mut wait = interval;
        loop {
            let safe_until = valid_until - length / 10;
            let asked_at = (Instant::now() + wait).min(safe_until);
            tokio::time::sleep_until(asked_at).await;
            let renewed = tokio::time::timeout_at(safe_until, component.store.renew(lease, length)).await;
            match renewed {
                Ok(Ok(_)) => {
                    valid_until = asked_at + length;
                    wait = interval;
                }
                Ok(Err(error)) if error.kind() == ErrorKind::Fenced => return self.settled().await,
                Err(_) => return,
                Ok(Err(_)) => {
                    if Instant::now() >= safe_until {
                        return;
                    }
                    wait = length / 20;
                }
            }
        }
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
}
