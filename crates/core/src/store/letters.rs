//! The contract for letters: hand-off, claims, settlement, operators' acts and pauses.

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::audit::Actor;
use super::capabilities::Capabilities;
use super::error::{ErrorKind, Result};
use crate::failure::Failure;
use crate::letter::{AttemptRecord, Diagnostics, Letter, LetterId, LetterState};
use crate::message::{ConsumerName, MessageId, Partition, QueueName, StreamName};
use crate::sequence::SequenceId;

/// How large a queue may grow. `None` means without limit, which somebody must have chosen in words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// How many sequences may be open.
    pub max_sequences: Option<u64>,
    /// How many letters one sequence may hold.
    pub max_sequence_size: Option<u64>,
}

impl Default for Limits {
    /// 1024 sequences of 1024 letters.
    fn default() -> Self {
        Self { max_sequences: Some(1024), max_sequence_size: Some(1024) }
    }
}

impl Limits {
    /// No limits at all.
    pub const NONE: Self = Self { max_sequences: None, max_sequence_size: None };

    /// Whether one more letter does not fit: `size` is that of its sequence, if it is open, and `sequences` how many are.
    pub fn is_full(&self, size: Option<u64>, sequences: u64) -> bool {
        match size {
            Some(size) => self.max_sequence_size.is_some_and(|max| size >= max),
            None => self.max_sequences.is_some_and(|max| sequences >= max),
        }
    }
}

/// The right to hand off messages of one partition, and what the store knows of that partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The partition.
    pub partition: Partition,
    /// Grows with every grant of this partition in this queue; hand-offs with an older one are refused.
    pub fence: u64,
    /// The highest offset of this partition ever handed off to this queue. Only messages at or below it can have
    /// a letter already.
    pub horizon: Option<u64>,
}

/// Names the grant under which a hand-off is made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GrantFence {
    /// The partition.
    pub partition: Partition,
    /// The number of the grant.
    pub fence: u64,
    /// Grows with every call under this grant, the same for all items of a call. A call that arrives after a later one is
    /// refused: once a later call was answered, an earlier one of which nothing is known will not happen any more.
    pub turn: u64,
}

/// Where a letter is to be put.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// At the end of its sequence, which is opened if it is not open. For messages that failed.
    Open,
    /// At the end of its sequence, only if that is open. For messages that follow a failed one.
    Behind,
    /// Beside the sequence: the letter is closed from the start and blocks nobody. For messages that are skipped.
    Closed,
}

/// One message on its way into the store.
#[derive(Clone, Debug)]
pub struct HandOff {
    /// The letter as it shall stand there. The store gives it its index and its times of enqueueing and touch.
    pub letter: Letter,
    /// Where to put it.
    pub placement: Placement,
    /// The grant under which the message was read; `None` for letters that nobody reads from their partition now (imports).
    pub grant: Option<GrantFence>,
}

/// What became of a hand-off. Every answer but [`NotOpen`](Self::NotOpen) means that the message is durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placed {
    /// The sequence was opened with this letter as its head.
    Opened,
    /// The letter stands behind others.
    Appended,
    /// The letter was stored closed.
    Closed,
    /// There was a letter for this message already, in this state. Nothing was changed.
    Held(LetterState),
    /// [`Placement::Behind`] was asked and the sequence is not open. Nothing was stored. The number is the queue's
    /// revision at that moment.
    NotOpen(u64),
}

/// A page of sequences that were opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenedPage {
    /// The sequences, each at least once.
    pub sequences: Vec<SequenceId>,
    /// Where to go on from.
    pub revision: u64,
    /// Whether there is more now.
    pub more: bool,
}

/// What is remembered of a message that failed and waits in memory for its next attempt, so that a crash does not
/// give it new attempts (I4).
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
    /// How it failed last.
    pub failure: Failure,
    /// How often in a row it failed in that same way.
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
    /// Who holds it.
    pub owner: String,
    /// Grows with every claim of this sequence; writes with an older one are refused.
    pub fence: u64,
    /// When it ends, by the store's clock.
    pub until: Timestamp,
}

/// A sequence that was claimed, with the letter at its head.
#[derive(Clone, Debug)]
pub struct Claim {
    /// The right to work on it.
    pub lease: Lease,
    /// The letter to begin with.
    pub head: Letter,
}

/// What became of an attempt on the head of a leased sequence.
#[derive(Clone, Debug)]
pub enum Settlement {
    /// It was handled.
    Resolve(Option<AttemptRecord>),
    /// A policy gave it up.
    Evict(String),
    /// It is left out on purpose.
    Skip(String),
    /// It failed and stays at the head. The lease ends.
    Requeue(Box<Requeue>),
}

/// How a letter stands after it failed again.
#[derive(Clone, Debug)]
pub struct Requeue {
    /// Its new state, an open one.
    pub state: LetterState,
    /// When it is due, for `retrying`.
    pub due_at: Option<Timestamp>,
    /// The new cause; `None` keeps the old one.
    pub cause: Option<Failure>,
    /// Automatic attempts so far.
    pub attempts: u32,
    /// Attempts that ended with the death of the process.
    pub crash_attempts: u32,
    /// Attempts that somebody asked for.
    pub replay_attempts: u32,
    /// Whether the same failure came back too often.
    pub poison: bool,
    /// Its diagnostics from now on.
    pub diagnostics: Diagnostics,
    /// The attempt, for the history; `None` when none was made.
    pub attempt: Option<AttemptRecord>,
    /// Leave the payload out from now on: the letter will not run again by itself and its consumer keeps none.
    pub leave_out_payload: bool,
}

/// What follows a settlement.
#[derive(Clone, Debug)]
pub enum Settled {
    /// The lease goes on with the next letter.
    Next(Box<Letter>),
    /// That was the last one: the sequence is closed and the lease with it.
    Closed,
    /// The next letter may not run now: it is not due, its state needs a person, or the sequence is paused. The
    /// lease is released. For leases of [`claim_due`](LetterStore::claim_due); a replay goes on whatever the state, but in
    /// an [operation](super::Operations::poll_work) each letter has a turn of its own.
    Blocked,
    /// The letter stays at the head and the lease is released.
    Requeued,
}

/// A change that a person makes to a letter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Act {
    /// Take it out. Reversible by [`Restore`](Self::Restore) until it is purged.
    Evict,
    /// Say that it was handled by other means.
    Resolve,
    /// Hold it until it is released.
    Park,
    /// Hold it apart.
    Quarantine,
    /// Let the scheduler try it again now, with fresh attempts, crash attempts among them. Refused for one whose payload was
    /// left out. Its time limit still counts from
    /// the first failure, so one that is past it gets a single attempt.
    Release,
    /// Bring an evicted letter back, as `dead`, to its old place.
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

/// How many letters and sequences a queue holds.
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

/// Names the states: `Counts { sequences: 1, retrying: 0, dead: 1, … }`.
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
    /// What to pass to get the next page; `None` at the end.
    pub next: Option<String>,
}

/// What [`LetterStore::clear`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cleared {
    /// Letters evicted.
    pub evicted: u64,
    /// Heads that somebody was working on and that were left to them.
    pub busy: u64,
}

/// What is paused.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PauseScope {
    /// The whole consumer.
    Consumer,
    /// One stream of it.
    Stream(StreamName),
    /// One partition.
    Partition(Partition),
    /// One sequence: its messages go to the store and wait there.
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

/// A pause, with who, why and since when. It survives restarts and rebalances.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pause {
    /// What is paused.
    pub scope: PauseScope,
    /// Who did it, and why.
    pub by: Actor,
    /// Since when.
    pub since: Timestamp,
}

/// How many letters the default methods read at once.
const LISTED_AT_ONCE: usize = 500;

/// The letters of all queues. See the [module text](super) for what holds for every call.
#[async_trait]
pub trait LetterStore: Send + Sync + 'static {
    /// Grants the caller the right to hand off messages of these partitions to this queue, and ends every older
    /// grant of them. Called at each assignment, before the first message is dispatched.
    async fn assign(&self, queue: &QueueName, partitions: &[Partition]) -> Result<Vec<Grant>>;

    /// The sequences of this queue that were opened, or restored, after `revision`; 0 gives all that are open.
    /// A sequence that was opened and closed since may be left out. At most `limit` a page.
    async fn opened_since(&self, queue: &QueueName, revision: u64, limit: usize) -> Result<OpenedPage>;

    /// Takes messages into the store, durably. The answers stand in the order of the items; each item succeeds or
    /// fails alone, with one exception that order demands: letters of one sequence are stored in the order of the
    /// call, and when one of them fails, those of the same sequence behind it in the call are not stored either.
    ///
    /// Letters of one partition stand in a sequence in the order of their offsets. So a message that is delivered again
    /// after a crash goes before later ones that were handed off before the crash: it was handled before them and is
    /// handled before them again. While the letter that it would go before is the head and somebody works on it, the
    /// answer is `Conflict`. Only messages at or below the horizon can be concerned, and those that come under no grant:
    /// they come in any order, and each goes to its place.
    ///
    /// Idempotent by (queue, message id): a message that has a letter, open or closed, gets [`Placed::Held`].
    /// Refuses with `Full` what does not fit `limits`, with `Fenced` what comes under an old grant. Raises the
    /// horizon of the message's partition in the same step, under a grant or not.
    async fn hand_off(
        &self,
        queue: &QueueName,
        limits: &Limits,
        items: Vec<HandOff>,
    ) -> Result<Vec<Result<Placed>>>;

    /// The states of the letters of these messages, in order; `None` where there is no letter.
    async fn lookup(&self, queue: &QueueName, messages: &[MessageId]) -> Result<Vec<Option<LetterState>>>;

    /// Remembers attempts of messages that wait in memory. Replaces notes on the same messages, unless they tell of more
    /// attempts: a note that comes late takes nothing back.
    async fn note_attempts(&self, queue: &QueueName, notes: Vec<AttemptNote>) -> Result<()>;

    /// The notes on messages of these partitions.
    async fn attempt_notes(&self, queue: &QueueName, partitions: &[Partition]) -> Result<Vec<AttemptNote>>;

    /// Forgets the notes on messages of this partition up to and including this offset: their fate is settled.
    async fn forget_attempts(&self, queue: &QueueName, partition: &Partition, up_to: u64) -> Result<()>;

    /// Claims up to `limit` sequences whose head may run by itself and is due: `retrying` at its due time, `waiting`
    /// at once. Earliest due first. Leaves out sequences that are leased or paused.
    async fn claim_due(
        &self,
        queue: &QueueName,
        owner: &str,
        lease: Duration,
        limit: usize,
    ) -> Result<Vec<Claim>>;

    /// When the next sequence becomes due, leased ones at the end of their lease; `None` when nothing will.
    async fn next_due(&self, queue: &QueueName) -> Result<Option<Timestamp>>;

    /// Claims this sequence whatever the state of its head, for a replay. `None` when it is not open or leased.
    async fn claim(
        &self,
        queue: &QueueName,
        sequence: &SequenceId,
        owner: &str,
        lease: Duration,
    ) -> Result<Option<Claim>>;

    /// Prolongs a lease from now. `Fenced` when it is no longer the current one or has ended.
    async fn renew(&self, lease: &Lease, duration: Duration) -> Result<Lease>;

    /// Gives a lease back. A lease that is no longer current is no error.
    async fn release(&self, lease: &Lease) -> Result<()>;

    /// Writes down what became of the head of a leased sequence and moves on, in one step. `Fenced` when the lease
    /// is no longer the current one; `NotFound` when the letter is not the head any more.
    async fn settle(&self, lease: &Lease, letter: LetterId, settlement: Settlement) -> Result<Settled>;

    /// Changes a letter by hand and writes it into the audit, in one step. A head that leaves releases those behind
    /// it. `Conflict` for the head of a sequence that somebody is working on, and for acts that the letter's state
    /// does not allow; `NotFound` when there is no such letter.
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

    /// How much the queue holds.
    async fn counts(&self, queue: &QueueName) -> Result<Counts>;

    /// Pauses something, or ends its pause, durably and audited. Pausing what is paused replaces who and why. Whether it
    /// was paused before.
    async fn set_pause(
        &self,
        consumer: &ConsumerName,
        scope: &PauseScope,
        paused: bool,
        by: &Actor,
    ) -> Result<bool>;

    /// What is paused.
    async fn pauses(&self, consumer: &ConsumerName) -> Result<Vec<Pause>>;

    /// What this store can do beyond what every store promises.
    async fn capabilities(&self) -> Result<Capabilities> {
        Ok(Capabilities::default())
    }

    /// How many open letters a sequence holds; 0 when it is not open.
    ///
    /// Reads the whole sequence; a store that counts does better.
    async fn sequence_size(&self, queue: &QueueName, sequence: &SequenceId) -> Result<u64> {
        let (mut size, mut from) = (0, 0);
        loop {
            let page = self.sequence(queue, sequence, from, LISTED_AT_ONCE).await?;
            let Some(last) = page.last() else { return Ok(size) };
            size += page.len() as u64;
            from = last.index + 1;
        }
    }

    /// Whether a letter for this sequence would be refused as `Full`.
    async fn is_full(&self, queue: &QueueName, sequence: &SequenceId, limits: &Limits) -> Result<bool> {
        let size = self.sequence_size(queue, sequence).await?;
        let sequences = self.counts(queue).await?.sequences;
        Ok(limits.is_full((size > 0).then_some(size), sequences))
    }

    /// Evicts every open letter of the queue but the heads that somebody is working on. Letters that are taken in meanwhile may
    /// stay.
    ///
    /// Evicts one letter after the other, each audited; a store that can do it in one step does better.
    async fn clear(&self, queue: &QueueName, by: &Actor) -> Result<Cleared> {
        let mut cleared = Cleared { evicted: 0, busy: 0 };
        let mut heads = Vec::new();
        let mut after = None;
        loop {
            let page = self.heads(queue, after.as_deref(), LISTED_AT_ONCE).await?;
            heads.extend(page.heads.into_iter().map(|head| head.sequence));
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        for sequence in heads {
            let mut from = 0;
            loop {
                let letters = self.sequence(queue, &sequence, from, LISTED_AT_ONCE).await?;
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

    /// Pauses something ([`set_pause`](Self::set_pause)).
    async fn pause(&self, consumer: &ConsumerName, scope: PauseScope, by: &Actor) -> Result<()> {
        self.set_pause(consumer, &scope, true, by).await.map(drop)
    }

    /// Ends a pause ([`set_pause`](Self::set_pause)). `false` when there was none.
    async fn resume(&self, consumer: &ConsumerName, scope: &PauseScope, by: &Actor) -> Result<bool> {
        self.set_pause(consumer, scope, false, by).await
    }
}
