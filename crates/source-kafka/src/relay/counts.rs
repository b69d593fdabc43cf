//! Counts the records of retry topics and dead-letter topics in the broker.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use lazaret_core::Timestamp;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::{KafkaError, KafkaResult, RDKafkaErrorCode};
use rdkafka::message::Headers as _;
use rdkafka::{ClientConfig, Message, Offset, TopicPartitionList};
use tokio::sync::watch;

use crate::headers::FIRST;
use crate::topology::Topology;

const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// The number of records in the topics of a relay, counted in the broker. Transaction markers count too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RelayCounts {
    /// The number of records in retry topics that the group has not settled.
    pub retrying: u64,
    /// The number of records in dead-letter topics, from any writer. Reading them does not remove them.
    pub dead: u64,
    /// The earliest time among the first records in the partitions of dead-letter topics. It is the time
    /// of the first failure, or of the record if it names no failure. `None` without records, or if they
    /// cannot be read.
    pub oldest_dead: Option<Timestamp>,
}

/// The topics to count, each with the number of its partitions.
#[derive(Debug)]
pub(super) struct CountedTopics {
    retries: Vec<(String, i32)>,
    dead: Vec<(String, i32)>,
}

impl CountedTopics {
    pub(super) fn new(topology: &Topology, partitions: impl Fn(&str) -> i32) -> Self {
        let sized = |topic: &str| (topic.to_owned(), partitions(topic));
        let mut dead: Vec<(String, i32)> =
            topology.streams.iter().map(|of_stream| sized(&of_stream.dead_letter)).collect();
        dead.sort_unstable();
        dead.dedup();
        Self { retries: topology.retry_topics().map(sized).collect(), dead }
    }

    /// Counts the records. Blocks.
    fn count(&self, client: &BaseConsumer, first_records: &mut FirstRecords) -> KafkaResult<RelayCounts> {
        let mut retries = TopicPartitionList::new();
        for (topic, partitions) in self.retries.iter().filter(|(_, partitions)| *partitions > 0) {
            retries.add_partition_range(topic, 0, partitions - 1);
        }
        let mut counts = RelayCounts::default();
        for settled in client.committed_offsets(retries, REQUEST_TIMEOUT)?.elements() {
            let (low, high) =
                client.fetch_watermarks(settled.topic(), settled.partition(), REQUEST_TIMEOUT)?;
            let next = match settled.offset() {
                Offset::Offset(offset) => offset.max(low),
                _ => low,
            };
            counts.retrying += u64::try_from(high - next).unwrap_or(0);
        }
        for (topic, partitions) in &self.dead {
            for partition in 0..*partitions {
                let (low, high) = client.fetch_watermarks(topic, partition, REQUEST_TIMEOUT)?;
                if high > low {
                    counts.dead += u64::try_from(high - low).unwrap_or(0);
                    let first = first_records.time(client, topic, partition, low);
                    counts.oldest_dead = [counts.oldest_dead, first].into_iter().flatten().min();
                }
            }
        }
        Ok(counts)
    }
}

/// The times of the first records of partitions, each with the offset at which the partition begins.
/// Each record is read once.
#[derive(Debug, Default)]
struct FirstRecords(BTreeMap<(String, i32), (i64, Option<Timestamp>)>);

impl FirstRecords {
    /// Returns the time of the first record of a partition that begins at this offset, or `None` if it
    /// cannot be read.
    fn time(&mut self, client: &BaseConsumer, topic: &str, partition: i32, low: i64) -> Option<Timestamp> {
        let place = (topic.to_owned(), partition);
        if let Some((_, known)) = self.0.get(&place).filter(|(begin, _)| *begin == low) {
            return *known;
        }
        let (time, is_final) = match read_first(client, topic, partition, low) {
            // Records may follow after transaction markers.
            Ok(time) => (time, time.is_some()),
            Err(error) => {
                tracing::debug!(topic, partition, %error, "first dead letter not read");
                // A client that may not read the topic may still count its records.
                (None, error.rdkafka_error_code() == Some(RDKafkaErrorCode::TopicAuthorizationFailed))
            }
        };
        if is_final {
            self.0.insert(place, (low, time));
        }
        time
    }
}

/// Reads the time of the first record from this offset on. Returns `None` if only transaction markers follow.
fn read_first(
    client: &BaseConsumer,
    topic: &str,
    partition: i32,
    low: i64,
) -> KafkaResult<Option<Timestamp>> {
    let mut place = TopicPartitionList::new();
    place.add_partition_offset(topic, partition, Offset::Offset(low))?;
    // Skips earlier errors, for example of connections. Nothing is assigned yet.
    while client.poll(Duration::ZERO).is_some() {}
    client.assign(&place)?;
    let deadline = Instant::now() + REQUEST_TIMEOUT;
    let read = loop {
        match client.poll(deadline.saturating_duration_since(Instant::now())) {
            Some(Ok(record)) if (record.topic(), record.partition()) == (topic, partition) => {
                break Ok(time_of(&record));
            }
            Some(Ok(_)) => {}
            Some(Err(KafkaError::PartitionEOF(_))) => break Ok(None),
            Some(Err(error)) => break Err(error),
            None if Instant::now() >= deadline => break Ok(None),
            None => {}
        }
    };
    client.unassign()?;
    read
}

/// Returns the time at which the record's message first failed, or else the time of the record.
fn time_of(record: &impl Message) -> Option<Timestamp> {
    let first_failure = record.headers().and_then(|headers| {
        let named = headers.iter().filter(|header| header.key == FIRST).last()?;
        std::str::from_utf8(named.value?).ok()?.parse().ok()
    });
    first_failure.or_else(|| Timestamp::from_millisecond(record.timestamp().to_millis()?).ok())
}

/// Counts at this interval while the owner lives. The value is `None` until the broker has answered, and
/// while it does not.
pub(super) fn watch<T: Send + Sync + 'static>(
    owner: Weak<T>,
    mut config: ClientConfig,
    group: &str,
    topics: CountedTopics,
    interval: Duration,
) -> watch::Receiver<Option<RelayCounts>> {
    // Records in open transactions also count, without waiting for the transactions.
    config.set("group.id", group).set("isolation.level", "read_uncommitted");
    // The first records of dead-letter topics are read, which commits nothing.
    config.set("enable.auto.commit", "false").set("enable.auto.offset.store", "false");
    config.set("auto.offset.reset", "earliest").set("enable.partition.eof", "true");
    config.set("queued.min.messages", "1").set("fetch.message.max.bytes", "65536");
    let (sender, counts) = watch::channel(None);
    tokio::spawn(async move {
        let topics = Arc::new(topics);
        let (mut client, mut first_records) = (None::<Arc<BaseConsumer>>, FirstRecords::default());
        while owner.strong_count() > 0 && !sender.is_closed() {
            if client.is_none() {
                client = config.create().map(Arc::new).ok();
            }
            if let Some(client) = client.clone() {
                let (topics, mut known) = (topics.clone(), std::mem::take(&mut first_records));
                let counted = tokio::task::spawn_blocking(move || {
                    let counts = topics.count(&client, &mut known);
                    (counts, known)
                });
                let counted = match counted.await {
                    Ok((counts, known)) => {
                        first_records = known;
                        counts.inspect_err(|error| tracing::debug!(%error, "retry topics not counted")).ok()
                    }
                    Err(_) => None,
                };
                sender.send_replace(counted);
            }
            tokio::time::sleep(interval).await;
        }
    });
    counts
}

#[cfg(test)]
mod tests {
    use rdkafka::message::{Header, OwnedHeaders};
    use rdkafka::mocking::MockCluster;
    use rdkafka::producer::{FutureProducer, FutureRecord};

    use super::*;
    use crate::retry_topics::RetryTopics;

    #[tokio::test(flavor = "multi_thread")]
    async fn the_first_records_of_a_dead_letter_topic_tell_how_old_it_is() {
        let cluster = MockCluster::new(1).unwrap();
        for topic in ["failed", "retries"] {
            cluster.create_topic(topic, 2, 1).unwrap();
        }
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", cluster.bootstrap_servers());
        let producer: FutureProducer = config.create().unwrap();
        let write = async |partition: i32, second: i64, first_failure: Option<&str>| {
            let headers = match first_failure {
                Some(time) => OwnedHeaders::new().insert(Header { key: FIRST, value: Some(time) }),
                None => OwnedHeaders::new(),
            };
            let record = FutureRecord::to("failed").partition(partition).key("k").payload("p");
            let record = record.timestamp(second * 1000).headers(headers);
            producer.send(record, REQUEST_TIMEOUT).await.unwrap();
        };
        let (owner, sized) = (Arc::new(()), |topic: &str| vec![(topic.to_owned(), 2)]);
        let topics = CountedTopics { retries: sized("retries"), dead: sized("failed") };
        let mut counts = watch(Arc::downgrade(&owner), config, "g", topics, Duration::from_millis(20));
        let mut counted = async |dead: u64| {
            let is_there = |counts: &Option<RelayCounts>| counts.is_some_and(|counts| counts.dead == dead);
            let waited = tokio::time::timeout(Duration::from_secs(240), counts.wait_for(is_there)).await;
            waited.expect("it is counted").unwrap().unwrap().oldest_dead
        };
        assert_eq!(counted(0).await, None);
        // A record from another writer names no failure.
        write(1, 1_700_000_500, None).await;
        assert_eq!(counted(1).await, Timestamp::from_second(1_700_000_500).ok());
        write(0, 1_700_000_900, Some("2023-11-14T22:13:20Z")).await;
        assert_eq!(counted(2).await, Timestamp::from_second(1_700_000_000).ok());
        // The time of a partition's first record is kept.
        write(0, 1_700_000_950, Some("2001-09-09T01:46:40Z")).await;
        assert_eq!(counted(3).await, Timestamp::from_second(1_700_000_000).ok());
        // Counting ends with the owner.
        drop(owner);
        while counts.changed().await.is_ok() {}
    }

    #[test]
    fn a_dead_letter_topic_of_several_streams_is_counted_once() {
        let topics = RetryTopics::new("mail", [Duration::from_secs(1)]).with_dead_letter_topic("failed");
        let topology = Topology::new(&topics, &["orders".to_owned(), "cases".to_owned()]).unwrap();
        let counted = CountedTopics::new(&topology, |_| 3);
        assert_eq!(counted.dead, [("failed".to_owned(), 3)]);
        assert_eq!(counted.retries.len(), 2);
    }
}
