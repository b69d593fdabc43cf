//! Axon's dead-letter tables in PostgreSQL: an [`Adoption`] makes letters of the entries of one processing group.
//!
//! Axon's sequenced dead-letter queue keeps its letters in one table for all processing groups. The layout depends on the version
//! (4.x and 5.x) and on the adapter (JDBC and JPA): both names of the table, `DeadLetterEntry` and `dead_letter_entry`, are found, and
//! the columns tell the rest.
//!
//! - **In order** (I2): the letters of a sequence have the order that they have in Axon. Those that never failed themselves wait behind
//!   the head, as they do there.
//! - **Idempotent** (I8): the id of a message is Axon's event identifier. Each run reads the whole group, and finds again what has a
//!   letter, open or closed.
//! - **Read-only**: nothing is written to Axon's table. Stop the event processors of the group first: both would work on the same events.
//!
//! ```no_run
//! use lazaret_adopt::axon::Adoption;
//! use lazaret_adopt::Target;
//! use lazaret_core::QueueName;
//! use lazaret_core::store::{Checkpoints, LetterStore};
//! use tokio_postgres::NoTls;
//!
//! # async fn adopt<S: LetterStore + Checkpoints>(store: &S) -> Result<(), Box<dyn std::error::Error>> {
//! let (client, connection) = tokio_postgres::connect("host=localhost user=axon dbname=shop", NoTls).await?;
//! tokio::spawn(connection);
//!
//! let target = Target::new(QueueName::of("billing", "billing"));
//! let adoption = Adoption::of(&client, "com.example.billing", target);
//! println!("would adopt {}", adoption.preview(store).await?.counts.adopted);
//! let report = adoption.run(store).await?;
//! println!("{} adopted, {} not known: {:?}", report.run.adopted, report.run.unknown, report.unknown_at);
//! # Ok(())
//! # }
//! ```
//!
//! - `layout`: the columns of a table, and what they mean.
//! - `entry`: from a row to a [`ForeignLetter`](crate::ForeignLetter).
//! - `table`: the table as a [`DeadLetterSource`](crate::DeadLetterSource).

mod adoption;
mod entry;
mod layout;
mod table;

pub use adoption::{AdoptError, Adoption, Preview, Report};
pub use layout::TABLES;
pub use table::{EntryCursor, GroupCount};

/// The connection that the table is read on.
pub use tokio_postgres::Client;

pub use crate::error::AdoptErrorKind;
pub use crate::progress::Tally;
pub use crate::target::{Expiry, Target};
