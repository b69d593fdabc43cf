//! Kafka as a source of messages.
//!
//! [`KafkaSource`] is one member of a consumer group:
//!
//! - The committed offset of a partition is the first offset that is not settled (I1). Settled offsets
//!   beyond it are stored in the metadata of the commit, so a restart repeats only what it must.
//! - Polling never blocks and never stops. A consumer that is paused for an hour stays a member of its group.
//! - A revoked partition is kept until the engine has finished it. Other partitions are still read in
//!   the meantime.
//! - A record becomes a message byte for byte. Null differs from empty in keys, payloads and headers.
//!
//! ```no_run
//! use lazaret_source_kafka::{KafkaOptions, KafkaSource};
//!
//! let options = KafkaOptions::new("127.0.0.1:9092", "notification-service", ["case-events"])
//!     .with_property("isolation.level", "read_committed")
//!     .with_id_headers(["ce_id", "message-id"]);
//! let source = KafkaSource::open(options)?;
//! # Ok::<(), lazaret_core::source::SourceError>(())
//! ```
//!
//! [`KafkaRelay`] writes failed messages to retry topics and dead-letter topics (strategy `topics`).
//! [`TopicReader`] and [`LetterWriter`] read and write dead-letter topics without a group. Adoption and
//! mirroring are built on them.
//!
//! The modules. Each imports only modules listed above it:
//!
//! - `positions`: settled offsets, their encoding as commit metadata, and commits.
//! - `options`, `state`, `error`: options, state, and classified client errors.
//! - `record`: records as bytes, and their conversion to messages. [`headers`]: the headers of relayed
//!   records.
//! - `client`: the librdkafka client, with callbacks, assignments, batches and topic ids (the only
//!   `unsafe`), topic metadata, and producers.
//! - `transaction_hook`, `retry_topics`, `topology`: the configuration of retry topics, and the routing
//!   of messages to them.
//! - `incarnations`, `start_position`, `store_check`, `lookup`: determine where a partition starts, from
//!   its brokers and the store.
//! - `retry_reader`, `owned_partition`: read a partition.
//! - `relay`, `letter_writer`, `topic_reader`: write records, and read records without a group.
//! - `membership`, `read_ahead`, `driver`, `source`: the group member, its thread, and the source for
//!   the engine.

mod claim_check;
mod client;
#[cfg(feature = "config")]
mod configured;
mod driver;
mod error;
#[cfg(test)]
mod fuzz;
pub mod headers;
mod incarnations;
mod letter_writer;
mod lookup;
mod membership;
mod options;
mod owned_partition;
mod positions;
mod read_ahead;
mod record;
mod relay;
mod retry_reader;
mod retry_topics;
mod source;
mod start_position;
mod state;
mod store_check;
mod topic_reader;
mod topology;
mod transaction_hook;

pub use letter_writer::{Delivery, LetterWriter};
pub use options::{DEFAULT_BATCH, DEFAULT_TOPIC_TIMEOUT, KafkaOptions, MEMORY_STORE};
pub use record::{MessageDecoder, RecordParts};
pub use relay::{KafkaRelay, RelayCounts};
pub use retry_topics::RetryTopics;
pub use source::KafkaSource;
pub use state::KafkaState;
pub use topic_reader::{TopicReader, TopicRecord};
