//! Opens topics of Kafka as a source.

use lazaret_config::KafkaSource as From;
use lazaret_core::source::SourceError;
use lazaret_source_kafka::{KafkaOptions, KafkaSource};

/// Becomes a member of the group.
pub(super) fn open(from: &From, until_idle: bool) -> Result<KafkaSource, SourceError> {
    KafkaSource::open(options(from, until_idle))
}

/// What the configuration says, in the words of the source.
pub(super) fn options(from: &From, until_idle: bool) -> KafkaOptions {
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
