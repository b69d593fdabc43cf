//! Support for these tests: shared topics and sources, and chaos runs.

pub(crate) mod chaos;

pub(crate) use lazaret_kafka_testkit::*;
