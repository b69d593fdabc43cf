//! A store that fails by a seed: before the effect, after it, slowly, or in an outage.

use std::collections::BTreeSet;
use std::future::Future;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lazaret_core::QueueName;
use lazaret_core::store::{
    Audit, ErrorKind, HandOff, KeyValue, LetterStore, Limits, Operations, Outbox, Placed, Result, StoreError,
    Triage,
};

/// How unreliable a store is. Probabilities are per call, from 0 to 1.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Profile {
    /// The probability that a call fails before its effect, and says so ([`NotDone`](lazaret_core::store::Certainty::NotDone)).
    pub error: f64,
    /// The probability that a call has its effect and its answer is lost
    /// ([`MaybeDone`](lazaret_core::store::Certainty::MaybeDone)).
    pub error_after: f64,
    /// The longest latency, before the effect and again after it. Drawn evenly from zero on.
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
/// assert!(store.counts(&queue).await.is_ok(), "reliable by default");
/// store.set_profile(Profile { error: 1.0, ..Profile::default() });
/// assert_eq!(store.counts(&queue).await.unwrap_err().certainty(), Certainty::NotDone);
/// # });
/// ```
#[derive(Debug)]
pub struct Unreliable<S> {
    inner: S,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    random: SplitMix64,
    profile: Profile,
    outage: bool,
}

/// The outcome of one call, or of one item of a hand-off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Succeeds,
    FailsBefore,
    FailsAfter,
}

impl<S> Unreliable<S> {
    /// A wrapper that is reliable until it gets a profile.
    pub fn new(inner: S, seed: u64) -> Self {
        let state = State { random: SplitMix64(seed), profile: Profile::default(), outage: false };
        Self { inner, state: Mutex::new(state) }
    }

    /// The wrapped store, which is reliable.
    pub fn inner(&self) -> &S {
        &self.inner
    }

    /// Sets how unreliable the store is from now on.
    pub fn set_profile(&self, profile: Profile) {
        self.state().profile = profile;
    }

    /// Starts or ends an outage: every call fails without an effect.
    pub fn outage(&self, outage: bool) {
        self.state().outage = outage;
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs a call with the outcome and the latency that are drawn for it.
    async fn call<T>(&self, operation: &'static str, effect: impl Future<Output = Result<T>>) -> Result<T> {
        let (before, outcome, after) = {
            let state = &mut *self.state();
            (state.latency(), state.outcome(1.0), state.latency())
        };
        wait(before).await;
        if self.state().outage {
            return Err(StoreError::not_done(ErrorKind::Unavailable, operation, "injected outage"));
        }
        if outcome == Outcome::FailsBefore {
            return Err(failed_before(operation));
        }
        let answer = effect.await;
        wait(after).await;
        if outcome == Outcome::FailsAfter { Err(failed_after(operation)) } else { answer }
    }
}

impl State {
    fn outcome(&mut self, share: f64) -> Outcome {
        let (before, after) = (self.profile.error * share, self.profile.error_after * share);
        match self.random.fraction() {
            roll if roll < before => Outcome::FailsBefore,
            roll if roll < before + after => Outcome::FailsAfter,
            _ => Outcome::Succeeds,
        }
    }

    fn latency(&mut self) -> Duration {
        self.profile.latency.mul_f64(self.random.fraction())
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

/// The share of a call's probabilities with which each item of a hand-off fails alone.
const ITEM_SHARE: f64 = 0.25;

impl<S: LetterStore> Unreliable<S> {
    async fn unreliable_hand_off(
        &self,
        queue: &QueueName,
        limits: &Limits,
        items: Vec<HandOff>,
    ) -> Result<Vec<Result<Placed>>> {
        self.call("hand_off", self.hand_off_in_part(queue, limits, items)).await
    }

    /// Hands off, with some items failing alone. When one fails, those behind it in the same sequence fail too: a store
    /// that stored them would let them overtake.
    async fn hand_off_in_part(
        &self,
        queue: &QueueName,
        limits: &Limits,
        items: Vec<HandOff>,
    ) -> Result<Vec<Result<Placed>>> {
        const OPERATION: &str = "hand_off";
        let (mut sent, mut outcomes, mut broken) =
            (Vec::with_capacity(items.len()), Vec::new(), BTreeSet::new());
        for item in items {
            let drawn = self.state().outcome(ITEM_SHARE);
            let outcome = if broken.contains(&item.letter.sequence) { Outcome::FailsBefore } else { drawn };
            if outcome != Outcome::Succeeds {
                broken.insert(item.letter.sequence.clone());
            }
            if outcome != Outcome::FailsBefore {
                sent.push(item);
            }
            outcomes.push(outcome);
        }
        let mut answers = self.inner.hand_off(queue, limits, sent).await?.into_iter();
        let mut answer = || answers.next().expect("a store answers every item");
        let answers = outcomes.into_iter().map(|outcome| match outcome {
            Outcome::Succeeds => answer(),
            Outcome::FailsBefore => Err(failed_before(OPERATION)),
            Outcome::FailsAfter => answer().and(Err(failed_after(OPERATION))),
        });
        Ok(answers.collect())
    }
}

lazaret_core::forward_store! {
    impl<S: LetterStore> LetterStore for Unreliable<S> {
        hand_off => Self::unreliable_hand_off;
    }
    impl<S: Operations> Operations for Unreliable<S> {}
    impl<S: Triage> Triage for Unreliable<S> {}
    impl<S: Audit> Audit for Unreliable<S> {}
    impl<S: KeyValue> KeyValue for Unreliable<S> {}
    impl<S: Outbox> Outbox for Unreliable<S> {}

    inner: |this| &this.inner;
    around: |this, call, run| this.call(call.operation, run).await;
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

    use lazaret_core::store::{Actor, Certainty, Placement};
    use lazaret_core::{Letter, LetterState, Message, Position, SequenceId, Timestamp};
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
    async fn the_same_seed_gives_the_same_answers() {
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

    #[tokio::test(start_paused = true)]
    async fn a_purge_whose_answer_was_lost_has_happened() {
        let store = Unreliable::new(MemoryStore::default(), 7);
        let queue = QueueName::of("c", "c");
        let message = Message::new("m", "s", Position::new(0, 0));
        let mut letter = Letter::new(queue.clone(), "a".into(), message.into(), Timestamp::UNIX_EPOCH);
        letter.state = LetterState::Skipped;
        let (id, by) = (letter.id, Actor::engine("test"));
        let item = HandOff { letter, placement: Placement::Closed, grant: None };
        store.hand_off(&queue, &Limits::NONE, vec![item]).await.unwrap().remove(0).unwrap();
        store.set_profile(Profile { error: 1.0, ..Profile::default() });
        assert_eq!(store.purge(&queue, id, &by).await.unwrap_err().certainty(), Certainty::NotDone);
        store.set_profile(Profile { error_after: 1.0, ..Profile::default() });
        assert_eq!(store.purge(&queue, id, &by).await.unwrap_err().certainty(), Certainty::MaybeDone);
        store.set_profile(Profile::default());
        assert_eq!(store.purge(&queue, id, &by).await.unwrap_err().kind(), ErrorKind::NotFound);
    }
}
