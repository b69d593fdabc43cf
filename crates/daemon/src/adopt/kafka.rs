//! Dead-letter topics of Spring Kafka, Kafka Connect, Kafka Streams, and others with the same headers.

use std::path::PathBuf;
use std::time::Duration;

pub use lazaret_adopt::kafka::{CauseCount, OriginCount, Preview, Report};
pub use lazaret_config::TopicFormat;
use lazaret_config::{AdoptTopics, Consumer as ConsumerConfig, KafkaSource, Source};
use lazaret_source_kafka::KafkaOptions;

use super::{AdoptionError, consumer_of, readable};
use crate::assemble::{Selection, Stores, adoption};

/// An adoption of dead-letter topics. What it leaves open is that of the key `adopt` of the consumer, else of its Kafka source.
#[derive(Clone, Debug)]
pub struct DeadLetterTopics {
    /// The configuration file.
    pub config: PathBuf,
    /// The consumer that gets the letters.
    pub consumer: String,
    /// The framework that writes the topics.
    pub format: TopicFormat,
    /// The topics; none are those of the configuration.
    pub topics: Vec<String>,
    /// The brokers.
    pub brokers: Option<String>,
    /// Adopts only dead letters of this group, and those without one.
    pub group: Option<String>,
    /// Adopts records without known failure headers as well.
    pub adopt_unknown: bool,
    /// Puts the letters into sequences of their own.
    pub separate_sequences: bool,
    /// Reads the topics from their beginning. Letters that were adopted are found again.
    pub from_beginning: bool,
    /// Only tells what would be done.
    pub dry_run: bool,
}

/// What was adopted from one topic, or would be.
#[derive(Debug)]
pub struct Adopted {
    /// The dead-letter topic.
    pub topic: String,
    /// The letters.
    pub letters: Letters,
}

/// The dead letters of a topic.
#[derive(Debug)]
pub enum Letters {
    /// They were adopted.
    Done(Box<Report>),
    /// They would be adopted.
    Preview(Preview),
}

/// Adopts dead-letter topics, one after the other, each up to its current end. `progress` is called after every batch that is durable.
///
/// # Errors
/// When something does not fit, or the brokers or the store fail.
pub async fn dead_letter_topics(
    request: &DeadLetterTopics,
    progress: impl Fn(&Report) + Clone + Send + Sync + 'static,
) -> Result<Vec<Adopted>, AdoptionError> {
    let config = readable(&request.config)?;
    let consumer = consumer_of(&config, &request.consumer, &request.config)?;
    let configured = consumer.adopt.iter().find(|adopt| adopt.format == request.format);
    let topics = topics(request, configured)?;
    let options = options(request, consumer, configured)?;
    let selection = Selection {
        group: request.group.as_deref().or(configured.and_then(|adopt| adopt.group.as_deref())),
        adopts_unknown: request.adopt_unknown || configured.is_some_and(|adopt| adopt.adopts_unknown),
        separate_sequences: request.separate_sequences
            || configured.is_some_and(|adopt| adopt.separate_sequences),
    };
    let stores = Stores::open(&config.store, config.encryption.as_ref()).await?;
    stores.keep_free(config.consumers.iter());
    let mut adopted = Vec::new();
    let mut failed = None;
    for topic in topics {
        let adoption = adoption(consumer, &options, &topic, selection).on_progress(progress.clone());
        let adoption = if request.from_beginning { adoption.from_the_beginning() } else { adoption };
        let letters = match request.dry_run {
            true => adoption.preview(&*stores.adoption).await.map(Letters::Preview),
            false => adoption.run(&*stores.adoption).await.map(|report| Letters::Done(Box::new(report))),
        };
        match letters {
            Ok(letters) => adopted.push(Adopted { topic, letters }),
            Err(error) => {
                failed = Some(AdoptionError::Topic { topic, error });
                break;
            }
        }
    }
    stores.close().await;
    failed.map_or(Ok(adopted), Err)
}

fn topics(
    request: &DeadLetterTopics,
    configured: Option<&AdoptTopics>,
) -> Result<Vec<String>, AdoptionError> {
    if !request.topics.is_empty() {
        return Ok(request.topics.clone());
    }
    let configured = configured.map(|adopt| adopt.kafka.topics.clone());
    configured.ok_or_else(|| {
        let key = format!("adopt.{}", request.format.as_str());
        AdoptionError::Invalid(format!("no topic: pass --topic, or configure `{key}` of the consumer"))
    })
}

fn options(
    request: &DeadLetterTopics,
    consumer: &ConsumerConfig,
    configured: Option<&AdoptTopics>,
) -> Result<KafkaOptions, AdoptionError> {
    let source = match &consumer.source {
        Source::Kafka(kafka) => Some(kafka),
        _ => None,
    };
    let known = configured.map(|adopt| &adopt.kafka).or(source);
    let options = match (known, &request.brokers) {
        (Some(known), Some(brokers)) if *brokers != known.brokers => {
            // The credentials belong to the other cluster.
            let (brokers, properties) = (brokers.clone(), Vec::new());
            KafkaOptions::from_config(&KafkaSource { brokers, properties, ..known.clone() })
        }
        (Some(known), _) => KafkaOptions::from_config(known),
        (None, Some(brokers)) => KafkaOptions::new(brokers, &consumer.name, &request.topics),
        (None, None) => {
            let why = format!("the source of the consumer {} is not Kafka: pass --brokers", consumer.name);
            return Err(AdoptionError::Invalid(why));
        }
    };
    Ok(options.with_topic_timeout(Duration::ZERO))
}
