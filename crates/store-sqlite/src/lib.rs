//! The embedded store: durable lanes in one SQLite file.
//!
//! [`SqliteStore`] implements [`lazaret_core::store`] in one file (and its logs beside it), without a server. One thread writes: it
//! takes all queued calls, runs them in one transaction and syncs once (group commit),
//! so many concurrent hand-offs cost little more than one. Other threads read concurrently. A second
//! process, such as the command line, can read and write the same file.
//!
//! ```
//! use std::sync::Arc;
//! use lazaret_core::store::{HandOff, LetterStore, Limits, Placed, Placement};
//! use lazaret_core::{Letter, LetterState, Message, Position, QueueName, Timestamp};
//! use lazaret_store_sqlite::{Options, SqliteStore};
//!
//! # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
//! # let folder = tempfile::tempdir().unwrap();
//! # let path = folder.path().join("lazaret.db");
//! let store = SqliteStore::open(&path, Options::default()).unwrap();
//! let queue = QueueName::of("orders", "orders");
//! let message = Arc::new(Message::new("evt-1", "orders", Position::new(0, 0)).with_key("order-7"));
//! let mut letter = Letter::new(queue.clone(), "order-7".into(), message, Timestamp::now());
//! letter.state = LetterState::Dead;
//! let item = HandOff { letter, placement: Placement::Open, grant: None };
//! let answers = store.hand_off(&queue, &Limits::default(), vec![item]).await.unwrap();
//! assert_eq!(answers[0].as_ref().unwrap(), &Placed::Opened);
//!
//! // The letter is still there after the file was reopened.
//! drop(store);
//! let store = SqliteStore::open(&path, Options::default()).unwrap();
//! assert_eq!(store.sequence_size(&queue, &"order-7".into()).await.unwrap(), 1);
//! # });
//! ```
//!
//! # Modules
//!
//! Calls go from the contracts to the writer thread or the readers, and from there to one queue inside a transaction:
//!
//! - `contract/`: the traits of [`lazaret_core::store`], as requests to the writer and reads.
//! - `store`, `options`, `error`: opening and closing, options, errors of SQLite.
//! - `backup`, `replacement`, `permissions`: copies of the file while it is in use, and back; file permissions.
//! - `writer/`, `readers`, `step`: the thread that writes, the connections that read, and the context of a write.
//! - `redo/`, `recorded`, `hand_offs`, `lease_calls`, `settle_calls`, `encoded_letter`: the redo log, which knows only bytes, and the calls that it
//!   can hold. `undecoded_claims`: what a claim returns.
//! - `disk_reserve`, `occupancy`: what stays free of the disk, and the room that the files take. `erasure_mark`: a rewrite of the file is due.
//! - `write_cache/`: cached counters of queues, groups and inboxes, written once per commit.
//! - `letters/`: one queue inside a transaction: views for the [rules](lazaret_core::store::rules), their effects as rows, and
//!   `query/` from a query to SQL.
//! - `operations/`: plans and operations inside a transaction; `freezing` is bulk SQL.
//! - `inbox_source/`: the inbox: posts, and the source that delivers them.
//! - `audit`, `pauses`: the audit chain, and pauses.
//! - `schema/`, `rows`: tables, format versions and migrations, encoding of values. `stored_value`: a value of a file, read-only.
//! - `consistency`, `comparison`, `power_loss/` (tests): counters compared with letters, random walks compared with the memory store,
//!   and the states of the files after a power cut.

mod audit;
mod backup;
#[cfg(test)]
mod comparison;
#[cfg(test)]
mod consistency;
mod contract;
mod disk_reserve;
mod encoded_letter;
mod erasure_mark;
mod error;
mod hand_offs;
mod inbox_source;
mod lease_calls;
mod letters;
mod occupancy;
mod operations;
mod options;
mod pauses;
mod permissions;
#[cfg(test)]
#[cfg(target_os = "linux")]
mod power_loss;
mod readers;
mod recorded;
mod redo;
mod replacement;
mod rows;
mod schema;
mod settle_calls;
mod step;
mod store;
mod stored_value;
mod undecoded_claims;
mod write_cache;
mod writer;

pub use backup::{RestoreOptions, Restored, backup, restore};
pub use inbox_source::{Backlog, InboxLog, InboxOptions, InboxSource, Posted};
pub use lazaret_core::store::AuditCheck;
pub use options::{Durability, Options};
pub use schema::{FORMAT_VERSION, format_version};
pub use store::SqliteStore;
pub use stored_value::stored_value;
