//! Requests the ids that brokers assign to topics, and their numbers of partitions. A topic that is
//! deleted and recreated has a new id.
//!
//! The Rust client has no call for this, so this module calls librdkafka's `DescribeTopics`.

#![allow(unsafe_code, reason = "librdkafka's description of topics is not in the safe client; see above")]

use std::collections::BTreeMap;
use std::ffi::{CStr, CString};
use std::ptr::{self, NonNull};
use std::slice;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64;
use rdkafka::bindings as native;
use rdkafka::consumer::Consumer;
use rdkafka::error::{KafkaError, KafkaResult, RDKafkaErrorCode as Code};
use rdkafka::types::RDKafkaRespErr;

use super::callbacks::Client;
use crate::error::is_unknown_topic_code;

/// The topics that exist, by name.
pub(crate) type Topics = BTreeMap<String, Topic>;

/// A topic, as its brokers describe it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Topic {
    /// The id. `None` if the brokers assign none (before Kafka 2.8).
    pub(crate) id: Option<Arc<str>>,
    /// The number of partitions. `None` if the brokers are too old to report it.
    pub(crate) partitions: Option<u32>,
}

impl Topic {
    /// Returns `true` if the topic has this partition, as far as its brokers report.
    pub(crate) fn has(&self, partition: u32) -> bool {
        self.partitions.is_none_or(|partitions| partition < partitions)
    }
}

/// Requests the descriptions of topics. Omits topics that do not exist. Blocks.
pub(crate) fn describe_topics<'a>(
    client: &Arc<Client>,
    topics: impl IntoIterator<Item = &'a str>,
    timeout: Duration,
) -> KafkaResult<Topics> {
    let names: Vec<CString> = topics.into_iter().filter_map(|name| CString::new(name).ok()).collect();
    let Some(first) = names.first().and_then(|name| name.to_str().ok()) else { return Ok(Topics::new()) };
    // librdkafka asks the controller by default, but every broker knows the topics.
    let broker = client.fetch_metadata(Some(first), timeout)?.orig_broker_id();
    let millis = i32::try_from(timeout.as_millis()).unwrap_or(i32::MAX);
    let request = Request::of(client, &names, broker, millis)?;
    // SAFETY: the queue is alive. The event that it returns is owned by the caller.
    let event = NonNull::new(unsafe { native::rd_kafka_queue_poll(request.queue.as_ptr(), millis) });
    let event = Event(event.ok_or(KafkaError::MetadataFetch(Code::OperationTimedOut))?);
    // SAFETY: the event is alive.
    match unsafe { native::rd_kafka_event_error(event.0.as_ptr()) } {
        RDKafkaRespErr::RD_KAFKA_RESP_ERR_NO_ERROR => event.topics(),
        // The brokers are too old for the request and for ids.
        RDKafkaRespErr::RD_KAFKA_RESP_ERR__UNSUPPORTED_FEATURE => {
            Ok(names.iter().map(|name| (name.to_string_lossy().into_owned(), Topic::default())).collect())
        }
        error => Err(KafkaError::MetadataFetch(Code::from(error))),
    }
}

/// A request with the queue for its response.
struct Request {
    queue: NonNull<native::rd_kafka_queue_t>,
    /// Keeps the queue alive.
    _client: Arc<Client>,
}

impl Request {
    fn of(client: &Arc<Client>, names: &[CString], broker: i32, millis: i32) -> KafkaResult<Self> {
        let failed = KafkaError::MetadataFetch(Code::Fail);
        let native_client = client.client().native_ptr();
        // SAFETY: the client is alive. The caller destroys the queue.
        let queue = NonNull::new(unsafe { native::rd_kafka_queue_new(native_client) }).ok_or(failed)?;
        let request = Self { queue, _client: client.clone() };
        let mut pointers: Vec<_> = names.iter().map(|name| name.as_ptr()).collect();
        let operation = native::rd_kafka_admin_op_t::RD_KAFKA_ADMIN_OP_DESCRIBETOPICS;
        // SAFETY: the names end with a zero and live as long as the call, which copies them. The request
        // copies collection and options, and an option that is refused keeps its default; no text is
        // written for it.
        unsafe {
            let options = native::rd_kafka_AdminOptions_new(native_client, operation);
            native::rd_kafka_AdminOptions_set_broker(options, broker, ptr::null_mut(), 0);
            native::rd_kafka_AdminOptions_set_request_timeout(options, millis, ptr::null_mut(), 0);
            let topics =
                native::rd_kafka_TopicCollection_of_topic_names(pointers.as_mut_ptr(), pointers.len());
            native::rd_kafka_DescribeTopics(native_client, topics, options, request.queue.as_ptr());
            native::rd_kafka_TopicCollection_destroy(topics);
            native::rd_kafka_AdminOptions_destroy(options);
        }
        Ok(request)
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        // SAFETY: this is the only owner of the queue. The client is dropped after it.
        unsafe { native::rd_kafka_queue_destroy(self.queue.as_ptr()) };
    }
}

/// The response.
struct Event(NonNull<native::rd_kafka_event_t>);

impl Event {
    fn topics(&self) -> KafkaResult<Topics> {
        let mut topics = Topics::new();
        // SAFETY: what these calls return lives as long as the event. The result is null for an event of
        // another kind, the id for a topic with an error.
        unsafe {
            let result = native::rd_kafka_event_DescribeTopics_result(self.0.as_ptr());
            if result.is_null() {
                return Err(KafkaError::MetadataFetch(Code::Fail));
            }
            let mut count = 0;
            let found = native::rd_kafka_DescribeTopics_result_topics(result, &raw mut count);
            let found = if found.is_null() { &[][..] } else { slice::from_raw_parts(found, count) };
            for topic in found {
                let error = native::rd_kafka_error_code(native::rd_kafka_TopicDescription_error(*topic));
                if error != RDKafkaRespErr::RD_KAFKA_RESP_ERR_NO_ERROR {
                    match Code::from(error) {
                        code if is_unknown_topic_code(code) => continue,
                        code => return Err(KafkaError::MetadataFetch(code)),
                    }
                }
                let name = CStr::from_ptr(native::rd_kafka_TopicDescription_name(*topic));
                let id = native::rd_kafka_TopicDescription_topic_id(*topic);
                let bits = match id.is_null() {
                    true => [0; 2],
                    false => [
                        native::rd_kafka_Uuid_most_significant_bits(id),
                        native::rd_kafka_Uuid_least_significant_bits(id),
                    ],
                };
                let mut partitions = 0;
                native::rd_kafka_TopicDescription_partitions(*topic, &raw mut partitions);
                let topic = Topic { id: id_text(bits), partitions: u32::try_from(partitions).ok() };
                topics.insert(name.to_string_lossy().into_owned(), topic);
            }
        }
        Ok(topics)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: this is the only owner of the event.
        unsafe { native::rd_kafka_event_destroy(self.0.as_ptr()) };
    }
}

/// Formats an id as Kafka's tools do. Returns `None` for zero, which no topic has.
fn id_text(bits: [i64; 2]) -> Option<Arc<str>> {
    if bits == [0; 2] {
        return None;
    }
    let bytes = [bits[0].to_be_bytes(), bits[1].to_be_bytes()].concat();
    Some(BASE64.encode(bytes).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_topic_has_its_partitions_and_all_of_them_if_nobody_knows_how_many() {
        let of = |partitions| Topic { id: None, partitions };
        assert_eq!([0, 1, 2].map(|index| of(Some(2)).has(index)), [true, true, false]);
        assert!(of(None).has(7));
    }

    #[test]
    fn an_id_is_written_as_kafka_writes_it() {
        assert_eq!(id_text([0, 0]), None);
        assert_eq!(id_text([0, 1]).as_deref(), Some("AAAAAAAAAAAAAAAAAAAAAQ"));
        assert_eq!(id_text([-1, -1]).as_deref(), Some("_____________________w"));
    }
}
