//! The taxonomy: the default verdict of each reason.

use crate::failure::{Phase, Reason};
use crate::verdict::Verdict;

/// The default verdict of a reason, and the kind of failure that it is.
///
/// ```
/// use lazaret_core::policy::taxonomy;
/// use lazaret_core::{Phase, Reason, Verdict};
/// assert_eq!(taxonomy(&Reason::TIMEOUT, Phase::Handle, false).0, Verdict::Retry);
/// assert_eq!(taxonomy(&Reason::INVALID_SCHEMA, Phase::Decode, false).0, Verdict::DeadLetter);
/// ```
pub fn taxonomy(reason: &Reason, phase: Phase, panicked: bool) -> (Verdict, &'static str) {
    if panicked {
        return (Verdict::DeadLetter, "a panic is a bug");
    }
    match reason.as_str() {
        "TIMEOUT" | "DATABASE_TIMEOUT" | "CONNECTION_LOST" => (Verdict::Retry, "transient failure"),
        "DEPENDENCY_UNAVAILABLE" | "HANDLER_UNREACHABLE" => (Verdict::Retry, "something is unavailable"),
        "INVALID_RESPONSE" => (Verdict::Retry, "invalid response"),
        "RATE_LIMITED" => (Verdict::Retry, "rate limit"),
        "CONFLICT" => (Verdict::Retry, "conflict"),
        "CRASHED" => (Verdict::Retry, "the process died"),
        "HANDLER_ERROR" if phase == Phase::Decode => (Verdict::DeadLetter, "undecodable"),
        "HANDLER_ERROR" => (Verdict::Retry, "unspecific failure"),
        "INVALID_SCHEMA" | "TOO_LARGE" => (Verdict::DeadLetter, "invalid payload"),
        "AUTHORIZATION_DENIED" => (Verdict::DeadLetter, "authorization failure"),
        "DOMAIN_INVALID" => (Verdict::DeadLetter, "domain rule"),
        "POISON" => (Verdict::DeadLetter, "poison"),
        "PANICKED" => (Verdict::DeadLetter, "a panic is a bug"),
        "SEQUENCING_FAILED" | "CLASSIFIER_FAILED" | "FILTER_FAILED" => (Verdict::DeadLetter, "consumer bug"),
        "MANUAL" => (Verdict::DeadLetter, "sent by hand"),
        "UNSUPPORTED_EVENT_VERSION" | "UNKNOWN_EVENT_TYPE" | "UNSUPPORTED" => {
            (Verdict::Park, "unsupported until a deployment")
        }
        "DUPLICATE" => (Verdict::Duplicate, "handled before"),
        _ => (Verdict::Retry, "unknown reason"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_known_reason_has_its_verdict() {
        use Verdict::{DeadLetter, Duplicate, Park, Retry};
        let table: [(Verdict, &[Reason]); 4] = [
            (
                Retry,
                &[
                    Reason::TIMEOUT,
                    Reason::RATE_LIMITED,
                    Reason::DEPENDENCY_UNAVAILABLE,
                    Reason::CONNECTION_LOST,
                    Reason::DATABASE_TIMEOUT,
                    Reason::CONFLICT,
                    Reason::HANDLER_UNREACHABLE,
                    Reason::INVALID_RESPONSE,
                    Reason::HANDLER_ERROR,
                    Reason::CRASHED,
                ],
            ),
            (
                DeadLetter,
                &[
                    Reason::INVALID_SCHEMA,
                    Reason::TOO_LARGE,
                    Reason::AUTHORIZATION_DENIED,
                    Reason::DOMAIN_INVALID,
                    Reason::POISON,
                    Reason::PANICKED,
                    Reason::MANUAL,
                    Reason::SEQUENCING_FAILED,
                    Reason::CLASSIFIER_FAILED,
                    Reason::FILTER_FAILED,
                ],
            ),
            (Park, &[Reason::UNSUPPORTED_EVENT_VERSION, Reason::UNKNOWN_EVENT_TYPE, Reason::UNSUPPORTED]),
            (Duplicate, &[Reason::DUPLICATE]),
        ];
        for (verdict, reasons) in &table {
            for reason in *reasons {
                let (said, kind) = taxonomy(reason, Phase::Handle, false);
                assert_eq!(said, *verdict, "{reason}");
                assert_ne!(kind, "unknown reason", "{reason}");
            }
        }
        let tabled: usize = table.iter().map(|(_, reasons)| reasons.len()).sum();
        assert_eq!(tabled, Reason::KNOWN.len(), "a new reason needs its line in the taxonomy");
        assert_eq!(taxonomy(&Reason::new("CARD_DECLINED").unwrap(), Phase::Handle, false).0, Retry);
        assert_eq!(taxonomy(&Reason::HANDLER_ERROR, Phase::Decode, false).0, DeadLetter);
    }
}
