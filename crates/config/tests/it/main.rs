//! Configuration files: what they mean, what is told about them, and their schema.

#![allow(clippy::unwrap_used, reason = "a test that fails panics; that is its answer")]

mod good;
mod init;
mod messages;
mod schema;
