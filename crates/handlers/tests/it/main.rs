//! Handlers in other languages, over HTTP and as commands.

#![allow(clippy::unwrap_used, reason = "a test that fails panics; that is its answer")]

mod command_lines;
mod command_once;
mod engine;
mod examples;
mod http_connections;
mod http_request;
mod http_response;
mod support;
