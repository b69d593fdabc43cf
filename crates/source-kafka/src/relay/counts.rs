//! Counts what retry topics and dead-letter topics hold, in the broker.

use std::sync::{Arc, Weak};
use std::time::Duration;

use rdkafka::TopicPartitionList;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::KafkaResult;
use rdkafka::{ClientConfig, Offset};
use tokio::sync::watch;

use crate::topology::Topology;

const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// The records that the topics of a relay hold, counted in the broker. Markers of transactions count too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RelayCounts {
    /// Records of retry topics that the group has not settled.
    pub retrying: u64,
    /// Records of dead-letter topics, of whatever writer. Reading them removes none.
    pub dead: u64,
}

/// The topics to count, each with the number of its partitions.
#[derive(Clone, Debug)]
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

    /// Counts the records. It blocks.
    fn count(&self, client: &BaseConsumer) -> KafkaResult<RelayCounts> {
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
                counts.dead += u64::try_from(high - low).unwrap_or(0);
            }
        }
        Ok(counts)
    }
}

/// Counts at this interval, as long as the owner lives. `None` until the broker has answered, and while it does not.
pub(super) fn watch<T: Send + Sync + 'static>(
    owner: Weak<T>,
    mut config: ClientConfig,
    group: &str,
    topics: CountedTopics,
    interval: Duration,
) -> watch::Receiver<Option<RelayCounts>> {
    // What is in an open transaction counts as well, and is not waited for.
    config.set("group.id", group).set("isolation.level", "read_uncommitted");
    let (sender, counts) = watch::channel(None);
    tokio::spawn(async move {
        let topics = Arc::new(topics);
        let mut client: Option<Arc<BaseConsumer>> = None;
        while owner.strong_count() > 0 && !sender.is_closed() {
            if client.is_none() {
                client = config.create().map(Arc::new).ok();
            }
            if let Some(client) = client.clone() {
                let topics = topics.clone();
                let counted = tokio::task::spawn_blocking(move || topics.count(&client)).await;
                let counted = match counted {
                    Ok(Ok(counts)) => Some(counts),
                    Ok(Err(error)) => {
                        tracing::debug!(%error, "retry topics not counted");
                        None
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
    use super::*;
    use crate::retry_topics::RetryTopics;

    #[test]
    fn a_dead_letter_topic_of_several_streams_is_counted_once() {
        let topics = RetryTopics::new("mail", [Duration::from_secs(1)]).with_dead_letter_topic("failed");
        let topology = Topology::new(&topics, &["orders".to_owned(), "cases".to_owned()]).unwrap();
        let counted = CountedTopics::new(&topology, |_| 3);
        assert_eq!(counted.dead, [("failed".to_owned(), 3)]);
        assert_eq!(counted.retries.len(), 2);
    }
}
