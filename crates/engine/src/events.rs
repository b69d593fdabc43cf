//! What observers are told, and the counters that need no observer.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use lazaret_core::policy::Limit;
use lazaret_core::store::{ErrorKind, PauseScope};
use lazaret_core::{
    Failure, LetterState, Message, Partition, QueueName, Reason, SequenceId, Timestamp, Verdict,
};

/// Something that happened. Handled messages are counted, not told one by one.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Event<'a> {
    /// An attempt failed.
    Failed {
        /// In which queue.
        queue: &'a QueueName,
        /// Which message.
        message: &'a Message,
        /// Which attempt it was.
        attempt: u32,
        /// Why.
        failure: &'a Failure,
        /// What the classifier said.
        verdict: Verdict,
    },
    /// The message will be tried again.
    RetryScheduled {
        /// In which queue.
        queue: &'a QueueName,
        /// Which message.
        message: &'a Message,
        /// When.
        due: Timestamp,
        /// Whether it waits in memory, or in the store or the broker.
        in_memory: bool,
        /// Why the last attempt failed.
        reason: &'a Reason,
    },
    /// A retry began this long after its due time, wherever it had waited.
    RetryStarted {
        /// In which queue.
        queue: &'a QueueName,
        /// Which attempt begins.
        attempt: u32,
        /// How late.
        lateness: Duration,
    },
    /// The retries of a message are used up.
    RetryExhausted {
        /// In which queue.
        queue: &'a QueueName,
        /// Which message.
        message: &'a Message,
        /// Which limit ended them; `None` when a budget or the poison rule did.
        limit: Option<Limit>,
        /// Why the last attempt failed.
        reason: &'a Reason,
    },
    /// The same failure came back too often.
    Poison {
        /// In which queue.
        queue: &'a QueueName,
        /// Which message.
        message: &'a Message,
    },
    /// A message became a letter, or a letter was written anew after a further attempt.
    LetterStored {
        /// In which queue.
        queue: &'a QueueName,
        /// Which message.
        message: &'a Message,
        /// In which sequence.
        sequence: &'a SequenceId,
        /// In which state.
        state: LetterState,
        /// In which state it was before; `None` when it was no letter.
        before: Option<LetterState>,
        /// Why it is there; `None` when it only waits.
        cause: Option<&'a Failure>,
        /// The operation that replayed it, if one did.
        replay: Option<&'a str>,
    },
    /// A message was passed on to the broker, which holds it now.
    PassedOn {
        /// In which queue.
        queue: &'a QueueName,
        /// Which message.
        message: &'a Message,
        /// To be tried again, or dead.
        state: LetterState,
        /// Why.
        cause: Option<&'a Failure>,
    },
    /// A message could not be passed on to the broker. It is tried again, and then kept in the store.
    PassingFailed {
        /// In which queue.
        queue: &'a QueueName,
        /// Which message.
        message: &'a Message,
        /// What the relay said.
        error: &'a str,
    },
    /// A letter left: handled at last, given up or skipped.
    LetterClosed {
        /// In which queue.
        queue: &'a QueueName,
        /// Which message.
        message: &'a Message,
        /// In which state.
        state: LetterState,
        /// The operation that replayed it, if one did.
        replay: Option<&'a str>,
    },
    /// A letter could not be stored. The message stays, the source waits.
    HandOffFailed {
        /// In which queue.
        queue: &'a QueueName,
        /// What kind of trouble it is.
        kind: ErrorKind,
        /// What the store said.
        error: &'a str,
    },
    /// A known duplicate was acknowledged.
    Duplicate {
        /// In which queue.
        queue: &'a QueueName,
        /// Which message.
        message: &'a Message,
    },
    /// The time of open letters ran out; those behind them are released.
    Expired {
        /// In which queue.
        queue: &'a QueueName,
        /// How many.
        letters: u64,
    },
    /// Something was paused.
    Paused {
        /// What.
        scope: &'a PauseScope,
        /// Why.
        why: &'a str,
    },
    /// A pause ended.
    Resumed {
        /// What goes on.
        scope: &'a PauseScope,
    },
    /// The breaker opened: no attempts until then.
    BreakerOpened {
        /// Until when.
        until: Timestamp,
    },
    /// The breaker closed.
    BreakerClosed,
    /// The fuse blew: the consumer is paused.
    FuseBlown {
        /// Why.
        why: &'a str,
    },
    /// A partition came.
    Assigned {
        /// Which one.
        partition: &'a Partition,
    },
    /// A partition went.
    Revoked {
        /// Which one.
        partition: &'a Partition,
        /// Whether it was taken without asking.
        lost: bool,
    },
    /// Positions could not be committed. They will be tried again.
    CommitFailed {
        /// What the source said.
        error: &'a str,
    },
}

/// Is told what happens. Called from the engine's tasks: it must be quick. A panic in it hurts nobody (I10).
pub trait Observer: Send + Sync + 'static {
    /// Something happened.
    fn on(&self, event: &Event<'_>);
}

impl<F: Fn(&Event<'_>) + Send + Sync + 'static> Observer for F {
    fn on(&self, event: &Event<'_>) {
        self(event);
    }
}

/// Tells events to whoever listens.
#[derive(Clone, Default)]
pub(crate) struct Observers(Arc<[Arc<dyn Observer>]>);

impl Observers {
    pub(crate) fn new(observers: Vec<Arc<dyn Observer>>) -> Self {
        Self(observers.into())
    }

    pub(crate) fn tell(&self, event: &Event<'_>) {
        for observer in self.0.iter() {
            // I10: an observer that panics loses its own event and nothing else.
            let _ = catch_unwind(AssertUnwindSafe(|| observer.on(event)));
        }
    }
}

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident),+ $(,)?) => {
        /// Live counters of a consumer.
        #[derive(Debug, Default)]
        pub(crate) struct Counters { $(pub(crate) $name: AtomicU64),+ }

        /// What a consumer has done so far.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct Stats { $($(#[$doc])* pub $name: u64),+ }

        impl Counters {
            pub(crate) fn read(&self) -> Stats {
                Stats { $($name: self.$name.load(Ordering::Relaxed)),+ }
            }
        }
    };
}

counters! {
    /// Messages that a handler took, live or from the store.
    handled,
    /// Messages that a filter did not want.
    filtered,
    /// Attempts that failed.
    failed,
    /// Attempts after the first.
    retries,
    /// Messages that became letters.
    handed_off,
    /// Messages appended behind an open sequence.
    appended,
    /// Messages that were known already.
    duplicates,
    /// Letters that were handled at last.
    resolved,
    /// Messages that were skipped with a trace.
    skipped,
    /// Store calls for hand-off that failed.
    hand_off_failures,
    /// Messages that were passed on to the broker.
    passed_on,
    /// Calls to pass a message on that failed.
    passing_failures,
    /// Commits that succeeded.
    commits,
    /// Messages read from the source.
    read,
}

impl Counters {
    pub(crate) fn add(counter: &AtomicU64, n: u64) {
        counter.fetch_add(n, Ordering::Relaxed);
    }
}
