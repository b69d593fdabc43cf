//! What a build has, and what a configuration asks for.

use std::collections::BTreeSet;

use lazaret_core::policy::Strategy;

use crate::code::Code;
use crate::diagnostic::{Diagnostics, Finding, Findings};
use crate::forms::StoreAt;
use crate::model::{Config, Consumer, Source};
use crate::source::Span;
use crate::value::Fields;

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

/// The parts that a build has.
///
/// ```
/// use lazaret_config::{Capabilities, Capability, NoEnv, check};
/// let text = "store: postgres://localhost/lazaret\nconsumers: {}\n";
/// let config = check("lazaret.yaml", text.as_bytes(), &NoEnv).config.unwrap();
/// assert!(config.missing(&Capabilities::all()).is_empty());
/// let missing = config.missing(&Capabilities::of([Capability::StoreSqlite]));
/// assert!(missing.plain().contains("this version does not have the store `postgres` yet"));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capabilities(BTreeSet<Capability>);

impl Capabilities {
    /// These parts.
    pub fn of(parts: impl IntoIterator<Item = Capability>) -> Self {
        Self(parts.into_iter().collect())
    }

    /// Every part.
    pub fn all() -> Self {
        Self::of(Capability::ALL)
    }

    /// Whether a part is there.
    pub fn has(&self, part: Capability) -> bool {
        self.0.contains(&part)
    }
}

impl Config {
    /// What this configuration needs and a build does not have, each as an error at its place.
    pub fn missing(&self, build: &Capabilities) -> Diagnostics {
        let mut findings = Findings::default();
        let consumers = self.consumers.iter().zip(&self.document.consumers);
        let needs = self.needs().into_iter().chain(consumers.flat_map(|(consumer, read)| {
            let fallback = Some(read.name_span);
            self.consumer_needs(consumer, &read.fields)
                .into_iter()
                .map(move |(part, span)| (part, span.or(fallback)))
        }));
        for (part, span) in needs.filter(|(part, _)| !build.has(*part)) {
            let (message, hint) = part.missing();
            let finding = Finding::new(Code::NotInThisBuild, span.unwrap_or_default(), message);
            findings.add(finding.hint(hint));
        }
        findings.finish(&self.document.source)
    }

    /// What is needed by that which is not about consumers, and where it is asked for.
    fn needs(&self) -> Vec<(Capability, Option<Span>)> {
        let top = &self.document.top;
        let store = match self.store {
            StoreAt::Memory => None,
            StoreAt::Sqlite(_) => Some(Capability::StoreSqlite),
            StoreAt::Postgres(_) => Some(Capability::StorePostgres),
            StoreAt::Mongodb(_) => Some(Capability::StoreMongodb),
        };
        let within = |section: &str, key: &str| top.section(section).and_then(|fields| fields.span(key));
        let tokens_file = self.auth.as_ref().is_some_and(|auth| auth.tokens_file.is_some());
        let parts = [
            (store, top.span("store")),
            ((!self.webhooks.is_empty()).then_some(Capability::Webhooks), within("alerts", "webhooks")),
            (
                self.telemetry.otlp_endpoint.is_some().then_some(Capability::Traces),
                within("telemetry", "otlp-endpoint"),
            ),
            (tokens_file.then_some(Capability::TokensFile), within("auth", "tokens-file")),
        ];
        parts.into_iter().filter_map(|(part, span)| Some((part?, span))).collect()
    }

    /// What a consumer needs, and where it asks for it.
    fn consumer_needs(&self, consumer: &Consumer, fields: &Fields) -> Vec<(Capability, Option<Span>)> {
        let chosen = fields.section("source").and_then(|source| source.list.first());
        let source_span = chosen.and_then(|(_, field)| field.span);
        let within = |section: &str, key: &str| fields.section(section).and_then(|fields| fields.span(key));
        let source = match consumer.source {
            Source::Inbox => Capability::SourceInbox,
            Source::File { .. } => Capability::SourceFile,
            Source::Kafka(_) => Capability::SourceKafka,
            Source::Mongodb(_) => Capability::SourceMongodb,
        };
        let mut needs = vec![(source, source_span)];
        if consumer.source == Source::Inbox && self.store == StoreAt::Memory {
            needs.push((Capability::InboxInMemory, source_span));
        }
        if consumer.retry.policy.strategy == Strategy::Topics {
            needs.push((Capability::RetryTopics, within("retry", "strategy")));
        }
        if consumer.dead_letter.as_ref().is_some_and(|letters| letters.topic.is_some()) {
            needs.push((Capability::DeadLetterTopic, within("dead-letter", "topic")));
        }
        needs
    }
}
