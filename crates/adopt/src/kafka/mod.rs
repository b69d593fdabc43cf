//! Dead-letter topics. An [`Adoption`] reads one and turns its records into letters of a consumer.
//!
//! Frameworks write a failed message to a topic, with headers that hold its original position and its
//! failure. The adoption restores the original message: id, stream, position, key, payload, headers and
//! time. The letters belong to one queue. They are grouped, replayed and closed like all other letters,
//! and a replay goes only to the handler of that consumer.
//!
//! - **Idempotent** (I8): the id of a message comes from its id header or its original position. Copies
//!   of a message become one letter, whether they are in one topic or in several.
//! - **Read-only**: the topic is read without a group. Nothing is committed, and other readers are not
//!   affected.
//!
//! ```no_run
//! use lazaret_adopt::kafka::{AdoptError, Adoption};
//! use lazaret_core::QueueName;
//! use lazaret_core::store::{Checkpoints, LetterStore};
//! use lazaret_source_kafka::KafkaOptions;
//!
//! # async fn adopt(store: &(impl LetterStore + Checkpoints)) -> Result<(), AdoptError> {
//! // The options of the consumer, so that ids are the same.
//! let consumer = KafkaOptions::new("127.0.0.1:9092", "billing", ["orders"]).with_id_headers(["ce_id"]);
//! let report = Adoption::of(&consumer, "orders-dlt")
//!     .into_queue(QueueName::of("billing", "billing"))
//!     .only_group("billing")
//!     .on_progress(|report| println!("{} of {}", report.run.read, report.run.read + report.left))
//!     .run(store)
//!     .await?;
//! println!("{} adopted, {} unknown", report.run.adopted, report.run.unknown);
//! # Ok(())
//! # }
//! ```
//!
//! - `values`: parses header values and times.
//! - `failure_info`, `spring`, `connect`, `streams`, `original`: read the headers of each framework.
//! - `framework`: reads the headers of all frameworks on one record.
//! - `decode`: converts a record to a [`ForeignLetter`](crate::ForeignLetter).
//! - `preview`: shows what a run would do.
//! - `topic`: reads the topic as a [`DeadLetterSource`](crate::DeadLetterSource).

mod adoption;
mod connect;
mod decode;
mod failure_info;
mod framework;
mod original;
mod preview;
mod spring;
mod streams;
mod topic;
mod values;

pub use adoption::{AdoptError, Adoption, Report};
pub use decode::UnknownRecords;
pub use framework::Framework;
pub use preview::{CauseCount, OriginCount, Preview};
pub use topic::Offsets;

pub use crate::error::AdoptErrorKind;
pub use crate::progress::Tally;
pub use crate::target::{Expiry, Target};
