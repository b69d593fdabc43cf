//! What is so, rather than what happened: rates, ages and silences of one consumer, as pure functions of what was seen.

use std::time::Duration;

use lazaret_core::{LetterState, Timestamp};
use lazaret_engine::{Handle, Stats};

use super::notice::Facts;
use super::rules;
use crate::metrics::{Overview, age, scope_name};

/// From where on something is worth telling.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Thresholds {
    /// Over how long rates are taken.
    pub window: Duration,
    /// Retries a second.
    pub retry_rate: f64,
    /// The share of attempts that fail.
    pub storm_share: f64,
    /// How many must have failed in a window for that.
    pub storm_failures: u64,
    /// How long a letter may wait for its retries.
    pub retry_age: Duration,
    /// For how many windows in a row nothing may be handled while messages wait.
    pub blocked_windows: u32,
    /// How long a pause may last.
    pub paused_for: Duration,
    /// How long something must not have happened to be over.
    pub quiet: Duration,
}

impl Default for Thresholds {
    /// The same as in `deploy/prometheus/alerts.yml`.
    fn default() -> Self {
        Self {
            window: Duration::from_secs(60),
            retry_rate: 10.0,
            storm_share: 0.5,
            storm_failures: 100,
            retry_age: Duration::from_secs(15 * 60),
            blocked_windows: 5,
            paused_for: Duration::from_secs(15 * 60),
            quiet: Duration::from_secs(10 * 60),
        }
    }
}

/// What was seen of one consumer at one moment.
#[derive(Clone, Debug, Default)]
pub(super) struct Seen {
    pub(super) stats: Stats,
    pub(super) in_flight: u64,
    pub(super) lag: Option<u64>,
    /// Messages are held back on purpose, or by the store.
    pub(super) held: bool,
    /// The oldest pause: what it pauses, and since when.
    pub(super) paused: Option<(&'static str, Timestamp)>,
    /// When the oldest letter that waits for a retry was taken in.
    pub(super) retrying_since: Option<Timestamp>,
}

impl Seen {
    pub(super) fn of(handle: &Handle, overview: &Overview) -> Self {
        let pauses = handle.pauses();
        let oldest = pauses.iter().min_by_key(|pause| pause.since);
        let retrying = LetterState::Retrying.as_str();
        Self {
            stats: handle.stats(),
            in_flight: handle.in_flight(),
            lag: handle.lag(),
            held: !pauses.is_empty() || handle.has_store_trouble(),
            paused: oldest.map(|pause| (scope_name(&pause.scope), pause.since)),
            retrying_since: handle
                .queues()
                .filter_map(|queue| overview.get(queue)?.oldest.get(retrying).copied())
                .min(),
        }
    }
}

/// What is remembered of a consumer between looks.
#[derive(Debug, Default)]
pub(super) struct Watch {
    /// What it had done when the window began, and when that was.
    begun: Option<(Stats, Timestamp)>,
    silent_windows: u32,
}

/// One thing that is so or not.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Level {
    pub(super) event: &'static str,
    pub(super) up: bool,
    pub(super) facts: Facts,
}

impl Watch {
    /// What is so now. Rates are told once a window, the rest at every look.
    pub(super) fn look(&mut self, seen: &Seen, limits: &Thresholds, now: Timestamp) -> Vec<Level> {
        let mut levels = vec![pause(seen, limits, now), oldest_retry(seen, limits, now)];
        let (before, since) = *self.begun.get_or_insert((seen.stats, now));
        let lasted = age(since, now);
        if seen.stats.read < before.read || seen.stats.handled < before.handled {
            // It was started anew and counts from zero.
            self.begun = Some((seen.stats, now));
        } else if lasted >= limits.window {
            self.begun = Some((seen.stats, now));
            levels.extend(rates(&before, &seen.stats, lasted, limits));
            levels.push(self.silence(&before, seen, limits));
        }
        levels
    }

    /// Messages wait and none is handled.
    fn silence(&mut self, before: &Stats, seen: &Seen, limits: &Thresholds) -> Level {
        let silent = seen.stats.handled == before.handled
            && !seen.held
            && seen.in_flight > 0
            && (seen.lag.is_some_and(|lag| lag > 0) || seen.stats.failed > before.failed);
        self.silent_windows = if silent { self.silent_windows.saturating_add(1) } else { 0 };
        let facts = Facts { value: Some(seen.in_flight as f64), ..Facts::default() };
        Level { event: rules::BLOCKED, up: self.silent_windows >= limits.blocked_windows, facts }
    }
}

fn measured(event: &'static str, up: bool, value: f64, limit: f64) -> Level {
    Level { event, up, facts: Facts { value: Some(value), limit: Some(limit), ..Facts::default() } }
}

fn pause(seen: &Seen, limits: &Thresholds, now: Timestamp) -> Level {
    let lasted = seen.paused.map_or(Duration::ZERO, |(_, since)| age(since, now));
    let (value, limit) = (lasted.as_secs_f64(), limits.paused_for.as_secs_f64());
    let mut level = measured(rules::PAUSED_TOO_LONG, lasted >= limits.paused_for, value, limit);
    level.facts.scope = seen.paused.map(|(scope, _)| scope);
    level
}

fn oldest_retry(seen: &Seen, limits: &Thresholds, now: Timestamp) -> Level {
    let waited = seen.retrying_since.map_or(Duration::ZERO, |since| age(since, now));
    let (value, limit) = (waited.as_secs_f64(), limits.retry_age.as_secs_f64());
    measured(rules::RETRY_AGE, waited >= limits.retry_age, value, limit)
}

fn rates(before: &Stats, after: &Stats, lasted: Duration, limits: &Thresholds) -> [Level; 2] {
    let rate = (after.retries - before.retries.min(after.retries)) as f64 / lasted.as_secs_f64();
    let failed = after.failed.saturating_sub(before.failed);
    let attempts = failed + after.handled.saturating_sub(before.handled);
    let share = if attempts == 0 { 0.0 } else { failed as f64 / attempts as f64 };
    let storm = failed >= limits.storm_failures && share >= limits.storm_share;
    [
        measured(rules::RETRY_RATE, rate >= limits.retry_rate, rate, limits.retry_rate),
        measured(rules::RETRY_STORM, storm, share, limits.storm_share),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(seconds).unwrap()
    }

    fn up(levels: &[Level]) -> Vec<&'static str> {
        levels.iter().filter(|level| level.up).map(|level| level.event).collect()
    }

    fn seen(handled: u64, failed: u64, retries: u64) -> Seen {
        let mut seen = Seen { in_flight: 3, lag: Some(9), ..Seen::default() };
        (seen.stats.handled, seen.stats.failed, seen.stats.retries) = (handled, failed, retries);
        seen
    }

    #[test]
    fn a_pause_and_a_retry_are_told_when_they_last_too_long() {
        let limits = Thresholds::default();
        let long = Seen { paused: Some(("consumer", at(0))), retrying_since: Some(at(0)), ..Seen::default() };
        let mut watch = Watch::default();
        assert!(up(&watch.look(&long, &limits, at(899))).is_empty());
        assert_eq!(up(&watch.look(&long, &limits, at(900))), ["paused-too-long", "retry-age"]);
    }

    #[test]
    fn many_retries_and_a_storm_are_told_once_a_window() {
        let limits = Thresholds::default();
        let mut watch = Watch::default();
        assert!(up(&watch.look(&seen(0, 0, 0), &limits, at(0))).is_empty());
        assert!(up(&watch.look(&seen(10, 900, 900), &limits, at(59))).is_empty(), "the window is not over");
        assert_eq!(up(&watch.look(&seen(10, 900, 900), &limits, at(60))), ["retry-rate", "retry-storm"]);
        let calm = watch.look(&seen(1000, 901, 901), &limits, at(120));
        assert!(up(&calm).is_empty());
        assert!(calm.iter().any(|level| level.event == "retry-storm"), "that it is over is told as well");
    }

    #[test]
    fn nothing_handled_for_five_windows_while_messages_wait_is_a_blockade() {
        let limits = Thresholds::default();
        let mut watch = Watch::default();
        let mut when = 0;
        let mut look = |seen: &Seen| {
            when += 60;
            up(&watch.look(seen, &limits, at(when)))
        };
        look(&seen(5, 0, 0));
        for _ in 0..4 {
            assert!(look(&seen(5, 1, 0)).is_empty());
        }
        assert_eq!(look(&seen(5, 1, 0)), ["blocked"]);
        assert!(look(&seen(6, 1, 0)).is_empty(), "one that is handled ends it");
        let held = Seen { held: true, ..seen(6, 1, 0) };
        for _ in 0..9 {
            assert!(look(&held).is_empty(), "a pause is no blockade");
        }
    }

    #[test]
    fn a_consumer_that_starts_anew_is_no_burst() {
        let limits = Thresholds::default();
        let mut watch = Watch::default();
        watch.look(&seen(500, 500, 500), &limits, at(0));
        assert!(up(&watch.look(&seen(3, 1, 1), &limits, at(60))).is_empty());
        assert!(up(&watch.look(&seen(5, 2, 2), &limits, at(120))).is_empty());
    }
}
