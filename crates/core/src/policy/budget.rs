//! Retry budgets: limits per second, per key, per event type and on the backlog.

use std::collections::HashMap;
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::str::FromStr;

use jiff::Timestamp;

use super::PolicyError;

/// The length of the window in which retries per key and per type are counted, in seconds.
const WINDOW_SECONDS: i64 = 3600;
/// The maximum number of keys, and of types, counted in one window (I7).
const COUNTERS_LIMIT: usize = 65_536;
/// The highest rate that a clock of nanoseconds can resolve.
const PER_SECOND_LIMIT: f64 = 1e9;

/// A rate, written `50/s`, `10/m` or `5/h`.
///
/// ```
/// use lazaret_core::policy::Rate;
/// let rate: Rate = "30/m".parse().unwrap();
/// assert_eq!(rate.per_second(), 0.5);
/// assert_eq!(rate.to_string(), "30/m");
/// assert!("0/s".parse::<Rate>().is_err());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct Rate {
    per_second: f64,
}

/// The units of a rate and how many seconds each has.
const UNITS: [(&str, f64); 3] = [("s", 1.0), ("m", 60.0), ("h", 3600.0)];

impl Rate {
    /// The rate as a number per second. It is finite and above zero.
    pub const fn per_second(self) -> f64 {
        self.per_second
    }

    /// The time between two at this rate, in nanoseconds, at least one.
    fn interval_nanos(self) -> i128 {
        // A float cast saturates, so that the slowest rates end as centuries, not as an overflow.
        i128::from((1e9 / self.per_second).ceil() as i64).max(1)
    }

    /// One second's worth, at least one.
    fn burst(self) -> i128 {
        i128::from(self.per_second as u64).max(1)
    }
}

impl FromStr for Rate {
    type Err = PolicyError;

    fn from_str(text: &str) -> Result<Self, PolicyError> {
        let invalid = |why| PolicyError::Invalid { field: "rate", why };
        let malformed = || invalid("must be a number and a unit, like 50/s, 10/m or 5/h");
        let (count, unit) = text.split_once('/').ok_or_else(malformed)?;
        let (_, seconds) = UNITS.into_iter().find(|(name, _)| *name == unit.trim()).ok_or_else(malformed)?;
        let count: f64 = count.trim().parse().map_err(|_| malformed())?;
        let per_second = count / seconds;
        // A count that the division rounds to nothing is a zero as well.
        if per_second.is_nan() || per_second <= 0.0 {
            return Err(invalid("must be above zero"));
        }
        if per_second > PER_SECOND_LIMIT {
            return Err(invalid("must be at most 1000000000/s"));
        }
        Ok(Self { per_second })
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (unit, seconds) in UNITS {
            let count = (self.per_second * seconds).round();
            if count / seconds == self.per_second {
                return write!(f, "{count}/{unit}");
            }
        }
        write!(f, "{}/s", self.per_second)
    }
}

/// The limits on retries of one consumer. What is `None` has no limit.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct BudgetPolicy {
    /// Retries in a time, over all messages. They are delayed, not ended.
    pub rate: Option<Rate>,
    /// Letters that may wait for a retry at once.
    pub backlog: Option<u64>,
    /// Retries of one key in one hour.
    pub per_key: Option<u32>,
    /// Retries of one event type in one hour.
    pub per_type: Option<u32>,
}

impl BudgetPolicy {
    /// Refuses limits of zero: to forbid retries, set the attempts to 1.
    pub fn validate(&self) -> Result<(), PolicyError> {
        let zeroes = [
            ("backlog", self.backlog == Some(0)),
            ("per-key", self.per_key == Some(0)),
            ("per-type", self.per_type == Some(0)),
        ];
        match zeroes.into_iter().find(|(_, zero)| *zero) {
            Some((field, _)) => Err(PolicyError::Invalid { field, why: "must be at least 1" }),
            None => Ok(()),
        }
    }

    /// Returns whether a backlog of this size has reached its limit.
    pub fn backlog_full(&self, backlog: u64) -> bool {
        self.backlog.is_some_and(|limit| backlog >= limit)
    }
}

/// The limit that is exhausted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Dimension {
    /// The retries of this key.
    PerKey,
    /// The retries of this event type.
    PerType,
    /// The letters that wait for a retry.
    Backlog,
}

impl Dimension {
    /// The name used in configuration, output and metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::PerKey => "per-key",
            Self::PerType => "per-type",
            Self::Backlog => "backlog",
        }
    }
}

impl fmt::Display for Dimension {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The answer to "may this retry run now?".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Charge {
    /// It may, and it is counted.
    Granted,
    /// Not yet. Ask again at this time, which is after the time of asking.
    NotBefore(Timestamp),
    /// It may not: this limit is used up.
    Exhausted(Dimension),
}

/// Counts retries against a [`BudgetPolicy`].
///
/// Only a granted retry is counted. When more than 65,536 keys or types are retried in one hour, those that come
/// later are not counted: this limit protects a consumer from few noisy keys, and the attempts of every message
/// are bounded by its retry policy anyway.
///
/// ```
/// use lazaret_core::policy::{Budget, BudgetPolicy, Charge};
/// use lazaret_core::Timestamp;
/// let mut budget = Budget::new(BudgetPolicy { rate: "1/s".parse().ok(), ..BudgetPolicy::default() });
/// let now = Timestamp::UNIX_EPOCH;
/// assert_eq!(budget.charge(now, 7, None), Charge::Granted);
/// assert!(matches!(budget.charge(now, 7, None), Charge::NotBefore(at) if at > now));
/// ```
#[derive(Debug)]
pub struct Budget {
    policy: BudgetPolicy,
    bucket: Option<Bucket>,
    keys: Counters,
    types: Counters,
}

impl Budget {
    /// A budget of which nothing is used yet.
    pub fn new(policy: BudgetPolicy) -> Self {
        let bucket = policy.rate.map(Bucket::new);
        Self { policy, bucket, keys: Counters::default(), types: Counters::default() }
    }

    /// Asks for one retry of a message: `key` is a hash of its sequence. A message without an event type is in
    /// nobody's share of [`per_type`](BudgetPolicy::per_type).
    pub fn charge(&mut self, now: Timestamp, key: u64, event_type: Option<&str>) -> Charge {
        let per_key = self.policy.per_key.map(|limit| (limit, key));
        let per_type = self.policy.per_type.zip(event_type.map(hash));
        if self.keys.is_spent(now, per_key) {
            return Charge::Exhausted(Dimension::PerKey);
        }
        if self.types.is_spent(now, per_type) {
            return Charge::Exhausted(Dimension::PerType);
        }
        if let Some(bucket) = &mut self.bucket
            && let Err(at) = bucket.take(now)
        {
            return Charge::NotBefore(at);
        }
        self.keys.count(per_key);
        self.types.count(per_type);
        Charge::Granted
    }

    /// Takes back a retry that was granted a moment ago and not made.
    pub fn refund(&mut self, now: Timestamp, key: u64, event_type: Option<&str>) {
        if let Some(bucket) = &mut self.bucket {
            bucket.put_back();
        }
        self.keys.uncount(now, self.policy.per_key.map(|_| key));
        self.types.uncount(now, self.policy.per_type.and(event_type).map(hash));
    }
}

fn hash(text: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    hasher.finish()
}

/// A token bucket, kept as the one time at which it will be full again. Whole nanoseconds do not drift, and the
/// time that it names for the next token is exactly the time at which it gives one.
#[derive(Debug)]
struct Bucket {
    interval: i128,
    burst: i128,
    full_at: i128,
}

impl Bucket {
    fn new(rate: Rate) -> Self {
        Self { interval: rate.interval_nanos(), burst: rate.burst(), full_at: i128::MIN }
    }

    /// Takes one token, or returns when there will be one.
    fn take(&mut self, now: Timestamp) -> Result<(), Timestamp> {
        let nanos = now.as_nanosecond();
        // An empty bucket is full after `burst` intervals. A longer wait means that the clock went backwards.
        let full_at = self.full_at.clamp(nanos, nanos + self.burst * self.interval);
        let next_at = full_at - (self.burst - 1) * self.interval;
        if next_at > nanos {
            self.full_at = full_at;
            return Err(Timestamp::from_nanosecond(next_at).unwrap_or(Timestamp::MAX));
        }
        self.full_at = full_at + self.interval;
        Ok(())
    }

    /// Puts a token back that was taken. More than a full bucket is cut to one when the next is taken.
    fn put_back(&mut self) {
        self.full_at = self.full_at.saturating_sub(self.interval);
    }
}

/// Counts by hash in the current window.
#[derive(Debug, Default)]
struct Counters {
    window: i64,
    counts: HashMap<u64, u32>,
}

impl Counters {
    /// Returns whether this share is exhausted in the window of `now`.
    fn is_spent(&mut self, now: Timestamp, share: Option<(u32, u64)>) -> bool {
        self.roll(now);
        share.is_some_and(|(limit, hash)| self.counts.get(&hash).copied().unwrap_or(0) >= limit)
    }

    /// Counts one in the current window.
    fn count(&mut self, share: Option<(u32, u64)>) {
        let Some((_, hash)) = share else { return };
        if self.counts.len() >= COUNTERS_LIMIT && !self.counts.contains_key(&hash) {
            return;
        }
        let count = self.counts.entry(hash).or_insert(0);
        *count = count.saturating_add(1);
    }

    /// Takes one back, if it was counted in the current window.
    fn uncount(&mut self, now: Timestamp, hash: Option<u64>) {
        self.roll(now);
        if let Some(count) = hash.and_then(|hash| self.counts.get_mut(&hash)) {
            *count = count.saturating_sub(1);
        }
    }

    /// Restarts in another window. One window back is a corrected clock and gives no fresh budget;
    /// further back, the old window would last too long.
    fn roll(&mut self, now: Timestamp) {
        let window = now.as_second().div_euclid(WINDOW_SECONDS);
        if window != self.window && window != self.window - 1 {
            self.window = window;
            self.counts.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn at(millisecond: i64) -> Timestamp {
        Timestamp::from_millisecond(millisecond).unwrap()
    }

    fn rate(text: &str) -> Rate {
        text.parse().unwrap()
    }

    fn budget(rate: Option<&str>, per_key: Option<u32>, per_type: Option<u32>) -> Budget {
        Budget::new(BudgetPolicy { rate: rate.map(|r| r.parse().unwrap()), backlog: None, per_key, per_type })
    }

    #[test]
    fn a_rate_is_read_and_written_in_its_unit() {
        let table = [
            ("50/s", 50.0),
            ("10/m", 10.0 / 60.0),
            ("5/h", 5.0 / 3600.0),
            ("100/m", 100.0 / 60.0),
            ("2.5/s", 2.5),
        ];
        for (text, per_second) in table {
            assert_eq!(rate(text).per_second(), per_second, "{text}");
            assert_eq!(rate(&rate(text).to_string()), rate(text), "{text}");
        }
        assert_eq!(rate(" 7 / m ").to_string(), "7/m");
        assert_eq!(rate("100/m").to_string(), "100/m");
        assert_eq!(rate("5/h").to_string(), "5/h");
        assert_eq!(rate("0.1/s").to_string(), "6/m");
    }

    #[test]
    fn a_rate_of_nothing_or_of_nonsense_is_refused() {
        for text in
            ["0/s", "0.0/h", "-1/s", "NaN/s", "inf/s", "1e300/s", "50", "/s", "x/s", "5/d", "5/", "", "1/s/s"]
        {
            assert!(text.parse::<Rate>().is_err(), "{text}");
        }
        assert_eq!("0/s".parse::<Rate>().unwrap_err().to_string(), "rate must be above zero");
    }

    #[test]
    fn a_refund_takes_back_one_retry_of_every_limit_and_no_more() {
        let mut budget = budget(Some("1/s"), Some(1), Some(1));
        budget.refund(at(0), 7, Some("t"));
        assert_eq!(budget.charge(at(0), 7, Some("t")), Charge::Granted);
        budget.refund(at(1), 7, Some("t"));
        assert_eq!(budget.charge(at(1), 7, Some("t")), Charge::Granted);
        assert_eq!(budget.charge(at(2000), 7, None), Charge::Exhausted(Dimension::PerKey));
        assert_eq!(budget.charge(at(2000), 8, Some("t")), Charge::Exhausted(Dimension::PerType));
        assert!(matches!(budget.charge(at(999), 8, None), Charge::NotBefore(_)));
    }

    #[test]
    fn zero_limits_are_refused() {
        let none = BudgetPolicy::default();
        assert!(none.validate().is_ok());
        assert!(BudgetPolicy { backlog: Some(0), ..none.clone() }.validate().is_err());
        assert!(BudgetPolicy { per_key: Some(0), ..none.clone() }.validate().is_err());
        let error = BudgetPolicy { per_type: Some(0), ..none }.validate().unwrap_err();
        assert_eq!(error.to_string(), "per-type must be at least 1");
    }

    #[test]
    fn one_seconds_worth_passes_at_once_and_then_one_by_one() {
        let mut budget = budget(Some("50/s"), None, None);
        for _ in 0..50 {
            assert_eq!(budget.charge(at(0), 1, None), Charge::Granted);
        }
        assert_eq!(budget.charge(at(0), 1, None), Charge::NotBefore(at(20)));
        assert_eq!(budget.charge(at(19), 1, None), Charge::NotBefore(at(20)));
        assert_eq!(budget.charge(at(20), 1, None), Charge::Granted);
        assert_eq!(budget.charge(at(20), 1, None), Charge::NotBefore(at(40)));
    }

    #[test]
    fn a_slow_rate_lets_the_first_one_through() {
        let mut budget = budget(Some("5/h"), None, None);
        assert_eq!(budget.charge(at(0), 1, None), Charge::Granted);
        assert_eq!(budget.charge(at(1), 1, None), Charge::NotBefore(at(720_000)));
        assert_eq!(budget.charge(at(720_000), 1, None), Charge::Granted);
    }

    #[test]
    fn a_noisy_key_is_stopped_and_the_others_are_not() {
        // I3
        let mut budget = budget(None, Some(2), None);
        let answers: Vec<_> = [1, 1, 1, 2].iter().map(|key| budget.charge(at(0), *key, None)).collect();
        let spent = Charge::Exhausted(Dimension::PerKey);
        assert_eq!(answers, [Charge::Granted, Charge::Granted, spent, Charge::Granted]);
        assert_eq!(budget.charge(at(3_599_999), 1, None), spent);
        assert_eq!(budget.charge(at(3_600_000), 1, None), Charge::Granted);
    }

    #[test]
    fn a_noisy_type_is_stopped_and_untyped_messages_are_not() {
        let mut budget = budget(None, None, Some(1));
        assert_eq!(budget.charge(at(0), 1, Some("a")), Charge::Granted);
        assert_eq!(budget.charge(at(0), 2, Some("a")), Charge::Exhausted(Dimension::PerType));
        assert_eq!(budget.charge(at(0), 2, Some("b")), Charge::Granted);
        assert_eq!(budget.charge(at(0), 2, None), Charge::Granted);
        assert_eq!(budget.charge(at(0), 2, None), Charge::Granted);
    }

    #[test]
    fn only_a_granted_retry_is_charged() {
        let mut budget = budget(Some("1/s"), Some(2), Some(2));
        assert_eq!(budget.charge(at(0), 1, Some("a")), Charge::Granted);
        for _ in 0..10 {
            assert_eq!(budget.charge(at(0), 1, Some("a")), Charge::NotBefore(at(1000)));
        }
        assert_eq!(budget.charge(at(1000), 1, Some("a")), Charge::Granted);
        // Exhaustion is reported before the rate, and takes no token.
        assert_eq!(budget.charge(at(1000), 1, Some("b")), Charge::Exhausted(Dimension::PerKey));
        assert_eq!(budget.charge(at(2000), 2, Some("a")), Charge::Exhausted(Dimension::PerType));
        assert_eq!(budget.charge(at(2000), 2, Some("b")), Charge::Granted);
    }

    #[test]
    fn the_counters_are_bounded() {
        // I7
        let mut budget = budget(None, Some(1), None);
        for key in 0..COUNTERS_LIMIT as u64 + 10 {
            assert_eq!(budget.charge(at(0), key, None), Charge::Granted);
        }
        assert_eq!(budget.keys.counts.len(), COUNTERS_LIMIT);
        assert_eq!(budget.charge(at(0), 0, None), Charge::Exhausted(Dimension::PerKey));
    }

    #[test]
    fn a_clock_that_goes_back_makes_nobody_wait_longer() {
        let mut budget = budget(Some("1/s"), Some(1), None);
        assert_eq!(budget.charge(at(90_000_000), 1, None), Charge::Granted);
        assert_eq!(budget.charge(at(50_000), 2, None), Charge::NotBefore(at(51_000)));
        assert_eq!(budget.charge(at(51_000), 1, None), Charge::Granted);
    }

    #[test]
    fn a_clock_that_goes_back_over_the_hour_gives_no_fresh_budget() {
        let mut budget = budget(None, Some(1), None);
        assert_eq!(budget.charge(at(3_600_000), 1, None), Charge::Granted);
        assert_eq!(budget.charge(at(3_599_999), 1, None), Charge::Exhausted(Dimension::PerKey));
        assert_eq!(budget.charge(at(3_600_000), 1, None), Charge::Exhausted(Dimension::PerKey));
    }

    #[test]
    fn a_full_backlog_is_known() {
        let budget = BudgetPolicy { backlog: Some(10), ..BudgetPolicy::default() };
        assert_eq!((budget.backlog_full(9), budget.backlog_full(10)), (false, true));
        assert!(!BudgetPolicy::default().backlog_full(u64::MAX));
    }

    proptest! {
        #[test]
        fn waiting_until_the_named_time_is_always_enough(
            per_second in 1e-12_f64..1e9,
            times in proptest::collection::vec(-377_705_023_201_i64..=253_402_207_200, 1..20),
        ) {
            let mut budget = Budget::new(BudgetPolicy { rate: Some(Rate { per_second }), ..BudgetPolicy::default() });
            for second in times {
                let now = Timestamp::from_second(second).unwrap();
                if let Charge::NotBefore(later) = budget.charge(now, 1, None) {
                    prop_assert!(later > now);
                    if later < Timestamp::MAX {
                        prop_assert_eq!(budget.charge(later, 1, None), Charge::Granted);
                    }
                }
            }
        }

        #[test]
        fn any_rate_survives_being_written(per_second in 1e-12_f64..1e9) {
            let rate = Rate { per_second };
            prop_assert_eq!(rate.to_string().parse::<Rate>().unwrap(), rate);
        }
    }
}
