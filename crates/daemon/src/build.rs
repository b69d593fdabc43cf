//! The capabilities of this build.

use lazaret_config::{Capabilities, Capability};
use lazaret_memory::MemoryStore;

/// Returns the capabilities of this build. A configuration that requires more is rejected with the location of the key.
///
/// ```
/// use lazaret_config::Capability;
/// assert!(lazaret_daemon::capabilities().has(Capability::SourceFile));
/// assert_eq!(lazaret_daemon::capabilities().has(Capability::StorePostgres), cfg!(feature = "postgres"));
/// ```
pub fn capabilities() -> Capabilities {
    let has_inboxes = cfg!(any(feature = "sqlite", feature = "postgres"));
    let memory = [Capability::InboxInMemory].into_iter().filter(|_| MemoryStore::CAPABILITIES.inbox);
    let mongodb = [Capability::SourceMongodb, Capability::StoreMongodb, Capability::DeadLetterCollection];
    let kafka = [
        Capability::SourceKafka,
        Capability::RetryTopics,
        Capability::DeadLetterTopic,
        Capability::AdoptTopics,
    ];
    let parts = [Capability::SourceFile, Capability::TokensFile, Capability::Webhooks]
        .into_iter()
        .chain(memory)
        .chain([Capability::Traces].into_iter().filter(|_| cfg!(feature = "otlp")))
        .chain([Capability::StoreSqlite].into_iter().filter(|_| cfg!(feature = "sqlite")))
        .chain([Capability::StorePostgres].into_iter().filter(|_| cfg!(feature = "postgres")))
        .chain([Capability::SourceInbox].into_iter().filter(|_| has_inboxes))
        .chain(kafka.into_iter().filter(|_| cfg!(feature = "kafka")))
        .chain(mongodb.into_iter().filter(|_| cfg!(feature = "mongodb")))
        .chain([Capability::SourcePostgresOutbox].into_iter().filter(|_| cfg!(feature = "postgres")))
        .chain(in_mongodb());
    let parts = Capabilities::of(parts);
    #[cfg(feature = "mongodb")]
    let parts = parts
        .with_pipeline_check(crate::assemble::check_pipeline)
        .with_pipeline_review(crate::assemble::review_pipeline)
        .with_watch_check(crate::assemble::check_mongodb_watch)
        .with_mongodb_uri_check(crate::assemble::check_mongodb_uri)
        .with_mongodb_store_uri_check(crate::assemble::check_mongodb_store_uri);
    #[cfg(feature = "kafka")]
    let parts = parts.with_kafka_property_check(crate::assemble::check_kafka_property);
    parts
}

/// Returns what the store in MongoDB adds to other parts, by its own capabilities.
fn in_mongodb() -> impl Iterator<Item = Capability> {
    #[cfg(feature = "mongodb")]
    let has = lazaret_store_mongodb::MongoStore::CAPABILITIES;
    #[cfg(not(feature = "mongodb"))]
    let has = lazaret_core::store::Capabilities::NONE;
    has.inbox.then_some(Capability::InboxInMongodb).into_iter()
}
