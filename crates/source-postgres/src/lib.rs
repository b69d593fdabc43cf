//! A transactional outbox in PostgreSQL as a source.
//!
//! A service writes its events to a table, in the transaction that makes them true. The source delivers
//! every row whose transaction commits, and no other row.
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
//! Rows are delivered in the order of their ids. If a service locks what it changes before it writes its
//! event, the ids of a key are drawn in the order of its commits. A transaction that commits late holds
//! back the rows after its own until it ends, so no row is skipped because a later id was committed
//! first (I1). docs/decisions/0052-outbox-of-postgresql.md has the argument.
//!
//! # Messages
//!
//! A row becomes one message. Its offset is the id, and its message id is `0:ID`. A JSON payload has the
//! content type `application/json`, unless a `content-type` header names another one.
//!
//! # Acknowledgement
//!
//! With [`Ack::Delete`], a settled row is deleted. With [`Ack::Position`], it stays. In both cases, the
//! store keeps the position and the ids that are settled beyond it.
//!
//! # Ids that are used again
//!
//! Ids are assigned a second time when a table is recreated, a sequence is set back, or a replica that
//! lacks the last transactions becomes the primary. The source detects this, and never mistakes a new
//! row for a settled one. With [`Ack::Delete`], it deletes only rows that were delivered, and reads the
//! whole table again. With [`Ack::Position`], it stops unless the rows are known to be the same.
//!
//! # One reader
//!
//! A source reads and deletes only while its session holds an advisory lock of the outbox. The server
//! ends the session of an unresponsive source, and another source takes over. A reader that was replaced
//! cannot delete anything, and its claim on the position has ended (I6).
//!
//! # Modules
//!
//! `source` is the side of the engine, and `delivered` holds the rows that the engine has not
//! acknowledged yet. `worker` is the task behind the source. It opens a `session`, gets the lock, claims
//! the `checkpoint`, lets `continuation` decide where to continue, records the `incarnation`, and runs a
//! `reader`. The reader asks the `horizon` up to which id rows are final, and turns them into messages
//! (`row`). `table` checks the table, and `setup` creates it.

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
