//! Publishes failed messages to a broker that holds them: retry topics and a dead-letter topic.
//!
//! With the strategy `topics` the broker, not the store, keeps failed messages. The engine hands each one to a [`Relay`], and it
//! is settled once the relay has confirmed that it is durable (I1). When it is due, the source redelivers the message
//! unchanged, with a [`Hop`] that carries its attempts so far.

use std::error::Error as StdError;
use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;

use crate::failure::Failure;
use crate::letter::Letter;
use crate::message::{MessageId, Partition, Position, QueueName, StreamName};

/// A failed message for the broker.
#[derive(Clone, Copy, Debug)]
pub struct Handover<'a> {
    /// The message and its failures, as the letter that it would be in a store. `due_at` is the time of its next attempt, if
    /// there is one.
    pub letter: &'a Letter,
    /// The number of consecutive failures of the same kind.
    pub same_failure: u32,
    /// The delay after this many attempts, before jitter. Messages with the same one may wait in line.
    pub usual_delay: Duration,
    /// The partition that the message came from, now. Its position counts as settled when the handover is durable.
    pub from: &'a Partition,
    /// Its offset there.
    pub offset: u64,
}

impl Handover<'_> {
    /// Returns the same id for every copy of this handover: one that was sent again because the outcome of the first was
    /// unknown, or because the process crashed before the position was committed. A receiver of both keeps one.
    pub fn id(&self) -> String {
        handover_id(&self.letter.queue, &self.letter.message.id, self.letter.attempts)
    }
}

/// The [id](Handover::id) of the handover of a message by one component after so many attempts.
///
/// ```
/// use lazaret_core::relay::handover_id;
/// assert_eq!(handover_id(&"orders/mail".into(), &"evt-1".into(), 2), "mail/evt-1#2");
/// ```
pub fn handover_id(queue: &QueueName, message: &MessageId, attempts: u32) -> String {
    format!("{}/{message}#{attempts}", queue.component())
}

/// The attempts so far of a message that was published and is redelivered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hop {
    /// The stream that it comes from now.
    pub stream: StreamName,
    /// Its position there.
    pub position: Position,
    /// The component whose attempts failed: it is redelivered to this one alone.
    pub queue: QueueName,
    /// Automatic attempts so far.
    pub attempts: u32,
    /// Attempts of these that ended with a crash of the process.
    pub crashes: u32,
    /// When it first failed.
    pub first_failed_at: Timestamp,
    /// When it last failed.
    pub last_failed_at: Timestamp,
    /// Its last failure.
    pub failure: Failure,
    /// The number of consecutive failures of the same kind.
    pub same_failure: u32,
    /// When its next attempt is due (I12).
    pub due_at: Timestamp,
    /// `true` when a copy of the same handover was delivered before, since the partition was assigned.
    pub twin: bool,
    /// `true` when another message with the same id was delivered before: the source gave this one an id of its own.
    pub conflict: bool,
}

impl Hop {
    /// The partition that it comes from now.
    pub fn partition(&self) -> Partition {
        self.position.partition_of(&self.stream)
    }
}

/// A broker that holds failed messages.
///
/// A call returns `Ok` only when its effect survives a crash of the broker and of the consumer. A call may be repeated for the
/// same message and attempt: that makes at most another copy with the same [id](Handover::id).
#[async_trait]
pub trait Relay: Send + Sync + 'static {
    /// Schedules the message durably for another attempt, not before its due time.
    async fn retry(&self, handover: Handover<'_>) -> Result<(), RelayError>;

    /// Records durably that the message is dead, and its cause.
    async fn dead(&self, handover: Handover<'_>) -> Result<(), RelayError>;

    /// Publishes a small record in place of a dead message that is too large for the broker and is kept in the store as a letter.
    /// Called when the letter is durable; nothing is lost when it fails.
    async fn claim(&self, handover: Handover<'_>) -> Result<(), RelayError> {
        let _ = handover;
        Ok(())
    }

    /// Returns whether published messages may still be redelivered to this consumer. A consumer that runs until idle waits for
    /// them.
    fn is_expecting(&self) -> bool {
        false
    }
}

/// The kind of a [`RelayError`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RelayErrorKind {
    /// Temporary: retry, then fall back to the store.
    Temporary,
    /// Permanent: fall back to the store at once.
    Permanent,
    /// The broker rejects a message of this size, even without its optional parts.
    TooLarge,
    /// Another instance took over the work of this consumer (I6).
    Fenced,
}

/// The error of a message that could not be published. It may have been published all the same, see
/// [`not_done`](Self::not_done) and [`maybe_done`](Self::maybe_done).
#[derive(Debug)]
pub struct RelayError {
    kind: RelayErrorKind,
    maybe_done: bool,
    context: String,
    source: Option<Box<dyn StdError + Send + Sync>>,
}

impl RelayError {
    /// Nothing was published.
    pub fn not_done(kind: RelayErrorKind, context: impl Into<String>) -> Self {
        Self { kind, maybe_done: false, context: context.into(), source: None }
    }

    /// The outcome is unknown: it may have been published.
    pub fn maybe_done(kind: RelayErrorKind, context: impl Into<String>) -> Self {
        Self { kind, maybe_done: true, context: context.into(), source: None }
    }

    /// The same error with the driver's error underneath.
    #[must_use]
    pub fn with_source(mut self, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// The kind of the error.
    pub const fn kind(&self) -> RelayErrorKind {
        self.kind
    }

    /// Returns `true` when the message may have been published all the same.
    pub const fn is_maybe_done(&self) -> bool {
        self.maybe_done
    }
}

impl fmt::Display for RelayError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "failed to publish a message: {}", self.context)
    }
}

impl StdError for RelayError {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.source.as_deref().map(|source| source as &(dyn StdError + 'static))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::Message;

    #[test]
    fn copies_of_one_handover_have_one_id_and_attempts_have_their_own() {
        // I8
        let message = Arc::new(Message::new("evt-1", "orders", Position::new(0, 7)));
        let mut letter = Letter::new(QueueName::of("a", "a"), "s".into(), message, Timestamp::UNIX_EPOCH);
        let from = Partition::new("orders", 0);
        let id = |letter: &Letter, offset| {
            Handover { letter, same_failure: 1, usual_delay: Duration::ZERO, from: &from, offset }.id()
        };
        letter.attempts = 1;
        let first = id(&letter, 7);
        assert_eq!(first, id(&letter, 8));
        letter.attempts = 2;
        assert_ne!(first, id(&letter, 7));
    }

    #[test]
    fn a_message_that_was_passed_on_has_a_place_of_its_own() {
        let mut message = Message::new("evt-1", "orders", Position::new(3, 7));
        assert_eq!(message.place(), (&"orders".into(), &Position::new(3, 7)));
        message.hop = Some(Box::new(Hop {
            stream: "orders.mail.retry.1m".into(),
            position: Position::new(1, 2),
            queue: QueueName::of("mail", "mail"),
            attempts: 1,
            crashes: 0,
            first_failed_at: Timestamp::UNIX_EPOCH,
            last_failed_at: Timestamp::UNIX_EPOCH,
            failure: Failure::new(crate::Reason::TIMEOUT, "E", "no"),
            same_failure: 1,
            due_at: Timestamp::UNIX_EPOCH,
            twin: false,
            conflict: false,
        }));
        assert_eq!(message.place(), (&"orders.mail.retry.1m".into(), &Position::new(1, 2)));
        // I5: what the handler sees and a letter keeps is the place where it came on.
        assert_eq!(message.partition(), Partition::new("orders", 3));
        let text = serde_json::to_string(&message).unwrap();
        assert!(!text.contains("retry.1m"), "{text}");
    }
}
