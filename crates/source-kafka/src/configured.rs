//! Builds the options of a source from its configuration.

use lazaret_config::KafkaSource;

use crate::options::KafkaOptions;

impl KafkaOptions {
    /// Returns the options of a configured source.
    ///
    /// ```
    /// use lazaret_config::{NoEnv, Source, check};
    /// use lazaret_source_kafka::KafkaOptions;
    /// let text = "
    /// consumers:
    ///   orders:
    ///     source: { kafka: { brokers: '127.0.0.1:9092', topics: [orders] } }
    ///     handler: { command: { program: [./handle] } }
    /// ";
    /// let config = check("f", text.as_bytes(), &NoEnv).config.unwrap();
    /// let Source::Kafka(source) = &config.consumers[0].source else { panic!() };
    /// let options = KafkaOptions::from_config(source);
    /// # let _ = options;
    /// ```
    pub fn from_config(config: &KafkaSource) -> Self {
        let mut options = Self::new(&config.brokers, &config.group, &config.topics)
            .with_id_headers(&config.id_headers)
            .with_type_headers(&config.type_headers)
            .with_correlation_headers(&config.correlation_headers)
            .with_topic_timeout(config.topic_timeout)
            .replacing_stores(&config.replaced_stores);
        options.may_start_fresh = config.may_start_fresh;
        let properties = config.properties.iter();
        let options =
            properties.fold(options, |options, (name, value)| options.with_property(name, value.reveal()));
        match config.member.as_deref() {
            Some(id) if id != KafkaSource::DYNAMIC_MEMBER => options.with_member(id),
            _ => options,
        }
    }
}
