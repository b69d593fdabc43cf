//! FlowWarden's collections. [`Adoption`] turns its dead letters into letters, and [`adopt_position`]
//! lets a stream continue where FlowWarden stopped.
//!
//! FlowWarden writes an event that failed permanently to the collection `_fw_dlq`, with its document,
//! its resume token and its error. The adoption restores the message that the change stream delivers for
//! the same event: id, key, position, operation and document. The collection `_fw_checkpoints` holds
//! FlowWarden's position in each stream.
//!
//! - **Idempotent** (I8): the id of a message is derived from its resume token. FlowWarden's ids are
//!   random, so an event may be in the collection twice. It still becomes only one letter. Each run
//!   reads the whole collection, and recognises documents that already have a letter, open or closed.
//! - **Read-only**: nothing is written to FlowWarden's collections.
//! - **In order** (I2): the letters of a document are in the order of its changes.
//! - **Next to letters of Lazaret**: the store in MongoDB may use the same collection. Its letters are
//!   never read as FlowWarden's.
//!
//! ```no_run
//! use std::sync::Arc;
//!
//! use lazaret_adopt::flowwarden::{Adoption, CHECKPOINTS, adopt_position};
//! use lazaret_core::store::{KeyValue, LetterStore};
//! use lazaret_source_mongodb::{MongoSourceOptions, TakeOverOptions};
//! use lazaret_source_mongodb::driver::Client;
//!
//! # async fn adopt<S: LetterStore + KeyValue>(store: Arc<S>) -> Result<(), Box<dyn std::error::Error>> {
//! // The options of the consumer, so that ids are the same.
//! let uri = "mongodb://127.0.0.1:27017";
//! let consumer = MongoSourceOptions::collection(uri, "shop", "orders");
//! let database = Client::with_uri_str(uri).await?.database("shop");
//!
//! let report = Adoption::of(&consumer, &database, "order-stream").run(&*store).await?;
//! println!("{} adopted, {} unknown: {:?}", report.run.adopted, report.run.unknown, report.unknown_at);
//!
//! let how = TakeOverOptions::default();
//! let checkpoints = database.collection(CHECKPOINTS);
//! let position = adopt_position(&consumer, store, &checkpoints, "order-stream", how).await?;
//! println!("{position:?}");
//! # Ok(())
//! # }
//! ```
//!
//! - `document`: converts a document to a [`ForeignLetter`](crate::ForeignLetter).
//! - `collection`: reads the collection as a [`DeadLetterSource`](crate::DeadLetterSource).
//! - `preview`: shows what an adoption would do.
//! - `position`: takes over the position of a stream.
//! - `copies`: copies letters to a collection, which is the opposite direction.

mod adoption;
mod collection;
mod copies;
mod document;
mod position;
mod preview;

pub use adoption::{AdoptError, Adoption, Report};
pub use collection::DocumentCursor;
pub use copies::Copies;
pub use position::{CHECKPOINTS, adopt_position};
pub use preview::{Preview, StreamCount};

use lazaret_core::source::SourceError;
use lazaret_source_mongodb::ErrorClass;
use lazaret_source_mongodb::driver::error::Error as DriverError;

pub use crate::error::AdoptErrorKind;
pub use crate::progress::Tally;

/// The collection of FlowWarden's dead letters.
pub const DEAD_LETTERS: &str = "_fw_dlq";

/// Returns the error of a failed read, with advice on how to fix it.
fn read_error(collection: &str, error: DriverError) -> SourceError {
    let class = ErrorClass::of(&error);
    let advice = match class {
        ErrorClass::Unauthorized => "check the credentials, and grant `find` on the collection",
        ErrorClass::Network => "check the address, the network and the server, then run it again",
        _ => "correct the cause, then run it again",
    };
    let text = format!("failed to read the collection {collection}: {}; {advice}", error.kind);
    let failed = match class.is_temporary() {
        true => SourceError::temporary(text),
        false => SourceError::permanent(text),
    };
    failed.with_source(error)
}
