//! Waits for subscribed topics that the brokers do not know yet.
//!
//! Not every broker knows a newly created topic. librdkafka reports an unknown topic once, and looks for
//! it again only after minutes. The member therefore requests the metadata itself until all topics
//! exist, and then subscribes again. A topic that is still unknown after `topic-timeout` is a permanent
//! error.

use std::thread;
use std::time::{Duration, Instant};

use lazaret_core::source::SourceError;
use rdkafka::consumer::Consumer;
use rdkafka::error::{KafkaError, KafkaResult};
use tokio::sync::oneshot::{self, error::TryRecvError};

use super::session::Membership;
use crate::client::callbacks::{Callbacks, Clients};
use crate::client::metadata::{TOPIC_POLL_INTERVAL, waiting_for};
use crate::error::{classify, config_error, is_unknown_topic_code};

const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// How long to wait for the assignment after subscribing again. Then the topics are checked again.
const ASSIGNMENT_TIMEOUT: Duration = Duration::from_secs(10);

/// The wait for subscribed topics.
pub(super) struct MissingTopics {
    until: Instant,
    check_at: Instant,
    pending: Option<oneshot::Receiver<KafkaResult<Vec<String>>>>,
    /// Whether the wait was reported.
    reported: bool,
    /// Whether all topics were found, and the member subscribed again.
    subscribed: bool,
}

impl Membership {
    /// Starts to wait for unknown topics.
    pub(super) fn wait_for_topics(&mut self) {
        let now = Instant::now();
        let until = now + self.options.topic_timeout;
        match &mut self.missing {
            Some(missing) => missing.subscribed = false,
            None => {
                let (reported, subscribed) = (false, false);
                self.missing =
                    Some(MissingTopics { until, check_at: now, pending: None, reported, subscribed });
            }
        }
    }

    /// Ends the wait when the group has assigned partitions after all topics were found.
    pub(super) fn topics_assigned(&mut self) {
        self.missing.take_if(|missing| missing.subscribed);
    }

    /// Checks whether the brokers know all topics by now.
    pub(super) fn check_topics(&mut self) {
        let now = Instant::now();
        let topics: Vec<String> = match &self.missing {
            Some(missing) if missing.pending.is_none() => self.subscribed().map(str::to_owned).collect(),
            _ => Vec::new(),
        };
        let Some(missing) = &mut self.missing else { return };
        let Some(pending) = &mut missing.pending else {
            if now >= missing.check_at
                && let Some(clients) = self.clients.clone()
            {
                missing.pending = Some(request(clients, self.group.clone(), topics));
            }
            return;
        };
        let found = match pending.try_recv() {
            Err(TryRecvError::Empty) => return,
            Err(TryRecvError::Closed) => Err(KafkaError::Canceled),
            Ok(found) => found,
        };
        missing.pending = None;
        missing.check_at = now + TOPIC_POLL_INTERVAL;
        match found {
            Ok(unknown) if unknown.is_empty() => self.subscribe_again(),
            Ok(unknown) if now >= missing.until => {
                self.missing = None;
                self.report(SourceError::permanent(does_not_exist(&unknown)));
            }
            Ok(unknown) => {
                missing.subscribed = false;
                // Reported only once, because the engine pauses reading after an error, and there may be
                // other topics.
                if !std::mem::replace(&mut missing.reported, true) {
                    let waiting = waiting_for(&unknown, self.options.topic_timeout);
                    self.options.topic_notice.send(&waiting);
                    self.report(SourceError::temporary(waiting));
                }
            }
            Err(error) => {
                let reason = format!("failed to look for the topics: {error}");
                let error = classify(error, &reason, &self.options, false).into_reported(reason);
                self.report(error);
            }
        }
    }

    /// Subscribes again, because all topics exist. librdkafka would look for them only after minutes.
    fn subscribe_again(&mut self) {
        let Some(missing) = &mut self.missing else { return };
        missing.check_at = Instant::now() + ASSIGNMENT_TIMEOUT;
        let is_first = !std::mem::replace(&mut missing.subscribed, true);
        if missing.reported && is_first {
            tracing::info!(group = self.options.group, "topics found");
        }
        // A member with an assignment does not subscribe repeatedly, because that may revoke its partitions.
        if !is_first && self.joined {
            self.missing = None;
            return;
        }
        self.set_joining();
        if let Err(error) = self.subscribe() {
            self.report(config_error(error));
        }
    }
}

fn does_not_exist(topics: &[String]) -> String {
    let topics = topics.join(", ");
    format!("a topic of {topics} does not exist; create it or correct its name")
}

/// Requests the metadata of topics in a separate thread. Returns the unknown topics.
fn request(
    clients: Clients,
    callbacks: Callbacks,
    topics: Vec<String>,
) -> oneshot::Receiver<KafkaResult<Vec<String>>> {
    let (sender, pending) = oneshot::channel();
    let request = move || {
        let unknown = unknown(&clients, topics);
        // Dropped first, because the receiver may hold the last reference, and dropping a client blocks.
        drop(clients);
        // The receiver may have been dropped.
        let _ = sender.send(unknown);
        callbacks.wake();
    };
    // Without a thread, the sender is dropped, and the receiver detects that.
    if let Err(error) = thread::Builder::new().name("lazaret-kafka-topics".to_owned()).spawn(request) {
        tracing::warn!(%error, "metadata thread not started");
    }
    pending
}

/// Returns the unknown topics. The group's client sends the requests, because the subscription uses its
/// metadata.
fn unknown(clients: &Clients, mut topics: Vec<String>) -> KafkaResult<Vec<String>> {
    let mut failed = None;
    topics.retain(|topic| match clients.group.fetch_metadata(Some(topic), REQUEST_TIMEOUT) {
        Ok(metadata) => {
            let found = metadata.topics().iter().find(|found| found.name() == topic);
            let error = found.and_then(|found| found.error()).map(rdkafka::error::RDKafkaErrorCode::from);
            match (found, error) {
                (Some(found), None) => found.partitions().is_empty(),
                (None, _) => true,
                (_, Some(code)) if is_unknown_topic_code(code) => true,
                (_, Some(code)) => {
                    failed = Some(KafkaError::MetadataFetch(code));
                    true
                }
            }
        }
        Err(error) => {
            failed = Some(error);
            true
        }
    });
    failed.map_or(Ok(topics), Err)
}
