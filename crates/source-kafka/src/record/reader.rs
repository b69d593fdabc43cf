//! Reads records into messages, several per allocation.

use lazaret_core::{Message, Position};

use super::decoder::{MessageDecoder, PartitionNames};
use super::page::{Copied, Page, copy};
use super::parts::{Record, size_of, timestamp};
use crate::options::KafkaOptions;

/// Reads records into messages.
#[derive(Clone, Debug)]
pub(crate) struct RecordReader {
    /// Records that were copied and are not messages yet.
    page: Page,
    decoder: MessageDecoder,
}

impl RecordReader {
    pub(crate) fn new(options: &KafkaOptions) -> Self {
        Self { page: Page::default(), decoder: MessageDecoder::new(options) }
    }

    pub(crate) fn decoder(&self) -> &MessageDecoder {
        &self.decoder
    }

    /// Copies a record of a partition, of which `remaining` are available. It becomes a message when the
    /// page is full, or at the latest with [`finish`](Self::finish).
    pub(crate) fn copy(
        &mut self,
        record: &impl Record,
        offset: u64,
        remaining: usize,
        names: &PartitionNames,
        into: &mut Vec<Message>,
    ) {
        let bytes = size_of(record);
        if !self.page.fits(bytes) {
            self.finish(names, into);
        }
        self.page.reserve(bytes, remaining);
        self.page.write(record, offset);
    }

    /// Turns all copied records into messages.
    pub(crate) fn finish(&mut self, names: &PartitionNames, into: &mut Vec<Message>) {
        let mut page = std::mem::take(&mut self.page);
        for Copied { offset, timestamp, parts } in page.drain() {
            let id = self.decoder.id(&parts.headers).unwrap_or_else(|| names.at(offset));
            let position = Position::at(names.partition().number(), offset);
            into.push(self.decoder.message(parts, id, names.partition().stream.clone(), position, timestamp));
        }
        self.page = page;
    }

    /// Reads one record. Its id is its position unless a header provides one.
    pub(crate) fn read(&self, record: &impl Record, offset: u64, names: &PartitionNames) -> Message {
        let parts = copy(record);
        let id = self.decoder.id(&parts.headers).unwrap_or_else(|| names.at(offset));
        let position = Position::at(names.partition().number(), offset);
        self.decoder.message(parts, id, names.partition().stream.clone(), position, timestamp(record))
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use jiff::Timestamp;
    use lazaret_core::Partition;
    use rdkafka::Timestamp as Time;
    use rdkafka::message::{Header, OwnedHeaders, OwnedMessage};

    use super::super::page::{PAGE, SMALL};
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
        let names = PartitionNames::new(&Partition::new("orders", 2));
        RecordReader::new(&options).read(record, 7, &names)
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
        // I5, I7: a retained message retains one page, and a retained large message only itself.
        let options = KafkaOptions::new("b", "g", ["orders"]);
        let (mut reader, names) =
            (RecordReader::new(&options), PartitionNames::new(&Partition::new("orders", 2)));
        let payloads: Vec<Vec<u8>> =
            [0, 1, 1000, SMALL - 1, SMALL, 7, PAGE, 1000, 3000, 3000, 3000, 3000, 3000, 1]
                .iter()
                .enumerate()
                .map(|(number, size)| vec![number as u8; *size])
                .collect();
        let mut messages = Vec::new();
        for (offset, payload) in payloads.iter().enumerate() {
            let record = record(Some(b"k"), Some(payload), &[("h", Some(&payload[..payload.len() / 2]))]);
            let remaining = payloads.len() - offset;
            reader.copy(&record, offset as u64, remaining, &names, &mut messages);
            let (bytes, records) = reader.page.len();
            assert!(bytes <= PAGE + SMALL || records == 1);
        }
        reader.finish(&names, &mut messages);
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
        assert!(distance(1) < PAGE, "small ones are adjacent");
    }

    #[test]
    fn large_headers_have_their_own_allocation() {
        // I5, I7
        let large = vec![7; 10 * PAGE];
        let message =
            read(&record(Some(b"k"), Some(b"p"), &[("a", Some(b"1")), ("b", Some(&large)), ("c", None)]));
        assert_eq!(message.headers.get("a").map(Bytes::as_ref), Some(&b"1"[..]));
        assert_eq!(message.headers.get("b").map(Bytes::as_ref), Some(&*large));
        let mut page = Page::default();
        page.write(&record(None, Some(b"p"), &[("b", Some(&large))]), 0);
        assert!(page.len().0 <= SMALL, "neighbours do not retain it");
    }

    #[test]
    fn the_id_is_the_first_header_that_is_present_or_the_position() {
        let id = |headers: &[(&str, Option<&[u8]>)]| read(&record(None, None, headers)).id.to_string();
        assert_eq!(id(&[("message-id", Some(b"m")), ("ce_id", Some(b"c"))]), "c");
        assert_eq!(id(&[("message-id", Some(b"m"))]), "m");
        assert_eq!(id(&[("message-id", Some(b"m")), ("ce_id", None)]), "m");
        assert_eq!(id(&[]), "orders/2/7");
        assert_eq!(id(&[("ce_id", Some(b"\xff"))]), "orders/2/7", "an id is text");
    }

    #[test]
    fn headers_describe_the_message_and_stay() {
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
    fn every_offset_is_formatted() {
        let names = PartitionNames::new(&Partition::new("orders", 2));
        for offset in [0, 7, 10, 99, 100, 123_456, u64::MAX] {
            assert_eq!(names.at(offset).as_str(), format!("orders/2/{offset}"));
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
