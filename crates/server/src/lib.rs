//! Lazaret's HTTP API: looking at letters, caring for them, replaying them, posting messages, listening to events.
//!
//! It is closed by default. Without tokens it serves loopback addresses only; with them every route but `/healthz` and
//! `/readyz` needs one that has the scope. Names that somebody else lets point here are refused, and so are changes that
//! pages of other sites send. Everything is bounded. `docs/api.md` tells how to use it.
//!
//! ```
//! use std::sync::Arc;
//! use lazaret_memory::MemoryStore;
//! use lazaret_server::{Registry, Server};
//! use tokio_util::sync::CancellationToken;
//!
//! # tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap().block_on(async {
//! let registry = Registry::default(); // tell it of the consumers that run
//! let server = Server::builder(Arc::new(MemoryStore::default())).registry(registry).build();
//! let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
//! let shutdown = CancellationToken::new();
//! # shutdown.cancel();
//! server.serve(listener, shutdown).await.unwrap();
//! # });
//! ```

mod app;
mod audit;
mod auth;
mod change;
mod cursor;
mod document;
mod error;
mod events;
mod extract;
mod fault;
mod guard;
mod idempotency;
mod inbox;
mod options;
mod read;
mod registry;
mod routes;
mod server;
mod stream;

pub use audit::VerifyAudit;
pub use auth::{Token, TokenHash, Tokens, generate_token};
pub use error::Error;
pub use inbox::Ingest;
pub use lazaret_core::source::Posted;
pub use options::{Limits, Options};
pub use registry::{Approval, Registry};
pub use server::{Builder, Server, openapi};
