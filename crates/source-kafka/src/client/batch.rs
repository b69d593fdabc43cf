//! Fetches records of a partition in batches, directly from librdkafka.
//!
//! The Rust client polls one record at a time. For each record it reads the clock, takes a lock and
//! allocates twice, which costs more than the record itself. librdkafka can return many at once, but the
//! Rust client does not expose that call, so this module makes it. The other `unsafe` code of this crate
//! is in `topic_ids.rs`.

#![allow(unsafe_code, reason = "librdkafka's call for batches is not in the safe client; see above")]

use std::ffi::{CStr, CString, c_char, c_void};
use std::marker::PhantomData;
use std::ptr::{self, NonNull};
use std::slice;
use std::sync::Arc;

use rdkafka::bindings as native;
use rdkafka::consumer::Consumer;
use rdkafka::error::KafkaError;
use rdkafka::types::{RDKafkaErrorCode, RDKafkaRespErr};

use super::callbacks::Client;
use crate::record::{NonUtf8Header, Record};

/// The queue of one partition.
pub(crate) struct Batches {
    queue: NonNull<native::rd_kafka_queue_t>,
    /// The current batch. Empty between two calls.
    taken: Vec<*mut native::rd_kafka_message_t>,
    /// Keeps the queue alive.
    _client: Arc<Client>,
}

// SAFETY: librdkafka's queues may be used from any thread, and `taken` is empty whenever a `Batches` can
// move.
unsafe impl Send for Batches {}

impl Batches {
    /// Opens the queue of a partition. Returns `None` if the client has no queue for it.
    pub(crate) fn of(client: &Arc<Client>, topic: &str, partition: i32) -> Option<Self> {
        let topic = CString::new(topic).ok()?;
        // SAFETY: the client is alive, and the name ends with a zero. The caller destroys the queue.
        let queue = unsafe {
            native::rd_kafka_queue_get_partition(client.client().native_ptr(), topic.as_ptr(), partition)
        };
        Some(Self { queue: NonNull::new(queue)?, taken: Vec::new(), _client: client.clone() })
    }

    /// Takes the available records, at most `limit`, without waiting.
    pub(crate) fn take(&mut self, limit: usize) -> Batch<'_> {
        self.taken.reserve(limit);
        // SAFETY: the vector has room for `limit` pointers, and librdkafka returns how many it wrote; an
        // error is negative.
        unsafe {
            let room = self.taken.as_mut_ptr();
            let count = native::rd_kafka_consume_batch_queue(self.queue.as_ptr(), 0, room, limit);
            self.taken.set_len(usize::try_from(count).unwrap_or(0).min(limit));
        }
        Batch { taken: &mut self.taken }
    }
}

impl Drop for Batches {
    fn drop(&mut self) {
        // SAFETY: this is the only owner of the queue. The client is dropped after it.
        unsafe { native::rd_kafka_queue_destroy(self.queue.as_ptr()) };
    }
}

/// An error in place of a record.
#[derive(Debug)]
pub(crate) struct FetchError {
    pub(crate) error: KafkaError,
    /// librdkafka's description.
    pub(crate) reason: String,
}

/// The records of one fetch. Dropping the batch returns them to librdkafka.
pub(crate) struct Batch<'a> {
    taken: &'a mut Vec<*mut native::rd_kafka_message_t>,
}

impl Batch<'_> {
    pub(crate) fn len(&self) -> usize {
        self.taken.len()
    }

    /// Iterates over the records and the errors between them, in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Result<Fetched<'_>, FetchError>> {
        self.taken.iter().map(|message| {
            // SAFETY: librdkafka wrote these pointers; their targets live until they are destroyed with
            // the batch.
            let message = unsafe { &**message };
            let error = match message.err {
                RDKafkaRespErr::RD_KAFKA_RESP_ERR_NO_ERROR => {
                    return Ok(Fetched { message, _batch: PhantomData });
                }
                RDKafkaRespErr::RD_KAFKA_RESP_ERR__PARTITION_EOF => {
                    KafkaError::PartitionEOF(message.partition)
                }
                error @ RDKafkaRespErr::RD_KAFKA_RESP_ERR__FATAL => {
                    KafkaError::MessageConsumptionFatal(RDKafkaErrorCode::from(error))
                }
                error => KafkaError::MessageConsumption(RDKafkaErrorCode::from(error)),
            };
            Err(FetchError { error, reason: reason(message) })
        })
    }
}

impl Drop for Batch<'_> {
    fn drop(&mut self) {
        for message in self.taken.drain(..) {
            // SAFETY: each was taken once, and no borrow of it is left.
            unsafe { native::rd_kafka_message_destroy(message) };
        }
    }
}

/// A fetched record.
#[derive(Clone, Copy)]
pub(crate) struct Fetched<'a> {
    message: &'a native::rd_kafka_message_t,
    _batch: PhantomData<&'a Batch<'a>>,
}

impl Fetched<'_> {
    pub(crate) fn offset(&self) -> u64 {
        self.message.offset.unsigned_abs()
    }
}

impl Record for Fetched<'_> {
    fn key(&self) -> Option<&[u8]> {
        // SAFETY: pointer and length describe bytes that live as long as the record.
        unsafe { bytes(self.message.key, self.message.key_len) }
    }

    fn payload(&self) -> Option<&[u8]> {
        // SAFETY: as for the key.
        unsafe { bytes(self.message.payload, self.message.len) }
    }

    fn millis(&self) -> Option<i64> {
        let mut kind = native::rd_kafka_timestamp_type_t::RD_KAFKA_TIMESTAMP_NOT_AVAILABLE;
        // SAFETY: the record is alive, and `kind` is a valid place to write to.
        let time = unsafe { native::rd_kafka_message_timestamp(self.message, &raw mut kind) };
        let known = kind != native::rd_kafka_timestamp_type_t::RD_KAFKA_TIMESTAMP_NOT_AVAILABLE;
        (known && time >= 0).then_some(time)
    }

    fn headers(&self, mut each: impl FnMut(&str, Option<&[u8]>)) -> Result<(), NonUtf8Header> {
        let mut headers = ptr::null_mut();
        // SAFETY: the record is alive and owns its headers.
        let found = unsafe { native::rd_kafka_message_headers(self.message, &raw mut headers) };
        if found != RDKafkaRespErr::RD_KAFKA_RESP_ERR_NO_ERROR {
            return Ok(());
        }
        for index in 0.. {
            let (mut name, mut value): (*const c_char, *const c_void) = (ptr::null(), ptr::null());
            let mut size = 0;
            // SAFETY: the pointers it writes belong to the headers and live as long as the record. An
            // error ends the list.
            let more = unsafe {
                native::rd_kafka_header_get_all(headers, index, &raw mut name, &raw mut value, &raw mut size)
            };
            if more != RDKafkaRespErr::RD_KAFKA_RESP_ERR_NO_ERROR {
                break;
            }
            // SAFETY: the name of a header ends with a zero.
            let name = unsafe { CStr::from_ptr(name) }.to_str().map_err(|_| NonUtf8Header)?;
            // SAFETY: as for the key.
            each(name, unsafe { bytes(value, size) });
        }
        Ok(())
    }
}

/// Returns the description of an error, or an empty string if there is none.
fn reason(message: &native::rd_kafka_message_t) -> String {
    // SAFETY: the message is alive.
    let text = unsafe { native::rd_kafka_message_errstr(message) };
    if text.is_null() {
        return String::new();
    }
    // SAFETY: the text ends with a zero, and lives as long as the message.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

/// Returns the bytes at a pointer, or `None` for null.
///
/// # Safety
/// A pointer that is not null points to `length` bytes that live and do not change for `'a`.
unsafe fn bytes<'a>(pointer: *const c_void, length: usize) -> Option<&'a [u8]> {
    // SAFETY: guaranteed by the caller.
    (!pointer.is_null()).then(|| unsafe { slice::from_raw_parts(pointer.cast(), length) })
}
