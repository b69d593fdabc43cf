//! Options of a Kafka source, and client settings derived from them.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use lazaret_core::source::SourceError;
use rdkafka::ClientConfig;

use crate::positions::metadata;

/// The default maximum number of messages per batch.
pub const DEFAULT_BATCH: usize = 512;

/// librdkafka's session timeout. It is also the default of brokers, which set it with
/// `group.protocol=consumer`.
const SESSION_TIMEOUT_MS: u64 = 45_000;
/// The interval of heartbeats. librdkafka's default is 3 seconds. The default of brokers, which set it
/// with `group.protocol=consumer`, is 5 seconds.
const HEARTBEAT_MS: u64 = 5_000;

/// The default wait for topics that do not exist yet.
pub const DEFAULT_TOPIC_TIMEOUT: Duration = Duration::from_secs(30);

/// The id of every store in memory, for [`KafkaOptions::with_store`]. Any other store may take over its
/// positions.
pub const MEMORY_STORE: &str = "memory";

/// Properties that the source sets itself, each with the reason.
const RESERVED: [(&str, &str); 5] = [
    ("bootstrap.servers", "the brokers are an option of their own"),
    ("group.id", "the group is an option of its own"),
    ("enable.auto.commit", "positions are committed when messages are settled, not periodically"),
    ("enable.auto.offset.store", "positions are committed when messages are settled, not when they are read"),
    ("enable.partition.eof", "it is set when the source reads to the end"),
];

/// Properties that apply only to the group member.
const MEMBERSHIP: [&str; 4] =
    ["group.instance.id", "group.protocol", "group.remote.assignor", "partition.assignment.strategy"];

/// Prefixes of connection properties, which apply to every client.
const CONNECTION: [&str; 12] = [
    "sasl.",
    "ssl.",
    "security.",
    "enable.sasl",
    "enable.ssl",
    "client.",
    "socket.",
    "broker.",
    "reconnect.",
    "metadata.",
    "topic.metadata.",
    "api.version.",
];

/// Default properties, which can be overridden.
const DEFAULTS: [(&str, &str); 6] = [
    ("client.id", "lazaret"),
    // A group without a position must not miss existing records.
    ("auto.offset.reset", "earliest"),
    // Applies per partition. librdkafka's default of 64 MiB is too much for a consumer of many.
    ("queued.max.messages.kbytes", "16384"),
    // The pause of fetching when the queue is full. librdkafka's default of 1 s stalls a fast consumer.
    ("fetch.queue.backoff.ms", "20"),
    // Statistics provide the lag.
    ("statistics.interval.ms", "1000"),
    ("partition.assignment.strategy", "cooperative-sticky"),
];

/// The position to read from if the committed offset is missing or was deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OffsetReset {
    Earliest,
    Latest,
    Error,
}

/// Options of a Kafka source: brokers, group, topics, and the conversion of records to messages.
///
/// ```
/// use lazaret_source_kafka::KafkaOptions;
///
/// let options = KafkaOptions::new("127.0.0.1:9092", "notification-service", ["case-events"])
///     .with_property("security.protocol", "SASL_SSL")
///     .with_id_headers(["ce_id"])
///     .reading_to_end();
/// ```
#[derive(Clone)]
pub struct KafkaOptions {
    pub(crate) brokers: String,
    pub(crate) group: String,
    pub(crate) topics: Vec<String>,
    pub(crate) properties: BTreeMap<String, String>,
    pub(crate) id_headers: Vec<String>,
    pub(crate) type_headers: Vec<String>,
    pub(crate) correlation_headers: Vec<String>,
    pub(crate) read_to_end: bool,
    pub(crate) batch: usize,
    pub(crate) metadata_limit: usize,
    pub(crate) store: Option<Arc<str>>,
    pub(crate) replaced_stores: Vec<String>,
    pub(crate) topic_timeout: Duration,
    pub(crate) topic_notice: TopicNotice,
    pub(crate) may_start_fresh: bool,
}

type Notify = dyn Fn(&str) + Send + Sync;

/// A callback that receives a description when a topic is waited for.
#[derive(Clone, Default)]
pub(crate) struct TopicNotice(Option<Arc<Notify>>);

impl TopicNotice {
    /// Logs that a topic is waited for, and calls the callback.
    pub(crate) fn send(&self, text: &str) {
        tracing::warn!(reason = text, "topic unknown, waiting for it");
        if let Some(notice) = &self.0 {
            notice(text);
        }
    }
}

impl KafkaOptions {
    /// Creates options for these topics and this group. The brokers are a comma-separated list.
    pub fn new<T: Into<String>>(
        brokers: impl Into<String>,
        group: impl Into<String>,
        topics: impl IntoIterator<Item = T>,
    ) -> Self {
        Self {
            brokers: brokers.into(),
            group: group.into(),
            topics: topics.into_iter().map(Into::into).collect(),
            properties: BTreeMap::new(),
            id_headers: Vec::new(),
            type_headers: vec!["ce_type".to_owned()],
            correlation_headers: vec!["correlation-id".to_owned(), "ce_correlationid".to_owned()],
            read_to_end: false,
            batch: DEFAULT_BATCH,
            metadata_limit: metadata::DEFAULT_LIMIT,
            store: None,
            replaced_stores: Vec::new(),
            topic_timeout: DEFAULT_TOPIC_TIMEOUT,
            topic_notice: TopicNotice::default(),
            may_start_fresh: false,
        }
    }

    /// Returns the name of the group.
    ///
    /// ```
    /// use lazaret_source_kafka::KafkaOptions;
    ///
    /// assert_eq!(KafkaOptions::new("127.0.0.1:9092", "billing", ["orders"]).group(), "billing");
    /// ```
    pub fn group(&self) -> &str {
        &self.group
    }

    /// Sets a property of librdkafka. Examples are SASL and TLS, `group.instance.id` for static
    /// membership, `auto.offset.reset` (default: `earliest`), `isolation.level`, and
    /// `partition.assignment.strategy` (default: `cooperative-sticky`).
    #[must_use]
    pub fn with_property(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.properties.insert(name.into(), value.into());
        self
    }

    /// Joins the group as the static member with this id. The property `group.instance.id` takes
    /// precedence. After a crash, the member gets its partitions back at once, without waiting for its
    /// former session to end. After an orderly stop, no other member gets them before that session ends.
    /// Two members with the same id fence each other, so the id must be unique in the group.
    ///
    /// ```
    /// use lazaret_source_kafka::KafkaOptions;
    ///
    /// let options = KafkaOptions::new("127.0.0.1:9092", "billing", ["orders"]).with_member("billing-1");
    /// ```
    #[must_use]
    pub fn with_member(mut self, id: impl Into<String>) -> Self {
        self.properties.entry("group.instance.id".to_owned()).or_insert_with(|| id.into());
        self
    }

    /// Takes the id of a message from the first of these headers that is present. By default, and
    /// without such a header, the id is `topic/partition/offset`.
    #[must_use]
    pub fn with_id_headers<T: Into<String>>(mut self, names: impl IntoIterator<Item = T>) -> Self {
        self.id_headers = names.into_iter().map(Into::into).collect();
        self
    }

    /// Takes the event type from the first of these headers that is present. Default: `ce_type`.
    #[must_use]
    pub fn with_type_headers<T: Into<String>>(mut self, names: impl IntoIterator<Item = T>) -> Self {
        self.type_headers = names.into_iter().map(Into::into).collect();
        self
    }

    /// Takes the correlation id from the first of these headers that is present. Default:
    /// `correlation-id`, then `ce_correlationid`.
    #[must_use]
    pub fn with_correlation_headers<T: Into<String>>(mut self, names: impl IntoIterator<Item = T>) -> Self {
        self.correlation_headers = names.into_iter().map(Into::into).collect();
        self
    }

    /// Makes the source finite. Each partition is read up to its end at the time of its assignment.
    /// Later records are left to the next run.
    #[must_use]
    pub fn reading_to_end(mut self) -> Self {
        self.read_to_end = true;
        self
    }

    /// Sets the maximum number of messages per batch, at least one.
    #[must_use]
    pub fn with_batch(mut self, batch: usize) -> Self {
        self.batch = batch.max(1);
        self
    }

    /// Sets the size limit of commit metadata, for brokers whose `offset.metadata.max.bytes` is not 4096.
    #[must_use]
    pub fn with_metadata_limit(mut self, characters: usize) -> Self {
        self.metadata_limit = characters;
        self
    }

    /// Sets the [id](lazaret_core::store::store_id) of this consumer's store. The id is written into
    /// each commit. A group member with a different store then stops with an error instead of handling
    /// messages out of order.
    #[must_use]
    pub fn with_store(mut self, id: impl Into<Arc<str>>) -> Self {
        self.store = Some(id.into());
        self
    }

    /// Accepts positions that were committed with these stores, which the consumer's own store replaces.
    #[must_use]
    pub fn replacing_stores<T: Into<String>>(mut self, ids: impl IntoIterator<Item = T>) -> Self {
        self.replaced_stores = ids.into_iter().map(Into::into).collect();
        self
    }

    /// Reads a log from its beginning, as a log of new messages, when the group's position cannot belong
    /// to it and its broker assigns no topic ids. Otherwise that is an error, because the topic may have
    /// been recreated or its log truncated.
    #[must_use]
    pub fn starting_fresh(mut self) -> Self {
        self.may_start_fresh = true;
        self
    }

    /// Sets how long a missing topic is waited for before that is an error. Default:
    /// [`DEFAULT_TOPIC_TIMEOUT`]. Not every broker knows a newly created topic.
    #[must_use]
    pub fn with_topic_timeout(mut self, timeout: Duration) -> Self {
        self.topic_timeout = timeout;
        self
    }

    /// Sets a callback for monitoring. It receives a description when opening has to wait for a topic.
    /// Once the source is open, its [state](crate::KafkaSource::state) and its errors report this.
    #[must_use]
    pub fn with_topic_notice(mut self, notice: impl Fn(&str) + Send + Sync + 'static) -> Self {
        self.topic_notice = TopicNotice(Some(Arc::new(notice)));
        self
    }

    /// Returns the settings of the group member's client. It fetches nothing.
    pub(crate) fn group_client(&self) -> Result<ClientConfig, SourceError> {
        let mut client = self.client()?;
        client.set("statistics.interval.ms", "0").set("enable.partition.eof", "false");
        Ok(client)
    }

    /// Returns the settings of the fetching client. It is not a member of the group.
    pub(crate) fn fetching_client(&self) -> Result<ClientConfig, SourceError> {
        let mut client = self.client()?;
        for name in MEMBERSHIP {
            client.remove(name);
        }
        Ok(client)
    }

    /// Returns the connection settings, for metadata requests and producers.
    pub(crate) fn connection(&self) -> Result<ClientConfig, SourceError> {
        self.client()?;
        let mut client = ClientConfig::new();
        client.set("bootstrap.servers", &self.brokers).set("client.id", "lazaret");
        for (name, value) in &self.properties {
            if CONNECTION.iter().any(|prefix| name.starts_with(prefix)) {
                client.set(name, value);
            }
        }
        Ok(client)
    }

    /// Rejects a store id that cannot be written into a commit. Without the id, a different store would
    /// not be detected.
    fn check_store_id(&self, id: &str) -> Result<(), SourceError> {
        if id.is_empty() {
            return Err(SourceError::permanent("the id of the store must not be empty"));
        }
        let (room, limit) = (metadata::room_for_store(id), self.metadata_limit);
        if room > limit {
            return Err(SourceError::permanent(format!(
                "the id of the store needs {room} characters in the metadata of a commit, and its limit is {limit}"
            )));
        }
        Ok(())
    }

    /// Returns the settings of both consumer clients. The error names the invalid option.
    fn client(&self) -> Result<ClientConfig, SourceError> {
        if self.topics.is_empty() || self.topics.iter().any(String::is_empty) {
            return Err(SourceError::permanent("no topics are configured; name at least one"));
        }
        if self.group.is_empty() || self.brokers.is_empty() {
            return Err(SourceError::permanent("brokers and group must not be empty"));
        }
        if let Some(id) = &self.store {
            self.check_store_id(id)?;
        }
        let mut client = ClientConfig::new();
        for (name, value) in DEFAULTS {
            // With the new group protocol, the broker has the assignors.
            let is_omitted = name == "partition.assignment.strategy" && self.has_new_protocol();
            if !is_omitted {
                client.set(name, value);
            }
        }
        for (name, value) in &self.properties {
            if let Some((_, reason)) = RESERVED.iter().find(|(reserved, _)| reserved == name) {
                return Err(SourceError::permanent(format!(
                    "the property {name} cannot be set: {reason}; remove it"
                )));
            }
            client.set(name, value);
        }
        client.set("bootstrap.servers", &self.brokers).set("group.id", &self.group);
        client.set("enable.auto.commit", "false").set("enable.auto.offset.store", "false");
        client.set("enable.partition.eof", if self.read_to_end { "true" } else { "false" });
        Ok(client)
    }

    pub(crate) fn has_new_protocol(&self) -> bool {
        self.properties.get("group.protocol").is_some_and(|protocol| protocol == "consumer")
    }

    /// Returns where to start without a committed position.
    pub(crate) fn offset_reset(&self) -> Result<OffsetReset, SourceError> {
        match self.properties.get("auto.offset.reset").map_or("earliest", String::as_str) {
            "earliest" | "smallest" | "beginning" => Ok(OffsetReset::Earliest),
            "latest" | "largest" | "end" => Ok(OffsetReset::Latest),
            "error" => Ok(OffsetReset::Error),
            other => Err(SourceError::permanent(format!(
                "auto.offset.reset must be earliest, latest or error, not {other:?}"
            ))),
        }
    }

    /// Returns how long the group keeps the partitions of a member that crashed.
    ///
    /// ```
    /// use lazaret_source_kafka::KafkaOptions;
    ///
    /// let options = KafkaOptions::new("127.0.0.1:9092", "billing", ["orders"]);
    /// assert_eq!(options.session_timeout().as_secs(), 45);
    /// ```
    pub fn session_timeout(&self) -> Duration {
        let given = self.properties.get("session.timeout.ms").and_then(|text| text.parse().ok());
        Duration::from_millis(given.unwrap_or(45_000))
    }

    /// Returns how long the group waits for a poll before it expels this member.
    pub(crate) fn max_poll_interval(&self) -> Duration {
        let given = self.properties.get("max.poll.interval.ms").and_then(|text| text.parse().ok());
        Duration::from_millis(given.unwrap_or(300_000))
    }

    /// Returns how long this process is certainly a member of the group after the group accepted a
    /// commit. In the classic protocol, a plain commit restarts the session. Otherwise the client's
    /// heartbeats do, and the last one may have been sent up to one interval earlier.
    pub(crate) fn membership_lasts(&self, transactional: bool) -> Duration {
        let millis = |name: &str, default| {
            let given = self.properties.get(name).and_then(|text| text.parse().ok());
            Duration::from_millis(given.unwrap_or(default))
        };
        let session = millis("session.timeout.ms", SESSION_TIMEOUT_MS);
        let usable = session - session / 10;
        let since_commit = match transactional || self.has_new_protocol() {
            true => usable.saturating_sub(millis("heartbeat.interval.ms", HEARTBEAT_MS)).max(session / 4),
            false => usable,
        };
        // A rebalance ends the membership of members that do not answer in time. That time starts before
        // they know of the rebalance.
        since_commit.min(self.max_poll_interval() / 4)
    }

    /// Returns `true` if only committed transactions are read.
    pub(crate) fn reads_committed(&self) -> bool {
        self.properties.get("isolation.level").is_none_or(|level| level != "read_uncommitted")
    }
}

/// Omits the values of properties, because some are secret.
impl fmt::Debug for KafkaOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KafkaOptions")
            .field("brokers", &self.brokers)
            .field("group", &self.group)
            .field("topics", &self.topics)
            .field("properties", &self.properties.keys())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options() -> KafkaOptions {
        KafkaOptions::new("127.0.0.1:9092", "group", ["orders"])
    }

    #[test]
    fn reserved_properties_cannot_be_set() {
        // I1: a client that commits by itself loses messages.
        for (name, _) in RESERVED {
            let error = options().with_property(name, "true").client().unwrap_err();
            assert!(!error.is_temporary() && error.to_string().contains(name), "{error}");
        }
    }

    #[test]
    fn the_id_of_a_store_must_fit_into_a_commit() {
        // Without the id, a member with another store would not be detected.
        assert!(options().with_store("3f2a.example").client().is_ok());
        let too_small = options().with_store("3f2a").with_metadata_limit(8);
        for refused in [options().with_store(""), options().with_store("a".repeat(5000)), too_small] {
            let error = refused.client().unwrap_err();
            assert!(!error.is_temporary() && error.to_string().contains("id of the store"), "{error}");
        }
    }

    #[test]
    fn properties_override_defaults() {
        let client = options().client().unwrap();
        let get = |name| client.get(name);
        assert_eq!(get("partition.assignment.strategy"), Some("cooperative-sticky"));
        assert_eq!((get("enable.auto.commit"), get("auto.offset.reset")), (Some("false"), Some("earliest")));
        let client = options().with_property("auto.offset.reset", "latest").client().unwrap();
        assert_eq!(client.get("auto.offset.reset"), Some("latest"));
        let client = options().with_property("group.protocol", "consumer").client().unwrap();
        assert_eq!(client.get("partition.assignment.strategy"), None);
    }

    #[test]
    fn the_fetching_client_is_not_a_member() {
        let options = options().with_property("group.instance.id", "a").reading_to_end();
        let (group, fetching) = (options.group_client().unwrap(), options.fetching_client().unwrap());
        assert_eq!((group.get("group.instance.id"), fetching.get("group.instance.id")), (Some("a"), None));
        let end = |client: &ClientConfig| client.get("enable.partition.eof").map(str::to_owned);
        assert_eq!((end(&group).as_deref(), end(&fetching).as_deref()), (Some("false"), Some("true")));
    }

    #[test]
    fn secrets_are_not_shown() {
        let text = format!("{:?}", options().with_property("sasl.password", "hunter2"));
        assert!(text.contains("sasl.password") && !text.contains("hunter2"), "{text}");
    }

    #[test]
    fn options_without_a_topic_are_refused() {
        assert!(KafkaOptions::new("127.0.0.1:9092", "group", [""; 0]).client().is_err());
        assert!(KafkaOptions::new("127.0.0.1:9092", "group", [""]).client().is_err());
        assert!(KafkaOptions::new("", "group", ["orders"]).client().is_err());
        assert!(KafkaOptions::new("127.0.0.1:9092", "", ["orders"]).client().is_err());
    }

    #[test]
    fn a_membership_is_certain_for_less_than_its_session() {
        // I6
        let seconds =
            |options: &KafkaOptions, transactional| options.membership_lasts(transactional).as_secs_f64();
        assert_eq!((seconds(&options(), false), seconds(&options(), true)), (40.5, 35.5));
        let consumer = options().with_property("group.protocol", "consumer");
        assert_eq!(seconds(&consumer, false), 35.5);
        let short = options().with_property("session.timeout.ms", "6000");
        assert_eq!((seconds(&short, false), seconds(&short, true)), (5.4, 1.5));
        let polls = short.with_property("max.poll.interval.ms", "8000");
        assert_eq!(seconds(&polls, false), 2.0);
    }

    #[test]
    fn the_reset_is_one_of_three() {
        assert_eq!(options().offset_reset().unwrap(), OffsetReset::Earliest);
        assert_eq!(
            options().with_property("auto.offset.reset", "largest").offset_reset().unwrap(),
            OffsetReset::Latest
        );
        assert_eq!(
            options().with_property("auto.offset.reset", "error").offset_reset().unwrap(),
            OffsetReset::Error
        );
        assert!(options().with_property("auto.offset.reset", "now").offset_reset().is_err());
    }
}
