//! The capabilities of a build, and the capabilities that a configuration requires.

use std::collections::BTreeSet;

use serde_json::Value as Json;

use crate::adopt_rules::topics;
use crate::code::Code;
use crate::diagnostic::{Diagnostics, FindingBuilder, Findings};
use crate::document::{ConsumerFields, Document};
use crate::formats::StoreLocation;
use crate::model::Config;
use crate::source::Span;
use crate::value::{Fields, Value};

/// An optional capability of a build.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Capability {
    /// The store in a SQLite file.
    StoreSqlite,
    /// The store in PostgreSQL.
    StorePostgres,
    /// The store in MongoDB.
    StoreMongodb,
    /// The inbox, which is a source in the store.
    SourceInbox,
    /// The source that reads a file.
    SourceFile,
    /// The source that reads Kafka.
    SourceKafka,
    /// The source that reads MongoDB change streams.
    SourceMongodb,
    /// The source that reads an outbox in PostgreSQL.
    SourcePostgresOutbox,
    /// The inbox of a store in memory.
    InboxInMemory,
    /// The inbox of a store in MongoDB.
    InboxInMongodb,
    /// The retry strategy `topics`.
    RetryTopics,
    /// The topic that receives a copy of each dead letter.
    DeadLetterTopic,
    /// The collection that receives a copy of each dead letter.
    DeadLetterCollection,
    /// The adoption of dead-letter topics.
    AdoptTopics,
    /// Alerts by webhook.
    Webhooks,
    /// Traces by OTLP.
    Traces,
    /// Tokens in a separate file.
    TokensFile,
}

impl Capability {
    /// The hint for a capability that another build has.
    pub const OTHER_BUILD: &'static str = "use a build that supports it: `cargo install --locked --path crates/cli` includes every source and store";

    /// All capabilities.
    pub const ALL: [Self; 17] = [
        Self::StoreSqlite,
        Self::StorePostgres,
        Self::StoreMongodb,
        Self::SourceInbox,
        Self::SourceFile,
        Self::SourceKafka,
        Self::SourceMongodb,
        Self::SourcePostgresOutbox,
        Self::InboxInMemory,
        Self::InboxInMongodb,
        Self::RetryTopics,
        Self::DeadLetterTopic,
        Self::DeadLetterCollection,
        Self::AdoptTopics,
        Self::Webhooks,
        Self::Traces,
        Self::TokensFile,
    ];

    /// Returns the name for use in messages.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::StoreSqlite => "the store `sqlite`",
            Self::StorePostgres => "the store `postgres`",
            Self::StoreMongodb => "the store `mongodb`",
            Self::SourceInbox => "the source `inbox`",
            Self::SourceFile => "the source `file`",
            Self::SourceKafka => "the source `kafka`",
            Self::SourceMongodb => "the source `mongodb`",
            Self::SourcePostgresOutbox => "the source `postgres-outbox`",
            Self::InboxInMemory => "the source `inbox` with a store in memory",
            Self::InboxInMongodb => "the source `inbox` with the store `mongodb`",
            Self::RetryTopics => "the retry strategy `topics`",
            Self::DeadLetterTopic => "copies of dead letters in a topic",
            Self::DeadLetterCollection => "copies of dead letters in a collection",
            Self::AdoptTopics => "the adoption of dead-letter topics",
            Self::Webhooks => "alerts by webhook",
            Self::Traces => "traces by OTLP",
            Self::TokensFile => "tokens in a separate file",
        }
    }

    /// Returns the alternative if no build of this version has the capability.
    const fn not_yet(self) -> Option<&'static str> {
        match self {
            Self::InboxInMemory | Self::InboxInMongodb => {
                Some("use the store `sqlite:PATH` or `postgres://…`")
            }
            _ => None,
        }
    }

    /// Returns the message and the hint for a missing capability.
    fn missing(self) -> (String, &'static str) {
        match self.not_yet() {
            Some(instead) => (format!("this version does not support {} yet", self.as_str()), instead),
            None => (format!("this build does not support {}", self.as_str()), Self::OTHER_BUILD),
        }
    }
}

/// The reason why a driver rejects a property.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PropertyError {
    /// The property does not exist.
    Unknown,
    /// The value is invalid.
    Value,
}

/// Checks the name and the value of a property with a driver, without a connection.
pub type PropertyCheck = fn(&str, &str) -> Result<(), PropertyError>;

/// Checks a pipeline of a change stream without a connection. The error describes the problem.
pub type PipelineCheck = fn(&[Json]) -> Result<(), String>;

/// Reviews a valid pipeline of a change stream. Returns a description of a probable mistake.
pub type PipelineReview = fn(&[Json]) -> Option<String>;

/// Checks that a change stream does not read a collection of the store. The arguments are the URI, the
/// database and the collection of the source, then the URI of the store. The error describes the
/// problem.
pub type WatchCheck = fn(&str, &str, &str, &str) -> Result<(), String>;

/// Checks the URI of a server without a connection. The error describes the problem without the user and
/// the password.
pub type UriCheck = fn(&str) -> Result<(), String>;

/// The capabilities of a build, and the checks of its drivers.
///
/// ```
/// use lazaret_config::{Capabilities, Capability, NoEnv, check};
/// let text = "store: postgres://localhost/lazaret\nconsumers: {}\n";
/// let config = check("lazaret.yaml", text.as_bytes(), &NoEnv).config.unwrap();
/// assert!(config.missing(&Capabilities::all()).is_empty());
/// let missing = config.missing(&Capabilities::of([Capability::StoreSqlite]));
/// assert!(missing.plain().contains("this build does not support the store `postgres`"));
/// ```
#[derive(Clone, Debug)]
pub struct Capabilities {
    capabilities: BTreeSet<Capability>,
    kafka_property: Option<PropertyCheck>,
    pipeline: Option<PipelineCheck>,
    pipeline_review: Option<PipelineReview>,
    watch: Option<WatchCheck>,
    mongodb_uri: Option<UriCheck>,
    mongodb_store_uri: Option<UriCheck>,
}

impl Capabilities {
    /// Creates a set of capabilities.
    pub fn of(capabilities: impl IntoIterator<Item = Capability>) -> Self {
        let capabilities = capabilities.into_iter().collect();
        Self {
            capabilities,
            kafka_property: None,
            pipeline: None,
            pipeline_review: None,
            watch: None,
            mongodb_uri: None,
            mongodb_store_uri: None,
        }
    }

    /// Returns all capabilities.
    pub fn all() -> Self {
        Self::of(Capability::ALL)
    }

    /// Adds a check of Kafka client properties.
    #[must_use]
    pub fn with_kafka_property_check(mut self, check: PropertyCheck) -> Self {
        self.kafka_property = Some(check);
        self
    }

    /// Adds a check of the pipelines of change streams.
    #[must_use]
    pub fn with_pipeline_check(mut self, check: PipelineCheck) -> Self {
        self.pipeline = Some(check);
        self
    }

    /// Adds a review of change stream pipelines that pass the check.
    #[must_use]
    pub fn with_pipeline_review(mut self, review: PipelineReview) -> Self {
        self.pipeline_review = Some(review);
        self
    }

    /// Adds a check that change streams do not read the store.
    #[must_use]
    pub fn with_watch_check(mut self, check: WatchCheck) -> Self {
        self.watch = Some(check);
        self
    }

    /// Adds a check of the MongoDB URIs of sources.
    #[must_use]
    pub fn with_mongodb_uri_check(mut self, check: UriCheck) -> Self {
        self.mongodb_uri = Some(check);
        self
    }

    /// Adds a check of the store's MongoDB URI, which accepts an extra parameter.
    #[must_use]
    pub fn with_mongodb_store_uri_check(mut self, check: UriCheck) -> Self {
        self.mongodb_store_uri = Some(check);
        self
    }

    /// Returns `true` if the build has the capability.
    pub fn has(&self, capability: Capability) -> bool {
        self.capabilities.contains(&capability)
    }

    /// Reports capabilities that a file requires and this build lacks. Invalid values require nothing.
    pub(crate) fn missing(&self, document: &Document, findings: &mut Findings) {
        let consumers = document.consumers.iter().flat_map(|consumer| {
            let fallback = Some(consumer.name_span);
            let needs = consumer_requirements(&document.top, &consumer.fields).into_iter();
            needs.map(move |(capability, span)| (capability, span.or(fallback)))
        });
        let needs = top_requirements(&document.top).into_iter().chain(consumers);
        for (capability, span) in needs.filter(|(capability, _)| !self.has(*capability)) {
            let (message, hint) = capability.missing();
            findings
                .add(FindingBuilder::new(Code::NotInThisBuild, span.unwrap_or_default(), message).hint(hint));
        }
        if let Some(check) = self.kafka_property {
            document.consumers.iter().for_each(|consumer| wrong_properties(check, consumer, findings));
        }
        for consumer in &document.consumers {
            wrong_pipeline(self, consumer, findings);
        }
        wrong_uris(self, document, findings);
        if let (Some(check), Some(StoreLocation::Mongodb(store))) = (self.watch, store_of(&document.top)) {
            document.consumers.iter().for_each(|consumer| watched_store(check, store, consumer, findings));
        }
    }
}

impl Config {
    /// Reports capabilities that this configuration requires and a build lacks.
    pub fn missing(&self, build: &Capabilities) -> Diagnostics {
        let mut findings = Findings::default();
        build.missing(&self.document, &mut findings);
        findings.finish(&self.document.source)
    }
}

type Requirement = (Capability, Option<Span>);

/// Returns the capabilities that the top level requires, with their locations.
fn top_requirements(top: &Fields) -> Vec<Requirement> {
    let store = match store_of(top) {
        Some(StoreLocation::Sqlite(_)) => Some(Capability::StoreSqlite),
        Some(StoreLocation::Postgres(_)) => Some(Capability::StorePostgres),
        Some(StoreLocation::Mongodb(_)) => Some(Capability::StoreMongodb),
        Some(StoreLocation::Memory) | None => None,
    };
    let within = |section: &str, key: &str| top.section(section).and_then(|fields| fields.span(key));
    let has_webhooks = top.section("alerts").is_some_and(|alerts| !alerts.list("webhooks").is_empty());
    let has_text = |section: &str, key: &str| top.section(section).is_some_and(|it| it.text(key).is_some());
    let capabilities = [
        (store, top.span("store")),
        (has_webhooks.then_some(Capability::Webhooks), within("alerts", "webhooks")),
        (
            has_text("telemetry", "otlp-endpoint").then_some(Capability::Traces),
            within("telemetry", "otlp-endpoint"),
        ),
        (has_text("auth", "tokens-file").then_some(Capability::TokensFile), within("auth", "tokens-file")),
    ];
    capabilities.into_iter().filter_map(|(capability, span)| Some((capability?, span))).collect()
}

fn store_of(top: &Fields) -> Option<&StoreLocation> {
    match &top.get("store")?.value {
        Value::Store(store) => Some(store),
        _ => None,
    }
}

/// Returns the capabilities that a consumer requires, with their locations.
fn consumer_requirements(top: &Fields, fields: &Fields) -> Vec<Requirement> {
    let chosen = fields.section("source").and_then(|source| source.list.first());
    let source_span = chosen.and_then(|(_, field)| field.span);
    let within = |section: &str, key: &str| fields.section(section).and_then(|fields| fields.span(key));
    let source = chosen.and_then(|(key, _)| match key.name {
        "inbox" => Some(Capability::SourceInbox),
        "file" => Some(Capability::SourceFile),
        "kafka" => Some(Capability::SourceKafka),
        "mongodb" => Some(Capability::SourceMongodb),
        "postgres-outbox" => Some(Capability::SourcePostgresOutbox),
        _ => None,
    });
    let mut needs: Vec<Requirement> = source.map(|source| (source, source_span)).into_iter().collect();
    if source == Some(Capability::SourceInbox) && store_of(top) == Some(&StoreLocation::Memory) {
        needs.push((Capability::InboxInMemory, source_span));
    }
    if source == Some(Capability::SourceInbox) && matches!(store_of(top), Some(StoreLocation::Mongodb(_))) {
        needs.push((Capability::InboxInMongodb, source_span));
    }
    let is = |section: &str, key: &str, word: &str| {
        fields.section(section).is_some_and(|fields| fields.text(key) == Some(word))
    };
    if is("retry", "strategy", "topics") {
        needs.push((Capability::RetryTopics, within("retry", "strategy")));
    }
    let letters = fields.section("dead-letter").filter(|letters| letters.flag("enabled") != Some(false));
    if letters.is_some_and(|letters| letters.text("topic").is_some()) {
        needs.push((Capability::DeadLetterTopic, within("dead-letter", "topic")));
    }
    if letters.is_some_and(|letters| letters.text("collection").is_some()) {
        needs.push((Capability::DeadLetterCollection, within("dead-letter", "collection")));
    }
    needs.extend(topics(fields).map(|(format, _)| (Capability::AdoptTopics, within("adopt", format))));
    needs
}

/// Reports properties that the Kafka client rejects. Their values may be secret and are not shown.
fn wrong_properties(check: PropertyCheck, consumer: &ConsumerFields, findings: &mut Findings) {
    let source = match consumer.fields.section("source").and_then(Fields::chosen) {
        Some(("kafka", kafka)) => Some(kafka),
        _ => None,
    };
    let adopted = topics(&consumer.fields).map(|(_, topics)| topics);
    for (name, field) in source.into_iter().chain(adopted).flat_map(|kafka| kafka.map("properties")) {
        let Err(fault) = check(name, field.value.text().unwrap_or_default()) else { continue };
        let (message, hint) = match fault {
            PropertyError::Unknown => (
                format!("unknown Kafka client property `{name}`"),
                "use a property of librdkafka, not of the Java client; see its CONFIGURATION.md",
            ),
            PropertyError::Value => (
                format!("invalid value for the Kafka client property `{name}`"),
                "see the allowed values in librdkafka's CONFIGURATION.md",
            ),
        };
        findings.add(
            FindingBuilder::new(Code::InvalidProperty, field.span.unwrap_or_default(), message).hint(hint),
        );
    }
}

/// Reports MongoDB URIs that the driver rejects: the URIs of the store, of sources, and of collections
/// for copies of dead letters.
fn wrong_uris(build: &Capabilities, document: &Document, findings: &mut Findings) {
    let store = match store_of(&document.top) {
        Some(StoreLocation::Mongodb(uri)) => {
            Some((build.mongodb_store_uri, Code::InvalidStore, uri.as_str(), document.top.span("store")))
        }
        _ => None,
    };
    let sources = document.consumers.iter().filter_map(|consumer| {
        let Some(("mongodb", mongodb)) = consumer.fields.section("source").and_then(Fields::chosen) else {
            return None;
        };
        Some((build.mongodb_uri, Code::InvalidAddress, mongodb.text("uri")?, mongodb.span("uri")))
    });
    let copies = document.consumers.iter().filter_map(|consumer| {
        let letters = consumer.fields.section("dead-letter")?;
        let (uri, span) = (letters.text("collection-uri")?, letters.span("collection-uri"));
        Some((build.mongodb_uri, Code::InvalidAddress, uri, span))
    });
    for (check, code, uri, span) in store.into_iter().chain(sources).chain(copies) {
        if let Some(Err(why)) = check.map(|check| check(uri)) {
            let finding = FindingBuilder::new(code, span.unwrap_or_default(), why);
            findings.add(finding.hint("see the connection string options of MongoDB"));
        }
    }
}

/// Reports a pipeline that a change stream cannot use.
fn wrong_pipeline(build: &Capabilities, consumer: &ConsumerFields, findings: &mut Findings) {
    let Some(("mongodb", mongodb)) = consumer.fields.section("source").and_then(Fields::chosen) else {
        return;
    };
    let stages = mongodb.list("pipeline").iter().filter_map(|field| match &field.value {
        Value::Json(stage) => Some(stage.clone()),
        _ => None,
    });
    let (stages, span) = (stages.collect::<Vec<_>>(), mongodb.span("pipeline").unwrap_or_default());
    if let Some(Err(why)) = build.pipeline.map(|check| check(&stages)) {
        let finding = FindingBuilder::new(Code::InvalidPipeline, span, why);
        findings.add(finding.hint("correct the stages; the events must keep `_id`"));
    } else if let Some(why) = build.pipeline_review.and_then(|review| review(&stages)) {
        let finding = FindingBuilder::new(Code::HiddenInvalidation, span, why);
        findings.add(finding.hint("move the stage that filters before the one that removes `operationType`"));
    }
}

/// Reports a change stream that reads a collection of the store.
fn watched_store(check: WatchCheck, store: &str, consumer: &ConsumerFields, findings: &mut Findings) {
    let Some(("mongodb", mongodb)) = consumer.fields.section("source").and_then(Fields::chosen) else {
        return;
    };
    let names = (mongodb.text("uri"), mongodb.text("database"), mongodb.text("collection"));
    let (Some(uri), Some(database), Some(collection)) = names else { return };
    if let Err(why) = check(uri, database, collection, store) {
        let span = mongodb.span("collection").unwrap_or_default();
        let finding = FindingBuilder::new(Code::Contradiction, span, why);
        findings.add(finding.hint("watch another collection, or keep the store in another database"));
    }
}
