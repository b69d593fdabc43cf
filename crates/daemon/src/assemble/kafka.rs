//! Kafka: topics as a source, retry topics, and the copy of dead letters in a topic.

use std::sync::Arc;
use std::time::Duration;

use lazaret_adopt::mirror::Mirror;
use lazaret_config::{Consumer as Wanted, KafkaSource as From, PropertyFault};
use lazaret_core::QueueName;
use lazaret_core::policy::Strategy;
use lazaret_core::relay::Relay;
use lazaret_core::source::SourceError;
use lazaret_source_kafka::{KafkaOptions, KafkaRelay, KafkaSource, RetryTopics};
use rdkafka::ClientConfig;
use rdkafka::error::KafkaError;
use rdkafka::types::RDKafkaConfRes;
use tokio_util::sync::CancellationToken;

use super::Stores;

/// How often to look whether the mirror has caught up.
const LOOK: Duration = Duration::from_millis(50);

/// Becomes a member of the group. With the strategy `topics` the relay that holds what failed comes along.
pub(super) async fn open(
    wanted: &Wanted,
    from: &From,
    until_idle: bool,
) -> Result<(KafkaSource, Option<Arc<dyn Relay>>), SourceError> {
    let options = options(from, until_idle);
    if wanted.retry.policy.strategy != Strategy::Topics {
        return Ok((KafkaSource::open(options)?, None));
    }
    let relay = KafkaRelay::open(&options, retry_topics(wanted, from)).await?;
    for remark in relay.remarks() {
        tracing::warn!(consumer = wanted.name, remark, "about the retry topics");
    }
    let source = KafkaSource::open_with(options, &relay)?;
    Ok((source, Some(Arc::new(relay))))
}

/// Asks the client about a property, without a broker. What it says about a value may hold the value, and is not passed on.
pub(crate) fn check_property(name: &str, value: &str) -> Result<(), PropertyFault> {
    let asked = ClientConfig::new().set(name, value).create_native_config();
    match asked {
        Ok(_) => Ok(()),
        Err(KafkaError::ClientConfig(RDKafkaConfRes::RD_KAFKA_CONF_UNKNOWN, ..)) => {
            Err(PropertyFault::Unknown)
        }
        Err(_) => Err(PropertyFault::Value),
    }
}

/// What the configuration says, in the words of the source.
fn options(from: &From, until_idle: bool) -> KafkaOptions {
    let options = KafkaOptions::new(&from.brokers, &from.group, &from.topics)
        .with_id_headers(&from.id_headers)
        .with_type_headers(&from.type_headers)
        .with_correlation_headers(&from.correlation_headers);
    let options = from
        .properties
        .iter()
        .fold(options, |options, (name, value)| options.with_property(name, value.reveal()));
    if until_idle { options.reading_to_end() } else { options }
}

fn retry_topics(wanted: &Wanted, from: &From) -> RetryTopics {
    let keys = &wanted.retry.topics;
    let mut topics = RetryTopics::new(&wanted.name, keys.delays.iter().copied());
    if keys.create {
        topics = topics.creating_topics();
    }
    if keys.spring_headers {
        topics = topics.with_spring_headers();
    }
    if keys.transactional {
        topics = topics.in_transactions(transactional_id(&from.group, &wanted.name));
    }
    topics
}

/// The same after each restart on this machine, and another one on every other machine.
fn transactional_id(group: &str, consumer: &str) -> String {
    let machine = rustix::system::uname().nodename().to_string_lossy().into_owned();
    format!("lazaret-{group}-{consumer}-{machine}")
}

/// Copies dead letters to a topic until `stop`, if the configuration asks for it.
pub(super) async fn mirror(
    wanted: &Wanted,
    stores: &Stores,
    stop: CancellationToken,
) -> Result<(), SourceError> {
    let (lazaret_config::Source::Kafka(from), Some(letters)) = (&wanted.source, &wanted.dead_letter) else {
        stop.cancelled().await;
        return Ok(());
    };
    let Some(topic) = &letters.topic else {
        stop.cancelled().await;
        return Ok(());
    };
    let mirror = Mirror::of(&options(from, false), queue(wanted), topic);
    let mirror = if wanted.retry.topics.spring_headers { mirror.with_spring_headers() } else { mirror };
    mirror.run(&*stores.outbox, stop.cancelled()).await
}

/// Waits until every dead letter is in the topic, if the configuration asks for that. Has no end by itself while the brokers
/// are away.
pub(super) async fn mirrored(wanted: &Wanted, stores: &Stores) {
    if wanted.dead_letter.as_ref().is_none_or(|letters| letters.topic.is_none()) {
        return;
    }
    while !stores.outbox.ends(&queue(wanted), 0, 1).await.is_ok_and(|page| page.ends.is_empty()) {
        tokio::time::sleep(LOOK).await;
    }
}

fn queue(wanted: &Wanted) -> QueueName {
    QueueName::of(&wanted.name, &wanted.name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_client_knows_its_properties_without_a_broker() {
        let table = [
            ("auto.offset.reset", "latest", Ok(())),
            ("fetch.min.bytes", "1", Ok(())),
            ("sasl.password", "anything", Ok(())),
            ("max.poll.records", "500", Err(PropertyFault::Unknown)),
            ("fetch.min.bytes", "many", Err(PropertyFault::Value)),
            ("security.protocol", "pigeon", Err(PropertyFault::Value)),
        ];
        for (name, value, expected) in table {
            assert_eq!(check_property(name, value), expected, "{name}: {value}");
        }
    }
}
