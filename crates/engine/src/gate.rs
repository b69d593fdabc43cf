//! The gate: pauses, the circuit breaker, and store outages.
//!
//! It owns every reason to suspend attempts. Healthy traffic reads one flag and takes the lock only if
//! the flag is set.

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lazaret_core::policy::{Admit, Breaker, BreakerPolicy, BreakerState, DiskSpace};
use lazaret_core::store::{ErrorKind, Pause, PauseScope, StoreError};
use lazaret_core::{Message, Partition, SequenceId, Timestamp};
use tokio::sync::Notify;

/// The name of the limit for a store whose disk or quota is full.
const FULL_DISK: &str = "disk";

/// The name of the limit for a disk on which only the reserve is free.
pub(crate) const MIN_FREE: &str = "min-free";

/// Holds every reason to suspend attempts.
#[derive(Debug)]
pub(crate) struct Gate {
    /// `true` while a pause is in effect or the breaker is not closed.
    shut: AtomicBool,
    /// The time of the last success, in nanoseconds since 1970.
    last_success: AtomicI64,
    /// The time for which a success proves that the dependencies respond.
    trust: Duration,
    /// The number of callers that wait for the store.
    store_outages: AtomicUsize,
    /// The last error of the store during the outage.
    outage_cause: Mutex<Option<OutageCause>>,
    state: Mutex<State>,
    changed: Arc<Changes>,
}

#[derive(Debug)]
struct State {
    pauses: Vec<Pause>,
    /// Pauses that are in effect but not yet written to the store.
    unstored: Vec<Pause>,
    /// The numbers of the last query for pauses and of the last one that was answered.
    asked: u64,
    answered: u64,
    /// The first query whose answer is valid. Earlier answers may lack a pause that was written
    /// meanwhile.
    valid_from: u64,
    breaker: Option<Breaker>,
}

/// The gate's answer to an attempt.
#[derive(Debug)]
pub(crate) enum Entry {
    /// The attempt may start.
    Go(Pass),
    /// The sequence is paused. The message should wait in the store.
    HoldInStore,
    /// The attempt may not start. `Some` is the time at which to ask again at the latest.
    Wait(Option<Timestamp>),
}

/// The health of the handler's dependencies, as shown by an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Health {
    /// The dependencies respond.
    Up,
    /// The dependencies are unavailable or fail.
    Down,
    /// The health is unknown: the attempt did not call the dependencies.
    Unknown,
}

/// The reason why the store does not accept letters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OutageCause {
    /// The limit that is reached, if a limit is the reason.
    pub(crate) limit: Option<&'static str>,
    /// The description of the error.
    pub(crate) why: String,
}

/// The permission for one attempt. Report the end of the attempt with it. Dropping it means that the
/// attempt was cancelled.
#[derive(Debug)]
pub(crate) struct Pass {
    probe_of: Option<Arc<Gate>>,
}

impl Gate {
    pub(crate) fn new(breaker: Option<BreakerPolicy>) -> Self {
        Self {
            shut: AtomicBool::new(false),
            last_success: AtomicI64::new(i64::MIN),
            trust: breaker.as_ref().map_or(Duration::ZERO, |breaker| breaker.open_for),
            store_outages: AtomicUsize::new(0),
            outage_cause: Mutex::new(None),
            state: Mutex::new(State {
                pauses: Vec::new(),
                unstored: Vec::new(),
                asked: 0,
                answered: 0,
                valid_from: 0,
                breaker: breaker.map(Breaker::new),
            }),
            changed: Arc::default(),
        }
    }

    /// Returns `true` if attempts may start without checking pauses and breaker.
    pub(crate) fn is_open(&self) -> bool {
        !self.shut.load(Ordering::Acquire)
    }

    /// Watches for changes from now on. Call it before reading the state.
    pub(crate) fn watch(&self) -> Watcher {
        Watcher { seen: self.changed.version.load(Ordering::Acquire), changes: self.changed.clone() }
    }

    /// Returns the answer to an attempt at a live message.
    pub(crate) fn enter(self: &Arc<Self>, message: &Message, sequence: &SequenceId, now: Timestamp) -> Entry {
        if self.is_open() {
            return Entry::Go(Pass::free());
        }
        let mut state = self.lock();
        for pause in &state.pauses {
            match &pause.scope {
                PauseScope::Consumer => return Entry::Wait(None),
                PauseScope::Stream(stream) if *stream == message.stream => return Entry::Wait(None),
                PauseScope::Partition(p)
                    if p.index == message.position.partition && p.stream == message.stream =>
                {
                    return Entry::Wait(None);
                }
                PauseScope::Sequence(paused) if paused == sequence => return Entry::HoldInStore,
                _ => {}
            }
        }
        self.ask_breaker(&mut state, now)
    }

    fn ask_breaker(self: &Arc<Self>, state: &mut State, now: Timestamp) -> Entry {
        match state.breaker.as_mut().map_or(Admit::Yes, |breaker| breaker.admit(now)) {
            Admit::Yes => Entry::Go(Pass::free()),
            Admit::Probe => Entry::Go(Pass::probe_of(self)),
            Admit::No { until } => Entry::Wait(Some(until)),
        }
    }

    /// Checks that letters may be claimed now. `Err` says when to ask again at the latest.
    ///
    /// Pauses of streams and partitions hold only live messages. The store holds paused sequences.
    pub(crate) fn allows_stored(&self, replay: bool, now: Timestamp) -> Result<(), Option<Timestamp>> {
        let state = self.lock();
        if state.holds_stored(replay) {
            return Err(None);
        }
        // Letters claimed while all probes are in flight would be released at once and claimed again.
        match state.breaker.as_ref().and_then(|breaker| breaker.holds_until(now)) {
            Some(until) => Err(Some(until)),
            None => Ok(()),
        }
    }

    /// Returns the answer to an attempt at a letter.
    pub(crate) fn enter_stored(self: &Arc<Self>, replay: bool, now: Timestamp) -> Entry {
        if self.is_open() && !replay {
            return Entry::Go(Pass::free());
        }
        let mut state = self.lock();
        if state.holds_stored(replay) {
            return Entry::Wait(None);
        }
        self.ask_breaker(&mut state, now)
    }

    /// Returns `true` if the source may deliver messages of this partition.
    pub(crate) fn admits_partition(&self, partition: &Partition) -> bool {
        self.is_open()
            || !self.lock().pauses.iter().any(|pause| match &pause.scope {
                PauseScope::Consumer => true,
                PauseScope::Stream(stream) => *stream == partition.stream,
                PauseScope::Partition(paused) => paused.has_place_of(partition),
                PauseScope::Sequence(_) | PauseScope::Replay => false,
            })
    }

    /// Returns the current pauses.
    pub(crate) fn pauses(&self) -> Vec<Pause> {
        self.lock().pauses.clone()
    }

    /// Returns the state of the breaker, or `None` if there is no breaker.
    pub(crate) fn breaker(&self, now: Timestamp) -> Option<BreakerState> {
        self.lock().breaker.as_ref().map(|breaker| breaker.state(now))
    }

    /// Returns the number of a new query for the pauses in the store.
    pub(crate) fn ask_pauses(&self) -> u64 {
        let mut state = self.lock();
        state.asked += 1;
        state.asked
    }

    /// Replaces the pauses with the store's list. Pauses that are not written yet stay. A stale answer
    /// changes nothing. Returns the new and the ended pauses, or `None` if a pause was written since the
    /// query, which must then be repeated.
    pub(crate) fn set_pauses(&self, asked: u64, mut pauses: Vec<Pause>) -> Option<(Vec<Pause>, Vec<Pause>)> {
        let mut state = self.lock();
        if asked < state.valid_from {
            return None;
        }
        if asked < state.answered {
            return Some((Vec::new(), Vec::new()));
        }
        state.answered = asked;
        let missing_in = |others: &[Pause], pause: &Pause| !others.iter().any(|o| o.scope == pause.scope);
        for pause in &state.unstored {
            if missing_in(&pauses, pause) {
                pauses.push(pause.clone());
            }
        }
        let new: Vec<Pause> = pauses.iter().filter(|p| missing_in(&state.pauses, p)).cloned().collect();
        let gone: Vec<Pause> = state.pauses.iter().filter(|p| missing_in(&pauses, p)).cloned().collect();
        state.pauses = pauses;
        if !new.is_empty() || !gone.is_empty() {
            self.publish(&state);
            // A pause of replays suspends no live attempt, but replays wait for its end.
            self.changed.notify_all();
        }
        Some((new, gone))
    }

    /// Pauses at once, before the pause is written to the store. Returns `false` if the scope was
    /// already paused.
    pub(crate) fn pause_now(&self, pause: Pause) -> bool {
        let mut state = self.lock();
        if state.pauses.iter().any(|known| known.scope == pause.scope) {
            return false;
        }
        state.pauses.push(pause.clone());
        state.unstored.push(pause);
        self.publish(&state);
        true
    }

    /// Returns the pauses that are not yet written to the store.
    pub(crate) fn unstored(&self) -> Vec<Pause> {
        self.lock().unstored.clone()
    }

    /// Records that this pause was written to the store, or was lifted. The list of a query that was
    /// sent before may be out of date, so its answer is not applied.
    pub(crate) fn stored(&self, scope: &PauseScope) {
        let mut state = self.lock();
        state.unstored.retain(|pause| pause.scope != *scope);
        state.valid_from = state.asked + 1;
    }

    /// Reports a failure of a dependency to the breaker. If this opens the breaker, returns the time
    /// until which it stays open.
    pub(crate) fn failed(&self, pass: Pass, now: Timestamp) -> Option<Timestamp> {
        let probe = pass.used();
        let success = self.last_success(now);
        let mut state = self.lock();
        let breaker = state.breaker.as_mut()?;
        // A success only records its time. A closed breaker learns of the last success when a failure
        // occurs.
        if breaker.is_closed()
            && let Some(last) = success
        {
            breaker.on_success(last);
        }
        if !probe && breaker.state(now) == BreakerState::HalfOpen {
            // An attempt from before the breaker opened says nothing about the present.
            return None;
        }
        let opened = breaker.on_failure(now);
        self.publish(&state);
        match state.breaker.as_ref().map(|breaker| breaker.state(now)) {
            Some(BreakerState::Open { until }) if opened => Some(until),
            _ => None,
        }
    }

    /// Reports to the breaker that the dependencies respond. Returns `true` if this closed the breaker.
    pub(crate) fn succeeded(&self, pass: Pass, now: Timestamp) -> bool {
        let probe = pass.used();
        self.record_success(now);
        if self.is_open() {
            return false;
        }
        let mut state = self.lock();
        // An attempt from before the breaker opened says nothing about the present.
        let counts = |breaker: &&mut Breaker| probe || breaker.is_closed();
        let closed = state.breaker.as_mut().filter(counts).is_some_and(|breaker| breaker.on_success(now));
        self.publish(&state);
        closed
    }

    /// Records the time of a success.
    pub(crate) fn record_success(&self, now: Timestamp) {
        // The latest report counts, not the highest time, because clocks may also go back.
        self.last_success.store(nanos(now), Ordering::Release);
    }

    /// Returns the time of the last success. Threads may report slightly out of order. A success that
    /// lies further in the future dates from before the clock went back and does not count.
    fn last_success(&self, now: Timestamp) -> Option<Timestamp> {
        let last = self.last_success.load(Ordering::Acquire);
        let ahead = last.saturating_sub(nanos(now));
        let known = last != i64::MIN && ahead <= i64::try_from(self.trust.as_nanos()).unwrap_or(i64::MAX);
        let last = Timestamp::from_nanosecond(last.into()).ok().filter(|_| known)?;
        Some(last.min(now))
    }

    /// Returns `true` if the failure of a retry is attributed to its message: other messages have
    /// succeeded since its first failure, and recently. Otherwise messages that never succeed would open
    /// the breaker once no others remain.
    pub(crate) fn blames_message(&self, first_failed_at: Timestamp, now: Timestamp) -> bool {
        self.last_success(now).is_some_and(|last| {
            last > first_failed_at && now.duration_since(last).unsigned_abs() <= self.trust
        })
    }

    /// Records a store outage that lasts until the returned guard is dropped.
    pub(crate) fn store_outage(self: &Arc<Self>) -> StoreOutage {
        if self.store_outages.fetch_add(1, Ordering::AcqRel) == 0 {
            self.changed.notify_all();
        }
        StoreOutage(self.clone())
    }

    /// Records the reason of a store outage. `disk` describes the store's disk, if it is full.
    pub(crate) fn explain_outage(&self, error: &StoreError, disk: Option<&str>) {
        // A limit of the queue has a name. Without one, a full store means that its disk or quota is
        // full.
        let limit = error.limit().or((error.kind() == ErrorKind::Full).then_some(FULL_DISK));
        let why = match error.limit() {
            Some(MIN_FREE) => format!("{}; {}", error.context(), DiskSpace::REMEDY),
            Some(_) => format!("{}; replay, resolve or evict letters, or raise the limit", error.context()),
            None => match disk {
                Some(disk) => format!("{error}; {disk}; {}", DiskSpace::REMEDY),
                None => error.to_string(),
            },
        };
        let cause = OutageCause { limit, why };
        *self.lock_outage() = Some(cause);
    }

    /// Returns the reason why the store does not accept letters, or `None` while no caller waits for it.
    pub(crate) fn outage_cause(&self) -> Option<OutageCause> {
        self.lock_outage().clone().filter(|_| self.has_store_outage())
    }

    fn lock_outage(&self) -> MutexGuard<'_, Option<OutageCause>> {
        // Only complete values are assigned.
        self.outage_cause.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns `true` while a caller waits for the store.
    pub(crate) fn has_store_outage(&self) -> bool {
        self.store_outages.load(Ordering::Acquire) > 0
    }

    /// Wakes all watchers.
    pub(crate) fn notify_watchers(&self) {
        self.changed.notify_all();
    }

    fn publish(&self, state: &State) {
        let open = state.pauses.iter().all(|pause| pause.scope == PauseScope::Replay)
            && state.breaker.as_ref().is_none_or(Breaker::is_closed);
        let was = self.shut.swap(!open, Ordering::AcqRel);
        if was || !open {
            self.changed.notify_all();
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // The state is only assigned complete values, so a panic elsewhere cannot leave it inconsistent.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn holds_stored(&self, replay: bool) -> bool {
        self.pauses.iter().any(|pause| match pause.scope {
            PauseScope::Consumer => true,
            PauseScope::Replay => replay,
            _ => false,
        })
    }
}

impl Pass {
    /// Returns the pass of an attempt that started while the gate was open.
    pub(crate) const fn free() -> Self {
        Self { probe_of: None }
    }

    fn probe_of(gate: &Arc<Gate>) -> Self {
        Self { probe_of: Some(gate.clone()) }
    }

    /// Consumes the pass. Returns `true` if the attempt was a probe of the breaker.
    fn used(mut self) -> bool {
        self.probe_of.take().is_some()
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        if let Some(gate) = self.probe_of.take() {
            let mut state = gate.lock();
            if let Some(breaker) = state.breaker.as_mut() {
                breaker.probe_cancelled();
            }
            gate.publish(&state);
        }
    }
}

/// Returns nanoseconds since 1970, clamped to the range of `i64`.
fn nanos(time: Timestamp) -> i64 {
    let nanos = time.as_nanosecond().clamp(i64::MIN.into(), i64::MAX.into());
    i64::try_from(nanos).unwrap_or(i64::MAX)
}

/// A store outage that lasts until this value is dropped.
#[derive(Debug)]
pub(crate) struct StoreOutage(Arc<Gate>);

impl Drop for StoreOutage {
    fn drop(&mut self) {
        if self.0.store_outages.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.0.changed.notify_all();
        }
    }
}

/// Notifies watchers of changes in the order in which they wait, so that a simulation can repeat it.
#[derive(Debug, Default)]
struct Changes {
    version: AtomicU64,
    notify: Notify,
}

impl Changes {
    fn notify_all(&self) {
        self.version.fetch_add(1, Ordering::AcqRel);
        self.notify.notify_waiters();
    }
}

/// Watches for changes since its last call.
#[derive(Debug)]
pub(crate) struct Watcher {
    changes: Arc<Changes>,
    seen: u64,
}

impl Watcher {
    /// Waits until something has changed since the last call. Cancellation safe.
    pub(crate) async fn changed(&mut self) {
        let notified = self.changes.notify.notified();
        tokio::pin!(notified);
        // From here on no notification is missed. The version shows earlier changes.
        notified.as_mut().enable();
        if self.changes.version.load(Ordering::Acquire) == self.seen {
            notified.await;
        }
        self.seen = self.changes.version.load(Ordering::Acquire);
    }
}

/// Waits for a change or, if given, for the end of this period. Never returns before either.
pub(crate) async fn change_or(changed: &mut Watcher, until: Option<Duration>) {
    let timer = async {
        match until {
            Some(delay) => tokio::time::sleep(delay).await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        biased;
        () = changed.changed() => {}
        () = timer => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn gate() -> Gate {
        Gate::new(Some(BreakerPolicy { failures: 3, ..BreakerPolicy::default() }))
    }

    #[test]
    fn an_answer_from_before_a_pause_was_written_does_not_end_it() {
        let gate = gate();
        let since = Timestamp::UNIX_EPOCH;
        let by = lazaret_core::store::Actor::engine("fuse: all failed");
        let pause = Pause { scope: PauseScope::Consumer, by, since };
        let asked = gate.ask_pauses();
        assert!(gate.pause_now(pause.clone()));
        gate.stored(&pause.scope);
        assert!(gate.set_pauses(asked, Vec::new()).is_none(), "it is to be asked again");
        assert!(!gate.is_open());
        let asked = gate.ask_pauses();
        assert!(gate.set_pauses(asked, vec![pause]).is_some());
        assert!(!gate.is_open());
        let asked = gate.ask_pauses();
        assert!(gate.set_pauses(asked, Vec::new()).is_some());
        assert!(gate.is_open());
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_waits_at_the_gate_learns_that_it_shuts_and_opens() {
        let gate =
            Arc::new(Gate::new(Some(BreakerPolicy { failures: 1, probes: 1, ..BreakerPolicy::default() })));
        let mut watcher = gate.watch();
        let mut is_told =
            async || tokio::time::timeout(Duration::from_secs(1), watcher.changed()).await.is_ok();
        assert!(!is_told().await, "nothing has changed");
        assert!(gate.failed(Pass::free(), at(100)).is_some());
        assert!(is_told().await, "the breaker opened");
        let Entry::Go(probe) = gate.enter_stored(false, at(200)) else { panic!("no probe") };
        assert!(gate.succeeded(probe, at(200)));
        assert!(is_told().await, "the breaker closed");
        let by = lazaret_core::store::Actor::engine("fuse: all failed");
        gate.pause_now(Pause { scope: PauseScope::Consumer, by, since: at(200) });
        assert!(is_told().await, "the consumer is paused");
    }

    #[test]
    fn a_success_from_before_the_clock_went_back_does_not_keep_the_breaker_closed() {
        let gate = gate();
        gate.record_success(at(10_000));
        let opened: Vec<bool> = (0..3).map(|n| gate.failed(Pass::free(), at(100 + n)).is_some()).collect();
        assert_eq!(opened, [false, false, true]);
        assert!(!gate.blames_message(at(50), at(103)));
    }

    #[test]
    fn successes_after_the_clock_went_back_count_as_those_before_did() {
        let gate = gate();
        gate.record_success(at(10_000));
        for second in 100..200 {
            gate.record_success(at(second));
            assert_eq!(gate.failed(Pass::free(), at(second)), None);
        }
        assert!(gate.blames_message(at(150), at(200)));
    }

    #[test]
    fn a_retry_is_its_messages_fault_while_a_success_since_its_first_failure_is_fresh() {
        let gate = gate();
        assert!(!gate.blames_message(at(0), at(1)), "nothing is known");
        gate.record_success(at(10));
        assert!(gate.blames_message(at(9), at(40)));
        assert!(!gate.blames_message(at(9), at(41)), "thirty seconds are over");
        assert!(!gate.blames_message(at(10), at(11)), "it first failed after it");
    }
}
