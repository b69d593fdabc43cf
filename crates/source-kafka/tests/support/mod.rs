//! The support of these tests: the shared topics and sources, and the chaos runs.

#![allow(dead_code, unused_imports, reason = "each test program uses its part")]

pub(crate) mod chaos;

pub(crate) use lazaret_kafka_testkit::*;
