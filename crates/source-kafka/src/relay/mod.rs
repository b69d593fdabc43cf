//! Writes failed messages to retry topics and dead-letter topics. Implements Lazaret's
//! [`Relay`](lazaret_core::relay::Relay) for Kafka.
//!
//! docs/decisions/0015-retry-topics.md explains why messages keep the number of their partition, and how
//! they are read back.

mod counts;
mod kafka_relay;
mod offsets;
mod preflight;
mod transactions;

pub use counts::RelayCounts;
pub use kafka_relay::KafkaRelay;
pub(crate) use transactions::Transactions;
