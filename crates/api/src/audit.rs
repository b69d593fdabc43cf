//! Audit entries and the verification of the audit.

use lazaret_core::store;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Who acted, through which client, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub struct Actor {
    /// The person, or the acting component of Lazaret.
    pub who: String,
    /// The client: `cli`, `api`, `console`, `engine`, `library`.
    pub via: String,
    /// The reason.
    pub why: String,
}

impl From<&store::Actor> for Actor {
    fn from(actor: &store::Actor) -> Self {
        Self { who: actor.who.clone(), via: actor.via.clone(), why: actor.why.clone() }
    }
}

/// One entry of the audit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub struct AuditEntry {
    /// The sequence number, increasing by one.
    pub number: u64,
    /// The time.
    pub at: jiff::Timestamp,
    /// Who acted.
    pub who: String,
    /// The client.
    pub via: String,
    /// The reason.
    pub why: String,
    /// The action.
    pub action: String,
    /// The subject.
    pub subject: String,
    /// The previous state, where it applies.
    pub before: Option<String>,
    /// The new state.
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
    /// The `after` parameter of the next page; `null` on the last one.
    pub next: Option<String>,
}

/// The result of verifying the audit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub struct AuditCheck {
    /// Whether every entry is intact.
    pub ok: bool,
    /// The number of intact entries, from the first.
    pub intact: u64,
    /// The first broken entry.
    pub broken: Option<u64>,
    /// The hash of the last intact entry, sealed by a key of the store. Store it elsewhere to detect truncation.
    pub hash: String,
}

impl AuditCheck {
    /// The result as callers see it, with the hash sealed by the key of the store.
    pub fn sealed(check: &store::AuditCheck, key: &store::DigestKey) -> Self {
        Self {
            ok: check.broken.is_none(),
            intact: check.intact,
            broken: check.broken,
            hash: key.seal_audit_hash(&check.hash),
        }
    }
}
