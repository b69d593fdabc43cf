//! When a failed message is tried again, and when no more.

use std::fmt;
use std::hash::Hasher;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use siphasher::sip::SipHasher24;

use super::{Glob, PolicyError};
use crate::failure::Reason;
use crate::message::Message;

/// The strategy: where a message waits for its next attempt, and which messages wait with it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Strategy {
    /// In memory. The lane waits with it and the position is held.
    InPlace,
    /// In memory up to [`RetryPolicy::hold`], then in the store. Its sequence waits with it; others flow on.
    #[default]
    Ordered,
    /// In the store, alone: later messages of its sequence overtake it.
    Unordered,
    /// In retry topics of the broker, alone.
    Topics,
}

impl Strategy {
    /// The name used in configuration and output.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::InPlace => "in-place",
            Self::Ordered => "ordered",
            Self::Unordered => "unordered",
            Self::Topics => "topics",
        }
    }
}

impl fmt::Display for Strategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The retry policy: how often and how fast a failed message is retried.
///
/// The delay after the n-th failed attempt is `initial-delay × multiplier^(n-1)`, capped at `max-delay`, and then
/// spread by the jitter. Listed [`delays`](Self::delays) take the place of all that.
///
/// ```
/// use lazaret_core::policy::RetryPolicy;
/// use std::time::Duration;
///
/// let policy = RetryPolicy { jitter: 0.0, ..RetryPolicy::default() };
/// assert_eq!(policy.delay(1, None, 0), Duration::from_millis(500));
/// assert_eq!(policy.delay(2, None, 0), Duration::from_secs(1));
/// assert_eq!(policy.delay(2, Some(Duration::from_secs(60)), 0), Duration::from_secs(60));
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct RetryPolicy {
    /// Where a message waits for its next attempt.
    pub strategy: Strategy,
    /// How long a lane may wait in memory before it moves to the store, for [`Strategy::Ordered`].
    pub hold: Duration,
    /// The most automatic attempts, the first one included (I4).
    pub max_attempts: u32,
    /// The longest time from the first failure to the last attempt (I4). `None` is no limit.
    pub max_elapsed: Option<Duration>,
    /// Fixed delays: the n-th retry waits the n-th one, without jitter; further ones wait the last. Empty: the delays follow from
    /// `initial_delay`, `multiplier`, `max_delay` and `jitter`.
    pub delays: Arc<[Duration]>,
    /// The delay after the first failed attempt.
    pub initial_delay: Duration,
    /// By how much each delay is longer than the one before.
    pub multiplier: f64,
    /// The cap of the delay, before jitter.
    pub max_delay: Duration,
    /// The spread of the delay: 0.2 is ±20 %.
    pub jitter: f64,
    /// The maximum that a `retry-after` hint is honoured for.
    pub max_retry_after: Duration,
    /// The maximum number of attempts that end with a crash of the process; 0 for no limit.
    pub max_crashes: u32,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self {
            strategy: Strategy::default(),
            hold: Duration::from_secs(5),
            max_attempts: 3,
            max_elapsed: None,
            delays: Arc::default(),
            initial_delay: Duration::from_millis(500),
            multiplier: 2.0,
            max_delay: Duration::from_secs(30),
            jitter: 0.2,
            max_retry_after: Duration::from_secs(60 * 60),
            max_crashes: 3,
        }
    }
}

/// A retry policy for some events or failures, in place of the consumer's.
///
/// ```
/// use lazaret_core::policy::{RetryOverride, RetryPolicy};
/// use lazaret_core::{Message, Position, Reason};
/// let patient = RetryPolicy { max_attempts: 20, ..RetryPolicy::default() };
/// let limited = RetryOverride { event_type: None, reason: Some(Reason::RATE_LIMITED), policy: patient };
/// let message = Message::new("e-1", "orders", Position::new(0, 0));
/// assert!(limited.applies(&message, Some(&Reason::RATE_LIMITED)));
/// assert!(!limited.applies(&message, Some(&Reason::TIMEOUT)));
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct RetryOverride {
    /// The type of the event; `None` for any. A message without one fits no pattern.
    pub event_type: Option<Glob>,
    /// The reason of the last failure; `None` for any.
    pub reason: Option<Reason>,
    /// The policy.
    pub policy: RetryPolicy,
}

impl RetryOverride {
    /// Returns whether it applies to a message that failed for this reason.
    pub fn applies(&self, message: &Message, reason: Option<&Reason>) -> bool {
        let event_type = message.event_type.as_deref();
        self.reason.as_ref().is_none_or(|wanted| reason == Some(wanted))
            && self.event_type.as_ref().is_none_or(|glob| event_type.is_some_and(|name| glob.matches(name)))
    }
}

/// The next step after a failed attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Another attempt, not before this time (I12).
    At {
        /// When it is due.
        at: Timestamp,
        /// The time from now.
        delay: Duration,
    },
    /// No more automatic attempts (I4).
    Exhausted(Limit),
}

/// The limit that ended the retries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Limit {
    /// `max-attempts`.
    Attempts,
    /// `max-elapsed`.
    Elapsed,
    /// `max-crashes`.
    Crashes,
}

impl Limit {
    /// The name used in output and metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Attempts => "max-attempts",
            Self::Elapsed => "max-elapsed",
            Self::Crashes => "max-crashes",
        }
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl RetryPolicy {
    /// Returns the policy with these delays in place of its formula, and one attempt more than there are delays.
    ///
    /// ```
    /// use lazaret_core::policy::RetryPolicy;
    /// use std::time::Duration;
    ///
    /// let minutes = |n: u64| Duration::from_secs(60 * n);
    /// let mut policy = RetryPolicy::default().with_delays([minutes(1), minutes(10)]);
    /// policy.jitter = 0.0;
    /// assert_eq!((policy.delay(1, None, 0), policy.delay(2, None, 0)), (minutes(1), minutes(10)));
    /// assert_eq!(policy.max_attempts, 3);
    /// ```
    #[must_use]
    pub fn with_delays(mut self, delays: impl IntoIterator<Item = Duration>) -> Self {
        self.delays = delays.into_iter().collect();
        self.max_attempts = u32::try_from(self.delays.len()).unwrap_or(u32::MAX).saturating_add(1);
        self
    }

    /// Validates the settings.
    pub fn validate(&self) -> Result<(), PolicyError> {
        let invalid = |field, why| Err(PolicyError::Invalid { field, why });
        if self.max_attempts == 0 {
            return invalid("max-attempts", "must be at least 1: the first attempt counts");
        }
        if !(self.multiplier.is_finite() && self.multiplier >= 1.0) {
            return invalid("multiplier", "must be at least 1");
        }
        if !(self.jitter.is_finite() && (0.0..=1.0).contains(&self.jitter)) {
            return invalid("jitter", "must be between 0 and 1: 0.2 is ±20 %");
        }
        if self.delays.is_empty() && self.initial_delay > self.max_delay {
            return invalid("initial-delay", "must not be longer than max-delay");
        }
        if self.max_elapsed == Some(Duration::ZERO) {
            return invalid("max-elapsed", "must be longer than 0: leave it out for no limit");
        }
        Ok(())
    }

    /// Returns the delay after this failed attempt (1-based): the same arguments always give the same delay.
    ///
    /// A `retry-after` hint makes the delay longer, never shorter. It is honoured up to `max-retry-after`, and then spread by the jitter,
    /// only to later times: a service that asks a thousand messages to come back in a minute gets them one after the other.
    pub fn delay(&self, failed_attempt: u32, hint: Option<Duration>, seed: u64) -> Duration {
        let capped = self.capped(failed_attempt.saturating_sub(1));
        let unit = unit_interval(seed, failed_attempt);
        let factor = 1.0 - self.jitter + 2.0 * self.jitter * unit;
        let jittered = if self.delays.is_empty() { scaled(capped, factor) } else { capped };
        hint.map_or(jittered, |hint| {
            let hint = hint.min(self.max_retry_after);
            jittered.max(hint).max(scaled(hint, 1.0 + self.jitter * unit))
        })
    }

    /// Returns the longest delay that these settings can give, jitter and hints included.
    ///
    /// ```
    /// use lazaret_core::policy::RetryPolicy;
    /// use std::time::Duration;
    /// let policy = RetryPolicy { max_retry_after: Duration::ZERO, ..RetryPolicy::default() };
    /// assert_eq!(policy.longest_delay(), Duration::from_secs(36));
    /// ```
    pub fn longest_delay(&self) -> Duration {
        let hinted = scaled(self.max_retry_after, 1.0 + self.jitter);
        let own = match self.delays.iter().max() {
            Some(longest) => *longest,
            None => scaled(self.max_delay, 1.0 + self.jitter),
        };
        own.max(hinted)
    }

    /// Returns the delay after this many failed attempts, before jitter, which retry topics are made for. Hints count as in
    /// [`delay`](Self::delay).
    pub fn usual_delay(&self, failed_attempt: u32, hint: Option<Duration>) -> Duration {
        let capped = self.capped(failed_attempt.saturating_sub(1));
        hint.map_or(capped, |hint| capped.max(hint.min(self.max_retry_after)))
    }

    /// The listed delay, or `initial-delay × multiplier^exponent`, but at most `max-delay`.
    fn capped(&self, exponent: u32) -> Duration {
        if let Some(last) = self.delays.last() {
            return *self.delays.get(exponent as usize).unwrap_or(last);
        }
        if self.initial_delay.is_zero() {
            return Duration::ZERO;
        }
        let base = self.initial_delay.as_secs_f64() * power(self.multiplier, exponent);
        // Too large for a duration, infinite and not a number all mean: beyond the cap.
        Duration::try_from_secs_f64(base).map_or(self.max_delay, |base| base.min(self.max_delay))
    }

    /// Returns the next step after the latest of `attempts` failed attempts.
    pub fn next(
        &self,
        attempts: u32,
        first_failed_at: Timestamp,
        now: Timestamp,
        hint: Option<Duration>,
        seed: u64,
    ) -> Next {
        if attempts >= self.max_attempts {
            return Next::Exhausted(Limit::Attempts);
        }
        let delay = self.delay(attempts, hint, seed);
        let at = later(now, delay);
        if !self.expired(first_failed_at, at) {
            return Next::At { at, delay };
        }
        // The spread of a hint takes no attempt away from a message.
        let unspread = hint.map(|hint| hint.min(self.max_retry_after).max(self.delay(attempts, None, seed)));
        match unspread.filter(|delay| !self.expired(first_failed_at, later(now, *delay))) {
            Some(delay) => Next::At { at: later(now, delay), delay },
            None => Next::Exhausted(Limit::Elapsed),
        }
    }

    /// Returns whether a message has reached `max-crashes`.
    pub const fn too_many_crashes(&self, crashes: u32) -> bool {
        self.max_crashes > 0 && crashes >= self.max_crashes
    }

    /// Returns whether `max-elapsed` has passed since the first failure.
    pub fn expired(&self, first_failed_at: Timestamp, now: Timestamp) -> bool {
        self.max_elapsed.is_some_and(|limit| now > later(first_failed_at, limit))
    }
}

/// Returns the jitter seed of a message: no two messages of one engine wait in step.
pub fn seed_of(message_id: &str, engine_seed: u64) -> u64 {
    let mut hasher = SipHasher24::new_with_keys(engine_seed, 0);
    hasher.write(message_id.as_bytes());
    hasher.finish()
}

/// A duration times a factor of 0 to 2, exact for a factor of 1.
fn scaled(duration: Duration, factor: f64) -> Duration {
    // Settings that were not validated may be anything.
    if factor == 1.0 || factor.is_nan() {
        return duration;
    }
    Duration::try_from_secs_f64(duration.as_secs_f64() * factor.max(0.0)).unwrap_or(Duration::MAX)
}

fn later(time: Timestamp, by: Duration) -> Timestamp {
    time.checked_add(by).unwrap_or(Timestamp::MAX)
}

/// `base^exponent` by squaring: unlike `powf`, the same bits on every platform.
fn power(mut base: f64, mut exponent: u32) -> f64 {
    let mut result = 1.0;
    while exponent > 0 {
        if exponent & 1 == 1 {
            result *= base;
        }
        base *= base;
        exponent >>= 1;
    }
    result
}

/// A number in `0..1` that looks random and is a function of its arguments.
fn unit_interval(seed: u64, attempt: u32) -> f64 {
    let mixed = mix(seed ^ mix(u64::from(attempt).wrapping_add(0x9e37_79b9_7f4a_7c15)));
    // The upper 53 bits fill the mantissa exactly.
    (mixed >> 11) as f64 / (1_u64 << 53) as f64
}

/// The finaliser of SplitMix64: every input bit changes half of the output bits.
fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{any, prop_assert, proptest};

    use super::*;

    const fn secs(n: u64) -> Duration {
        Duration::from_secs(n)
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn steady() -> RetryPolicy {
        RetryPolicy { jitter: 0.0, ..RetryPolicy::default() }
    }

    #[test]
    fn the_delays_are_those_of_the_table() {
        let table =
            [(1, 500), (2, 1000), (3, 2000), (4, 4000), (5, 8000), (6, 16_000), (7, 30_000), (8, 30_000)];
        for (failed, millis) in table {
            assert_eq!(
                steady().delay(failed, None, 7),
                Duration::from_millis(millis),
                "after attempt {failed}"
            );
        }
    }

    #[test]
    fn a_late_attempt_neither_overflows_nor_becomes_early() {
        for attempt in [200, 1100, u32::MAX] {
            assert_eq!(steady().delay(attempt, None, 0), secs(30));
        }
        let flat = RetryPolicy { multiplier: 1.0, ..steady() };
        assert_eq!(flat.delay(u32::MAX, None, 0), flat.initial_delay);
        let none = RetryPolicy { initial_delay: Duration::ZERO, ..RetryPolicy::default() };
        assert_eq!(none.delay(u32::MAX, None, 0), Duration::ZERO);
        let vast = RetryPolicy { max_delay: Duration::MAX, jitter: 1.0, ..RetryPolicy::default() };
        assert!(vast.delay(u32::MAX, None, 3) > secs(3600));
        assert_eq!(steady().delay(0, None, 0), steady().delay(1, None, 0));
    }

    #[test]
    fn jitter_spreads_over_its_whole_range_and_no_further() {
        let policy = RetryPolicy { initial_delay: secs(10), ..RetryPolicy::default() };
        let mut buckets = [0_u32; 8];
        let mut sum = 0.0;
        for n in 0..8000 {
            let delay = policy.delay(1, None, seed_of(&format!("m-{n}"), 1)).as_secs_f64();
            assert!((8.0..=12.0).contains(&delay), "{delay}");
            buckets[((delay - 8.0) * 2.0) as usize % 8] += 1;
            sum += delay;
        }
        assert!(buckets.iter().all(|n| (800..1200).contains(n)), "{buckets:?}");
        assert!((sum / 8000.0 - 10.0).abs() < 0.1);
    }

    #[test]
    fn jitter_is_the_same_for_the_same_message_and_another_for_each_attempt() {
        let policy = RetryPolicy { multiplier: 1.0, ..RetryPolicy::default() };
        let seed = seed_of("evt-1", 42);
        assert_eq!(policy.delay(1, None, seed), policy.delay(1, None, seed));
        let different: std::collections::HashSet<_> = (1..=50).map(|n| policy.delay(n, None, seed)).collect();
        assert_eq!(different.len(), 50);
        assert_ne!(seed, seed_of("evt-2", 42));
        assert_ne!(seed, seed_of("evt-1", 43));
    }

    #[test]
    fn a_hint_makes_the_wait_longer_but_not_endless() {
        let policy = steady();
        let table = [
            (None, 1),
            (Some(secs(0)), 1),
            (Some(secs(40)), 40),
            (Some(secs(90_000)), 3600),
            (Some(Duration::MAX), 3600),
        ];
        for (hint, expected) in table {
            assert_eq!(policy.delay(2, hint, 0), secs(expected), "{hint:?}");
        }
    }

    #[test]
    fn listed_delays_are_waited_exactly_and_in_their_order() {
        // I12
        let listed = [secs(3), secs(6), secs(9)];
        let policy = RetryPolicy { jitter: 1.0, ..RetryPolicy::default() }.with_delays(listed);
        for (failed, expected) in [(1, 3), (2, 6), (3, 9), (4, 9), (u32::MAX, 9)] {
            assert_eq!(policy.delay(failed, None, 7), secs(expected), "after attempt {failed}");
            assert_eq!(policy.usual_delay(failed, None), secs(expected));
        }
        assert!(policy.delay(1, Some(secs(40)), 0) >= secs(40), "a hint makes the wait longer");
        assert_eq!((policy.max_attempts, policy.validate()), (4, Ok(())));
        let long = RetryPolicy { max_retry_after: Duration::ZERO, ..policy }.with_delays([secs(7200)]);
        assert_eq!(long.longest_delay(), secs(7200), "max-delay caps none of them");
    }

    #[test]
    fn messages_with_one_hint_come_back_one_after_the_other_and_none_before_it() {
        // I12
        let policy = RetryPolicy::default();
        for hint in [secs(10), secs(90_000)] {
            let clamped = hint.min(policy.max_retry_after).as_secs_f64();
            let mut buckets = [0_u32; 8];
            for n in 0..8000 {
                let seed = seed_of(&format!("m-{n}"), 1);
                let delay = policy.delay(1, Some(hint), seed);
                assert_eq!(delay, policy.delay(1, Some(hint), seed), "a function of its arguments");
                let late = delay.as_secs_f64() / clamped - 1.0;
                assert!((0.0..0.2).contains(&late) && delay <= policy.longest_delay(), "{delay:?}");
                buckets[(late * 40.0) as usize] += 1;
            }
            assert!(buckets.iter().all(|n| (800..1200).contains(n)), "{buckets:?}");
        }
    }

    #[test]
    fn the_spread_of_a_hint_ends_no_retries() {
        let policy = RetryPolicy { max_elapsed: Some(secs(60)), ..RetryPolicy::default() };
        for n in 0..100 {
            let seed = seed_of(&format!("m-{n}"), 1);
            let next = policy.next(1, at(0), at(0), Some(secs(59)), seed);
            let Next::At { at: due, .. } = next else { panic!("{next:?}") };
            assert!(due >= at(59) && due <= at(60), "{due}");
        }
        assert_eq!(policy.next(1, at(0), at(0), Some(secs(61)), 1), Next::Exhausted(Limit::Elapsed));
    }

    #[test]
    fn retries_end_at_the_attempts_or_at_the_time_whichever_is_first() {
        // I4
        let policy =
            RetryPolicy { initial_delay: secs(1), max_attempts: 4, max_elapsed: Some(secs(10)), ..steady() };
        let due = |at, delay| Next::At { at, delay };
        let table = [
            (1, at(0), due(at(1), secs(1))),
            (3, at(6), due(at(10), secs(4))),
            (3, at(7), Next::Exhausted(Limit::Elapsed)),
            (4, at(0), Next::Exhausted(Limit::Attempts)),
            (5, at(99), Next::Exhausted(Limit::Attempts)),
        ];
        for (attempts, now, expected) in table {
            assert_eq!(policy.next(attempts, at(0), now, None, 0), expected, "{attempts} at {now}");
        }
        assert_eq!(policy.next(1, at(0), at(0), Some(secs(11)), 0), Next::Exhausted(Limit::Elapsed));
        assert!(!policy.expired(at(0), at(10)) && policy.expired(at(0), at(11)));
        assert!(!steady().expired(at(0), Timestamp::MAX));
    }

    #[test]
    fn time_stops_at_its_end() {
        let policy = RetryPolicy { max_elapsed: Some(Duration::MAX), ..steady() };
        let next = policy.next(1, at(0), Timestamp::MAX, None, 0);
        assert_eq!(next, Next::At { at: Timestamp::MAX, delay: Duration::from_millis(500) });
    }

    #[test]
    fn a_setting_that_cannot_work_is_named() {
        let ok = RetryPolicy::default();
        assert_eq!(ok.validate(), Ok(()));
        let table = [
            (RetryPolicy { max_attempts: 0, ..ok.clone() }, "max-attempts must be at least 1"),
            (RetryPolicy { multiplier: 0.9, ..ok.clone() }, "multiplier must be at least 1"),
            (RetryPolicy { multiplier: f64::NAN, ..ok.clone() }, "multiplier"),
            (RetryPolicy { multiplier: f64::INFINITY, ..ok.clone() }, "multiplier"),
            (RetryPolicy { jitter: -0.1, ..ok.clone() }, "jitter must be between 0 and 1"),
            (RetryPolicy { jitter: 1.1, ..ok.clone() }, "jitter"),
            (RetryPolicy { jitter: f64::NAN, ..ok.clone() }, "jitter"),
            (
                RetryPolicy { initial_delay: secs(31), ..ok.clone() },
                "initial-delay must not be longer than max-delay",
            ),
            (
                RetryPolicy { max_elapsed: Some(Duration::ZERO), ..ok.clone() },
                "max-elapsed must be longer than 0",
            ),
        ];
        for (policy, expected) in table {
            let said = policy.validate().unwrap_err().to_string();
            assert!(said.starts_with(expected), "{said}");
        }
    }

    #[test]
    fn strategies_are_written_as_in_the_configuration() {
        for strategy in [Strategy::InPlace, Strategy::Ordered, Strategy::Unordered, Strategy::Topics] {
            let text = serde_json::to_string(&strategy).unwrap();
            assert_eq!(text, format!("\"{strategy}\""));
        }
    }

    proptest! {
        #[test]
        fn a_delay_stays_within_its_bounds(
            attempt in any::<u32>(), seed in any::<u64>(), jitter in 0.0..=1.0_f64, multiplier in 1.0..1e6_f64,
        ) {
            let policy = RetryPolicy { jitter, multiplier, ..RetryPolicy::default() };
            let (low, high) = (0.5 * (1.0 - jitter), 30.0 * (1.0 + jitter));
            let delay = policy.delay(attempt, None, seed).as_secs_f64();
            prop_assert!(delay >= low - 1e-6 && delay <= high + 1e-6, "{delay}");
        }

        #[test]
        fn no_settings_make_it_panic(attempt in any::<u32>(), jitter in any::<f64>(), multiplier in any::<f64>()) {
            RetryPolicy { jitter, multiplier, ..RetryPolicy::default() }.delay(attempt, None, 1);
        }
    }
}
