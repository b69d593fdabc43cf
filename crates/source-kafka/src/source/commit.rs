//! Makes positions durable: the first offset that is not settled, and what is settled beyond it.

use std::collections::BTreeSet;
use std::time::Duration;

use lazaret_core::Partition;
use lazaret_core::source::{Commit, SourceError};
use rdkafka::consumer::{CommitMode, Consumer};
use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};
use tokio::time::Instant;

use super::{KafkaSource, TICK};
use crate::member::{Committed, add_offset, list_of};
use crate::settled::{self, Place};
use crate::trouble::{Trouble, judge};

/// How long to wait for the answer to a commit.
const PATIENCE: Duration = Duration::from_secs(10);

/// What is to be committed for one partition.
#[derive(Clone, Debug)]
struct Offer {
    partition: Partition,
    /// The first offset that is not settled.
    offset: u64,
    metadata: String,
}

impl KafkaSource {
    pub(super) async fn commit_all(&mut self, commits: Vec<Commit>) -> Result<(), SourceError> {
        let offers: Vec<Offer> = commits.into_iter().filter_map(|commit| self.offer(commit)).collect();
        let too_large = self.send(&offers).await?;
        if too_large.is_empty() {
            return Ok(());
        }
        // What is settled beyond is worth less than the position: it goes without, and next time with less.
        self.metadata_limit /= 2;
        tracing::warn!(
            characters = self.metadata_limit,
            "the broker takes less metadata than assumed; some messages may be repeated after a restart"
        );
        let offers = offers.into_iter().filter(|offer| too_large.contains(&offer.partition));
        let offers: Vec<Offer> = offers.map(|offer| Offer { metadata: String::new(), ..offer }).collect();
        self.send(&offers).await.map(|_| ())
    }

    /// What to commit for a partition; `None` when it is not ours, or when that would move its position back.
    fn offer(&mut self, commit: Commit) -> Option<Offer> {
        let limit = self.metadata_limit;
        let slot = self.slot(&commit.partition)?;
        let offset = match commit.position {
            Some(position) => position.offset.checked_add(1)?,
            None => slot.committed.unwrap_or(slot.start),
        };
        if slot.committed.is_some_and(|committed| committed > offset) {
            return None;
        }
        let ranges = slot.settled_beyond(commit.settled_beyond);
        let topic = commit.partition.stream.as_str();
        let place = Place { topic, partition: commit.partition.index, offset };
        let metadata = settled::encode(&ranges, place, limit);
        Some(Offer { partition: commit.partition, offset, metadata })
    }

    /// Commits, and waits for the answer without blocking: the client goes on being polled. Returns the partitions whose
    /// metadata is too large.
    async fn send(&mut self, offers: &[Offer]) -> Result<BTreeSet<Partition>, SourceError> {
        let Some(client) = self.client.clone().filter(|_| !offers.is_empty()) else {
            return Ok(BTreeSet::new());
        };
        let mut list = list_of([]);
        for Offer { partition, offset, metadata } in offers {
            add_offset(&mut list, partition, *offset, metadata);
        }
        client.commit(&list, CommitMode::Async).map_err(|error| self.failed(error))?;
        drop(client);
        let until = Instant::now() + PATIENCE;
        loop {
            self.pump();
            // An answer to a commit that was given up on earlier is no answer to this one.
            let answer = self.member.take_answers().into_iter().find(|answer| is_to(&answer.offsets, offers));
            if let Some(answer) = answer {
                return self.answered(answer.offsets);
            }
            if Instant::now() >= until {
                return Err(SourceError::temporary(
                    "the broker did not answer a commit; it will be repeated",
                ));
            }
            tokio::select! {
                () = self.member.woken() => {}
                () = tokio::time::sleep(TICK) => {}
            }
        }
    }

    fn answered(&mut self, offsets: Vec<Committed>) -> Result<BTreeSet<Partition>, SourceError> {
        let mut too_large = BTreeSet::new();
        let mut failed = None;
        let mut expelled = false;
        for Committed { partition, offset, error, .. } in offsets {
            match error {
                None => {
                    if let Some(slot) = self.slot(&partition) {
                        slot.committed = Some(offset.unsigned_abs());
                    }
                }
                Some(Code::OffsetMetadataTooLarge) => {
                    too_large.insert(partition);
                }
                // The group has put us out. What we held is somebody else's, and so is its position (I6).
                Some(Code::UnknownMemberId | Code::FencedMemberEpoch) => expelled = true,
                Some(code) => failed = Some(code),
            }
        }
        if expelled {
            tracing::warn!("the group does not know this member any more; its partitions are lost");
            self.start_over();
            return Ok(BTreeSet::new());
        }
        failed.map_or(Ok(too_large), |code| Err(self.failed(KafkaError::ConsumerCommit(code))))
    }

    fn failed(&self, error: KafkaError) -> SourceError {
        let reason = format!("a commit failed: {error}");
        match judge(error, &reason, &self.options, false) {
            Trouble::Told(error) => error,
            Trouble::Noted => SourceError::temporary(reason),
        }
    }
}

/// Whether this is the answer to these offers.
fn is_to(answer: &[Committed], offers: &[Offer]) -> bool {
    answer.len() == offers.len()
        && offers.iter().all(|Offer { partition, offset, metadata }| {
            answer.iter().any(|committed| {
                committed.partition == *partition
                    && committed.offset.unsigned_abs() == *offset
                    && committed.metadata == *metadata
            })
        })
}
