//! A transactional outbox in PostgreSQL as a source.
//!
//! A service writes its events into a table, in the transaction that makes them true. The source delivers every row whose transaction
//! commits, and none other.
//!
//! ```no_run
//! use std::sync::Arc;
//! use lazaret_memory::MemoryStore;
//! use lazaret_source_postgres::{Columns, OutboxOptions, OutboxSource};
//!
//! # async fn example() -> Result<(), lazaret_core::source::SourceError> {
//! let options = OutboxOptions {
//!     columns: Columns { key: Some("aggregate_id".into()), ..Columns::default() },
//!     ..OutboxOptions::new("postgres://orders@db.example/shop", "shop.outbox")
//! };
//! OutboxSource::check(&options).await?;
//! // The store keeps the position. Any store does.
//! let source = OutboxSource::open(options, Arc::new(MemoryStore::default()))?;
//! # drop(source);
//! # Ok(())
//! # }
//! ```
//!
//! # Order
//!
//! Rows are delivered in the order of their ids. A service that locks what it changes before it writes its event draws the ids of one key in
//! the order of its commits. A transaction that commits late holds back the rows behind its own until it ends, so no row is skipped
//! because a later id was committed first (I1). The argument is in docs/decisions/0052-outbox-of-postgresql.md.
//!
//! # Messages
//!
//! A row becomes one message: its offset is the id, and its message id `0:ID`. A payload of JSON has the content type
//! `application/json`, unless a header `content-type` names another.
//!
//! # Acknowledgement
//!
//! By [`Ack::Delete`] a settled row is deleted. By [`Ack::Position`] it stays. The position and the ids that are settled beyond it are
//! kept in the store in both cases.
//!
//! # Ids that are used again
//!
//! A table that is created again, a sequence that is set back, or a replica that lacks the last transactions gives ids a second time. The
//! source notices it, and never takes a new row for one that was settled: by [`Ack::Delete`] it deletes only rows that were delivered, and reads
//! the whole table again, by [`Ack::Position`] it stops unless the rows are known to be the same.
//!
//! # One reader
//!
//! A source reads and deletes only while its session holds an advisory lock of the outbox. The server ends the session of a source
//! that does not respond, and another one takes over. A reader that was replaced can delete nothing, and its claim on the
//! position has ended (I6).
//!
//! # Modules
//!
//! `source` is the side of the engine, `delivered` what it has not acknowledged yet; `worker` is the task behind it: it opens a `session`, gets the lock, claims the `checkpoint`, lets
//! `continuation` decide where to go on, records the `incarnation`, and runs a `reader`. The reader asks the `horizon` up to which id rows are final, and makes messages of them (`row`). `table` checks the
//! table, `setup` creates it.

mod checkpoint;
#[cfg(feature = "config")]
mod configured;
mod context;
mod continuation;
mod delivered;
mod error;
mod horizon;
mod incarnation;
mod options;
mod reader;
mod row;
mod session;
mod setup;
mod source;
mod status;
mod table;
mod worker;

pub use options::{Ack, Columns, DEFAULT_CHANNEL, OutboxOptions};
pub use source::OutboxSource;
pub use status::{OutboxState, OutboxStatus};
