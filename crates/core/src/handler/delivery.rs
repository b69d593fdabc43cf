//! One message and the state of its attempts.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use tokio_util::sync::CancellationToken;

use super::context::{Metadata, MetadataFull};
use crate::failure::{HandlerError, Phase, Reason};
use crate::letter::Letter;
use crate::message::{Message, MessageId};
use crate::store::StoreError;

/// Takes the messages that a handler sends to the dead letters. The engine implements it.
#[async_trait]
pub trait DeadLetterSink: Send + Sync {
    /// Makes the message of this delivery a dead letter. Returns when the letter is durable.
    ///
    /// Sending one message twice makes one letter (I8).
    async fn send_to_dlq(&self, delivery: &Delivery, reason: Reason, why: String) -> Result<(), StoreError>;

    /// Returns `true` while no other process can have got the message. Default: always.
    fn is_owned(&self) -> bool {
        true
    }
}

/// One message and the state of its attempts in one component.
///
/// A clone is the same delivery. Making one allocates once; what few handlers use, such as metadata, is allocated at its
/// first use. The engine calls [`begin_attempt`](Self::begin_attempt) before each attempt; attempts of one
/// delivery follow one another.
///
/// ```
/// use lazaret_core::handler::Delivery;
/// use lazaret_core::{Message, Phase, Position};
/// let delivery = Delivery::new(Message::new("evt-1", "orders", Position::new(0, 0)));
/// assert_eq!((delivery.attempt(), delivery.phase()), (1, Phase::Handle));
/// delivery.mark_phase(Phase::ExternalCall);
/// delivery.begin_attempt(2);
/// assert_eq!((delivery.attempt(), delivery.phase()), (2, Phase::Handle));
/// ```
#[derive(Clone)]
pub struct Delivery(Arc<Inner>);

struct Inner {
    message: Message,
    /// The number of the attempt in the upper half; in the lower one [`OVER`], [`SENT`], and how many dead letters the handler asked
    /// for whose fate is unknown. One value, so that an attempt that ends sees either the one or the other.
    attempt: AtomicU64,
    phase: AtomicU8,
    cancelled: AtomicBool,
    /// Not in the cold part: the engine gives every live delivery a sink, and that must not allocate.
    sink: Option<Arc<dyn DeadLetterSink>>,
    cold: OnceLock<Box<Cold>>,
}

/// The attempt has ended.
const OVER: u64 = 1;
/// The dead letter that the handler asked for is durable.
const SENT: u64 = 2;
/// One dead letter that the handler asked for, and of which it is not known whether it is durable.
const WRITING: u64 = 4;
/// The number of those, in units of [`WRITING`].
const ALL_WRITING: u64 = u32::MAX as u64 & !(OVER | SENT);

/// An attempt that has not ended.
const fn running(attempt: u32) -> u64 {
    (attempt as u64) << 32
}

/// Returns `true` for the state of this attempt, if it has not ended.
const fn is_running(state: u64, attempt: u32) -> bool {
    state & !(SENT | ALL_WRITING) == running(attempt)
}

/// What an attempt that ended has done with its message.
#[derive(Debug)]
pub enum AttemptEnd {
    /// It has not sent it to the dead letters.
    NotSent,
    /// It has sent it to the dead letters: the letter is durable.
    Sent,
    /// It asked for this dead letter, and it is not known whether that is durable. It must become so.
    Unconfirmed(Box<Letter>),
}

/// The parts that most deliveries never need.
#[derive(Default)]
struct Cold {
    /// The dead letter that the handler asked for, while its fate is unknown.
    dead_letter: Mutex<Option<Box<Letter>>>,
    letter: Option<Arc<Letter>>,
    replay: Option<String>,
    metadata: Mutex<Metadata>,
    token: Mutex<Option<CancellationToken>>,
}

impl Delivery {
    /// The first attempt at a live message.
    pub fn new(message: Message) -> Self {
        Self::from_parts(message, 1, None, OnceLock::new())
    }

    /// The first attempt at a live message, which the handler may send to this sink.
    pub fn live(message: Message, sink: Arc<dyn DeadLetterSink>) -> Self {
        Self::from_parts(message, 1, Some(sink), OnceLock::new())
    }

    /// A further attempt at a message that is held as a letter, as part of this replay operation, if it is one.
    ///
    /// ```
    /// use lazaret_core::handler::Delivery;
    /// use lazaret_core::{Letter, Message, Position, QueueName, Timestamp};
    /// use std::sync::Arc;
    /// let message = Message::new("evt-1", "orders", Position::new(0, 0));
    /// let letter = Letter::new(QueueName::of("a", "a"), "k".into(), message.into(), Timestamp::UNIX_EPOCH);
    /// let delivery = Delivery::for_letter(Arc::new(letter), Some("op-7".to_owned()));
    /// assert!(delivery.letter().is_some());
    /// assert_eq!(delivery.replay().as_deref(), Some("op-7"));
    /// ```
    pub fn for_letter(letter: Arc<Letter>, replay: Option<String>) -> Self {
        let message = Message::clone(&letter.message);
        let attempt = letter.attempts.saturating_add(1);
        let cold = Cold { letter: Some(letter), replay, ..Cold::default() };
        Self::from_parts(message, attempt, None, OnceLock::from(Box::new(cold)))
    }

    fn from_parts(
        message: Message,
        attempt: u32,
        sink: Option<Arc<dyn DeadLetterSink>>,
        cold: OnceLock<Box<Cold>>,
    ) -> Self {
        Self(Arc::new(Inner {
            message,
            attempt: AtomicU64::new(running(attempt)),
            phase: AtomicU8::new(Phase::Handle as u8),
            cancelled: AtomicBool::new(false),
            sink,
            cold,
        }))
    }

    /// Returns the delivery of the same message under another id, before its first attempt.
    ///
    /// ```
    /// use lazaret_core::handler::Delivery;
    /// use lazaret_core::{Message, Position};
    /// let delivery = Delivery::new(Message::new("evt-1", "orders", Position::new(0, 7)));
    /// assert_eq!(delivery.with_message_id("orders/0/7".into()).message().id.as_str(), "orders/0/7");
    /// ```
    #[must_use]
    pub fn with_message_id(&self, id: MessageId) -> Self {
        let message = Message { id, ..self.0.message.clone() };
        Self::from_parts(message, self.attempt(), self.0.sink.clone(), OnceLock::new())
    }

    /// Gives the delivery a sink, unless it has one or was cloned: the holder of a clone may use it already.
    #[must_use]
    pub fn with_sink(mut self, sink: Arc<dyn DeadLetterSink>) -> Self {
        if let Some(inner) = Arc::get_mut(&mut self.0) {
            inner.sink.get_or_insert(sink);
        }
        self
    }

    pub(super) fn sink(&self) -> Option<&Arc<dyn DeadLetterSink>> {
        self.0.sink.as_ref()
    }

    /// The message.
    pub fn message(&self) -> &Message {
        &self.0.message
    }

    /// Returns the id under which a handler remembers the effects of its message: see [`Letter::dedupe_id`].
    pub fn dedupe_id(&self) -> MessageId {
        self.letter().map_or_else(|| self.message().dedupe_id(), |letter| letter.dedupe_id())
    }

    /// The number of the attempt, from 1.
    pub fn attempt(&self) -> u32 {
        (self.0.attempt.load(Ordering::Relaxed) >> 32) as u32
    }

    /// Returns `true` while the attempt with this number runs.
    pub fn is_running(&self, attempt: u32) -> bool {
        is_running(self.0.attempt.load(Ordering::Acquire), attempt)
    }

    /// Records a dead letter that the handler asks for in this attempt, before it is written. Returns `false` when the attempt
    /// is over: then nothing may be written, because the message has another fate.
    pub fn begin_dead_letter(&self, attempt: u32, letter: Letter) -> bool {
        // Locked from here on: whoever ends the attempt and finds the number waits for the letter.
        let mut slot = lock(&self.cold().dead_letter);
        let begun = self.change(|now| is_running(now, attempt).then_some(now + WRITING));
        if begun {
            *slot = Some(Box::new(letter));
        }
        begun
    }

    /// Records that the fate of a dead letter that was begun is known: it is `durable`, or certainly not written. From the same moment
    /// on, the message counts as sent or not.
    pub fn end_dead_letter(&self, attempt: u32, durable: bool) {
        self.change(|now| {
            let is_begun = now >> 32 == u64::from(attempt) && now & ALL_WRITING != 0;
            is_begun.then_some((now - WRITING) | if durable { SENT } else { 0 })
        });
    }

    /// Records that the message was sent to the dead letters in this attempt. Returns `false` when the attempt is over: the message
    /// has another fate then.
    pub fn mark_sent(&self, attempt: u32) -> bool {
        self.change(|now| is_running(now, attempt).then_some(now | SENT))
    }

    fn change(&self, change: impl FnMut(u64) -> Option<u64>) -> bool {
        self.0.attempt.fetch_update(Ordering::AcqRel, Ordering::Acquire, change).is_ok()
    }

    /// Ends the attempt: nothing that still runs of it may settle the message. Returns what it has done with the message, once.
    pub fn end_attempt(&self) -> AttemptEnd {
        let before = self.0.attempt.fetch_or(OVER, Ordering::AcqRel);
        if before & OVER != 0 {
            return AttemptEnd::NotSent;
        }
        if before & SENT != 0 {
            return AttemptEnd::Sent;
        }
        let letter = match before & ALL_WRITING {
            0 => None,
            _ => self.0.cold.get().and_then(|cold| lock(&cold.dead_letter).take()),
        };
        letter.map_or(AttemptEnd::NotSent, AttemptEnd::Unconfirmed)
    }

    /// The phase that the attempt has reached.
    pub fn phase(&self) -> Phase {
        let index = usize::from(self.0.phase.load(Ordering::Relaxed));
        Phase::ALL.get(index).copied().unwrap_or_default()
    }

    /// Sets the phase that the attempt has reached.
    pub fn mark_phase(&self, phase: Phase) {
        self.0.phase.store(phase as u8, Ordering::Relaxed);
    }

    /// Starts an attempt: sets its number, resets the phase to `handle`, and clears a cancellation of the previous attempt.
    /// Metadata stays.
    pub fn begin_attempt(&self, attempt: u32) {
        self.0.attempt.store(running(attempt), Ordering::Release);
        self.mark_phase(Phase::Handle);
        if self.0.cancelled.load(Ordering::Relaxed) {
            self.0.cancelled.store(false, Ordering::SeqCst);
        }
        if let Some(cold) = self.0.cold.get() {
            // Whatever still runs of the attempt before keeps its cancelled token; this attempt gets a new one.
            lock(&cold.token).take_if(|token| token.is_cancelled());
        }
    }

    /// The letter that is retried or replayed; `None` for a live message.
    pub fn letter(&self) -> Option<Arc<Letter>> {
        self.0.cold.get().and_then(|cold| cold.letter.clone())
    }

    /// The name of the replay operation of this attempt.
    pub fn replay(&self) -> Option<String> {
        self.0.cold.get().and_then(|cold| cold.replay.clone())
    }

    /// The metadata that the handler set, over all attempts so far.
    pub fn metadata(&self) -> BTreeMap<String, String> {
        self.0.cold.get().map_or_else(BTreeMap::new, |cold| lock(&cold.metadata).entries().clone())
    }

    pub(super) fn put_metadata(&self, key: String, value: String) -> Result<(), MetadataFull> {
        lock(&self.cold().metadata).put(key, value)
    }

    /// Returns `true` when the handler sent the message to the dead letters. It is settled then, whatever the handler returns.
    pub fn sent_to_dlq(&self) -> bool {
        self.0.attempt.load(Ordering::Acquire) & SENT != 0
    }

    /// Checks that no other process can have got the message. The engine has checked it before the attempt; a handler that waits
    /// before it does anything, as for a free connection, checks it again (I6): this process may have been stopped meanwhile. The
    /// error [defers](HandlerError::deferred) the attempt, which does not count then.
    ///
    /// ```
    /// use lazaret_core::handler::Delivery;
    /// use lazaret_core::{Message, Position};
    /// let delivery = Delivery::new(Message::new("evt-1", "orders", Position::new(0, 0)));
    /// assert!(delivery.check_owned().is_ok(), "nobody else can get it");
    /// ```
    pub fn check_owned(&self) -> Result<(), HandlerError> {
        match self.0.sink.as_ref().is_none_or(|sink| sink.is_owned()) {
            true => Ok(()),
            false => {
                let why = "another process may have got the message while this one was stopped";
                Err(HandlerError::deferred(why, Duration::ZERO))
            }
        }
    }

    /// The token that is cancelled when the attempt should end. It belongs to the attempt in progress at this call.
    ///
    /// ```
    /// use lazaret_core::handler::Delivery;
    /// use lazaret_core::{Message, Position};
    /// let delivery = Delivery::new(Message::new("evt-1", "orders", Position::new(0, 0)));
    /// let token = delivery.cancellation();
    /// delivery.cancel();
    /// assert!(token.is_cancelled());
    /// ```
    pub fn cancellation(&self) -> CancellationToken {
        let cold = self.cold();
        // Pairs with the fence in `cancel`: either we see its flag, or it sees the cold part and finds our token.
        fence(Ordering::SeqCst);
        let mut slot = lock(&cold.token);
        let token = slot.get_or_insert_with(CancellationToken::new);
        if self.0.cancelled.load(Ordering::SeqCst) {
            token.cancel();
        }
        token.clone()
    }

    /// Cancels the attempt. Cheap when no token was taken.
    pub fn cancel(&self) {
        self.0.cancelled.store(true, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        if let Some(cold) = self.0.cold.get()
            && let Some(token) = &*lock(&cold.token)
        {
            token.cancel();
        }
    }

    /// Returns `true` when the attempt was cancelled.
    pub fn is_cancelled(&self) -> bool {
        self.0.cancelled.load(Ordering::SeqCst)
            || self
                .0
                .cold
                .get()
                .is_some_and(|cold| lock(&cold.token).as_ref().is_some_and(|t| t.is_cancelled()))
    }

    fn cold(&self) -> &Cold {
        self.0.cold.get_or_init(Box::default)
    }
}

impl fmt::Debug for Delivery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // No payload: a delivery is often logged.
        f.debug_struct("Delivery")
            .field("id", &self.message().id)
            .field("stream", &self.message().stream)
            .field("position", &self.message().position)
            .field("attempt", &self.attempt())
            .field("phase", &self.phase())
            .finish_non_exhaustive()
    }
}

/// A panic leaves no partial change under these locks, so a poisoned lock is safe to use.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::{Position, QueueName};
    use jiff::Timestamp;

    fn delivery() -> Delivery {
        Delivery::new(Message::new("m", "s", Position::new(0, 0)).with_payload("secret"))
    }

    #[test]
    fn every_phase_reads_back_as_it_was_marked() {
        let delivery = delivery();
        for phase in Phase::ALL {
            delivery.mark_phase(phase);
            assert_eq!(delivery.phase(), phase);
        }
    }

    #[test]
    fn a_clone_is_the_same_delivery() {
        let delivery = delivery();
        delivery.clone().begin_attempt(7);
        delivery.clone().put_metadata("k".into(), "v".into()).unwrap();
        assert_eq!(delivery.attempt(), 7);
        assert_eq!(delivery.metadata()["k"], "v");
    }

    #[test]
    fn nothing_cold_is_made_until_it_is_asked_for() {
        let delivery = delivery();
        delivery.begin_attempt(2);
        delivery.cancel();
        assert!(delivery.letter().is_none() && delivery.replay().is_none() && delivery.metadata().is_empty());
        assert!(delivery.is_cancelled() && !delivery.sent_to_dlq());
        assert!(delivery.0.cold.get().is_none());
    }

    #[test]
    fn a_token_asked_for_after_the_cancellation_is_cancelled() {
        let delivery = delivery();
        delivery.cancel();
        assert!(delivery.cancellation().is_cancelled());
    }

    #[test]
    fn a_new_attempt_is_not_cancelled_by_the_one_before() {
        let delivery = delivery();
        let first = delivery.cancellation();
        delivery.cancel();
        delivery.begin_attempt(2);
        let second = delivery.cancellation();
        assert!(first.is_cancelled());
        assert!(!second.is_cancelled() && !delivery.is_cancelled());
        delivery.cancel();
        assert!(second.is_cancelled());
    }

    #[test]
    fn a_live_token_is_kept_by_a_new_attempt() {
        let delivery = delivery();
        let token = delivery.cancellation();
        delivery.begin_attempt(2);
        delivery.cancel();
        assert!(token.is_cancelled());
    }

    #[test]
    fn no_cancellation_is_lost_between_two_threads() {
        for _ in 0..200 {
            let delivery = delivery();
            let token = std::thread::scope(|scope| {
                let asking = scope.spawn(|| delivery.cancellation());
                delivery.cancel();
                asking.join().unwrap()
            });
            assert!(token.is_cancelled());
        }
    }

    #[test]
    fn a_delivery_of_a_letter_brings_its_message_unchanged_and_counts_on() {
        // I5
        let message = Message::new("m", "s", Position::new(0, 3)).with_key("").with_header("a", "1");
        let mut letter =
            Letter::new(QueueName::of("c", "c"), "k".into(), message.clone().into(), Timestamp::UNIX_EPOCH);
        letter.attempts = 4;
        let delivery = Delivery::for_letter(Arc::new(letter), None);
        assert_eq!(*delivery.message(), message);
        assert_eq!(delivery.attempt(), 5);
        assert!(delivery.replay().is_none());
    }

    fn letter() -> Letter {
        let message = Message::new("m", "s", Position::new(0, 0));
        Letter::new(QueueName::of("c", "c"), "k".into(), message.into(), Timestamp::UNIX_EPOCH)
    }

    #[test]
    fn the_end_of_an_attempt_returns_the_letter_whose_fate_is_unknown() {
        let delivery = delivery();
        assert!(matches!(delivery.end_attempt(), AttemptEnd::NotSent));
        delivery.begin_attempt(2);
        assert!(delivery.begin_dead_letter(2, letter()));
        assert!(matches!(delivery.end_attempt(), AttemptEnd::Unconfirmed(_)));
        assert!(matches!(delivery.end_attempt(), AttemptEnd::NotSent), "once");
        delivery.begin_attempt(3);
        assert!(delivery.begin_dead_letter(3, letter()));
        delivery.end_dead_letter(3, false);
        assert!(matches!(delivery.end_attempt(), AttemptEnd::NotSent), "it was certainly not written");
    }

    #[test]
    fn a_durable_letter_counts_as_sent_from_the_moment_it_is_known() {
        // No attempt that ends in between finds neither the one nor the other.
        let delivery = delivery();
        assert!(delivery.begin_dead_letter(1, letter()));
        delivery.end_dead_letter(1, true);
        assert!(delivery.sent_to_dlq());
        assert!(matches!(delivery.end_attempt(), AttemptEnd::Sent));
    }

    #[test]
    fn of_two_letters_at_once_the_one_whose_fate_is_unknown_decides() {
        for durable in [false, true] {
            let delivery = delivery();
            assert!(delivery.begin_dead_letter(1, letter()) && delivery.begin_dead_letter(1, letter()));
            delivery.end_dead_letter(1, durable);
            match delivery.end_attempt() {
                AttemptEnd::Unconfirmed(_) => assert!(!durable, "the other one may exist"),
                AttemptEnd::Sent => assert!(durable),
                AttemptEnd::NotSent => panic!("the other one may exist"),
            }
        }
    }

    #[test]
    fn the_answer_to_a_letter_of_an_earlier_attempt_changes_nothing_in_the_next() {
        let delivery = delivery();
        assert!(delivery.begin_dead_letter(1, letter()));
        assert!(matches!(delivery.end_attempt(), AttemptEnd::Unconfirmed(_)));
        delivery.begin_attempt(2);
        delivery.end_dead_letter(1, true);
        assert!(!delivery.mark_sent(1) && !delivery.sent_to_dlq() && delivery.is_running(2));
        assert!(matches!(delivery.end_attempt(), AttemptEnd::NotSent));
    }

    #[test]
    fn what_is_left_of_an_attempt_that_ended_asks_for_no_letter() {
        let delivery = delivery();
        assert!(delivery.is_running(1));
        delivery.end_attempt();
        assert!(!delivery.is_running(1) && !delivery.begin_dead_letter(1, letter()));
        delivery.begin_attempt(2);
        assert!(!delivery.begin_dead_letter(1, letter()), "the next attempt is another one");
        assert!(matches!(delivery.end_attempt(), AttemptEnd::NotSent));
    }

    #[test]
    fn the_debug_form_does_not_show_the_payload() {
        assert!(!format!("{:?}", delivery()).contains("secret"));
    }
}
