//! Lazaret's HTTP API: triage and replay of letters, inboxes, and server-sent events.
//!
//! It is closed by default. Without tokens it serves loopback addresses only; with tokens every route except `/healthz` and
//! `/readyz` requires one with the right scope. Unknown host names and cross-site changes are rejected. Everything is
//! bounded. See `docs/api.md`.
//!
//! ```
//! use std::sync::Arc;
//! use lazaret_memory::MemoryStore;
//! use lazaret_server::{Registry, Server};
//! use tokio_util::sync::CancellationToken;
//!
//! # tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap().block_on(async {
//! let registry = Registry::default(); // register running consumers here
//! let server = Server::builder(Arc::new(MemoryStore::default())).registry(registry).build();
//! let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
//! let shutdown = CancellationToken::new();
//! # shutdown.cancel();
//! server.serve(listener, shutdown).await.unwrap();
//! # });
//! ```
//!
//! # Modules
//!
//! - `routes`, `openapi`: the table of all routes with their access rules, and the OpenAPI document generated from it.
//! - `server` also adds pages, such as the console, which call the API in process.
//! - `middleware`, `auth`: admission, authentication, authorization, timeouts; tokens, hosts and origins.
//! - `read`, `change`, `inbox`: the handlers of requests.
//! - `activity`: the throughput of consumers over the last hour.
//! - `event_feed`, `operation_watch`: server-sent events: history, subscribers, engine events, progress of operations.
//! - `schedule_watch`: scheduled operations whose requesters have lost their rights.
//! - `shared_reads`: reads of the store that several callers share. `scan_turns`: the turns of reads that may examine many letters.
//! - `idempotency`: responses by `Idempotency-Key`.
//! - `extract`, `cursor`, `ndjson`, `api_error`: parameters, pages, streamed lists, problems.
//! - `registry`, `app`, `server`, `options`: the consumers of this process, shared state, building and serving, limits.
//! - `listener`, `connections`, `per_token`: where it listens, caps and deadlines of connections, caps of one token.
//! - `anonymous`: the places of requests whose sender is not known.

mod activity;
mod anonymous;
mod api_error;
mod app;
mod auth;
mod change;
mod connections;
mod cursor;
mod erasure;
mod error;
mod event_feed;
mod extract;
mod idempotency;
mod inbox;
mod listener;
mod middleware;
mod ndjson;
mod openapi;
mod operation_watch;
mod options;
mod per_token;
mod read;
mod redacted;
mod registry;
mod routes;
mod scan_turns;
mod schedule_watch;
mod server;
mod shared_reads;

pub use auth::{
    InvalidTokenHash, Person, ProxyPersons, Role, RoleError, SessionLimits, SignIn, SignInError, SignedIn,
    Token, TokenHash, Tokens, TrustedProxy, generate_token, person_in_groups,
};
pub use error::Error;
pub use lazaret_core::source::Posted;
pub use listener::{Listener, Peer, Transport};
pub use options::{Limits, Options};
pub use registry::{Approval, Registry, StoreNotice};
pub use server::{Builder, Server, openapi};
