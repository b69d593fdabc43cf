//! What is looked at before anything is written: are the topics there, can they hold what they get, may we write to them?

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use lazaret_core::source::SourceError;
use rdkafka::ClientConfig;
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, ResourceSpecifier, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};
use rdkafka::producer::{FutureProducer, FutureRecord};

use super::ANY_SIZE;
use crate::chain::{Chain, RetryTopics};

/// How long to wait for an answer.
const PATIENCE: Duration = Duration::from_secs(15);
/// How long to wait before new topics are looked for again.
const PAUSE: Duration = Duration::from_millis(100);
/// Records of topics that take larger ones than this are not sent in vain.
const LARGEST_PROBE: usize = 16 << 20;
/// How long created retry topics keep records at least.
const RETENTION: Duration = Duration::from_secs(7 * 24 * 3600);

/// What was found.
pub(super) struct Found {
    pub(super) partitions: HashMap<String, i32>,
    pub(super) remarks: Vec<String>,
}

/// One topic that we write to.
struct Wanted<'a> {
    name: &'a str,
    /// The topic that is consumed, from which its messages come.
    stream: &'a str,
    /// How long records wait in it; none in a dead-letter topic.
    delay: Option<Duration>,
}

fn wanted(chain: &Chain) -> Vec<Wanted<'_>> {
    let mut wanted = Vec::new();
    for links in &chain.links {
        let stream = links.stream.as_str();
        for tier in &links.tiers {
            wanted.push(Wanted { name: &tier.topic, stream, delay: Some(tier.delay) });
        }
        wanted.push(Wanted { name: &links.dead, stream, delay: None });
    }
    wanted
}

/// Looks at all topics of the chain.
pub(super) async fn look(
    config: &ClientConfig,
    chain: &Chain,
    topics: &RetryTopics,
) -> Result<Found, SourceError> {
    let wanted = wanted(chain);
    let client = asker(config)?;
    let mut partitions = HashMap::new();
    for links in &chain.links {
        let count =
            count(&client, &links.stream).await.map_err(|error| match error.rdkafka_error_code() {
                Some(code) if is_missing(code) => {
                    SourceError::permanent(format!("the topic {} does not exist; create it", links.stream))
                }
                _ => unanswered(error, &links.stream),
            })?;
        partitions.insert(links.stream.clone(), count);
    }
    let mut missing = Vec::new();
    for topic in &wanted {
        match count(&client, topic.name).await {
            Ok(count) => _ = partitions.insert(topic.name.to_owned(), count),
            Err(error) => match error.rdkafka_error_code() {
                Some(code) if is_missing(code) => missing.push(topic),
                _ => return Err(unanswered(error, topic.name)),
            },
        }
    }
    if !missing.is_empty() {
        create(config, &client, &missing, &mut partitions, topics).await?;
    }
    if topics.check {
        check(config, &wanted).await?;
    }
    let remarks = fewer(&wanted, &partitions);
    remarks.iter().for_each(|remark| tracing::warn!("{remark}"));
    Ok(Found { partitions, remarks })
}

/// Retry topics that have fewer partitions than their stream: a key still has one partition, but fewer members share the work.
fn fewer(wanted: &[Wanted<'_>], partitions: &HashMap<String, i32>) -> Vec<String> {
    let mut remarks = Vec::new();
    for Wanted { name, stream, .. } in wanted {
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

/// A client that asks. A consumer's question makes no topic; a producer's might.
pub(crate) fn asker(config: &ClientConfig) -> Result<Arc<BaseConsumer>, SourceError> {
    config.create().map(Arc::new).map_err(crate::membership::refused)
}

/// How many partitions a topic has.
pub(crate) async fn count(client: &Arc<BaseConsumer>, topic: &str) -> Result<i32, KafkaError> {
    let (client, topic) = (client.clone(), topic.to_owned());
    let ask = move || {
        let metadata = client.fetch_metadata(Some(&topic), PATIENCE)?;
        let Some(found) = metadata.topics().iter().find(|found| found.name() == topic) else {
            return Err(KafkaError::MetadataFetch(Code::UnknownTopicOrPartition));
        };
        match found.error() {
            Some(error) => Err(KafkaError::MetadataFetch(error.into())),
            None => Ok(found.partitions().len() as i32),
        }
    };
    tokio::task::spawn_blocking(ask).await.unwrap_or(Err(KafkaError::Canceled))
}

fn is_missing(code: Code) -> bool {
    matches!(code, Code::UnknownTopicOrPartition | Code::UnknownTopic | Code::LeaderNotAvailable)
}

fn unanswered(error: KafkaError, topic: &str) -> SourceError {
    let text = match error.rdkafka_error_code() {
        Some(Code::TopicAuthorizationFailed) => {
            format!("looking at {topic} is denied; grant DESCRIBE and WRITE on it to this user")
        }
        _ => {
            let context = format!("the brokers do not tell about {topic}: {error}");
            return SourceError::temporary(context).with_source(error);
        }
    };
    SourceError::permanent(text).with_source(error)
}

fn admin(config: &ClientConfig) -> Result<AdminClient<DefaultClientContext>, SourceError> {
    config.create().map_err(crate::membership::refused)
}

fn patience() -> AdminOptions {
    AdminOptions::new().operation_timeout(Some(PATIENCE)).request_timeout(Some(PATIENCE))
}

async fn create(
    config: &ClientConfig,
    client: &Arc<BaseConsumer>,
    missing: &[&Wanted<'_>],
    partitions: &mut HashMap<String, i32>,
    topics: &RetryTopics,
) -> Result<(), SourceError> {
    let names: Vec<&str> = missing.iter().map(|topic| topic.name).collect();
    if !topics.create {
        let counts: Vec<String> = missing
            .iter()
            .map(|topic| {
                format!("{} ({} partitions)", topic.name, partitions.get(topic.stream).unwrap_or(&1))
            })
            .collect();
        return Err(SourceError::permanent(format!(
            "these topics do not exist: {}; create them with cleanup.policy=delete, or allow to create topics",
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
        NewTopic::new(topic.name, count, TopicReplication::Fixed(topics.replication))
            .set("cleanup.policy", "delete")
            .set("retention.ms", retention)
    });
    let new: Vec<NewTopic<'_>> = new.collect();
    let refused = |why: String| {
        let advice = "create them, or grant CREATE on them to this user";
        SourceError::permanent(format!("{} could not be created: {why}; {advice}", names.join(", ")))
    };
    let made =
        admin(config)?.create_topics(&new, &patience()).await.map_err(|error| refused(error.to_string()))?;
    for result in made {
        match result {
            // Another member was quicker.
            Ok(_) | Err((_, Code::TopicAlreadyExists)) => {}
            Err((topic, code)) => return Err(refused(format!("{topic}: {code}"))),
        }
    }
    // The brokers tell each other about it in their own time.
    let until = tokio::time::Instant::now() + PATIENCE;
    for name in names {
        loop {
            match count(client, name).await {
                Ok(count) if count > 0 => {
                    partitions.insert(name.to_owned(), count);
                    break;
                }
                _ if tokio::time::Instant::now() >= until => {
                    return Err(SourceError::temporary(format!("{name} was created and is not there yet")));
                }
                _ => tokio::time::sleep(PAUSE).await,
            }
        }
    }
    Ok(())
}

/// Whether the topics can hold what they get, and whether we may write to them.
async fn check(config: &ClientConfig, wanted: &[Wanted<'_>]) -> Result<(), SourceError> {
    let specifiers: Vec<_> = wanted.iter().map(|topic| ResourceSpecifier::Topic(topic.name)).collect();
    let described = admin(config)?.describe_configs(&specifiers, &patience()).await;
    let described = described.map_err(|error| {
        SourceError::temporary(format!("the brokers do not tell the settings of topics: {error}"))
            .with_source(error)
    })?;
    let mut probes = Vec::new();
    for (topic, settings) in wanted.iter().zip(described) {
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
    topic: &Wanted<'_>,
    cleanup: Option<&str>,
    retention: Option<&str>,
) -> Result<(), SourceError> {
    let Wanted { name, delay, .. } = topic;
    if cleanup.is_some_and(|policy| policy.contains("compact")) {
        return Err(SourceError::permanent(format!(
            "{name} is compacted and would forget all but one message of a key; set cleanup.policy=delete"
        )));
    }
    let retention = retention.and_then(|text| text.parse::<u64>().ok()).map(Duration::from_millis);
    if let (Some(delay), Some(retention)) = (delay, retention)
        && retention < *delay * 2
    {
        return Err(SourceError::permanent(format!(
            "{name} keeps records for {}s and holds them back for {}s; set retention.ms to at least twice that",
            retention.as_secs_f64(),
            delay.as_secs_f64()
        )));
    }
    Ok(())
}

/// Asks whether we may write, without writing: a record that is too large is refused for its size only by a broker that would
/// take a smaller one.
async fn probe(config: &ClientConfig, topics: Vec<(&str, usize)>) -> Result<(), SourceError> {
    let mut config = config.clone();
    config
        .set("message.max.bytes", ANY_SIZE)
        .set("message.timeout.ms", PATIENCE.as_millis().to_string())
        .set("compression.type", "none")
        .set("acks", "all");
    let producer: FutureProducer = config.create().map_err(crate::membership::refused)?;
    for (topic, largest) in topics.into_iter().filter(|(_, largest)| *largest <= LARGEST_PROBE) {
        let payload = vec![0; largest + 1024];
        let record: FutureRecord<'_, [u8], [u8]> = FutureRecord::to(topic).partition(0).payload(&payload);
        let Err((error, _)) = producer.send(record, PATIENCE).await else {
            tracing::warn!(topic, "a record to see whether one may write was taken although it is too large");
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
                let context = format!("nobody can say whether {topic} may be written to: {error}");
                return Err(SourceError::temporary(context).with_source(error));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn topic(delay: Option<u64>) -> Wanted<'static> {
        Wanted { name: "orders.mail.dlt", stream: "orders", delay: delay.map(Duration::from_secs) }
    }

    #[test]
    fn a_topic_that_would_forget_is_refused() {
        // I1
        let said = |topic: Wanted<'_>, cleanup, retention| {
            check_settings(&topic, Some(cleanup), Some(retention)).map_err(|error| error.to_string())
        };
        assert!(said(topic(None), "compact", "-1").unwrap_err().contains("orders.mail.dlt is compacted"));
        assert!(said(topic(Some(60)), "compact,delete", "-1").is_err());
        assert!(said(topic(Some(60)), "delete", "100000").unwrap_err().contains("retention.ms"));
        assert_eq!(said(topic(Some(60)), "delete", "120000"), Ok(()));
        assert_eq!(said(topic(Some(60)), "delete", "-1"), Ok(()));
        assert_eq!(said(topic(None), "delete", "1000"), Ok(()));
    }

    #[test]
    fn fewer_partitions_are_reported() {
        let counts = [("orders".to_owned(), 6), ("orders.mail.dlt".to_owned(), 2)].into();
        let remarks = fewer(&[topic(None)], &counts);
        assert!(remarks[0].contains("orders.mail.dlt has 2 partitions and orders has 6"), "{remarks:?}");
        assert_eq!(
            fewer(&[topic(None)], &[("orders".to_owned(), 2), ("orders.mail.dlt".to_owned(), 2)].into()),
            [""; 0]
        );
    }
}
