//! From a record to a message: byte for byte, with what its headers say about it.

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use bytes::Bytes;
use jiff::Timestamp;
use lazaret_core::message::Schema;
use lazaret_core::{Headers, Message, MessageId, Partition, Position, StreamName};
use rdkafka::message::{Headers as _, Message as Polled};

use crate::options::KafkaOptions;

/// The headers that tell the media type, the first that is there.
const CONTENT_TYPE_HEADERS: [&str; 2] = ["content-type", "ce_datacontenttype"];
/// Confluent's serializers write a zero and the id of the schema, four bytes, before the payload.
const FRAMED: u8 = 0;
const FRAME_BYTES: usize = 5;

/// How much memory small records share at most. Who keeps one of them keeps this much, so it is little.
const PAGE: usize = 16 * 1024;
/// Records with more bytes than this have memory of their own.
const SMALL: usize = PAGE / 4;

/// What is read of a record.
pub(crate) trait Record {
    /// Its key; none is not empty.
    fn key(&self) -> Option<&[u8]>;
    /// Its payload; none is not empty.
    fn payload(&self) -> Option<&[u8]>;
    /// Its time, in milliseconds.
    fn millis(&self) -> Option<i64>;
    /// Tells its headers, in their order.
    fn headers(&self, each: impl FnMut(&str, Option<&[u8]>)) -> Result<(), NotText>;
}

/// The name of a header is not UTF-8. Kafka says that it should be, and no broker looks.
#[derive(Debug)]
pub(crate) struct NotText;

/// What the safe client polled.
impl<M: Polled> Record for M {
    fn key(&self) -> Option<&[u8]> {
        Polled::key(self)
    }

    fn payload(&self) -> Option<&[u8]> {
        Polled::payload(self)
    }

    fn millis(&self) -> Option<i64> {
        self.timestamp().to_millis()
    }

    fn headers(&self, mut each: impl FnMut(&str, Option<&[u8]>)) -> Result<(), NotText> {
        // The client panics at names that are no UTF-8. That is this message's failure (I10).
        let tell =
            || Polled::headers(self).into_iter().flat_map(|h| h.iter()).for_each(|h| each(h.key, h.value));
        catch_unwind(AssertUnwindSafe(tell)).map_err(|_| NotText)
    }
}

/// Makes messages of records.
#[derive(Clone, Debug)]
pub(crate) struct Reader {
    /// What was copied and is not a message yet.
    page: Page,
    // Which headers mean what.
    id: Vec<Arc<str>>,
    event_type: Vec<Arc<str>>,
    correlation: Vec<Arc<str>>,
}

impl Reader {
    pub(crate) fn new(options: &KafkaOptions) -> Self {
        let names = |names: &[String]| names.iter().map(|name| name.as_str().into()).collect();
        Self {
            page: Page::default(),
            id: names(&options.id_headers),
            event_type: names(&options.type_headers),
            correlation: names(&options.correlation_headers),
        }
    }

    /// Copies a record of a partition, of which so many are at hand. It becomes a message soon, at the latest with
    /// [`finish`](Self::finish).
    pub(crate) fn copy(
        &mut self,
        record: &impl Record,
        offset: u64,
        at_hand: usize,
        place: &mut Place,
        into: &mut Vec<Message>,
    ) {
        let bytes = size_of(record);
        if !self.page.takes(bytes) {
            self.finish(place, into);
        }
        self.page.open(bytes, at_hand);
        self.page.write(record, offset);
    }

    /// Makes messages of all that was copied.
    pub(crate) fn finish(&mut self, place: &mut Place, into: &mut Vec<Message>) {
        let mut page = std::mem::take(&mut self.page);
        for Copied { offset, timestamp, parts } in page.give_out() {
            let id = self.id(&parts.headers).unwrap_or_else(|| place.of(offset));
            let position = Position::new(place.partition.index, offset);
            into.push(self.message(parts, id, place.partition.stream.clone(), position, timestamp));
        }
        self.page = page;
    }

    /// The message that a record is. `place` is its id unless a header has one.
    pub(crate) fn read(&self, record: &impl Record, offset: u64, place: &mut Place) -> Message {
        let parts = Parts::of(record);
        let id = self.id(&parts.headers).unwrap_or_else(|| place.of(offset));
        let position = Position::new(place.partition.index, offset);
        self.message(parts, id, place.partition.stream.clone(), position, time_of(record))
    }

    /// The id that the headers of a message give it.
    pub(crate) fn id(&self, headers: &Headers) -> Option<MessageId> {
        first(headers, &self.id).map(MessageId::from)
    }

    /// The message with these bytes, and what its headers say about it.
    pub(crate) fn message(
        &self,
        parts: Parts,
        id: MessageId,
        stream: StreamName,
        position: Position,
        timestamp: Option<Timestamp>,
    ) -> Message {
        let Parts { key, payload, headers, undecodable } = parts;
        let mut message = Message {
            event_type: None,
            operation: None,
            content_type: None,
            schema: schema(payload.as_deref()),
            timestamp,
            correlation: None,
            undecodable,
            hop: None,
            key,
            payload,
            headers,
            id,
            position,
            stream,
        };
        self.describe(&mut message);
        message
    }

    /// Writes down what the headers tell about a message.
    pub(crate) fn describe(&self, message: &mut Message) {
        let headers = &message.headers;
        if headers.is_empty() {
            return;
        }
        let content_type = CONTENT_TYPE_HEADERS.iter().find_map(|name| text(headers, name));
        message.content_type = content_type.map(Arc::from);
        message.event_type = first(headers, &self.event_type).map(Arc::from);
        message.correlation = first(headers, &self.correlation).map(Arc::from);
    }
}

/// The time of a record.
pub(crate) fn time_of(record: &impl Record) -> Option<Timestamp> {
    record.millis().and_then(|time| Timestamp::from_millisecond(time).ok())
}

/// The bytes of a record.
#[derive(Clone, Debug)]
pub(crate) struct Parts {
    pub(crate) key: Option<Bytes>,
    pub(crate) payload: Option<Bytes>,
    pub(crate) headers: Headers,
    /// Why the headers are not there.
    pub(crate) undecodable: Option<Arc<str>>,
}

impl Parts {
    /// The bytes of a record, in memory of their own.
    pub(crate) fn of(record: &impl Record) -> Self {
        let mut page = Page::default();
        page.open(size_of(record), 1);
        page.write(record, 0);
        let copied = page.give_out().next();
        copied.map_or_else(Self::nothing, |copied| copied.parts)
    }

    fn nothing() -> Self {
        Self { key: None, payload: None, headers: Headers::new(), undecodable: None }
    }
}

/// The bytes of some records, in one piece of memory. Taking and giving back memory for each part of each record, across
/// threads, costs more than all else. And the memory is shared out only when all is written: counting who holds it costs
/// little as long as nobody else does.
#[derive(Clone, Debug, Default)]
pub(crate) struct Page {
    bytes: Vec<u8>,
    records: Vec<Written>,
    headers: Vec<(Arc<str>, Value)>,
}

/// The value of a header.
#[derive(Clone, Debug)]
enum Value {
    Null,
    /// On the page.
    Here(Range<usize>),
    /// In memory of its own.
    Apart(Bytes),
}

/// Where the parts of a record lie on its page.
#[derive(Clone, Debug)]
struct Written {
    offset: u64,
    timestamp: Option<Timestamp>,
    key: Option<Range<usize>>,
    payload: Option<Range<usize>>,
    headers: usize,
    undecodable: bool,
}

/// A record that was copied.
pub(crate) struct Copied {
    pub(crate) offset: u64,
    pub(crate) timestamp: Option<Timestamp>,
    pub(crate) parts: Parts,
}

impl Page {
    /// Whether a record with so many bytes belongs here, besides those that are here already.
    pub(crate) fn takes(&self, bytes: usize) -> bool {
        self.records.is_empty() || (bytes <= SMALL && self.bytes.len() + bytes <= PAGE)
    }

    /// Takes memory for a record with so many bytes; for several of them if they are small.
    pub(crate) fn open(&mut self, bytes: usize, several: usize) {
        if self.records.is_empty() {
            let share = if bytes <= SMALL { (bytes * several).min(PAGE) } else { bytes };
            self.bytes.reserve_exact(share);
        }
    }

    /// Copies a record.
    pub(crate) fn write(&mut self, record: &impl Record, offset: u64) {
        let key = record.key().map(|key| put(&mut self.bytes, key));
        let payload = record.payload().map(|payload| put(&mut self.bytes, payload));
        let before = self.headers.len();
        let start = self.bytes.len();
        let told = record.headers(|name, value| {
            let value = match value {
                // Who keeps a neighbour should not keep these.
                Some(value) if self.bytes.len() - start + value.len() > SMALL => {
                    Value::Apart(Bytes::copy_from_slice(value))
                }
                Some(value) => Value::Here(put(&mut self.bytes, value)),
                None => Value::Null,
            };
            self.headers.push((name.into(), value));
        });
        if told.is_err() {
            self.headers.truncate(before);
        }
        let headers = self.headers.len() - before;
        let (timestamp, undecodable) = (time_of(record), told.is_err());
        self.records.push(Written { offset, timestamp, key, payload, headers, undecodable });
    }

    /// Gives out what was written, record by record, and is empty again.
    pub(crate) fn give_out(&mut self) -> impl Iterator<Item = Copied> {
        let bytes = Bytes::from(std::mem::take(&mut self.bytes));
        let mut headers = self.headers.drain(..);
        self.records.drain(..).map(move |record| {
            let part = |range: Option<Range<usize>>| range.map(|range| bytes.slice(range));
            let mut parts = Parts { payload: part(record.payload), ..Parts::nothing() };
            // Who keeps the key of a large record should not keep its payload.
            parts.key = match parts.payload.as_ref().is_some_and(|payload| payload.len() > SMALL) {
                true => record.key.map(|range| Bytes::copy_from_slice(&bytes[range])),
                false => part(record.key),
            };
            for (name, value) in headers.by_ref().take(record.headers) {
                match value {
                    Value::Null => parts.headers.push_null(name),
                    Value::Here(range) => parts.headers.push(name, bytes.slice(range)),
                    Value::Apart(value) => parts.headers.push(name, value),
                }
            }
            parts.undecodable = record.undecodable.then(|| "the name of a header is not UTF-8".into());
            Copied { offset: record.offset, timestamp: record.timestamp, parts }
        })
    }
}

fn put(bytes: &mut Vec<u8>, part: &[u8]) -> Range<usize> {
    let start = bytes.len();
    bytes.extend_from_slice(part);
    start..bytes.len()
}

/// How many bytes key and payload have.
pub(crate) fn size_of(record: &impl Record) -> usize {
    record.key().map_or(0, <[u8]>::len) + record.payload().map_or(0, <[u8]>::len)
}

/// Writes `topic/partition/offset` for one partition, again and again into the same text.
#[derive(Debug)]
pub(crate) struct Place {
    partition: Partition,
    text: String,
    /// How long the part before the offset is.
    fixed: usize,
}

impl Place {
    pub(crate) fn new(partition: &Partition) -> Self {
        let text = format!("{partition}/");
        Self { partition: partition.clone(), fixed: text.len(), text }
    }

    pub(crate) fn of(&mut self, offset: u64) -> MessageId {
        self.text.truncate(self.fixed);
        // The digits from the last to the first: this is done for every record, and formatting takes several times as long.
        let mut digits = [0; 20];
        let (mut at, mut rest) = (digits.len(), offset);
        loop {
            at -= 1;
            digits[at] = b'0' + (rest % 10) as u8;
            rest /= 10;
            if rest == 0 {
                break;
            }
        }
        self.text.push_str(std::str::from_utf8(&digits[at..]).unwrap_or_default());
        MessageId::from(self.text.as_str())
    }
}

/// The value of the first of these headers that is there and says something.
fn first<'a>(headers: &'a Headers, names: &[Arc<str>]) -> Option<&'a str> {
    names.iter().find_map(|name| text(headers, name))
}

fn text<'a>(headers: &'a Headers, name: &str) -> Option<&'a str> {
    headers.get_str(name).filter(|text| !text.is_empty())
}

/// The id of the schema, if the payload looks as if it had one. It is a hint for people, so a false one does no harm.
fn schema(payload: Option<&[u8]>) -> Option<Box<Schema>> {
    let frame = payload?.first_chunk::<FRAME_BYTES>()?;
    let [FRAMED, id @ ..] = *frame else { return None };
    Some(Box::new(Schema { id: Some(u32::from_be_bytes(id).to_string().into()), version: None }))
}

#[cfg(test)]
mod tests {
    use rdkafka::Timestamp as Time;
    use rdkafka::message::{Header, OwnedHeaders, OwnedMessage};

    use super::*;

    fn record(key: Option<&[u8]>, payload: Option<&[u8]>, headers: &[(&str, Option<&[u8]>)]) -> OwnedMessage {
        let owned = headers
            .iter()
            .fold(OwnedHeaders::new(), |headers, &(key, value)| headers.insert(Header { key, value }));
        let [key, payload] = [key, payload].map(|bytes| bytes.map(<[u8]>::to_vec));
        OwnedMessage::new(payload, key, "orders".to_owned(), Time::CreateTime(1_500), 2, 7, Some(owned))
    }

    fn read(record: &OwnedMessage) -> Message {
        let options = KafkaOptions::new("b", "g", ["orders"]).with_id_headers(["ce_id", "message-id"]);
        let mut place = Place::new(&Partition::new("orders", 2));
        place.of(123_456);
        Reader::new(&options).read(record, 7, &mut place)
    }

    #[test]
    fn null_and_empty_are_kept_apart() {
        // I5
        let null = read(&record(None, None, &[("a", None), ("a", Some(b"")), ("a", Some(b"1"))]));
        assert_eq!((null.key, null.payload), (None, None));
        let values: Vec<_> =
            null.headers.iter_nullable().map(|(_, value)| value.map(Bytes::as_ref)).collect();
        assert_eq!(values, [None, Some(&b""[..]), Some(b"1")]);
        let empty = read(&record(Some(b""), Some(b""), &[]));
        assert_eq!((empty.key.as_deref(), empty.payload.as_deref()), (Some(&b""[..]), Some(&b""[..])));
    }

    #[test]
    fn bytes_are_copied_as_they_are() {
        let all: Vec<u8> = (0..=255).collect();
        let message = read(&record(Some(&all), Some(&all), &[("binary", Some(&all))]));
        assert_eq!(message.key.as_deref(), Some(&*all));
        assert_eq!(message.payload.as_deref(), Some(&*all));
        assert_eq!(message.headers.get("binary").map(Bytes::as_ref), Some(&*all));
        assert_eq!(message.timestamp, Some(Timestamp::from_millisecond(1_500).unwrap()));
    }

    #[test]
    fn neighbours_share_memory_and_keep_their_bytes() {
        // I5, I7: a kept message keeps one page, and a large one keeps only itself.
        let options = KafkaOptions::new("b", "g", ["orders"]);
        let (mut reader, mut place) = (Reader::new(&options), Place::new(&Partition::new("orders", 2)));
        let payloads: Vec<Vec<u8>> =
            [0, 1, 1000, SMALL - 1, SMALL, 7, PAGE, 1000, 3000, 3000, 3000, 3000, 3000, 1]
                .iter()
                .enumerate()
                .map(|(number, size)| vec![number as u8; *size])
                .collect();
        let mut messages = Vec::new();
        for (offset, payload) in payloads.iter().enumerate() {
            let record = record(Some(b"k"), Some(payload), &[("h", Some(&payload[..payload.len() / 2]))]);
            let at_hand = payloads.len() - offset;
            reader.copy(&record, offset as u64, at_hand, &mut place, &mut messages);
            assert!(reader.page.bytes.len() <= PAGE + SMALL || reader.page.records.len() == 1);
        }
        reader.finish(&mut place, &mut messages);
        assert_eq!(messages.len(), payloads.len());
        for (offset, (message, payload)) in messages.iter().zip(&payloads).enumerate() {
            assert_eq!(message.id.as_str(), format!("orders/2/{offset}"));
            assert_eq!(message.position, Position::new(2, offset as u64));
            assert_eq!(
                (message.key.as_deref(), message.payload.as_deref()),
                (Some(&b"k"[..]), Some(&**payload))
            );
            assert_eq!(message.headers.get("h").map(Bytes::as_ref), Some(&payload[..payload.len() / 2]));
        }
        let distance = |at: usize| {
            let [this, next] = [&messages[at], &messages[at + 1]].map(|message| message.payload.as_ref());
            next.map_or(0, |next| next.as_ptr().addr()).wrapping_sub(this.map_or(0, |b| b.as_ptr().addr()))
        };
        assert!(distance(1) < PAGE, "small ones lie side by side");
    }

    #[test]
    fn large_headers_have_memory_of_their_own() {
        // I5, I7
        let large = vec![7; 10 * PAGE];
        let message =
            read(&record(Some(b"k"), Some(b"p"), &[("a", Some(b"1")), ("b", Some(&large)), ("c", None)]));
        assert_eq!(message.headers.get("a").map(Bytes::as_ref), Some(&b"1"[..]));
        assert_eq!(message.headers.get("b").map(Bytes::as_ref), Some(&*large));
        let mut page = Page::default();
        page.write(&record(None, Some(b"p"), &[("b", Some(&large))]), 0);
        assert!(page.bytes.len() <= SMALL, "neighbours do not keep it");
    }

    #[test]
    fn the_id_is_the_first_header_that_is_there_or_the_place() {
        let id = |headers: &[(&str, Option<&[u8]>)]| read(&record(None, None, headers)).id.to_string();
        assert_eq!(id(&[("message-id", Some(b"m")), ("ce_id", Some(b"c"))]), "c");
        assert_eq!(id(&[("message-id", Some(b"m"))]), "m");
        assert_eq!(id(&[("message-id", Some(b"m")), ("ce_id", None)]), "m");
        assert_eq!(id(&[]), "orders/2/7");
        assert_eq!(id(&[("ce_id", Some(b"\xff"))]), "orders/2/7", "an id is text");
    }

    #[test]
    fn what_the_headers_tell_is_recorded_and_the_headers_stay() {
        let headers = [
            ("ce_type", Some(&b"OrderPlaced"[..])),
            ("ce_datacontenttype", Some(b"application/json")),
            ("correlation-id", Some(b"c-1")),
            ("traceparent", Some(b"00-aa-bb-01")),
        ];
        let message = read(&record(None, None, &headers));
        assert_eq!(message.event_type.as_deref(), Some("OrderPlaced"));
        assert_eq!(message.content_type.as_deref(), Some("application/json"));
        assert_eq!(message.correlation.as_deref(), Some("c-1"));
        assert_eq!(message.headers.get_str("traceparent"), Some("00-aa-bb-01"));
        assert_eq!(message.headers.len(), 4);
    }

    #[test]
    fn every_offset_is_written_as_it_is() {
        let mut place = Place::new(&Partition::new("orders", 2));
        for offset in [0, 7, 10, 99, 100, 123_456, u64::MAX] {
            assert_eq!(place.of(offset).as_str(), format!("orders/2/{offset}"));
        }
    }

    #[test]
    fn the_id_of_a_framed_schema_is_read_and_the_payload_stays() {
        let id = |payload: &[u8]| read(&record(None, Some(payload), &[])).schema.and_then(|schema| schema.id);
        assert_eq!(id(&[0, 0, 1, 0, 2, b'x']).as_deref(), Some("65538"));
        assert_eq!(id(&[0, 0, 0, 0, 9]).as_deref(), Some("9"));
        assert_eq!((id(&[0, 0, 0, 9]), id(b"{\"a\":1}"), id(b"")), (None, None, None));
    }
}
