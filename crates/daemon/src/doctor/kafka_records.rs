//! Reads the newest record of each partition of a topic: a daemon that cannot decompress it, or may not read it, would wait.
//!
//! It is read without joining the group, and nothing is committed.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rdkafka::consumer::{BaseConsumer, Consumer, ConsumerContext};
use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};
use rdkafka::{ClientConfig, ClientContext, Offset, TopicPartitionList};

use super::finding::{Finding, PROBE_TIMEOUT};

/// The maximum number of partitions that are read.
const PARTITIONS: usize = 64;
/// The longest wait for one partition before the next one is polled.
const POLL: Duration = Duration::from_millis(20);
/// Properties that make a client a member of its group.
const MEMBERSHIP: [&str; 4] =
    ["group.instance.id", "group.protocol", "group.remote.assignor", "partition.assignment.strategy"];

/// Keeps the description of the last error, which the error itself does not have.
#[derive(Default)]
struct LastReason(Mutex<String>);

impl ClientContext for LastReason {
    fn error(&self, _: KafkaError, reason: &str) {
        reason.clone_into(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

impl ConsumerContext for LastReason {}

/// Reads the newest records of a topic with so many partitions.
pub(super) fn check(subject: &str, client: &ClientConfig, topic: &str, partitions: usize) -> Finding {
    let advice = "check the brokers and the security `properties`";
    match read(client, topic, partitions.min(PARTITIONS)) {
        Ok(Read { failed: Some((partition, reason)), .. }) => {
            let detail = format!("the newest record of {topic}/{partition} cannot be read: {reason}");
            let advice = "grant READ on the topic if that is denied; else let its producers use a known \
                          compression (gzip, snappy, lz4, zstd), or restore the partition on its broker";
            Finding::fail(subject, detail, advice)
        }
        Ok(Read { missing: 0, records: 0, .. }) => Finding::ok(subject, format!("{topic} is empty")),
        Ok(Read { missing: 0, records, .. }) => {
            let (of, s) = if records == 1 { ("its", "") } else { ("their", "s") };
            let detail = format!("{records} partition{s} of {topic}: {of} newest record can be read");
            Finding::ok(subject, detail)
        }
        Ok(Read { missing, .. }) => {
            let detail =
                format!("no record of {missing} partitions of {topic} within {:?}", PROBE_TIMEOUT * 3);
            Finding::warn(subject, detail, advice)
        }
        Err(error) => Finding::warn(subject, format!("failed to read {topic}: {error}"), advice),
    }
}

/// What was read of a topic.
#[derive(Debug, Default, PartialEq, Eq)]
struct Read {
    records: usize,
    /// The first partition that cannot be read, with the reason.
    failed: Option<(i32, String)>,
    /// Partitions without a response.
    missing: usize,
}

fn read(client: &ClientConfig, topic: &str, partitions: usize) -> Result<Read, KafkaError> {
    let mut config = client.clone();
    for name in MEMBERSHIP {
        config.remove(name);
    }
    config.set("enable.auto.commit", "false").set("enable.auto.offset.store", "false");
    config.set("enable.partition.eof", "true").set("auto.offset.reset", "earliest");
    let consumer: Arc<BaseConsumer<LastReason>> =
        Arc::new(config.create_with_context(LastReason::default())?);
    let mut list = TopicPartitionList::new();
    let mut queues = Vec::new();
    for partition in (0..).take(partitions) {
        list.add_partition_offset(topic, partition, Offset::OffsetTail(1))?;
        queues.extend(consumer.split_partition_queue(topic, partition).map(|queue| (partition, queue)));
    }
    consumer.assign(&list)?;
    let until = Instant::now() + PROBE_TIMEOUT * 3;
    let mut read = Read::default();
    while !queues.is_empty() && Instant::now() < until {
        // Serves what is not a record.
        consumer.poll(Duration::ZERO);
        queues.retain(|(partition, queue)| match queue.poll(POLL) {
            None => true,
            Some(Ok(_)) => {
                read.records += 1;
                false
            }
            Some(Err(KafkaError::PartitionEOF(_))) => false,
            Some(Err(error)) if is_passing(&error) => true,
            Some(Err(error)) => {
                let reason = consumer.context().0.lock().unwrap_or_else(PoisonError::into_inner).clone();
                let reason = if reason.is_empty() { error.to_string() } else { reason };
                read.failed.get_or_insert((*partition, reason));
                false
            }
        });
    }
    read.missing = queues.len();
    Ok(read)
}

/// Returns whether the client repeats a request after this error, and no record is the cause.
fn is_passing(error: &KafkaError) -> bool {
    matches!(
        error.rdkafka_error_code(),
        Some(
            Code::BrokerTransportFailure
                | Code::AllBrokersDown
                | Code::Resolve
                | Code::OperationTimedOut
                | Code::RequestTimedOut
                | Code::LeaderNotAvailable
                | Code::NotLeaderForPartition
                | Code::GroupAuthorizationFailed
        )
    )
}
