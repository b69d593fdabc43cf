//! Finding letters, seeing them as groups, and caring for them until they are gone.

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
use crate::letter::{Letter, LetterId};
use crate::message::QueueName;
use crate::query::Query;

/// The width of a bucket of a group's [trend](Group::trend), in seconds.
pub const TREND_BUCKET_SECONDS: i64 = 3600;
/// How many buckets a trend has.
pub const TREND_BUCKETS: usize = 24;

/// How much of a failure's message a group keeps, in bytes.
pub const GROUP_MESSAGE_BYTES: usize = 1024;

/// Names a group: the letters of one queue whose causes have one fingerprint.
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
    /// What its failures have in common.
    pub fingerprint: Fingerprint,
}

impl fmt::Display for GroupId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.fingerprint, self.queue)
    }
}

/// A text that names no group.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} names no group, expected a fingerprint, @ and a queue")]
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

/// Letters with one cause, counted. The counters change in the same step as the letters, so they are exact. A group whose
/// last letter was purged, or failed in another way, is gone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// Its name.
    pub id: GroupId,
    /// The reason of its latest failure.
    pub reason: Reason,
    /// The type of its latest failure.
    pub error_type: String,
    /// The message of its latest failure; of a long one, an [excerpt](crate::traceback::excerpt) of at most
    /// [`GROUP_MESSAGE_BYTES`].
    pub message: String,
    /// Its letters by state, and how many open sequences have one of them as their head. Letters that wait have no cause
    /// and belong to no group.
    pub counts: Counts,
    /// Open letters that stand behind a head of this group: its blast radius.
    pub blocked_behind: u64,
    /// When the oldest open letter of the group was taken into the store; `None` when none is open.
    pub oldest: Option<Timestamp>,
    /// When a letter first came into the group.
    pub first_seen: Timestamp,
    /// When a letter of it last failed.
    pub last_seen: Timestamp,
    /// How many letters came into the group in each of the last [`TREND_BUCKETS`] buckets, the current one last.
    pub trend: [u64; TREND_BUCKETS],
}

/// Which groups are wanted, and from where on.
#[derive(Clone, Debug, Default)]
pub struct GroupsRequest {
    /// Only groups of this queue.
    pub queue: Option<QueueName>,
    /// Groups without open letters, too.
    pub closed: bool,
    /// What the page before gave.
    pub after: Option<String>,
    /// How many at most.
    pub limit: usize,
}

/// A page of groups, those with the most open letters first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupsPage {
    /// The groups.
    pub groups: Vec<Group>,
    /// What to pass to get the next page; `None` at the end.
    pub next: Option<String>,
}

/// A page of letters, the latest taken in first.
#[derive(Clone, Debug)]
pub struct LettersPage {
    /// The letters. There may be none on a page that is not the last: a search that finds little looks at a bounded
    /// number of letters a page (I7).
    pub letters: Vec<Letter>,
    /// What to pass to get the next page; `None` at the end.
    pub next: Option<String>,
}

/// How many letters match a query.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Matches {
    /// How many were found.
    pub letters: u64,
    /// Whether that is all of them. A query that no index answers is counted up to a bound.
    pub exact: bool,
}

/// What is known of a queue at a glance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueSummary {
    /// The queue.
    pub queue: QueueName,
    /// How much it holds.
    pub counts: Counts,
    /// When its oldest open letter was taken in.
    pub oldest: Option<Timestamp>,
}

/// A remark somebody made on a letter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Comment {
    /// Who made it.
    pub by: String,
    /// When.
    pub at: Timestamp,
    /// What it says.
    pub text: String,
}

/// A change to what people note on a letter. Nothing of it changes how the letter is handled, but
/// [`Payload`](Self::Payload).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Another payload. The original is kept in the letter's edits.
    Payload(Option<Bytes>),
    /// A remark.
    Comment(String),
    /// The person who looks after it; `None` for nobody.
    Assignee(Option<String>),
    /// The team that owns it; `None` for nobody.
    Owner(Option<String>),
    /// When it leaves by itself; `None` for never.
    ExpiresAt(Option<Timestamp>),
}

impl Change {
    /// The name used in the audit.
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Payload(_) => "edit",
            Self::Comment(_) => "comment",
            Self::Assignee(_) => "assign",
            Self::Owner(_) => "owner",
            Self::ExpiresAt(_) => "expire-at",
        }
    }
}

/// What [`Triage::expire`] did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Expired {
    /// Letters that were open and whose time ran out.
    pub expired: u64,
    /// Closed letters of which only the trace is left now.
    pub purged: u64,
    /// Whether there is more to do now.
    pub more: bool,
}

/// How many letters or groups the default methods read at once.
const LISTED_AT_ONCE: usize = 500;

/// The operators' side of the letters of all queues.
#[async_trait]
pub trait Triage: Send + Sync + 'static {
    /// The letters that match, the latest taken in first, in pages. A query that names no state finds open letters.
    async fn find(&self, query: &Query, after: Option<&str>, limit: usize) -> Result<LettersPage>;

    /// The groups, those with the most open letters first.
    async fn groups(&self, request: &GroupsRequest) -> Result<GroupsPage>;

    /// All queues that ever held a letter, by name.
    async fn queues(&self) -> Result<Vec<QueueSummary>>;

    /// Changes what is noted on a letter, open or closed, and writes it into the audit, in one step. The audit names what
    /// was changed, never a payload. A payload can be changed only in an open letter that nobody works on (`Conflict`).
    /// `Invalid` when the letter has no room for it, `NotFound` when there is no such letter. See [`Change::apply`].
    async fn change(
        &self,
        queue: &QueueName,
        letter: LetterId,
        change: &Change,
        by: &Actor,
    ) -> Result<Letter>;

    /// Removes a closed letter for good: message, cause and history go; that it was there, and how it ended, stays, so
    /// that the message is still known when it comes again (I8). It cannot be restored any more. `Conflict` when it is
    /// open, `NotFound` when there is no such letter or it was purged before.
    async fn purge(&self, queue: &QueueName, letter: LetterId, by: &Actor) -> Result<()>;

    /// Closes open letters whose time has run out as `expired`, each with a line in the audit (I11), and purges closed
    /// letters that were closed before `closed_before`. Those behind an expired head are released. Heads that
    /// somebody works on are left for later. At most `limit` letters a call.
    async fn expire(
        &self,
        queue: &QueueName,
        closed_before: Option<Timestamp>,
        limit: usize,
    ) -> Result<Expired>;

    /// How many letters match. A query that names no state counts open letters.
    ///
    /// Reads all that match; a store with counters or indexes does better, and one that cannot count all of them in good time
    /// says so.
    async fn count(&self, query: &Query) -> Result<Matches> {
        let (mut letters, mut after) = (0, None);
        loop {
            let page = self.find(query, after.as_deref(), LISTED_AT_ONCE).await?;
            letters += page.letters.len() as u64;
            after = page.next;
            if after.is_none() {
                return Ok(Matches { letters, exact: true });
            }
        }
    }

    /// One group.
    ///
    /// Reads the groups of its queue until it is there; a store that finds it by its name does better.
    async fn group(&self, id: &GroupId) -> Result<Option<Group>> {
        let queue = Some(id.queue.clone());
        let mut request = GroupsRequest { queue, closed: true, after: None, limit: LISTED_AT_ONCE };
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
