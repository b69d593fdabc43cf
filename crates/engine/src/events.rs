//! The events that a consumer reports to its observers.

use std::time::Duration;

use lazaret_core::policy::Limit;
use lazaret_core::store::{ErrorKind, PauseScope};
use lazaret_core::{
    Failure, LetterId, LetterState, Message, Partition, QueueName, Reason, SequenceId, Timestamp, Verdict,
};

/// An event of a consumer. Handled messages are counted, not reported one by one.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Event<'a> {
    /// An attempt failed.
    Failed {
        /// In which queue.
        queue: &'a QueueName,
        /// Which message.
        message: &'a Message,
        /// The letter that was tried; `None` for a live message.
        letter: Option<LetterId>,
        /// Which attempt it was.
        attempt: u32,
        /// Why.
        failure: &'a Failure,
        /// The classifier's verdict.
        verdict: Verdict,
    },
    /// The message will be tried again.
    RetryScheduled {
        /// In which queue.
        queue: &'a QueueName,
        /// Which message.
        message: &'a Message,
        /// The letter that will be tried; `None` for a live message.
        letter: Option<LetterId>,
        /// The time of the attempt.
        due: Timestamp,
        /// `true` when it waits in memory, `false` when it waits in the store or the broker.
        in_memory: bool,
        /// Why the last attempt failed.
        reason: &'a Reason,
    },
    /// A retry started; `lateness` is the time from when it was due until then, wherever it waited. Reported when the attempt
    /// ends: a handler may have deferred it, and then no retry started.
    RetryStarted {
        /// In which queue.
        queue: &'a QueueName,
        /// Which attempt it is.
        attempt: u32,
        /// The time from when it was due until it started.
        lateness: Duration,
    },
    /// The retries of a message are used up.
    RetryExhausted {
        /// In which queue.
        queue: &'a QueueName,
        /// Which message.
        message: &'a Message,
        /// The letter that was tried; `None` for a live message.
        letter: Option<LetterId>,
        /// Which limit ended them; `None` when a budget or the poison rule did.
        limit: Option<Limit>,
        /// Why the last attempt failed.
        reason: &'a Reason,
    },
    /// The same failure was repeated too often.
    Poison {
        /// In which queue.
        queue: &'a QueueName,
        /// Which message.
        message: &'a Message,
        /// The letter that was tried; `None` for a live message.
        letter: Option<LetterId>,
    },
    /// A message became a letter, or a letter was updated after a further attempt.
    LetterStored {
        /// In which queue.
        queue: &'a QueueName,
        /// Which message.
        message: &'a Message,
        /// Which letter.
        letter: LetterId,
        /// In which sequence.
        sequence: &'a SequenceId,
        /// In which state.
        state: LetterState,
        /// Its state before; `None` when it was no letter.
        before: Option<LetterState>,
        /// Its cause; `None` when it only waits.
        cause: Option<&'a Failure>,
        /// The operation that replayed it, if one did.
        replay: Option<&'a str>,
    },
    /// A message was relayed to the broker, which holds it now.
    Relayed {
        /// In which queue.
        queue: &'a QueueName,
        /// Which message.
        message: &'a Message,
        /// To be tried again, or dead.
        state: LetterState,
        /// Why.
        cause: Option<&'a Failure>,
    },
    /// A message could not be relayed to the broker. It is tried again, and then kept in the store.
    RelayFailed {
        /// In which queue.
        queue: &'a QueueName,
        /// Which message.
        message: &'a Message,
        /// The error of the relay.
        error: &'a str,
    },
    /// A letter was closed: resolved, evicted or skipped.
    LetterClosed {
        /// In which queue.
        queue: &'a QueueName,
        /// Which message.
        message: &'a Message,
        /// Which letter.
        letter: LetterId,
        /// In which state.
        state: LetterState,
        /// The operation that replayed it, if one did.
        replay: Option<&'a str>,
    },
    /// The lease of a stored sequence was lost while it was run: the process stalled, or the store did not answer. What the run
    /// did since then is not recorded, and the sequence runs again.
    LeaseLost {
        /// In which queue.
        queue: &'a QueueName,
        /// Which sequence.
        sequence: &'a SequenceId,
    },
    /// A letter could not be stored. The message stays unsettled, the source waits.
    HandOffFailed {
        /// In which queue.
        queue: &'a QueueName,
        /// The kind of the error.
        kind: ErrorKind,
        /// The error of the store.
        error: &'a str,
    },
    /// A known duplicate was acknowledged.
    Duplicate {
        /// In which queue.
        queue: &'a QueueName,
        /// Which message.
        message: &'a Message,
    },
    /// Open letters expired; those behind them are released.
    Expired {
        /// In which queue.
        queue: &'a QueueName,
        /// The number of letters.
        letters: u64,
    },
    /// Something was paused.
    Paused {
        /// The scope of the pause.
        scope: &'a PauseScope,
        /// Why.
        why: &'a str,
    },
    /// A pause ended.
    Resumed {
        /// The scope of the pause.
        scope: &'a PauseScope,
    },
    /// The circuit breaker opened: handler calls are suspended until then.
    BreakerOpened {
        /// Until when.
        until: Timestamp,
        /// The failure that opened it.
        failure: &'a Failure,
    },
    /// The circuit breaker closed.
    BreakerClosed,
    /// The fuse blew: the consumer is paused.
    FuseBlown {
        /// Why.
        why: &'a str,
    },
    /// A partition was assigned.
    Assigned {
        /// Which one.
        partition: &'a Partition,
    },
    /// The stream of a partition began a new [incarnation](lazaret_core::incarnation): what was known by position in an earlier one
    /// says nothing about its messages.
    IncarnationBegan {
        /// The partition, in its new incarnation.
        partition: &'a Partition,
    },
    /// A partition was revoked.
    Revoked {
        /// Which one.
        partition: &'a Partition,
        /// `true` when it was lost without a chance to finish.
        lost: bool,
    },
    /// Positions could not be committed. The commit will be retried.
    CommitFailed {
        /// The error of the source.
        error: &'a str,
    },
}

/// Receives the events of a consumer. Called from the engine's tasks: it must return quickly. A panic in it affects nothing
/// else (I10).
pub trait Observer: Send + Sync + 'static {
    /// Receives an event.
    fn on(&self, event: &Event<'_>);
}

impl<F: Fn(&Event<'_>) + Send + Sync + 'static> Observer for F {
    fn on(&self, event: &Event<'_>) {
        self(event);
    }
}
