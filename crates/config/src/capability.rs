//! What a build has, and what a configuration asks for.

use std::collections::BTreeSet;

use crate::code::Code;
use crate::diagnostic::{Diagnostics, Finding, Findings};
use crate::forms::StoreAt;
use crate::model::{Config, Source};
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
}

impl Capability {
    /// Every part.
    pub const ALL: [Self; 7] = [
        Self::StoreSqlite,
        Self::StorePostgres,
        Self::StoreMongodb,
        Self::SourceInbox,
        Self::SourceFile,
        Self::SourceKafka,
        Self::SourceMongodb,
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
/// assert!(missing.plain().contains("this build does not have the store `postgres`"));
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
        let document = &self.document;
        let store = match self.store {
            StoreAt::Memory => None,
            StoreAt::Sqlite(_) => Some(Capability::StoreSqlite),
            StoreAt::Postgres(_) => Some(Capability::StorePostgres),
            StoreAt::Mongodb(_) => Some(Capability::StoreMongodb),
        };
        let needs = store.map(|part| (part, document.top.span("store")));
        let sources = self.consumers.iter().zip(&document.consumers).map(|(consumer, read)| {
            let part = match consumer.source {
                Source::Inbox => Capability::SourceInbox,
                Source::File { .. } => Capability::SourceFile,
                Source::Kafka(_) => Capability::SourceKafka,
                Source::Mongodb(_) => Capability::SourceMongodb,
            };
            let chosen = read.fields.section("source").and_then(|source: &Fields| source.list.first());
            (part, chosen.and_then(|(_, field)| field.span).or(Some(read.name_span)))
        });
        for (part, span) in needs.into_iter().chain(sources).filter(|(part, _)| !build.has(*part)) {
            let message = format!("this build does not have {}", part.as_str());
            let finding = Finding::new(Code::NotInThisBuild, span.unwrap_or_default(), message);
            findings.add(finding.hint("the configuration is right; use a build that has it"));
        }
        findings.finish(&document.source)
    }
}
