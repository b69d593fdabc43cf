//! Messages: one event as it arrived, and its names.

mod id;
mod interned;
mod stream_name;

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use bytes::Bytes;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::relay::Hop;

pub use id::{MessageId, PositionIds};
pub use stream_name::StreamName;

/// Makes a cheap, immutable name type: an `Arc<str>` with a meaning.
macro_rules! name_type {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(Arc<str>);

        impl $name {
            /// Makes the name from any text.
            pub fn new(text: impl Into<Arc<str>>) -> Self {
                Self(text.into())
            }

            /// The name as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(&*self.0, f)
            }
        }

        impl From<&str> for $name {
            fn from(text: &str) -> Self {
                Self(text.into())
            }
        }

        impl From<String> for $name {
            fn from(text: String) -> Self {
                Self(text.into())
            }
        }

        impl AsRef<str> for $name {
            fn as_ref(&self) -> &str {
                &self.0
            }
        }
    };
}

name_type! {
    /// The name of a consumer: a source, its handlers and its policy.
    ConsumerName
}
name_type! {
    /// The letters of one component, written `consumer/component`.
    QueueName
}

impl QueueName {
    /// The queue of one component of a consumer.
    ///
    /// ```
    /// use lazaret_core::QueueName;
    /// assert_eq!(QueueName::of("orders", "projection").as_str(), "orders/projection");
    /// ```
    pub fn of(consumer: &str, component: &str) -> Self {
        Self::new(format!("{consumer}/{component}"))
    }

    /// The consumer part: everything before the last slash.
    pub fn consumer(&self) -> &str {
        self.as_str().rsplit_once('/').map_or(self.as_str(), |(consumer, _)| consumer)
    }

    /// The component part: everything after the last slash.
    pub fn component(&self) -> &str {
        self.as_str().rsplit_once('/').map_or(self.as_str(), |(_, component)| component)
    }
}

/// One partition of a stream, in one [incarnation](crate::incarnation) of it. A source without partitions has one, number 0.
///
/// ```
/// use lazaret_core::Partition;
/// let first = Partition::new("orders", 3);
/// assert_eq!(first.to_string(), "orders/3");
/// assert_eq!(first.in_incarnation(2).to_string(), "orders~2/3");
/// assert_ne!(first, first.in_incarnation(2));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Partition {
    /// Its stream.
    pub stream: StreamName,
    /// Its number.
    pub index: u32,
    /// The [incarnation](crate::incarnation) of the stream: 0 for the first one.
    #[serde(default, skip_serializing_if = "is_first")]
    pub incarnation: u32,
}

impl Partition {
    /// A partition by stream and number, in the first incarnation of the stream.
    pub fn new(stream: impl Into<StreamName>, index: u32) -> Self {
        Self { stream: stream.into(), index, incarnation: 0 }
    }

    /// The partition of the same number in another incarnation of the stream.
    #[must_use]
    pub fn in_incarnation(&self, incarnation: u32) -> Self {
        Self { stream: self.stream.clone(), index: self.index, incarnation }
    }

    /// The number by which stores keep the partition, see [`PartitionNumber`].
    pub const fn number(&self) -> PartitionNumber {
        PartitionNumber { index: self.index, incarnation: self.incarnation }
    }

    /// Returns whether both are the same partition, in whatever incarnations of the stream.
    pub fn has_place_of(&self, other: &Self) -> bool {
        self.index == other.index && self.stream == other.stream
    }
}

impl fmt::Display for Partition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.incarnation {
            0 => write!(f, "{}/{}", self.stream, self.index),
            incarnation => write!(f, "{}~{incarnation}/{}", self.stream, self.index),
        }
    }
}

/// Returns whether an incarnation is the first one, which is not written.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
const fn is_first(incarnation: &u32) -> bool {
    *incarnation == 0
}

/// A partition and the incarnation of its stream as one number, for stores: grants, horizons, attempt notes and the order of letters
/// belong to one incarnation, and a number keeps them apart without a column of its own. In the first incarnation it is the index.
///
/// ```
/// use lazaret_core::message::PartitionNumber;
/// let first = PartitionNumber { index: 3, incarnation: 0 };
/// assert_eq!(first.stored(), 3);
/// let later = PartitionNumber { incarnation: 2, ..first };
/// assert_eq!(PartitionNumber::from_stored(later.stored()), Some(later));
/// assert_eq!(PartitionNumber::from_stored(-1), None);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PartitionNumber {
    /// The number of the partition in its stream.
    pub index: u32,
    /// The incarnation of the stream.
    pub incarnation: u32,
}

impl PartitionNumber {
    /// The highest incarnation that a stored number has room for.
    pub const MAX_INCARNATION: u32 = i32::MAX as u32;

    /// The number as it is stored: the index in the lower half, the incarnation in the upper one.
    pub const fn stored(self) -> i64 {
        debug_assert!(self.incarnation <= Self::MAX_INCARNATION);
        ((self.incarnation as i64) << 32) | self.index as i64
    }

    /// The partition of this number in a stream.
    pub fn of(self, stream: impl Into<StreamName>) -> Partition {
        Partition { stream: stream.into(), index: self.index, incarnation: self.incarnation }
    }

    /// Reads a stored number. `None` for a negative one, which no store writes.
    pub const fn from_stored(number: i64) -> Option<Self> {
        if number < 0 {
            return None;
        }
        Some(Self { index: (number & u32::MAX as i64) as u32, incarnation: (number >> 32) as u32 })
    }
}

/// The position of a message in its partition.
///
/// Offsets never decrease inside a partition and mean the same after a restart, within one [incarnation](crate::incarnation) of the
/// stream. Two messages may share one (the operations of one MongoDB transaction do), so an offset is a place, not an identity.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Position {
    /// The partition's number in the message's stream.
    pub partition: u32,
    /// The [incarnation](crate::incarnation) of the stream: 0 for the first one.
    #[serde(default, skip_serializing_if = "is_first")]
    pub incarnation: u32,
    /// The place in the partition.
    pub offset: u64,
    /// What the source needs besides the offset to resume here, such as a resume token.
    pub token: Option<Bytes>,
}

impl Position {
    /// A position without a token, in the first incarnation of the stream.
    pub fn new(partition: u32, offset: u64) -> Self {
        Self { partition, incarnation: 0, offset, token: None }
    }

    /// A position without a token in a partition.
    pub const fn at(partition: PartitionNumber, offset: u64) -> Self {
        let PartitionNumber { index, incarnation } = partition;
        Self { partition: index, incarnation, offset, token: None }
    }

    /// The number by which stores keep its partition.
    pub const fn partition_number(&self) -> PartitionNumber {
        PartitionNumber { index: self.partition, incarnation: self.incarnation }
    }

    /// The partition of a stream in which it lies.
    pub fn partition_of(&self, stream: &StreamName) -> Partition {
        self.partition_number().of(stream.clone())
    }
}

/// Parses a position as it is [displayed](fmt::Display).
///
/// ```
/// use lazaret_core::Position;
/// let position: Position = "3~1:41".parse()?;
/// assert_eq!((position.partition, position.incarnation, position.offset), (3, 1, 41));
/// assert_eq!("3:41".parse::<Position>()?.to_string(), "3:41");
/// assert!("3:x".parse::<Position>().is_err());
/// # Ok::<(), lazaret_core::message::InvalidPosition>(())
/// ```
impl FromStr for Position {
    type Err = InvalidPosition;

    fn from_str(text: &str) -> Result<Self, InvalidPosition> {
        let parse = || {
            let (partition, offset) = text.split_once(':')?;
            let (index, incarnation) = match partition.split_once('~') {
                Some((index, incarnation)) => (index, incarnation.parse().ok()?),
                None => (partition, 0),
            };
            let number = PartitionNumber { index: index.parse().ok()?, incarnation };
            let is_valid = incarnation <= PartitionNumber::MAX_INCARNATION;
            is_valid.then_some(Self::at(number, offset.parse().ok()?))
        };
        parse().ok_or(InvalidPosition)
    }
}

/// A text that is no position.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("expected partition:offset, such as 3:41")]
pub struct InvalidPosition;

impl fmt::Debug for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.incarnation {
            0 => write!(f, "{}:{}", self.partition, self.offset),
            incarnation => write!(f, "{}~{incarnation}:{}", self.partition, self.offset),
        }
    }
}

/// The headers of a message: names may repeat, order is kept, values are bytes.
///
/// Where a source distinguishes null from empty, as Kafka does, a null value is read as an empty one and kept apart by
/// [`iter_nullable`](Self::iter_nullable).
///
/// ```
/// use lazaret_core::Headers;
/// let mut headers = Headers::new();
/// headers.push("tenant", "acme");
/// headers.push("tenant", "globex");
/// assert_eq!(headers.get("tenant").unwrap().as_ref(), b"acme");
/// assert_eq!(headers.get_all("tenant").count(), 2);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Headers(Vec<(Arc<str>, Option<Bytes>)>);

/// The value that a null is read as.
static EMPTY: Bytes = Bytes::new();

impl Headers {
    /// No headers.
    pub const fn new() -> Self {
        Self(Vec::new())
    }

    /// Adds a header behind those that are there.
    pub fn push(&mut self, name: impl Into<Arc<str>>, value: impl Into<Bytes>) {
        self.0.push((name.into(), Some(value.into())));
    }

    /// Adds a header whose value is null, which is not empty.
    pub fn push_null(&mut self, name: impl Into<Arc<str>>) {
        self.0.push((name.into(), None));
    }

    /// The first value under this name.
    pub fn get(&self, name: &str) -> Option<&Bytes> {
        self.iter().find(|(n, _)| *n == name).map(|(_, value)| value)
    }

    /// The first value under this name; if there is none, under the name in other cases. HTTP writes names in lower case,
    /// and configuration may use any case.
    ///
    /// ```
    /// use lazaret_core::Headers;
    /// let mut headers = Headers::new();
    /// headers.push("tenant", "acme");
    /// assert_eq!(headers.find("Tenant").unwrap().as_ref(), b"acme");
    /// headers.push("Tenant", "globex");
    /// assert_eq!(headers.find("Tenant").unwrap().as_ref(), b"globex");
    /// ```
    pub fn find(&self, name: &str) -> Option<&Bytes> {
        let other = || self.iter().find(|(n, _)| n.eq_ignore_ascii_case(name)).map(|(_, value)| value);
        self.get(name).or_else(other)
    }

    /// The first value under this name, if it is UTF-8.
    pub fn get_str(&self, name: &str) -> Option<&str> {
        self.get(name).and_then(|value| std::str::from_utf8(value).ok())
    }

    /// All values under this name, in order.
    pub fn get_all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a Bytes> {
        self.iter().filter(move |(n, _)| *n == name).map(|(_, value)| value)
    }

    /// All headers in order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Bytes)> {
        self.0.iter().map(|(name, value)| (&**name, value.as_ref().unwrap_or(&EMPTY)))
    }

    /// All headers in order, with null kept apart from empty, for serialisation.
    pub fn iter_nullable(&self) -> impl Iterator<Item = (&str, Option<&Bytes>)> {
        self.0.iter().map(|(name, value)| (&**name, value.as_ref()))
    }

    /// The number of headers.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns `true` when there are no headers.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The bytes of all names and values together.
    pub fn byte_size(&self) -> usize {
        self.iter().map(|(name, value)| name.len() + value.len()).sum()
    }
}

impl<N: Into<Arc<str>>, V: Into<Bytes>> FromIterator<(N, V)> for Headers {
    fn from_iter<I: IntoIterator<Item = (N, V)>>(pairs: I) -> Self {
        Self(pairs.into_iter().map(|(name, value)| (name.into(), Some(value.into()))).collect())
    }
}

/// The operation of a change event, for sources that provide it (MongoDB change streams).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Operation {
    /// A document was inserted.
    Insert,
    /// Fields of a document were changed.
    Update,
    /// A document was replaced whole.
    Replace,
    /// A document was deleted.
    Delete,
    /// The collection was dropped.
    Drop,
    /// The database was dropped.
    DropDatabase,
    /// The collection was renamed.
    Rename,
    /// The stream cannot continue.
    Invalidate,
    /// An operation that this version does not know.
    Other,
}

/// The schema of the payload, as far as the source provides it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Schema {
    /// The registry's id of the schema.
    pub id: Option<Arc<str>>,
    /// The version of the event type.
    pub version: Option<Arc<str>>,
}

/// One event as it arrived. Retries, letters and replays do not change it (I5).
///
/// ```
/// use lazaret_core::{Message, Position};
/// let message = Message::new("evt-1", "orders", Position::new(0, 41)).with_key("order-7").with_payload("{}");
/// assert_eq!(message.key.as_deref(), Some(&b"order-7"[..]));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Message {
    /// Its identity.
    pub id: MessageId,
    /// The stream it came from.
    pub stream: StreamName,
    /// Its position in the stream.
    pub position: Position,
    /// Its key. No key and an empty key are two different things.
    pub key: Option<Bytes>,
    /// The type of the event, if the source provides it.
    pub event_type: Option<Arc<str>>,
    /// The operation, for a change event.
    pub operation: Option<Operation>,
    /// Its headers.
    pub headers: Headers,
    /// Its bytes. `None` is a tombstone, which is not an empty payload.
    pub payload: Option<Bytes>,
    /// The media type of the payload, if the source provides it.
    pub content_type: Option<Arc<str>>,
    /// The schema of the payload, if the source provides it.
    pub schema: Option<Box<Schema>>,
    /// When it happened, or when the source received it.
    pub timestamp: Option<Timestamp>,
    /// The correlation id that ties it to other messages.
    pub correlation: Option<Arc<str>>,
    /// Set by a source that could not decode the raw bytes: the reason. Such a message fails in phase `decode`
    /// before any handler sees it, and `payload` holds the raw bytes.
    pub undecodable: Option<Arc<str>>,
    /// Set by a source that redelivers a message which a [relay](crate::relay) published: its current position, and its attempts
    /// so far. Not a part of the message itself, so no letter keeps it.
    #[serde(skip)]
    pub hop: Option<Box<Hop>>,
}

impl Message {
    /// A message with an id and a place, and nothing else yet.
    pub fn new(id: impl Into<MessageId>, stream: impl Into<StreamName>, position: Position) -> Self {
        Self {
            id: id.into(),
            stream: stream.into(),
            position,
            key: None,
            event_type: None,
            operation: None,
            headers: Headers::new(),
            payload: None,
            content_type: None,
            schema: None,
            timestamp: None,
            correlation: None,
            undecodable: None,
            hop: None,
        }
    }

    /// The same message with this key.
    #[must_use]
    pub fn with_key(mut self, key: impl Into<Bytes>) -> Self {
        self.key = Some(key.into());
        self
    }

    /// The same message with this payload.
    #[must_use]
    pub fn with_payload(mut self, payload: impl Into<Bytes>) -> Self {
        self.payload = Some(payload.into());
        self
    }

    /// The same message with this event type.
    #[must_use]
    pub fn with_type(mut self, event_type: impl Into<Arc<str>>) -> Self {
        self.event_type = Some(event_type.into());
        self
    }

    /// The same message with one more header.
    #[must_use]
    pub fn with_header(mut self, name: impl Into<Arc<str>>, value: impl Into<Bytes>) -> Self {
        self.headers.push(name, value);
        self
    }

    /// The partition it originally came from.
    pub fn partition(&self) -> Partition {
        self.position.partition_of(&self.stream)
    }

    /// The id that its source makes for a message at this position without one: `stream/partition/offset`.
    pub fn position_id(&self) -> MessageId {
        MessageId::from(format!("{}/{}", self.partition(), self.position.offset))
    }

    /// The id of its mark in the duplicate filter, see [`MessageId::in_incarnation`].
    pub fn dedupe_id(&self) -> MessageId {
        self.id.in_incarnation(self.position.incarnation)
    }

    /// The partition and position that its source tracks and commits: the original ones, unless a relay published it.
    pub fn place(&self) -> (&StreamName, &Position) {
        match &self.hop {
            Some(hop) => (&hop.stream, &hop.position),
            None => (&self.stream, &self.position),
        }
    }

    /// The size of the payload in bytes; 0 for a tombstone.
    pub fn payload_len(&self) -> usize {
        self.payload.as_ref().map_or(0, Bytes::len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_null_key_is_not_an_empty_key() {
        // I5
        let null = Message::new("1", "s", Position::new(0, 0));
        let empty = null.clone().with_key("");
        assert_ne!(null, empty);
        assert_eq!(empty.key.as_deref(), Some(&b""[..]));
    }

    #[test]
    fn a_tombstone_is_not_an_empty_payload() {
        let tombstone = Message::new("1", "s", Position::new(0, 0));
        assert_ne!(tombstone, tombstone.clone().with_payload(""));
    }

    #[test]
    fn a_first_incarnation_is_written_as_if_there_were_none() {
        let (first, later) = (Partition::new("s", 3), Partition::new("s", 3).in_incarnation(1));
        assert_eq!(serde_json::to_string(&first).unwrap(), r#"{"stream":"s","index":3}"#);
        for partition in [first, later] {
            let position = Position::at(partition.number(), 7);
            assert_eq!(position.partition_of(&partition.stream), partition);
            let text = serde_json::to_string(&(&partition, &position)).unwrap();
            assert_eq!(serde_json::from_str::<(Partition, Position)>(&text).unwrap(), (partition, position));
        }
    }

    #[test]
    fn a_queue_name_gives_back_its_parts() {
        let queue = QueueName::of("team/orders", "projection");
        assert_eq!((queue.consumer(), queue.component()), ("team/orders", "projection"));
    }

    #[test]
    fn repeated_headers_keep_their_order() {
        let headers: Headers = [("a", "1"), ("b", "2"), ("a", "3")].into_iter().collect();
        let all: Vec<_> = headers.get_all("a").map(|v| v.as_ref()).collect();
        assert_eq!(all, [b"1", b"3"]);
        assert_eq!(headers.byte_size(), 6);
    }

    #[test]
    fn a_null_header_is_read_as_empty_and_kept_apart() {
        // I5
        let mut null = Headers::new();
        null.push_null("a");
        let empty: Headers = [("a", "")].into_iter().collect();
        assert_eq!(null.get("a"), empty.get("a"));
        assert_ne!(null, empty);
        assert_eq!(null.iter_nullable().next(), Some(("a", None)));
        let text = serde_json::to_string(&[&null, &empty]).unwrap();
        assert_eq!(text, r#"[[["a",null]],[["a",[]]]]"#);
        assert_eq!(serde_json::from_str::<Vec<Headers>>(&text).unwrap(), [null, empty]);
    }
}
