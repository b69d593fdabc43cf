//! The run of one claimed sequence, and its lease.

use std::sync::Arc;
use std::time::Duration;

use lazaret_core::store::{Claim, ErrorKind, Lease, Settled};
use tokio::time::Instant;

use super::head::HeadAttempt;
use crate::admission::AttemptOf;
use crate::component::Component;
use crate::hash::SequenceHash;
use crate::mutation::mutated;
use crate::open_sequences::OpenSequences;

/// The longest time between two renewals of a lease, or of a claim in the duplicate filter: a store whose clock was set back
/// may shorten a long one (`rules::clamp_row`, `Dedupe::claim`).
pub(crate) const RENEW_INTERVAL: Duration = Duration::from_secs(10);

/// Why a stored sequence is run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// It is due.
    Retry,
    /// A replay was asked for, as part of this operation.
    Replay(String),
}

impl Purpose {
    /// The kind of the run's attempts.
    pub(crate) const fn attempt_of(&self) -> AttemptOf {
        match self {
            Self::Retry => AttemptOf::Retry,
            Self::Replay(_) => AttemptOf::Replay,
        }
    }

    /// The operation of a replay.
    pub(crate) fn operation(&self) -> Option<&str> {
        match self {
            Self::Retry => None,
            Self::Replay(operation) => Some(operation),
        }
    }
}

/// The end of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RunEnd {
    /// Every letter is closed, and so is the sequence.
    Closed,
    /// A letter failed, or may not run now: those behind it wait.
    Held,
    /// The run was interrupted: the consumer pauses or drains, or the lease was lost.
    Stopped,
}

/// A claimed sequence about to be run.
pub(crate) struct Run {
    pub(crate) component: Arc<Component>,
    pub(crate) claim: Claim,
    /// The time of the claim: the lease lasts at least from here.
    pub(crate) claimed_at: Instant,
    pub(crate) purpose: Purpose,
    /// The open sequences of the shard that runs it, if a shard does.
    pub(crate) open: Option<Arc<OpenSequences>>,
}

/// Counts a run while it lives, and wakes the tasks that may have to act on its end.
struct RunGuard(Arc<Component>);

impl RunGuard {
    fn new(component: &Arc<Component>) -> Self {
        component.lifecycle.run_started();
        Self(component.clone())
    }
}

impl Drop for RunGuard {
    fn drop(&mut self) {
        // What was run may be due again.
        self.0.signals.retry.notify_one();
        self.0.signals.replay.notify_one();
        self.0.lifecycle.run_ended();
    }
}

impl Run {
    pub(crate) fn hash(&self) -> SequenceHash {
        self.component.hash(&self.claim.lease.sequence)
    }

    /// Runs the sequence to its end, or until the lease is lost.
    pub(crate) async fn run(self) -> RunEnd {
        let component = self.component.clone();
        let _guard = RunGuard::new(&component);
        let (lease, claimed_at) = (self.claim.lease.clone(), self.claimed_at);
        tokio::select! {
            biased;
            end = self.run_alone() => end,
            () = keep_lease(&component, &lease, claimed_at) => lease_lost(&component, &lease),
            () = component.lifecycle.aborted() => release_lease(&component, &lease).await,
        }
    }

    /// Runs the sequence, after an earlier run of it in this process has ended (I6).
    async fn run_alone(self) -> RunEnd {
        let component = self.component.clone();
        let lease = self.claim.lease.clone();
        let active = component.active_runs.begin(&lease.sequence).await;
        let hash = self.hash();
        let mut listed = ListedRun::new(&component, self.open.clone(), hash);
        let end = tokio::select! {
            biased;
            () = active.superseded() => lease_lost(&component, &lease),
            end = self.letters(hash) => end,
        };
        listed.closed = end == RunEnd::Closed;
        end
    }

    async fn letters(self, hash: SequenceHash) -> RunEnd {
        let Self { component, claim, purpose, .. } = self;
        let lease = claim.lease;
        let mut next = Some(claim.head);
        let mut interrupted = claim.interrupted;
        while let Some(letter) = next.take() {
            let attempt = HeadAttempt { component: &component, lease: &lease, purpose: &purpose, hash };
            match attempt.run(letter, std::mem::take(&mut interrupted)).await {
                Some(Settled::Next(letter)) => next = Some(*letter),
                Some(Settled::Closed) => return RunEnd::Closed,
                Some(Settled::Requeued | Settled::Blocked) => return RunEnd::Held,
                None => return release_lease(&component, &lease).await,
            }
        }
        RunEnd::Held
    }
}

/// A run in the list of the shard that runs it, if one does.
struct ListedRun<'a> {
    component: &'a Component,
    open: Option<Arc<OpenSequences>>,
    hash: SequenceHash,
    /// The run closed the sequence.
    closed: bool,
}

impl<'a> ListedRun<'a> {
    fn new(component: &'a Component, open: Option<Arc<OpenSequences>>, hash: SequenceHash) -> Self {
        if let Some(open) = &open {
            open.run_begins(component.index, hash);
        }
        Self { component, open, hash, closed: false }
    }
}

impl Drop for ListedRun<'_> {
    fn drop(&mut self) {
        let Some(open) = &self.open else { return };
        open.run_ended(self.component.index, self.hash, self.closed);
        if self.closed && mutated!(self.component.options, CloseReopenedSequences) {
            open.not_open(self.component.index, self.hash, u64::MAX);
        }
    }
}

/// Reports that a run ends because its lease is lost.
fn lease_lost(component: &Component, lease: &Lease) -> RunEnd {
    component.telemetry.report_lost_lease(&component.queue, &lease.sequence);
    RunEnd::Stopped
}

/// Releases the lease of a run that was interrupted. Best effort: a lease that is not released expires.
async fn release_lease(component: &Component, lease: &Lease) -> RunEnd {
    let _ = component.store.release(lease).await;
    RunEnd::Stopped
}

/// Renews the lease until that fails. Returns while there is still time left on it, so that the work is dropped before
/// another instance can claim the sequence (I6).
async fn keep_lease(component: &Component, lease: &Lease, claimed_at: Instant) {
    let length = component.options.lease;
    let mut valid_until = claimed_at + length;
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
            Ok(Err(error)) if error.kind() == ErrorKind::Fenced => return,
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
