//! Makes positions durable: the first offset that is not settled, and what is settled beyond it.
//!
//! The client answers only to commits that block, so they are made in a thread of their own while it goes on being polled.
//! It tells one error for a whole list, and that only if no partition of it succeeded. So what can fail by itself is
//! committed by itself: each topic, and each partition with much metadata.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use lazaret_core::Partition;
use lazaret_core::source::{Commit, SourceError, SourceEvent};
use rdkafka::consumer::{CommitMode, Consumer};
use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::{Membership, TICK};
use crate::member::{Client, Member, add_offset, list_of};
use crate::settled::{self, Place};
use crate::trouble::{Trouble, judge};

/// How long to wait for the answer to a commit.
const PATIENCE: Duration = Duration::from_secs(10);
/// Metadata of this many characters is taken by every broker.
const SHORT: usize = 256;

/// What is to be committed for one partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Offer {
    pub(crate) partition: Partition,
    /// The first offset that is not settled.
    pub(crate) offset: u64,
    /// What is settled beyond it.
    pub(crate) ranges: Vec<RangeInclusive<u64>>,
    /// How many characters of metadata may tell that.
    pub(crate) limit: usize,
    metadata: String,
    /// Which life of the partition it is about.
    life: u64,
}

/// Offers that were committed together, and what came of it.
pub(crate) type Outcome = (Vec<Offer>, Result<(), KafkaError>);

/// A commit that is under way.
pub(crate) type Committing = oneshot::Receiver<Vec<Outcome>>;

impl Membership {
    pub(super) async fn commit_all(&mut self, commits: Vec<Commit>) -> Result<(), SourceError> {
        // One that is still on its way must not come after this one. What comes of it matters no more.
        self.begun = None;
        if let Err(error) = self.answer_to_commit().await
            && self.committing.is_some()
        {
            return Err(error);
        }
        let offers: Vec<Offer> = commits.into_iter().filter_map(|commit| self.offer(commit)).collect();
        let too_large = self.send(offers).await?;
        if too_large.is_empty() {
            return Ok(());
        }
        let without = self.without_metadata(too_large);
        self.send(without).await.map(|_| ())
    }

    /// What is settled beyond is worth less than the position: it goes without, and next time with less.
    fn without_metadata(&mut self, too_large: Vec<Offer>) -> Vec<Offer> {
        self.metadata_limit /= 2;
        tracing::warn!(
            characters = self.metadata_limit,
            "the broker takes less metadata than assumed; some messages may be repeated after a restart"
        );
        let without = |offer| Offer { metadata: String::new(), limit: 0, ..offer };
        too_large.into_iter().map(without).collect()
    }

    /// Commits beside the reading, unless an earlier commit is still on its way.
    pub(super) fn begin(&mut self, commits: Vec<Commit>) -> Result<(), Vec<Commit>> {
        self.take_late_answer();
        if self.committing.is_some() || self.clients.is_none() {
            return Err(commits);
        }
        let offers = commits.into_iter().filter_map(|commit| self.offer(commit)).collect();
        self.start(offers);
        self.begun = Some(Instant::now() + PATIENCE);
        Ok(())
    }

    /// Takes the answer to a commit that was given up on. Until then no other may be sent: it must not come after that.
    fn take_late_answer(&mut self) {
        if self.begun.is_some() {
            return;
        }
        match self.committing.as_mut().map(oneshot::Receiver::try_recv) {
            Some(Ok(outcomes)) => {
                self.committing = None;
                // What failed was told as failed already, and is repeated.
                let _ = self.answered(outcomes);
            }
            Some(Err(oneshot::error::TryRecvError::Closed)) => self.committing = None,
            Some(Err(oneshot::error::TryRecvError::Empty)) | None => {}
        }
    }

    /// What came of the commit that was begun, once that is known.
    pub(super) fn take_answer(&mut self) -> Option<SourceEvent> {
        self.take_late_answer();
        let until = self.begun?;
        let outcome = match self.committing.as_mut().map(oneshot::Receiver::try_recv) {
            Some(Ok(outcomes)) => {
                self.committing = None;
                match self.answered(outcomes) {
                    Ok(too_large) if too_large.is_empty() => match std::mem::take(&mut self.expelled) {
                        true => Err(expelled()),
                        false => Ok(()),
                    },
                    Ok(mut too_large) => {
                        // Some may be gone meanwhile, and be somebody else's (I6).
                        too_large.retain(|offer| self.lives(offer));
                        let without = self.without_metadata(too_large);
                        self.start(without);
                        return None;
                    }
                    Err(error) => Err(error),
                }
            }
            Some(Err(oneshot::error::TryRecvError::Closed)) => {
                self.committing = None;
                Err(not_sent())
            }
            Some(Err(oneshot::error::TryRecvError::Empty)) if Instant::now() >= until => Err(not_answered()),
            Some(Err(oneshot::error::TryRecvError::Empty)) => return None,
            // There was nothing to commit: the partitions are not ours any more.
            None => Ok(()),
        };
        self.begun = None;
        Some(SourceEvent::Committed(outcome.map_err(|error| error.to_string())))
    }

    /// Whether the partition is still ours, and has not begun anew since.
    fn lives(&mut self, offer: &Offer) -> bool {
        self.slot(&offer.partition).is_some_and(|slot| slot.life == offer.life)
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
        let ranges = slot.settled_beyond(commit.settled_beyond, offset);
        let topic = commit.partition.stream.as_str();
        let place = Place { topic, partition: commit.partition.index, offset };
        let metadata = settled::encode(&ranges, place, limit);
        let life = slot.life;
        Some(Offer { partition: commit.partition, offset, ranges, limit, metadata, life })
    }

    /// Commits, and returns the offers whose metadata is too large.
    async fn send(&mut self, offers: Vec<Offer>) -> Result<Vec<Offer>, SourceError> {
        self.start(offers);
        self.answer_to_commit().await
    }

    /// Sends a commit on its way, if there is anything to commit.
    fn start(&mut self, offers: Vec<Offer>) {
        let Some(clients) = self.clients.as_ref().filter(|_| !offers.is_empty()) else { return };
        self.committing = Some(match &self.transactions {
            Some(transactions) => transactions.commit(offers, self.member.clone()),
            None => start(clients.group.clone(), self.member.clone(), bundles(offers)),
        });
    }

    /// Waits for the answer to the commit that is under way, and polls the client meanwhile.
    async fn answer_to_commit(&mut self) -> Result<Vec<Offer>, SourceError> {
        let until = Instant::now() + PATIENCE;
        loop {
            self.pump();
            let Some(committing) = &mut self.committing else { return Ok(Vec::new()) };
            match committing.try_recv() {
                Ok(outcomes) => {
                    self.committing = None;
                    return self.answered(outcomes);
                }
                Err(oneshot::error::TryRecvError::Closed) => {
                    self.committing = None;
                    return Err(not_sent());
                }
                Err(oneshot::error::TryRecvError::Empty) if Instant::now() >= until => {
                    return Err(not_answered());
                }
                Err(oneshot::error::TryRecvError::Empty) => {}
            }
            tokio::select! {
                () = self.wake.notified() => {}
                () = tokio::time::sleep(TICK) => {}
            }
        }
    }

    fn answered(&mut self, outcomes: Vec<Outcome>) -> Result<Vec<Offer>, SourceError> {
        let mut too_large = Vec::new();
        let mut failed = None;
        let mut expelled = false;
        for (offers, outcome) in outcomes {
            match outcome {
                Ok(()) => {
                    for Offer { partition, offset, life, .. } in offers {
                        if let Some(slot) = self.slot(&partition).filter(|slot| slot.life == life) {
                            slot.committed = Some(offset);
                        }
                    }
                }
                Err(error) => match error.rdkafka_error_code() {
                    Some(Code::OffsetMetadataTooLarge) => too_large.extend(offers),
                    // The group has put us out. What we held is somebody else's, and so is its position (I6).
                    Some(Code::UnknownMemberId | Code::FencedMemberEpoch) => expelled = true,
                    _ => failed = Some(error),
                },
            }
        }
        if expelled {
            tracing::warn!("the group does not know this member any more; its partitions are lost");
            self.start_over();
            self.expelled = true;
            return Ok(Vec::new());
        }
        match failed {
            None => Ok(too_large),
            Some(error) => {
                let reason = format!("a commit failed: {error}");
                match judge(error, &reason, &self.options, false) {
                    Trouble::Told(error) => Err(error),
                    Trouble::Noted => Err(SourceError::temporary(reason)),
                }
            }
        }
    }
}

fn expelled() -> SourceError {
    SourceError::temporary("a commit came too late: the group does not know this member any more")
}

fn not_sent() -> SourceError {
    SourceError::temporary("a commit could not be sent; it will be repeated")
}

fn not_answered() -> SourceError {
    SourceError::temporary("the broker did not answer a commit; it will be repeated")
}

/// Puts together what can only fail together.
fn bundles(offers: Vec<Offer>) -> Vec<Vec<Offer>> {
    let (short, long): (Vec<_>, Vec<_>) = offers.into_iter().partition(|offer| offer.metadata.len() <= SHORT);
    let mut topics: BTreeMap<_, Vec<Offer>> = BTreeMap::new();
    for offer in short {
        topics.entry(offer.partition.stream.clone()).or_default().push(offer);
    }
    topics.into_values().chain(long.into_iter().map(|offer| vec![offer])).collect()
}

/// Commits bundle by bundle. The member is woken when all are answered.
fn start(client: Arc<Client>, member: Member, bundles: Vec<Vec<Offer>>) -> Committing {
    let (sender, committing) = oneshot::channel();
    let commit = move || {
        let outcomes = bundles.into_iter().map(|offers| {
            let mut list = list_of([]);
            for Offer { partition, offset, metadata, .. } in &offers {
                add_offset(&mut list, partition, *offset, metadata);
            }
            let outcome = client.commit(&list, CommitMode::Sync);
            (offers, outcome)
        });
        let outcomes = outcomes.collect();
        // The client goes first: whoever hears the answer may be the last one to hold it.
        drop(client);
        // Nobody may be waiting any more.
        let _ = sender.send(outcomes);
        member.wake();
    };
    // Without a thread the sender is dropped, and that is an answer too.
    if let Err(error) = thread::Builder::new().name("lazaret-kafka-commit".to_owned()).spawn(commit) {
        tracing::warn!(%error, "no thread to commit");
    }
    committing
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_can_fail_by_itself_is_committed_by_itself() {
        let offer = |topic: &str, index, characters| Offer {
            partition: Partition::new(topic, index),
            offset: 7,
            ranges: Vec::new(),
            limit: 0,
            metadata: "x".repeat(characters),
            life: 0,
        };
        let given = [("a", 0, 0), ("b", 0, SHORT), ("a", 1, SHORT + 1), ("a", 2, 9), ("b", 1, 4096)];
        let bundles = bundles(given.map(|(topic, index, size)| offer(topic, index, size)).into());
        let places: Vec<Vec<String>> =
            bundles.iter().map(|b| b.iter().map(|offer| offer.partition.to_string()).collect()).collect();
        assert_eq!(places, [vec!["a/0", "a/2"], vec!["b/0"], vec!["a/1"], vec!["b/1"]]);
    }
}
