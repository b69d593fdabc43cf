//! The lease of a run: its renewal, its loss and its release.
//!
//! A lease that expires counts as an attempt at its letter if the attempt was recorded in the lease. A
//! claim records no attempt, because its response may be lost or arrive too late to be of use. An
//! attempt that begins at once is recorded after it has run for a while, so that most attempts cost no
//! write. An attempt is recorded before it begins if it had to wait or if its previous lease was lost.
//! So a letter that crashes its process escapes the count at most once, and a letter that only waited is
//! not charged.
//!
//! A process that was stopped for longer than its lease does not notice this by itself. An attempt
//! therefore begins only while the lease is safe to use after its last renewal. Otherwise the store is
//! asked first (I6).

use std::pin::Pin;
use std::time::Duration;

use lazaret_core::source::Ownership;
use lazaret_core::store::{ErrorKind, Lease, LeaseUse};
use lazaret_core::{Letter, Reason};
use tokio::sync::{Mutex, Notify, watch};
use tokio::time::Instant;

use super::run::{Purpose, Run, RunEnd};
use crate::component::Component;
use crate::mutation::mutated;
use crate::time::Moment;

/// The maximum time between two renewals of a lease, or of a claim in the duplicate filter. A store
/// whose clock was set back may shorten a long lease or claim (`rules::clamp_row`, `Dedupe::claim`).
pub(crate) const RENEW_INTERVAL: Duration = Duration::from_secs(10);
/// Waits shorter than this do not count. Most waits for a permit are shorter.
const SHORT_WAIT: Duration = Duration::from_millis(50);
/// The maximum time for which an attempt runs before it is recorded in its lease.
const MAX_UNRECORDED: Duration = Duration::from_secs(1);

/// The lease of a run.
pub(super) struct RunLease<'a> {
    component: &'a Component,
    pub(super) lease: &'a Lease,
    /// `true` for the lease of a replay, which records no attempts.
    is_replay: bool,
    /// The time for which the lease is safe to use, for handlers.
    pub(super) ownership: Ownership,
    /// `true` if the lease still records a lost attempt at its first letter that no settlement has
    /// counted yet.
    reports_loss: bool,
    /// Locked during a renewal, so that renewals for different uses do not overtake each other.
    state: Mutex<State>,
    /// Notified when an attempt begins that is not recorded.
    began: Notify,
    /// `true` while a settlement is in progress, or if it was the last one under this lease: a
    /// settlement that does not continue with the next letter ends the lease.
    settling: watch::Sender<bool>,
}

struct State {
    /// The moment at which the store was asked for the lease in its current form.
    renewed: Moment,
    /// The use of the lease as the store knows it. After an error the store may know the other use; then
    /// this is `Wait`, so that the use is written before an attempt.
    used_for: LeaseUse,
    /// An attempt that begins before this time need not be recorded first. If `None`, it must be.
    fresh_until: Option<Instant>,
    /// The time at which the running attempt is to be recorded, if it is not recorded yet.
    record_at: Option<Instant>,
}

/// Returns the time for which an attempt runs before it is recorded.
fn unrecorded(component: &Component) -> Duration {
    (component.options.lease / 30).min(MAX_UNRECORDED)
}

/// Returns `true` if the last attempt at this letter may have crashed its process.
fn has_crashed(letter: &Letter) -> bool {
    letter.crash_attempts > 0 || letter.cause.as_ref().is_some_and(|cause| cause.reason == Reason::CRASHED)
}

impl State {
    /// Returns the time, by the timer clock, until which work under the lease is safe: nobody else can
    /// claim the sequence, whatever happens to the lease.
    fn safe_until(&self, component: &Component) -> Instant {
        self.renewed.instant() + safe_time(component)
    }

    /// Returns `true` while work under the lease is safe, also by the clock that includes suspensions.
    fn is_safe(&self, component: &Component) -> bool {
        mutated!(component.options, TrustStaleOwnership)
            || self.renewed.elapsed(&*component.clock) < safe_time(component)
    }
}

/// Returns the time for which a lease is safe to use after the store was asked for it.
fn safe_time(component: &Component) -> Duration {
    component.options.lease - component.options.lease / 10
}

/// The result of a renewal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Renewal {
    Done,
    /// The renewal failed, and there is time to try again.
    Again,
    /// The lease is no longer current.
    Fenced,
    /// The lease was not renewed in time.
    Late,
}

impl<'a> RunLease<'a> {
    /// Creates the lease of a run. It lasts at least from the time of the claim.
    pub(super) fn new(component: &'a Component, lease: &'a Lease, run: &Run) -> Self {
        let Run { claim, claimed_at, purpose, .. } = run;
        let ownership = Ownership::leased_by(component.clock.clone());
        ownership.confirm(claimed_at.steady(), safe_time(component));
        let (is_replay, reports_loss) = (*purpose != Purpose::Retry, claim.interrupted);
        let used_for = if is_replay || reports_loss { LeaseUse::Attempt } else { LeaseUse::Wait };
        let is_suspect = claim.lost || has_crashed(&claim.head);
        let fresh_until = (!is_suspect).then(|| claimed_at.instant() + unrecorded(component));
        Self {
            component,
            lease,
            ownership,
            is_replay,
            reports_loss,
            state: Mutex::new(State { renewed: *claimed_at, used_for, fresh_until, record_at: None }),
            began: Notify::new(),
            settling: watch::Sender::new(false),
        }
    }

    /// Records that a settlement begins. The settlement may end the lease before its response arrives.
    pub(super) fn settlement_begins(&self) {
        self.settling.send_replace(true);
    }

    /// Records that the lease continues with the next letter, at which no attempt has begun.
    pub(super) async fn continues(&self) {
        self.settling.send_replace(false);
        if !self.is_replay {
            let mut state = self.state.lock().await;
            state.used_for = LeaseUse::Wait;
            state.fresh_until = Some(Instant::now() + unrecorded(self.component));
            state.record_at = None;
        }
    }

    /// Waits while a settlement is in progress, because its response decides about the lease. Never
    /// returns once a settlement has ended the lease.
    pub(super) async fn settled(&self) {
        // The sender lives as long as `self`.
        _ = self.settling.subscribe().wait_for(|settling| !*settling).await;
    }

    /// Waits for `ready`. If this takes a while, the lease records no attempt meanwhile.
    pub(super) async fn wait<T>(&self, mut ready: Pin<&mut impl Future<Output = T>>) -> T {
        if let Ok(value) = tokio::time::timeout(SHORT_WAIT, ready.as_mut()).await {
            return value;
        }
        self.waits_for(Duration::MAX).await;
        ready.await
    }

    /// Records that the run waits for this long: the last attempt is no longer recorded in the lease,
    /// and the next one is recorded before it begins. Best effort: if the write fails, a crash during
    /// the wait counts as an attempt.
    pub(super) async fn waits_for(&self, time: Duration) {
        if self.is_replay || self.reports_loss || time <= SHORT_WAIT {
            return;
        }
        let mut state = self.state.lock().await;
        (state.fresh_until, state.record_at) = (None, None);
        if state.used_for == LeaseUse::Attempt {
            _ = self.renew(&mut state, LeaseUse::Wait).await;
            state.used_for = LeaseUse::Wait;
        }
    }

    /// Returns `true` if an attempt may begin at once under this lease. Otherwise it must be
    /// [prepared](Self::attempts) first: it is recorded, or the store is asked for the lease.
    pub(super) fn begins_at_once(&self) -> bool {
        let Ok(mut state) = self.state.try_lock() else { return false };
        if !state.is_safe(self.component) {
            return false;
        }
        if state.used_for == LeaseUse::Attempt {
            return true;
        }
        let now = Instant::now();
        let is_fresh = state.fresh_until.is_some_and(|until| now <= until);
        if is_fresh {
            state.record_at = Some(now + unrecorded(self.component));
            self.began.notify_one();
        }
        is_fresh
    }

    /// Records in the lease that its run is about to make an attempt. If the lease may have ended, asks
    /// the store for it. Never returns if that is impossible: [`keep`](Self::keep) then ends the run.
    pub(super) async fn attempts(&self) {
        let mut state = self.state.lock().await;
        while state.used_for != LeaseUse::Attempt || !state.is_safe(self.component) {
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

    /// Renews the lease until a renewal fails, and records an attempt that takes long. Returns while the
    /// lease still has some time left, so that the work is dropped before another instance can claim the
    /// sequence (I6).
    pub(super) async fn keep(&self) {
        // A store whose clock was set back may shorten a long lease: see `clamp_lease`.
        let interval = (self.component.options.lease / 3).min(RENEW_INTERVAL);
        let mut renew_at = Instant::now() + interval;
        loop {
            let next = {
                let state = self.state.lock().await;
                let renew_at = renew_at.min(state.safe_until(self.component));
                state.record_at.map_or(renew_at, |record_at| record_at.min(renew_at))
            };
            tokio::select! {
                biased;
                () = tokio::time::sleep_until(next) => {}
                () = self.began.notified() => continue,
            }
            let mut state = self.state.lock().await;
            let used_for = match state.record_at {
                Some(at) if at <= Instant::now() => LeaseUse::Attempt,
                _ => state.used_for,
            };
            match self.renew(&mut state, used_for).await {
                Renewal::Done => renew_at = Instant::now() + interval,
                Renewal::Again => {
                    renew_at = Instant::now() + self.retry_delay();
                    state.record_at = state.record_at.map(|at| at.max(renew_at));
                }
                Renewal::Fenced => {
                    drop(state);
                    return self.settled().await;
                }
                Renewal::Late => return,
            }
        }
    }

    /// Asks the store once, and waits for the response for as long as the lease is safe to use.
    async fn renew(&self, state: &mut State, used_for: LeaseUse) -> Renewal {
        let (length, asked_at) = (self.component.options.lease, Moment::now(&*self.component.clock));
        let safe_until = state.safe_until(self.component);
        let renewal = self.component.store.renew(self.lease, length, used_for);
        match tokio::time::timeout_at(safe_until, renewal).await {
            Ok(Ok(_)) => {
                (state.renewed, state.used_for) = (asked_at, used_for);
                self.ownership.confirm(asked_at.steady(), safe_time(self.component));
                if used_for == LeaseUse::Attempt {
                    state.record_at = None;
                }
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

    /// Reports that the run ends because it lost its lease.
    pub(super) fn lost(&self) -> RunEnd {
        self.component.telemetry.report_lost_lease(&self.component.queue, &self.lease.sequence);
        RunEnd::Stopped
    }

    /// Releases the lease of an interrupted run. Best effort: a lease that is not released expires.
    pub(super) async fn release(&self) -> RunEnd {
        let _ = self.component.store.release(self.lease).await;
        RunEnd::Stopped
    }

    /// Ends a run at the abort. If a settlement is in progress, its attempt was made and must count
    /// (I4): then the lease is not released, and expires if the settlement was not stored.
    pub(super) async fn abort(&self) -> RunEnd {
        let is_settling = *self.settling.borrow();
        if is_settling { RunEnd::Stopped } else { self.release().await }
    }
}
