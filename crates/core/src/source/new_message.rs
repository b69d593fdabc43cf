//! A message that has no place in a stream yet.

use std::sync::Arc;

use bytes::Bytes;
use jiff::Timestamp;

use crate::message::{Headers, Message, MessageId, Position, StreamName};

/// A message as its sender describes it. The source assigns its position.
///
/// ```
/// use lazaret_core::Position;
/// use lazaret_core::source::NewMessage;
/// let new = NewMessage { key: Some("order-7".into()), payload: Some("{}".into()), ..NewMessage::default() };
/// let message = new.at("orders".into(), Position::new(0, 41));
/// assert_eq!(message.id.as_str(), "0:41", "without an id, the position is the id");
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NewMessage {
    /// Its identity, as the sender [gave](MessageId::given) it. Without one, the position becomes the id.
    pub id: Option<MessageId>,
    /// Its key. No key and an empty key are two different things.
    pub key: Option<Bytes>,
    /// The type of the event.
    pub event_type: Option<Arc<str>>,
    /// Its headers.
    pub headers: Headers,
    /// Its bytes. `None` is a tombstone, which is not an empty payload.
    pub payload: Option<Bytes>,
    /// The media type of the payload.
    pub content_type: Option<Arc<str>>,
    /// When it happened.
    pub timestamp: Option<Timestamp>,
    /// The correlation id that ties it to other messages.
    pub correlation: Option<Arc<str>>,
    /// Why its bytes could not be decoded, if so. Then `payload` holds the raw bytes.
    pub undecodable: Option<Arc<str>>,
}

impl NewMessage {
    /// Raw bytes that make no sense, and why.
    pub fn undecodable(raw: impl Into<Bytes>, why: impl Into<Arc<str>>) -> Self {
        Self { payload: Some(raw.into()), undecodable: Some(why.into()), ..Self::default() }
    }

    /// The message at its place.
    pub fn at(self, stream: StreamName, position: Position) -> Message {
        let id = self.id.map_or_else(|| MessageId::of_position(&position), MessageId::given);
        let mut message = Message::new(id, stream, position);
        message.key = self.key;
        message.event_type = self.event_type;
        message.headers = self.headers;
        message.payload = self.payload;
        message.content_type = self.content_type;
        message.timestamp = self.timestamp;
        message.correlation = self.correlation;
        message.undecodable = self.undecodable;
        message
    }

    /// Its total size in bytes.
    pub fn byte_size(&self) -> usize {
        let text = |text: &Option<Arc<str>>| text.as_ref().map_or(0, |text| text.len());
        let bytes = |bytes: &Option<Bytes>| bytes.as_ref().map_or(0, Bytes::len);
        self.id.as_ref().map_or(0, |id| id.as_str().len())
            + bytes(&self.key)
            + bytes(&self.payload)
            + self.headers.byte_size()
            + text(&self.event_type)
            + text(&self.content_type)
            + text(&self.correlation)
            + text(&self.undecodable)
    }
}

/// The outcome of a message posted to an inbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Posted {
    /// It is durable.
    Taken {
        /// Its id: the given one, or its position.
        id: MessageId,
        /// Its position.
        position: Position,
    },
    /// A message with this id was posted before. Nothing was changed.
    Known {
        /// The id.
        id: MessageId,
        /// The position of that message.
        position: Position,
    },
    /// There is no room now. The later messages of the same call were not taken either, so that none overtakes.
    Full,
    /// It has more bytes than the source may ever hold.
    TooLarge,
}
