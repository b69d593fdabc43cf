//! What this build has.

use lazaret_config::{Capabilities, Capability};

/// What this build has. A configuration that asks for more is refused, and the answer says where.
///
/// ```
/// use lazaret_config::Capability;
/// assert!(lazaret_daemon::capabilities().has(Capability::SourceFile));
/// assert!(!lazaret_daemon::capabilities().has(Capability::StorePostgres));
/// ```
pub fn capabilities() -> Capabilities {
    let sqlite = [Capability::StoreSqlite, Capability::SourceInbox];
    let kafka = [Capability::SourceKafka, Capability::RetryTopics, Capability::DeadLetterTopic];
    let parts = [Capability::SourceFile, Capability::TokensFile, Capability::Webhooks]
        .into_iter()
        .chain([Capability::Traces].into_iter().filter(|_| cfg!(feature = "otlp")))
        .chain(sqlite.into_iter().filter(|_| cfg!(feature = "sqlite")))
        .chain(kafka.into_iter().filter(|_| cfg!(feature = "kafka")));
    let parts = Capabilities::of(parts);
    #[cfg(feature = "kafka")]
    let parts = parts.checking_kafka_properties(crate::assemble::check_kafka_property);
    parts
}
