//! The events that a consumer reports to its observers.

use std::time::Duration;

use lazaret_core::policy::Limit;
use lazaret_core::store::{ErrorKind, PauseScope};
use lazaret_core::{
    Failure, LetterId, LetterState, Message, Partition, QueueName, Reason, SequenceId, Timestamp, Verdict,
};

/// An event of a consumer. Handled messages are counted and not reported individually.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Event<'a> {
    /// An attempt failed.
    Failed {
        /// The queue.
        queue: &'a QueueName,
        /// The message.
        message: &'a Message,
        /// The letter that was tried; `None` for a live message.
        letter: Option<LetterId>,
        /// The number of the attempt.
        attempt: u32,
        /// The failure.
        failure: &'a Failure,
        /// The classifier's verdict.
        verdict: Verdict,
    },
    /// A retry was scheduled.
    RetryScheduled {
        /// The queue.
        queue: &'a QueueName,
        /// The message.
        message: &'a Message,
        /// The letter that will be tried; `None` for a live message.
        letter: Option<LetterId>,
        /// The due time of the retry.
        due: Timestamp,
        /// `true` if the message waits in memory, `false` if it waits in the store or the broker.
        in_memory: bool,
        /// The reason of the last failure.
        reason: &'a Reason,
    },
    /// A retry started. The event is reported when the attempt ends, because a handler may defer the
    /// attempt: then no retry started.
    RetryStarted {
        /// The queue.
        queue: &'a QueueName,
        /// The number of the attempt.
        attempt: u32,
        /// The time from the due time until the start of the attempt, wherever the message waited.
        lateness: Duration,
    },
    /// A message has no retries left.
    RetryExhausted {
        /// The queue.
        queue: &'a QueueName,
        /// The message.
        message: &'a Message,
        /// The letter that was tried; `None` for a live message.
        letter: Option<LetterId>,
        /// The limit that was reached; `None` if a budget or the poison rule ended the retries.
        limit: Option<Limit>,
        /// The reason of the last failure.
        reason: &'a Reason,
    },
    /// The same failure was repeated too often.
    Poison {
        /// The queue.
        queue: &'a QueueName,
        /// The message.
        message: &'a Message,
        /// The letter that was tried; `None` for a live message.
        letter: Option<LetterId>,
    },
    /// A message became a letter, or a letter was updated after a further attempt.
    LetterStored {
        /// The queue.
        queue: &'a QueueName,
        /// The message.
        message: &'a Message,
        /// The letter.
        letter: LetterId,
        /// The sequence of the letter.
        sequence: &'a SequenceId,
        /// The state of the letter.
        state: LetterState,
        /// The previous state; `None` if the message was not a letter before.
        before: Option<LetterState>,
        /// The cause of the letter; `None` if the letter only waits.
        cause: Option<&'a Failure>,
        /// The operation that replayed the letter, if any.
        replay: Option<&'a str>,
    },
    /// A message was relayed to the broker, which now holds it.
    Relayed {
        /// The queue.
        queue: &'a QueueName,
        /// The message.
        message: &'a Message,
        /// The state of the message: waiting for a retry, or dead.
        state: LetterState,
        /// The failure that led to it.
        cause: Option<&'a Failure>,
    },
    /// A message could not be relayed to the broker. After further attempts it is kept in the store.
    RelayFailed {
        /// The queue.
        queue: &'a QueueName,
        /// The message.
        message: &'a Message,
        /// The error of the relay.
        error: &'a str,
    },
    /// A letter was closed: resolved, evicted or skipped.
    LetterClosed {
        /// The queue.
        queue: &'a QueueName,
        /// The message.
        message: &'a Message,
        /// The letter.
        letter: LetterId,
        /// The state of the letter.
        state: LetterState,
        /// The operation that replayed the letter, if any.
        replay: Option<&'a str>,
    },
    /// The lease of a stored sequence was lost while the sequence ran: the process stalled, or the store
    /// did not answer. Whatever the run did afterwards is not recorded, and the sequence runs again.
    LeaseLost {
        /// The queue.
        queue: &'a QueueName,
        /// The sequence.
        sequence: &'a SequenceId,
    },
    /// A letter could not be stored. The message stays unsettled, and the source waits.
    HandOffFailed {
        /// The queue.
        queue: &'a QueueName,
        /// The kind of the error.
        kind: ErrorKind,
        /// The error of the store.
        error: &'a str,
    },
    /// A message was acknowledged as a known duplicate.
    Duplicate {
        /// The queue.
        queue: &'a QueueName,
        /// The message.
        message: &'a Message,
    },
    /// Open letters expired. The letters behind them are released.
    Expired {
        /// The queue.
        queue: &'a QueueName,
        /// The number of letters.
        letters: u64,
    },
    /// A pause began.
    Paused {
        /// The scope of the pause.
        scope: &'a PauseScope,
        /// The reason for the pause.
        why: &'a str,
    },
    /// A pause ended.
    Resumed {
        /// The scope of the pause.
        scope: &'a PauseScope,
    },
    /// The circuit breaker opened: handler calls are suspended.
    BreakerOpened {
        /// The end of the suspension.
        until: Timestamp,
        /// The failure that opened the breaker.
        failure: &'a Failure,
    },
    /// The circuit breaker closed.
    BreakerClosed,
    /// The fuse blew: the consumer is paused.
    FuseBlown {
        /// The explanation.
        why: &'a str,
    },
    /// A partition was assigned.
    Assigned {
        /// The partition.
        partition: &'a Partition,
    },
    /// The stream of a partition began a new [incarnation](lazaret_core::incarnation). Records that
    /// refer to positions of an earlier incarnation do not apply to its messages.
    IncarnationBegan {
        /// The partition, in its new incarnation.
        partition: &'a Partition,
    },
    /// A partition was revoked.
    Revoked {
        /// The partition.
        partition: &'a Partition,
        /// `true` if the partition was lost without a chance to finish.
        lost: bool,
    },
    /// Positions could not be committed. The commit will be retried.
    CommitFailed {
        /// The error of the source.
        error: &'a str,
    },
}

/// Receives the events of a consumer. The engine's tasks call it, so it must return quickly. A panic in
/// it affects nothing else (I10).
pub trait Observer: Send + Sync + 'static {
    /// Receives an event.
    fn on(&self, event: &Event<'_>);
}

impl<F: Fn(&Event<'_>) + Send + Sync + 'static> Observer for F {
    fn on(&self, event: &Event<'_>) {
        self(event);
    }
}
