//! Checks periodically that the topics are still the ones being read, and that all of their partitions
//! are assigned.
//!
//! A topic that is deleted and recreated between two requests of the client may keep its partitions. The
//! group then does not rebalance, and reading continues at offsets of a different log. Records that are
//! read before this is noticed are read again, in the new incarnation.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use lazaret_core::Partition;
use lazaret_core::source::SourceEvent;
use rdkafka::error::{KafkaError, KafkaResult};
use tokio::sync::oneshot::{self, error::TryRecvError};

use super::coverage::{self, Look};
use super::session::Membership;
use crate::client::callbacks::{Callbacks, Client};
use crate::client::topic_ids::{Topics, describe_topics};
use crate::owned_partition::Stage;

/// The interval of the checks.
const INTERVAL: Duration = Duration::from_secs(10);
/// The delay before a check of suspected topics is repeated.
const RETRY_DELAY: Duration = Duration::from_millis(250);
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// The schedule and the state of the next check.
#[derive(Default)]
pub(super) struct TopicCheck {
    /// When the check is due.
    at: Option<Instant>,
    pending: Option<oneshot::Receiver<KafkaResult<Found>>>,
    /// Whether a topic may have been recreated, so that nothing is read before the check.
    suspected: bool,
}

/// The result of a check.
struct Found {
    /// The topics that exist.
    topics: Topics,
    /// The check of the group's assignment. `None` if it was not checked.
    look: Option<Look>,
}

impl TopicCheck {
    /// Makes the next check due after this delay, unless it is due sooner.
    pub(super) fn is_due_within(&mut self, delay: Duration) {
        let at = Instant::now() + delay;
        self.at = Some(self.at.map_or(at, |due| due.min(at)));
    }

    /// Records that a topic may have been recreated.
    pub(super) fn suspect(&mut self) {
        (self.suspected, self.at) = (true, Some(Instant::now()));
    }

    /// Returns `true` if nothing may be read before the check.
    pub(super) const fn is_suspected(&self) -> bool {
        self.suspected
    }
}

impl Membership {
    /// Starts the check when it is due, and takes its result.
    pub(super) fn check_logs(&mut self) {
        let now = Instant::now();
        let is_due = now >= *self.topic_check.at.get_or_insert(now + INTERVAL);
        let Some(pending) = &mut self.topic_check.pending else {
            if self.owned.is_empty() && !self.joined {
                self.topic_check.suspected = false;
            } else if is_due && let Some(clients) = &self.clients {
                let owned = self.owned.iter().map(|owned| owned.partition.stream.as_str());
                let topics: BTreeSet<String> = self.subscribed().chain(owned).map(str::to_owned).collect();
                let group = self.covered().map(|covered| (self.options.group.clone(), covered));
                let request = request(clients.group.clone(), self.group.clone(), topics, group);
                self.topic_check.pending = Some(request);
            }
            return;
        };
        let result = match pending.try_recv() {
            Err(TryRecvError::Empty) => return,
            Err(TryRecvError::Closed) => Err(KafkaError::Canceled),
            Ok(result) => result,
        };
        self.topic_check.pending = None;
        let exists = |topics: &Topics| {
            self.owned.iter().all(|owned| topics.contains_key(owned.partition.stream.as_str()))
        };
        match result {
            Ok(found) if exists(&found.topics) => {
                (self.topic_check.suspected, self.topic_check.at) = (false, Some(now + INTERVAL));
                self.leave_deleted(&found.topics);
                if let Some(look) = found.look {
                    self.compare_coverage(look);
                }
            }
            // A topic does not exist at the moment. Until it does, there is nothing to read.
            Ok(_) => self.topic_check.at = Some(now + RETRY_DELAY),
            Err(error) => {
                tracing::debug!(%error, "topics unknown, checked again later");
                (self.topic_check.suspected, self.topic_check.at) = (false, Some(now + INTERVAL));
            }
        }
    }

    /// Rewinds partitions of topics that were recreated. The lookup begins their new incarnation.
    fn leave_deleted(&mut self, topics: &Topics) {
        let deleted: Vec<Partition> = self
            .owned
            .iter()
            .filter(|owned| {
                let current = topics.get(owned.partition.stream.as_str()).and_then(|topic| topic.id.as_ref());
                let is_other = owned.log.as_ref().zip(current).is_some_and(|(read, current)| read != current);
                is_other && owned.stage == Stage::Reading
            })
            .map(|owned| owned.partition.clone())
            .collect();
        if deleted.is_empty() {
            return;
        }
        tracing::warn!(partitions = deleted.len(), "topic recreated while it was read");
        self.start_rewind(&deleted);
        self.events.push_back(SourceEvent::Lost(deleted));
    }
}

/// Requests the descriptions of topics in a separate thread. Also requests the assignment of the group
/// if its topics do not have the given partition counts.
fn request(
    client: Arc<Client>,
    callbacks: Callbacks,
    topics: BTreeSet<String>,
    group: Option<(String, BTreeMap<String, u32>)>,
) -> oneshot::Receiver<KafkaResult<Found>> {
    let (sender, pending) = oneshot::channel();
    let request = move || {
        let found = find(&client, &topics, group);
        // Dropped first, because the receiver may hold the last reference, and dropping a client blocks.
        drop(client);
        // The receiver may have been dropped.
        let _ = sender.send(found);
        callbacks.wake();
    };
    // Without a thread, the sender is dropped, and the receiver detects that.
    if let Err(error) = thread::Builder::new().name("lazaret-kafka-topic-check".to_owned()).spawn(request) {
        tracing::warn!(%error, "thread for the check of topics not started");
    }
    pending
}

fn find(
    client: &Arc<Client>,
    topics: &BTreeSet<String>,
    group: Option<(String, BTreeMap<String, u32>)>,
) -> KafkaResult<Found> {
    let topics = describe_topics(client, topics.iter().map(String::as_str), REQUEST_TIMEOUT)?;
    let look = group.map_or(Ok(None), |(group, covered)| {
        coverage::look(client, &group, &topics, &covered, REQUEST_TIMEOUT)
    });
    // The ids are needed even where the group may not be described.
    let look = look.unwrap_or_else(|error| {
        tracing::debug!(%error, "assignment of the group unknown, looked at again later");
        None
    });
    Ok(Found { topics, look })
}
