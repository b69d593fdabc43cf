//! The capabilities of this build.

use lazaret_config::{Capabilities, Capability};
use lazaret_memory::MemoryStore;

/// Returns the capabilities of this build. A configuration that requires more is rejected with the location of the key.
///
/// ```
/// use lazaret_config::Capability;
/// assert!(lazaret_daemon::capabilities().has(Capability::SourceFile));
/// assert!(!lazaret_daemon::capabilities().has(Capability::StorePostgres));
/// ```
pub fn capabilities() -> Capabilities {
    let sqlite = [Capability::StoreSqlite, Capability::SourceInbox];
    let memory = [Capability::InboxInMemory].into_iter().filter(|_| MemoryStore::CAPABILITIES.inbox);
    let kafka = [Capability::SourceKafka, Capability::RetryTopics, Capability::DeadLetterTopic];
    let parts = [Capability::SourceFile, Capability::TokensFile, Capability::Webhooks]
        .into_iter()
        .chain(memory)
        .chain([Capability::Traces].into_iter().filter(|_| cfg!(feature = "otlp")))
        .chain(sqlite.into_iter().filter(|_| cfg!(feature = "sqlite")))
        .chain(kafka.into_iter().filter(|_| cfg!(feature = "kafka")));
    let parts = Capabilities::of(parts);
    #[cfg(feature = "kafka")]
    let parts = parts.with_kafka_property_check(crate::assemble::check_kafka_property);
    parts
}
