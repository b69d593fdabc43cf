//! The lease of the instance that reads an inbox, which a task renews.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

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
    /// When it ends, by the clock of this process. That goes on while the process is stopped.
    until: Mutex<Instant>,
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

    fn lose(&self) {
        self.set_until(Instant::now());
        self.lost.notify_one();
    }
}

/// The end of a lease that was asked for at this time.
fn end(asked: Instant, lease: Duration) -> Instant {
    asked + (lease - lease / MARGIN)
}

impl ReaderLease {
    /// Keeps the lease that this instance asked for at that time.
    pub(super) fn keep(inbox: &InboxLog, fence: i64, asked: Instant) -> Self {
        let until = Mutex::new(end(asked, inbox.options.lease));
        let state = Arc::new(State { until, lost: Notify::new(), stop: Notify::new() });
        let keeper = tokio::spawn(keep(inbox.clone(), fence, state.clone()));
        Self { fence, state, keeper }
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
        let (asked, until) = (Instant::now(), state.until());
        match timeout_at(until, inbox.store.renew_inbox(&inbox, fence)).await {
            Ok(Ok(true)) => {
                state.set_until(end(asked, lease));
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
