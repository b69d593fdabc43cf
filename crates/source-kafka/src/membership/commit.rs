//! Makes positions durable: the first offset that is not settled, and the settled ranges beyond it.
//!
//! The client reports outcomes only for blocking commits, so these run in their own thread while the
//! client is polled. The client returns one error for a whole list, and only if no partition of it
//! succeeded. Everything that can fail separately is therefore committed separately: each topic, and
//! each partition with long metadata.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use lazaret_core::source::{Commit, SourceError, SourceEvent};
use rdkafka::consumer::{CommitMode, Consumer};
use rdkafka::error::RDKafkaErrorCode as Code;
use tokio::sync::oneshot::{self, error::TryRecvError};
use tokio::time::Instant;

use super::session::{Membership, POLL_INTERVAL};
use crate::client::assignment::{add_offset, list_of};
use crate::client::callbacks::{Callbacks, Client};
use crate::error::classify;
use crate::positions::commit::{CommitOutcome, OffsetCommit, PendingCommit};
use crate::positions::metadata::{self, CommitKey};

/// The maximum wait for the response to a commit.
const COMMIT_TIMEOUT: Duration = Duration::from_secs(10);
/// The number of metadata characters that every broker accepts.
const SHORT_METADATA: usize = 256;

impl Membership {
    pub(super) async fn commit_all(&mut self, commits: Vec<Commit>) -> Result<(), SourceError> {
        // An earlier commit must not arrive after this one. Its outcome is not reported.
        self.commit_deadline = None;
        self.forget_waiting();
        if let Err(error) = self.wait_for_commit().await
            && self.pending_commit.is_some()
        {
            return Err(error);
        }
        let commits: Vec<OffsetCommit> =
            commits.into_iter().filter_map(|commit| self.offset_commit(commit)).collect();
        let too_large = self.send(commits).await?;
        if too_large.is_empty() {
            return Ok(());
        }
        let without = self.without_ranges(too_large)?;
        match self.send(without).await? {
            refused if refused.is_empty() => Ok(()),
            refused => self.without_ranges(refused).map(drop),
        }
    }

    /// Removes the ranges from metadata that a broker refused, and halves the limit for later commits.
    /// The position is worth more than the ranges beyond it. The id of the store stays. Without it, a
    /// member with another store would not be detected.
    fn without_ranges(&mut self, too_large: Vec<OffsetCommit>) -> Result<Vec<OffsetCommit>, SourceError> {
        let store = self.options.store.as_deref();
        let least = metadata::room_for_store(store.unwrap_or_default());
        if !too_large.is_empty() && too_large.iter().all(|commit| commit.metadata_limit <= least) {
            return Err(SourceError::permanent(format!(
                "the broker refused {least} characters of commit metadata, which hold the ids of topic and store; raise \
                 `offset.metadata.max.bytes` of the broker"
            )));
        }
        self.metadata_limit = (self.metadata_limit / 2).max(least);
        tracing::warn!(
            characters = self.metadata_limit,
            "commit metadata refused by the broker and shortened, some messages may be redelivered after a restart"
        );
        let without = |commit: OffsetCommit| {
            let metadata = metadata::encode(&[], commit.key(), store, least);
            OffsetCommit { metadata, metadata_limit: least, ..commit }
        };
        Ok(too_large.into_iter().map(without).collect())
    }

    /// Starts a commit while reading continues, unless an earlier commit is pending.
    pub(super) fn begin(&mut self, commits: Vec<Commit>) -> Result<(), Vec<Commit>> {
        self.take_late_outcome();
        if self.clients.is_none() {
            return Err(commits);
        }
        if self.pending_commit.is_some() {
            self.wait_for_answer(commits)?;
            self.commit_deadline = Some(Instant::now() + COMMIT_TIMEOUT);
            return Ok(());
        }
        let commits = commits.into_iter().filter_map(|commit| self.offset_commit(commit)).collect();
        self.start(commits);
        self.commit_deadline = Some(Instant::now() + COMMIT_TIMEOUT);
        Ok(())
    }

    /// Takes the outcome of a commit that timed out. No other commit may be sent before, because the
    /// late one must not overtake it.
    fn take_late_outcome(&mut self) {
        if self.commit_deadline.is_some() {
            return;
        }
        match self.pending_commit.as_mut().map(oneshot::Receiver::try_recv) {
            Some(Ok(outcomes)) => {
                self.pending_commit = None;
                // Failed partitions were already reported, and are committed again.
                let _ = self.apply(outcomes);
                self.expelled = false;
            }
            Some(Err(TryRecvError::Closed)) => self.pending_commit = None,
            Some(Err(TryRecvError::Empty)) | None => {}
        }
    }

    /// Returns the outcome of the commit that was started, once it is known.
    pub(super) fn take_commit_outcome(&mut self) -> Option<SourceEvent> {
        self.take_late_outcome();
        let deadline = self.commit_deadline?;
        let outcome = match self.pending_commit.as_mut().map(oneshot::Receiver::try_recv) {
            Some(Ok(outcomes)) if self.has_waiting() => {
                self.pending_commit = None;
                let _ = self.apply(outcomes);
                self.expelled = false;
                let waiting = self.take_waiting().unwrap_or_default();
                self.start(waiting);
                return None;
            }
            Some(Ok(outcomes)) => {
                self.pending_commit = None;
                match self.apply(outcomes) {
                    Ok(too_large) if too_large.is_empty() => match std::mem::take(&mut self.expelled) {
                        true => Err(expelled()),
                        false => Ok(()),
                    },
                    Ok(mut too_large) => {
                        // Other members may own some of these partitions by now (I6).
                        too_large.retain(|commit| self.is_current(commit));
                        match self.without_ranges(too_large) {
                            Ok(without) => {
                                self.start(without);
                                return None;
                            }
                            Err(error) => Err(error),
                        }
                    }
                    Err(error) => Err(error),
                }
            }
            Some(Err(TryRecvError::Closed)) => {
                self.pending_commit = None;
                Err(not_sent())
            }
            Some(Err(TryRecvError::Empty)) if Instant::now() >= deadline => Err(timed_out()),
            Some(Err(TryRecvError::Empty)) => return None,
            // There was nothing to commit, because the partitions were revoked.
            None => Ok(()),
        };
        self.commit_deadline = None;
        self.forget_waiting();
        Some(SourceEvent::Committed(outcome))
    }

    /// Returns `true` if the partition is still owned under the same assignment.
    pub(super) fn is_current(&mut self, commit: &OffsetCommit) -> bool {
        self.find(&commit.partition).is_some_and(|owned| owned.assignment_id == commit.assignment_id)
    }

    /// Returns the commit of a partition. Returns `None` if the partition is not owned, or if its
    /// position would move back.
    pub(super) fn offset_commit(&mut self, commit: Commit) -> Option<OffsetCommit> {
        let metadata_limit = self.metadata_limit;
        let owned = self.find(&commit.partition)?;
        let offset = match commit.position {
            Some(position) => position.offset.checked_add(1)?,
            None => owned.committed.unwrap_or(owned.start),
        };
        if owned.committed.is_some_and(|committed| committed > offset) {
            return None;
        }
        let settled_beyond = owned.settled_beyond(commit.settled_beyond, offset);
        let assignment_id = owned.assignment_id;
        let log = owned.log.clone();
        let partition = commit.partition;
        let key = CommitKey::of(&partition, offset, log.as_deref());
        let metadata = metadata::encode(&settled_beyond, key, self.options.store.as_deref(), metadata_limit);
        Some(OffsetCommit { partition, offset, settled_beyond, metadata_limit, metadata, log, assignment_id })
    }

    /// Commits and returns the partitions whose metadata is too large.
    async fn send(&mut self, commits: Vec<OffsetCommit>) -> Result<Vec<OffsetCommit>, SourceError> {
        self.start(commits);
        self.wait_for_commit().await
    }

    /// Starts a commit if there is anything to commit.
    pub(super) fn start(&mut self, commits: Vec<OffsetCommit>) {
        self.proof_sent();
        let Some(clients) = self.clients.as_ref().filter(|_| !commits.is_empty()) else { return };
        self.pending_commit = Some(match &self.transactions {
            Some(transactions) => transactions.commit(commits, self.group.clone()),
            None => start(clients.group.clone(), self.group.clone(), requests(commits)),
        });
    }

    /// Waits for the outcome of the pending commit, and polls the clients in the meantime.
    async fn wait_for_commit(&mut self) -> Result<Vec<OffsetCommit>, SourceError> {
        let deadline = Instant::now() + COMMIT_TIMEOUT;
        loop {
            self.poll_clients();
            let Some(pending) = &mut self.pending_commit else { return Ok(Vec::new()) };
            match pending.try_recv() {
                Ok(outcomes) => {
                    self.pending_commit = None;
                    return self.apply(outcomes);
                }
                Err(TryRecvError::Closed) => {
                    self.pending_commit = None;
                    return Err(not_sent());
                }
                Err(TryRecvError::Empty) if Instant::now() >= deadline => return Err(timed_out()),
                Err(TryRecvError::Empty) => {}
            }
            tokio::select! {
                () = self.wake.notified() => {}
                () = tokio::time::sleep(POLL_INTERVAL) => {}
            }
        }
    }

    /// Applies the outcomes of a commit. Returns the partitions whose metadata is too large.
    fn apply(&mut self, outcomes: Vec<CommitOutcome>) -> Result<Vec<OffsetCommit>, SourceError> {
        self.take_proof(&outcomes);
        let mut too_large = Vec::new();
        let mut failed = None;
        let mut expelled = false;
        for (commits, outcome) in outcomes {
            match outcome {
                Ok(()) => {
                    for OffsetCommit { partition, offset, assignment_id, settled_beyond, .. } in commits {
                        let owned = self.find(&partition);
                        if let Some(owned) = owned.filter(|owned| owned.assignment_id == assignment_id) {
                            owned.committed = Some(offset);
                            owned.committed_beyond = settled_beyond;
                        }
                    }
                }
                Err(error) => match error.rdkafka_error_code() {
                    Some(Code::OffsetMetadataTooLarge) => too_large.extend(commits),
                    // Other members now own the partitions and their positions (I6).
                    Some(Code::UnknownMemberId | Code::FencedMemberEpoch) => expelled = true,
                    _ => failed = Some(error),
                },
            }
        }
        if expelled {
            tracing::warn!("member expelled from its group, partitions lost");
            self.rejoin();
            self.expelled = true;
            return Ok(Vec::new());
        }
        match failed {
            None => Ok(too_large),
            Some(error) => {
                let reason = format!("a commit failed: {error}");
                Err(classify(error, &reason, &self.options, false).into_reported(reason))
            }
        }
    }
}

fn expelled() -> SourceError {
    SourceError::temporary("the commit was refused: the group expelled this member")
}

fn not_sent() -> SourceError {
    SourceError::temporary("the commit was not sent; it will be repeated")
}

fn timed_out() -> SourceError {
    SourceError::temporary("the commit timed out; it will be repeated")
}

/// Groups partitions into requests. Only partitions that fail together share a request.
fn requests(commits: Vec<OffsetCommit>) -> Vec<Vec<OffsetCommit>> {
    let (short, long): (Vec<_>, Vec<_>) =
        commits.into_iter().partition(|commit| commit.metadata.len() <= SHORT_METADATA);
    let mut topics: BTreeMap<_, Vec<OffsetCommit>> = BTreeMap::new();
    for commit in short {
        topics.entry(commit.partition.stream.clone()).or_default().push(commit);
    }
    topics.into_values().chain(long.into_iter().map(|commit| vec![commit])).collect()
}

/// Sends the requests in sequence. The callbacks wake the member when all are done.
fn start(client: Arc<Client>, callbacks: Callbacks, requests: Vec<Vec<OffsetCommit>>) -> PendingCommit {
    let (sender, pending) = oneshot::channel();
    let commit = move || {
        let outcomes = requests.into_iter().map(|commits| {
            let mut list = list_of([]);
            for OffsetCommit { partition, offset, metadata, .. } in &commits {
                add_offset(&mut list, partition, *offset, metadata);
            }
            let outcome = client.commit(&list, CommitMode::Sync);
            (commits, outcome)
        });
        let outcomes = outcomes.collect();
        // Dropped first, because the receiver may hold the last reference, and dropping a client blocks.
        drop(client);
        // The receiver may have been dropped.
        let _ = sender.send(outcomes);
        callbacks.wake();
    };
    // Without a thread, the sender is dropped, and the receiver detects that.
    if let Err(error) = thread::Builder::new().name("lazaret-kafka-commit".to_owned()).spawn(commit) {
        tracing::warn!(%error, "commit thread not started");
    }
    pending
}

#[cfg(test)]
mod tests {
    use lazaret_core::Partition;

    use super::*;

    #[test]
    fn what_can_fail_by_itself_is_committed_by_itself() {
        let commit = |topic: &str, index, characters| OffsetCommit {
            partition: Partition::new(topic, index),
            offset: 7,
            settled_beyond: Vec::new(),
            metadata_limit: 0,
            metadata: "x".repeat(characters),
            log: None,
            assignment_id: 0,
        };
        let given = [
            ("a", 0, 0),
            ("b", 0, SHORT_METADATA),
            ("a", 1, SHORT_METADATA + 1),
            ("a", 2, 9),
            ("b", 1, 4096),
        ];
        let requests = requests(given.map(|(topic, index, size)| commit(topic, index, size)).into());
        let partitions: Vec<Vec<String>> =
            requests.iter().map(|r| r.iter().map(|commit| commit.partition.to_string()).collect()).collect();
        assert_eq!(partitions, [vec!["a/0", "a/2"], vec!["b/0"], vec!["a/1"], vec!["b/1"]]);
    }
}
