//! Kafka as a source of messages.
//!
//! [`KafkaSource`] is one member of a consumer group:
//!
//! - The committed offset of a partition is the first one that is not settled (I1). What is settled beyond it is stored in the
//!   metadata of the commit, so a restart repeats only what must be.
//! - Polling never blocks and never stops: a consumer that is paused for an hour stays a member of its group.
//! - A revoked partition is kept until the engine has finished it, while the others are read.
//! - A record becomes a message byte for byte: null is not empty, neither in keys nor in payloads nor in headers.
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
//! [`KafkaRelay`] writes failed messages to retry topics and dead-letter topics (strategy `topics`). [`TopicReader`] and
//! [`LetterWriter`] read and write dead-letter topics without a group; adoption and mirroring are built on them.
//!
//! The modules, each importing only those above it:
//!
//! - `positions`: settled offsets, their encoding as commit metadata, commits.
//! - `options`, `state`, `error`: options, state, and classified errors of the client.
//! - `record`: records as bytes, and the messages that they become; [`headers`]: the headers of relayed records.
//! - `client`: the librdkafka client: callbacks, assignments, batches and topic ids (the only `unsafe`), topic metadata, producers.
//! - `transaction_hook`, `retry_topics`, `topology`: configuration of retry topics, and which message goes where.
//! - `incarnations`, `start_position`, `store_check`, `lookup`: where a partition starts, from what its brokers and the store know.
//! - `retry_reader`, `owned_partition`: reading a partition.
//! - `relay`, `letter_writer`, `topic_reader`: records out, and records in without a group.
//! - `membership`, `read_ahead`, `driver`, `source`: the member of the group, its thread, and the source for the engine.

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
