//! Kafka as a source of messages.
//!
//! [`KafkaSource`] is one member of a consumer group:
//!
//! - The committed offset of a partition is the first one that is not settled (I1). What is settled beyond it goes into the
//!   metadata of the commit, so a restart repeats only what must be.
//! - Polling never blocks and never stops: a consumer that is held back for an hour stays a member of its group.
//! - A partition that is taken away is kept until the engine is done with it, while the others go on.
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
//! - `options`: what one can choose, and what one cannot.
//! - `source`: the source as the engine has it, which gives out what was read ahead.
//! - `driver`: the thread in which the member of the group lives and reads ahead.
//! - `membership`: the member of the group; partitions that come and go; commits.
//! - `member`: what librdkafka tells from its side: rebalances, errors, statistics.
//! - `slot`: one partition from its coming to its going.
//! - `batch`: records in batches, straight from librdkafka.
//! - `lookup`: where to begin reading a partition.
//! - `settled`: what is settled beyond the committed offset, as text.
//! - `record`: from a record to a message.
//! - [`headers`]: what is written on records that are passed on.
//! - [`adopt`]: takes over dead letters that other frameworks wrote to a topic.
//! - `returning`: from a record of a retry topic to the message that it was.
//! - `chain`, `relay`: retry topics and dead-letter topics, for the strategy `topics`.
//! - `mirror`: writes dead letters to a topic, too.
//! - `trouble`: which errors pass by themselves, and what to do about the others.

pub mod adopt;
mod batch;
mod chain;
mod driver;
pub mod headers;
mod lookup;
mod member;
mod membership;
mod mirror;
mod options;
mod record;
mod relay;
mod returning;
mod settled;
mod slot;
mod source;
mod trouble;

pub use chain::RetryTopics;
pub use mirror::{Mirror, MirrorState};
pub use options::{DEFAULT_BATCH, KafkaOptions};
pub use relay::KafkaRelay;
pub use source::{KafkaSource, KafkaState};
