//! Lazaret's vocabulary, its pure policies, and the traits that backends implement.
//!
//! This crate has no drivers and no runtime, and takes its clock as a parameter. Decisions are functions of values: see
//! [`policy`]. I/O is behind traits: see [`store`], [`source`] and [`relay`].
//!
//! - [`message`], [`sequence`], [`letter`], [`failure`], `verdict`, [`fingerprint`], [`traceback`]: the vocabulary.
//! - [`handler`]: handlers, extractors, layers, the router.
//! - [`policy`]: classifier, retry schedule, budgets, circuit breaker, fuse, poison rule, enqueue policy.
//! - [`query`]: the query language: parser, syntax tree, matcher.
//! - [`redaction`]: which values of a letter are hidden from those who may not see them.
//! - [`store`]: the contracts of stores; [`store::rules`] decides the life of a letter for all of them.
//! - [`incarnation`]: the lives of a stream, to which positions belong.
//! - [`source`], [`relay`], [`recorder`], [`clock`]: the other contracts. `source::jsonl` parses one message per line, for the
//!   file source and the inbox.

pub mod clock;
pub mod failure;
pub mod fingerprint;
pub mod handler;
pub mod incarnation;
mod json_walk;
pub mod letter;
pub mod message;
pub mod person;
pub mod policy;
pub mod query;
pub mod recorder;
pub mod redaction;
pub mod relay;
pub mod sequence;
pub mod source;
pub mod store;
pub mod traceback;
mod verdict;

pub use clock::{Clock, SystemClock};
pub use failure::{Failure, HandlerError, Phase, Reason};
pub use fingerprint::{Fingerprint, Grouping};
pub use jiff::Timestamp;
pub use letter::{Letter, LetterId, LetterState};
pub use message::{
    ConsumerName, Headers, Message, MessageId, Operation, Partition, Position, QueueName, Schema, StreamName,
};
pub use recorder::FlightRecorder;
pub use relay::Relay;
pub use sequence::{SequenceId, Sequencing};
pub use source::Source;
pub use store::{LetterStore, Store};
pub use traceback::Traceback;
pub use verdict::{UnknownVerdict, Verdict};
