//! A message held in a store: its state, cause, history and diagnostics.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use uuid::Uuid;

use crate::failure::Failure;
use crate::message::{Headers, Message, MessageId, QueueName};
use crate::sequence::SequenceId;
use crate::store::Comment;

/// The maximum number of entries in the attempt history of a letter; the oldest of the middle are dropped (I7).
pub const HISTORY_LIMIT: usize = 32;

/// The bytes of an entry that the adoption of a dead letter keeps in the context of a letter (I7).
pub const CONTEXT_VALUE_LIMIT: usize = 1024;

/// The entry of the context of an imported letter that tells who imported it.
pub const IMPORTED_BY: &str = "imported-by";
/// The entry that tells when.
pub const IMPORTED_AT: &str = "imported-at";

/// The identity of a letter: a function of queue and message id, so that one message can never have two letters
/// in one queue (I8).
///
/// ```
/// use lazaret_core::{LetterId, MessageId, QueueName};
/// let queue = QueueName::of("orders", "orders");
/// let id = LetterId::of(&queue, &MessageId::from("evt-1"));
/// assert_eq!(id, LetterId::of(&queue, &MessageId::from("evt-1")));
/// assert_eq!(id.to_string().parse::<LetterId>().unwrap(), id);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct LetterId(Uuid);

impl LetterId {
    /// The id of the letter that this message has, or would have, in this queue.
    pub fn of(queue: &QueueName, message: &MessageId) -> Self {
        let mut hasher = Sha256::new();
        // The length in front keeps ("ab", "c") and ("a", "bc") apart.
        hasher.update((queue.as_str().len() as u64).to_be_bytes());
        hasher.update(queue.as_str());
        hasher.update(message.as_str());
        Self::from_digest(&hasher.finalize())
    }

    fn from_digest(digest: &[u8]) -> Self {
        let mut bytes = [0_u8; 16];
        bytes.copy_from_slice(&digest[..16]);
        Self(uuid::Builder::from_custom_bytes(bytes).into_uuid())
    }

    /// The id of a letter that is imported.
    ///
    /// It is not the id that the message's own letter would have: whatever the import claims, this queue has not seen the
    /// message, so the letter must not be found in its place when its source delivers it (I1).
    ///
    /// ```
    /// use lazaret_core::{LetterId, MessageId, QueueName};
    /// let (queue, message) = (QueueName::of("orders", "orders"), MessageId::from("evt-1"));
    /// assert_ne!(LetterId::of_import(&queue, &message), LetterId::of(&queue, &message));
    /// ```
    pub fn of_import(queue: &QueueName, message: &MessageId) -> Self {
        let mut hasher = Sha256::new();
        // No queue has a name of this length, so it is the hash of no other id.
        hasher.update(u64::MAX.to_be_bytes());
        hasher.update(Self::of(queue, message).0.as_bytes());
        Self::from_digest(&hasher.finalize())
    }

    /// The id as a UUID.
    pub const fn as_uuid(&self) -> Uuid {
        self.0
    }
}

impl fmt::Display for LetterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl fmt::Debug for LetterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl FromStr for LetterId {
    type Err = uuid::Error;

    fn from_str(text: &str) -> Result<Self, uuid::Error> {
        Uuid::from_str(text).map(Self)
    }
}

/// The state of a letter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LetterState {
    /// Will be tried again at its due time.
    Retrying,
    /// Not retried automatically.
    Dead,
    /// Kept until a person or a deployment changes something.
    Parked,
    /// Kept apart: suspicious.
    Quarantined,
    /// Blocked behind the head of its sequence, with no cause of its own.
    Waiting,
    /// Closed: handled in the end.
    Resolved,
    /// Closed: taken out by a person or a policy.
    Evicted,
    /// Closed: left out on purpose.
    Skipped,
    /// Closed: its time ran out.
    Expired,
}

impl LetterState {
    /// Every state, open ones first.
    pub const ALL: [Self; 9] = [
        Self::Retrying,
        Self::Dead,
        Self::Parked,
        Self::Quarantined,
        Self::Waiting,
        Self::Resolved,
        Self::Evicted,
        Self::Skipped,
        Self::Expired,
    ];

    /// Returns whether the letter still blocks its sequence.
    pub const fn is_open(self) -> bool {
        matches!(self, Self::Retrying | Self::Dead | Self::Parked | Self::Quarantined | Self::Waiting)
    }

    /// Returns whether the scheduler runs it automatically when it is the head.
    pub const fn is_automatic(self) -> bool {
        matches!(self, Self::Retrying | Self::Waiting)
    }

    /// The name used in queries, output and metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Retrying => "retrying",
            Self::Dead => "dead",
            Self::Parked => "parked",
            Self::Quarantined => "quarantined",
            Self::Waiting => "waiting",
            Self::Resolved => "resolved",
            Self::Evicted => "evicted",
            Self::Skipped => "skipped",
            Self::Expired => "expired",
        }
    }
}

impl fmt::Display for LetterState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The kind of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AttemptKind {
    /// The live stream.
    Live,
    /// The retry scheduler.
    Retry,
    /// A requested replay.
    Replay,
}

/// One attempt, as the letter's history remembers it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct AttemptRecord {
    /// The number of the attempt, from 1.
    pub attempt: u32,
    /// Its kind.
    pub kind: AttemptKind,
    /// When it ended.
    pub at: Timestamp,
    /// Its duration.
    pub took: Duration,
    /// Its failure; `None` when it succeeded.
    pub failure: Option<Failure>,
}

impl AttemptRecord {
    /// Appends it to the history of a letter. When that is full, the second entry gives way: the first failure is worth more than
    /// those that followed it.
    pub fn append_to(self, history: &mut Vec<Self>) {
        append_entry(self, history);
    }
}

/// Appends an entry to a history as [`AttemptRecord::append_to`] does, for stores that do not decode the entries.
///
/// ```
/// use lazaret_core::letter::{HISTORY_LIMIT, append_entry};
/// let mut history: Vec<usize> = (1..=HISTORY_LIMIT).collect();
/// append_entry(100, &mut history);
/// assert_eq!((history.len(), history[0], history[1]), (HISTORY_LIMIT, 1, 3));
/// ```
pub fn append_entry<T>(entry: T, history: &mut Vec<T>) {
    if history.len() >= HISTORY_LIMIT {
        history.remove(1);
    }
    history.push(entry);
}

/// An edit of the message of a letter. The original is kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Edit {
    /// The editor.
    pub by: String,
    /// When.
    pub at: Timestamp,
    /// The reason given.
    pub why: String,
    /// The payload before the change.
    pub original: Option<Bytes>,
}

/// The record that the content of a letter was erased.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Erasure {
    /// Who erased it.
    pub by: String,
    /// When it was erased.
    pub at: Timestamp,
    /// The reason given.
    pub why: String,
}

/// Text by name: what the enqueue policy and the handler want to remember.
pub type Diagnostics = BTreeMap<String, String>;

/// A message held in a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Letter {
    /// Its identity.
    pub id: LetterId,
    /// Whose letter it is.
    pub queue: QueueName,
    /// Its sequence.
    pub sequence: SequenceId,
    /// Its place in the sequence. Later letters have larger ones; gaps mean nothing.
    pub index: u64,
    /// Its state.
    pub state: LetterState,
    /// The message, whole.
    pub message: Arc<Message>,
    /// Its failure; `None` when it only waits.
    pub cause: Option<Failure>,
    /// Automatic attempts so far.
    pub attempts: u32,
    /// Attempts that ended with the death of the process.
    pub crash_attempts: u32,
    /// Attempts in requested replays.
    pub replay_attempts: u32,
    /// `true` when the same failure repeated too often.
    pub poison: bool,
    /// When it first failed.
    pub first_failed_at: Option<Timestamp>,
    /// When it last failed.
    pub last_failed_at: Option<Timestamp>,
    /// When it was taken into the store.
    pub enqueued_at: Timestamp,
    /// When anything about it last changed.
    pub last_touched_at: Timestamp,
    /// When it may be tried again.
    pub due_at: Option<Timestamp>,
    /// When it expires; `None` for never.
    pub expires_at: Option<Timestamp>,
    /// Entries of the enqueue policy and the metadata of the handler.
    pub diagnostics: Diagnostics,
    /// The context of its failure: resume token, tracking data.
    pub context: Diagnostics,
    /// The team that owns it.
    pub owner: Option<Arc<str>>,
    /// The person it is assigned to.
    pub assignee: Option<Arc<str>>,
    /// Comments, oldest first.
    pub comments: Vec<Comment>,
    /// `true` when its payload was left out when it ended, because its consumer does not keep payloads.
    pub payload_left_out: bool,
    /// Its attempts, oldest first, at most [`HISTORY_LIMIT`].
    pub history: Vec<AttemptRecord>,
    /// Edits, oldest first.
    pub edits: Vec<Edit>,
    /// Who erased its content, when and why; `None` if that is not erased.
    pub erased: Option<Box<Erasure>>,
}

impl Letter {
    /// A letter for a message that has just been taken into a queue. It has no cause yet and waits.
    ///
    /// ```
    /// use lazaret_core::{Letter, LetterState, Message, Position, QueueName, SequenceId, Timestamp};
    /// let message = Message::new("evt-1", "orders", Position::new(0, 0));
    /// let letter = Letter::new(QueueName::of("a", "a"), "order-7".into(), message.into(), Timestamp::UNIX_EPOCH);
    /// assert_eq!(letter.state, LetterState::Waiting);
    /// assert!(letter.cause.is_none());
    /// ```
    pub fn new(queue: QueueName, sequence: SequenceId, message: Arc<Message>, now: Timestamp) -> Self {
        Self {
            id: LetterId::of(&queue, &message.id),
            queue,
            sequence,
            index: 0,
            state: LetterState::Waiting,
            message,
            cause: None,
            attempts: 0,
            crash_attempts: 0,
            replay_attempts: 0,
            poison: false,
            first_failed_at: None,
            last_failed_at: None,
            enqueued_at: now,
            last_touched_at: now,
            due_at: None,
            expires_at: None,
            diagnostics: Diagnostics::new(),
            context: Diagnostics::new(),
            owner: None,
            assignee: None,
            comments: Vec::new(),
            payload_left_out: false,
            history: Vec::new(),
            edits: Vec::new(),
            erased: None,
        }
    }

    /// The id under which its message is remembered as handled: [that of the message](Message::dedupe_id), and one of its own for a letter that was
    /// [imported](LetterId::of_import). Such a letter says nothing about the message that a source delivers with its id, so none
    /// of the two is a duplicate of the other (I1).
    ///
    /// ```
    /// use lazaret_core::{Letter, LetterId, Message, Position, QueueName, Timestamp};
    /// let message = Message::new("evt-1", "orders", Position::new(0, 0));
    /// let letter = Letter::new(QueueName::of("a", "a"), "k".into(), message.into(), Timestamp::UNIX_EPOCH);
    /// assert_eq!(letter.dedupe_id(), letter.message.id);
    /// let imported = Letter { id: LetterId::of_import(&letter.queue, &letter.message.id), ..letter };
    /// assert_ne!(imported.dedupe_id(), imported.message.id);
    /// ```
    pub fn dedupe_id(&self) -> MessageId {
        match self.id == LetterId::of_import(&self.queue, &self.message.id) {
            true => MessageId::new(format!("~letter/{}", self.id)),
            false => self.message.dedupe_id(),
        }
    }

    /// The same letter, touched now.
    #[must_use]
    pub fn touched(mut self, now: Timestamp) -> Self {
        self.last_touched_at = now;
        self
    }

    /// The same letter with this cause; `None` keeps the one it has. Touches it.
    #[must_use]
    pub fn with_cause(mut self, cause: Option<Failure>, now: Timestamp) -> Self {
        if let Some(cause) = cause {
            self.cause = Some(cause);
        }
        self.touched(now)
    }

    /// The same letter with exactly these diagnostics. Touches it.
    #[must_use]
    pub fn with_diagnostics(mut self, diagnostics: Diagnostics, now: Timestamp) -> Self {
        self.diagnostics = diagnostics;
        self.touched(now)
    }

    /// Remembers an attempt: [`AttemptRecord::append_to`] its history.
    pub fn record(&mut self, attempt: AttemptRecord) {
        attempt.append_to(&mut self.history);
    }

    /// Removes its content: payloads, headers, edits, comments, diagnostics, context and the texts of failures. What is content is defined here
    /// only. The fingerprints of failures stay, so the letter keeps its group.
    ///
    /// ```
    /// use lazaret_core::letter::Erasure;
    /// use lazaret_core::{Letter, Message, Position, QueueName, Timestamp};
    /// let message = Message::new("evt-1", "orders", Position::new(0, 0)).with_payload("secret");
    /// let mut letter = Letter::new(QueueName::of("a", "a"), "k".into(), message.into(), Timestamp::UNIX_EPOCH);
    /// letter.erase(Erasure { by: "olga".into(), at: Timestamp::UNIX_EPOCH, why: "request 7".into() });
    /// assert!(letter.message.payload.is_none() && letter.payload_left_out);
    /// ```
    pub fn erase(&mut self, erasure: Erasure) {
        let message = (*self.message).clone();
        self.message =
            Message { payload: None, headers: Headers::new(), undecodable: None, ..message }.into();
        self.payload_left_out = true;
        self.cause.iter_mut().for_each(Failure::erase);
        self.history.iter_mut().filter_map(|attempt| attempt.failure.as_mut()).for_each(Failure::erase);
        self.diagnostics.clear();
        self.context.clear();
        self.comments.clear();
        self.edits.clear();
        self.erased = Some(Box::new(erasure));
    }

    /// Number of its last attempts that failed like its cause, one after the other, as far as its history goes back.
    pub fn same_failures(&self) -> u32 {
        let Some(cause) = &self.cause else { return 0 };
        let like_it = |attempt: &&AttemptRecord| {
            attempt.failure.as_ref().is_some_and(|failure| failure.fingerprint == cause.fingerprint)
        };
        u32::try_from(self.history.iter().rev().take_while(like_it).count()).unwrap_or(u32::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::Reason;
    use crate::message::Position;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn letter() -> Letter {
        let message = Message::new("m", "s", Position::new(0, 0));
        Letter::new(QueueName::of("c", "c"), "k".into(), message.into(), at(5))
    }

    fn cause(text: &str) -> Failure {
        Failure::new(Reason::TIMEOUT, "E", text)
    }

    #[test]
    fn v1_a_new_letter_has_no_cause_and_one_time() {
        let l = letter();
        assert_eq!((l.enqueued_at, l.last_touched_at), (at(5), at(5)));
        assert!(l.cause.is_none() && l.diagnostics.is_empty());
    }

    #[test]
    fn v4_touching_moves_only_the_time_of_touch() {
        let touched = letter().touched(at(9));
        assert_eq!(touched, Letter { last_touched_at: at(9), ..letter() });
    }

    #[test]
    fn v5_to_v8_a_cause_replaces_and_none_keeps() {
        let none = letter();
        let first = none.clone().with_cause(Some(cause("x")), at(5));
        assert_eq!(first.cause, Some(cause("x")));
        let second = first.clone().with_cause(Some(cause("y")), at(5));
        assert_eq!(second.cause, Some(cause("y")));
        assert_eq!(none.with_cause(None, at(5)).cause, None);
        assert_eq!(first.with_cause(None, at(5)).cause, Some(cause("x")));
    }

    #[test]
    fn v9_v10_diagnostics_are_replaced_or_extended() {
        let old: Diagnostics = [("old".to_owned(), "1".to_owned())].into();
        let l = letter().with_diagnostics(old.clone(), at(5));
        let new: Diagnostics = [("new".to_owned(), "2".to_owned())].into();
        assert_eq!(l.clone().with_diagnostics(new.clone(), at(6)).diagnostics, new);
        let mut both = l.diagnostics.clone();
        both.extend(new);
        assert_eq!(l.with_diagnostics(both, at(6)).diagnostics.len(), 2);
    }

    #[test]
    fn the_history_keeps_the_first_failure_and_the_latest() {
        // I7
        let mut l = letter();
        for attempt in 1..=100 {
            let failure = Some(cause(&attempt.to_string()));
            l.record(AttemptRecord {
                attempt,
                kind: AttemptKind::Retry,
                at: at(i64::from(attempt)),
                took: Duration::ZERO,
                failure,
            });
        }
        assert_eq!(l.history.len(), HISTORY_LIMIT);
        assert_eq!((l.history[0].attempt, l.history[HISTORY_LIMIT - 1].attempt), (1, 100));
    }

    #[test]
    fn failures_like_the_cause_are_counted_back_to_the_first_other_one() {
        let mut l = letter();
        assert_eq!(l.same_failures(), 0, "it never failed");
        for (attempt, failure) in (1..).zip(["x", "y", "x", "x"]) {
            let (at, took) = (at(i64::from(attempt)), Duration::ZERO);
            let failure = Failure::new(Reason::TIMEOUT, failure, failure);
            l.cause = Some(failure.clone());
            l.record(AttemptRecord { attempt, kind: AttemptKind::Retry, at, took, failure: Some(failure) });
        }
        assert_eq!(l.same_failures(), 2);
    }

    #[test]
    fn letter_ids_depend_on_queue_and_message() {
        // I8
        let id =
            |queue: &str, message: &str| LetterId::of(&QueueName::from(queue), &MessageId::from(message));
        assert_eq!(id("ab", "c"), id("ab", "c"));
        assert_ne!(id("ab", "c"), id("a", "bc"));
    }
}
