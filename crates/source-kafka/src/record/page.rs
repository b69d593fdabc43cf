//! Copies records into shared allocations.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use jiff::Timestamp;

use super::parts::{Record, RecordParts, size_of, timestamp};

/// The size of a page. A retained message retains its page, so pages are small.
pub(super) const PAGE: usize = 16 * 1024;
/// Records with more bytes than this get their own allocation.
pub(super) const SMALL: usize = PAGE / 4;

/// Copies one record into its own allocation.
pub(crate) fn copy(record: &impl Record) -> RecordParts {
    let mut page = Page::default();
    page.reserve(size_of(record), 1);
    page.write(record, 0);
    page.drain().next().map_or_else(RecordParts::default, |copied| copied.parts)
}

/// The bytes of several records in one allocation. Allocating and freeing each part of each record
/// across threads costs more than everything else. The allocation is shared only when the page is
/// complete, because reference counting is cheap while only one thread does it.
#[derive(Clone, Debug, Default)]
pub(super) struct Page {
    bytes: Vec<u8>,
    records: Vec<Span>,
    headers: Vec<(Arc<str>, Value)>,
}

/// The value of a header.
#[derive(Clone, Debug)]
enum Value {
    Null,
    /// On the page.
    Inline(Range<usize>),
    /// In its own allocation.
    Owned(Bytes),
}

/// The ranges of the parts of a record on its page.
#[derive(Clone, Debug)]
struct Span {
    offset: u64,
    timestamp: Option<Timestamp>,
    key: Option<Range<usize>>,
    payload: Option<Range<usize>>,
    headers: usize,
    undecodable: bool,
}

/// A copied record.
pub(super) struct Copied {
    pub(super) offset: u64,
    pub(super) timestamp: Option<Timestamp>,
    pub(super) parts: RecordParts,
}

impl Page {
    /// Returns the number of bytes and of records on the page.
    #[cfg(test)]
    pub(super) fn len(&self) -> (usize, usize) {
        (self.bytes.len(), self.records.len())
    }

    /// Returns `true` if a record of this size fits next to the records on the page.
    pub(super) fn fits(&self, bytes: usize) -> bool {
        self.records.is_empty() || (bytes <= SMALL && self.bytes.len() + bytes <= PAGE)
    }

    /// Reserves memory for a record of this size, or for `count` of them if they are small.
    pub(super) fn reserve(&mut self, bytes: usize, count: usize) {
        if self.records.is_empty() {
            let share = if bytes <= SMALL { (bytes * count).min(PAGE) } else { bytes };
            self.bytes.reserve_exact(share);
        }
    }

    /// Copies a record.
    pub(super) fn write(&mut self, record: &impl Record, offset: u64) {
        let key = record.key().map(|key| put(&mut self.bytes, key));
        let payload = record.payload().map(|payload| put(&mut self.bytes, payload));
        let before = self.headers.len();
        let start = self.bytes.len();
        let visited = record.headers(|name, value| {
            let value = match value {
                // Another retained record on the page must not retain these bytes.
                Some(value) if self.bytes.len() - start + value.len() > SMALL => {
                    Value::Owned(Bytes::copy_from_slice(value))
                }
                Some(value) => Value::Inline(put(&mut self.bytes, value)),
                None => Value::Null,
            };
            self.headers.push((name.into(), value));
        });
        if visited.is_err() {
            self.headers.truncate(before);
        }
        let headers = self.headers.len() - before;
        let (timestamp, undecodable) = (timestamp(record), visited.is_err());
        self.records.push(Span { offset, timestamp, key, payload, headers, undecodable });
    }

    /// Takes the records off the page, in order.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = Copied> {
        let bytes = Bytes::from(std::mem::take(&mut self.bytes));
        let mut headers = self.headers.drain(..);
        self.records.drain(..).map(move |record| {
            let part = |range: Option<Range<usize>>| range.map(|range| bytes.slice(range));
            let mut parts = RecordParts { payload: part(record.payload), ..RecordParts::default() };
            // A retained key of a large record must not retain the payload.
            parts.key = match parts.payload.as_ref().is_some_and(|payload| payload.len() > SMALL) {
                true => record.key.map(|range| Bytes::copy_from_slice(&bytes[range])),
                false => part(record.key),
            };
            for (name, value) in headers.by_ref().take(record.headers) {
                match value {
                    Value::Null => parts.headers.push_null(name),
                    Value::Inline(range) => parts.headers.push(name, bytes.slice(range)),
                    Value::Owned(value) => parts.headers.push(name, value),
                }
            }
            parts.undecodable = record.undecodable.then(|| "the name of a header is not UTF-8".into());
            Copied { offset: record.offset, timestamp: record.timestamp, parts }
        })
    }
}

/// Appends a part and returns its range.
fn put(bytes: &mut Vec<u8>, part: &[u8]) -> Range<usize> {
    let start = bytes.len();
    bytes.extend_from_slice(part);
    start..bytes.len()
}
