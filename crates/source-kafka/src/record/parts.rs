//! The parts of a record.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use bytes::Bytes;
use jiff::Timestamp;
use lazaret_core::Headers;
use rdkafka::message::{Headers as _, Message as Polled};

/// A record as the client returned it.
pub(crate) trait Record {
    /// Returns the key. Null is `None`, not empty.
    fn key(&self) -> Option<&[u8]>;
    /// Returns the payload. Null is `None`, not empty.
    fn payload(&self) -> Option<&[u8]>;
    /// Returns the timestamp in milliseconds.
    fn millis(&self) -> Option<i64>;
    /// Calls `each` with every header, in order.
    fn headers(&self, each: impl FnMut(&str, Option<&[u8]>)) -> Result<(), NonUtf8Header>;
}

/// The error for a header whose name is not UTF-8. Kafka's protocol requires UTF-8, but no broker checks it.
#[derive(Debug)]
pub(crate) struct NonUtf8Header;

/// A record that was polled with the safe client.
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

    fn headers(&self, mut each: impl FnMut(&str, Option<&[u8]>)) -> Result<(), NonUtf8Header> {
        // The client panics on names that are not UTF-8. Only this message fails (I10).
        let visit =
            || Polled::headers(self).into_iter().flat_map(|h| h.iter()).for_each(|h| each(h.key, h.value));
        catch_unwind(AssertUnwindSafe(visit)).map_err(|_| NonUtf8Header)
    }
}

/// Returns the timestamp of a record.
pub(crate) fn timestamp(record: &impl Record) -> Option<Timestamp> {
    record.millis().and_then(|time| Timestamp::from_millisecond(time).ok())
}

/// Returns the number of bytes of key and payload.
pub(super) fn size_of(record: &impl Record) -> usize {
    record.key().map_or(0, <[u8]>::len) + record.payload().map_or(0, <[u8]>::len)
}

/// The bytes of a record. Null is `None`, not empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecordParts {
    /// The key.
    pub key: Option<Bytes>,
    /// The payload.
    pub payload: Option<Bytes>,
    /// The headers, in order.
    pub headers: Headers,
    /// The reason why the headers could not be decoded, if they could not.
    pub undecodable: Option<Arc<str>>,
}

impl RecordParts {
    /// Returns the approximate size in bytes.
    ///
    /// ```
    /// use lazaret_source_kafka::RecordParts;
    ///
    /// let parts = RecordParts { key: Some("ada".into()), payload: Some("{}".into()), ..RecordParts::default() };
    /// assert_eq!(parts.byte_size(), 5);
    /// ```
    pub fn byte_size(&self) -> usize {
        let bytes = |bytes: &Option<Bytes>| bytes.as_ref().map_or(0, Bytes::len);
        bytes(&self.key) + bytes(&self.payload) + self.headers.byte_size()
    }
}
