//! The run of one claimed sequence.

use std::pin::pin;
use std::sync::Arc;

use lazaret_core::store::{Claim, Settled};

use super::head::HeadAttempt;
use super::lease::RunLease;
use super::outcome::LeftOver;
use super::place::Place;
use crate::admission::AttemptOf;
use crate::component::Component;
use crate::hash::SequenceHash;
use crate::mutation::mutated;
use crate::open_sequences::OpenSequences;
use crate::time::Moment;

/// The reason for running a stored sequence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// The sequence is due.
    Retry,
    /// A replay was requested, as part of this operation.
    Replay(String),
}

impl Purpose {
    /// Returns the kind of the run's attempts.
    pub(crate) const fn attempt_of(&self) -> AttemptOf {
        match self {
            Self::Retry => AttemptOf::Retry,
            Self::Replay(_) => AttemptOf::Replay,
        }
    }

    /// Returns the operation of a replay.
    pub(crate) fn operation(&self) -> Option<&str> {
        match self {
            Self::Retry => None,
            Self::Replay(operation) => Some(operation),
        }
    }
}

/// The way in which a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RunEnd {
    /// Every letter is closed, and so is the sequence.
    Closed,
    /// A letter failed or may not run now. The letters behind it wait.
    Held,
    /// The run was interrupted: the consumer pauses or drains, or the lease was lost.
    Stopped,
}

/// A claimed sequence that is about to run.
pub(crate) struct Run {
    pub(crate) component: Arc<Component>,
    pub(crate) claim: Claim,
    /// The time of the claim. The lease lasts at least from this time.
    pub(crate) claimed_at: Moment,
    pub(crate) purpose: Purpose,
    /// The place of the run; `None` for a replay from code, which has its own limit.
    pub(crate) place: Option<Place>,
    /// The open sequences of the shard that runs the sequence, if a shard runs it.
    pub(crate) open: Option<Arc<OpenSequences>>,
}

/// Counts a run until it is dropped, and then wakes the tasks that may have to react to its end.
struct RunGuard(Arc<Component>);

impl RunGuard {
    fn new(component: &Arc<Component>) -> Self {
        component.lifecycle.run_started();
        Self(component.clone())
    }
}

impl Drop for RunGuard {
    fn drop(&mut self) {
        // The sequence may be due again.
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
        let claimed = self.claim.lease.clone();
        let lease = RunLease::new(&component, &claimed, &self);
        let mut left = LeftOver::default();
        let end = tokio::select! {
            biased;
            end = self.run_alone(&lease, &mut left) => end,
            () = lease.keep() => lease.lost(),
            () = component.lifecycle.aborted() => return lease.abort().await,
        };
        // The last settlement has ended the lease. Nothing renews it any more, and another run may have
        // begun.
        tokio::select! {
            biased;
            () = component.lifecycle.aborted() => {}
            () = left.finish(&component) => {}
        }
        end
    }

    /// Runs the sequence after any earlier run of it in this process has ended (I6).
    async fn run_alone(self, lease: &RunLease<'_>, left: &mut LeftOver) -> RunEnd {
        let component = self.component.clone();
        let active = lease.wait(pin!(component.active_runs.begin(&lease.lease.sequence))).await;
        let hash = self.hash();
        let mut listed = ListedRun::new(&component, self.open.clone(), hash);
        let superseded = async {
            active.superseded().await;
            lease.settled().await;
        };
        let end = tokio::select! {
            biased;
            () = superseded => lease.lost(),
            end = self.letters(hash, lease, left) => end,
        };
        listed.closed = end == RunEnd::Closed;
        end
    }

    async fn letters(self, hash: SequenceHash, lease: &RunLease<'_>, left: &mut LeftOver) -> RunEnd {
        let Self { component, claim, claimed_at, purpose, place, .. } = self;
        let (component, purpose, place) = (&component, &purpose, place.as_ref());
        let mut next = Some(claim.head);
        let mut interrupted = claim.interrupted;
        while let Some(letter) = next.take() {
            let attempt = HeadAttempt { component, lease, claimed_at, purpose, place, hash };
            match attempt.run(letter, std::mem::take(&mut interrupted), left).await {
                Some(Settled::Next(letter)) => next = Some(*letter),
                Some(Settled::Closed) => return RunEnd::Closed,
                Some(Settled::Requeued | Settled::Blocked) => return RunEnd::Held,
                None => return lease.release().await,
            }
        }
        RunEnd::Held
    }
}

/// Lists a run in the shard that runs it, if a shard does.
struct ListedRun<'a> {
    component: &'a Component,
    open: Option<Arc<OpenSequences>>,
    hash: SequenceHash,
    /// `true` if the run closed the sequence.
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
