//! What people are told of: every rule in one table. The configuration, the webhooks, the alert rules for Prometheus and the
//! docs go by it.

/// How urgent it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Somebody should look now.
    Critical,
    /// Somebody should look today.
    Warning,
    /// Good to know.
    Info,
}

/// One rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    /// The word for it in the configuration and in notices.
    pub event: &'static str,
    /// How urgent it is.
    pub severity: Severity,
    /// The rule of the same meaning in `deploy/prometheus/alerts.yml`, where metrics show it.
    pub prometheus: Option<&'static str>,
    /// What has happened, as it is told. The same words every time: nothing of a message is in them.
    pub summary: &'static str,
}

macro_rules! rules {
    ($($constant:ident = $event:literal $severity:ident $prometheus:expr, $summary:literal;)+) => {
        $(
            #[doc = $summary]
            pub(crate) const $constant: &str = $event;
        )+

        /// All of them.
        pub const RULES: &[Rule] = &[$(Rule {
            event: $event,
            severity: Severity::$severity,
            prometheus: $prometheus,
            summary: $summary,
        }),+];
    };
}

rules! {
    FIRST_LETTER = "first-letter" Critical Some("LazaretDeadLetters"),
        "a new kind of failure has its first letter that will not be tried again by itself";
    POISON = "poison" Critical Some("LazaretPoison"),
        "a message fails in the same way every time, or kills the process";
    DECODE_FAILURE = "decode-failure" Critical Some("LazaretDecodeFailures"),
        "messages cannot be read: their producer and this consumer disagree about the schema";
    FUSE_BLOWN = "fuse-blown" Critical Some("LazaretFuseBlown"),
        "too many messages failed for good, so the consumer is paused until somebody resumes it";
    BREAKER_OPENED = "breaker-opened" Warning Some("LazaretBreakerOpen"),
        "what the handler needs is away, so the handler is left alone for a while";
    BREAKER_CLOSED = "breaker-closed" Info None,
        "what the handler needs is back";
    PAUSED = "paused" Info None,
        "somebody paused the consumer or a part of it";
    RESUMED = "resumed" Info None,
        "somebody resumed the consumer or a part of it";
    PAUSED_TOO_LONG = "paused-too-long" Warning Some("LazaretPausedTooLong"),
        "the consumer or a part of it has been paused for long";
    STORE_UNAVAILABLE = "store-unavailable" Critical Some("LazaretHandoffFailures"),
        "letters cannot be kept, so the source waits; nothing is lost";
    QUEUE_FULL = "queue-full" Critical Some("LazaretHandoffFailures"),
        "a queue has no room for more letters, so the source waits; nothing is lost";
    RETRY_RATE = "retry-rate" Warning Some("LazaretRetryRateHigh"),
        "many messages are being retried: a dependency is unstable, or a deployment is bad";
    RETRY_AGE = "retry-age" Warning Some("LazaretOldestRetry"),
        "a message has been waiting for its retries for long";
    RETRY_STORM = "retry-storm" Critical Some("LazaretRetryStorm"),
        "most attempts fail";
    BLOCKED = "blocked" Critical Some("LazaretBlocked"),
        "messages wait and none is handled";
    OPERATION_STOPPED = "operation-stopped" Warning None,
        "a replay stopped because too much failed";
    APPROVAL_NEEDED = "approval-needed" Info None,
        "an operation waits for a second person";
}

/// The rule for a word of the configuration.
pub fn rule(event: &str) -> Option<&'static Rule> {
    RULES.iter().find(|rule| rule.event == event)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_event_stands_once() {
        for (at, rule) in RULES.iter().enumerate() {
            assert!(!RULES[..at].iter().any(|other| other.event == rule.event), "{}", rule.event);
            assert_eq!(super::rule(rule.event), Some(rule));
        }
    }
}
