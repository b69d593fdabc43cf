//! Effects exactly once: a handler's writes, and the mark that its message was handled, commit in one transaction.
//!
//! [`ExactlyOnce`] is a layer around a handler. Each attempt gets a transaction, in which the message is marked before the handler is
//! called. The handler writes with [`Tx`]. Its success commits both; its failure rolls both back, and the engine records the failure as
//! ever. A message that is marked is a duplicate, and does not reach the handler.
//!
//! ```no_run
//! use lazaret_core::HandlerError;
//! use lazaret_core::handler::{Handler, Json, handler};
//! use lazaret_store_postgres::{ExactlyOnce, ExactlyOnceOptions, Tx};
//!
//! #[derive(serde::Deserialize)]
//! struct Payment {
//!     account: i64,
//!     cents: i64,
//! }
//!
//! async fn book(Json(payment): Json<Payment>, tx: Tx) -> Result<(), HandlerError> {
//!     let sql = "UPDATE accounts SET cents = cents + $2 WHERE id = $1";
//!     tx.execute(sql, &[&payment.account, &payment.cents]).await?;
//!     Ok(())
//! }
//!
//! # async fn build() -> Result<(), lazaret_core::store::StoreError> {
//! let once = ExactlyOnce::connect("postgres://shop@db.example/shop", "payments", ExactlyOnceOptions::default()).await?;
//! let book = handler(book.layer(once));
//! # drop(book);
//! # Ok(())
//! # }
//! ```
//!
//! # What holds
//!
//! - **One effect.** The mark is a row with a primary key. Two attempts at one message, of two processes even, cannot both commit: the
//!   second waits for the first, and finds its mark or, if it was rolled back, none.
//! - **After a crash** between the commit and the settling of the message, the message comes again and is a duplicate. The same holds for
//!   a letter: its retry or replay finds the mark, and the letter is resolved.
//! - **After a lost response** to the commit the attempt counts as failed. Its retry finds out whether it was committed.
//!
//! Only what is written through [`Tx`] is covered. See docs/decisions/0053-effects-exactly-once.md.

mod layer;
mod marks;
mod options;

pub use layer::{ExactlyOnce, Tx};
pub use marks::{DEFAULT_MARKS, Marks};
pub use options::ExactlyOnceOptions;
