//! Builds messages from the parts of records.

use std::sync::Arc;

use jiff::Timestamp;
use lazaret_core::message::{self, Schema};
use lazaret_core::{Headers, Message, MessageId, Partition, Position, StreamName};

use super::parts::RecordParts;
use crate::options::KafkaOptions;

/// The headers that hold the media type, in order of preference.
const CONTENT_TYPE_HEADERS: [&str; 2] = ["content-type", "ce_datacontenttype"];
/// The first byte of a framed payload. Confluent's serializers write a zero and four bytes of schema id
/// before the payload.
const FRAMED: u8 = 0;
const FRAME_BYTES: usize = 5;

/// Builds messages from the parts of records, as a consumer with these options does.
///
/// ```
/// use lazaret_core::Position;
/// use lazaret_source_kafka::{KafkaOptions, MessageDecoder, RecordParts};
///
/// let options = KafkaOptions::new("127.0.0.1:9092", "billing", ["orders"]).with_id_headers(["ce_id"]);
/// let decoder = MessageDecoder::new(&options);
/// let mut parts = RecordParts::default();
/// parts.headers.push("ce_id", "evt-1");
/// parts.headers.push("ce_type", "OrderPlaced");
///
/// let id = decoder.id(&parts.headers).expect("the record has an id header");
/// let message = decoder.message(parts, id, "orders".into(), Position::new(0, 7), None);
/// assert_eq!((message.id.as_str(), message.event_type.as_deref()), ("evt-1", Some("OrderPlaced")));
/// ```
#[derive(Clone, Debug)]
pub struct MessageDecoder {
    // The names of the headers.
    id: Vec<Arc<str>>,
    event_type: Vec<Arc<str>>,
    correlation: Vec<Arc<str>>,
}

impl MessageDecoder {
    /// Creates a decoder that reads id, type and correlation from the headers that the options name.
    pub fn new(options: &KafkaOptions) -> Self {
        let names = |names: &[String]| names.iter().map(|name| name.as_str().into()).collect();
        Self {
            id: names(&options.id_headers),
            event_type: names(&options.type_headers),
            correlation: names(&options.correlation_headers),
        }
    }

    /// Returns the id from the first id header that is present and not empty,
    /// [as given](MessageId::given) by the producer.
    pub fn id(&self, headers: &Headers) -> Option<MessageId> {
        first(headers, &self.id).map(|text| MessageId::given(text.into()))
    }

    /// Builds a message from its bytes and its headers.
    pub fn message(
        &self,
        parts: RecordParts,
        id: MessageId,
        stream: StreamName,
        position: Position,
        timestamp: Option<Timestamp>,
    ) -> Message {
        let RecordParts { key, payload, headers, undecodable } = parts;
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

    /// Sets content type, event type and correlation from the headers of a message.
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

/// The names that all records of a partition share.
#[derive(Debug)]
pub(crate) struct PartitionNames {
    partition: Partition,
    ids: message::PositionIds,
}

impl PartitionNames {
    pub(crate) fn new(partition: &Partition) -> Self {
        let stream = StreamName::interned(partition.stream.as_str());
        let partition = partition.number().of(stream);
        Self { ids: message::PositionIds::of(&partition), partition }
    }

    /// Returns the partition, whose name is [interned](StreamName::interned).
    pub(crate) fn partition(&self) -> &Partition {
        &self.partition
    }

    /// Returns the id of the record at this offset: `topic/partition/offset`.
    pub(crate) fn at(&self, offset: u64) -> MessageId {
        self.ids.at(offset)
    }
}

/// Returns the first of these headers that is present and not empty.
fn first<'a>(headers: &'a Headers, names: &[Arc<str>]) -> Option<&'a str> {
    names.iter().find_map(|name| text(headers, name))
}

fn text<'a>(headers: &'a Headers, name: &str) -> Option<&'a str> {
    headers.get_str(name).filter(|text| !text.is_empty())
}

/// Returns the id of the schema if the payload looks framed. The id is a hint for people, so a false one
/// does no harm.
fn schema(payload: Option<&[u8]>) -> Option<Box<Schema>> {
    let frame = payload?.first_chunk::<FRAME_BYTES>()?;
    let [FRAMED, id @ ..] = *frame else { return None };
    Some(Box::new(Schema { id: Some(u32::from_be_bytes(id).to_string().into()), version: None }))
}
