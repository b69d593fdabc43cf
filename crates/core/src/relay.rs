//! Passes failed messages on to a broker that holds them: retry topics and a dead-letter topic.
//!
//! With the strategy `topics` it is the broker, and not the store, that keeps what failed. The engine knows no broker. It
//! hands each failed message to a [`Relay`], and takes it for settled when the relay says that it is durable (I1). When its
//! time has come, the source brings the message back, as it was, with a [`Hop`] that says what is known of its attempts.

use std::error::Error as StdError;
use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;

use crate::failure::Failure;
use crate::letter::Letter;
use crate::message::{MessageId, Partition, Position, QueueName, StreamName};

/// A failed message on its way to the broker.
#[derive(Clone, Copy, Debug)]
pub struct Handover<'a> {
    /// The message with all that is known of its failures, as the letter that it would be in a store. When it is to be tried
    /// again, `due_at` says when.
    pub letter: &'a Letter,
    /// How often in a row it failed in the same way.
    pub same_failure: u32,
    /// How long messages wait that failed as often as this one, before jitter. Messages with the same one may wait in line.
    pub usual_delay: Duration,
    /// The partition that the message came from, now. Its position counts as settled when the handover is durable.
    pub from: &'a Partition,
    /// Its offset there.
    pub offset: u64,
}

impl Handover<'_> {
    /// The same for every copy of this handover: a copy that was sent again because nobody knew whether the first one had
    /// arrived, or because the process died before the position was committed. Whoever gets both keeps one.
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

/// What is known of a message that was passed on and comes back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hop {
    /// The stream that it comes on now.
    pub stream: StreamName,
    /// Its position there.
    pub position: Position,
    /// Whose attempts failed: it comes back to this component alone.
    pub queue: QueueName,
    /// Automatic attempts so far.
    pub attempts: u32,
    /// Attempts of these that ended with the death of the process.
    pub crashes: u32,
    /// When it first failed.
    pub first_failed_at: Timestamp,
    /// When it last failed.
    pub last_failed_at: Timestamp,
    /// How it failed last.
    pub failure: Failure,
    /// How often in a row it failed in the same way.
    pub same_failure: u32,
    /// When it may be tried again (I12).
    pub due_at: Timestamp,
    /// Whether a copy of the same handover was delivered before, since the partition was assigned.
    pub twin: bool,
}

impl Hop {
    /// The partition that it comes from now.
    pub fn partition(&self) -> Partition {
        Partition { stream: self.stream.clone(), index: self.position.partition }
    }
}

/// A broker that holds failed messages.
///
/// Neither call says `Ok` before what it says would survive the broker's and the consumer's death. Both may be called again
/// for the same message and attempt: that makes at most another copy with the same [id](Handover::id).
#[async_trait]
pub trait Relay: Send + Sync + 'static {
    /// Makes it durable that the message is to be tried again, not before its due time.
    async fn retry(&self, handover: Handover<'_>) -> Result<(), RelayError>;

    /// Makes it durable that the message is dead, and why.
    async fn dead(&self, handover: Handover<'_>) -> Result<(), RelayError>;

    /// Says in the broker that a dead message is too large for it and is kept in the store as a letter: a small record in its
    /// place. Called when the letter is durable; nothing is lost when it fails.
    async fn claim(&self, handover: Handover<'_>) -> Result<(), RelayError> {
        let _ = handover;
        Ok(())
    }

    /// Whether messages that were passed on may still come back to this consumer. A consumer that ends when there is nothing
    /// left to do asks for it.
    fn is_expecting(&self) -> bool {
        false
    }
}

/// What kind of trouble a relay has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RelayTrouble {
    /// It may pass: try again, then fall back on the store.
    Temporary,
    /// It does not pass by itself: fall back on the store at once.
    Permanent,
    /// The broker does not take a message of this size, not even without what may be left out.
    TooLarge,
    /// Somebody else took over the work of this consumer (I6).
    Fenced,
}

/// Why a message could not be passed on. It may have been all the same, unless the error says that it was not.
#[derive(Debug)]
pub struct RelayError {
    trouble: RelayTrouble,
    maybe_done: bool,
    context: String,
    source: Option<Box<dyn StdError + Send + Sync>>,
}

impl RelayError {
    /// Nothing was passed on.
    pub fn not_done(trouble: RelayTrouble, context: impl Into<String>) -> Self {
        Self { trouble, maybe_done: false, context: context.into(), source: None }
    }

    /// Nobody knows whether it was passed on.
    pub fn maybe_done(trouble: RelayTrouble, context: impl Into<String>) -> Self {
        Self { trouble, maybe_done: true, context: context.into(), source: None }
    }

    /// The same error with the driver's error underneath.
    #[must_use]
    pub fn with_source(mut self, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// What kind of trouble it is.
    pub const fn trouble(&self) -> RelayTrouble {
        self.trouble
    }

    /// Whether the message may have been passed on all the same.
    pub const fn is_maybe_done(&self) -> bool {
        self.maybe_done
    }
}

impl fmt::Display for RelayError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "failed to pass a message on: {}", self.context)
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
        }));
        assert_eq!(message.place(), (&"orders.mail.retry.1m".into(), &Position::new(1, 2)));
        // I5: what the handler sees and a letter keeps is the place where it came on.
        assert_eq!(message.partition(), Partition::new("orders", 3));
        let text = serde_json::to_string(&message).unwrap();
        assert!(!text.contains("retry.1m"), "{text}");
    }
}
