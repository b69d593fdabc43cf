//! Writes failed messages to retry topics and dead-letter topics: Lazaret's [`Relay`](lazaret_core::relay::Relay) for Kafka.
//!
//! Why messages keep the number of their partition, and how they are read back: docs/decisions/0015-retry-topics.md.

mod counts;
mod kafka_relay;
mod offsets;
mod preflight;
mod transactions;

pub use counts::RelayCounts;
pub use kafka_relay::KafkaRelay;
pub(crate) use transactions::Transactions;
