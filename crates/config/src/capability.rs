//! What a build has, and what a configuration asks for.

use std::collections::BTreeSet;

use crate::code::Code;
use crate::diagnostic::{Diagnostics, Findings, Trouble};
use crate::document::{ConsumerFields, Document};
use crate::forms::StoreAt;
use crate::model::Config;
use crate::source::Span;
use crate::value::{Fields, Value};

/// A part that a build may have or not.
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
    /// The source that reads the changes of MongoDB.
    SourceMongodb,
    /// The inbox of a store that is in memory.
    InboxInMemory,
    /// The retry strategy `topics`.
    RetryTopics,
    /// The topic that gets a copy of each dead letter.
    DeadLetterTopic,
    /// Events that are sent to webhooks.
    Webhooks,
    /// Traces that are sent by OTLP.
    Traces,
    /// Tokens in a file of their own.
    TokensFile,
}

impl Capability {
    /// Every part.
    pub const ALL: [Self; 13] = [
        Self::StoreSqlite,
        Self::StorePostgres,
        Self::StoreMongodb,
        Self::SourceInbox,
        Self::SourceFile,
        Self::SourceKafka,
        Self::SourceMongodb,
        Self::InboxInMemory,
        Self::RetryTopics,
        Self::DeadLetterTopic,
        Self::Webhooks,
        Self::Traces,
        Self::TokensFile,
    ];

    /// What it is, as it is said in a message.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::StoreSqlite => "the store `sqlite`",
            Self::StorePostgres => "the store `postgres`",
            Self::StoreMongodb => "the store `mongodb`",
            Self::SourceInbox => "the source `inbox`",
            Self::SourceFile => "the source `file`",
            Self::SourceKafka => "the source `kafka`",
            Self::SourceMongodb => "the source `mongodb`",
            Self::InboxInMemory => "the source `inbox` in a store that is in memory",
            Self::RetryTopics => "the retry strategy `topics`",
            Self::DeadLetterTopic => "copies of dead letters in a topic",
            Self::Webhooks => "alerts by webhook",
            Self::Traces => "traces by OTLP",
            Self::TokensFile => "tokens in a file of their own",
        }
    }

    /// Whether no build of this version has it, and what to use instead.
    const fn not_yet(self) -> Option<&'static str> {
        match self {
            Self::StorePostgres | Self::StoreMongodb => Some("use `sqlite:PATH`"),
            Self::SourceMongodb => Some("use the source `inbox`, `file` or `kafka`"),
            Self::InboxInMemory => Some("use the store `sqlite:PATH`"),
            _ => None,
        }
    }

    /// That it is not there, and what to do about it.
    fn missing(self) -> (String, &'static str) {
        match self.not_yet() {
            Some(instead) => (format!("this version does not have {} yet", self.as_str()), instead),
            None => (
                format!("this build does not have {}", self.as_str()),
                "the configuration is right; use a build that has it",
            ),
        }
    }
}

/// What a driver says about a property that a person may set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PropertyFault {
    /// It has no such property.
    Unknown,
    /// It has the property, and it cannot be this.
    Value,
}

/// Asks a driver about the name and the value of a property, without talking to anybody.
pub type CheckProperty = fn(&str, &str) -> Result<(), PropertyFault>;

/// The parts that a build has, and what its drivers know.
///
/// ```
/// use lazaret_config::{Capabilities, Capability, NoEnv, check};
/// let text = "store: postgres://localhost/lazaret\nconsumers: {}\n";
/// let config = check("lazaret.yaml", text.as_bytes(), &NoEnv).config.unwrap();
/// assert!(config.missing(&Capabilities::all()).is_empty());
/// let missing = config.missing(&Capabilities::of([Capability::StoreSqlite]));
/// assert!(missing.plain().contains("this version does not have the store `postgres` yet"));
/// ```
#[derive(Clone, Debug)]
pub struct Capabilities {
    parts: BTreeSet<Capability>,
    kafka_property: Option<CheckProperty>,
}

impl Capabilities {
    /// These parts.
    pub fn of(parts: impl IntoIterator<Item = Capability>) -> Self {
        Self { parts: parts.into_iter().collect(), kafka_property: None }
    }

    /// Every part.
    pub fn all() -> Self {
        Self::of(Capability::ALL)
    }

    /// The same with a Kafka client that is asked about each of its properties.
    #[must_use]
    pub fn checking_kafka_properties(mut self, check: CheckProperty) -> Self {
        self.kafka_property = Some(check);
        self
    }

    /// Whether a part is there.
    pub fn has(&self, part: Capability) -> bool {
        self.parts.contains(&part)
    }

    /// Finds what a file needs and this build does not have. What could not be read needs nothing.
    pub(crate) fn missing(&self, document: &Document, findings: &mut Findings) {
        let consumers = document.consumers.iter().flat_map(|consumer| {
            let fallback = Some(consumer.name_span);
            let needs = consumer_needs(&document.top, &consumer.fields).into_iter();
            needs.map(move |(part, span)| (part, span.or(fallback)))
        });
        let needs = top_needs(&document.top).into_iter().chain(consumers);
        for (part, span) in needs.filter(|(part, _)| !self.has(*part)) {
            let (message, hint) = part.missing();
            findings.add(Trouble::new(Code::NotInThisBuild, span.unwrap_or_default(), message).hint(hint));
        }
        if let Some(check) = self.kafka_property {
            document.consumers.iter().for_each(|consumer| wrong_properties(check, consumer, findings));
        }
    }
}

impl Config {
    /// What this configuration needs and a build does not have, each as an error at its place.
    pub fn missing(&self, build: &Capabilities) -> Diagnostics {
        let mut findings = Findings::default();
        build.missing(&self.document, &mut findings);
        findings.finish(&self.document.source)
    }
}

type Need = (Capability, Option<Span>);

/// What is needed by that which is not about consumers, and where it is asked for.
fn top_needs(top: &Fields) -> Vec<Need> {
    let store = match store_of(top) {
        Some(StoreAt::Sqlite(_)) => Some(Capability::StoreSqlite),
        Some(StoreAt::Postgres(_)) => Some(Capability::StorePostgres),
        Some(StoreAt::Mongodb(_)) => Some(Capability::StoreMongodb),
        Some(StoreAt::Memory) | None => None,
    };
    let within = |section: &str, key: &str| top.section(section).and_then(|fields| fields.span(key));
    let has_webhooks = top.section("alerts").is_some_and(|alerts| !alerts.list("webhooks").is_empty());
    let has_text = |section: &str, key: &str| top.section(section).is_some_and(|it| it.text(key).is_some());
    let parts = [
        (store, top.span("store")),
        (has_webhooks.then_some(Capability::Webhooks), within("alerts", "webhooks")),
        (
            has_text("telemetry", "otlp-endpoint").then_some(Capability::Traces),
            within("telemetry", "otlp-endpoint"),
        ),
        (has_text("auth", "tokens-file").then_some(Capability::TokensFile), within("auth", "tokens-file")),
    ];
    parts.into_iter().filter_map(|(part, span)| Some((part?, span))).collect()
}

fn store_of(top: &Fields) -> Option<&StoreAt> {
    match &top.get("store")?.value {
        Value::Store(store) => Some(store),
        _ => None,
    }
}

/// What a consumer needs, and where it asks for it.
fn consumer_needs(top: &Fields, fields: &Fields) -> Vec<Need> {
    let chosen = fields.section("source").and_then(|source| source.list.first());
    let source_span = chosen.and_then(|(_, field)| field.span);
    let within = |section: &str, key: &str| fields.section(section).and_then(|fields| fields.span(key));
    let source = chosen.and_then(|(key, _)| match key.name {
        "inbox" => Some(Capability::SourceInbox),
        "file" => Some(Capability::SourceFile),
        "kafka" => Some(Capability::SourceKafka),
        "mongodb" => Some(Capability::SourceMongodb),
        _ => None,
    });
    let mut needs: Vec<Need> = source.map(|source| (source, source_span)).into_iter().collect();
    if source == Some(Capability::SourceInbox) && store_of(top) == Some(&StoreAt::Memory) {
        needs.push((Capability::InboxInMemory, source_span));
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
    needs
}

/// Properties that the Kafka client does not take. Their values may be secret, and are not shown.
fn wrong_properties(check: CheckProperty, consumer: &ConsumerFields, findings: &mut Findings) {
    let Some(("kafka", kafka)) = consumer.fields.section("source").and_then(Fields::chosen) else { return };
    for (name, field) in kafka.map("properties") {
        let Err(fault) = check(name, field.value.text().unwrap_or_default()) else { continue };
        let (message, hint) = match fault {
            PropertyFault::Unknown => (
                format!("the Kafka client has no property `{name}`"),
                "the properties are those of librdkafka, not of the Java client; look for it in its CONFIGURATION.md",
            ),
            PropertyFault::Value => (
                format!("the property `{name}` cannot be that"),
                "librdkafka's CONFIGURATION.md says what it can be",
            ),
        };
        findings.add(Trouble::new(Code::BadProperty, field.span.unwrap_or_default(), message).hint(hint));
    }
}
