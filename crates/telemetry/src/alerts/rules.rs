//! The table of alert rules. The configuration, the webhooks, the Prometheus alert rules and the docs refer to it.

use std::fmt;

use serde::{Serialize, Serializer};

/// The urgency of an alert.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Severity {
    /// Needs attention now.
    Critical,
    /// Needs attention today.
    Warning,
    /// Informational.
    Info,
}

/// One alert rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Rule {
    /// The event, as named in the configuration and in notices.
    pub event: AlertEvent,
    /// The urgency.
    pub severity: Severity,
    /// The equivalent rule in `deploy/prometheus/alerts.yml`, where metrics cover it.
    pub prometheus: Option<&'static str>,
    /// A fixed description of the condition. It contains nothing from a message.
    pub summary: &'static str,
}

macro_rules! rules {
    ($($variant:ident = $event:literal $severity:ident $prometheus:expr, $summary:literal;)+) => {
        /// An event that webhooks can subscribe to.
        ///
        /// ```
        /// use lazaret_telemetry::alerts::AlertEvent;
        /// assert_eq!(AlertEvent::FirstLetter.as_str(), "first-letter");
        /// ```
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[non_exhaustive]
        pub enum AlertEvent {
            $(#[doc = $summary] $variant,)+
        }

        impl AlertEvent {
            /// The name used in the configuration and in notices.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $event,)+
                }
            }

            /// The rule of this event.
            pub const fn rule(self) -> &'static Rule {
                &RULES[self as usize]
            }
        }

        /// All rules, in the order of [`AlertEvent`].
        pub const RULES: &[Rule] = &[$(Rule {
            event: AlertEvent::$variant,
            severity: Severity::$severity,
            prometheus: $prometheus,
            summary: $summary,
        }),+];
    };
}

rules! {
    FirstLetter = "first-letter" Critical Some("LazaretDeadLetters"),
        "a new failure group has its first letter that needs manual action";
    Poison = "poison" Critical Some("LazaretPoison"),
        "a message fails the same way on every attempt, or crashes the process";
    DecodeFailure = "decode-failure" Critical Some("LazaretDecodeFailures"),
        "messages are invalid or cannot be decoded: producer and consumer disagree about the schema";
    ConsumerFailed = "consumer-failed" Critical Some("LazaretConsumerFailed"),
        "the consumer has failed and is not running";
    FuseBlown = "fuse-blown" Critical Some("LazaretFuseBlown"),
        "too many terminal failures: the consumer is paused until it is resumed";
    BreakerOpened = "breaker-opened" Warning Some("LazaretBreakerOpen"),
        "circuit breaker open: handler calls are suspended while a dependency is unavailable";
    BreakerClosed = "breaker-closed" Info None,
        "circuit breaker closed: handler calls are resumed";
    Paused = "paused" Info None,
        "the consumer or a part of it was paused";
    Resumed = "resumed" Info None,
        "the consumer or a part of it was resumed";
    PausedTooLong = "paused-too-long" Warning Some("LazaretPausedTooLong"),
        "the consumer or a part of it has been paused longer than the threshold";
    StoreUnavailable = "store-unavailable" Critical Some("LazaretHandoffFailures"),
        "letters cannot be stored: the source is held, nothing is lost";
    QueueFull = "queue-full" Critical Some("LazaretHandoffFailures"),
        "a queue has reached its letter limit: the source is held, nothing is lost";
    RetryRate = "retry-rate" Warning Some("LazaretRetryRateHigh"),
        "the retry rate is high: a dependency is unstable, or a deployment is bad";
    RetryAge = "retry-age" Warning Some("LazaretOldestRetry"),
        "a message has been retried longer than the threshold";
    RetryStorm = "retry-storm" Critical Some("LazaretRetryStorm"),
        "most attempts fail";
    Blocked = "blocked" Critical Some("LazaretBlocked"),
        "messages are in flight and none is handled, or an attempt does not end";
    OperationStopped = "operation-stopped" Warning None,
        "an operation stopped because too many letters failed again";
    ApprovalNeeded = "approval-needed" Info None,
        "an operation waits for a second person's approval";
    LettersExpiring = "letters-expiring" Warning Some("LazaretLettersExpireSoon"),
        "letters expire soon unless they are replayed or resolved";
    LettersExpired = "letters-expired" Critical Some("LazaretLettersExpired"),
        "letters expired: nobody replayed or resolved them in time";
}

impl fmt::Display for AlertEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl Serialize for AlertEvent {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

/// Finds the rule of an event by the name that the configuration uses.
pub fn rule(event: &str) -> Option<&'static Rule> {
    RULES.iter().find(|rule| rule.event.as_str() == event)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_event_has_exactly_one_rule() {
        for (at, rule) in RULES.iter().enumerate() {
            assert!(!RULES[..at].iter().any(|other| other.event == rule.event), "{}", rule.event);
            assert_eq!(super::rule(rule.event.as_str()), Some(rule));
            assert_eq!(rule.event.rule(), rule);
            assert_eq!(serde_json::to_value(rule.event).unwrap(), rule.event.as_str());
        }
    }
}
