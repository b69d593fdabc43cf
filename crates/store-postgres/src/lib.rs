//! The PostgreSQL store: letters that a fleet shares, each call one transaction.
//!
//! [`PostgresStore`] implements [`lazaret_core::store`] on tables in a schema of its own. Every process of a fleet opens it.
//!
//! ```no_run
//! use lazaret_store_postgres::{PostgresStore, PostgresStoreOptions};
//!
//! # async fn open() -> Result<(), lazaret_core::store::StoreError> {
//! let dsn = "postgres://lazaret@db.example/shop?sslmode=verify-full";
//! let store = PostgresStore::connect(dsn, PostgresStoreOptions::default()).await?;
//! # drop(store);
//! # Ok(())
//! # }
//! ```
//!
//! # A call
//!
//! 1. **Load**: the rows that the rule needs are locked and read in one round trip, with the server's time behind the locks. The row of a sequence
//!    is the lock for all that happens to it; several are locked in the order of their keys.
//! 2. **Decide**: the rules of [`lazaret_core::store::rules`] return effects, which are collected in memory.
//! 3. **Write**: the audit, if it changes, is locked; then all rows are written, an array for each column, and committed, in one round trip.
//!
//! A call that meets a deadlock, a serialization failure or a key that another call has inserted meanwhile is rolled back and made again. A
//! connection that is lost before the commit was sent has changed nothing; after that the outcome is unknown, and the error says so.
//!
//! # Modules
//!
//! - `contract/`, `audit`, `key_values`: the traits of [`lazaret_core::store`].
//! - `store`, `options`, `dsn`, `password`, `connector`, `hosts`, `tls`, `error`, `migrations`: opening, connections, errors of the driver, tables and their versions.
//! - `probe`: what a server permits, for people who set it up.
//! - `notifications`: `LISTEN` and `NOTIFY`.
//! - `inbox_source`: the inbox as a source.
//! - `transaction`, `unit`, `commit`, `statements`: the steps above.
//! - `letter_row`, `sequence_row`, `values`: what the rows hold.
//! - `ends`: the outbox.
//! - `group_notes`: what calls change in groups, without waiting for each other.
//! - `settlements`: settlements of many callers, collected for one call.
//! - `views`, `intake`, `leases`, `acts`, `retention`, `operations/`, `pauses`, `notes`: views for the rules.
//! - `listing`, `groups`, `query`: reads.
//! - [`tx`]: effects exactly once, for handlers that write to PostgreSQL. It needs no store.

mod acts;
mod audit;
mod commit;
mod connector;
mod contract;
mod dsn;
mod ends;
mod error;
mod group_expiry;
mod group_notes;
mod groups;
mod hosts;
mod inbox_source;
mod intake;
mod key_values;
mod leases;
mod letter_arrays;
mod letter_row;
mod listing;
mod migrations;
mod notes;
mod notifications;
mod operations;
mod options;
mod password;
mod pauses;
#[cfg(test)]
mod plans;
mod probe;
mod query;
mod retention;
mod sequence_row;
mod settlements;
mod statements;
mod store;
mod tls;
mod transaction;
pub mod tx;
mod unit;
mod values;
mod views;

/// The driver, for programs that use it beside the store or with a [`Tx`].
pub use tokio_postgres as driver;

pub use connector::{Connector, driver_error};
pub use dsn::describe;
pub use error::refuses_writes;
pub use inbox_source::{Backlog, InboxLog, InboxOptions, InboxSource, InboxStatus, Posted};
pub use migrations::FORMAT_VERSION;
pub use options::{DEFAULT_SCHEMA, PostgresStoreOptions};
pub use probe::{Probe, probe, stored_value};
pub use store::PostgresStore;
pub use tx::{ExactlyOnce, ExactlyOnceOptions, Marks, Tx};
