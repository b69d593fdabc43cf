//! Classifies errors of the Kafka client: retried by the client, temporary, or in need of an operator.

use lazaret_core::source::SourceError;
use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};

use crate::options::KafkaOptions;

/// A classified error of the client.
#[derive(Debug)]
pub(crate) enum ClientError {
    /// The client retries by itself. The error is only logged.
    Retried,
    /// The error is reported to the engine.
    Reported(SourceError),
}

impl ClientError {
    /// Returns the reported error, or a temporary one with this description.
    pub(crate) fn into_reported(self, reason: impl Into<String>) -> SourceError {
        match self {
            Self::Reported(error) => error,
            Self::Retried => SourceError::temporary(reason.into()),
        }
    }
}

/// Describes an error with the client's description, or else with its name and its code.
pub(crate) fn describe(error: &KafkaError, reason: &str) -> String {
    let text = error.to_string();
    match error.rdkafka_error_code() {
        _ if !reason.trim().is_empty() => reason.to_owned(),
        Some(code) => format!("{text}, error code {}", code as i32),
        None if text.trim().is_empty() => format!("{error:?}"),
        None => text,
    }
}

/// Classifies an error. `reason` is the client's description. `reading` says whether partitions are
/// being read: the client then retries a lost connection to a broker, or to a server for credentials.
pub(crate) fn classify(
    error: KafkaError,
    reason: &str,
    options: &KafkaOptions,
    reading: bool,
) -> ClientError {
    let reason = describe(&error, reason);
    let Some(code) = error.rdkafka_error_code() else {
        return ClientError::Reported(
            SourceError::temporary(format!("the Kafka client failed: {reason}")).with_source(error),
        );
    };
    let fatal = matches!(error, KafkaError::MessageConsumptionFatal(_));
    let text = match remedy(code, options) {
        Some(remedy) if !reading || !may_recover(code) => {
            let context = format!("{remedy} ({reason})");
            return ClientError::Reported(SourceError::permanent(context).with_source(error));
        }
        _ if fatal => {
            let context = format!("the Kafka client met a fatal error: {reason}");
            return ClientError::Reported(SourceError::permanent(context).with_source(error));
        }
        Some(remedy) => format!("{remedy} ({reason})"),
        None => match code {
            Code::PollExceeded | Code::PartitionEOF => return ClientError::Retried,
            _ if reading && is_retried_by_client(code) => return ClientError::Retried,
            Code::AllBrokersDown | Code::BrokerTransportFailure | Code::Resolve => {
                format!("no broker of {} is reachable, retrying ({reason})", options.brokers)
            }
            _ => reason,
        },
    };
    ClientError::Reported(SourceError::temporary(text).with_source(error))
}

/// Converts an error from creating a client.
pub(crate) fn config_error(error: KafkaError) -> SourceError {
    match error {
        // Omits the value and the error that contains it. With a mistyped name, the value may be a password.
        KafkaError::ClientConfig(_, why, name, _) => SourceError::permanent(format!(
            "the Kafka client refuses the property {name}: {why}; correct it in `properties`"
        )),
        error => {
            let context = format!("the Kafka client refuses its settings: {error}; correct `properties`");
            SourceError::permanent(context).with_source(error)
        }
    }
}

/// Returns `true` if the client retries after this error of one broker or one request.
pub(crate) fn is_retried_by_client(code: Code) -> bool {
    matches!(
        code,
        Code::BrokerTransportFailure
            | Code::Resolve
            | Code::OperationTimedOut
            | Code::RequestTimedOut
            | Code::NodeUpdate
            | Code::WaitingForCoordinator
            | Code::CoordinatorNotAvailable
            | Code::CoordinatorLoadInProgress
            | Code::NotCoordinator
            | Code::LeaderNotAvailable
            | Code::NotLeaderForPartition
            | Code::RebalanceInProgress
            | Code::UnknownMemberId
            | Code::IllegalGeneration
            | Code::AssignmentLost
    )
}

/// Returns `true` if an error says that a topic or partition does not exist, or has no leader yet. Not
/// every broker knows a newly created topic.
pub(crate) fn is_unknown_topic(error: &KafkaError) -> bool {
    error.rdkafka_error_code().is_some_and(is_unknown_topic_code)
}

/// Returns `true` if a code says that a topic or partition does not exist, or has no leader yet.
pub(crate) fn is_unknown_topic_code(code: Code) -> bool {
    matches!(
        code,
        Code::UnknownTopicOrPartition
            | Code::UnknownTopic
            | Code::UnknownPartition
            | Code::LeaderNotAvailable
            | Code::UnknownTopicId
    )
}

/// Returns `true` if an error that has a remedy may also disappear without it. Credentials that worked
/// before may work again.
fn may_recover(code: Code) -> bool {
    matches!(code, Code::Authentication | Code::SaslAuthenticationFailed | Code::SSL)
}

/// Returns the remedy for a permanent error, for an operator.
fn remedy(code: Code, options: &KafkaOptions) -> Option<String> {
    let KafkaOptions { topics, group, .. } = options;
    let topics = topics.join(", ");
    let remedy = match code {
        Code::UnknownTopicOrPartition | Code::UnknownTopic | Code::UnknownPartition | Code::InvalidTopic => {
            format!("a topic of {topics} does not exist; create it or correct its name")
        }
        Code::TopicAuthorizationFailed => {
            format!("reading {topics} is denied; grant READ and DESCRIBE on the topics to this user")
        }
        Code::GroupAuthorizationFailed => {
            format!("joining the group {group} is denied; grant READ on the group to this user")
        }
        Code::ClusterAuthorizationFailed => {
            "the cluster denies access; grant this user the rights it needs".to_owned()
        }
        Code::Authentication | Code::SaslAuthenticationFailed => {
            "the brokers refuse the credentials; correct sasl.username, sasl.password, sasl.mechanism or \
             security.protocol in `properties`"
                .to_owned()
        }
        Code::SSL => {
            "the TLS handshake with the brokers failed; correct security.protocol and the ssl.* `properties`"
                .to_owned()
        }
        Code::UnsupportedSASLMechanism => {
            "the brokers do not support the SASL mechanism; correct sasl.mechanism in `properties`".to_owned()
        }
        Code::FencedInstanceId => format!(
            "another member of {group} uses the same group.instance.id; give every member its own"
        ),
        Code::InconsistentGroupProtocol => format!(
            "the other members of {group} use another partition.assignment.strategy; use the same for all"
        ),
        Code::InvalidSessionTimeout => {
            "the broker refuses session.timeout.ms; choose one within its limits".to_owned()
        }
        Code::InvalidGroupId => format!("the broker refuses the group id {group:?}; choose another"),
        Code::AutoOffsetReset => {
            "the group has no committed position and auto.offset.reset is error; set a position for the group or \
             choose earliest or latest"
                .to_owned()
        }
        Code::UnsupportedVersion => "the broker is too old for this client; upgrade it".to_owned(),
        _ => return None,
    };
    Some(remedy)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn classified(code: Code, reading: bool) -> ClientError {
        let options = KafkaOptions::new("kafka:9092", "billing", ["orders"]);
        classify(KafkaError::MessageConsumption(code), "reason", &options, reading)
    }

    #[track_caller]
    fn assert_reported(error: ClientError, temporary: bool, words: &[&str]) {
        let ClientError::Reported(error) = error else { panic!("the error is not reported") };
        assert_eq!(error.is_temporary(), temporary, "{error}");
        for word in words {
            assert!(error.to_string().contains(word), "{error} does not contain {word}");
        }
    }

    #[test]
    fn a_permanent_error_names_the_remedy() {
        let reported =
            |code, reading, words: &[&str]| assert_reported(classified(code, reading), false, words);
        reported(Code::UnknownTopicOrPartition, true, &["orders", "create it or correct its name", "reason"]);
        reported(Code::TopicAuthorizationFailed, true, &["orders", "grant READ"]);
        reported(Code::GroupAuthorizationFailed, true, &["billing", "grant READ"]);
        reported(Code::Authentication, false, &["sasl.password"]);
        reported(Code::AutoOffsetReset, true, &["auto.offset.reset"]);
    }

    #[test]
    fn credentials_that_worked_before_may_work_again() {
        assert_reported(classified(Code::Authentication, true), true, &["sasl.password"]);
    }

    #[test]
    fn a_lost_broker_is_temporary_and_retried_by_the_client_while_reading() {
        assert_reported(classified(Code::AllBrokersDown, true), true, &["kafka:9092", "reason"]);
        assert_reported(classified(Code::BrokerTransportFailure, false), true, &["kafka:9092"]);
        assert!(matches!(classified(Code::BrokerTransportFailure, true), ClientError::Retried));
        assert!(matches!(classified(Code::PollExceeded, true), ClientError::Retried));
    }

    #[test]
    fn an_error_without_a_description_is_reported_by_name_and_code() {
        let options = KafkaOptions::new("kafka:9092", "billing", ["orders"]);
        let empty = classify(KafkaError::MessageConsumption(Code::NotImplemented), " ", &options, true);
        assert_reported(empty, true, &["NotImplemented", "Not implemented", "-170"]);
        assert_eq!(describe(&KafkaError::Canceled, ""), KafkaError::Canceled.to_string());
    }

    #[test]
    fn a_fatal_error_is_permanent() {
        let options = KafkaOptions::new("kafka:9092", "billing", ["orders"]);
        let fatal = KafkaError::MessageConsumptionFatal(Code::UnknownMemberId);
        assert_reported(classify(fatal, "fenced", &options, true), false, &["fenced"]);
    }
}
