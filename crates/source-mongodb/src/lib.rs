//! A source for MongoDB change streams.
//!
//! ```no_run
//! use std::sync::Arc;
//! use lazaret_memory::MemoryStore;
//! use lazaret_source_mongodb::{FullDocument, MongoSource, MongoSourceOptions};
//!
//! # async fn example() -> Result<(), lazaret_core::source::SourceError> {
//! let options = MongoSourceOptions {
//!     full_document: FullDocument::UpdateLookup,
//!     ..MongoSourceOptions::collection("mongodb://127.0.0.1:27017", "shop", "orders")
//! };
//! // The store keeps the checkpoint and the lease. Any store does.
//! let store = Arc::new(MemoryStore::default());
//! let source = MongoSource::open(options, store)?;
//! let status = source.status();
//! # let _ = status;
//! # Ok(())
//! # }
//! ```
//!
//! # Messages
//!
//! An event becomes one message: its id is the stream with its incarnation and the resume token, its key the document key, its type the operation, and
//! its payload the whole event as canonical extended JSON. Handlers take its parts with the extractors of this crate, such as
//! [`Document`] and [`UpdateDescription`]. The names of the headers are in [`headers`].
//!
//! # Positions
//!
//! A stream is one partition. The offset is the cluster time, which the operations of a transaction share; commits are matched by
//! resume token (docs/decisions/0040-change-stream-positions.md). The checkpoint has two anchors with one writer each: *processed*,
//! moved by commits, and *seen*, a later position that the server certified. No event that is not settled is ever skipped (I1),
//! unless [`OnHistoryLost`] or [`Start::Now`] says so.
//!
//! A collection that was created again begins a new [incarnation](lazaret_core::incarnation), and so does a server whose history is
//! another one: nothing that is known by position in an earlier incarnation is applied to its events
//! (docs/decisions/0086-incarnations.md).
//!
//! # Leadership
//!
//! A source reads only while it holds the lease of its stream. Every write of the checkpoint checks the fence of the lease, so a
//! leader that was replaced moves nothing (I6).
//!
//! # Modules
//!
//! `source` is the side of the engine; `worker` is the task behind it: it gets the `lease`, claims the `checkpoint`, and runs a
//! `reader`. The reader opens a `stream` at the position that `resume` chooses, and makes messages of events (`event`, `extjson`).
//! `error` decides the class of an error, `describe` puts it into words, `pipeline` checks stages and lets invalidations pass them, `position` holds the
//! encodings of positions, `incarnation` the lives of a collection. `server` connects and asks for the version, `store_collections` keeps a
//! stream from reading what its own store writes. `take_over` makes the position of another reader a checkpoint, and `probe` opens a stream
//! for a check.

mod checkpoint;
#[cfg(feature = "config")]
mod configured;
mod context;
mod describe;
mod error;
mod event;
mod extjson;
mod extract;
mod incarnation;
mod lease;
mod options;
mod pipeline;
mod position;
mod probe;
mod reader;
mod resume;
mod server;
mod source;
mod status;
mod store_collections;
mod stream;
mod take_over;
mod worker;

/// The values of documents, as the driver uses them.
pub use bson;
/// The driver, for programs that share a client with the source.
pub use mongodb as driver;

pub use describe::describe;
pub use error::ErrorClass;
pub use event::headers;
pub use extract::{
    Before, ChangeEvent, Document, DocumentKey, Namespace, OperationType, ResumePoint, Transaction,
    TransactionInfo, TruncatedArray, UpdateDescription,
};
pub use options::{
    BeforeChange, CheckpointOptions, Deployment, FullDocument, LeaseOptions, MongoSourceOptions,
    OnHistoryLost, OnInvalidate, RestartPolicy, Server, Start, StoreCollections,
};
pub use probe::{ProbeError, Probed};
pub use server::hello;
pub use source::MongoSource;
pub use status::{Decision, MongoStatus, OplogWindow, StreamState};
pub use take_over::{
    ForeignAnchor, ForeignAnchorKind, ForeignPosition, TakeOverError, TakeOverOptions, TakenOver,
};
