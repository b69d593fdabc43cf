//! The contract of a place that holds dead letters of another framework.

use async_trait::async_trait;
use lazaret_core::source::SourceError;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::foreign::ForeignLetter;

/// How far a source was read. It is stored in the checkpoint; its default is the beginning.
pub trait Cursor: Clone + Default + PartialEq + Serialize + DeserializeOwned + Send + Sync {
    /// The place of one dead letter.
    type Place: Send + Sync;

    /// Moves back so that reading continues at this place, unless it continues before it already.
    fn move_back_to(&mut self, place: &Self::Place);

    /// Returns whether reading continues after this place.
    fn is_past(&self, place: &Self::Place) -> bool;
}

/// What was found at one place.
#[derive(Clone, Debug)]
pub struct Found<P> {
    /// The place, for the cursor.
    pub place: P,
    /// The place in readable form: topic, partition and offset, or table and key.
    pub address: String,
    /// What it holds.
    pub content: Content,
}

/// What a place holds. Whatever is not adopted is counted and left where it is.
#[derive(Clone, Debug, PartialEq)]
pub enum Content {
    /// A dead letter.
    Letter(Box<ForeignLetter>),
    /// A dead letter that was dealt with, as its framework or its users recorded.
    Closed,
    /// Not recognised as a dead letter; with the reason, if there is more than one.
    Unknown(Option<String>),
}

/// `None` is not recognised as a dead letter.
impl From<Option<ForeignLetter>> for Content {
    fn from(letter: Option<ForeignLetter>) -> Self {
        letter.map_or(Self::Unknown(None), |letter| Self::Letter(Box::new(letter)))
    }
}

/// A place that holds dead letters of another framework: a topic, a table, a collection. Reading changes nothing there.
#[async_trait]
pub trait DeadLetterSource: Send {
    /// How far it was read.
    type Cursor: Cursor;

    /// Opens it at a cursor. Called once, before anything is read.
    async fn open(&mut self, cursor: Self::Cursor) -> Result<(), SourceError>;

    /// Returns the next dead letters in order, a bounded number of them (I7); none when everything was read. A source that
    /// follows new dead letters waits for them. Cancellation must not lose any.
    async fn read(&mut self) -> Result<Vec<Found<<Self::Cursor as Cursor>::Place>>, SourceError>;

    /// Returns where reading continues after everything that was returned.
    fn cursor(&self) -> Self::Cursor;

    /// Returns how many places remain up to the end, approximately.
    fn remaining(&self) -> u64;

    /// Returns how many dead letters were deleted after the cursor it was opened at, before they were read.
    fn deleted(&self) -> u64 {
        0
    }
}
