//! Which errors of the client pass by themselves, and what to do about the others.

use lazaret_core::source::SourceError;
use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};

use crate::options::KafkaOptions;

/// What an error means for the consumer.
#[derive(Debug)]
pub(crate) enum Trouble {
    /// The client deals with it; it is only noted.
    Noted,
    /// The engine has to hear of it.
    Told(SourceError),
}

/// Judges an error. `reason` is what the client says about it, `works` whether partitions are being read: then a broker
/// that is gone for a moment, or a server for credentials that is, is the client's matter.
pub(crate) fn judge(error: KafkaError, reason: &str, options: &KafkaOptions, works: bool) -> Trouble {
    let Some(code) = error.rdkafka_error_code() else {
        return Trouble::Told(
            SourceError::temporary(format!("the client says: {reason}")).with_source(error),
        );
    };
    let fatal = matches!(error, KafkaError::MessageConsumptionFatal(_));
    let text = match advice(code, options) {
        Some(advice) if !works || !may_pass(code) => {
            let context = format!("{advice} ({reason})");
            return Trouble::Told(SourceError::permanent(context).with_source(error));
        }
        _ if fatal => {
            let context = format!("the client cannot go on: {reason}");
            return Trouble::Told(SourceError::permanent(context).with_source(error));
        }
        Some(advice) => format!("{advice} ({reason})"),
        None => match code {
            Code::PollExceeded | Code::PartitionEOF => return Trouble::Noted,
            _ if works && is_small(code) => return Trouble::Noted,
            Code::AllBrokersDown | Code::BrokerTransportFailure | Code::Resolve => {
                format!("no broker of {} can be reached, trying again ({reason})", options.brokers)
            }
            _ => reason.to_owned(),
        },
    };
    Trouble::Told(SourceError::temporary(text).with_source(error))
}

/// Trouble with one broker or one request, which the client repeats.
fn is_small(code: Code) -> bool {
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

/// Whether an error that somebody has to mend may also pass: what has worked before may work again.
fn may_pass(code: Code) -> bool {
    matches!(code, Code::Authentication | Code::SaslAuthenticationFailed | Code::SSL)
}

/// What to do about an error that does not pass by itself.
fn advice(code: Code, options: &KafkaOptions) -> Option<String> {
    let KafkaOptions { topics, group, .. } = options;
    let topics = topics.join(", ");
    let advice = match code {
        Code::UnknownTopicOrPartition | Code::UnknownTopic | Code::UnknownPartition | Code::InvalidTopic => {
            format!("a topic of {topics} does not exist; create it or correct `topics`")
        }
        Code::TopicAuthorizationFailed => {
            format!("reading {topics} is denied; grant READ and DESCRIBE on the topics to this user")
        }
        Code::GroupAuthorizationFailed => {
            format!("joining the group {group} is denied; grant READ on the group to this user")
        }
        Code::ClusterAuthorizationFailed => {
            "the cluster denies access; grant this user what it asks for".to_owned()
        }
        Code::Authentication | Code::SaslAuthenticationFailed => {
            "the brokers do not accept the credentials; correct sasl.username, sasl.password, sasl.mechanism or \
             security.protocol in `properties`"
                .to_owned()
        }
        Code::SSL => "TLS with the brokers fails; correct security.protocol and the ssl.* `properties`".to_owned(),
        Code::UnsupportedSASLMechanism => {
            "the brokers do not know the SASL mechanism; correct sasl.mechanism in `properties`".to_owned()
        }
        Code::FencedInstanceId => format!(
            "another member of {group} uses the same group.instance.id; give every member its own"
        ),
        Code::InconsistentGroupProtocol => format!(
            "the other members of {group} use another partition.assignment.strategy; use the same for all"
        ),
        Code::InvalidSessionTimeout => {
            "the broker refuses session.timeout.ms; choose one that it allows".to_owned()
        }
        Code::InvalidGroupId => format!("the broker refuses the group id {group:?}; choose another"),
        Code::AutoOffsetReset => {
            "there is no position to read from and auto.offset.reset is error; set a position for the group or choose \
             earliest or latest"
                .to_owned()
        }
        Code::UnsupportedVersion => "the broker is too old for this client; use a later one".to_owned(),
        _ => return None,
    };
    Some(advice)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(code: Code, works: bool) -> Trouble {
        let options = KafkaOptions::new("kafka:9092", "billing", ["orders"]);
        judge(KafkaError::MessageConsumption(code), "reason", &options, works)
    }

    #[track_caller]
    fn assert_told(trouble: Trouble, temporary: bool, words: &[&str]) {
        let Trouble::Told(error) = trouble else { panic!("nobody is told") };
        assert_eq!(error.is_temporary(), temporary, "{error}");
        for word in words {
            assert!(error.to_string().contains(word), "{error} does not say {word}");
        }
    }

    #[test]
    fn what_does_not_pass_says_what_to_do() {
        assert_told(judged(Code::UnknownTopicOrPartition, true), false, &["orders", "create it", "reason"]);
        assert_told(judged(Code::TopicAuthorizationFailed, true), false, &["orders", "grant READ"]);
        assert_told(judged(Code::GroupAuthorizationFailed, true), false, &["billing", "grant READ"]);
        assert_told(judged(Code::Authentication, false), false, &["sasl.password"]);
        assert_told(judged(Code::AutoOffsetReset, true), false, &["auto.offset.reset"]);
    }

    #[test]
    fn credentials_that_worked_before_may_work_again() {
        assert_told(judged(Code::Authentication, true), true, &["sasl.password"]);
    }

    #[test]
    fn what_passes_is_temporary_and_small_trouble_is_the_clients() {
        assert_told(judged(Code::AllBrokersDown, true), true, &["kafka:9092", "reason"]);
        assert_told(judged(Code::BrokerTransportFailure, false), true, &["kafka:9092"]);
        assert!(matches!(judged(Code::BrokerTransportFailure, true), Trouble::Noted));
        assert!(matches!(judged(Code::PollExceeded, true), Trouble::Noted));
    }

    #[test]
    fn a_fatal_error_is_permanent() {
        let options = KafkaOptions::new("kafka:9092", "billing", ["orders"]);
        let fatal = KafkaError::MessageConsumptionFatal(Code::UnknownMemberId);
        assert_told(judge(fatal, "fenced", &options, true), false, &["fenced"]);
    }
}
