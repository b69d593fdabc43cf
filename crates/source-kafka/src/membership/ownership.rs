//! How long this process is certainly a member of its group.
//!
//! A process that was stopped for longer than its session does not know that the group has given its partitions to others: the
//! client learns it from the next heartbeat. So the source does not rely on the client. Each commit that the group accepts shows that
//! the member was one when the commit was sent, and starts its session anew. If there was none for a while, one position
//! is committed again as it is.

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
    /// What the pending commit confirms, and when it was sent.
    sent: Option<(Ownership, Duration)>,
    /// The pending commit is only a question, whose outcome the engine does not expect.
    asking: bool,
    /// Commits of the engine that wait for its end.
    waiting: Option<Vec<OffsetCommit>>,
    /// The earliest time of the next question.
    next: Instant,
    /// Counts the questions: each commits another partition.
    questions: usize,
    /// The end of the certainty was logged.
    is_logged: bool,
}

impl Proofs {
    pub(super) fn new(lasts: Duration) -> Self {
        let (sent, asking, waiting) = (None, false, None);
        Self { lasts, sent, asking, waiting, next: Instant::now(), questions: 0, is_logged: false }
    }
}

impl Membership {
    /// Notes what a commit that is sent now will show.
    pub(super) fn proof_sent(&mut self) {
        let ownership = self.group.ownership();
        let now = ownership.now();
        self.proofs.sent = Some((ownership, now));
        self.proofs.asking = false;
    }

    /// Takes what the outcomes of a commit show. A partition that is refused for a reason of its own says nothing.
    pub(super) fn take_proof(&mut self, outcomes: &[CommitOutcome]) {
        let Some((ownership, sent)) = self.proofs.sent.take() else { return };
        if outcomes.iter().any(|(_, outcome)| outcome.is_ok()) {
            ownership.confirm(sent, self.proofs.lasts);
        }
    }

    /// Asks the group whether this is still a member, in time or as soon as it is not certain any more.
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
            // The client seeks in a partition that is rewound.
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

    /// Keeps commits of the engine until a question is answered. Gives them back if there is none.
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

    /// Takes the commits that waited for the answer to a question, except of partitions that were lost with it.
    pub(super) fn take_waiting(&mut self) -> Option<Vec<OffsetCommit>> {
        let mut waiting = self.proofs.waiting.take()?;
        waiting.retain(|commit| self.is_current(commit));
        Some(waiting)
    }

    /// The group has expelled this member: others may own its partitions.
    pub(super) fn lose_membership(&self) {
        self.group.end_ownership();
    }
}
