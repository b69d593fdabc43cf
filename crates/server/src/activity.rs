//! Records the throughput of the consumers of this process, in buckets of time.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use lazaret_api::ConsumerActivity;

use crate::app::App;

/// The width of a bucket, in seconds.
pub(crate) const BUCKET_SECONDS: i64 = 15;
/// The number of buckets: one hour.
const BUCKETS: usize = 240;
/// The interval of samples.
const INTERVAL: Duration = Duration::from_secs(5);

/// The messages handled and the failed attempts of a consumer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Totals {
    pub(crate) handled: u64,
    pub(crate) failed: u64,
}

/// The throughput of the consumers. Clones share it.
#[derive(Clone, Default)]
pub(crate) struct ActivityLog(Arc<Mutex<Recorded>>);

#[derive(Default)]
struct Recorded {
    /// Whether a sample was taken before: a consumer that is new since then has started from zero.
    has_started: bool,
    consumers: BTreeMap<String, Buckets>,
}

struct Buckets {
    /// The totals at the last sample.
    last: Totals,
    /// The number of the last bucket since the Unix epoch.
    number: i64,
    /// The last buckets, the current one at the end.
    buckets: VecDeque<Totals>,
}

impl ActivityLog {
    /// Records the totals of all consumers at a time. Those that are missing have left the process.
    pub(crate) fn sample(&self, totals: BTreeMap<String, Totals>, now: Timestamp) {
        let mut recorded = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let has_started = std::mem::replace(&mut recorded.has_started, true);
        recorded.consumers.retain(|name, _| totals.contains_key(name));
        for (name, totals) in totals {
            let first = if has_started { Totals::default() } else { totals };
            recorded.consumers.entry(name).or_insert_with(|| Buckets::new(first, now)).add(totals, now);
        }
    }

    /// The throughput of the consumers, up to this time.
    pub(crate) fn at(&self, now: Timestamp) -> Vec<ConsumerActivity> {
        let mut recorded = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let of = |(name, buckets): (&String, &mut Buckets)| {
            buckets.advance(now);
            ConsumerActivity {
                name: name.clone(),
                handled: buckets.buckets.iter().map(|bucket| bucket.handled).collect(),
                failed: buckets.buckets.iter().map(|bucket| bucket.failed).collect(),
            }
        };
        recorded.consumers.iter_mut().map(of).collect()
    }
}

impl Buckets {
    fn new(last: Totals, now: Timestamp) -> Self {
        let buckets = VecDeque::from(vec![Totals::default(); BUCKETS]);
        Self { last, number: number(now), buckets }
    }

    /// Drops the buckets that are too old. A clock that was set back keeps the last one.
    fn advance(&mut self, now: Timestamp) {
        let passed = usize::try_from(number(now) - self.number).unwrap_or(0).min(BUCKETS);
        self.number = self.number.max(number(now));
        self.buckets.drain(..passed);
        self.buckets.resize(BUCKETS, Totals::default());
    }

    fn add(&mut self, totals: Totals, now: Timestamp) {
        self.advance(now);
        // The counters of a restarted consumer start from zero.
        let since = |now: u64, last: u64| if now >= last { now - last } else { now };
        if let Some(current) = self.buckets.back_mut() {
            current.handled += since(totals.handled, self.last.handled);
            current.failed += since(totals.failed, self.last.failed);
        }
        self.last = totals;
    }
}

fn number(time: Timestamp) -> i64 {
    time.as_second().div_euclid(BUCKET_SECONDS)
}

/// Samples the consumers of this process.
pub(crate) fn sample(app: &App) {
    let running = app.registry.all().into_iter().filter_map(|(name, entry)| {
        let stats = entry.handle?.stats();
        Some((name, Totals { handled: stats.handled, failed: stats.failed }))
    });
    app.activity.sample(running.collect(), app.clock.now());
}

/// Samples the consumers until the server stops.
pub(crate) async fn record(app: App) {
    loop {
        sample(&app);
        tokio::select! {
            () = app.stopping.cancelled() => return,
            () = tokio::time::sleep(INTERVAL) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn sample(log: &ActivityLog, second: i64, consumers: &[(&str, u64, u64)]) {
        let totals = consumers.iter().map(|(name, handled, failed)| {
            ((*name).to_owned(), Totals { handled: *handled, failed: *failed })
        });
        log.sample(totals.collect(), at(second));
    }

    fn last(log: &ActivityLog, second: i64, buckets: usize) -> Vec<(String, Vec<u64>, Vec<u64>)> {
        let shown = |of: ConsumerActivity| {
            assert_eq!((of.handled.len(), of.failed.len()), (BUCKETS, BUCKETS));
            (of.name, of.handled[BUCKETS - buckets..].to_vec(), of.failed[BUCKETS - buckets..].to_vec())
        };
        log.at(at(second)).into_iter().map(shown).collect()
    }

    #[test]
    fn counts_since_the_last_sample_are_added_to_the_current_bucket() {
        let log = ActivityLog::default();
        sample(&log, 0, &[("a", 1000, 7)]);
        sample(&log, 5, &[("a", 1010, 7), ("new", 3, 1)]);
        sample(&log, 15, &[("a", 1030, 9), ("new", 3, 1)]);
        let expected =
            vec![("a".to_owned(), vec![10, 20], vec![0, 2]), ("new".to_owned(), vec![3, 0], vec![1, 0])];
        assert_eq!(last(&log, 16, 2), expected);
        assert_eq!(
            last(&log, 31, 1),
            [("a".to_owned(), vec![0], vec![0]), ("new".to_owned(), vec![0], vec![0])]
        );
        assert_eq!(last(&log, 15 * 1000, 3)[0].1, [0, 0, 0], "an hour later");
    }

    #[test]
    fn a_restarted_consumer_counts_from_zero() {
        let log = ActivityLog::default();
        sample(&log, 0, &[("a", 100, 0)]);
        sample(&log, 1, &[("a", 4, 0)]);
        assert_eq!(last(&log, 1, 1)[0].1, [4]);
        sample(&log, 2, &[]);
        assert!(log.at(at(2)).is_empty(), "it has left the process");
    }

    #[test]
    fn a_clock_that_is_set_back_loses_no_counts() {
        let log = ActivityLog::default();
        sample(&log, 100, &[("a", 0, 0)]);
        sample(&log, 40, &[("a", 5, 0)]);
        assert_eq!(last(&log, 40, 1)[0].1, [5]);
    }
}
