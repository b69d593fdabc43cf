//! Retry topics and dead-letter topics: their names, which message goes where, and how far each has come.

use std::collections::{BTreeSet, HashMap};
use std::fmt::Write;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lazaret_core::Partition;
use lazaret_core::policy::RetryPolicy;
use lazaret_core::source::SourceError;

use crate::headers::HeaderStyle;
use crate::relay::Hook;

/// How many retry topics a stream has at most.
const MOST_TIERS: usize = 16;
/// The longest name that Kafka takes.
const LONGEST_NAME: usize = 249;
/// Whatever a header says, nothing waits longer than this, or twice the longest delay.
const LONGEST_WAIT: Duration = Duration::from_secs(24 * 3600);
const DAY: u128 = 24 * 3600 * 1000;

/// The topics in which a broker holds what failed, and how they are used.
///
/// For each topic that is consumed there is a chain of retry topics, one for each delay, and one dead-letter topic:
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
    delays: Vec<Duration>,
    draining: Vec<Duration>,
    retry_name: String,
    dead_name: String,
    longest_wait: Duration,
    pub(crate) create: bool,
    pub(crate) replication: i32,
    pub(crate) check: bool,
    pub(crate) style: HeaderStyle,
    pub(crate) delivery_timeout: Duration,
    pub(crate) transactional_id: Option<String>,
    pub(crate) hook: Hook,
    pub(crate) properties: Vec<(String, String)>,
}

impl RetryTopics {
    /// Topics for these delays, as this consumer.
    pub fn new(consumer: impl Into<String>, delays: impl IntoIterator<Item = Duration>) -> Self {
        let delays: BTreeSet<Duration> = delays.into_iter().map(whole_millis).collect();
        Self {
            consumer: consumer.into(),
            longest_wait: delays.last().map_or(LONGEST_WAIT, |last| LONGEST_WAIT.max(*last * 2)),
            delays: delays.into_iter().collect(),
            draining: Vec::new(),
            retry_name: "{stream}.{consumer}.retry.{delay}".to_owned(),
            dead_name: "{stream}.{consumer}.dlt".to_owned(),
            create: false,
            replication: -1,
            check: true,
            style: HeaderStyle::default(),
            delivery_timeout: Duration::from_secs(10),
            transactional_id: None,
            hook: Hook::default(),
            properties: Vec::new(),
        }
    }

    /// One topic for each delay that the policy has, before jitter. A policy with very many delays gets some of them.
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
        let mut delays = BTreeSet::new();
        // The delay grows until it reaches its cap; from there on it stays the same.
        for failed in 1..policy.max_attempts {
            let delay = policy.usual_delay(failed, None);
            let stays = !delays.insert(delay) && delay >= policy.max_delay;
            if stays || delays.len() > 4096 {
                break;
            }
        }
        let delays: Vec<Duration> = delays.into_iter().collect();
        let step = delays.len().div_ceil(MOST_TIERS).max(1);
        let mut topics = Self::new(consumer, delays.into_iter().step_by(step));
        topics.longest_wait = topics.longest_wait.max(policy.max_retry_after).max(policy.max_delay * 2);
        topics
    }

    /// The same, reading also the retry topics of these delays, to which nothing is written any more: after a change of the
    /// delays, what waits in the old topics is tried when it is due.
    #[must_use]
    pub fn draining(mut self, delays: impl IntoIterator<Item = Duration>) -> Self {
        self.draining = delays.into_iter().map(whole_millis).filter(|d| !self.delays.contains(d)).collect();
        self
    }

    /// The same with other names. Each is a text with `{stream}`, `{consumer}` and, for retry topics, `{delay}`.
    #[must_use]
    pub fn with_names(mut self, retry: impl Into<String>, dead_letter: impl Into<String>) -> Self {
        (self.retry_name, self.dead_name) = (retry.into(), dead_letter.into());
        self
    }

    /// The same, creating topics that are missing: with as many partitions as the topic that is consumed, never compacted, and
    /// with a retention that outlasts the delay; dead letters are kept until somebody removes them.
    #[must_use]
    pub fn creating_topics(mut self) -> Self {
        self.create = true;
        self
    }

    /// The same, creating topics with this many replicas instead of the broker's default.
    #[must_use]
    pub fn with_replication(mut self, replicas: i32) -> Self {
        self.replication = replicas;
        self
    }

    /// The same without looking at the topics' settings and rights when the relay is opened, for brokers that do not tell them.
    /// A topic that is compacted, or that may not be written to, is then found when the first message fails.
    #[must_use]
    pub fn without_checks(mut self) -> Self {
        self.check = false;
        self
    }

    /// The same with Spring Kafka's `kafka_dlt-*` headers on dead letters, besides our own.
    #[must_use]
    pub fn with_spring_headers(mut self) -> Self {
        self.style.spring = true;
        self
    }

    /// The same, writing the text of errors as it is. Otherwise what varies in it is masked.
    #[must_use]
    pub fn with_whole_text(mut self) -> Self {
        self.style.whole_text = true;
        self
    }

    /// The same, giving the broker this long to confirm a record; 10 s unless set.
    #[must_use]
    pub fn with_delivery_timeout(mut self, timeout: Duration) -> Self {
        self.delivery_timeout = timeout;
        self
    }

    /// The same, passing each message on and committing its position in one transaction. The id must be this instance's own, and
    /// the same after a restart: who takes it over fences the one before.
    #[must_use]
    pub fn in_transactions(mut self, transactional_id: impl Into<String>) -> Self {
        self.transactional_id = Some(transactional_id.into());
        self
    }

    /// The same with a property of librdkafka's producer, such as `compression.type` or `linger.ms`.
    #[must_use]
    pub fn with_property(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.properties.push((name.into(), value.into()));
        self
    }

    /// The same with a look into the middle of each transaction, for tests that want to end there.
    #[doc(hidden)]
    #[must_use]
    pub fn with_transaction_hook(mut self, hook: impl Fn(&'static str) + Send + Sync + 'static) -> Self {
        self.hook = Hook(Some(std::sync::Arc::new(hook)));
        self
    }

    /// The name of a retry topic.
    pub fn retry_topic(&self, stream: &str, delay: Duration) -> String {
        let name = self.retry_name.replace("{stream}", stream).replace("{consumer}", &self.consumer);
        name.replace("{delay}", &in_words(whole_millis(delay)))
    }

    /// The names of the retry topics of a stream, the shortest delay first. Those that are drained are not among them.
    pub fn retry_topics(&self, stream: &str) -> Vec<String> {
        self.delays.iter().map(|delay| self.retry_topic(stream, *delay)).collect()
    }

    /// The name of a dead-letter topic.
    pub fn dead_letter_topic(&self, stream: &str) -> String {
        self.dead_name.replace("{stream}", stream).replace("{consumer}", &self.consumer)
    }
}

/// At least one, so that no topic is called `0ms`; delays are written in milliseconds at the finest.
fn whole_millis(delay: Duration) -> Duration {
    let millis = delay.as_nanos().div_ceil(1_000_000).clamp(1, u128::from(u64::MAX / 1_000_000));
    Duration::from_millis(millis as u64)
}

/// `1m`, `1h30m`, `500ms`.
fn in_words(delay: Duration) -> String {
    let mut left = delay.as_millis();
    let mut words = String::new();
    for (unit, millis) in [("d", DAY), ("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1)] {
        if left >= millis {
            // Writing to a text does not fail.
            let _ = write!(words, "{}{unit}", left / millis);
            left %= millis;
        }
    }
    words
}

/// One topic of a chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Tier {
    pub(crate) topic: String,
    pub(crate) delay: Duration,
    /// Whether messages still come to it.
    pub(crate) drained: bool,
}

/// The topics of one stream.
#[derive(Clone, Debug)]
pub(crate) struct Links {
    pub(crate) stream: String,
    /// The shortest delay first; those that are drained come last.
    pub(crate) tiers: Vec<Tier>,
    pub(crate) dead: String,
}

impl Links {
    /// The topic for messages that usually wait this long: the longest delay that is not longer, so that nobody waits in line
    /// behind messages that are due later; or the shortest of all.
    pub(crate) fn tier(&self, usual: Duration) -> Option<&Tier> {
        let mut open = self.tiers.iter().filter(|tier| !tier.drained);
        let first = open.clone().next();
        open.rfind(|tier| tier.delay <= usual).or(first)
    }
}

/// How far a partition of a retry topic has come.
#[derive(Clone, Copy, Debug, Default)]
struct Mark {
    /// The offset behind the last record that we wrote.
    written: u64,
    /// The offset behind the last record that we read; none when the partition is not ours.
    read: Option<u64>,
}

/// All topics of a consumer.
#[derive(Debug)]
pub(crate) struct Chain {
    pub(crate) links: Vec<Links>,
    pub(crate) longest_wait: Duration,
    /// Retry topics, by name: of which stream.
    streams: HashMap<String, usize>,
    marks: Mutex<HashMap<Partition, Mark>>,
}

impl Chain {
    /// The chain for these streams. The error says which names do not work.
    pub(crate) fn new(topics: &RetryTopics, streams: &[String]) -> Result<Self, SourceError> {
        let links: Vec<Links> = streams.iter().map(|stream| link(topics, stream)).collect();
        let mut names: BTreeSet<&str> = BTreeSet::new();
        let all = links
            .iter()
            .flat_map(|links| links.tiers.iter().map(|tier| &tier.topic).chain([&links.stream, &links.dead]));
        for name in all {
            check_name(name)?;
            if !names.insert(name) {
                return Err(SourceError::permanent(format!(
                    "two topics would be called {name:?}; put {{stream}}, {{consumer}} and {{delay}} into the names of retry \
                     and dead-letter topics, and consume no topic of that name"
                )));
            }
        }
        let of = |(index, links): (usize, &Links)| {
            let topics: Vec<_> = links.tiers.iter().map(|tier| (tier.topic.clone(), index)).collect();
            topics
        };
        let streams = links.iter().enumerate().flat_map(of).collect();
        Ok(Self { links, longest_wait: topics.longest_wait, streams, marks: Mutex::default() })
    }

    /// The topics of a stream that is consumed.
    pub(crate) fn of_stream(&self, stream: &str) -> Option<&Links> {
        self.links.iter().find(|links| links.stream == stream)
    }

    /// The topics of the stream that this retry topic belongs to.
    pub(crate) fn of_retry_topic(&self, topic: &str) -> Option<&Links> {
        self.streams.get(topic).map(|index| &self.links[*index])
    }

    /// All retry topics.
    pub(crate) fn retry_topics(&self) -> impl Iterator<Item = &str> {
        self.links.iter().flat_map(|links| links.tiers.iter().map(|tier| tier.topic.as_str()))
    }

    fn marks(&self) -> MutexGuard<'_, HashMap<Partition, Mark>> {
        self.marks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A record was written at this offset.
    pub(crate) fn wrote(&self, partition: Partition, offset: u64) {
        let mut marks = self.marks();
        let mark = marks.entry(partition).or_default();
        mark.written = mark.written.max(offset + 1);
    }

    /// This partition is ours and was read up to here; `None` when it is not ours any more.
    pub(crate) fn read(&self, partition: &Partition, next: Option<u64>) {
        self.marks().entry(partition.clone()).or_default().read = next;
    }

    /// The offset behind the last record that we wrote.
    pub(crate) fn written(&self, partition: &Partition) -> u64 {
        self.marks().get(partition).map_or(0, |mark| mark.written)
    }

    /// Whether something that we wrote is still to be read by us.
    pub(crate) fn is_expecting(&self) -> bool {
        self.marks().values().any(|mark| mark.read.is_some_and(|read| read < mark.written))
    }
}

fn link(topics: &RetryTopics, stream: &str) -> Links {
    let tier = |delay: &Duration, drained| Tier {
        topic: topics.retry_topic(stream, *delay),
        delay: *delay,
        drained,
    };
    let open = topics.delays.iter().map(|delay| tier(delay, false));
    let drained = topics.draining.iter().map(|delay| tier(delay, true));
    let tiers = open.chain(drained).collect();
    Links { stream: stream.to_owned(), tiers, dead: topics.dead_letter_topic(stream) }
}

fn check_name(name: &str) -> Result<(), SourceError> {
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    if name.is_empty() || name.len() > LONGEST_NAME || !name.chars().all(fits) {
        let why = "names of topics have 1 to 249 letters, digits, dots, underscores and dashes";
        return Err(SourceError::permanent(format!("{name:?} cannot be the name of a topic: {why}")));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn secs(n: u64) -> Duration {
        Duration::from_secs(n)
    }

    fn chain(topics: &RetryTopics) -> Result<Chain, SourceError> {
        Chain::new(topics, &["orders".to_owned(), "cases".to_owned()])
    }

    #[test]
    fn delays_are_written_as_people_write_them() {
        let table = [
            (secs(60), "1m"),
            (secs(5400), "1h30m"),
            (Duration::from_millis(500), "500ms"),
            (secs(86_400), "1d"),
            (Duration::from_micros(1_500_001), "1s501ms"),
            (Duration::ZERO, "1ms"),
        ];
        for (delay, words) in table {
            assert_eq!(in_words(whole_millis(delay)), words);
        }
        assert!(!in_words(whole_millis(Duration::MAX)).is_empty());
    }

    #[test]
    fn a_message_goes_to_the_longest_delay_that_is_not_longer_than_its_own() {
        let chain =
            chain(&RetryTopics::new("mail", [secs(60), secs(5), secs(600)]).draining([secs(30)])).unwrap();
        let links = chain.of_stream("orders").unwrap();
        let topic = |usual| links.tier(usual).map(|tier| tier.topic.as_str());
        assert_eq!(topic(secs(1)), Some("orders.mail.retry.5s"));
        assert_eq!(topic(secs(5)), Some("orders.mail.retry.5s"));
        assert_eq!(
            topic(secs(59)),
            Some("orders.mail.retry.5s"),
            "nothing is written to one that is drained"
        );
        assert_eq!(topic(secs(120)), Some("orders.mail.retry.1m"));
        assert_eq!(topic(secs(9999)), Some("orders.mail.retry.10m"));
        assert_eq!(chain.of_retry_topic("cases.mail.retry.30s").unwrap().stream, "cases", "but it is read");
        assert_eq!(chain.retry_topics().count(), 8);
    }

    #[test]
    fn a_policy_has_one_topic_for_each_delay() {
        let policy = RetryPolicy { max_attempts: 100, ..RetryPolicy::default() };
        let names = RetryTopics::for_policy("mail", &policy).retry_topics("o");
        let delays: Vec<_> = names.iter().filter_map(|name| name.rsplit('.').next()).collect();
        assert_eq!(delays, ["500ms", "1s", "2s", "4s", "8s", "16s", "30s"]);
        let once = RetryPolicy { max_attempts: 1, ..policy.clone() };
        assert_eq!(RetryTopics::for_policy("mail", &once).retry_topics("o"), [""; 0]);
        let slowly = RetryPolicy { multiplier: 1.01, max_attempts: u32::MAX, ..policy };
        assert!(RetryTopics::for_policy("mail", &slowly).retry_topics("o").len() <= MOST_TIERS);
    }

    #[test]
    fn names_that_collide_or_do_not_work_are_refused() {
        let topics = RetryTopics::new("mail", [secs(1), secs(2)]);
        for (retry, dead, word) in [
            ("{stream}.retry", "{stream}.dlt", "orders.retry"),
            ("{stream}.{delay}", "dlt", "dlt"),
            ("{stream}.{delay}", "{stream}", "orders"),
            ("{stream} {delay}", "{stream}.dlt", "cannot be the name"),
        ] {
            let error = chain(&topics.clone().with_names(retry, dead)).unwrap_err().to_string();
            assert!(error.contains(word), "{error}");
        }
        assert!(Chain::new(&topics, &["^ord.*".to_owned()]).is_err(), "patterns have no retry topics");
    }

    #[test]
    fn what_was_written_is_expected_by_whoever_reads_it() {
        let chain = chain(&RetryTopics::new("mail", [secs(1)])).unwrap();
        let partition = Partition::new("orders.mail.retry.1s", 0);
        chain.wrote(partition.clone(), 4);
        assert!(!chain.is_expecting(), "it is somebody else's");
        chain.read(&partition, Some(3));
        assert!(chain.is_expecting());
        chain.read(&partition, Some(5));
        assert!(!chain.is_expecting());
        assert_eq!(chain.written(&partition), 5);
    }
}
