//! The daemon as a process: started, asked, killed, and looked at from outside.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on must fail")]

#[cfg(feature = "kafka")]
mod adopt;
mod api;
mod breaker;
mod console;
mod consumers;
mod doctor;
mod encryption;
#[cfg(target_os = "linux")]
mod full_disk;
#[cfg(feature = "kafka")]
mod kafka;
mod logs;
#[cfg(feature = "mongodb")]
mod mongodb;
#[cfg(all(feature = "kafka", feature = "mongodb"))]
mod mongodb_mirror;
#[cfg(feature = "mongodb")]
mod mongodb_real;
#[cfg(feature = "postgres")]
mod postgres;
#[cfg(feature = "postgres")]
mod postgres_faults;
#[cfg(feature = "postgres")]
mod postgres_fleet;
#[cfg(all(feature = "kafka", feature = "postgres"))]
mod postgres_mirror;
#[cfg(feature = "postgres")]
mod postgres_outbox;
#[cfg(feature = "postgres")]
mod postgres_starved;
mod redaction;
mod reload;
mod replays;
mod signals;
mod story;
mod support;
mod telemetry;
#[cfg(feature = "kafka")]
#[allow(unreachable_pub, reason = "another crate exports it")]
#[path = "../../../kafka-testkit/src/unknown_compression.rs"]
mod unknown_compression;
