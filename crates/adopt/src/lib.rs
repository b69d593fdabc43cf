//! Adopts dead letters of other frameworks. They become letters of a consumer, with their cause,
//! attempts and order.
//!
//! A framework keeps a failed message somewhere, with a description of its origin and its failure. A
//! [`DeadLetterSource`] reads that place and returns each message as a [`ForeignLetter`]. [`adopt`]
//! turns them into letters of a [`Target`] queue, hands them off and saves its progress:
//!
//! - **Idempotent** (I8): copies of a message become one letter, and adopting again creates none.
//! - **Without claims** (I1): an adopted letter says nothing about the messages that a source delivers,
//!   whatever id and position it names.
//! - **Resumable**: the checkpoint in the store moves only when letters are durable. After a crash, the
//!   next run continues there.
//! - **In order** (I2): the letters of a sequence are in the order of their original positions.
//! - **Nothing vanishes** (I11): dead letters that cannot be adopted are counted and named.
//!
//! The generic part depends on no framework and no driver. Each kind of place has its own module behind
//! a feature. A new kind is a new folder that implements [`DeadLetterSource`]:
//!
//! - `kafka` (feature `kafka`): dead-letter topics of Spring Kafka, Kafka Connect, Kafka Streams and
//!   Lazaret itself.
//! - `flowwarden` (feature `mongodb`): FlowWarden's collections `_fw_dlq` and `_fw_checkpoints`.
//! - `axon` (feature `postgres`): the dead-letter tables of Axon.
//! - `mirror` (feature `kafka`): the opposite direction, writing letters to a topic. `flowwarden` also
//!   copies letters to a collection.
//!
//! Modules: `source` (the contract), `foreign` (a foreign dead letter), `target` (the queue, and how a
//! foreign dead letter becomes a letter), `copies` (lookup of letters that the queue already holds),
//! `run` and `progress` (hand-off and checkpoint). In `kafka/`, `topic` reads, `framework` and one file
//! per framework parse headers, `decode` combines them, and `adoption` configures a run. In
//! `flowwarden/`, `collection` reads, `document` decodes, `adoption` configures a run, `position` takes
//! over the position of a stream, and `copies` writes letters. In `axon/`, `layout` finds the columns,
//! `table` reads, `entry` decodes, and `adoption` configures a run. `java` parses stack traces for all
//! of them, and `preview` shows what a run would do.
//!
//! ```
//! use async_trait::async_trait;
//! use lazaret_adopt::{Content, Cursor, DeadLetterSource, ForeignLetter, Found, Target, adopt};
//! use lazaret_core::source::SourceError;
//! use lazaret_core::store::LetterStore;
//! use lazaret_core::{Failure, Message, Position, QueueName, Reason};
//! use lazaret_memory::MemoryStore;
//! use serde::{Deserialize, Serialize};
//!
//! /// The row that is read next.
//! #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
//! struct Row(u64);
//!
//! impl Cursor for Row {
//!     type Place = u64;
//!
//!     fn move_back_to(&mut self, row: &u64) {
//!         self.0 = self.0.min(*row);
//!     }
//!
//!     fn is_past(&self, row: &u64) -> bool {
//!         *row < self.0
//!     }
//! }
//!
//! /// A table of failed orders.
//! struct Table {
//!     rows: Vec<&'static str>,
//!     next: u64,
//! }
//!
//! #[async_trait]
//! impl DeadLetterSource for Table {
//!     type Cursor = Row;
//!
//!     async fn open(&mut self, Row(next): Row) -> Result<(), SourceError> {
//!         self.next = next;
//!         Ok(())
//!     }
//!
//!     async fn read(&mut self) -> Result<Vec<Found<u64>>, SourceError> {
//!         let start = self.next;
//!         self.next = self.rows.len() as u64;
//!         let found = (start..self.next).map(|row| {
//!             let message = Message::new(format!("order-{row}"), "orders", Position::new(0, row));
//!             let cause = Failure::new(Reason::HANDLER_ERROR, "SqlError", self.rows[row as usize]);
//!             let letter = ForeignLetter::new("shop-table", message, cause);
//!             Found { place: row, address: format!("failed_orders/{row}"), content: Content::Letter(Box::new(letter)) }
//!         });
//!         Ok(found.collect())
//!     }
//!
//!     fn cursor(&self) -> Row {
//!         Row(self.next)
//!     }
//!
//!     fn remaining(&self) -> u64 {
//!         self.rows.len() as u64 - self.next
//!     }
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let store = MemoryStore::default();
//! let target = Target::new(QueueName::of("shop", "shop"));
//! let mut table = Table { rows: vec!["deadlock", "no such product"], next: 0 };
//! let checkpoint = "adopt/shop/failed_orders";
//! let report = adopt(&store, &target, checkpoint, &mut table, std::future::pending()).await?;
//! assert_eq!((report.run.adopted, report.next), (2, Row(2)));
//!
//! let counts = store.counts(&QueueName::of("shop", "shop")).await?;
//! assert_eq!(counts.open(), 2);
//! # Ok(())
//! # }
//! ```

#[cfg(feature = "postgres")]
pub mod axon;
mod copies;
mod error;
#[cfg(feature = "mongodb")]
pub mod flowwarden;
mod foreign;
#[cfg(any(feature = "kafka", feature = "mongodb", feature = "postgres"))]
mod java;
#[cfg(feature = "kafka")]
pub mod kafka;
#[cfg(feature = "kafka")]
pub mod mirror;
#[cfg(any(feature = "kafka", feature = "mongodb", feature = "postgres"))]
mod preview;
mod progress;
mod run;
mod source;
mod target;

pub use error::{AdoptError, AdoptErrorKind};
pub use foreign::ForeignLetter;
pub use progress::{Report, Tally};
pub use run::adopt;
pub use source::{Content, Cursor, DeadLetterSource, Found};
pub use target::{ADOPTED_FROM, Expiry, Target};
