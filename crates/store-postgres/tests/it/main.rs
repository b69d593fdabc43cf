//! The store in PostgreSQL: its promises, also when servers and connections fail.

#![allow(clippy::unwrap_used, reason = "a test that fails panics; that is its answer")]

mod cut;
mod encryption;
mod engine;
mod exactly_once;
mod failover;
mod groups;
mod inbox;
mod indexes;
mod interference;
mod notifications;
mod open;
mod outbox;
mod redelivery;
mod simulation;
mod suites;
mod support;
mod tls;
