//! Whether the brokers can be reached, the topics exist, and this user may read them as this group.

use std::sync::Arc;

use lazaret_config::KafkaSource as From;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};
use rdkafka::{ClientConfig, Offset, TopicPartitionList};

use super::{Finding, PATIENCE};

/// Asks the brokers. The group is not joined: its committed positions are asked for, which takes the same right.
pub(super) async fn examine(subject: String, from: &From) -> Vec<Finding> {
    let from = Arc::new(from.clone());
    let asked = tokio::task::spawn_blocking(move || look(&subject, &from)).await;
    asked.unwrap_or_else(|lost| vec![Finding::fail("brokers", lost.to_string(), "report this: it is a bug")])
}

fn look(subject: &str, from: &From) -> Vec<Finding> {
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
        let metadata = client.fetch_metadata(Some(topic), PATIENCE * 3);
        let known = match metadata {
            Ok(metadata) => metadata,
            Err(error) => {
                let seen = format!("no broker of {} answers: {error}", from.brokers);
                let advice = "start the brokers, or correct `brokers` and the security `properties`";
                return vec![Finding::fail(subject, seen, advice)];
            }
        };
        let facts = known.topics().iter().find(|facts| facts.name() == topic);
        let error = facts.and_then(|facts| facts.error()).map(Code::from);
        let partitions = facts.map_or(0, |facts| facts.partitions().len());
        found.push(match error {
            Some(Code::TopicAuthorizationFailed) => {
                let advice = "grant READ and DESCRIBE on the topic to this user";
                Finding::fail(subject, format!("{topic} may not be read"), advice)
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

/// Whether this user may be a member of the group.
fn group(subject: &str, from: &From, client: &BaseConsumer, topic: &str) -> Finding {
    let group = &from.group;
    let mut asked = TopicPartitionList::new();
    asked.add_partition(topic, 0);
    match client.committed_offsets(asked, PATIENCE * 3) {
        Ok(committed) => {
            let has_position =
                committed.elements().iter().any(|each| matches!(each.offset(), Offset::Offset(_)));
            let seen = if has_position { "has a position" } else { "has no position yet" };
            Finding::ok(subject, format!("the group {group} {seen} in {topic}"))
        }
        Err(KafkaError::ConsumerCommit(Code::GroupAuthorizationFailed))
        | Err(KafkaError::OffsetFetch(Code::GroupAuthorizationFailed)) => {
            let advice = "grant READ on the group to this user";
            Finding::fail(subject, format!("the group {group} may not be joined"), advice)
        }
        Err(error) => {
            let advice = "see whether the brokers are healthy; if the group is denied, grant READ on it";
            Finding::warn(subject, format!("the group {group} cannot be asked: {error}"), advice)
        }
    }
}
