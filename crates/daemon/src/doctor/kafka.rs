//! Checks that the brokers are reachable, the topics exist, and their records can be read, with the group for a source.

use std::sync::Arc;
use std::time::{Duration, Instant};

use lazaret_config::{Consumer as ConsumerConfig, KafkaSource as From};
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};
use rdkafka::{ClientConfig, Offset, TopicPartitionList};

use super::finding::{Finding, PROBE_TIMEOUT};
use super::kafka_records;

/// The pause before a request is repeated.
const REPEAT_INTERVAL: Duration = Duration::from_millis(250);

/// What is checked of the topics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Access {
    /// They are read as a member of a group.
    Group,
    /// They are read without a group.
    Topics,
}

/// Checks brokers, topics and group. The group is not joined: reading its committed offsets requires the same permission.
pub(super) async fn check(subject: String, from: &From) -> Vec<Finding> {
    check_access(subject, from, Access::Group).await
}

/// Checks the dead-letter topics that a consumer adopts.
pub(super) async fn check_adopted(config: &ConsumerConfig) -> Vec<Finding> {
    let mut found = Vec::new();
    for adopt in &config.adopt {
        let subject = format!("{} adopt {}", config.name, adopt.format.as_str());
        found.extend(check_access(subject, &adopt.kafka, Access::Topics).await);
    }
    found
}

async fn check_access(subject: String, from: &From, access: Access) -> Vec<Finding> {
    let from = Arc::new(from.clone());
    let asked = tokio::task::spawn_blocking(move || check_blocking(&subject, &from, access)).await;
    asked.unwrap_or_else(|error| vec![Finding::fail("brokers", error.to_string(), "report this bug")])
}

fn check_blocking(subject: &str, from: &From, access: Access) -> Vec<Finding> {
    let mut config = ClientConfig::new();
    for (name, value) in &from.properties {
        config.set(name, value.reveal());
    }
    config.set("bootstrap.servers", &from.brokers).set("group.id", &from.group);
    let client: BaseConsumer = match config.create() {
        Ok(client) => client,
        Err(error) => return vec![Finding::fail(subject, error.to_string(), "correct `properties`")],
    };
    let mut found = Vec::new();
    // Not every broker knows a topic that was created a moment ago, nor the coordinator of a new group.
    let until = Instant::now() + PROBE_TIMEOUT.min(from.topic_timeout);
    for topic in &from.topics {
        let (error, partitions) = loop {
            let known = match client.fetch_metadata(Some(topic), PROBE_TIMEOUT * 3) {
                Ok(metadata) => metadata,
                Err(error) => {
                    let detail = format!("no response from the brokers {}: {error}", from.brokers);
                    let advice = "start the brokers, or correct `brokers` and the security `properties`";
                    return vec![Finding::fail(subject, detail, advice)];
                }
            };
            let metadata = known.topics().iter().find(|metadata| metadata.name() == topic);
            let error = metadata.and_then(|metadata| metadata.error()).map(Code::from);
            let partitions = metadata.map_or(0, |metadata| metadata.partitions().len());
            let is_settled = partitions > 0 || error == Some(Code::TopicAuthorizationFailed);
            if is_settled || Instant::now() >= until {
                break (error, partitions);
            }
            std::thread::sleep(REPEAT_INTERVAL);
        };
        found.push(match error {
            Some(Code::TopicAuthorizationFailed) => {
                let advice = "grant READ and DESCRIBE on the topic to this user";
                Finding::fail(subject, format!("no permission to read {topic}"), advice)
            }
            None if partitions > 0 => Finding::ok(subject, format!("{topic} has {partitions} partitions")),
            _ => Finding::fail(subject, format!("{topic} does not exist"), "create it, or correct `topics`"),
        });
        if partitions > 0 && access == Access::Group {
            found.push(group(subject, from, &client, topic, until));
        }
        if partitions > 0 {
            found.push(kafka_records::check(subject, &config, topic, partitions));
        }
    }
    found
}

/// Returns whether an error may pass by itself soon after a broker was started or a topic was created.
fn is_unsettled(error: &KafkaError) -> bool {
    error.rdkafka_error_code() != Some(Code::GroupAuthorizationFailed)
}

/// Checks that the user may join the group.
fn group(subject: &str, from: &From, client: &BaseConsumer, topic: &str, until: Instant) -> Finding {
    let group = &from.group;
    let mut asked = TopicPartitionList::new();
    asked.add_partition(topic, 0);
    let committed = loop {
        match client.committed_offsets(asked.clone(), PROBE_TIMEOUT * 3) {
            Err(error) if is_unsettled(&error) && Instant::now() < until => {
                std::thread::sleep(REPEAT_INTERVAL);
            }
            committed => break committed,
        }
    };
    match committed {
        Ok(committed) => {
            let has_position =
                committed.elements().iter().any(|each| matches!(each.offset(), Offset::Offset(_)));
            let detail = if has_position { "has a committed offset" } else { "has no committed offset" };
            Finding::ok(subject, format!("the group {group} {detail} in {topic}"))
        }
        Err(KafkaError::ConsumerCommit(Code::GroupAuthorizationFailed))
        | Err(KafkaError::OffsetFetch(Code::GroupAuthorizationFailed)) => {
            let advice = "grant READ on the group to this user";
            Finding::fail(subject, format!("no permission to join the group {group}"), advice)
        }
        Err(error) => {
            let advice = "check the brokers; if access is denied, grant READ on the group";
            Finding::warn(
                subject,
                format!("failed to read the offsets of the group {group}: {error}"),
                advice,
            )
        }
    }
}
