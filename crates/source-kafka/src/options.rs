//! What one can choose about a Kafka source, and what one cannot.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use lazaret_core::source::SourceError;
use rdkafka::ClientConfig;

use crate::settled;

/// How many messages are given at once, unless told otherwise.
pub const DEFAULT_BATCH: usize = 512;

/// What the source decides itself, and why one may not.
const OWN: [(&str, &str); 5] = [
    ("bootstrap.servers", "the brokers are given by name"),
    ("group.id", "the group is given by name"),
    ("enable.auto.commit", "positions are committed when messages are settled, not by time"),
    ("enable.auto.offset.store", "positions are committed when messages are settled, not when they are read"),
    ("enable.partition.eof", "it is set when the source reads to the end"),
];

/// What only the member of a group may say.
const MEMBERSHIP: [&str; 4] =
    ["group.instance.id", "group.protocol", "group.remote.assignor", "partition.assignment.strategy"];

/// What is about connections, and so holds for every client: names begin with one of these.
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

/// What holds unless a property says otherwise.
const DEFAULTS: [(&str, &str); 6] = [
    ("client.id", "lazaret"),
    // A group that has no position yet must not miss what is there.
    ("auto.offset.reset", "earliest"),
    // Per partition; librdkafka's own 64 MiB are much for a consumer of many.
    ("queued.max.messages.kbytes", "16384"),
    // How long a partition waits with the next fetch once that much is there; its own 1 s makes a fast consumer wait.
    ("fetch.queue.backoff.ms", "20"),
    // The lag is read from these.
    ("statistics.interval.ms", "1000"),
    ("partition.assignment.strategy", "cooperative-sticky"),
];

/// Where to read when there is no committed position, or when it no longer exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reset {
    Earliest,
    Latest,
    Error,
}

/// What to read, as whom, and how records become messages.
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
}

impl KafkaOptions {
    /// Reads these topics as a member of this group. The brokers are a list separated by commas.
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
            metadata_limit: settled::DEFAULT_LIMIT,
        }
    }

    /// The same with a property of librdkafka: SASL and TLS, `group.instance.id` for static membership,
    /// `auto.offset.reset` (`earliest` unless given), `isolation.level`, `partition.assignment.strategy`
    /// (`cooperative-sticky` unless given) and so on.
    #[must_use]
    pub fn with_property(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.properties.insert(name.into(), value.into());
        self
    }

    /// The same, taking the id of a message from the first of these headers that it has. Without one the id is
    /// `topic/partition/offset`, which is also what one gets unless this is set.
    #[must_use]
    pub fn with_id_headers<T: Into<String>>(mut self, names: impl IntoIterator<Item = T>) -> Self {
        self.id_headers = names.into_iter().map(Into::into).collect();
        self
    }

    /// The same, taking the event type from the first of these headers that a message has; `ce_type` unless set.
    #[must_use]
    pub fn with_type_headers<T: Into<String>>(mut self, names: impl IntoIterator<Item = T>) -> Self {
        self.type_headers = names.into_iter().map(Into::into).collect();
        self
    }

    /// The same, taking the correlation id from the first of these headers that a message has; `correlation-id` and
    /// `ce_correlationid` unless set.
    #[must_use]
    pub fn with_correlation_headers<T: Into<String>>(mut self, names: impl IntoIterator<Item = T>) -> Self {
        self.correlation_headers = names.into_iter().map(Into::into).collect();
        self
    }

    /// The same as a finite source: each partition ends where it ended when it was assigned. What is written later is left
    /// for the next run.
    #[must_use]
    pub fn reading_to_end(mut self) -> Self {
        self.read_to_end = true;
        self
    }

    /// The same, giving at most this many messages at once, at least one.
    #[must_use]
    pub fn with_batch(mut self, batch: usize) -> Self {
        self.batch = batch.max(1);
        self
    }

    /// The same for brokers whose `offset.metadata.max.bytes` is not 4096.
    #[must_use]
    pub fn with_metadata_limit(mut self, characters: usize) -> Self {
        self.metadata_limit = characters;
        self
    }

    /// The settings of the client that is the member of the group. It reads nothing.
    pub(crate) fn group_client(&self) -> Result<ClientConfig, SourceError> {
        let mut client = self.client()?;
        client.set("statistics.interval.ms", "0").set("enable.partition.eof", "false");
        Ok(client)
    }

    /// The settings of the client that reads. It is a member of no group.
    pub(crate) fn reading_client(&self) -> Result<ClientConfig, SourceError> {
        let mut client = self.client()?;
        for name in MEMBERSHIP {
            client.remove(name);
        }
        Ok(client)
    }

    /// The settings of a client that asks or writes: whom to talk to, and as whom.
    pub(crate) fn asking_client(&self) -> Result<ClientConfig, SourceError> {
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

    /// The settings of both clients. The error says which property makes no sense.
    fn client(&self) -> Result<ClientConfig, SourceError> {
        if self.topics.is_empty() || self.topics.iter().any(String::is_empty) {
            return Err(SourceError::permanent("there is no topic to read; name at least one"));
        }
        if self.group.is_empty() || self.brokers.is_empty() {
            return Err(SourceError::permanent("brokers and group must not be empty"));
        }
        let mut client = ClientConfig::new();
        for (name, value) in DEFAULTS {
            // The new group protocol has its assignors on the broker.
            let left_out = name == "partition.assignment.strategy" && self.has_new_protocol();
            if !left_out {
                client.set(name, value);
            }
        }
        for (name, value) in &self.properties {
            if let Some((_, why)) = OWN.iter().find(|(own, _)| own == name) {
                return Err(SourceError::permanent(format!(
                    "the property {name} cannot be set: {why}; remove it"
                )));
            }
            client.set(name, value);
        }
        client.set("bootstrap.servers", &self.brokers).set("group.id", &self.group);
        client.set("enable.auto.commit", "false").set("enable.auto.offset.store", "false");
        client.set("enable.partition.eof", if self.read_to_end { "true" } else { "false" });
        Ok(client)
    }

    fn has_new_protocol(&self) -> bool {
        self.properties.get("group.protocol").is_some_and(|protocol| protocol == "consumer")
    }

    /// Where to begin without a position.
    pub(crate) fn reset(&self) -> Result<Reset, SourceError> {
        match self.properties.get("auto.offset.reset").map_or("earliest", String::as_str) {
            "earliest" | "smallest" | "beginning" => Ok(Reset::Earliest),
            "latest" | "largest" | "end" => Ok(Reset::Latest),
            "error" => Ok(Reset::Error),
            other => Err(SourceError::permanent(format!(
                "auto.offset.reset is earliest, latest or error, not {other:?}"
            ))),
        }
    }

    /// How long the group waits for this member before it puts it out.
    pub(crate) fn max_poll_interval(&self) -> Duration {
        let given = self.properties.get("max.poll.interval.ms").and_then(|text| text.parse().ok());
        Duration::from_millis(given.unwrap_or(300_000))
    }

    /// Whether only committed transactions are read.
    pub(crate) fn reads_committed(&self) -> bool {
        self.properties.get("isolation.level").is_none_or(|level| level != "read_uncommitted")
    }
}

/// Without the values of properties: some are secret.
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
    fn what_the_source_decides_cannot_be_set() {
        // I1: a client that commits by itself loses messages.
        for (name, _) in OWN {
            let error = options().with_property(name, "true").client().unwrap_err();
            assert!(!error.is_temporary() && error.to_string().contains(name), "{error}");
        }
    }

    #[test]
    fn properties_come_before_defaults() {
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
    fn the_client_that_reads_is_no_member() {
        let options = options().with_property("group.instance.id", "a").reading_to_end();
        let (group, reading) = (options.group_client().unwrap(), options.reading_client().unwrap());
        assert_eq!((group.get("group.instance.id"), reading.get("group.instance.id")), (Some("a"), None));
        let end = |client: &ClientConfig| client.get("enable.partition.eof").map(str::to_owned);
        assert_eq!((end(&group).as_deref(), end(&reading).as_deref()), (Some("false"), Some("true")));
    }

    #[test]
    fn secrets_are_not_shown() {
        let text = format!("{:?}", options().with_property("sasl.password", "hunter2"));
        assert!(text.contains("sasl.password") && !text.contains("hunter2"), "{text}");
    }

    #[test]
    fn options_without_a_topic_make_no_sense() {
        assert!(KafkaOptions::new("127.0.0.1:9092", "group", [""; 0]).client().is_err());
        assert!(KafkaOptions::new("127.0.0.1:9092", "group", [""]).client().is_err());
        assert!(KafkaOptions::new("", "group", ["orders"]).client().is_err());
        assert!(KafkaOptions::new("127.0.0.1:9092", "", ["orders"]).client().is_err());
    }

    #[test]
    fn the_reset_is_one_of_three() {
        assert_eq!(options().reset().unwrap(), Reset::Earliest);
        assert_eq!(options().with_property("auto.offset.reset", "largest").reset().unwrap(), Reset::Latest);
        assert_eq!(options().with_property("auto.offset.reset", "error").reset().unwrap(), Reset::Error);
        assert!(options().with_property("auto.offset.reset", "now").reset().is_err());
    }
}
