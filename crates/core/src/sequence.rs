//! Sequences: which messages must be handled in order.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::letter::LetterId;
use crate::message::Message;

/// The start of the sequence of a message that has no key, or no order.
const ALONE: &str = "~m:";
/// The start of the sequence of a dead letter that left its own.
const DETACHED: &str = "~d:";

/// The name of a sequence. Messages with one sequence id are handled one after the other, in their order.
///
/// A printable key is its own sequence id, so that operators can type it. Other keys get a form that starts with
/// `~`: `~empty`, `~x:` and hexadecimal digits, `~m:` and the message id where there is no key. No two different
/// keys share a sequence id. A dead letter that left its sequence has one that starts with `~d:`
/// ([`SequenceId::detached`]).
///
/// ```
/// use lazaret_core::{Message, Position, SequenceId};
/// let message = Message::new("evt-1", "orders", Position::new(0, 0));
/// assert_eq!(SequenceId::by_key(&message).as_str(), "~m:evt-1");
/// assert_eq!(SequenceId::by_key(&message.clone().with_key("order-7")).as_str(), "order-7");
/// assert_eq!(SequenceId::by_key(&message.clone().with_key("")).as_str(), "~empty");
/// assert_eq!(SequenceId::by_key(&message.with_key("~\n")).as_str(), "~x:7e0a");
/// ```
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SequenceId(Arc<str>);

impl SequenceId {
    /// A sequence id from its text, as given by a user's own policy or read from a store.
    pub fn new(text: impl Into<Arc<str>>) -> Self {
        Self(text.into())
    }

    /// The sequence of a message by its key.
    pub fn by_key(message: &Message) -> Self {
        Self(key_text(message).into())
    }

    /// The sequence that holds one message alone.
    pub fn alone(message: &Message) -> Self {
        Self(format!("{ALONE}{}", message.id).into())
    }

    /// The sequence of a letter that died and left `origin`, so that the letters behind it go on: `~d:`, its id and the origin.
    ///
    /// A sequence that [stands alone](Self::stands_alone) has nobody to go on, and stays as it is.
    ///
    /// ```
    /// use lazaret_core::{LetterId, MessageId, QueueName, SequenceId};
    /// let letter = LetterId::of(&QueueName::of("a", "a"), &MessageId::from("evt-1"));
    /// let detached = SequenceId::from("order-7").detached(letter);
    /// assert_eq!(detached.as_str(), format!("~d:{letter}:order-7"));
    /// assert_eq!(detached.origin().unwrap().as_str(), "order-7");
    /// assert_eq!(detached.detached(letter), detached);
    /// assert_eq!(SequenceId::from("order-7").origin(), None);
    /// ```
    #[must_use]
    pub fn detached(&self, letter: LetterId) -> Self {
        if self.stands_alone() { self.clone() } else { Self(format!("{DETACHED}{letter}:{self}").into()) }
    }

    /// The sequence that a dead letter left, if this is the one it went to.
    pub fn origin(&self) -> Option<Self> {
        let (_, origin) = self.0.strip_prefix(DETACHED)?.split_once(':')?;
        Some(Self(origin.into()))
    }

    /// Returns whether the sequence is made for one letter: no other one waits behind it.
    pub fn stands_alone(&self) -> bool {
        self.0.starts_with(ALONE) || self.0.starts_with(DETACHED)
    }

    /// The id as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for SequenceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for SequenceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&*self.0, f)
    }
}

impl From<&str> for SequenceId {
    fn from(text: &str) -> Self {
        Self(text.into())
    }
}

/// The user's own rule: a pure function of the message. `None` means that the message has no sequence.
pub type SequencingFn = dyn Fn(&Message) -> Option<SequenceId> + Send + Sync;

/// The sequencing policy: maps a message to its sequence.
#[derive(Clone, Default)]
pub enum Sequencing {
    /// By key; a message without a key is a sequence of its own. This is the default.
    #[default]
    Key,
    /// By the value of a header; without it, by key.
    Header(Arc<str>),
    /// By a JSON pointer into the payload; if there is no value, by key.
    Json(Arc<str>),
    /// All messages of a partition in one sequence.
    Partition,
    /// Every message is a sequence of its own: no order.
    Alone,
    /// By a function of the user; if it returns none, the message is a sequence of its own.
    Custom(Arc<SequencingFn>),
}

impl Sequencing {
    /// The text of the sequence id, borrowed from the message where it can be.
    ///
    /// Pure; a [`Custom`](Self::Custom) rule may panic, and the caller must be ready for that.
    pub fn text<'m>(&self, message: &'m Message) -> Cow<'m, str> {
        match self {
            Self::Key => key_text(message),
            Self::Header(name) => match message.headers.find(name) {
                Some(value) => bytes_text(value),
                None => key_text(message),
            },
            Self::Json(pointer) => json_text(message, pointer).unwrap_or_else(|| key_text(message)),
            Self::Partition => format!("~p:{}/{}", message.stream, message.position.partition).into(),
            Self::Alone => format!("{ALONE}{}", message.id).into(),
            Self::Custom(rule) => match rule(message) {
                Some(id) => id.as_str().to_owned().into(),
                None => format!("{ALONE}{}", message.id).into(),
            },
        }
    }

    /// The sequence id of a message.
    pub fn id(&self, message: &Message) -> SequenceId {
        SequenceId(self.text(message).into())
    }
}

impl fmt::Debug for Sequencing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Key => f.write_str("key"),
            Self::Header(name) => write!(f, "header:{name}"),
            Self::Json(pointer) => write!(f, "json:{pointer}"),
            Self::Partition => f.write_str("partition"),
            Self::Alone => f.write_str("none"),
            Self::Custom(_) => f.write_str("custom"),
        }
    }
}

fn key_text(message: &Message) -> Cow<'_, str> {
    match &message.key {
        Some(key) => bytes_text(key),
        None => format!("{ALONE}{}", message.id).into(),
    }
}

/// Returns whether a text has no control characters. Fast for ASCII, as nearly all keys are.
fn is_printable(text: &str) -> bool {
    match text.is_ascii() {
        true => !text.bytes().any(|byte| byte.is_ascii_control()),
        false => !text.chars().any(char::is_control),
    }
}

/// A lossless text for any bytes: themselves where they are printable, an escaped form otherwise.
fn bytes_text(bytes: &[u8]) -> Cow<'_, str> {
    if bytes.is_empty() {
        return "~empty".into();
    }
    match std::str::from_utf8(bytes) {
        Ok(text) if bytes[0] != b'~' && is_printable(text) => text.into(),
        _ => {
            let mut escaped = String::with_capacity(3 + 2 * bytes.len());
            escaped.push_str("~x:");
            for byte in bytes {
                escaped.push(char::from_digit(u32::from(byte >> 4), 16).expect("a nibble is a hex digit"));
                escaped.push(char::from_digit(u32::from(byte & 15), 16).expect("a nibble is a hex digit"));
            }
            escaped.into()
        }
    }
}

fn json_text<'m>(message: &'m Message, pointer: &str) -> Option<Cow<'m, str>> {
    let value: serde_json::Value = serde_json::from_slice(message.payload.as_ref()?).ok()?;
    match value.pointer(pointer)? {
        serde_json::Value::String(text) => Some(bytes_text(text.as_bytes()).into_owned().into()),
        serde_json::Value::Null => None,
        other => Some(bytes_text(other.to_string().as_bytes()).into_owned().into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::Position;

    fn message() -> Message {
        Message::new("m1", "orders", Position::new(3, 9))
    }

    #[test]
    fn different_keys_never_share_a_sequence() {
        // I2, I5: null, empty, printable, binary and look-alike keys are all distinct.
        let keys: [Option<&[u8]>; 7] =
            [None, Some(b""), Some(b"a"), Some(b"~empty"), Some(b"~x:61"), Some(b"\xff\x00"), Some(b"~m:m1")];
        let ids: std::collections::HashSet<_> = keys
            .iter()
            .map(|key| {
                let mut m = message();
                m.key = key.map(bytes::Bytes::from_static);
                SequenceId::by_key(&m)
            })
            .collect();
        assert_eq!(ids.len(), keys.len());
    }

    #[test]
    fn each_policy_reads_its_own_part_of_the_message() {
        let m = message().with_key("k").with_header("tenant", "acme").with_payload(r#"{"order":{"id":7}}"#);
        let table = [
            (Sequencing::Key, "k"),
            (Sequencing::Header("tenant".into()), "acme"),
            (Sequencing::Header("Tenant".into()), "acme"),
            (Sequencing::Header("absent".into()), "k"),
            (Sequencing::Json("/order/id".into()), "7"),
            (Sequencing::Json("/nowhere".into()), "k"),
            (Sequencing::Partition, "~p:orders/3"),
            (Sequencing::Alone, "~m:m1"),
            (Sequencing::Custom(Arc::new(|m: &Message| Some(SequenceId::new(m.stream.as_str())))), "orders"),
            (Sequencing::Custom(Arc::new(|_: &Message| None)), "~m:m1"),
        ];
        for (policy, expected) in table {
            assert_eq!(policy.text(&m), expected, "{policy:?}");
        }
    }

    #[test]
    fn a_payload_that_is_not_json_falls_back_to_the_key() {
        let m = message().with_key("k").with_payload("{broken");
        assert_eq!(Sequencing::Json("/a".into()).text(&m), "k");
    }
}
