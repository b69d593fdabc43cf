//! Checks that the brokers are reachable, the topics exist, and the user may read them with the group.

use std::sync::Arc;

use lazaret_config::KafkaSource as From;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};
use rdkafka::{ClientConfig, Offset, TopicPartitionList};

use super::finding::{Finding, PROBE_TIMEOUT};

/// Checks brokers, topics and group. The group is not joined: reading its committed offsets requires the same permission.
pub(super) async fn check(subject: String, from: &From) -> Vec<Finding> {
    let from = Arc::new(from.clone());
    let asked = tokio::task::spawn_blocking(move || check_blocking(&subject, &from)).await;
    asked.unwrap_or_else(|error| vec![Finding::fail("brokers", error.to_string(), "report this bug")])
}

fn check_blocking(subject: &str, from: &From) -> Vec<Finding> {
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
    for topic in &from.topics {
        let metadata = client.fetch_metadata(Some(topic), PROBE_TIMEOUT * 3);
        let known = match metadata {
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
        found.push(match error {
            Some(Code::TopicAuthorizationFailed) => {
                let advice = "grant READ and DESCRIBE on the topic to this user";
                Finding::fail(subject, format!("no permission to read {topic}"), advice)
            }
            None if partitions > 0 => Finding::ok(subject, format!("{topic} has {partitions} partitions")),
            _ => Finding::fail(subject, format!("{topic} does not exist"), "create it, or correct `topics`"),
        });
        if partitions > 0 {
            found.push(group(subject, from, &client, topic));
        }
    }
    found
}

/// Checks that the user may join the group.
fn group(subject: &str, from: &From, client: &BaseConsumer, topic: &str) -> Finding {
    let group = &from.group;
    let mut asked = TopicPartitionList::new();
    asked.add_partition(topic, 0);
    match client.committed_offsets(asked, PROBE_TIMEOUT * 3) {
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
