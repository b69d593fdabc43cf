//! The circuit breaker: suspends handler calls while a dependency is down, so that messages keep their attempts.

use std::collections::VecDeque;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use super::PolicyError;

/// The maximum number of failures that a breaker keeps (I7).
const FAILURES_LIMIT: u32 = 65_536;
/// The time until the next check while all probes are in flight.
const PROBE_WAIT: Duration = Duration::from_millis(100);

/// When a breaker opens, and how it closes again.
#[derive(Clone, Debug, PartialEq)]
pub struct BreakerPolicy {
    /// This many failures in a row open it, if all of them are inside the window and nothing has succeeded for a tenth of it. An
    /// attempt that succeeds resets the count: a dependency that responds is not down, however many messages it rejects.
    pub failures: u32,
    /// The time window in which failures count.
    pub window: Duration,
    /// How long it stays open before it admits probes.
    pub open_for: Duration,
    /// The maximum number of concurrent probes, and the number that must succeed to close it.
    pub probes: u32,
}

impl Default for BreakerPolicy {
    fn default() -> Self {
        Self { failures: 20, window: Duration::from_secs(10), open_for: Duration::from_secs(30), probes: 3 }
    }
}

impl BreakerPolicy {
    /// Refuses counts and times of zero, and more failures than a breaker remembers.
    pub fn validate(&self) -> Result<(), PolicyError> {
        let invalid = |field, why| Err(PolicyError::Invalid { field, why });
        match self {
            Self { failures: 0, .. } => invalid("failures", "must be at least 1"),
            Self { failures, .. } if *failures > FAILURES_LIMIT => {
                invalid("failures", "must be at most 65536")
            }
            Self { window: Duration::ZERO, .. } => invalid("window", "must be longer than zero"),
            Self { open_for: Duration::ZERO, .. } => invalid("open-for", "must be longer than zero"),
            Self { probes: 0, .. } => invalid("probes", "must be at least 1"),
            _ => Ok(()),
        }
    }
}

/// The state of a breaker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BreakerState {
    /// Everything passes.
    Closed,
    /// Nothing passes.
    Open {
        /// When probes may pass.
        until: Timestamp,
    },
    /// Probes pass.
    HalfOpen,
}

impl BreakerState {
    /// The name used in output and metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::Open { .. } => "open",
            Self::HalfOpen => "half-open",
        }
    }
}

/// The answer to "may this attempt start?".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admit {
    /// It may.
    Yes,
    /// It may, as a probe. Its result must be reported with [`Breaker::on_success`] or [`Breaker::on_failure`], or
    /// [`Breaker::probe_cancelled`] if there is none.
    Probe,
    /// It may not. No attempt is counted; ask again at this time.
    No {
        /// When to ask again. It is after the time of asking.
        until: Timestamp,
    },
}

/// A circuit breaker: closed, open, half-open.
///
/// It detects that the dependency is down, not how well it works. A share of failures that retries can fix must not stop the
/// messages that would succeed, so only failures with no success between them open it.
///
/// Results that come in while it is open belong to attempts that began before, and change nothing.
///
/// ```
/// use lazaret_core::policy::{Admit, Breaker, BreakerPolicy};
/// use lazaret_core::Timestamp;
/// let mut breaker = Breaker::new(BreakerPolicy { failures: 2, ..BreakerPolicy::default() });
/// let now = Timestamp::UNIX_EPOCH;
/// assert_eq!(breaker.admit(now), Admit::Yes);
/// assert!(!breaker.on_failure(now));
/// assert!(breaker.on_failure(now), "the second failure opens it");
/// assert!(matches!(breaker.admit(now), Admit::No { .. }));
/// ```
#[derive(Debug)]
pub struct Breaker {
    policy: BreakerPolicy,
    phase: Phase,
}

#[derive(Debug)]
enum Phase {
    Closed {
        /// The times of the failures since the last success, inside the window, oldest first.
        failures: VecDeque<Timestamp>,
        last_success: Option<Timestamp>,
    },
    Open {
        until: Timestamp,
    },
    HalfOpen {
        outstanding: u32,
        succeeded: u32,
    },
}

impl Breaker {
    /// A closed breaker. Counts outside what [`BreakerPolicy::validate`] allows are moved inside.
    pub fn new(policy: BreakerPolicy) -> Self {
        let policy = BreakerPolicy {
            failures: policy.failures.clamp(1, FAILURES_LIMIT),
            probes: policy.probes.max(1),
            ..policy
        };
        Self { policy, phase: Phase::Closed { failures: VecDeque::new(), last_success: None } }
    }

    /// Records a failed attempt. Returns `true` if that opened the breaker.
    pub fn on_failure(&mut self, now: Timestamp) -> bool {
        let opens = match &mut self.phase {
            Phase::Closed { failures, last_success } => {
                remember(failures, now, self.policy.window);
                // Failures come in clumps, also where most attempts succeed.
                let is_quiet = last_success.is_none_or(|last| later(last, self.policy.window / 10) <= now);
                is_quiet && failures.len() >= self.policy.failures as usize
            }
            Phase::Open { .. } => false,
            // Without a probe outside, the result is of an attempt that began before the breaker opened.
            Phase::HalfOpen { outstanding, .. } => *outstanding > 0,
        };
        if opens {
            self.phase = Phase::Open { until: later(now, self.policy.open_for) };
        }
        opens
    }

    /// Records an attempt that did not fail. Returns `true` if that closed the breaker.
    pub fn on_success(&mut self, now: Timestamp) -> bool {
        let closes = match &mut self.phase {
            Phase::Closed { failures, last_success } => {
                // One that is reported late may be older than the last failures.
                failures.retain(|failure| *failure >= now);
                *last_success = Some(now);
                false
            }
            Phase::HalfOpen { outstanding, succeeded } if *outstanding > 0 => {
                *outstanding -= 1;
                *succeeded += 1;
                *succeeded >= self.policy.probes
            }
            Phase::Open { .. } | Phase::HalfOpen { .. } => false,
        };
        if closes {
            self.phase = Phase::Closed { failures: VecDeque::new(), last_success: Some(now) };
        }
        closes
    }

    /// Takes back a probe that ended without a result.
    pub fn probe_cancelled(&mut self) {
        if let Phase::HalfOpen { outstanding, .. } = &mut self.phase {
            *outstanding = outstanding.saturating_sub(1);
        }
    }

    /// Asks whether an attempt may start.
    pub fn admit(&mut self, now: Timestamp) -> Admit {
        if let Some(until) = self.holds_until(now) {
            if let Phase::Open { until: kept } = &mut self.phase {
                // Kept, because the clock may have gone backwards and `until` is nearer now than it was.
                *kept = until;
            }
            return Admit::No { until };
        }
        if matches!(self.phase, Phase::Open { .. }) {
            self.phase = Phase::HalfOpen { outstanding: 0, succeeded: 0 };
        }
        match &mut self.phase {
            Phase::HalfOpen { outstanding, .. } => {
                *outstanding += 1;
                Admit::Probe
            }
            Phase::Closed { .. } | Phase::Open { .. } => Admit::Yes,
        }
    }

    /// Returns when to [ask](Self::admit) again if no attempt may start now: while it is open, and while all probes are in flight.
    pub fn holds_until(&self, now: Timestamp) -> Option<Timestamp> {
        match (self.state(now), &self.phase) {
            (BreakerState::Open { until }, _) => Some(until),
            (_, Phase::HalfOpen { outstanding, .. }) if *outstanding >= self.policy.probes => {
                Some(later(now, PROBE_WAIT))
            }
            _ => None,
        }
    }

    /// The state now.
    pub fn state(&self, now: Timestamp) -> BreakerState {
        match self.phase {
            Phase::Closed { .. } => BreakerState::Closed,
            Phase::HalfOpen { .. } => BreakerState::HalfOpen,
            Phase::Open { until } if until <= now => BreakerState::HalfOpen,
            Phase::Open { until } => {
                BreakerState::Open { until: until.min(later(now, self.policy.open_for)) }
            }
        }
    }

    /// Returns whether it is closed.
    pub fn is_closed(&self) -> bool {
        matches!(self.phase, Phase::Closed { .. })
    }
}

/// Adds a failure and drops those that are older than the window. Threads may bring their times out of order by a
/// little; more than a window is a clock that went backwards, and the old times mean nothing any more.
fn remember(failures: &mut VecDeque<Timestamp>, now: Timestamp, window: Duration) {
    let last = failures.back().copied().unwrap_or(now);
    if last > later(now, window) {
        failures.clear();
        failures.push_back(now);
        return;
    }
    let now = now.max(last);
    while failures.front().is_some_and(|first| later(*first, window) < now) {
        failures.pop_front();
    }
    failures.push_back(now);
}

/// The time that is this much later, or the end of time.
fn later(time: Timestamp, by: Duration) -> Timestamp {
    let by = SignedDuration::try_from(by).unwrap_or(SignedDuration::MAX);
    time.checked_add(by).unwrap_or(Timestamp::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millisecond: i64) -> Timestamp {
        Timestamp::from_millisecond(millisecond).unwrap()
    }

    fn breaker() -> Breaker {
        Breaker::new(BreakerPolicy { failures: 3, probes: 2, ..BreakerPolicy::default() })
    }

    /// A breaker that opened at 0 and stays so until 30 s.
    fn open() -> Breaker {
        let mut breaker = breaker();
        let opened: Vec<_> = (0..3).map(|_| breaker.on_failure(at(0))).collect();
        assert_eq!(opened, [false, false, true]);
        breaker
    }

    #[test]
    fn impossible_policies_are_refused() {
        let good = BreakerPolicy::default();
        assert!(good.validate().is_ok());
        let table = [
            (BreakerPolicy { failures: 0, ..good.clone() }, "failures must be at least 1"),
            (BreakerPolicy { failures: 65_537, ..good.clone() }, "failures must be at most 65536"),
            (BreakerPolicy { window: Duration::ZERO, ..good.clone() }, "window must be longer than zero"),
            (BreakerPolicy { open_for: Duration::ZERO, ..good.clone() }, "open-for must be longer than zero"),
            (BreakerPolicy { probes: 0, ..good }, "probes must be at least 1"),
        ];
        for (policy, expected) in table {
            assert_eq!(policy.validate().unwrap_err().to_string(), expected);
        }
    }

    #[test]
    fn failures_spread_over_more_than_the_window_do_not_open_it() {
        let mut breaker = breaker();
        for second in 0..100 {
            assert!(!breaker.on_failure(at(second * 5_001)), "{second}");
        }
        assert!(breaker.is_closed());
        assert_eq!(breaker.admit(at(0)), Admit::Yes);
    }

    #[test]
    fn a_success_begins_the_count_anew() {
        let mut breaker = breaker();
        for second in 0..100 {
            assert!(!breaker.on_failure(at(second * 1000)));
            assert!(!breaker.on_failure(at(second * 1000)));
            assert!(!breaker.on_success(at(second * 1000 + 1)));
        }
        let opened: Vec<_> = (0..3).map(|_| breaker.on_failure(at(200_000))).collect();
        assert_eq!(opened, [false, false, true]);
    }

    #[test]
    fn a_clump_of_failures_soon_after_a_success_does_not_open_it() {
        let mut breaker = breaker();
        assert!(!breaker.on_success(at(0)));
        let clump = (1..1000).filter(|millisecond| breaker.on_failure(at(*millisecond))).count();
        assert_eq!(clump, 0, "a tenth of the window is not over");
        assert!(breaker.on_failure(at(1000)));
    }

    #[test]
    fn a_success_that_is_told_late_forgets_only_what_was_before_it() {
        let mut breaker = breaker();
        breaker.on_failure(at(0));
        breaker.on_failure(at(5000));
        assert!(!breaker.on_success(at(1000)));
        assert!(!breaker.on_failure(at(5000)));
        assert!(breaker.on_failure(at(5000)));
    }

    #[test]
    fn it_holds_attempts_exactly_when_it_admits_none() {
        let mut breaker = open();
        assert_eq!(breaker.holds_until(at(0)), Some(at(30_000)));
        assert_eq!(breaker.holds_until(at(30_000)), None);
        for _ in 0..2 {
            assert_eq!(breaker.holds_until(at(30_000)), None);
            assert_eq!(breaker.admit(at(30_000)), Admit::Probe);
        }
        let until = breaker.holds_until(at(30_000)).unwrap();
        assert!(until > at(30_000), "all probes are under way");
        assert_eq!(breaker.admit(at(30_000)), Admit::No { until });
        breaker.probe_cancelled();
        assert_eq!(breaker.holds_until(at(30_000)), None);
    }

    #[test]
    fn an_open_breaker_admits_nothing_until_its_time() {
        let mut breaker = open();
        assert!(!breaker.is_closed());
        assert_eq!(breaker.admit(at(1)), Admit::No { until: at(30_000) });
        assert_eq!(breaker.state(at(29_999)), BreakerState::Open { until: at(30_000) });
        assert_eq!(breaker.state(at(30_000)), BreakerState::HalfOpen);
        assert_eq!(breaker.admit(at(30_000)), Admit::Probe);
    }

    #[test]
    fn late_results_change_nothing_while_it_is_open() {
        let mut breaker = open();
        for _ in 0..10 {
            assert!(!breaker.on_success(at(30_001)));
            assert!(!breaker.on_failure(at(20_000)));
        }
        assert_eq!(breaker.state(at(20_000)), BreakerState::Open { until: at(30_000) });
    }

    #[test]
    fn enough_good_probes_close_it() {
        let mut breaker = open();
        assert_eq!(breaker.admit(at(30_000)), Admit::Probe);
        assert_eq!(breaker.admit(at(30_000)), Admit::Probe);
        assert_eq!(breaker.admit(at(30_000)), Admit::No { until: at(30_100) });
        assert!(!breaker.on_success(at(30_001)));
        assert!(breaker.on_success(at(30_001)));
        assert!(breaker.is_closed());
        assert!(!breaker.on_failure(at(30_003)), "it begins anew");
    }

    #[test]
    fn one_bad_probe_opens_it_again() {
        let mut breaker = open();
        assert_eq!(breaker.admit(at(30_000)), Admit::Probe);
        assert_eq!(breaker.admit(at(30_000)), Admit::Probe);
        assert!(!breaker.on_success(at(30_001)));
        assert!(breaker.on_failure(at(32_000)));
        assert_eq!(breaker.admit(at(32_000)), Admit::No { until: at(62_000) });
    }

    #[test]
    fn a_cancelled_probe_makes_room_for_another() {
        let mut breaker = open();
        assert_eq!(breaker.admit(at(30_000)), Admit::Probe);
        assert_eq!(breaker.admit(at(30_000)), Admit::Probe);
        breaker.probe_cancelled();
        assert_eq!(breaker.admit(at(30_000)), Admit::Probe);
        assert_eq!(breaker.admit(at(30_000)), Admit::No { until: at(30_100) });
    }

    #[test]
    fn results_without_a_probe_outside_are_late_ones() {
        let mut breaker = open();
        assert_eq!(breaker.admit(at(30_000)), Admit::Probe);
        breaker.probe_cancelled();
        assert!(!breaker.on_failure(at(30_001)));
        assert!(!breaker.on_success(at(30_001)));
        assert_eq!(breaker.state(at(30_001)), BreakerState::HalfOpen);
    }

    #[test]
    fn a_clock_that_goes_back_keeps_nobody_out_for_longer() {
        let mut open = open();
        assert_eq!(open.admit(at(-1_000_000)), Admit::No { until: at(-970_000) });
        assert_eq!(open.admit(at(-970_000)), Admit::Probe);

        let mut closed = breaker();
        closed.on_failure(at(1_000_000));
        closed.on_failure(at(1_000_000));
        assert!(!closed.on_failure(at(0)), "failures of the future do not count");
        assert!(!closed.on_failure(at(1)));
        assert!(closed.on_failure(at(2)));
    }

    #[test]
    fn it_remembers_no_more_than_it_needs_and_survives_the_end_of_time() {
        // I7
        let mut breaker = Breaker::new(BreakerPolicy {
            failures: 0,
            window: Duration::MAX,
            open_for: Duration::MAX,
            probes: 0,
        });
        assert!(breaker.on_failure(Timestamp::MAX));
        assert_eq!(breaker.admit(Timestamp::MIN), Admit::No { until: Timestamp::MAX });
        assert_eq!(breaker.admit(Timestamp::MAX), Admit::Probe);
    }
}
