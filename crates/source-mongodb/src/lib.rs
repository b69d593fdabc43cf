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
//! An event becomes one message. Its id is the stream with its incarnation and the resume token, its key
//! is the document key, its type is the operation, and its payload is the whole event as canonical
//! extended JSON. Handlers read its parts with the extractors of this crate, such as [`Document`] and
//! [`UpdateDescription`]. The names of the headers are in [`headers`].
//!
//! # Positions
//!
//! A stream is one partition. The offset is the cluster time, which the operations of a transaction
//! share. Commits are matched by resume token (docs/decisions/0040-change-stream-positions.md). The
//! checkpoint has two anchors with one writer each: *processed*, which commits move, and *seen*, a later
//! position that the server certified. No unsettled event is ever skipped (I1), unless [`OnHistoryLost`]
//! or [`Start::Now`] allows it.
//!
//! A recreated collection begins a new [incarnation](lazaret_core::incarnation), and so does a server
//! with a different history. Nothing that is known by position in an earlier incarnation is applied to
//! its events (docs/decisions/0086-incarnations.md).
//!
//! # Leadership
//!
//! A source reads only while it holds the lease of its stream. Every write of the checkpoint checks the
//! fence of the lease, so a leader that was replaced cannot move it (I6).
//!
//! # Modules
//!
//! `source` is the side of the engine. `worker` is the task behind the source. It gets the `lease`,
//! claims the `checkpoint`, and runs a `reader`. The reader opens a `stream` at the position that
//! `resume` chooses, and builds messages from events (`event`, `extjson`). `error` determines the class
//! of an error, and `describe` formats it. `pipeline` checks stages and lets invalidations pass them.
//! `position` holds the encodings of positions, and `incarnation` the lives of a collection. `server`
//! connects and requests the version. `store_collections` keeps a stream from reading what its own store
//! writes. `take_over` turns the position of another reader into a checkpoint, and `probe` opens a
//! stream for a check.

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

/// The driver's types for the values of documents.
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
