//! Configuration of retry topics and dead-letter topics.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::time::Duration;

use lazaret_core::policy::RetryPolicy;

use crate::headers::HeaderStyle;
use crate::transaction_hook::TransactionHook;

/// The maximum number of retry topics per stream.
const MAX_TIERS: usize = 16;
/// The maximum wait of a message, whatever its headers contain. Twice the longest delay, or the maximum
/// retry-after of the policy, may raise it.
const MAX_WAIT: Duration = Duration::from_secs(24 * 3600);
const DAY: u128 = 24 * 3600 * 1000;

/// Retry topics and dead-letter topics of a consumer.
///
/// Each consumed topic has a chain of retry topics, one for each delay, and one dead-letter topic:
/// `case-events.notification-service.retry.1m`, `….retry.10m`, `case-events.notification-service.dlt`.
///
/// ```
/// use std::time::Duration;
/// use lazaret_source_kafka::RetryTopics;
///
/// let minutes = |n: u64| Duration::from_secs(60 * n);
/// let topics = RetryTopics::new("notification-service", [minutes(1), minutes(10)])
///     .draining([minutes(5)])
///     .creating_topics();
/// assert_eq!(topics.retry_topic("case-events", minutes(1)), "case-events.notification-service.retry.1m");
/// assert_eq!(topics.dead_letter_topic("case-events"), "case-events.notification-service.dlt");
/// ```
#[derive(Clone, Debug)]
pub struct RetryTopics {
    consumer: String,
    pub(crate) delays: Vec<Duration>,
    pub(crate) draining: Vec<Duration>,
    retry_name: String,
    dead_letter_name: String,
    pub(crate) max_wait: Duration,
    pub(crate) create: bool,
    pub(crate) replication: i32,
    pub(crate) check: bool,
    pub(crate) header_style: HeaderStyle,
    pub(crate) delivery_timeout: Duration,
    pub(crate) transactional_id: Option<String>,
    /// Whether all streams share one dead-letter topic.
    pub(crate) shares_dead_letters: bool,
    pub(crate) hook: TransactionHook,
    pub(crate) properties: Vec<(String, String)>,
}

impl RetryTopics {
    /// Creates a configuration for this consumer, with one retry topic for each delay.
    pub fn new(consumer: impl Into<String>, delays: impl IntoIterator<Item = Duration>) -> Self {
        let delays: BTreeSet<Duration> = delays.into_iter().map(whole_millis).collect();
        Self {
            consumer: consumer.into(),
            max_wait: delays.last().map_or(MAX_WAIT, |last| MAX_WAIT.max(*last * 2)),
            delays: delays.into_iter().collect(),
            draining: Vec::new(),
            retry_name: "{stream}.{consumer}.retry.{delay}".to_owned(),
            dead_letter_name: "{stream}.{consumer}.dlt".to_owned(),
            create: false,
            replication: -1,
            check: true,
            header_style: HeaderStyle::default(),
            delivery_timeout: Duration::from_secs(10),
            transactional_id: None,
            shares_dead_letters: false,
            hook: TransactionHook::default(),
            properties: Vec::new(),
        }
    }

    /// Creates a configuration with one retry topic for each delay of the policy, before jitter. If a
    /// policy has more than 16 different delays, only some of them get a topic, unless the policy lists
    /// its delays.
    ///
    /// ```
    /// use lazaret_core::policy::RetryPolicy;
    /// use lazaret_source_kafka::RetryTopics;
    ///
    /// let policy = RetryPolicy { max_attempts: 4, ..RetryPolicy::default() };
    /// let topics = RetryTopics::for_policy("mail", &policy);
    /// assert_eq!(topics.retry_topics("orders"), ["orders.mail.retry.500ms", "orders.mail.retry.1s", "orders.mail.retry.2s"]);
    /// ```
    pub fn for_policy(consumer: impl Into<String>, policy: &RetryPolicy) -> Self {
        if !policy.delays.is_empty() {
            let mut topics = Self::new(consumer, policy.delays.iter().copied());
            topics.max_wait = topics.max_wait.max(policy.max_retry_after);
            return topics;
        }
        let mut delays = BTreeSet::new();
        // The delay grows until it reaches its maximum.
        for failed in 1..policy.max_attempts {
            let delay = policy.usual_delay(failed, None);
            let is_repeated = !delays.insert(delay) && delay >= policy.max_delay;
            if is_repeated || delays.len() > 4096 {
                break;
            }
        }
        let delays: Vec<Duration> = delays.into_iter().collect();
        let step = delays.len().div_ceil(MAX_TIERS).max(1);
        let mut topics = Self::new(consumer, delays.into_iter().step_by(step));
        topics.max_wait = topics.max_wait.max(policy.max_retry_after).max(policy.max_delay * 2);
        topics
    }

    /// Also reads the retry topics of these delays, without writing to them. After a change of the
    /// delays, messages in the old topics are still retried when they are due.
    #[must_use]
    pub fn draining(mut self, delays: impl IntoIterator<Item = Duration>) -> Self {
        self.draining = delays.into_iter().map(whole_millis).filter(|d| !self.delays.contains(d)).collect();
        self
    }

    /// Sets the names of the topics. They are templates with `{stream}`, `{consumer}` and, for retry
    /// topics, `{delay}`.
    #[must_use]
    pub fn with_names(mut self, retry: impl Into<String>, dead_letter: impl Into<String>) -> Self {
        (self.retry_name, self.dead_letter_name) = (retry.into(), dead_letter.into());
        self
    }

    /// Writes the dead letters of all streams to this topic. The topic may have other writers.
    #[must_use]
    pub fn with_dead_letter_topic(mut self, name: impl Into<String>) -> Self {
        (self.dead_letter_name, self.shares_dead_letters) = (name.into(), true);
        self
    }

    /// Creates missing topics. They have as many partitions as the consumed topic, are not compacted,
    /// and have a retention that outlasts the delay. Dead-letter topics keep their records without
    /// limit.
    #[must_use]
    pub fn creating_topics(mut self) -> Self {
        self.create = true;
        self
    }

    /// Sets the replication factor of created topics. Default: the broker's.
    #[must_use]
    pub fn with_replication(mut self, replicas: i32) -> Self {
        self.replication = replicas;
        self
    }

    /// Skips the checks of topic settings and rights when the relay is opened, for brokers that do not
    /// report them. A topic that is compacted or denied is then detected only when the first message
    /// fails.
    #[must_use]
    pub fn without_checks(mut self) -> Self {
        self.check = false;
        self
    }

    /// Adds Spring Kafka's `kafka_dlt-*` headers to dead letters.
    #[must_use]
    pub fn with_spring_headers(mut self) -> Self {
        self.header_style.spring = true;
        self
    }

    /// Writes error messages unmasked. By default, their variable parts are masked.
    #[must_use]
    pub fn with_unmasked_errors(mut self) -> Self {
        self.header_style.unmasked_errors = true;
        self
    }

    /// Sets how long the broker may take to confirm a record. Default: 10 s.
    #[must_use]
    pub fn with_delivery_timeout(mut self, timeout: Duration) -> Self {
        self.delivery_timeout = timeout;
        self
    }

    /// Relays each message and commits its position in one transaction. The id must be unique to this
    /// instance and the same after a restart, because a producer fences an earlier one with the same id.
    #[must_use]
    pub fn in_transactions(mut self, transactional_id: impl Into<String>) -> Self {
        self.transactional_id = Some(transactional_id.into());
        self
    }

    /// Sets a property of librdkafka's producer, such as `compression.type` or `linger.ms`.
    #[must_use]
    pub fn with_property(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.properties.push((name.into(), value.into()));
        self
    }

    /// Sets a hook that is called at each step of a transaction, for tests that end the process there.
    #[doc(hidden)]
    #[must_use]
    pub fn with_transaction_hook(mut self, hook: impl Fn(&'static str) + Send + Sync + 'static) -> Self {
        self.hook = TransactionHook(Some(std::sync::Arc::new(hook)));
        self
    }

    /// Returns the name of a retry topic.
    pub fn retry_topic(&self, stream: &str, delay: Duration) -> String {
        let name = self.retry_name.replace("{stream}", stream).replace("{consumer}", &self.consumer);
        name.replace("{delay}", &format_delay(whole_millis(delay)))
    }

    /// Returns the names of a stream's retry topics, shortest delay first, without drained ones.
    pub fn retry_topics(&self, stream: &str) -> Vec<String> {
        self.delays.iter().map(|delay| self.retry_topic(stream, *delay)).collect()
    }

    /// Returns the name of a dead-letter topic.
    pub fn dead_letter_topic(&self, stream: &str) -> String {
        self.dead_letter_name.replace("{stream}", stream).replace("{consumer}", &self.consumer)
    }
}

/// Rounds up to whole milliseconds, at least one, so that no topic is named `0ms`.
fn whole_millis(delay: Duration) -> Duration {
    let millis = delay.as_nanos().div_ceil(1_000_000).clamp(1, u128::from(u64::MAX / 1_000_000));
    Duration::from_millis(millis as u64)
}

/// Formats a delay such as `1m`, `1h30m` or `500ms`.
fn format_delay(delay: Duration) -> String {
    let mut rest = delay.as_millis();
    let mut text = String::new();
    for (unit, millis) in [("d", DAY), ("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1)] {
        if rest >= millis {
            // Writing to a string does not fail.
            let _ = write!(text, "{}{unit}", rest / millis);
            rest %= millis;
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn secs(n: u64) -> Duration {
        Duration::from_secs(n)
    }

    #[test]
    fn delays_are_formatted_as_people_write_them() {
        let table = [
            (secs(60), "1m"),
            (secs(5400), "1h30m"),
            (Duration::from_millis(500), "500ms"),
            (secs(86_400), "1d"),
            (Duration::from_micros(1_500_001), "1s501ms"),
            (Duration::ZERO, "1ms"),
        ];
        for (delay, text) in table {
            assert_eq!(format_delay(whole_millis(delay)), text);
        }
        assert!(!format_delay(whole_millis(Duration::MAX)).is_empty());
    }

    #[test]
    fn a_policy_has_one_topic_for_each_delay() {
        let policy = RetryPolicy { max_attempts: 100, ..RetryPolicy::default() };
        let names = RetryTopics::for_policy("mail", &policy).retry_topics("o");
        let delays: Vec<_> = names.iter().filter_map(|name| name.rsplit('.').next()).collect();
        assert_eq!(delays, ["500ms", "1s", "2s", "4s", "8s", "16s", "30s"]);
        let once = RetryPolicy { max_attempts: 1, ..policy.clone() };
        assert_eq!(RetryTopics::for_policy("mail", &once).retry_topics("o"), [""; 0]);
        let listed = RetryPolicy::default().with_delays([secs(60), secs(60), secs(600)]);
        assert_eq!(
            RetryTopics::for_policy("mail", &listed).retry_topics("o"),
            ["o.mail.retry.1m", "o.mail.retry.10m"]
        );
        let slowly = RetryPolicy { multiplier: 1.01, max_attempts: u32::MAX, ..policy };
        assert!(RetryTopics::for_policy("mail", &slowly).retry_topics("o").len() <= MAX_TIERS);
    }
}
