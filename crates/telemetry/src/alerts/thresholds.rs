//! Evaluates rates, ages and stalls of one consumer against thresholds, as pure functions of samples.

use std::time::Duration;

use lazaret_core::{LetterState, QueueName, Timestamp};
use lazaret_engine::{Handle, Stats};

use super::notice::Facts;
use super::rules::AlertEvent;
use crate::age::age;
use crate::metrics::{Overview, scope_name};

/// The thresholds from which conditions fire.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Thresholds {
    /// The window over which rates are measured.
    pub window: Duration,
    /// Retries per second.
    pub retry_rate: f64,
    /// The share of attempts that fail.
    pub storm_share: f64,
    /// The minimum number of failures per window for a retry storm.
    pub storm_failures: u64,
    /// The age of the oldest message that is retried, in the store or in memory, since its first failed attempt.
    pub retry_age: Duration,
    /// The age of the oldest running attempt.
    pub attempt_age: Duration,
    /// The number of consecutive windows without a handled message while messages wait.
    pub blocked_windows: u32,
    /// The duration of a pause.
    pub paused_for: Duration,
    /// The time until the next letter of a queue expires.
    pub expires_within: Duration,
    /// The time without an occurrence after which an alert is resolved.
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
            attempt_age: Duration::from_secs(15 * 60),
            blocked_windows: 5,
            paused_for: Duration::from_secs(15 * 60),
            expires_within: Duration::from_secs(24 * 3600),
            quiet: Duration::from_secs(10 * 60),
        }
    }
}

/// A snapshot of one consumer.
#[derive(Clone, Debug, Default)]
pub(super) struct Sample {
    pub(super) stats: Stats,
    pub(super) in_flight: u64,
    pub(super) lag: Option<u64>,
    /// Whether messages are held by a pause or by the store.
    pub(super) held: bool,
    /// The scope and the start of the oldest pause.
    pub(super) paused: Option<(&'static str, Timestamp)>,
    /// When the oldest retrying letter was enqueued, or the oldest message that waits in memory first failed.
    pub(super) retrying_since: Option<Timestamp>,
    /// When the oldest message that waits in memory first failed.
    pub(super) failing_since: Option<Timestamp>,
    /// The age of the oldest running attempt.
    pub(super) attempt_age: Duration,
    /// The queues, each with the time at which its next letter expires.
    pub(super) next_expiries: Vec<(QueueName, Option<Timestamp>)>,
}

impl Sample {
    pub(super) fn of(handle: &Handle, overview: &Overview) -> Self {
        let pauses = handle.pauses();
        let oldest = pauses.iter().min_by_key(|pause| pause.since);
        let failing_since = handle.queues().filter_map(|queue| handle.failing_since(queue)).min();
        let stored = |queue| overview.get(queue)?.oldest.get(&LetterState::Retrying).copied();
        let next_expiry = |queue: &QueueName| overview.get(queue).and_then(|queue| queue.next_expiry);
        Self {
            stats: handle.stats(),
            in_flight: handle.in_flight(),
            lag: handle.lag(),
            held: !pauses.is_empty() || handle.is_store_failing(),
            paused: oldest.map(|pause| (scope_name(&pause.scope), pause.since)),
            retrying_since: handle.queues().filter_map(stored).chain(failing_since).min(),
            failing_since,
            attempt_age: handle.attempt_age().unwrap_or_default(),
            next_expiries: handle.queues().map(|queue| (queue.clone(), next_expiry(queue))).collect(),
        }
    }
}

/// The state of one consumer between samples.
#[derive(Debug, Default)]
pub(super) struct Evaluator {
    /// The counters at the start of the window, and that time.
    window: Option<(Stats, Timestamp)>,
    stalled_windows: u32,
}

/// The evaluation of one condition.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Condition {
    pub(super) event: AlertEvent,
    /// The queue, where the event concerns one.
    pub(super) detail: Option<String>,
    pub(super) holds: bool,
    pub(super) facts: Facts,
}

impl Evaluator {
    /// Evaluates a sample. Rates are evaluated once per window, the rest at every sample.
    pub(super) fn evaluate(
        &mut self,
        sample: &Sample,
        limits: &Thresholds,
        now: Timestamp,
    ) -> Vec<Condition> {
        let mut conditions = vec![pause(sample, limits, now), oldest_retry(sample, limits, now)];
        let next_expiries = sample.next_expiries.iter();
        conditions.extend(next_expiries.map(|(queue, next)| expiring(queue, *next, limits, now)));
        let (before, since) = *self.window.get_or_insert((sample.stats, now));
        let elapsed = age(since, now);
        if sample.stats.read < before.read || sample.stats.handled < before.handled {
            // The consumer was restarted and counts from zero.
            self.window = Some((sample.stats, now));
        } else if elapsed >= limits.window {
            self.window = Some((sample.stats, now));
            conditions.extend(rates(&before, &sample.stats, elapsed, limits));
            conditions.push(self.blocked(&before, sample, limits));
        }
        conditions
    }

    /// Messages wait and none is handled, or one attempt does not end while others are handled.
    fn blocked(&mut self, before: &Stats, sample: &Sample, limits: &Thresholds) -> Condition {
        let attempt = sample.attempt_age;
        let waits = sample.lag.is_some_and(|lag| lag > 0)
            || sample.stats.failed > before.failed
            || sample.failing_since.is_some()
            || attempt >= limits.window;
        let stalled = sample.stats.handled == before.handled && !sample.held && sample.in_flight > 0 && waits;
        self.stalled_windows = if stalled { self.stalled_windows.saturating_add(1) } else { 0 };
        if attempt >= limits.attempt_age {
            let (value, limit) = (attempt.as_secs_f64(), limits.attempt_age.as_secs_f64());
            return measured(AlertEvent::Blocked, true, value, limit);
        }
        let facts = Facts { value: Some(sample.in_flight as f64), ..Facts::default() };
        let holds = self.stalled_windows >= limits.blocked_windows;
        Condition { event: AlertEvent::Blocked, detail: None, holds, facts }
    }
}

fn measured(event: AlertEvent, holds: bool, value: f64, limit: f64) -> Condition {
    let facts = Facts { value: Some(value), limit: Some(limit), ..Facts::default() };
    Condition { event, detail: None, holds, facts }
}

fn pause(sample: &Sample, limits: &Thresholds, now: Timestamp) -> Condition {
    let elapsed = sample.paused.map_or(Duration::ZERO, |(_, since)| age(since, now));
    let (value, limit) = (elapsed.as_secs_f64(), limits.paused_for.as_secs_f64());
    let mut condition = measured(AlertEvent::PausedTooLong, elapsed >= limits.paused_for, value, limit);
    condition.facts.scope = sample.paused.map(|(scope, _)| scope);
    condition
}

fn oldest_retry(sample: &Sample, limits: &Thresholds, now: Timestamp) -> Condition {
    let elapsed = sample.retrying_since.map_or(Duration::ZERO, |since| age(since, now));
    let (value, limit) = (elapsed.as_secs_f64(), limits.retry_age.as_secs_f64());
    measured(AlertEvent::RetryAge, elapsed >= limits.retry_age, value, limit)
}

/// It holds until the letter is closed, which may be a little after its time.
fn expiring(queue: &QueueName, next: Option<Timestamp>, limits: &Thresholds, now: Timestamp) -> Condition {
    let left = next.map(|at| age(now, at));
    let holds = left.is_some_and(|left| left <= limits.expires_within);
    let (value, limit) = (left.unwrap_or_default().as_secs_f64(), limits.expires_within.as_secs_f64());
    let mut condition = measured(AlertEvent::LettersExpiring, holds, value, limit);
    condition.facts.queue = Some(queue.to_string());
    condition.detail = Some(queue.to_string());
    condition
}

fn rates(before: &Stats, after: &Stats, elapsed: Duration, limits: &Thresholds) -> [Condition; 2] {
    let rate = (after.retries - before.retries.min(after.retries)) as f64 / elapsed.as_secs_f64();
    let failed = after.failed.saturating_sub(before.failed);
    let attempts = failed + after.handled.saturating_sub(before.handled);
    let share = if attempts == 0 { 0.0 } else { failed as f64 / attempts as f64 };
    let storm = failed >= limits.storm_failures && share >= limits.storm_share;
    [
        measured(AlertEvent::RetryRate, rate >= limits.retry_rate, rate, limits.retry_rate),
        measured(AlertEvent::RetryStorm, storm, share, limits.storm_share),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(seconds).unwrap()
    }

    fn holding(conditions: &[Condition]) -> Vec<&'static str> {
        conditions.iter().filter(|c| c.holds).map(|c| c.event.as_str()).collect()
    }

    fn sample(handled: u64, failed: u64, retries: u64) -> Sample {
        let mut sample = Sample { in_flight: 3, lag: Some(9), ..Sample::default() };
        (sample.stats.handled, sample.stats.failed, sample.stats.retries) = (handled, failed, retries);
        sample
    }

    #[test]
    fn a_pause_and_a_retry_fire_when_they_exceed_their_age_limit() {
        let limits = Thresholds::default();
        let old =
            Sample { paused: Some(("consumer", at(0))), retrying_since: Some(at(0)), ..Sample::default() };
        let mut evaluator = Evaluator::default();
        assert!(holding(&evaluator.evaluate(&old, &limits, at(899))).is_empty());
        assert_eq!(holding(&evaluator.evaluate(&old, &limits, at(900))), ["paused-too-long", "retry-age"]);
    }

    #[test]
    fn letters_that_expire_are_told_a_day_before_for_each_queue() {
        let (limits, mut evaluator) = (Thresholds::default(), Evaluator::default());
        let [orders, mails] = ["orders", "mails"].map(|component| QueueName::of("shop", component));
        let next = |at| Sample {
            next_expiries: vec![(orders.clone(), Some(at)), (mails.clone(), None)],
            ..Sample::default()
        };
        let day = 24 * 3600;
        let mut expiring = |sample: &Sample, now| {
            let mut conditions = evaluator.evaluate(sample, &limits, at(now));
            conditions.retain(|condition| condition.event == AlertEvent::LettersExpiring);
            assert_eq!(conditions.len(), 2, "the end is reported as well");
            conditions.retain(|condition| condition.holds);
            conditions
        };
        assert!(expiring(&next(at(day + 10)), 9).is_empty());
        for (now, left) in [(10, 86_400.0), (day, 10.0), (day + 60, 0.0)] {
            let condition = expiring(&next(at(day + 10)), now).remove(0);
            assert_eq!(condition.detail.as_deref(), Some("shop/orders"));
            let facts = condition.facts;
            assert_eq!((facts.value, facts.limit), (Some(left), Some(86_400.0)), "at {now}");
            assert_eq!(facts.queue.as_deref(), Some("shop/orders"));
        }
        assert!(expiring(&next(at(30 * day)), day).is_empty(), "it was replayed");
    }

    #[test]
    fn retry_rate_and_retry_storm_are_evaluated_once_per_window() {
        let limits = Thresholds::default();
        let mut evaluator = Evaluator::default();
        assert!(holding(&evaluator.evaluate(&sample(0, 0, 0), &limits, at(0))).is_empty());
        let early = evaluator.evaluate(&sample(10, 900, 900), &limits, at(59));
        assert!(holding(&early).is_empty(), "the window is not over");
        let storm = evaluator.evaluate(&sample(10, 900, 900), &limits, at(60));
        assert_eq!(holding(&storm), ["retry-rate", "retry-storm"]);
        let calm = evaluator.evaluate(&sample(1000, 901, 901), &limits, at(120));
        assert!(holding(&calm).is_empty());
        assert!(calm.iter().any(|c| c.event == AlertEvent::RetryStorm), "its end is reported as well");
    }

    #[test]
    fn five_windows_without_a_handled_message_while_messages_wait_are_blocked() {
        let limits = Thresholds::default();
        let mut evaluator = Evaluator::default();
        let mut when = 0;
        let mut evaluate = |sample: &Sample| {
            when += 60;
            holding(&evaluator.evaluate(sample, &limits, at(when)))
        };
        evaluate(&sample(5, 0, 0));
        for _ in 0..4 {
            assert!(evaluate(&sample(5, 1, 0)).is_empty());
        }
        assert_eq!(evaluate(&sample(5, 1, 0)), ["blocked"]);
        assert!(evaluate(&sample(6, 1, 0)).is_empty(), "one handled message ends it");
        let held = Sample { held: true, ..sample(6, 1, 0) };
        for _ in 0..9 {
            assert!(evaluate(&held).is_empty(), "a paused consumer is not blocked");
        }
    }

    /// Evaluates a sample at each of these minutes, and returns what holds at the last one. Nothing holds before.
    fn after_five_windows(sample: impl Fn(u64) -> Sample) -> Vec<&'static str> {
        let (limits, mut evaluator) = (Thresholds::default(), Evaluator::default());
        let mut evaluate =
            |minute: u64| holding(&evaluator.evaluate(&sample(minute), &limits, at(60 * minute as i64)));
        for minute in 0..5 {
            assert!(evaluate(minute).is_empty(), "minute {minute}");
        }
        evaluate(5)
    }

    #[test]
    fn a_retry_that_waits_in_memory_blocks_and_has_an_age() {
        // One message of a quiet topic waits in place for half an hour: no lag, and no failures meanwhile.
        let quiet = Sample { in_flight: 1, lag: Some(0), ..Sample::default() };
        assert!(after_five_windows(|_| quiet.clone()).is_empty());
        let waits = Sample { failing_since: Some(at(0)), retrying_since: Some(at(0)), ..quiet };
        assert_eq!(after_five_windows(|_| waits.clone()), ["blocked"]);
        let late = Evaluator::default().evaluate(&waits, &Thresholds::default(), at(900));
        assert_eq!(holding(&late), ["retry-age"]);
    }

    #[test]
    fn an_attempt_that_does_not_end_blocks_also_while_others_are_handled() {
        let hangs =
            |handled, seconds| Sample { attempt_age: Duration::from_secs(seconds), ..sample(handled, 0, 0) };
        let alone = |minute| Sample { lag: Some(0), ..hangs(0, 60 * (minute + 1)) };
        assert_eq!(after_five_windows(alone), ["blocked"]);
        let (limits, mut evaluator) = (Thresholds::default(), Evaluator::default());
        assert!(holding(&evaluator.evaluate(&hangs(1, 0), &limits, at(0))).is_empty());
        assert!(holding(&evaluator.evaluate(&hangs(2, 899), &limits, at(899))).is_empty());
        let hanging = evaluator.evaluate(&hangs(3, 960), &limits, at(960));
        assert_eq!(holding(&hanging), ["blocked"]);
        let facts = &hanging.iter().find(|condition| condition.holds).unwrap().facts;
        assert_eq!((facts.value, facts.limit), (Some(960.0), Some(900.0)));
    }

    #[test]
    fn a_restarted_consumer_is_not_a_burst() {
        let limits = Thresholds::default();
        let mut evaluator = Evaluator::default();
        evaluator.evaluate(&sample(500, 500, 500), &limits, at(0));
        assert!(holding(&evaluator.evaluate(&sample(3, 1, 1), &limits, at(60))).is_empty());
        assert!(holding(&evaluator.evaluate(&sample(5, 2, 2), &limits, at(120))).is_empty());
    }
}
