//! From a record to a message: byte for byte, with what its headers say about it.

use std::fmt::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use jiff::Timestamp;
use lazaret_core::message::Schema;
use lazaret_core::{Headers, Message, MessageId, Partition, Position, StreamName};
use rdkafka::message::{Headers as _, Message as Record};

use crate::options::KafkaOptions;

/// The headers that tell the media type, the first that is there.
const CONTENT_TYPE_HEADERS: [&str; 2] = ["content-type", "ce_datacontenttype"];
/// Confluent's serializers write a zero and the id of the schema, four bytes, before the payload.
const FRAMED: u8 = 0;
const FRAME_BYTES: usize = 5;

/// How much memory is taken at once for the bytes of small records. Who keeps one of them keeps this much, so it is little.
const PAGE: usize = 16 * 1024;
/// Records with more bytes than this have memory of their own.
const SMALL: usize = PAGE / 4;

/// Makes messages of records.
#[derive(Clone, Debug)]
pub(crate) struct Reader {
    /// Room for the bytes of the next records.
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
            page: Page { room: BytesMut::new(), size: PAGE },
            id: names(&options.id_headers),
            event_type: names(&options.type_headers),
            correlation: names(&options.correlation_headers),
        }
    }

    /// The message that a record is. `place` is its id unless a header has one.
    pub(crate) fn read(
        &mut self,
        record: &impl Record,
        stream: &StreamName,
        position: Position,
        place: &mut Place,
    ) -> Message {
        let parts = Parts::on(record, &mut self.page);
        let id = self.id(&parts.headers).unwrap_or_else(|| place.of(position.offset));
        let timestamp = time_of(record);
        self.message(parts, id, stream.clone(), position, timestamp)
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
        let content_type = CONTENT_TYPE_HEADERS.iter().find_map(|name| text(headers, name));
        message.content_type = content_type.map(Arc::from);
        message.event_type = first(headers, &self.event_type).map(Arc::from);
        message.correlation = first(headers, &self.correlation).map(Arc::from);
    }
}

/// The time of a record.
pub(crate) fn time_of(record: &impl Record) -> Option<Timestamp> {
    record.timestamp().to_millis().and_then(|time| Timestamp::from_millisecond(time).ok())
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
        Self::on(record, &mut Page { room: BytesMut::new(), size: 0 })
    }

    /// The bytes of a record, on this page if they are few.
    fn on(record: &impl Record, page: &mut Page) -> Self {
        // The client panics at names of headers that are no UTF-8. That is this message's failure (I10).
        catch_unwind(AssertUnwindSafe(|| copy(record, page))).unwrap_or_else(|_| {
            let undecodable = Some("the name of a header is not UTF-8".into());
            Self { undecodable, ..copy_without_headers(record, page) }
        })
    }
}

/// Copies the bytes of a record. Small ones share memory with their neighbours: taking and giving it back for each part of
/// each record, across threads, costs more than all else. Of larger ones key and payload each have their own, because who
/// keeps a key should not keep a payload with it.
fn copy(record: &impl Record, page: &mut Page) -> Parts {
    let mut parts = copy_without_headers(record, page);
    let Some(headers) = record.headers() else { return parts };
    let size = headers.iter().filter_map(|header| header.value.map(<[u8]>::len)).sum();
    page.make_room(size);
    for header in headers.iter() {
        match header.value {
            Some(value) => parts.headers.push(header.key, page.put(value)),
            None => parts.headers.push_null(header.key),
        }
    }
    parts
}

fn copy_without_headers(record: &impl Record, page: &mut Page) -> Parts {
    let (key, payload) = (record.key(), record.payload());
    let size = key.map_or(0, <[u8]>::len) + payload.map_or(0, <[u8]>::len);
    let (headers, undecodable) = (Headers::new(), None);
    if size > SMALL {
        let copy = |bytes: Option<&[u8]>| bytes.map(Bytes::copy_from_slice);
        return Parts { key: copy(key), payload: copy(payload), headers, undecodable };
    }
    page.make_room(size);
    let mut copy = |bytes: Option<&[u8]>| bytes.map(|bytes| page.put(bytes));
    Parts { key: copy(key), payload: copy(payload), headers, undecodable }
}

/// Memory for the bytes of several records.
#[derive(Clone, Debug)]
struct Page {
    room: BytesMut,
    /// How much is taken at once, at least.
    size: usize,
}

impl Page {
    /// Sees to it that so many bytes fit.
    fn make_room(&mut self, bytes: usize) {
        if self.room.capacity() < bytes {
            self.room = BytesMut::with_capacity(bytes.max(self.size));
        }
    }

    /// Writes bytes, for which there is room.
    fn put(&mut self, bytes: &[u8]) -> Bytes {
        if bytes.is_empty() {
            return Bytes::new();
        }
        self.room.extend_from_slice(bytes);
        self.room.split().freeze()
    }
}

/// Writes `topic/partition/offset` for one partition, again and again into the same text.
#[derive(Debug)]
pub(crate) struct Place {
    text: String,
    /// How long the part before the offset is.
    fixed: usize,
}

impl Place {
    pub(crate) fn new(partition: &Partition) -> Self {
        let text = format!("{partition}/");
        Self { fixed: text.len(), text }
    }

    fn of(&mut self, offset: u64) -> MessageId {
        self.text.truncate(self.fixed);
        // A string takes everything.
        let _ = write!(self.text, "{offset}");
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
        Reader::new(&options).read(record, &"orders".into(), Position::new(2, 7), &mut place)
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
        let messages: Vec<Message> = payloads
            .iter()
            .map(|payload| {
                let record = record(Some(b"k"), Some(payload), &[("h", Some(&payload[..payload.len() / 2]))]);
                reader.read(&record, &"orders".into(), Position::new(2, 7), &mut place)
            })
            .collect();
        for (message, payload) in messages.iter().zip(&payloads) {
            assert_eq!(
                (message.key.as_deref(), message.payload.as_deref()),
                (Some(&b"k"[..]), Some(&**payload))
            );
            assert_eq!(message.headers.get("h").map(Bytes::as_ref), Some(&payload[..payload.len() / 2]));
        }
        assert!(reader.page.room.capacity() <= PAGE);
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
    fn the_id_of_a_framed_schema_is_read_and_the_payload_stays() {
        let id = |payload: &[u8]| read(&record(None, Some(payload), &[])).schema.and_then(|schema| schema.id);
        assert_eq!(id(&[0, 0, 1, 0, 2, b'x']).as_deref(), Some("65538"));
        assert_eq!(id(&[0, 0, 0, 0, 9]).as_deref(), Some("9"));
        assert_eq!((id(&[0, 0, 0, 9]), id(b"{\"a\":1}"), id(b"")), (None, None, None));
    }
}
