//! Triage: searching letters, grouping them by cause, annotating and expiring them.

use std::fmt;
use std::str::FromStr;

use async_trait::async_trait;
use bytes::Bytes;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::audit::Actor;
use super::error::Result;
use super::letters::Counts;
use crate::failure::Reason;
use crate::fingerprint::Fingerprint;
use crate::letter::{Letter, LetterId, LetterState};
use crate::message::QueueName;
use crate::query::{GroupPattern, Query};

/// The width of a bucket of a group's [trend](Group::trend), in seconds.
pub const TREND_BUCKET_SECONDS: i64 = 3600;
/// Number of buckets of a trend.
pub const TREND_BUCKETS: usize = 24;

/// Maximum length of a group's failure message, in bytes.
pub const GROUP_MESSAGE_BYTES: usize = 1024;

/// The id of a group: the letters of one queue whose causes have the same fingerprint.
///
/// ```
/// use lazaret_core::store::GroupId;
/// use lazaret_core::{Failure, QueueName, Reason};
/// let failure = Failure::new(Reason::TIMEOUT, "DbError", "no answer");
/// let id = GroupId { queue: QueueName::of("orders", "orders"), fingerprint: failure.fingerprint };
/// assert_eq!(id.to_string().parse::<GroupId>().unwrap(), id);
/// ```
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupId {
    /// The queue.
    pub queue: QueueName,
    /// The common fingerprint of its failures.
    pub fingerprint: Fingerprint,
}

impl fmt::Display for GroupId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.fingerprint, self.queue)
    }
}

/// A text that is not a group id.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid group id {0:?}, expected a fingerprint, @ and a queue")]
pub struct InvalidGroupId(pub String);

impl FromStr for GroupId {
    type Err = InvalidGroupId;

    fn from_str(text: &str) -> std::result::Result<Self, InvalidGroupId> {
        let parsed = text.split_once('@').and_then(|(fingerprint, queue)| {
            Some(Self { queue: QueueName::from(queue), fingerprint: fingerprint.parse().ok()? })
        });
        parsed.filter(|id| !id.queue.as_str().is_empty()).ok_or_else(|| InvalidGroupId(text.to_owned()))
    }
}

impl From<&GroupId> for GroupPattern {
    /// The pattern that only this group matches.
    ///
    /// ```
    /// use lazaret_core::query::{GroupPattern, Query, Term};
    /// use lazaret_core::store::GroupId;
    /// let id: GroupId = "g1_0123456789abcdef@shop/mail \"x\"".parse().unwrap();
    /// let term = Term::Group(vec![GroupPattern::from(&id)]);
    /// assert_eq!(Query::parse(&term.to_string()).unwrap().to_string(), term.to_string());
    /// ```
    fn from(id: &GroupId) -> Self {
        let text = id.fingerprint.to_string();
        let (version, digits) = text.trim_start_matches('g').split_once('_').unwrap_or_default();
        Self { version: version.parse().ok(), digits: digits.to_owned(), queue: Some(id.queue.clone()) }
    }
}

impl GroupPattern {
    /// The only group that matches, if the pattern is complete. Stores look it up instead of comparing all groups.
    ///
    /// ```
    /// use lazaret_core::query::GroupPattern;
    /// use lazaret_core::store::GroupId;
    /// let id: GroupId = "g1_0123456789abcdef@shop/mail".parse().unwrap();
    /// assert_eq!(GroupPattern::from(&id).group(), Some(id.clone()));
    /// assert_eq!(GroupPattern { queue: None, ..GroupPattern::from(&id) }.group(), None);
    /// ```
    pub fn group(&self) -> Option<GroupId> {
        let fingerprint = format!("g{}_{}", self.version?, self.digits).parse().ok()?;
        Some(GroupId { queue: self.queue.clone()?, fingerprint })
    }
}

/// Letters with the same cause, counted. The counters change in the same transaction as the letters, so they are exact. A group
/// without remaining letters is removed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// Its id.
    pub id: GroupId,
    /// The reason of its latest failure.
    pub reason: Reason,
    /// The type of its latest failure.
    pub error_type: String,
    /// The message of its latest failure; for a long one, an [excerpt](crate::traceback::excerpt) of at most
    /// [`GROUP_MESSAGE_BYTES`].
    pub message: String,
    /// Its letters by state, and the number of open sequences with one of them as head. Waiting letters have no cause
    /// and belong to no group.
    pub counts: Counts,
    /// Number of open letters behind a head of this group: its blast radius.
    pub blocked_behind: u64,
    /// When the oldest open letter of the group was enqueued; `None` without an open one.
    pub oldest: Option<Timestamp>,
    /// When the next open letter of the group expires; `None` if none does. The cost is [bounded](super::rules::NextExpiries): for a group
    /// of many letters, none of which is among the next of its queue to expire, it is the earliest expiry of its oldest letters.
    pub next_expiry: Option<Timestamp>,
    /// When the first letter entered the group.
    pub first_seen: Timestamp,
    /// When a letter of it last failed.
    pub last_seen: Timestamp,
    /// Number of letters that entered the group in each of the last [`TREND_BUCKETS`] buckets, the current one last.
    pub trend: [u64; TREND_BUCKETS],
}

/// A request for a page of groups.
#[derive(Clone, Debug, Default)]
pub struct GroupsRequest {
    /// Only groups of this queue.
    pub queue: Option<QueueName>,
    /// Include groups without open letters.
    pub closed: bool,
    /// The cursor of the previous page.
    pub after: Option<String>,
    /// Maximum number of groups.
    pub limit: usize,
}

/// A page of groups, those with the most open letters first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupsPage {
    /// The groups. A page before the last can be shorter than the limit, or empty.
    pub groups: Vec<Group>,
    /// The cursor of the next page; `None` at the end.
    pub next: Option<String>,
}

/// A page of letters, the latest enqueued first.
#[derive(Clone, Debug)]
pub struct LettersPage {
    /// The letters. A page before the last can be empty: a selective search reads a bounded
    /// number of letters per page (I7).
    pub letters: Vec<Letter>,
    /// The cursor of the next page; `None` at the end.
    pub next: Option<String>,
}

/// The number of letters that match a query.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Matches {
    /// Number of letters found.
    pub letters: u64,
    /// `true` if these are all. A query without an index is counted up to a bound.
    pub exact: bool,
}

/// The name and the counters of a queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueSummary {
    /// The queue.
    pub queue: QueueName,
    /// Its counters.
    pub counts: Counts,
    /// When its oldest open letter was enqueued.
    pub oldest: Option<Timestamp>,
    /// When its next open letter expires. Letters that wait behind others do not.
    pub next_expiry: Option<Timestamp>,
}

/// A comment on a letter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Comment {
    /// The author.
    pub by: String,
    /// When it was written.
    pub at: Timestamp,
    /// The text.
    pub text: String,
}

/// A change of a letter's annotations. Only [`Payload`](Self::Payload) and [`HeldPayload`](Self::HeldPayload) affect how the
/// letter is handled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// A new payload. The original is kept in the letter's edits.
    Payload(Option<Bytes>),
    /// A new payload, and the letter is parked in the same transaction unless it is quarantined: it must not run before a person
    /// has seen it.
    HeldPayload(Option<Bytes>),
    /// A comment.
    Comment(String),
    /// The person assigned to it; `None` for no one.
    Assignee(Option<String>),
    /// The owning team; `None` for none.
    Owner(Option<String>),
    /// When it expires; `None` for never.
    ExpiresAt(Option<Timestamp>),
}

impl Change {
    /// `true` if it replaces the payload.
    pub const fn is_edit(&self) -> bool {
        matches!(self, Self::Payload(_) | Self::HeldPayload(_))
    }

    /// `true` if it adds what a person entered: a payload, a comment or a name. What only takes back or sets a time adds nothing.
    pub const fn adds_content(&self) -> bool {
        match self {
            Self::Payload(_)
            | Self::HeldPayload(_)
            | Self::Comment(_)
            | Self::Assignee(Some(_))
            | Self::Owner(Some(_)) => true,
            Self::Assignee(None) | Self::Owner(None) | Self::ExpiresAt(_) => false,
        }
    }

    /// `true` if a letter in this state must be parked with the change, by [`Act::Park`](super::Act::Park).
    pub const fn parks(&self, state: LetterState) -> bool {
        matches!(self, Self::HeldPayload(_))
            && !matches!(state, LetterState::Parked | LetterState::Quarantined)
    }

    /// The name used in the audit.
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Payload(_) | Self::HeldPayload(_) => "edit",
            Self::Comment(_) => "comment",
            Self::Assignee(_) => "assign",
            Self::Owner(_) => "owner",
            Self::ExpiresAt(_) => "expire-at",
        }
    }
}

/// The result of [`Triage::expire`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Expired {
    /// Number of open letters that expired.
    pub expired: u64,
    /// Number of closed letters that were purged: only their id and state remain.
    pub purged: u64,
    /// `true` if more letters are to be expired or purged now.
    pub more: bool,
}

/// Whether the files of a store still hold erased content, for [`Triage::scrub`] and [`Triage::scrubbed`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scrubbed {
    /// No file of the store holds erased content any more.
    Done,
    /// The store removes it in the background, also after a restart.
    UnderWay,
    /// The last attempt to remove it failed for this reason. The store tries again.
    Failed(String),
    /// Files of the server still hold it, until its own maintenance removes it: this is how to have it done.
    ByServer(&'static str),
}

/// Page size of the default methods.
const PAGE_SIZE: usize = 500;

/// Search and maintenance of the letters of all queues, for operators.
#[async_trait]
pub trait Triage: Send + Sync + 'static {
    /// The letters that match, the latest enqueued first, in pages. A query without a state finds open letters.
    async fn find(&self, query: &Query, after: Option<&str>, limit: usize) -> Result<LettersPage>;

    /// The groups, those with the most open letters first.
    async fn groups(&self, request: &GroupsRequest) -> Result<GroupsPage>;

    /// All queues that have ever held a letter, by name.
    async fn queues(&self) -> Result<Vec<QueueSummary>>;

    /// Changes the annotations of a letter, open or closed, audited in the same transaction. The audit names the
    /// changed field and the digest of a payload, never a payload. A payload can be changed only in an open letter that is not in flight (`Conflict`).
    /// Nothing is [added](Change::adds_content) to an erased letter (`Conflict`).
    /// `Invalid` if a limit of the letter is reached, `NotFound` if it does not exist. See [`Change::apply`].
    async fn change(
        &self,
        queue: &QueueName,
        letter: LetterId,
        change: &Change,
        by: &Actor,
    ) -> Result<Letter>;

    /// Purges a closed letter: removes message, cause and history and keeps id and final state, so
    /// that a redelivered message is recognized (I8). The letter cannot be restored any more. `Conflict` if it is
    /// open, `NotFound` if it does not exist or was purged before.
    async fn purge(&self, queue: &QueueName, letter: LetterId, by: &Actor) -> Result<()>;

    /// Erases the content of a closed letter, audited in the same transaction: payload, headers, edits, comments, diagnostics, context, and
    /// the texts of failures, also in its group, if that shows the one of this letter. In the plans and operations that have the letter, its
    /// digest becomes [that of no payload](crate::store::Item::digest), and their hash [tells nothing](crate::store::Plan::erased_hash). Ids, key, state, times, reasons and fingerprints remain,
    /// and the letter tells [who erased it](Letter::erased). It cannot be restored. `Conflict` if it is open or was erased before, `NotFound` if it does not exist or was purged.
    async fn erase(&self, queue: &QueueName, letter: LetterId, by: &Actor) -> Result<Letter>;

    /// Removes what earlier calls have erased, purged or replaced from the files of the store, and waits for it. Slow: it may rewrite all
    /// of them. A store that keeps files does so by itself some time after the last [erasure](Self::erase).
    ///
    /// The default has no files.
    async fn scrub(&self) -> Result<Scrubbed> {
        Ok(Scrubbed::Done)
    }

    /// Tells whether what earlier calls have erased has left the files of the store. Waits for nothing.
    ///
    /// The default has no files.
    async fn scrubbed(&self) -> Result<Scrubbed> {
        Ok(Scrubbed::Done)
    }

    /// Closes open letters whose TTL has passed as `expired`, each audited (I11), and purges
    /// letters that were closed before `closed_before`. Letters behind an expired head are released. Heads of
    /// leased sequences are postponed. At most `limit` letters a call.
    async fn expire(
        &self,
        queue: &QueueName,
        closed_before: Option<Timestamp>,
        limit: usize,
    ) -> Result<Expired>;

    /// The number of letters that match. A query without a state counts open letters.
    ///
    /// The default reads all matching letters; stores with counters or indexes should override it, and may return an inexact
    /// count if an exact one takes too long.
    async fn count(&self, query: &Query) -> Result<Matches> {
        let (mut letters, mut after) = (0, None);
        loop {
            let page = self.find(query, after.as_deref(), PAGE_SIZE).await?;
            letters += page.letters.len() as u64;
            after = page.next;
            if after.is_none() {
                return Ok(Matches { letters, exact: true });
            }
        }
    }

    /// The group, if it exists.
    ///
    /// The default reads the groups of its queue; stores with an index should override it.
    async fn group(&self, id: &GroupId) -> Result<Option<Group>> {
        let queue = Some(id.queue.clone());
        let mut request = GroupsRequest { queue, closed: true, after: None, limit: PAGE_SIZE };
        loop {
            let page = self.groups(&request).await?;
            if let Some(found) = page.groups.into_iter().find(|group| group.id == *id) {
                return Ok(Some(found));
            }
            request.after = page.next;
            if request.after.is_none() {
                return Ok(None);
            }
        }
    }
}
