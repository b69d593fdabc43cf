//! The configuration of adoptions, which import dead letters of other frameworks.

use super::enums::file_enum;
use super::io::KafkaSource;

/// The headers that a Kafka source reads by default, for consumers without a Kafka source.
pub(super) const TYPE_HEADERS: &[&str] = &["ce_type"];
pub(super) const CORRELATION_HEADERS: &[&str] = &["correlation-id", "ce_correlationid"];

file_enum! {
    /// The framework that writes a dead-letter topic, by the key in the file.
    ///
    /// ```
    /// use lazaret_config::TopicFormat;
    /// assert_eq!(TopicFormat::SpringDlt.as_str(), "spring-dlt");
    /// ```
    TopicFormat {
        /// Spring Kafka: `kafka_dlt-*`.
        SpringDlt = "spring-dlt",
        /// Kafka Connect: `__connect.errors.*`.
        Connect = "connect",
        /// Kafka Streams: `__streams.errors.*`.
        Streams = "streams",
        /// Spring Cloud Stream: `x-original-*`.
        XOriginal = "x-original",
    }
}

/// Dead-letter topics of another framework, whose records become letters of a consumer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdoptTopics {
    /// The framework that writes the topics.
    pub format: TopicFormat,
    /// The settings for reading them: the brokers, the properties, and the headers of ids and types.
    /// `topics` holds the dead-letter topics.
    pub kafka: KafkaSource,
    /// Whether new dead letters are adopted while the daemon is running.
    pub continuous: bool,
    /// The consumer group whose dead letters are adopted, along with dead letters that name no group.
    /// `None` adopts from all groups.
    pub group: Option<String>,
    /// Whether records without known failure headers are adopted.
    pub adopts_unknown: bool,
    /// Whether the letters get sequences of their own.
    pub separate_sequences: bool,
}
