//! The retry topics and dead-letter topics of a consumer: routing of messages, and reading progress.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lazaret_core::source::SourceError;
use lazaret_core::{Partition, Position, StreamName};

use crate::retry_topics::RetryTopics;

/// The maximum length of a topic name in Kafka.
const MAX_NAME: usize = 249;

/// One retry topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RetryTier {
    pub(crate) topic: String,
    pub(crate) delay: Duration,
    /// Whether it is only read, and not written to.
    pub(crate) drained: bool,
}

/// The retry topics and the dead-letter topic of one stream.
#[derive(Clone, Debug)]
pub(crate) struct StreamTopics {
    pub(crate) stream: String,
    /// The retry topics, shortest delay first, drained ones last.
    pub(crate) tiers: Vec<RetryTier>,
    pub(crate) dead_letter: String,
}

impl StreamTopics {
    /// Returns the topic for messages with this delay. It is the one with the longest delay that does
    /// not exceed it, so that no message queues behind messages that are due later. If there is none, it
    /// is the one with the shortest delay.
    pub(crate) fn tier(&self, delay: Duration) -> Option<&RetryTier> {
        let mut open = self.tiers.iter().filter(|tier| !tier.drained);
        let first = open.clone().next();
        open.rfind(|tier| tier.delay <= delay).or(first)
    }
}

/// The progress of a partition of a retry topic.
#[derive(Clone, Copy, Debug, Default)]
struct Progress {
    /// The offset after the last record that this relay wrote.
    written: u64,
    /// The offset after the last record that the engine took. `None` if the partition is not assigned.
    taken: Option<u64>,
}

/// All retry topics and dead-letter topics of a consumer.
#[derive(Debug)]
pub(crate) struct Topology {
    pub(crate) streams: Vec<StreamTopics>,
    pub(crate) max_wait: Duration,
    /// The index of each retry topic's stream.
    by_retry_topic: HashMap<String, usize>,
    progress: Mutex<HashMap<Partition, Progress>>,
}

impl Topology {
    /// Builds the topology of these streams. The error names invalid topic names.
    pub(crate) fn new(topics: &RetryTopics, streams: &[String]) -> Result<Self, SourceError> {
        let streams: Vec<StreamTopics> = streams.iter().map(|stream| of_stream(topics, stream)).collect();
        let mut names: BTreeSet<&str> = BTreeSet::new();
        let shared = streams.first().filter(|_| topics.shares_dead_letters).map(|of| &of.dead_letter);
        let own = |of: &StreamTopics| shared.is_none().then(|| of.dead_letter.clone());
        let own: Vec<String> = streams.iter().filter_map(own).collect();
        let all = streams
            .iter()
            .flat_map(|of| of.tiers.iter().map(|tier| &tier.topic).chain([&of.stream]))
            .chain(shared)
            .chain(&own);
        for name in all {
            check_name(name)?;
            if !names.insert(name) {
                return Err(SourceError::permanent(format!(
                    "two topics have the name {name:?}; put {{stream}}, {{consumer}} and {{delay}} into the names of retry \
                     and dead-letter topics, and consume no topic of that name"
                )));
            }
        }
        let indexed = |(index, of): (usize, &StreamTopics)| {
            let topics: Vec<_> = of.tiers.iter().map(|tier| (tier.topic.clone(), index)).collect();
            topics
        };
        let by_retry_topic = streams.iter().enumerate().flat_map(indexed).collect();
        Ok(Self { streams, max_wait: topics.max_wait, by_retry_topic, progress: Mutex::default() })
    }

    /// Returns the topics of a consumed stream.
    pub(crate) fn of_stream(&self, stream: &str) -> Option<&StreamTopics> {
        self.streams.iter().find(|of| of.stream == stream)
    }

    /// Returns the topics of the stream that this retry topic belongs to.
    pub(crate) fn of_retry_topic(&self, topic: &str) -> Option<&StreamTopics> {
        self.by_retry_topic.get(topic).map(|index| &self.streams[*index])
    }

    /// Iterates over the names of all retry topics.
    pub(crate) fn retry_topics(&self) -> impl Iterator<Item = &str> {
        self.streams.iter().flat_map(|of| of.tiers.iter().map(|tier| tier.topic.as_str()))
    }

    fn progress(&self) -> MutexGuard<'_, HashMap<Partition, Progress>> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that a record was written at this offset.
    pub(crate) fn record_write(&self, partition: Partition, offset: u64) {
        let mut progress = self.progress();
        let entry = progress.entry(partition.in_incarnation(0)).or_default();
        entry.written = entry.written.max(offset + 1);
    }

    /// Records that a partition is read from this offset on, or with `None` that it was revoked.
    pub(crate) fn record_start(&self, partition: &Partition, start: Option<u64>) {
        self.progress().entry(partition.in_incarnation(0)).or_default().taken = start;
    }

    /// Records that the engine took the record at this place. A record that was only read ahead is still
    /// expected.
    pub(crate) fn record_taken(&self, stream: &StreamName, position: &Position) {
        let mut progress = self.progress();
        let partition = Partition::new(stream.clone(), position.partition);
        if let Some(Progress { taken: Some(taken), .. }) = progress.get_mut(&partition) {
            *taken = position.offset + 1;
        }
    }

    /// Returns the offset after the last record that this relay wrote.
    pub(crate) fn written(&self, partition: &Partition) -> u64 {
        self.progress().get(&partition.in_incarnation(0)).map_or(0, |progress| progress.written)
    }

    /// Returns `true` if an assigned partition holds records of this relay that the engine has not taken yet.
    pub(crate) fn is_expecting(&self) -> bool {
        self.progress().values().any(|progress| progress.taken.is_some_and(|taken| taken < progress.written))
    }
}

fn of_stream(topics: &RetryTopics, stream: &str) -> StreamTopics {
    let tier = |delay: &Duration, drained| RetryTier {
        topic: topics.retry_topic(stream, *delay),
        delay: *delay,
        drained,
    };
    let open = topics.delays.iter().map(|delay| tier(delay, false));
    let drained = topics.draining.iter().map(|delay| tier(delay, true));
    let tiers = open.chain(drained).collect();
    StreamTopics { stream: stream.to_owned(), tiers, dead_letter: topics.dead_letter_topic(stream) }
}

fn check_name(name: &str) -> Result<(), SourceError> {
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    if name.is_empty() || name.len() > MAX_NAME || !name.chars().all(is_allowed) {
        let rule = "topic names have 1 to 249 letters, digits, dots, underscores and dashes";
        return Err(SourceError::permanent(format!("{name:?} is not a valid topic name: {rule}")));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn secs(n: u64) -> Duration {
        Duration::from_secs(n)
    }

    fn topology(topics: &RetryTopics) -> Result<Topology, SourceError> {
        Topology::new(topics, &["orders".to_owned(), "cases".to_owned()])
    }

    #[test]
    fn a_message_goes_to_the_longest_delay_that_is_not_longer_than_its_own() {
        let topics = RetryTopics::new("mail", [secs(60), secs(5), secs(600)]).draining([secs(30)]);
        let topology = topology(&topics).unwrap();
        let orders = topology.of_stream("orders").unwrap();
        let topic = |delay| orders.tier(delay).map(|tier| tier.topic.as_str());
        assert_eq!(topic(secs(1)), Some("orders.mail.retry.5s"));
        assert_eq!(topic(secs(5)), Some("orders.mail.retry.5s"));
        assert_eq!(topic(secs(59)), Some("orders.mail.retry.5s"), "a drained topic is not written to");
        assert_eq!(topic(secs(120)), Some("orders.mail.retry.1m"));
        assert_eq!(topic(secs(9999)), Some("orders.mail.retry.10m"));
        assert_eq!(
            topology.of_retry_topic("cases.mail.retry.30s").unwrap().stream,
            "cases",
            "a drained topic is read"
        );
        assert_eq!(topology.retry_topics().count(), 8);
    }

    #[test]
    fn colliding_and_invalid_names_are_refused() {
        let topics = RetryTopics::new("mail", [secs(1), secs(2)]);
        for (retry, dead, word) in [
            ("{stream}.retry", "{stream}.dlt", "orders.retry"),
            ("{stream}.{delay}", "dlt", "dlt"),
            ("{stream}.{delay}", "{stream}", "orders"),
            ("{stream} {delay}", "{stream}.dlt", "not a valid topic name"),
        ] {
            let error = topology(&topics.clone().with_names(retry, dead)).unwrap_err().to_string();
            assert!(error.contains(word), "{error}");
        }
        assert!(Topology::new(&topics, &["^ord.*".to_owned()]).is_err(), "patterns have no retry topics");
        let error = topology(&topics.clone().with_dead_letter_topic("cases")).unwrap_err().to_string();
        assert!(error.contains("cases"), "{error}");
    }

    #[test]
    fn streams_may_share_a_dead_letter_topic() {
        let topology =
            topology(&RetryTopics::new("mail", [secs(1)]).with_dead_letter_topic("failed")).unwrap();
        assert!(topology.streams.iter().all(|of| of.dead_letter == "failed"));
    }

    #[test]
    fn written_records_are_expected_by_the_member_that_reads_them() {
        let topology = topology(&RetryTopics::new("mail", [secs(1)])).unwrap();
        let partition = Partition::new("orders.mail.retry.1s", 0);
        topology.record_write(partition.clone(), 4);
        assert!(!topology.is_expecting(), "another member owns it");
        topology.record_start(&partition, Some(3));
        assert!(topology.is_expecting());
        topology.record_taken(&partition.stream, &Position::new(0, 4));
        assert!(!topology.is_expecting());
        assert_eq!(topology.written(&partition), 5);
        topology.record_start(&partition, None);
        topology.record_taken(&partition.stream, &Position::new(0, 2));
        assert!(!topology.is_expecting(), "it was revoked, and an old record was taken late");
    }
}
