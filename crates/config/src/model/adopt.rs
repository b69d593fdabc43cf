//! The configuration of adoptions: dead letters of other frameworks.

use super::enums::file_enum;
use super::io::KafkaSource;

/// The headers that a Kafka source reads by default, for consumers without one.
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
        /// `x-original-*`, as Spring Cloud Stream writes them.
        XOriginal = "x-original",
    }
}

/// Dead-letter topics of another framework, which become letters of a consumer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdoptTopics {
    /// The framework that writes them.
    pub format: TopicFormat,
    /// How they are read: the brokers, the properties, and the headers of ids and types. Its `topics` are the dead-letter topics.
    pub kafka: KafkaSource,
    /// Whether new dead letters are adopted while the daemon runs.
    pub continuous: bool,
    /// Adopts only dead letters of this group, and those without one.
    pub group: Option<String>,
    /// Whether records without known failure headers are adopted.
    pub adopts_unknown: bool,
    /// Whether the letters are in sequences of their own.
    pub separate_sequences: bool,
}
