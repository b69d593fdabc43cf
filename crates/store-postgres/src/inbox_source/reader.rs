//! The lease of the instance that reads an inbox, which a task renews.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use lazaret_core::source::Ownership;
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout_at};

use super::log::InboxLog;

/// A lease is renewed this often within its time.
const RENEWALS: u32 = 4;
/// This part of its time is not used: the holder must have stopped before another instance starts.
const MARGIN: u32 = 6;
/// The longest time between attempts to renew that failed.
const RETRY: Duration = Duration::from_secs(1);

/// A lease that is held, and renewed in the background until it is released, dropped or lost.
#[derive(Debug)]
pub(super) struct ReaderLease {
    pub(super) fence: i64,
    state: Arc<State>,
    /// Ends with the lease; a lease that was not lost is released then.
    keeper: JoinHandle<()>,
}

#[derive(Debug)]
struct State {
    /// When it ends, by the clock of timers.
    until: Mutex<Instant>,
    /// The same for the engine, by a clock that goes on while the machine is suspended.
    ownership: Ownership,
    lost: Notify,
    stop: Notify,
}

impl State {
    fn until(&self) -> Instant {
        *self.until.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set_until(&self, until: Instant) {
        *self.until.lock().unwrap_or_else(PoisonError::into_inner) = until;
    }

    /// The store has given the lease, when it was asked then.
    fn given(&self, asked: Asked, lease: Duration) {
        self.set_until(end(asked.at, lease));
        self.ownership.confirm(asked.steady, usable(lease));
    }

    fn lose(&self) {
        self.ownership.end();
        self.set_until(Instant::now());
        self.lost.notify_one();
    }
}

/// When the store was asked for a lease.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked {
    at: Instant,
    /// The same by the clock of an ownership.
    steady: Duration,
}

impl Asked {
    /// It is asked now.
    pub(super) fn now(ownership: &Ownership) -> Self {
        Self { at: Instant::now(), steady: ownership.now() }
    }
}

/// The part of a lease that is used.
fn usable(lease: Duration) -> Duration {
    lease - lease / MARGIN
}

/// The end of a lease that was asked for at this time.
fn end(asked: Instant, lease: Duration) -> Instant {
    asked + usable(lease)
}

impl ReaderLease {
    /// Keeps the lease that this instance asked for at that time.
    pub(super) fn keep(inbox: &InboxLog, fence: i64, ownership: Ownership, asked: Asked) -> Self {
        let until = Mutex::new(asked.at);
        let state = Arc::new(State { until, ownership, lost: Notify::new(), stop: Notify::new() });
        state.given(asked, inbox.options.lease);
        let keeper = tokio::spawn(keep(inbox.clone(), fence, state.clone()));
        Self { fence, state, keeper }
    }

    /// How long it is certain that this instance has it.
    pub(super) fn ownership(&self) -> Ownership {
        self.state.ownership.clone()
    }

    /// `true` while no other instance can have taken it.
    pub(super) fn is_held(&self) -> bool {
        Instant::now() < self.state.until()
    }

    /// Another instance has taken it.
    pub(super) fn lose(&self) {
        self.state.lose();
    }

    /// Waits until it is lost.
    pub(super) async fn lost(&self) {
        while self.is_held() {
            tokio::select! {
                () = self.state.lost.notified() => {}
                () = tokio::time::sleep_until(self.state.until()) => {}
            }
        }
    }

    /// Releases it, and waits for that.
    pub(super) async fn release(mut self) {
        self.state.stop.notify_one();
        let _ = (&mut self.keeper).await;
    }
}

impl Drop for ReaderLease {
    fn drop(&mut self) {
        self.state.ownership.end();
        self.state.stop.notify_one();
    }
}

async fn keep(inbox: InboxLog, fence: i64, state: Arc<State>) {
    let lease = inbox.options.lease;
    let mut pause = lease / RENEWALS;
    loop {
        tokio::select! {
            biased;
            () = state.stop.notified() => break,
            () = tokio::time::sleep(pause) => {}
        }
        let (asked, until) = (Asked::now(&state.ownership), state.until());
        match timeout_at(until, inbox.store.renew_inbox(&inbox, fence)).await {
            Ok(Ok(true)) => {
                state.given(asked, lease);
                pause = lease / RENEWALS;
            }
            Ok(Ok(false)) => return state.lose(),
            Ok(Err(error)) => {
                tracing::debug!(consumer = %inbox.consumer, %error, "lease of the inbox not renewed");
                pause = (lease / (4 * RENEWALS)).min(RETRY);
            }
            // The other instances may take it from now on.
            Err(_) => return state.lose(),
        }
    }
    // Best effort: without it the lease ends by itself.
    if inbox.store.release_inbox(&inbox, fence).await.is_ok() {
        inbox.publish();
    }
}
