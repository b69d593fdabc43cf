//! A store that fails by a seed: before the effect, after it, late, or altogether.

mod checkpoints;
mod locks;
mod operations;
mod outbox;
mod triage;

use std::collections::BTreeSet;
use std::future::Future;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;
use lazaret_core::store::{
    Act, Actor, AttemptNote, Audit, AuditEntry, AuditNote, Claim, Cleared, Counts, ErrorKind, Grant, HandOff,
    HeadsPage, Lease, LetterStore, Limits, OpenedPage, Pause, PauseScope, Placed, Result, Settled,
    Settlement, Store, StoreError,
};
use lazaret_core::{
    ConsumerName, Letter, LetterId, LetterState, MessageId, Partition, QueueName, SequenceId,
};

/// How unreliable a store is. Probabilities are per call, from 0 to 1.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Profile {
    /// How likely a call fails before its effect, and says so ([`NotDone`](lazaret_core::store::Certainty::NotDone)).
    pub error: f64,
    /// How likely a call has its effect and the answer is lost
    /// ([`MaybeDone`](lazaret_core::store::Certainty::MaybeDone)).
    pub error_after: f64,
    /// The longest that a call takes, before its effect and again after it. Drawn evenly from zero on.
    pub latency: Duration,
}

/// Wraps a store and makes it unreliable, by a seed: the same calls in the same order fail in the same way.
///
/// ```
/// use lazaret_core::QueueName;
/// use lazaret_core::store::{Certainty, LetterStore};
/// use lazaret_memory::MemoryStore;
/// use lazaret_testkit::{Profile, Unreliable};
///
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// let store = Unreliable::new(MemoryStore::default(), 42);
/// let queue = QueueName::of("orders", "orders");
/// assert!(store.counts(&queue).await.is_ok(), "reliable until it is told otherwise");
/// store.set_profile(Profile { error: 1.0, ..Profile::default() });
/// assert_eq!(store.counts(&queue).await.unwrap_err().certainty(), Certainty::NotDone);
/// # });
/// ```
#[derive(Debug)]
pub struct Unreliable<S> {
    inner: S,
    mood: Mutex<Mood>,
}

#[derive(Debug)]
struct Mood {
    dice: SplitMix64,
    profile: Profile,
    outage: bool,
}

/// What will become of one call, or of one item of a hand-off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Fine,
    FailsBefore,
    FailsAfter,
}

impl<S> Unreliable<S> {
    /// A wrapper that is reliable until it is told otherwise.
    pub fn new(inner: S, seed: u64) -> Self {
        let mood = Mood { dice: SplitMix64(seed), profile: Profile::default(), outage: false };
        Self { inner, mood: Mutex::new(mood) }
    }

    /// The store inside, which is reliable.
    pub fn inner(&self) -> &S {
        &self.inner
    }

    /// Sets how unreliable the store is from now on.
    pub fn set_profile(&self, profile: Profile) {
        self.mood().profile = profile;
    }

    /// Begins or ends an outage: every call fails without an effect.
    pub fn outage(&self, outage: bool) {
        self.mood().outage = outage;
    }

    fn mood(&self) -> MutexGuard<'_, Mood> {
        self.mood.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs a call as the dice fall.
    async fn call<T>(&self, operation: &'static str, effect: impl Future<Output = Result<T>>) -> Result<T> {
        let (before, fate, after) = {
            let mood = &mut *self.mood();
            (mood.latency(), mood.fate(1.0), mood.latency())
        };
        wait(before).await;
        if self.mood().outage {
            return Err(StoreError::not_done(ErrorKind::Unavailable, operation, "injected outage"));
        }
        if fate == Fate::FailsBefore {
            return Err(failed_before(operation));
        }
        let answer = effect.await;
        wait(after).await;
        if fate == Fate::FailsAfter { Err(failed_after(operation)) } else { answer }
    }
}

impl Mood {
    fn fate(&mut self, share: f64) -> Fate {
        let (before, after) = (self.profile.error * share, self.profile.error_after * share);
        match self.dice.fraction() {
            roll if roll < before => Fate::FailsBefore,
            roll if roll < before + after => Fate::FailsAfter,
            _ => Fate::Fine,
        }
    }

    fn latency(&mut self) -> Duration {
        self.profile.latency.mul_f64(self.dice.fraction())
    }
}

async fn wait(latency: Duration) {
    if !latency.is_zero() {
        tokio::time::sleep(latency).await;
    }
}

fn failed_before(operation: &'static str) -> StoreError {
    StoreError::not_done(ErrorKind::Unavailable, operation, "injected error before the effect")
}

fn failed_after(operation: &'static str) -> StoreError {
    StoreError::maybe(ErrorKind::Unavailable, operation, "injected error after the effect")
}

/// Of the probabilities of a call, how much each item of a hand-off gets besides.
const ITEM_SHARE: f64 = 0.25;

impl<S: LetterStore> Unreliable<S> {
    /// Hands off, with some items failing alone. When one fails, those behind it in the same sequence fail too: a store
    /// that stored them would let them overtake.
    async fn hand_off_in_part(
        &self,
        queue: &QueueName,
        limits: &Limits,
        items: Vec<HandOff>,
    ) -> Result<Vec<Result<Placed>>> {
        const OPERATION: &str = "hand_off";
        let (mut sent, mut fates, mut broken) =
            (Vec::with_capacity(items.len()), Vec::new(), BTreeSet::new());
        for item in items {
            let drawn = self.mood().fate(ITEM_SHARE);
            let fate = if broken.contains(&item.letter.sequence) { Fate::FailsBefore } else { drawn };
            if fate != Fate::Fine {
                broken.insert(item.letter.sequence.clone());
            }
            if fate != Fate::FailsBefore {
                sent.push(item);
            }
            fates.push(fate);
        }
        let mut answers = self.inner.hand_off(queue, limits, sent).await?.into_iter();
        let mut answer = || answers.next().expect("a store answers every item");
        let answers = fates.into_iter().map(|fate| match fate {
            Fate::Fine => answer(),
            Fate::FailsBefore => Err(failed_before(OPERATION)),
            Fate::FailsAfter => answer().and(Err(failed_after(OPERATION))),
        });
        Ok(answers.collect())
    }
}

#[async_trait]
impl<S: Store> LetterStore for Unreliable<S> {
    async fn assign(&self, queue: &QueueName, partitions: &[Partition]) -> Result<Vec<Grant>> {
        self.call("assign", self.inner.assign(queue, partitions)).await
    }

    async fn opened_since(&self, queue: &QueueName, revision: u64, limit: usize) -> Result<OpenedPage> {
        self.call("opened_since", self.inner.opened_since(queue, revision, limit)).await
    }

    async fn hand_off(
        &self,
        queue: &QueueName,
        limits: &Limits,
        items: Vec<HandOff>,
    ) -> Result<Vec<Result<Placed>>> {
        self.call("hand_off", self.hand_off_in_part(queue, limits, items)).await
    }

    async fn lookup(&self, queue: &QueueName, messages: &[MessageId]) -> Result<Vec<Option<LetterState>>> {
        self.call("lookup", self.inner.lookup(queue, messages)).await
    }

    async fn note_attempts(&self, queue: &QueueName, notes: Vec<AttemptNote>) -> Result<()> {
        self.call("note_attempts", self.inner.note_attempts(queue, notes)).await
    }

    async fn attempt_notes(&self, queue: &QueueName, partitions: &[Partition]) -> Result<Vec<AttemptNote>> {
        self.call("attempt_notes", self.inner.attempt_notes(queue, partitions)).await
    }

    async fn forget_attempts(&self, queue: &QueueName, partition: &Partition, up_to: u64) -> Result<()> {
        self.call("forget_attempts", self.inner.forget_attempts(queue, partition, up_to)).await
    }

    async fn claim_due(
        &self,
        queue: &QueueName,
        owner: &str,
        lease: Duration,
        limit: usize,
    ) -> Result<Vec<Claim>> {
        self.call("claim_due", self.inner.claim_due(queue, owner, lease, limit)).await
    }

    async fn next_due(&self, queue: &QueueName) -> Result<Option<Timestamp>> {
        self.call("next_due", self.inner.next_due(queue)).await
    }

    async fn claim(
        &self,
        queue: &QueueName,
        sequence: &SequenceId,
        owner: &str,
        lease: Duration,
    ) -> Result<Option<Claim>> {
        self.call("claim", self.inner.claim(queue, sequence, owner, lease)).await
    }

    async fn renew(&self, lease: &Lease, duration: Duration) -> Result<Lease> {
        self.call("renew", self.inner.renew(lease, duration)).await
    }

    async fn release(&self, lease: &Lease) -> Result<()> {
        self.call("release", self.inner.release(lease)).await
    }

    async fn settle(&self, lease: &Lease, letter: LetterId, settlement: Settlement) -> Result<Settled> {
        self.call("settle", self.inner.settle(lease, letter, settlement)).await
    }

    async fn act(&self, queue: &QueueName, letter: LetterId, act: Act, by: &Actor) -> Result<Letter> {
        self.call("act", self.inner.act(queue, letter, act, by)).await
    }

    async fn get(&self, queue: &QueueName, letter: LetterId) -> Result<Option<Letter>> {
        self.call("get", self.inner.get(queue, letter)).await
    }

    async fn sequence(
        &self,
        queue: &QueueName,
        sequence: &SequenceId,
        from: u64,
        limit: usize,
    ) -> Result<Vec<Letter>> {
        self.call("sequence", self.inner.sequence(queue, sequence, from, limit)).await
    }

    async fn heads(&self, queue: &QueueName, after: Option<&str>, limit: usize) -> Result<HeadsPage> {
        self.call("heads", self.inner.heads(queue, after, limit)).await
    }

    async fn counts(&self, queue: &QueueName) -> Result<Counts> {
        self.call("counts", self.inner.counts(queue)).await
    }

    async fn sequence_size(&self, queue: &QueueName, sequence: &SequenceId) -> Result<u64> {
        self.call("sequence_size", self.inner.sequence_size(queue, sequence)).await
    }

    async fn is_full(&self, queue: &QueueName, sequence: &SequenceId, limits: &Limits) -> Result<bool> {
        self.call("is_full", self.inner.is_full(queue, sequence, limits)).await
    }

    async fn clear(&self, queue: &QueueName, by: &Actor) -> Result<Cleared> {
        self.call("clear", self.inner.clear(queue, by)).await
    }

    async fn set_pause(
        &self,
        consumer: &ConsumerName,
        scope: &PauseScope,
        paused: bool,
        by: &Actor,
    ) -> Result<bool> {
        self.call("set_pause", self.inner.set_pause(consumer, scope, paused, by)).await
    }

    async fn pauses(&self, consumer: &ConsumerName) -> Result<Vec<Pause>> {
        self.call("pauses", self.inner.pauses(consumer)).await
    }
}

#[async_trait]
impl<S: Store> Audit for Unreliable<S> {
    async fn note(&self, note: &AuditNote, by: &Actor) -> Result<()> {
        self.call("note", self.inner.note(note, by)).await
    }

    async fn audit(&self, after: u64, limit: usize) -> Result<Vec<AuditEntry>> {
        self.call("audit", self.inner.audit(after, limit)).await
    }
}

/// Sebastiano Vigna's SplitMix64: small, fast, and the same on every machine.
#[derive(Clone, Debug)]
pub(crate) struct SplitMix64(pub(crate) u64);

impl SplitMix64 {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number from 0 up to, and never, 1.
    pub(crate) fn fraction(&mut self) -> f64 {
        // The upper 53 bits are all that a float can hold.
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use lazaret_core::store::{Certainty, Placement};
    use lazaret_core::{Message, Position};
    use lazaret_memory::MemoryStore;

    use super::*;
    use crate::clock::TokioClock;

    const FLAKY: Profile = Profile { error: 0.3, error_after: 0.3, latency: Duration::from_millis(50) };

    fn items(queue: &QueueName, count: u64) -> Vec<HandOff> {
        let item = |n| {
            let message = Message::new(format!("m{n}"), "s", Position::new(0, n));
            let sequence = SequenceId::from(["a", "b", "c"][n as usize % 3]);
            let letter = Letter::new(queue.clone(), sequence, Arc::new(message), Timestamp::UNIX_EPOCH);
            HandOff { letter, placement: Placement::Open, grant: None }
        };
        (0..count).map(item).collect()
    }

    async fn run(seed: u64) -> Vec<String> {
        let store = Unreliable::new(MemoryStore::new(Arc::new(TokioClock::new())), seed);
        store.set_profile(FLAKY);
        let queue = QueueName::of("c", "c");
        let mut lines = Vec::new();
        for count in 1..30 {
            lines.push(format!("{:?}", store.hand_off(&queue, &Limits::NONE, items(&queue, count)).await));
            lines.push(format!("{:?}", store.counts(&queue).await));
        }
        lines
    }

    #[tokio::test(start_paused = true)]
    async fn one_seed_gives_one_story() {
        assert_eq!(run(1).await, run(1).await);
        assert_ne!(run(1).await, run(2).await);
    }

    #[tokio::test(start_paused = true)]
    async fn an_error_before_has_no_effect_and_an_error_after_has() {
        let store = Unreliable::new(MemoryStore::default(), 7);
        let queue = QueueName::of("c", "c");
        store.set_profile(Profile { error: 1.0, ..Profile::default() });
        let error = store.hand_off(&queue, &Limits::NONE, items(&queue, 1)).await.unwrap_err();
        assert_eq!(error.certainty(), Certainty::NotDone);
        assert_eq!(store.inner().counts(&queue).await.unwrap().open(), 0);
        store.set_profile(Profile { error_after: 1.0, ..Profile::default() });
        let error = store.hand_off(&queue, &Limits::NONE, items(&queue, 1)).await.unwrap_err();
        assert_eq!(error.certainty(), Certainty::MaybeDone);
        assert_eq!(store.inner().counts(&queue).await.unwrap().open(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn an_outage_lasts_until_it_ends() {
        // I9
        let store = Unreliable::new(MemoryStore::default(), 7);
        let queue = QueueName::of("c", "c");
        store.outage(true);
        for _ in 0..10 {
            let error = store.counts(&queue).await.unwrap_err();
            assert_eq!((error.kind(), error.certainty()), (ErrorKind::Unavailable, Certainty::NotDone));
        }
        store.outage(false);
        assert!(store.counts(&queue).await.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn items_fail_alone_and_take_only_their_sequence_with_them() {
        // I2: what is behind a failed item in its sequence is not stored before it.
        let (mut failed_alone, queue) = (0, QueueName::of("c", "c"));
        for seed in 0..50 {
            let store = Unreliable::new(MemoryStore::default(), seed);
            store.set_profile(Profile { error: 0.2, error_after: 0.2, ..Profile::default() });
            let Ok(answers) = store.hand_off(&queue, &Limits::NONE, items(&queue, 12)).await else {
                continue;
            };
            failed_alone +=
                usize::from(answers.iter().any(Result::is_err) && answers.iter().any(Result::is_ok));
            for sequence in 0..3 {
                let of_sequence = answers.iter().skip(sequence).step_by(3);
                assert!(of_sequence.map(|answer| u8::from(answer.is_err())).is_sorted());
            }
        }
        assert!(failed_alone > 5);
    }
}
