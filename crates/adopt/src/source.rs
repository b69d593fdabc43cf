//! The contract of a place that holds dead letters of another framework.

use async_trait::async_trait;
use lazaret_core::source::SourceError;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::foreign::ForeignLetter;

/// The position up to which a source was read. It is stored in the checkpoint. Its default is the beginning.
pub trait Cursor: Clone + Default + PartialEq + Serialize + DeserializeOwned + Send + Sync {
    /// The place of one dead letter.
    type Place: Send + Sync;

    /// Moves back so that reading continues at this place, unless it already continues before it.
    fn move_back_to(&mut self, place: &Self::Place);

    /// Returns `true` if reading continues after this place.
    fn is_past(&self, place: &Self::Place) -> bool;
}

/// The finding at one place.
#[derive(Clone, Debug)]
pub struct Found<P> {
    /// The place, for the cursor.
    pub place: P,
    /// The place in readable form: topic, partition and offset, or table and key.
    pub address: String,
    /// The content of the place.
    pub content: Content,
}

/// The content of a place. Content that is not adopted is counted and left in place.
#[derive(Clone, Debug, PartialEq)]
pub enum Content {
    /// A dead letter.
    Letter(Box<ForeignLetter>),
    /// A dead letter that was dealt with, according to its framework or its users.
    Closed,
    /// Not recognised as a dead letter. Includes the reason if there is more than one possible.
    Unknown(Option<String>),
}

/// Converts `None` to content that is not recognised as a dead letter.
impl From<Option<ForeignLetter>> for Content {
    fn from(letter: Option<ForeignLetter>) -> Self {
        letter.map_or(Self::Unknown(None), |letter| Self::Letter(Box::new(letter)))
    }
}

/// A place that holds dead letters of another framework, such as a topic, a table or a collection.
/// Reading changes nothing there.
#[async_trait]
pub trait DeadLetterSource: Send {
    /// The position up to which it was read.
    type Cursor: Cursor;

    /// Opens the source at a cursor. Called once, before anything is read.
    async fn open(&mut self, cursor: Self::Cursor) -> Result<(), SourceError>;

    /// Returns the next dead letters in order, a bounded number of them (I7). Returns none when
    /// everything was read. A source that follows new dead letters waits for them. Cancellation must not
    /// lose any.
    async fn read(&mut self) -> Result<Vec<Found<<Self::Cursor as Cursor>::Place>>, SourceError>;

    /// Returns the position at which reading continues after everything that was returned.
    fn cursor(&self) -> Self::Cursor;

    /// Returns the approximate number of places up to the end.
    fn remaining(&self) -> u64;

    /// Returns the number of dead letters after the opening cursor that were deleted before they were read.
    fn deleted(&self) -> u64 {
        0
    }
}
