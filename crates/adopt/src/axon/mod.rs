//! Axon's dead-letter tables in PostgreSQL. An [`Adoption`] turns the entries of one processing group
//! into letters.
//!
//! Axon's sequenced dead-letter queue keeps its letters in one table for all processing groups. The
//! layout depends on the version (4.x and 5.x) and on the adapter (JDBC and JPA). The table is found
//! under both of its names, `DeadLetterEntry` and `dead_letter_entry`, and the columns reveal the
//! layout.
//!
//! - **In order** (I2): the letters of a sequence keep their order from Axon. Letters that never failed
//!   themselves wait behind the head, as they do in Axon.
//! - **Idempotent** (I8): the id of a message is Axon's event identifier. Each run reads the whole
//!   group, and recognises entries that already have a letter, open or closed.
//! - **Read-only**: nothing is written to Axon's table. Stop the event processors of the group first.
//!   Otherwise they and Lazaret would process the same events.
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
//! - `layout`: finds the columns of a table and their meaning.
//! - `entry`: converts a row to a [`ForeignLetter`](crate::ForeignLetter).
//! - `table`: reads the table as a [`DeadLetterSource`](crate::DeadLetterSource).

mod adoption;
mod entry;
mod layout;
mod table;

pub use adoption::{AdoptError, Adoption, Preview, Report};
pub use layout::TABLES;
pub use table::{EntryCursor, GroupCount};

/// The connection used to read the table.
pub use tokio_postgres::Client;

pub use crate::error::AdoptErrorKind;
pub use crate::progress::Tally;
pub use crate::target::{Expiry, Target};
