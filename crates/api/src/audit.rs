//! The audit over the wire.

use lazaret_core::store;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Who acted, by what means, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub struct Actor {
    /// The person, or the part of Lazaret that acts by itself.
    pub who: String,
    /// The way it came: `cli`, `api`, `console`, `engine`, `library`.
    pub via: String,
    /// The reason given.
    pub why: String,
}

impl From<&store::Actor> for Actor {
    fn from(actor: &store::Actor) -> Self {
        Self { who: actor.who.clone(), via: actor.via.clone(), why: actor.why.clone() }
    }
}

/// One line of the audit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub struct AuditEntry {
    /// Its number; grows by one.
    pub number: u64,
    /// When it happened.
    pub at: jiff::Timestamp,
    /// Who did it.
    pub who: String,
    /// By what means.
    pub via: String,
    /// Why.
    pub why: String,
    /// What was done.
    pub action: String,
    /// To what.
    pub subject: String,
    /// How it stood before, if that says something.
    pub before: Option<String>,
    /// How it stands now.
    pub after: Option<String>,
}

impl From<&store::AuditEntry> for AuditEntry {
    fn from(entry: &store::AuditEntry) -> Self {
        Self {
            number: entry.number,
            at: entry.at,
            who: entry.by.who.clone(),
            via: entry.by.via.clone(),
            why: entry.by.why.clone(),
            action: entry.action.clone(),
            subject: entry.subject.clone(),
            before: entry.before.clone(),
            after: entry.after.clone(),
        }
    }
}

/// A page of the audit, oldest first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub struct AuditPage {
    /// The entries.
    pub entries: Vec<AuditEntry>,
    /// What to pass as `after` to get the next page; `null` at the end, as far as it goes now.
    pub next: Option<String>,
}

/// What the verification of the audit found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub struct AuditCheck {
    /// Whether every entry holds.
    pub ok: bool,
    /// How many entries hold, from the first one on.
    pub intact: u64,
    /// The first entry that does not.
    pub broken: Option<u64>,
    /// The hash of the last entry that holds. Keep it elsewhere to notice entries that are cut off at the end.
    pub hash: String,
}
