//! Who did what, when and why.

use async_trait::async_trait;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::error::Result;

/// Who acts, by what means, and why.
///
/// ```
/// use lazaret_core::store::Actor;
/// let actor = Actor::new("ada", "cli", "payment service is back");
/// assert_eq!(actor.who, "ada");
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Actor {
    /// The person, or the part of Lazaret that acts by itself.
    pub who: String,
    /// The way it came: `cli`, `api`, `console`, `engine`, `library`.
    pub via: String,
    /// The reason given.
    pub why: String,
}

impl Actor {
    /// Somebody who acts.
    pub fn new(who: impl Into<String>, via: impl Into<String>, why: impl Into<String>) -> Self {
        Self { who: who.into(), via: via.into(), why: why.into() }
    }

    /// Lazaret itself.
    pub fn engine(why: impl Into<String>) -> Self {
        Self::new("lazaret", "engine", why)
    }
}

/// One line of the audit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditEntry {
    /// Its number; grows by one.
    pub number: u64,
    /// When it happened.
    pub at: Timestamp,
    /// Who did it, how and why.
    pub by: Actor,
    /// What was done: `evict`, `skip`, `pause`, …
    pub action: String,
    /// To what: a letter id, a queue, a pause scope.
    pub subject: String,
    /// How it stood before, if that says something.
    pub before: Option<String>,
    /// How it stands now.
    pub after: Option<String>,
}

/// Something to be written into the audit that is more than one act of the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditNote {
    /// What is done: `import`.
    pub action: String,
    /// To what: a queue.
    pub subject: String,
    /// What there is to say about it.
    pub after: Option<String>,
}

/// What the verification of the audit found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AuditCheck {
    /// How many entries hold, from the first one on.
    pub intact: u64,
    /// The first entry that does not: it was changed, or one before it was taken out.
    pub broken: Option<u64>,
    /// The hash of the last entry that holds; zeros before the first.
    pub hash: [u8; 32],
}

/// The append-only record of acts. Entries are written by the store itself, in the same step as the act.
#[async_trait]
pub trait Audit: Send + Sync + 'static {
    /// Writes down something that the store does not see as one act, before it is done: whoever is about to do it must not
    /// go on when this fails.
    async fn note(&self, note: &AuditNote, by: &Actor) -> Result<()>;

    /// The entries after this number, oldest first, at most `limit`.
    async fn audit(&self, after: u64, limit: usize) -> Result<Vec<AuditEntry>>;

    /// Checks the chain of the audit from its first entry on. `None` in a store that has none
    /// ([`Capabilities::audit_chain`](super::Capabilities::audit_chain)).
    async fn verify_audit(&self) -> Result<Option<AuditCheck>> {
        Ok(None)
    }
}
