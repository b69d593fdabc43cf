//! Support for these tests: shared topics and sources, and chaos runs.

#![allow(dead_code, unused_imports, reason = "each test program uses its part")]

pub(crate) mod chaos;

pub(crate) use lazaret_kafka_testkit::*;
