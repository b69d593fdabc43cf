//! FlowWarden's collections: [`Adoption`] makes letters of its dead letters, and [`adopt_position`] lets the stream go on where
//! FlowWarden stopped.
//!
//! FlowWarden writes an event that failed for good to the collection `_fw_dlq`, with its document, its resume token and its error.
//! The adoption restores each as the message that the change stream delivers for the same event: id, key, position, operation and
//! document. Its position in a stream is in the collection `_fw_checkpoints`.
//!
//! - **Idempotent** (I8): the id of a message is made of its resume token. FlowWarden's ids are random, so one event may be in the
//!   collection twice; it makes one letter. Each run reads the whole collection, and finds again what has a letter, open or closed.
//! - **Read-only**: nothing is written to FlowWarden's collections.
//! - **In order** (I2): letters of one document are in the order of its changes.
//! - **Beside letters of Lazaret**: the store in MongoDB may use the same collection. Its letters are never read as FlowWarden's.
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
//! - `document`: from a document to a [`ForeignLetter`](crate::ForeignLetter).
//! - `collection`: the collection as a [`DeadLetterSource`](crate::DeadLetterSource).
//! - `preview`: what an adoption would do.
//! - `position`: where a stream stopped.
//! - `copies`: the other direction, letters that are copied into a collection.

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

/// The error of reading a collection, with what a person can do.
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
