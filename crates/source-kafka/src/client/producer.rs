//! Settings of durable producers, headers of their records, and classification of their errors.

use std::time::Duration;

use lazaret_core::Letter;
use lazaret_core::relay::{RelayError, RelayErrorKind};
use rdkafka::ClientConfig;
use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};
use rdkafka::message::{Header, OwnedHeaders};

use crate::headers::{self, HeaderStyle};

/// The producer's size limit, which leaves the actual limit to the broker.
pub(crate) const UNLIMITED_BYTES: &str = "1000000000";

/// Returns the settings of a producer that confirms or fails each record within this time.
pub(crate) fn durable_producer(
    connection: &ClientConfig,
    delivery_timeout: Duration,
    properties: &[(String, String)],
) -> ClientConfig {
    let mut config = connection.clone();
    config
        .set("message.timeout.ms", delivery_timeout.as_millis().to_string())
        .set("linger.ms", "2")
        .set("message.max.bytes", UNLIMITED_BYTES);
    for (name, value) in properties {
        config.set(name, value);
    }
    // Durability is not configurable.
    config.set("enable.idempotence", "true").set("acks", "all");
    config
}

/// Builds the headers of the record that holds this letter.
pub(crate) fn record_headers(
    letter: &Letter,
    group: &str,
    same_failure: u32,
    style: HeaderStyle,
) -> OwnedHeaders {
    let headers = headers::write(letter, group, same_failure, style);
    let owned = OwnedHeaders::new_with_capacity(headers.len());
    headers.iter_nullable().fold(owned, |owned, (key, value)| {
        owned.insert(Header { key, value: value.map(|value| value.as_ref()) })
    })
}

/// Classifies an error of a producer.
pub(crate) fn classify_produce_error(error: &KafkaError, topic: &str) -> RelayError {
    let Some(code) = error.rdkafka_error_code() else {
        return RelayError::maybe_done(RelayErrorKind::Temporary, format!("{topic}: {error}"));
    };
    let permanent = |why: String| RelayError::not_done(RelayErrorKind::Permanent, why);
    match code {
        Code::MessageSizeTooLarge | Code::InvalidMessageSize => RelayError::not_done(
            RelayErrorKind::TooLarge,
            format!("the record exceeds max.message.bytes of {topic}"),
        ),
        Code::TopicAuthorizationFailed => {
            permanent(format!("writing to {topic} is denied; grant WRITE on it to this user"))
        }
        Code::ClusterAuthorizationFailed => {
            permanent(format!("writing to {topic} is denied; grant IDEMPOTENT_WRITE to this user"))
        }
        Code::UnknownTopicOrPartition | Code::UnknownTopic | Code::InvalidTopic => {
            permanent(format!("the topic {topic} does not exist; create it"))
        }
        Code::PolicyViolation | Code::InvalidRecord => {
            permanent(format!("{topic} refuses the record: {error}"))
        }
        Code::ProducerFenced | Code::Fenced | Code::UnknownMemberId | Code::FencedInstanceId => {
            RelayError::maybe_done(RelayErrorKind::Fenced, format!("another instance took over: {error}"))
        }
        Code::QueueFull => RelayError::not_done(
            RelayErrorKind::Temporary,
            format!("the producer queue is full, the record for {topic} was not queued"),
        ),
        _ => RelayError::maybe_done(RelayErrorKind::Temporary, format!("{topic}: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn classified(code: Code) -> RelayError {
        classify_produce_error(&KafkaError::MessageProduction(code), "orders.mail.dlt")
    }

    #[test]
    fn a_permanent_error_names_the_remedy_and_nothing_was_written() {
        for (code, word) in [
            (Code::TopicAuthorizationFailed, "grant WRITE"),
            (Code::ClusterAuthorizationFailed, "grant IDEMPOTENT_WRITE"),
            (Code::UnknownTopicOrPartition, "create it"),
            (Code::PolicyViolation, "refuses"),
        ] {
            let error = classified(code);
            assert_eq!((error.kind(), error.is_maybe_done()), (RelayErrorKind::Permanent, false), "{error}");
            assert!(
                error.to_string().contains(word) && error.to_string().contains("orders.mail.dlt"),
                "{error}"
            );
        }
        assert_eq!(classified(Code::MessageSizeTooLarge).kind(), RelayErrorKind::TooLarge);
    }

    #[test]
    fn a_timed_out_record_may_have_been_written() {
        // I8: the record is sent again under the same id.
        for code in [Code::MessageTimedOut, Code::NotEnoughReplicasAfterAppend, Code::BrokerTransportFailure]
        {
            let error = classified(code);
            assert_eq!((error.kind(), error.is_maybe_done()), (RelayErrorKind::Temporary, true), "{error}");
        }
        assert!(!classified(Code::QueueFull).is_maybe_done());
        assert_eq!(classified(Code::ProducerFenced).kind(), RelayErrorKind::Fenced);
    }

    #[test]
    fn properties_change_neither_idempotence_nor_acks() {
        // I1
        let wanted = [("acks", "0"), ("enable.idempotence", "false"), ("linger.ms", "50")];
        let wanted = wanted.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let config = durable_producer(&ClientConfig::new(), Duration::from_secs(3), &wanted);
        assert_eq!((config.get("acks"), config.get("enable.idempotence")), (Some("all"), Some("true")));
        assert_eq!((config.get("linger.ms"), config.get("message.timeout.ms")), (Some("50"), Some("3000")));
    }
}
