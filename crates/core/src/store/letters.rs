//! The contract for letters: hand-off, claims, settlement, operators' acts and pauses.

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::audit::Actor;
use super::capabilities::Capabilities;
use super::change_feed::{Changes, Topic};
use super::error::{ErrorKind, Result};
use super::occupancy::Occupancy;
use crate::failure::Failure;
use crate::incarnation::{Beginning, Incarnations};
use crate::letter::{AttemptRecord, Diagnostics, Letter, LetterId, LetterState};
use crate::message::{ConsumerName, MessageId, Partition, QueueName, StreamName};
use crate::sequence::SequenceId;

/// Strict limits of a queue: a letter beyond one is refused, and the source is held back until there is room (I9). Without them
/// (the default), a [`CapacityPolicy`](crate::policy::CapacityPolicy) bounds what a consumer stores.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Maximum number of open sequences.
    pub max_sequences: Option<u64>,
    /// Maximum number of letters per sequence.
    pub max_sequence_size: Option<u64>,
}

impl Limits {
    /// No limits.
    pub const NONE: Self = Self { max_sequences: None, max_sequence_size: None };

    /// 1024 sequences of 1024 letters, as in Axon Framework. One hot key or 1024 bad ones then stop every key.
    pub const STRICT: Self = Self { max_sequences: Some(1024), max_sequence_size: Some(1024) };

    /// `true` if one more letter exceeds a limit: `size` is that of its sequence, if open, and `sequences` the number of open ones.
    pub fn is_full(&self, size: Option<u64>, sequences: u64) -> bool {
        self.exceeded(size, sequences).is_some()
    }

    /// The limit that one more letter exceeds, by its configuration key, and its value.
    ///
    /// ```
    /// use lazaret_core::store::Limits;
    /// assert_eq!(Limits::STRICT.exceeded(Some(1024), 1), Some(("max-sequence-size", 1024)));
    /// assert_eq!(Limits::STRICT.exceeded(None, 1024), Some(("max-sequences", 1024)));
    /// assert_eq!(Limits::STRICT.exceeded(Some(1023), 1024), None);
    /// ```
    pub fn exceeded(&self, size: Option<u64>, sequences: u64) -> Option<(&'static str, u64)> {
        let (key, limit, used) = match size {
            Some(size) => ("max-sequence-size", self.max_sequence_size, size),
            None => ("max-sequences", self.max_sequences, sequences),
        };
        limit.filter(|max| used >= *max).map(|max| (key, max))
    }
}

/// The right to hand off messages of one partition, and the partition's horizon.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The partition.
    pub partition: Partition,
    /// Grows with every grant of this partition in this queue; hand-offs with an older grant are refused.
    pub fence: u64,
    /// The highest offset of this partition ever handed off to this queue. Only messages at or below it can have
    /// a letter already.
    pub horizon: Option<u64>,
}

/// Identifies the grant of a hand-off.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GrantFence {
    /// The partition.
    pub partition: Partition,
    /// The number of the grant.
    pub fence: u64,
    /// Grows with every call under this grant, the same for all items of a call. A call that arrives after a later one is
    /// refused: once a later call was answered, an earlier call with unknown outcome can no longer take effect.
    pub turn: u64,
}

/// Where a letter is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// At the end of its sequence, which is opened if necessary. For failed messages.
    Open,
    /// At the end of its sequence, if that is open. For messages that follow a failed one.
    Behind,
    /// Outside of the sequence: the letter is closed from the start and blocks no other. For skipped messages.
    Closed,
    /// An open letter like [`Open`](Self::Open), a closed one like [`Closed`](Self::Closed). For letters that an operator brings
    /// from elsewhere: their ids and positions say nothing about the messages of this queue's sources. So an import raises no
    /// horizon, has no grant, and has the id [`LetterId::of_import`], which no message finds.
    Imported,
}

/// One message to store.
#[derive(Clone, Debug)]
pub struct HandOff {
    /// The letter to store. The store sets its index and its times of enqueueing and touch.
    pub letter: Letter,
    /// Where to store it.
    pub placement: Placement,
    /// The grant under which the message was read; `None` for letters without an assigned partition (imports).
    pub grant: Option<GrantFence>,
}

/// The result of a hand-off. Every result except [`NotOpen`](Self::NotOpen) means that the message is durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placed {
    /// The sequence was opened with this letter as its head.
    Opened,
    /// The letter was appended behind others.
    Appended,
    /// The letter was stored closed.
    Closed,
    /// The message already had a letter, in this state. Nothing was changed.
    Held(LetterState),
    /// [`Placement::Behind`] was requested and the sequence is not open. Nothing was stored. The number is the queue's
    /// current revision.
    NotOpen(u64),
}

/// A page of opened sequences.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenedPage {
    /// The sequences, each at least once.
    pub sequences: Vec<SequenceId>,
    /// The revision to continue from.
    pub revision: u64,
    /// `true` if more sequences follow.
    pub more: bool,
}

/// The attempts of a failed message that waits in memory for its next attempt, stored so that a crash does not
/// reset them (I4).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttemptNote {
    /// The message.
    pub message: MessageId,
    /// Its partition.
    pub partition: Partition,
    /// Its offset there.
    pub offset: u64,
    /// Attempts so far.
    pub attempts: u32,
    /// When it first failed.
    pub first_failed_at: Timestamp,
    /// The last failure.
    pub failure: Failure,
    /// Number of consecutive failures with the same fingerprint.
    pub same_failure: u32,
    /// When it may be tried again.
    pub due_at: Timestamp,
}

/// The exclusive, expiring, fenced right to work on one sequence (I6).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lease {
    /// The queue.
    pub queue: QueueName,
    /// The sequence.
    pub sequence: SequenceId,
    /// The owner.
    pub owner: String,
    /// Grows with every claim of this sequence; writes with an older one are refused.
    pub fence: u64,
    /// When it ends, by the store's clock.
    pub until: Timestamp,
}

/// What the owner of a lease does with the letter at the head, as far as the store knows. It decides whether a lease that expires counts
/// as an attempt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LeaseUse {
    /// It makes an attempt: the owner has renewed the lease for it.
    Attempt,
    /// It waits, or its attempt is so young that the owner has not recorded it yet. Every lease begins so, with each letter: an owner that
    /// never learnt of its claim made no attempt.
    #[default]
    Wait,
}

/// A claimed sequence with the letter at its head.
#[derive(Clone, Debug)]
pub struct Claim {
    /// The lease of the sequence.
    pub lease: Lease,
    /// The letter at the head.
    pub head: Letter,
    /// `true` if the last lease was for due letters and ended without a settlement or a release during an attempt that was
    /// [recorded](LeaseUse::Attempt): its owner crashed or stalled. It stays reported until a settlement counts the attempt. See [`SequenceRow::was_interrupted`](super::rules::SequenceRow::was_interrupted).
    pub interrupted: bool,
    /// `true` if the last lease ended without a settlement or a release, whatever it was for. Record the next attempt in the lease before
    /// it begins: if this letter crashes its process, that counts. See [`SequenceRow::was_lost`](super::rules::SequenceRow::was_lost).
    pub lost: bool,
}

/// The outcome of an attempt on the head of a leased sequence.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Settlement {
    /// It was handled.
    Resolve(Option<AttemptRecord>),
    /// A policy evicted it.
    Evict(Dismissal),
    /// It is skipped.
    Skip(Dismissal),
    /// It failed and stays at the head, or [leaves](Requeue::detach) the sequence. The lease ends, unless it is one of
    /// [`claim_due`](LetterStore::claim_due) that goes on behind a letter that left.
    Requeue(Box<Requeue>),
}

/// Why a letter is evicted or skipped by a settlement, and the attempt before.
///
/// ```
/// use lazaret_core::store::{Dismissal, Settlement};
/// let settlement = Settlement::Skip("not needed".into());
/// assert_eq!(serde_json::to_string(&settlement).unwrap(), r#"{"skip":"not needed"}"#);
/// ```
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(from = "StoredDismissal", into = "StoredDismissal")]
pub struct Dismissal {
    /// The reason, for the audit. It must not hold the text of a failure: an audit can be neither encrypted nor erased.
    pub why: String,
    /// The attempt, for the history of the letter; `None` without an attempt.
    pub attempt: Option<Box<AttemptRecord>>,
}

impl Dismissal {
    /// A dismissal after this attempt.
    pub fn after(attempt: Option<AttemptRecord>, why: impl Into<String>) -> Self {
        Self { why: why.into(), attempt: attempt.map(Box::new) }
    }
}

impl From<String> for Dismissal {
    fn from(why: String) -> Self {
        Self { why, attempt: None }
    }
}

impl From<&str> for Dismissal {
    fn from(why: &str) -> Self {
        why.to_owned().into()
    }
}

/// The format: without an attempt, the text alone.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum StoredDismissal {
    Why(String),
    After { why: String, attempt: Box<AttemptRecord> },
}

impl From<StoredDismissal> for Dismissal {
    fn from(stored: StoredDismissal) -> Self {
        match stored {
            StoredDismissal::Why(why) => why.into(),
            StoredDismissal::After { why, attempt } => Self { why, attempt: Some(attempt) },
        }
    }
}

impl From<Dismissal> for StoredDismissal {
    fn from(dismissal: Dismissal) -> Self {
        let Dismissal { why, attempt } = dismissal;
        match attempt {
            Some(attempt) => Self::After { why, attempt },
            None => Self::Why(why),
        }
    }
}

/// The state of a letter after another failure.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Requeue {
    /// Its new state, an open one.
    pub state: LetterState,
    /// When it is due, for `retrying`.
    pub due_at: Option<Timestamp>,
    /// The new cause; `None` keeps the old one.
    pub cause: Option<Failure>,
    /// Automatic attempts so far.
    pub attempts: u32,
    /// Attempts that ended in a crash of the process.
    pub crash_attempts: u32,
    /// Attempts in replays.
    pub replay_attempts: u32,
    /// `true` if the same failure was repeated too often.
    pub poison: bool,
    /// Its new diagnostics.
    pub diagnostics: Diagnostics,
    /// The attempt, for the history; `None` without an attempt.
    pub attempt: Option<AttemptRecord>,
    /// Drop the payload: the letter is not retried automatically and its consumer stores no payloads.
    pub leave_out_payload: bool,
    /// A `dead` letter leaves its sequence, and those behind it go on without it. It has a
    /// [sequence of its own](crate::SequenceId::detached) from then on.
    pub detach: bool,
    /// When it expires, if this is its first failure, or the first one since it waited: until then a letter does not expire, however long it
    /// waits behind others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Timestamp>,
}

impl Requeue {
    /// A requeue that changes nothing of the letter. Callers set what differs.
    ///
    /// ```
    /// use lazaret_core::store::Requeue;
    /// use lazaret_core::{Letter, LetterState, Message, Position, QueueName, Timestamp};
    /// let message = Message::new("evt-1", "orders", Position::new(0, 0));
    /// let letter = Letter::new(QueueName::of("a", "a"), "k".into(), message.into(), Timestamp::UNIX_EPOCH);
    /// let dead = Requeue { state: LetterState::Dead, attempts: 3, ..Requeue::of(&letter) };
    /// assert_eq!((dead.replay_attempts, dead.leave_out_payload), (0, false));
    /// ```
    pub fn of(letter: &Letter) -> Self {
        Self {
            state: letter.state,
            due_at: letter.due_at,
            cause: None,
            attempts: letter.attempts,
            crash_attempts: letter.crash_attempts,
            replay_attempts: letter.replay_attempts,
            poison: letter.poison,
            diagnostics: letter.diagnostics.clone(),
            attempt: None,
            leave_out_payload: false,
            detach: false,
            expires_at: None,
        }
    }
}

/// The state of the sequence after a settlement.
#[derive(Clone, Debug)]
pub enum Settled {
    /// The lease continues with the next letter.
    Next(Box<Letter>),
    /// The sequence has no more letters: it is closed and the lease has ended.
    Closed,
    /// The next letter may not run now: it is not due, its state needs a person, or the sequence is paused. The
    /// lease is released. Applies to leases of [`claim_due`](LetterStore::claim_due); a replay continues whatever the state. The lease of an
    /// [operation](super::Operations::poll_work) continues only by [`settle_and_continue`](LetterStore::settle_and_continue).
    Blocked,
    /// The letter stays at the head, or left the sequence in a replay, and the lease is released.
    Requeued,
}

/// An operator's change of a letter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Act {
    /// Remove it from its sequence. Reversible by [`Restore`](Self::Restore) until it is purged.
    Evict,
    /// Mark it as handled by other means.
    Resolve,
    /// Hold it until it is released.
    Park,
    /// Isolate it.
    Quarantine,
    /// Retry it now, with fresh attempts and crash attempts. Behind the head of its sequence it waits for its turn. Refused for a letter whose payload was left out. Its time limit
    /// still starts at the first failure, so a letter that has exceeded it gets a single attempt.
    Release,
    /// Reopen an evicted letter as `dead`, at its old place.
    Restore,
}

impl Act {
    /// The name used in output and the audit.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Evict => "evict",
            Self::Resolve => "resolve",
            Self::Park => "park",
            Self::Quarantine => "quarantine",
            Self::Release => "release",
            Self::Restore => "restore",
        }
    }
}

impl fmt::Display for Act {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Number of letters and sequences of a queue.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Open sequences.
    pub sequences: u64,
    /// Letters by state, in the order of [`LetterState::ALL`].
    pub by_state: [u64; 9],
}

impl Counts {
    /// Letters in one state.
    pub fn of(&self, state: LetterState) -> u64 {
        self.by_state[state as usize]
    }

    /// Open letters.
    pub fn open(&self) -> u64 {
        LetterState::ALL.iter().filter(|s| s.is_open()).map(|s| self.of(*s)).sum()
    }
}

/// Prints the states by name: `Counts { sequences: 1, retrying: 0, dead: 1, … }`.
impl fmt::Debug for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut counts = f.debug_struct("Counts");
        counts.field("sequences", &self.sequences);
        for state in LetterState::ALL {
            counts.field(state.as_str(), &self.of(state));
        }
        counts.finish()
    }
}

/// A page of heads, oldest touched first.
#[derive(Clone, Debug)]
pub struct HeadsPage {
    /// The letters at the head of their sequences.
    pub heads: Vec<Letter>,
    /// The cursor of the next page; `None` at the end.
    pub next: Option<String>,
}

/// The result of [`LetterStore::clear`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cleared {
    /// Number of evicted letters.
    pub evicted: u64,
    /// Number of leased heads, which stay.
    pub busy: u64,
}

/// The scope of a pause.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PauseScope {
    /// The whole consumer.
    Consumer,
    /// One stream of it.
    Stream(StreamName),
    /// One partition.
    Partition(Partition),
    /// One sequence: its messages are handed off to the store and wait there.
    Sequence(SequenceId),
    /// Replays only.
    Replay,
}

impl fmt::Display for PauseScope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Consumer => f.write_str("consumer"),
            Self::Stream(stream) => write!(f, "stream {stream}"),
            Self::Partition(partition) => write!(f, "partition {partition}"),
            Self::Sequence(sequence) => write!(f, "sequence {sequence}"),
            Self::Replay => f.write_str("replay"),
        }
    }
}

/// A pause with its author and start. It survives restarts and rebalances.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pause {
    /// The paused scope.
    pub scope: PauseScope,
    /// The author and reason.
    pub by: Actor,
    /// When it started.
    pub since: Timestamp,
}

/// Page size of the default methods.
const PAGE_SIZE: usize = 500;

/// The letters of all queues. The [module documentation](super) describes the guarantees of every call.
#[async_trait]
pub trait LetterStore: Send + Sync + 'static {
    /// Grants the caller the right to hand off messages of these partitions to this queue, and revokes every older
    /// grant of them. Called at each assignment, before the first message is dispatched.
    async fn assign(&self, queue: &QueueName, partitions: &[Partition]) -> Result<Vec<Grant>>;

    /// The [horizons](Grant::horizon) of these partitions in this queue, in order. Unlike [`assign`](Self::assign) it grants nothing. The
    /// default knows none: then a stream that was recreated before its incarnations were recorded is not noticed.
    async fn horizons(&self, _queue: &QueueName, partitions: &[Partition]) -> Result<Vec<Option<u64>>> {
        Ok(vec![None; partitions.len()])
    }

    /// The sequences of this queue that were opened or restored after `revision`; 0 returns all open ones.
    /// A sequence that was closed since may be left out. At most `limit` a page.
    async fn opened_since(&self, queue: &QueueName, revision: u64, limit: usize) -> Result<OpenedPage>;

    /// Stores messages durably. The results are in the order of the items; each item succeeds or
    /// fails alone, with one exception that preserves order: letters of one sequence are stored in the order of the
    /// call, and after a failed one, the later ones of the same sequence in the call are not stored either.
    ///
    /// Letters of one partition are ordered by offset within a sequence. A message that is redelivered
    /// after a crash is therefore inserted before later ones that were handed off before the crash. While
    /// it would precede the head of a leased sequence, the result is `Conflict`. This concerns only messages at or below the
    /// horizon, and those without a grant, which arrive in any order. Letters of one partition are in the order of their
    /// offsets, except imported ones with offsets that were not handed off yet: a live message never looks for its place
    /// before it is redelivered.
    ///
    /// Idempotent by (queue, message id): a message that has a letter, open or closed, results in [`Placed::Held`].
    /// Refuses items above `limits` with `Full`, and items under an old grant with `Fenced`. Raises the
    /// horizon of the message's own partition in the same transaction, without a grant, and under the grant of another one as
    /// well: a message that returned from a retry topic is read under the grant of that topic, and its original may be
    /// redelivered. An [import](Placement::Imported) raises none: lookups must find what this queue has settled, and nothing else.
    async fn hand_off(
        &self,
        queue: &QueueName,
        limits: &Limits,
        items: Vec<HandOff>,
    ) -> Result<Vec<Result<Placed>>>;

    /// The states of the letters of these messages, in order; `None` for a message without a letter.
    async fn lookup(&self, queue: &QueueName, messages: &[MessageId]) -> Result<Vec<Option<LetterState>>>;

    /// Stores the attempts of messages that wait in memory. Replaces notes on the same messages, except those with more
    /// attempts: a late note never lowers the number.
    async fn note_attempts(&self, queue: &QueueName, notes: Vec<AttemptNote>) -> Result<()>;

    /// The notes on messages of these partitions.
    async fn attempt_notes(&self, queue: &QueueName, partitions: &[Partition]) -> Result<Vec<AttemptNote>>;

    /// Deletes the notes on messages of this partition up to and including this offset, which are settled.
    async fn forget_attempts(&self, queue: &QueueName, partition: &Partition, up_to: u64) -> Result<()>;

    /// Claims up to `limit` sequences whose head may run automatically and is due: `retrying` at its due time, `waiting`
    /// at once. Earliest due first. Skips leased and paused sequences.
    async fn claim_due(
        &self,
        queue: &QueueName,
        owner: &str,
        lease: Duration,
        limit: usize,
    ) -> Result<Vec<Claim>>;

    /// When the next sequence becomes due, leased ones at the end of their lease; `None` if no sequence becomes due.
    async fn next_due(&self, queue: &QueueName) -> Result<Option<Timestamp>>;

    /// Claims this sequence for a replay, whatever the state of its head. `None` if it is not open or is leased.
    async fn claim(
        &self,
        queue: &QueueName,
        sequence: &SequenceId,
        owner: &str,
        lease: Duration,
    ) -> Result<Option<Claim>>;

    /// Extends a lease from now, and records what it is used for. `Fenced` if it is no longer current or has ended.
    async fn renew(&self, lease: &Lease, duration: Duration, used_for: LeaseUse) -> Result<Lease>;

    /// Releases a lease. A lease that is no longer current is no error.
    async fn release(&self, lease: &Lease) -> Result<()>;

    /// Settles the head of a leased sequence and advances the sequence, in one transaction. `Fenced` if the lease
    /// is no longer current; `NotFound` if the letter is no longer the head.
    async fn settle(&self, lease: &Lease, letter: LetterId, settlement: Settlement) -> Result<Settled>;

    /// Settles as [`settle`](Self::settle) does. Under a lease of an operation it also takes the letter behind, in the same transaction,
    /// if a [poll](super::Operations::poll_work) would hand it out now: then the lease continues with it, and the result is
    /// [`Next`](Settled::Next). So a long sequence costs one write a letter. If the operation has a rate, a store may leave the letter to
    /// the next poll.
    async fn settle_and_continue(
        &self,
        lease: &Lease,
        letter: LetterId,
        settlement: Settlement,
    ) -> Result<Settled>;

    /// Applies an operator's act to a letter, audited in the same transaction. Closing a head releases the letters behind
    /// it. `Conflict` for the head of a leased sequence, and for acts that the letter's state
    /// does not allow; `NotFound` if the letter does not exist.
    async fn act(&self, queue: &QueueName, letter: LetterId, act: Act, by: &Actor) -> Result<Letter>;

    /// One letter, open or closed.
    async fn get(&self, queue: &QueueName, letter: LetterId) -> Result<Option<Letter>>;

    /// The open letters of a sequence with an index of at least `from`, in order, at most `limit`.
    async fn sequence(
        &self,
        queue: &QueueName,
        sequence: &SequenceId,
        from: u64,
        limit: usize,
    ) -> Result<Vec<Letter>>;

    /// The heads of all open sequences, oldest touched first, in pages.
    async fn heads(&self, queue: &QueueName, after: Option<&str>, limit: usize) -> Result<HeadsPage>;

    /// The number of letters and sequences of the queue.
    async fn counts(&self, queue: &QueueName) -> Result<Counts>;

    /// Sets or ends a pause, durably and audited. Setting an existing pause replaces its author and reason. Returns `true`
    /// if the scope was paused before.
    async fn set_pause(
        &self,
        consumer: &ConsumerName,
        scope: &PauseScope,
        paused: bool,
        by: &Actor,
    ) -> Result<bool>;

    /// All pauses of the consumer.
    async fn pauses(&self, consumer: &ConsumerName) -> Result<Vec<Pause>>;

    /// The [incarnations](crate::incarnation) of the consumer's streams that were seen. A store with key-value pairs calls
    /// [`read_incarnations`](super::read_incarnations).
    async fn incarnations(&self, consumer: &ConsumerName) -> Result<Incarnations>;

    /// Records that an incarnation of a stream began, atomically and once, however many instances see it, and returns what is known
    /// then. A store with key-value pairs calls [`begin_incarnation`](super::begin_incarnation).
    async fn begin_incarnation(&self, consumer: &ConsumerName, beginning: &Beginning)
    -> Result<Incarnations>;

    /// The time of the clock that the store goes by, if that is not the clock of this process: for a store that several machines
    /// share. A consumer then writes this time and not its own, whatever the clocks of the machines show.
    async fn server_time(&self) -> Result<Option<Timestamp>> {
        Ok(None)
    }

    /// The room that this store takes, for [`CapacityPolicy`](crate::policy::CapacityPolicy). Asked every few seconds; the default
    /// knows nothing.
    async fn occupancy(&self) -> Result<Occupancy> {
        Ok(Occupancy::default())
    }

    /// Where this store keeps its files, for people who have to free some of that disk. The default is for stores without files of
    /// their own.
    async fn place(&self) -> Result<Option<String>> {
        Ok(None)
    }

    /// The optional capabilities of this store.
    async fn capabilities(&self) -> Result<Capabilities> {
        Ok(Capabilities::default())
    }

    /// Subscribes to notifications about what this process or another one changes.
    ///
    /// They only make others look earlier. Every one of them can be lost, late or superfluous, and the engine stays correct without
    /// any: it also looks at regular intervals. A store publishes what can take effect at once: acts, released leases, pauses,
    /// operations that were begun or commanded. It need not publish a retry that is due later, because whoever scheduled it
    /// runs it. The default sends none.
    fn changes(&self, _topics: Vec<Topic>) -> Changes {
        Changes::never()
    }

    /// Number of open letters of a sequence; 0 if it is not open.
    ///
    /// The default reads the whole sequence; stores with a counter should override it.
    async fn sequence_size(&self, queue: &QueueName, sequence: &SequenceId) -> Result<u64> {
        let (mut size, mut from) = (0, 0);
        loop {
            let page = self.sequence(queue, sequence, from, PAGE_SIZE).await?;
            let Some(last) = page.last() else { return Ok(size) };
            size += page.len() as u64;
            from = last.index + 1;
        }
    }

    /// `true` if a letter for this sequence would be refused as `Full`.
    async fn is_full(&self, queue: &QueueName, sequence: &SequenceId, limits: &Limits) -> Result<bool> {
        let size = self.sequence_size(queue, sequence).await?;
        let sequences = self.counts(queue).await?.sequences;
        Ok(limits.is_full((size > 0).then_some(size), sequences))
    }

    /// Evicts every open letter of the queue except the heads of leased sequences. Letters that are enqueued meanwhile may
    /// remain.
    ///
    /// The default evicts one letter at a time, each audited; stores that can do it in one transaction should override it.
    async fn clear(&self, queue: &QueueName, by: &Actor) -> Result<Cleared> {
        let mut cleared = Cleared { evicted: 0, busy: 0 };
        let mut heads = Vec::new();
        let mut after = None;
        loop {
            let page = self.heads(queue, after.as_deref(), PAGE_SIZE).await?;
            heads.extend(page.heads.into_iter().map(|head| head.sequence));
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        for sequence in heads {
            let mut from = 0;
            loop {
                let letters = self.sequence(queue, &sequence, from, PAGE_SIZE).await?;
                let Some(last) = letters.last() else { break };
                from = last.index + 1;
                for letter in letters {
                    match self.act(queue, letter.id, Act::Evict, by).await {
                        Ok(_) => cleared.evicted += 1,
                        Err(error) if error.kind() == ErrorKind::Conflict => cleared.busy += 1,
                        Err(error) => return Err(error),
                    }
                }
            }
        }
        Ok(cleared)
    }

    /// Sets a pause ([`set_pause`](Self::set_pause)).
    async fn pause(&self, consumer: &ConsumerName, scope: PauseScope, by: &Actor) -> Result<()> {
        self.set_pause(consumer, &scope, true, by).await.map(drop)
    }

    /// Ends a pause ([`set_pause`](Self::set_pause)). `false` if there was none.
    async fn resume(&self, consumer: &ConsumerName, scope: &PauseScope, by: &Actor) -> Result<bool> {
        self.set_pause(consumer, scope, false, by).await
    }
}
