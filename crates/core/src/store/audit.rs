//! The audit: who did what, when and why.

use std::fmt;

use async_trait::async_trait;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::digest_key::DigestKey;
use super::error::Result;

/// The author of a change: who, by what means, and why.
///
/// ```
/// use lazaret_core::store::Actor;
/// let actor = Actor::new("ada", "cli", "payment service is back");
/// assert_eq!(actor.who, "ada");
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Actor {
    /// The person, or `lazaret` for automatic changes.
    pub who: String,
    /// The channel: `cli`, `api`, `console`, `engine`, `library`. The API adds the name of the token where it is not that of the
    /// person, and who the caller claims to be: `cli:ada-2027 from ada@laptop`.
    pub via: String,
    /// The reason given.
    pub why: String,
}

impl Actor {
    /// Creates an actor.
    pub fn new(who: impl Into<String>, via: impl Into<String>, why: impl Into<String>) -> Self {
        Self { who: who.into(), via: via.into(), why: why.into() }
    }

    /// Lazaret itself, for automatic changes.
    pub fn engine(why: impl Into<String>) -> Self {
        Self::new("lazaret", "engine", why)
    }
}

/// One entry of the audit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditEntry {
    /// Its number; consecutive.
    pub number: u64,
    /// When it happened.
    pub at: Timestamp,
    /// The author, channel and reason.
    pub by: Actor,
    /// The action: `evict`, `skip`, `pause`, …
    pub action: String,
    /// Its subject: a letter id, a queue, a pause scope.
    pub subject: String,
    /// The state before, if meaningful.
    pub before: Option<String>,
    /// The state after.
    pub after: Option<String>,
}

impl AuditEntry {
    /// The hash of this entry in a chain: the SHA-256 of the hash before it, zeros before the first, and of the entry's canonical text:
    /// a JSON array of number, time in nanoseconds, who, via, why, action, subject, before and after.
    ///
    /// It has no key: whoever knows all but one of the fields can compare a guess of that one with it. So it stays in the store, and
    /// [sealed](DigestKey::seal_audit_hash) leaves it.
    ///
    /// ```
    /// use lazaret_core::Timestamp;
    /// use lazaret_core::store::{Actor, AuditEntry};
    /// let (at, by) = (Timestamp::UNIX_EPOCH, Actor::new("ada", "cli", "known bug"));
    /// let (action, subject) = ("evict".to_owned(), "letter".to_owned());
    /// let entry = AuditEntry { number: 1, at, by, action, subject, before: None, after: None };
    /// let changed = AuditEntry { subject: "another".to_owned(), ..entry.clone() };
    /// assert_ne!(entry.chain_hash(&[0; 32]), changed.chain_hash(&[0; 32]));
    /// assert_ne!(entry.chain_hash(&[0; 32]), entry.chain_hash(&[1; 32]));
    /// ```
    pub fn chain_hash(&self, previous: &[u8; 32]) -> [u8; 32] {
        let Self { number, at, by, action, subject, before, after } = self;
        let text = (number, at.as_nanosecond(), &by.who, &by.via, &by.why, action, subject, before, after);
        let text = serde_json::to_vec(&text).expect("numbers and texts can be written as JSON");
        let mut hasher = Sha256::new();
        hasher.update(previous);
        hasher.update(text);
        hasher.finalize().into()
    }
}

/// An audit entry for an action that consists of several store calls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditNote {
    /// The action: `import`.
    pub action: String,
    /// Its subject: a queue.
    pub subject: String,
    /// Details.
    pub after: Option<String>,
}

/// The result of an audit verification.
///
/// ```
/// use lazaret_core::store::AuditCheck;
/// let check = AuditCheck { intact: 3, broken: Some(4), hash: [0xab; 32] };
/// assert!(format!("{check:?}").starts_with("AuditCheck { intact: 3, broken: Some(4), hash: abab"));
/// ```
#[derive(Clone, Default, PartialEq, Eq)]
pub struct AuditCheck {
    /// Number of intact entries, from the first on.
    pub intact: u64,
    /// The first broken entry: it was changed, or an entry before it was removed.
    pub broken: Option<u64>,
    /// The hash of the last intact entry; zeros before the first.
    pub hash: [u8; 32],
}

/// The text of a hash of the audit, as stores write it: hexadecimal digits. What leaves a store is [sealed](DigestKey::seal_audit_hash).
///
/// ```
/// use lazaret_core::store::audit_hash_text;
/// assert!(audit_hash_text(&[0x0a; 32]).starts_with("0a0a"));
/// ```
pub fn audit_hash_text(hash: &[u8; 32]) -> String {
    hash.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Prints the hash in hexadecimal digits.
impl fmt::Debug for AuditCheck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hash = audit_hash_text(&self.hash);
        f.debug_struct("AuditCheck")
            .field("intact", &self.intact)
            .field("broken", &self.broken)
            .field("hash", &format_args!("{hash}"))
            .finish()
    }
}

/// An entry of the hash chain. Kept outside of the store, and [sealed](DigestKey::seal_audit_hash), it proves that no later entries were
/// cut off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AuditHead {
    /// The number of the entry.
    pub number: u64,
    /// Its hash, which covers all entries before it.
    pub hash: [u8; 32],
}

/// The append-only record of changes. The store writes each entry in the same transaction as the change.
#[async_trait]
pub trait Audit: Send + Sync + 'static {
    /// Records an action that the store does not see as one call. Callers write it before the action, and must not proceed
    /// if it fails.
    async fn note(&self, note: &AuditNote, by: &Actor) -> Result<()>;

    /// The entries after this number, oldest first, at most `limit`.
    async fn audit(&self, after: u64, limit: usize) -> Result<Vec<AuditEntry>>;

    /// The entries about any of these subjects, latest first, at most `limit`. A subject that is named twice counts once. An index leads
    /// to them: the cost grows with the subjects and with their entries, at most `limit` of each, and not with the audit.
    async fn audit_about(&self, subjects: &[String], limit: usize) -> Result<Vec<AuditEntry>>;

    /// The secret key for digests of payloads that leave the store, in entries of the audit and elsewhere. It is created once, stays the
    /// same while the store exists, and no other store has it: [`stored_digest_key`](super::stored_digest_key) keeps it.
    async fn digest_key(&self) -> Result<DigestKey>;

    /// Verifies the hash chain of the audit from its first entry on. `None` if the store has none
    /// ([`Capabilities::audit_chain`](super::Capabilities::audit_chain)).
    async fn verify_audit(&self) -> Result<Option<AuditCheck>> {
        Ok(None)
    }

    /// The entry of the hash chain with this number, or the last one. `None` if there is no such entry, or the store has no
    /// chain. Reads one entry and verifies nothing.
    async fn audit_head(&self, _number: Option<u64>) -> Result<Option<AuditHead>> {
        Ok(None)
    }
}
