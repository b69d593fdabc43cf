//! The identity of a message.

use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::{Arc, OnceLock};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::interned::{Interned, intern};
use super::{Partition, Position};

/// The identity of a message. It never changes: not on retry, not on replay (I5).
///
/// ```
/// let id = lazaret_core::MessageId::from("evt-123");
/// assert_eq!(id.as_str(), "evt-123");
/// ```
#[derive(Clone)]
pub struct MessageId(Text);

#[derive(Clone)]
enum Text {
    Given(Arc<str>),
    /// A prefix and an offset. Few of these ids are ever read, so the text is made when it is first asked for.
    Offset {
        prefix: Interned,
        offset: u64,
        text: OnceLock<Box<Arc<str>>>,
    },
}

/// Makes the ids of the messages of one partition whose senders gave none: `stream/partition/offset`.
///
/// The partition's name is kept until the process ends; an id allocates nothing before somebody reads it.
///
/// ```
/// use lazaret_core::Partition;
/// use lazaret_core::message::PositionIds;
/// let ids = PositionIds::of(&Partition::new("orders", 3));
/// assert_eq!(ids.at(41).as_str(), "orders/3/41");
/// let again = PositionIds::of(&Partition::new("orders", 3).in_incarnation(1));
/// assert_eq!(again.at(41).as_str(), "orders~1/3/41");
/// ```
#[derive(Clone, Copy, Debug)]
pub struct PositionIds(Interned);

impl PositionIds {
    /// Makes the ids of this partition.
    pub fn of(partition: &Partition) -> Self {
        Self(intern(&format!("{partition}/")))
    }

    /// Returns the id of the message at this offset.
    pub fn at(self, offset: u64) -> MessageId {
        MessageId(Text::Offset { prefix: self.0, offset, text: OnceLock::new() })
    }
}

/// Marks an id that a sender gave and that has the form of one that a source makes.
const ESCAPE: char = '=';
/// The digits of the largest offset.
const DIGITS: usize = 20;
/// Ids up to this length are written to the stack.
const ON_STACK: usize = 128;

impl MessageId {
    /// Makes the id from any text.
    pub fn new(text: impl Into<Arc<str>>) -> Self {
        Self(Text::Given(text.into()))
    }

    /// The id of a message whose sender gave none: its position.
    ///
    /// ```
    /// use lazaret_core::{MessageId, Position};
    /// assert_eq!(MessageId::of_position(&Position::new(0, 41)).as_str(), "0:41");
    /// ```
    pub fn of_position(position: &Position) -> Self {
        Self::from(position.to_string())
    }

    /// The id under which what is known of a message is kept apart per [incarnation](crate::incarnation) of its stream, such as its mark in
    /// the duplicate filter. In the first incarnation it is the id itself.
    ///
    /// ```
    /// use lazaret_core::MessageId;
    /// let id = MessageId::from("evt-123");
    /// assert_eq!(id.in_incarnation(0), id);
    /// assert_ne!(id.in_incarnation(1), id.in_incarnation(2));
    /// ```
    #[must_use]
    pub fn in_incarnation(&self, incarnation: u32) -> Self {
        match incarnation {
            0 => self.clone(),
            // The form of a position in a partition that no stream has: neither a sender nor a source can give such an id.
            later => Self::from(format!("{self}~{later}/{}/0", u32::MAX)),
        }
    }

    /// The id of a message whose sender gave this one.
    ///
    /// Sources make ids from positions for messages without one: `partition:offset` and `stream/partition/offset`, with the number
    /// of the [incarnation](crate::incarnation) after the first, as in `orders~1/3/41`. No sender can
    /// give such an id, or one message would be taken for another. A given id of that form gets a `=` in front.
    ///
    /// ```
    /// use lazaret_core::MessageId;
    /// assert_eq!(MessageId::given("evt-123".into()).as_str(), "evt-123");
    /// assert_eq!(MessageId::given("0:41".into()).as_str(), "=0:41");
    /// assert_eq!(MessageId::given("=0:41".into()).as_str(), "==0:41");
    /// assert_eq!(MessageId::given("orders/3/41".into()).as_str(), "=orders/3/41");
    /// ```
    #[must_use]
    pub fn given(id: Self) -> Self {
        match is_position(id.as_str().trim_start_matches(ESCAPE)) {
            true => Self::from(format!("{ESCAPE}{id}")),
            false => id,
        }
    }

    /// The id as text.
    pub fn as_str(&self) -> &str {
        match &self.0 {
            Text::Given(text) => text,
            Text::Offset { text, .. } => text.get_or_init(|| Box::new(self.with_str(|text| text.into()))),
        }
    }

    /// Calls a function with the id as text. Unlike [`as_str`](Self::as_str), it allocates nothing, for callers that see every
    /// message.
    pub fn with_str<T>(&self, call: impl FnOnce(&str) -> T) -> T {
        let (prefix, offset) = match &self.0 {
            Text::Given(text) => return call(text),
            Text::Offset { text, prefix, offset } => match text.get() {
                Some(text) => return call(text),
                None => (prefix.as_str(), *offset),
            },
        };
        let (digits, first) = digits(offset);
        let digits = &digits[first..];
        let mut buffer = [0; ON_STACK];
        let length = prefix.len() + digits.len();
        if length > ON_STACK {
            return call(&format!("{prefix}{offset}"));
        }
        buffer[..prefix.len()].copy_from_slice(prefix.as_bytes());
        buffer[prefix.len()..length].copy_from_slice(digits);
        call(std::str::from_utf8(&buffer[..length]).expect("a text and digits are UTF-8"))
    }
}

/// Writes a number digit by digit, from the last. Returns where it begins. Formatting takes several times as long.
fn digits(number: u64) -> ([u8; DIGITS], usize) {
    let mut digits = [0; DIGITS];
    let (mut first, mut rest) = (DIGITS, number);
    loop {
        first -= 1;
        digits[first] = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            return (digits, first);
        }
    }
}

/// Returns whether a text has the form of an id that a source makes from a position.
fn is_position(text: &str) -> bool {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if !text.ends_with(|last: char| last.is_ascii_digit()) {
        return false;
    }
    let is_partition = |text: &str| match text.split_once('~') {
        Some((partition, incarnation)) => is_number(partition) && is_number(incarnation),
        None => is_number(text),
    };
    let is_pair =
        text.split_once(':').is_some_and(|(partition, offset)| is_partition(partition) && is_number(offset));
    is_pair
        || text.rsplit_once('/').filter(|(_, offset)| is_number(offset)).is_some_and(|(before, _)| {
            let place = before.rsplit_once('/');
            place.is_some_and(|(stream, partition)| !stream.is_empty() && is_number(partition))
        })
}

impl PartialEq for MessageId {
    fn eq(&self, other: &Self) -> bool {
        match (&self.0, &other.0) {
            (
                Text::Offset { prefix, offset, .. },
                Text::Offset { prefix: other_prefix, offset: other_offset, .. },
            ) if std::ptr::eq(*prefix, *other_prefix) => offset == other_offset,
            _ => self.with_str(|text| other.with_str(|other| text == other)),
        }
    }
}

impl Eq for MessageId {}

impl PartialOrd for MessageId {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for MessageId {
    fn cmp(&self, other: &Self) -> Ordering {
        self.with_str(|text| other.with_str(|other| text.cmp(other)))
    }
}

impl Hash for MessageId {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.with_str(|text| text.hash(state));
    }
}

impl Serialize for MessageId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.with_str(|text| serializer.serialize_str(text))
    }
}

impl<'de> Deserialize<'de> for MessageId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Arc::deserialize(deserializer).map(|text: Arc<str>| Self::new(text))
    }
}

impl fmt::Display for MessageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.with_str(|text| f.write_str(text))
    }
}

impl fmt::Debug for MessageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.with_str(|text| fmt::Debug::fmt(text, f))
    }
}

impl From<&str> for MessageId {
    fn from(text: &str) -> Self {
        Self::new(text)
    }
}

impl From<String> for MessageId {
    fn from(text: String) -> Self {
        Self::new(text)
    }
}

impl AsRef<str> for MessageId {
    fn as_ref(&self) -> &str {
        self.as_str()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn no_sender_can_give_an_id_that_a_source_makes() {
        // I8: two messages with one id are one letter.
        let given = |text: &str| MessageId::given(text.into()).to_string();
        let kept = [
            "", "evt-1", "7", "0:", ":1", "0:1x", "a:1", "1:2:3", "a/1", "/1/2", "a/x/2", "=", "=evt", "٣:٣",
        ];
        for text in kept {
            assert_eq!(given(text), text);
        }
        let positions = [
            "0:125",
            "0~1:125",
            "00:1",
            "4294967296:18446744073709551616",
            "orders/0/1",
            "orders~1/0/1",
            "a/b/1/2",
            "//1/2",
        ];
        for text in positions {
            assert_eq!(given(text), format!("={text}"));
            assert_eq!(given(&given(text)), format!("=={text}"), "no two given ids become one");
        }
        let partition = Partition::new("s", 3);
        let again = partition.in_incarnation(1);
        let made = [
            MessageId::of_position(&Position::new(3, 7)),
            MessageId::of_position(&Position::at(again.number(), 7)),
            PositionIds::of(&partition).at(7),
            PositionIds::of(&again).at(7),
        ];
        assert_eq!(
            made.iter().collect::<HashSet<_>>().len(),
            made.len(),
            "no incarnation has the ids of another"
        );
        for id in made {
            assert_ne!(MessageId::given(id.clone()), id);
        }
    }

    #[test]
    fn an_id_is_the_same_before_and_after_it_was_read() {
        // I5
        let long = "é".repeat(200);
        for (stream, index, offset) in [("orders", 3, 0), ("a/b", 0, 41), (&*long, 7, 12), ("s", 1, u64::MAX)]
        {
            let text = format!("{stream}/{index}/{offset}");
            let ids = PositionIds::of(&Partition::new(stream, index));
            let (unread, read, given) = (ids.at(offset), ids.at(offset), MessageId::new(text.as_str()));
            assert_eq!(read.as_str(), text);
            for id in [&unread, &read, &read.clone()] {
                assert_eq!((id, id.cmp(&given), id.to_string()), (&given, Ordering::Equal, text.clone()));
                assert_eq!(format!("{id:?}"), format!("{text:?}"));
                assert!(HashSet::from([given.clone()]).contains(id));
                assert_eq!(serde_json::to_value(id).unwrap(), serde_json::to_value(&text).unwrap());
            }
            assert_eq!(unread, read);
            assert_ne!(unread, ids.at(offset ^ 1));
        }
    }

    #[test]
    fn an_id_takes_little_room_in_its_message() {
        assert!(size_of::<MessageId>() <= 40, "{}", size_of::<MessageId>());
    }
}
