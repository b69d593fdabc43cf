//! Tracks how long this process is certainly a member of its group.
//!
//! A process that was stopped for longer than its session does not know that the group gave its
//! partitions to other members. The client learns it only from the next heartbeat, so the source does
//! not rely on the client. Each commit that the group accepts proves that this process was a member when
//! the commit was sent, and restarts its session. If there was no commit for a while, one position is
//! committed again unchanged.

use std::time::{Duration, Instant};

use lazaret_core::source::{Commit, Ownership};

use super::session::Membership;
use crate::owned_partition::Stage;
use crate::positions::commit::{CommitOutcome, OffsetCommit};

/// The pause before the group is asked again.
const RETRY_DELAY: Duration = Duration::from_millis(500);

/// The proofs of a membership.
#[derive(Debug)]
pub(super) struct Proofs {
    /// How long the membership is certain after a proof.
    lasts: Duration,
    /// The ownership that the pending commit confirms, and when it was sent.
    sent: Option<(Ownership, Duration)>,
    /// Whether the pending commit is only a question, whose outcome the engine does not expect.
    asking: bool,
    /// Commits of the engine that wait for the question to end.
    waiting: Option<Vec<OffsetCommit>>,
    /// The earliest time of the next question.
    next: Instant,
    /// The number of questions so far. Each one commits a different partition.
    questions: usize,
    /// Whether the end of the certainty was logged.
    is_logged: bool,
}

impl Proofs {
    pub(super) fn new(lasts: Duration) -> Self {
        let (sent, asking, waiting) = (None, false, None);
        Self { lasts, sent, asking, waiting, next: Instant::now(), questions: 0, is_logged: false }
    }
}

impl Membership {
    /// Records what a commit that is sent now will prove.
    pub(super) fn proof_sent(&mut self) {
        let ownership = self.group.ownership();
        let now = ownership.now();
        self.proofs.sent = Some((ownership, now));
        self.proofs.asking = false;
    }

    /// Applies what the outcomes of a commit prove. A partition that is refused for its own reason
    /// proves nothing.
    pub(super) fn take_proof(&mut self, outcomes: &[CommitOutcome]) {
        let Some((ownership, sent)) = self.proofs.sent.take() else { return };
        if outcomes.iter().any(|(_, outcome)| outcome.is_ok()) {
            ownership.confirm(sent, self.proofs.lasts);
        }
    }

    /// Asks the group whether this process is still a member, in time or as soon as that is uncertain.
    pub(super) fn confirm_membership(&mut self) {
        let left = self.group.ownership().remaining();
        if left > self.proofs.lasts / 3 * 2 || self.owned.is_empty() {
            self.proofs.is_logged = false;
            return;
        }
        if left.is_zero() && !self.proofs.is_logged {
            self.proofs.is_logged = true;
            tracing::info!(
                group = self.options.group(),
                "membership not certain, no attempt starts before the group confirms it"
            );
        }
        if self.pending_commit.is_some() || Instant::now() < self.proofs.next {
            return;
        }
        let count = self.owned.len();
        let question = (0..count).find_map(|step| {
            let owned = &self.owned[(self.proofs.questions + step) % count];
            // The client seeks in a partition that is being rewound.
            (owned.stage != Stage::Rewinding).then(|| Commit {
                partition: owned.partition.clone(),
                position: None,
                settled_beyond: owned.committed_beyond.clone(),
            })
        });
        let Some(commit) = question.and_then(|commit| self.offset_commit(commit)) else { return };
        self.proofs.questions += 1;
        self.proofs.next = Instant::now() + RETRY_DELAY;
        self.start(vec![commit]);
        self.proofs.asking = self.pending_commit.is_some();
    }

    /// Keeps commits of the engine until a question is answered. Returns them if there is no question.
    pub(super) fn wait_for_answer(&mut self, commits: Vec<Commit>) -> Result<(), Vec<Commit>> {
        if self.pending_commit.is_none() || !self.proofs.asking {
            return Err(commits);
        }
        let commits = commits.into_iter().filter_map(|commit| self.offset_commit(commit)).collect();
        self.proofs.waiting = Some(commits);
        Ok(())
    }

    pub(super) fn has_waiting(&self) -> bool {
        self.proofs.waiting.is_some()
    }

    /// Drops the commits that wait for the answer to a question.
    pub(super) fn forget_waiting(&mut self) {
        self.proofs.waiting = None;
    }

    /// Takes the commits that waited for the answer to a question, except for partitions that were lost
    /// with it.
    pub(super) fn take_waiting(&mut self) -> Option<Vec<OffsetCommit>> {
        let mut waiting = self.proofs.waiting.take()?;
        waiting.retain(|commit| self.is_current(commit));
        Some(waiting)
    }

    /// Records that the group has expelled this member, so that others may own its partitions.
    pub(super) fn lose_membership(&self) {
        self.group.end_ownership();
    }
}
