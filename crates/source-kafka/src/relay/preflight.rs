//! Checks before the first write that the topics exist, keep their records long enough, and may be
//! written to.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use backon::{ConstantBuilder, Retryable};
use lazaret_core::source::SourceError;
use rdkafka::ClientConfig;
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, ResourceSpecifier, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::consumer::BaseConsumer;
use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};
use rdkafka::producer::{FutureProducer, FutureRecord};
use tokio::time::Instant;

use crate::client::metadata::{TopicWait, metadata_client, partition_count};
use crate::client::producer::UNLIMITED_BYTES;
use crate::error::{config_error, is_unknown_topic_code as is_missing};
use crate::options::KafkaOptions;
use crate::retry_topics::RetryTopics;
use crate::topology::Topology;

const REQUEST_TIMEOUT: Duration = Duration::from_secs(15);
/// The interval between metadata requests for new topics.
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// The maximum record size of topics that are probed. Topics that accept larger records are not probed.
const LARGEST_PROBE: usize = 16 << 20;
/// The minimum retention of created retry topics.
const RETENTION: Duration = Duration::from_secs(7 * 24 * 3600);

/// The result of the checks.
pub(super) struct Checked {
    /// The number of partitions of each topic.
    pub(super) partitions: HashMap<String, i32>,
    pub(super) remarks: Vec<String>,
}

/// A topic that the relay writes to.
struct RelayTopic<'a> {
    name: &'a str,
    /// The consumed topic that its messages come from.
    stream: &'a str,
    /// The delay of a retry topic, or `None` for a dead-letter topic.
    delay: Option<Duration>,
}

fn relay_topics(topology: &Topology) -> Vec<RelayTopic<'_>> {
    let mut topics = Vec::new();
    for of_stream in &topology.streams {
        let stream = of_stream.stream.as_str();
        for tier in &of_stream.tiers {
            topics.push(RelayTopic { name: &tier.topic, stream, delay: Some(tier.delay) });
        }
        // Streams may share a dead-letter topic.
        if !topics.iter().any(|topic: &RelayTopic<'_>| topic.name == of_stream.dead_letter) {
            topics.push(RelayTopic { name: &of_stream.dead_letter, stream, delay: None });
        }
    }
    topics
}

/// Checks all topics, and creates missing ones if allowed.
pub(super) async fn run(
    kafka: &KafkaOptions,
    config: &ClientConfig,
    topology: &Topology,
    options: &RetryTopics,
) -> Result<Checked, SourceError> {
    let topics = relay_topics(topology);
    let client = metadata_client(config)?;
    let mut wait = TopicWait::new(kafka);
    let mut partitions = HashMap::new();
    for stream in topology.streams.iter().map(|of_stream| of_stream.stream.as_str()) {
        let count = wait.partition_count(&client, stream).await.map_err(|error| {
            match error.rdkafka_error_code() {
                Some(code) if is_missing(code) => {
                    SourceError::permanent(format!("the topic {stream} does not exist; create it"))
                }
                _ => metadata_error(error, stream),
            }
        })?;
        partitions.insert(stream.to_owned(), count);
    }
    let mut missing = Vec::new();
    for topic in &topics {
        // If missing topics may be created, they are not waited for.
        let count = match options.create {
            true => partition_count(&client, topic.name).await,
            false => wait.partition_count(&client, topic.name).await,
        };
        match count {
            Ok(count) => _ = partitions.insert(topic.name.to_owned(), count),
            Err(error) => match error.rdkafka_error_code() {
                Some(code) if is_missing(code) => missing.push(topic),
                _ => return Err(metadata_error(error, topic.name)),
            },
        }
    }
    if !missing.is_empty() {
        create(config, &client, &missing, &mut partitions, options).await?;
    }
    if options.check {
        check(config, &topics, TopicWait::new(kafka)).await?;
    }
    let remarks = fewer_partitions(&topics, &partitions);
    remarks.iter().for_each(|remark| tracing::warn!(remark, "retry topics checked"));
    Ok(Checked { partitions, remarks })
}

/// Lists topics with fewer partitions than their stream. A key still has one partition, but fewer
/// members share the work.
fn fewer_partitions(topics: &[RelayTopic<'_>], partitions: &HashMap<String, i32>) -> Vec<String> {
    let mut remarks = Vec::new();
    for RelayTopic { name, stream, .. } in topics {
        let (own, theirs) = (partitions.get(*name).copied(), partitions.get(*stream).copied());
        if let (Some(own), Some(theirs)) = (own, theirs)
            && own < theirs
        {
            remarks.push(format!(
                "{name} has {own} partitions and {stream} has {theirs}: messages of partition n go to n modulo {own}"
            ));
        }
    }
    remarks
}

fn metadata_error(error: KafkaError, topic: &str) -> SourceError {
    let text = match error.rdkafka_error_code() {
        Some(Code::TopicAuthorizationFailed) => {
            format!("describing {topic} is denied; grant DESCRIBE and WRITE on it to this user")
        }
        _ => {
            let context = format!("failed to fetch the metadata of {topic}: {error}");
            return SourceError::temporary(context).with_source(error);
        }
    };
    SourceError::permanent(text).with_source(error)
}

fn admin(config: &ClientConfig) -> Result<AdminClient<DefaultClientContext>, SourceError> {
    config.create().map_err(config_error)
}

fn admin_options() -> AdminOptions {
    AdminOptions::new().operation_timeout(Some(REQUEST_TIMEOUT)).request_timeout(Some(REQUEST_TIMEOUT))
}

async fn create(
    config: &ClientConfig,
    client: &Arc<BaseConsumer>,
    missing: &[&RelayTopic<'_>],
    partitions: &mut HashMap<String, i32>,
    options: &RetryTopics,
) -> Result<(), SourceError> {
    let names: Vec<&str> = missing.iter().map(|topic| topic.name).collect();
    if !options.create {
        let counts: Vec<String> = missing
            .iter()
            .map(|topic| {
                format!("{} ({} partitions)", topic.name, partitions.get(topic.stream).unwrap_or(&1))
            })
            .collect();
        return Err(SourceError::permanent(format!(
            "these topics do not exist: {}; create them with cleanup.policy=delete, or allow their creation",
            counts.join(", ")
        )));
    }
    let retentions: Vec<String> = missing
        .iter()
        .map(|topic| {
            topic.delay.map_or("-1".to_owned(), |delay| RETENTION.max(delay * 3).as_millis().to_string())
        })
        .collect();
    let new = missing.iter().zip(&retentions).map(|(topic, retention)| {
        let count = partitions.get(topic.stream).copied().unwrap_or(1);
        NewTopic::new(topic.name, count, TopicReplication::Fixed(options.replication))
            .set("cleanup.policy", "delete")
            .set("retention.ms", retention)
    });
    let new: Vec<NewTopic<'_>> = new.collect();
    let failed = |reason: String| {
        let remedy = "create them, or grant CREATE on them to this user";
        SourceError::permanent(format!("{} could not be created: {reason}; {remedy}", names.join(", ")))
    };
    let made = admin(config)?
        .create_topics(&new, &admin_options())
        .await
        .map_err(|error| failed(error.to_string()))?;
    for result in made {
        match result {
            // Another member created the topic.
            Ok(_) | Err((_, Code::TopicAlreadyExists)) => {}
            Err((topic, code)) => return Err(failed(format!("{topic}: {code}"))),
        }
    }
    wait_until_created(client, &names, partitions).await
}

/// Waits until the brokers' metadata contains new topics, and adds their numbers of partitions.
async fn wait_until_created(
    client: &Arc<BaseConsumer>,
    names: &[&str],
    partitions: &mut HashMap<String, i32>,
) -> Result<(), SourceError> {
    let until = Instant::now() + REQUEST_TIMEOUT;
    let backoff = ConstantBuilder::default().with_delay(POLL_INTERVAL).without_max_times();
    for name in names {
        let count =
            || async { partition_count(client, name).await.ok().filter(|count| *count > 0).ok_or(()) };
        let count = count.retry(backoff).when(|()| Instant::now() < until).await.map_err(|()| {
            SourceError::temporary(format!(
                "{name} was created and is not in the metadata of the brokers yet"
            ))
        })?;
        partitions.insert((*name).to_owned(), count);
    }
    Ok(())
}

/// Checks the settings of the topics and the right to write to them.
async fn check(
    config: &ClientConfig,
    topics: &[RelayTopic<'_>],
    mut wait: TopicWait,
) -> Result<(), SourceError> {
    let specifiers: Vec<_> = topics.iter().map(|topic| ResourceSpecifier::Topic(topic.name)).collect();
    let admin = admin(config)?;
    let described = loop {
        let described = admin.describe_configs(&specifiers, &admin_options()).await;
        let described = described.map_err(|error| {
            let context = format!("failed to fetch the settings of topics: {error}");
            SourceError::temporary(context).with_source(error)
        })?;
        let unknown = topics.iter().zip(&described).find_map(|(topic, settings)| match settings {
            Err(code) if is_missing(*code) => Some(topic.name),
            _ => None,
        });
        match unknown {
            Some(topic) if wait.pause(topic).await => {}
            _ => break described,
        }
    };
    let mut probes = Vec::new();
    for (topic, settings) in topics.iter().zip(described) {
        let settings = settings.map_err(|code| {
            let name = topic.name;
            let text = format!(
                "the settings of {name} cannot be read ({code}); grant DESCRIBE_CONFIGS on it to this user, or open the \
                 relay without checks"
            );
            SourceError::permanent(text)
        })?;
        let get = |name: &str| settings.get(name).and_then(|entry| entry.value.as_deref());
        check_settings(topic, get("cleanup.policy"), get("retention.ms"))?;
        if let Some(largest) = get("max.message.bytes").and_then(|text| text.parse::<usize>().ok()) {
            probes.push((topic.name, largest));
        }
    }
    probe(config, probes).await
}

fn check_settings(
    topic: &RelayTopic<'_>,
    cleanup: Option<&str>,
    retention: Option<&str>,
) -> Result<(), SourceError> {
    let RelayTopic { name, delay, .. } = topic;
    if cleanup.is_some_and(|policy| policy.contains("compact")) {
        return Err(SourceError::permanent(format!(
            "{name} is compacted and would delete all but the last message of a key; set cleanup.policy=delete"
        )));
    }
    let retention = retention.and_then(|text| text.parse::<u64>().ok()).map(Duration::from_millis);
    if let (Some(delay), Some(retention)) = (delay, retention)
        && retention < *delay * 2
    {
        return Err(SourceError::permanent(format!(
            "{name} keeps records for {}s and delays them by {}s; set retention.ms to at least twice the delay",
            retention.as_secs_f64(),
            delay.as_secs_f64()
        )));
    }
    Ok(())
}

/// Checks the right to write without writing. A broker refuses a record for its size only if it would
/// accept a smaller one.
async fn probe(config: &ClientConfig, topics: Vec<(&str, usize)>) -> Result<(), SourceError> {
    let mut config = config.clone();
    config
        .set("message.max.bytes", UNLIMITED_BYTES)
        .set("message.timeout.ms", REQUEST_TIMEOUT.as_millis().to_string())
        .set("compression.type", "none")
        .set("acks", "all");
    let producer: FutureProducer = config.create().map_err(config_error)?;
    for (topic, largest) in topics.into_iter().filter(|(_, largest)| *largest <= LARGEST_PROBE) {
        let payload = vec![0; largest + 1024];
        let record: FutureRecord<'_, [u8], [u8]> = FutureRecord::to(topic).partition(0).payload(&payload);
        let Err((error, _)) = producer.send(record, REQUEST_TIMEOUT).await else {
            tracing::warn!(topic, "oversized probe record accepted");
            continue;
        };
        match error.rdkafka_error_code() {
            Some(Code::MessageSizeTooLarge | Code::InvalidMessageSize) => {}
            Some(Code::TopicAuthorizationFailed) => {
                return Err(SourceError::permanent(format!(
                    "writing to {topic} is denied; grant WRITE on it to this user"
                ))
                .with_source(error));
            }
            _ => {
                let context = format!("failed to check the right to write to {topic}: {error}");
                return Err(SourceError::temporary(context).with_source(error));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn topic(delay: Option<u64>) -> RelayTopic<'static> {
        RelayTopic { name: "orders.mail.dlt", stream: "orders", delay: delay.map(Duration::from_secs) }
    }

    #[test]
    fn a_topic_that_deletes_records_too_early_is_refused() {
        // I1
        let checked = |topic: RelayTopic<'_>, cleanup, retention| {
            check_settings(&topic, Some(cleanup), Some(retention)).map_err(|error| error.to_string())
        };
        assert!(checked(topic(None), "compact", "-1").unwrap_err().contains("orders.mail.dlt is compacted"));
        assert!(checked(topic(Some(60)), "compact,delete", "-1").is_err());
        assert!(checked(topic(Some(60)), "delete", "100000").unwrap_err().contains("retention.ms"));
        assert_eq!(checked(topic(Some(60)), "delete", "120000"), Ok(()));
        assert_eq!(checked(topic(Some(60)), "delete", "-1"), Ok(()));
        assert_eq!(checked(topic(None), "delete", "1000"), Ok(()));
    }

    #[test]
    fn fewer_partitions_are_reported() {
        let counts = [("orders".to_owned(), 6), ("orders.mail.dlt".to_owned(), 2)].into();
        let remarks = fewer_partitions(&[topic(None)], &counts);
        assert!(remarks[0].contains("orders.mail.dlt has 2 partitions and orders has 6"), "{remarks:?}");
        assert_eq!(
            fewer_partitions(
                &[topic(None)],
                &[("orders".to_owned(), 2), ("orders.mail.dlt".to_owned(), 2)].into()
            ),
            [""; 0]
        );
    }
}
