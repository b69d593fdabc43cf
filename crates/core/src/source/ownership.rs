//! How long a partition is certainly owned.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::clock::{Clock, SystemClock};

/// How long the partitions of an assignment are certainly owned: no other process can have got them before that time (I6).
///
/// A process may be stopped, or its machine suspended, for longer than its coordinator waits for a sign of life. It does not
/// notice that, and others take over meanwhile. So a source whose partitions others can take says in each
/// [`Assignment`](super::Assignment) how long it is sure, and the engine starts an attempt only in that time. From then on it
/// waits until the source has asked its coordinator, or reports that the partition is lost.
///
/// A source makes one for each membership, lease or session, and passes its clones on. It is confirmed with the time *before*
/// the coordinator was asked, and [ended](Self::end) as soon as the partitions may belong to another process.
///
/// ```
/// use std::time::Duration;
/// use lazaret_core::source::Ownership;
///
/// let ownership = Ownership::leased();
/// assert!(!ownership.is_certain(), "nobody has been asked");
/// let asked = ownership.now();
/// // Here the coordinator answers.
/// ownership.confirm(asked, Duration::from_secs(30));
/// assert!(ownership.is_certain());
/// ownership.end();
/// ownership.confirm(asked, Duration::from_secs(30));
/// assert!(!ownership.is_certain(), "a later one is another");
/// assert!(Ownership::default().is_certain(), "nobody else can take the partition");
/// ```
#[derive(Clone, Default)]
pub struct Ownership(Option<Arc<Shared>>);

struct Shared {
    clock: Arc<dyn Clock>,
    /// Until when it is certain, in nanoseconds of the [steady](Clock::steady) time. Read for every message.
    until: AtomicU64,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    ended: bool,
    /// Cancelled at the next change, if somebody waits for it.
    changed: Option<CancellationToken>,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        // Each change is one step.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Ownership {
    /// One that lasts as long as it is confirmed by the machine's clock. Not certain yet.
    pub fn leased() -> Self {
        Self::leased_by(Arc::new(SystemClock))
    }

    /// One that lasts as long as it is confirmed by this clock. Not certain yet.
    pub fn leased_by(clock: Arc<dyn Clock>) -> Self {
        Self(Some(Arc::new(Shared { clock, until: AtomicU64::new(0), state: Mutex::default() })))
    }

    /// The time by which it is confirmed.
    pub fn now(&self) -> Duration {
        self.0.as_ref().map_or(Duration::ZERO, |shared| shared.clock.steady())
    }

    /// Confirms it for this long from the time at which the coordinator was asked. Ignored after the end.
    pub fn confirm(&self, asked: Duration, lasts: Duration) {
        let Some(shared) = &self.0 else { return };
        let mut state = shared.state();
        if !state.ended {
            shared.until.fetch_max(nanos(asked.saturating_add(lasts)), Ordering::AcqRel);
            notify(&mut state);
        }
    }

    /// Ends it for good: others may own the partitions.
    pub fn end(&self) {
        let Some(shared) = &self.0 else { return };
        let mut state = shared.state();
        state.ended = true;
        shared.until.store(0, Ordering::Release);
        notify(&mut state);
    }

    /// Returns `true` while no other process can have got the partitions.
    #[inline]
    pub fn is_certain(&self) -> bool {
        match &self.0 {
            None => true,
            Some(shared) => nanos(shared.clock.steady()) < shared.until.load(Ordering::Acquire),
        }
    }

    /// How long it is still certain.
    pub fn remaining(&self) -> Duration {
        self.0.as_ref().map_or(Duration::MAX, |shared| {
            let until = Duration::from_nanos(shared.until.load(Ordering::Acquire));
            until.saturating_sub(shared.clock.steady())
        })
    }

    /// Waits until it is certain. Never returns after the end.
    pub async fn confirmed(&self) {
        let Some(shared) = &self.0 else { return };
        while !self.is_certain() {
            let changed = {
                let mut state = shared.state();
                state.changed.get_or_insert_default().clone()
            };
            // Otherwise nobody would wake it after a confirmation in between.
            if self.is_certain() {
                return;
            }
            changed.cancelled().await;
        }
    }
}

fn notify(state: &mut State) {
    if let Some(changed) = state.changed.take() {
        changed.cancel();
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Two are equal if they are clones of one, or if neither can end.
impl PartialEq for Ownership {
    fn eq(&self, other: &Self) -> bool {
        match (&self.0, &other.0) {
            (Some(one), Some(other)) => Arc::ptr_eq(one, other),
            (one, other) => one.is_none() && other.is_none(),
        }
    }
}

impl Eq for Ownership {}

impl fmt::Debug for Ownership {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            None => f.write_str("Permanent"),
            Some(_) => f.debug_tuple("Leased").field(&self.remaining()).finish(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Waker};

    use jiff::Timestamp;

    use super::*;

    #[derive(Default)]
    struct Stepped(Mutex<Duration>);

    impl Clock for Stepped {
        fn now(&self) -> Timestamp {
            Timestamp::UNIX_EPOCH
        }

        fn steady(&self) -> Duration {
            *self.0.lock().unwrap()
        }
    }

    #[test]
    fn it_is_certain_for_as_long_as_it_was_confirmed_from_the_question_on() {
        // I6
        let clock = Arc::new(Stepped::default());
        let at = |second| *clock.0.lock().unwrap() = Duration::from_secs(second);
        let ownership = Ownership::leased_by(clock.clone());
        at(10);
        let asked = ownership.now();
        at(25);
        ownership.confirm(asked, Duration::from_secs(30));
        assert!(ownership.is_certain());
        assert_eq!(ownership.remaining(), Duration::from_secs(15), "the answer took long");
        // An answer that was overtaken by a later one.
        ownership.confirm(Duration::ZERO, Duration::from_secs(30));
        assert_eq!(ownership.remaining(), Duration::from_secs(15));
        at(40);
        assert!(!ownership.is_certain());
    }

    #[test]
    fn whoever_waits_goes_on_after_a_confirmation_and_never_after_the_end() {
        let ownership = Ownership::leased_by(Arc::new(Stepped::default()));
        let mut context = Context::from_waker(Waker::noop());
        let mut waiting = pin!(ownership.confirmed());
        assert!(waiting.as_mut().poll(&mut context).is_pending());
        ownership.confirm(Duration::ZERO, Duration::ZERO);
        assert!(waiting.as_mut().poll(&mut context).is_pending(), "too late");
        ownership.confirm(Duration::ZERO, Duration::from_secs(1));
        assert!(waiting.as_mut().poll(&mut context).is_ready());
        ownership.end();
        let mut waiting = pin!(ownership.confirmed());
        assert!(waiting.as_mut().poll(&mut context).is_pending());
        ownership.confirm(Duration::ZERO, Duration::from_secs(1));
        assert!(waiting.as_mut().poll(&mut context).is_pending());
    }
}
