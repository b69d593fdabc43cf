//! Checks at intervals that the topics are the ones whose records are read.
//!
//! A topic that is deleted and created again between two requests of the client may keep its partitions: then the group does not
//! rebalance, and reading goes on at offsets of another log. What is read until that is noticed is read again, in the new incarnation.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use lazaret_core::Partition;
use lazaret_core::source::SourceEvent;
use rdkafka::error::{KafkaError, KafkaResult};
use tokio::sync::oneshot::{self, error::TryRecvError};

use super::session::Membership;
use crate::client::callbacks::{Callbacks, Client};
use crate::client::topic_ids::{TopicIds, topic_ids};
use crate::error::is_unknown_topic;
use crate::owned_partition::Stage;

/// The interval of the checks.
const INTERVAL: Duration = Duration::from_secs(10);
/// The delay before a check of suspected topics is repeated.
const RETRY_DELAY: Duration = Duration::from_millis(250);
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// The next check.
#[derive(Default)]
pub(super) struct TopicCheck {
    /// When it is due.
    at: Option<Instant>,
    pending: Option<oneshot::Receiver<KafkaResult<TopicIds>>>,
    /// A topic may have been recreated: nothing is read before the check.
    suspected: bool,
}

impl TopicCheck {
    /// Notes that a topic may have been recreated.
    pub(super) fn suspect(&mut self) {
        (self.suspected, self.at) = (true, Some(Instant::now()));
    }

    /// Returns whether nothing may be read before the check.
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
            let has_logs = self.owned.iter().any(|owned| owned.log.is_some());
            if !has_logs {
                self.topic_check.suspected = false;
            } else if is_due && let Some(clients) = &self.clients {
                let topics = self.owned.iter().map(|owned| owned.partition.stream.to_string()).collect();
                let pending = request(clients.group.clone(), self.group.clone(), topics);
                self.topic_check.pending = Some(pending);
            }
            return;
        };
        let result = match pending.try_recv() {
            Err(TryRecvError::Empty) => return,
            Err(TryRecvError::Closed) => Err(KafkaError::Canceled),
            Ok(result) => result,
        };
        self.topic_check.pending = None;
        match result {
            Ok(ids) => {
                self.leave_deleted(&ids);
                (self.topic_check.suspected, self.topic_check.at) = (false, Some(now + INTERVAL));
            }
            // It does not exist now. Until it does, there is nothing to read.
            Err(error) if is_unknown_topic(&error) => self.topic_check.at = Some(now + RETRY_DELAY),
            Err(error) => {
                tracing::debug!(%error, "ids of topics unknown, checked again later");
                (self.topic_check.suspected, self.topic_check.at) = (false, Some(now + INTERVAL));
            }
        }
    }

    /// Rewinds partitions of topics that were recreated: the lookup begins their new incarnation.
    fn leave_deleted(&mut self, ids: &TopicIds) {
        let deleted: Vec<Partition> = self
            .owned
            .iter()
            .filter(|owned| {
                let current = ids.get(owned.partition.stream.as_str()).and_then(Option::as_ref);
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

/// Requests the ids of topics, in its own thread.
fn request(
    client: Arc<Client>,
    callbacks: Callbacks,
    topics: Vec<String>,
) -> oneshot::Receiver<KafkaResult<TopicIds>> {
    let (sender, pending) = oneshot::channel();
    let request = move || {
        let mut topics = topics;
        topics.sort_unstable();
        topics.dedup();
        let ids = topic_ids(&client, topics.iter().map(String::as_str), REQUEST_TIMEOUT);
        // Dropped first: the receiver may hold the last reference, and dropping a client blocks.
        drop(client);
        // The receiver may be gone.
        let _ = sender.send(ids);
        callbacks.wake();
    };
    // Without a thread the sender is dropped, and the receiver sees that.
    if let Err(error) = thread::Builder::new().name("lazaret-kafka-topic-ids".to_owned()).spawn(request) {
        tracing::warn!(%error, "thread for the ids of topics not started");
    }
    pending
}
