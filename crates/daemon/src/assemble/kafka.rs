//! Builds the Kafka source, the retry topics, and the mirror of dead letters.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use lazaret_adopt::mirror::Mirror;
use lazaret_api::BrokerCounts;
use lazaret_config::{Consumer as ConsumerConfig, KafkaSource as From, PropertyError};
use lazaret_core::policy::Strategy;
use lazaret_core::relay::Relay;
use lazaret_core::source::SourceError;
use lazaret_core::{QueueName, Timestamp};
use lazaret_source_kafka::{KafkaOptions, KafkaRelay, KafkaSource, KafkaState, RelayCounts, RetryTopics};
use rdkafka::ClientConfig;
use rdkafka::error::KafkaError;
use rdkafka::types::RDKafkaConfRes;
use tokio_util::sync::CancellationToken;

use super::consumer::Shared;
use super::store::Stores;

/// The interval of checking whether the mirror has caught up.
const MIRROR_POLL_INTERVAL: Duration = Duration::from_millis(50);
/// The interval of counting what retry topics and dead-letter topics hold.
const COUNT_INTERVAL: Duration = Duration::from_secs(10);

/// Opens the source. With the strategy `topics`, also the relay to the retry topics.
pub(super) async fn open(
    config: &ConsumerConfig,
    from: &From,
    shared: &Shared,
) -> Result<(KafkaSource, Option<Arc<dyn Relay>>), SourceError> {
    let Shared { stores, registry, telemetry, until_idle, .. } = shared;
    let notify = {
        let (registry, name) = (registry.clone(), config.name.clone());
        move |reason: &str| registry.waiting(&name, reason)
    };
    let options = options(from, *until_idle).with_store(stores.id.clone()).with_topic_notice(notify);
    let options = match own_member(config, from, stores).filter(|_| !*until_idle) {
        Some(id) => options.with_member(id),
        None => options,
    };
    let (group, session_timeout) = (options.group().to_owned(), options.session_timeout());
    let (source, relay) = match config.retry.policy.strategy {
        Strategy::Topics => {
            let relay = KafkaRelay::open(&options, retry_topics(config, from, stores)).await?;
            for remark in relay.remarks() {
                tracing::warn!(consumer = config.name, remark, "retry topics checked");
            }
            let source = KafkaSource::open_with(options, &relay)?;
            let counts = relay.watch_counts(COUNT_INTERVAL);
            registry.in_broker(&config.name, {
                let counts = counts.clone();
                move || counts.borrow().map(in_broker)
            });
            telemetry.metrics.oldest_in_topics(&config.name, {
                let counts = counts.clone();
                move || counts.borrow().and_then(|counts| oldest_age(counts, Timestamp::now()))
            });
            telemetry.metrics.topics(&config.name, move || {
                counts.borrow().map(|RelayCounts { retrying, dead, .. }| (retrying, dead))
            });
            (source, Some(Arc::new(relay) as Arc<dyn Relay>))
        }
        _ => (KafkaSource::open(options)?, None),
    };
    let state = source.state();
    registry.source_notice(&config.name, {
        let state = state.clone();
        move || notice(&state.borrow(), &group, session_timeout)
    });
    registry.source_readiness(&config.name, move || is_ready(&state.borrow()));
    Ok((source, relay))
}

fn in_broker(counts: RelayCounts) -> BrokerCounts {
    let RelayCounts { retrying, dead, oldest_dead } = counts;
    BrokerCounts { retrying, dead, oldest_dead_at: oldest_dead }
}

/// The age of the oldest record in dead-letter topics: zero without records, `None` where they cannot be read.
fn oldest_age(counts: RelayCounts, now: Timestamp) -> Option<Duration> {
    match counts.oldest_dead {
        // A time from another machine may be ahead.
        Some(oldest) => Some(Duration::try_from(now.duration_since(oldest)).unwrap_or_default()),
        None => (counts.dead == 0).then_some(Duration::ZERO),
    }
}

/// Says why a source reads nothing, or not all of its partitions.
fn notice(state: &KafkaState, group: &str, session_timeout: Duration) -> Option<String> {
    match state {
        KafkaState::Joining => Some(format!(
            "waiting for partitions: it joins the group {group}, where a former member's session may last up to \
             {session_timeout:?}"
        )),
        KafkaState::Error(why) => Some(why.clone()),
        _ => None,
    }
}

/// Returns whether a source has its partitions and can read them. One that is closed says nothing about its consumer.
fn is_ready(state: &KafkaState) -> bool {
    !matches!(state, KafkaState::Joining | KafkaState::Error(_))
}

/// Returns the id of the static member for the first process that opens an embedded store: after a crash, nobody else is waited
/// for. No other process may use it, and the machines of other stores are not known.
fn own_member(config: &ConsumerConfig, from: &From, stores: &Stores) -> Option<String> {
    let file = stores.file().filter(|_| from.member.is_none())?;
    let mut lock = file.as_os_str().to_owned();
    lock.push(format!("-member-{}", config.name));
    let is_own = stores.own_ids.claim(&PathBuf::from(lock));
    is_own.then(|| format!("lazaret-{}-{}", stores.id, config.name))
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

fn retry_topics(config: &ConsumerConfig, from: &From, stores: &Stores) -> RetryTopics {
    let keys = &config.retry.topics;
    let mut topics = RetryTopics::for_policy(&config.name, &config.retry.policy);
    if let Some(name) = config.dead_letter.as_ref().and_then(|letters| letters.topic.as_ref()) {
        topics = topics.with_dead_letter_topic(name);
    }
    if keys.create {
        topics = topics.creating_topics();
    }
    if keys.spring_headers {
        topics = topics.with_spring_headers();
    }
    if keys.transactional {
        topics = topics.in_transactions(transactional_id(&from.group, &config.name, stores));
    }
    topics
}

/// Returns a transactional id that differs between machines and between the processes of one machine, and is the same after a
/// restart, so that the transaction of a crashed process is aborted at once.
fn transactional_id(group: &str, consumer: &str, stores: &Stores) -> String {
    let machine = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let name = format!("lazaret-{group}-{consumer}-{machine}");
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-');
    let lock = format!("{name}-transactions").replace(|c| !is_plain(c), "_");
    let folder = stores.file().and_then(|file| file.parent()).map_or_else(std::env::temp_dir, PathBuf::from);
    match stores.own_ids.claim_slot(&folder.join(lock)) {
        Some(0) => name,
        Some(slot) => format!("{name}-{slot}"),
        None => format!("{name}-process-{}", std::process::id()),
    }
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
    let Some(topic) = letters.topic.as_ref().filter(|_| is_mirrored(config)) else {
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
    if !is_mirrored(config) {
        return;
    }
    let Some(outbox) = &stores.outbox else { return };
    while !outbox.ends(&queue(config), 0, 1).await.is_ok_and(|page| page.ends.is_empty()) {
        tokio::time::sleep(MIRROR_POLL_INTERVAL).await;
    }
}

/// Returns whether dead letters of the store are copied to a topic. With the strategy `topics` the relay writes to it, claim
/// checks of stored letters included.
fn is_mirrored(config: &ConsumerConfig) -> bool {
    let has_topic = config.dead_letter.as_ref().is_some_and(|letters| letters.topic.is_some());
    has_topic && config.retry.policy.strategy != Strategy::Topics
}

fn queue(config: &ConsumerConfig) -> QueueName {
    QueueName::of(&config.name, &config.name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_record_of_dead_letter_topics_has_an_age_if_it_is_known() {
        let age = |dead, oldest_dead| {
            oldest_age(RelayCounts { retrying: 1, dead, oldest_dead }, Timestamp::UNIX_EPOCH)
        };
        let at = |second| Some(Timestamp::from_second(second).unwrap());
        assert_eq!(age(2, at(-90)), Some(Duration::from_secs(90)));
        assert_eq!(age(2, at(90)), Some(Duration::ZERO), "a clock that is ahead");
        assert_eq!((age(0, None), age(2, None)), (Some(Duration::ZERO), None));
    }

    #[test]
    fn a_source_says_what_it_waits_for_and_is_ready_when_it_reads() {
        let notice = |state: &KafkaState| notice(state, "shop", Duration::from_secs(45));
        let said = notice(&KafkaState::Joining).unwrap();
        assert!(said.starts_with("waiting for partitions") && said.contains("up to 45s"), "{said}");
        assert_eq!(notice(&KafkaState::Error("corrupt".to_owned())).as_deref(), Some("corrupt"));
        assert_eq!(notice(&KafkaState::Reading(0)), None);
        let ready = [KafkaState::Reading(0), KafkaState::Closed].map(|state| is_ready(&state));
        assert_eq!(ready, [true, true], "a member without partitions stands by");
        assert!(!is_ready(&KafkaState::Joining) && !is_ready(&KafkaState::Error(String::new())));
    }

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
