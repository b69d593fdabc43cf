//! Builds the Kafka source, the retry topics, and the mirror of dead letters.

use std::sync::Arc;
use std::time::Duration;

use lazaret_adopt::mirror::Mirror;
use lazaret_config::{Consumer as ConsumerConfig, KafkaSource as From, PropertyError};
use lazaret_core::QueueName;
use lazaret_core::policy::Strategy;
use lazaret_core::relay::Relay;
use lazaret_core::source::SourceError;
use lazaret_server::Registry;
use lazaret_source_kafka::{KafkaOptions, KafkaRelay, KafkaSource, RetryTopics};
use rdkafka::ClientConfig;
use rdkafka::error::KafkaError;
use rdkafka::types::RDKafkaConfRes;
use tokio_util::sync::CancellationToken;

use super::store::Stores;

/// The interval of checking whether the mirror has caught up.
const MIRROR_POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Opens the source. With the strategy `topics`, also the relay to the retry topics.
pub(super) async fn open(
    config: &ConsumerConfig,
    from: &From,
    (stores, registry): (&Stores, &Registry),
    until_idle: bool,
) -> Result<(KafkaSource, Option<Arc<dyn Relay>>), SourceError> {
    let (registry, name) = (registry.clone(), config.name.clone());
    let options = options(from, until_idle)
        .with_store(stores.id.clone())
        .with_topic_notice(move |reason| registry.waiting(&name, reason));
    if config.retry.policy.strategy != Strategy::Topics {
        return Ok((KafkaSource::open(options)?, None));
    }
    let relay = KafkaRelay::open(&options, retry_topics(config, from)).await?;
    for remark in relay.remarks() {
        tracing::warn!(consumer = config.name, remark, "retry topics checked");
    }
    let source = KafkaSource::open_with(options, &relay)?;
    Ok((source, Some(Arc::new(relay))))
}

/// Checks a property with the client, without a broker. The message of the client may contain the value, and is dropped.
pub(crate) fn check_property(name: &str, value: &str) -> Result<(), PropertyError> {
    let asked = ClientConfig::new().set(name, value).create_native_config();
    match asked {
        Ok(_) => Ok(()),
        Err(KafkaError::ClientConfig(RDKafkaConfRes::RD_KAFKA_CONF_UNKNOWN, ..)) => {
            Err(PropertyError::Unknown)
        }
        Err(_) => Err(PropertyError::Value),
    }
}

/// Returns the options of the source.
fn options(from: &From, until_idle: bool) -> KafkaOptions {
    let options = KafkaOptions::from_config(from);
    if until_idle { options.reading_to_end() } else { options }
}

fn retry_topics(config: &ConsumerConfig, from: &From) -> RetryTopics {
    let keys = &config.retry.topics;
    let mut topics = RetryTopics::new(&config.name, keys.delays.iter().copied());
    if keys.create {
        topics = topics.creating_topics();
    }
    if keys.spring_headers {
        topics = topics.with_spring_headers();
    }
    if keys.transactional {
        topics = topics.in_transactions(transactional_id(&from.group, &config.name));
    }
    topics
}

/// Returns a transactional id that is stable on this machine and differs between machines.
fn transactional_id(group: &str, consumer: &str) -> String {
    let machine = rustix::system::uname().nodename().to_string_lossy().into_owned();
    format!("lazaret-{group}-{consumer}-{machine}")
}

/// Copies dead letters to a topic until `stop`, if configured.
pub(super) async fn mirror(
    config: &ConsumerConfig,
    stores: &Stores,
    stop: CancellationToken,
) -> Result<(), SourceError> {
    let (lazaret_config::Source::Kafka(from), Some(letters)) = (&config.source, &config.dead_letter) else {
        stop.cancelled().await;
        return Ok(());
    };
    let Some(topic) = &letters.topic else {
        stop.cancelled().await;
        return Ok(());
    };
    let Some(outbox) = &stores.outbox else {
        return Err(SourceError::permanent(
            "the store has no outbox, so dead letters cannot be copied to a topic",
        ));
    };
    let mirror = Mirror::of(&options(from, false), queue(config), topic);
    let mirror = if config.retry.topics.spring_headers { mirror.with_spring_headers() } else { mirror };
    mirror.run(&**outbox, stop.cancelled()).await
}

/// Waits until every dead letter is copied to the topic, if configured. Does not return while the brokers are unavailable.
pub(super) async fn mirrored(config: &ConsumerConfig, stores: &Stores) {
    if config.dead_letter.as_ref().is_none_or(|letters| letters.topic.is_none()) {
        return;
    }
    let Some(outbox) = &stores.outbox else { return };
    while !outbox.ends(&queue(config), 0, 1).await.is_ok_and(|page| page.ends.is_empty()) {
        tokio::time::sleep(MIRROR_POLL_INTERVAL).await;
    }
}

fn queue(config: &ConsumerConfig) -> QueueName {
    QueueName::of(&config.name, &config.name)
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
            ("max.poll.records", "500", Err(PropertyError::Unknown)),
            ("fetch.min.bytes", "many", Err(PropertyError::Value)),
            ("security.protocol", "pigeon", Err(PropertyError::Value)),
        ];
        for (name, value, expected) in table {
            assert_eq!(check_property(name, value), expected, "{name}: {value}");
        }
    }
}
