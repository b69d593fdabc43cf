//! How many letters there are and how old the oldest is, from the store, at a bounded cost.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use lazaret_core::query::Query;
use lazaret_core::store::{Counts, QueueSummary, Result, Store};
use lazaret_core::{LetterState, QueueName, Timestamp};
use metrics::Label;
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

use super::{Metrics, lock, of_queue};
use crate::names;

/// Up to how many letters of a state are looked at for their age, where the store does not tell it at a glance.
/// Whole letters are read for that, with their payloads.
const LOOKED_AT: u64 = 100;
/// How often that is done.
const LOOK_EVERY: Duration = Duration::from_secs(30);
/// How many pages that may take.
const PAGES: usize = 8;
/// How often measured times are sorted into their buckets.
const TIDY_EVERY: Duration = Duration::from_secs(1);
/// The longest that a slow store is left alone, if nobody wants to ask it more rarely.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// One queue, as it was a moment ago.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QueueOverview {
    /// Its letters.
    pub counts: Counts,
    /// When the oldest letter of each open state was taken in. When several states have letters, this is looked up now and
    /// then; for those with more letters than are looked at, the oldest of the queue stands.
    pub oldest: BTreeMap<&'static str, Timestamp>,
}

/// The oldest letters of a queue, as they were when they were looked up.
pub(super) struct Looked {
    at: Timestamp,
    oldest: BTreeMap<&'static str, Timestamp>,
}

impl Looked {
    /// Whether it is not long ago, and the same states have letters.
    fn will_do(&self, summary: &QueueSummary, now: Timestamp) -> bool {
        let is_recent = self.at <= now && age(self.at, now) < LOOK_EVERY;
        is_recent
            && open_states(&summary.counts)
                .map(LetterState::as_str)
                .collect::<BTreeSet<_>>()
                .iter()
                .eq(self.oldest.keys())
    }
}

/// All queues, as they were a moment ago.
pub type Overview = BTreeMap<QueueName, QueueOverview>;

impl Metrics {
    /// Asks the store for its letters, and shows them.
    ///
    /// # Errors
    /// When the store does not answer. The last numbers stay.
    pub async fn refresh(&self, store: &dyn Store, now: Timestamp) -> Result<Arc<Overview>> {
        let mut overview = Overview::new();
        for summary in store.queues().await? {
            let oldest = self.oldest(store, &summary, now).await?;
            overview.insert(summary.queue, QueueOverview { counts: summary.counts, oldest });
        }
        lock(&self.0.looked).retain(|queue, _| overview.contains_key(queue));
        let known: Vec<_> = lock(&self.0.consumers).values().flat_map(|c| own_queues(&c.handle)).collect();
        for queue in known {
            // A queue without letters has zero of them, which is what an alert wants to hear.
            overview.entry(queue).or_default();
        }
        for (queue, seen) in &overview {
            self.show(queue, seen, now);
        }
        let overview = Arc::new(overview);
        *lock(&self.0.overview) = overview.clone();
        Ok(overview)
    }

    /// When the oldest letter of each open state was taken in. With one open state the store has said it; with several,
    /// letters are looked at, but not each time.
    async fn oldest(
        &self,
        store: &dyn Store,
        summary: &QueueSummary,
        now: Timestamp,
    ) -> Result<BTreeMap<&'static str, Timestamp>> {
        let Some(of_all) = summary.oldest else { return Ok(BTreeMap::new()) };
        if open_states(&summary.counts).count() == 1 {
            return Ok(open_states(&summary.counts).map(|state| (state.as_str(), of_all)).collect());
        }
        let looked = lock(&self.0.looked)
            .get(&summary.queue)
            .filter(|looked| looked.will_do(summary, now))
            .map(|looked| looked.oldest.clone());
        if let Some(oldest) = looked {
            return Ok(oldest);
        }
        let oldest = look_up(store, summary, of_all).await?;
        lock(&self.0.looked).insert(summary.queue.clone(), Looked { at: now, oldest: oldest.clone() });
        Ok(oldest)
    }

    fn show(&self, queue: &QueueName, seen: &QueueOverview, now: Timestamp) {
        for state in LetterState::ALL.into_iter().filter(|state| state.is_open()) {
            let labels = || {
                let mut labels = of_queue(queue.consumer(), queue);
                labels.push(Label::from_static_parts("state", state.as_str()));
                labels
            };
            self.gauge(&names::LETTERS, labels()).set(seen.counts.of(state) as f64);
            let age = seen.oldest.get(state.as_str()).map_or(0.0, |oldest| age(*oldest, now).as_secs_f64());
            self.gauge(&names::OLDEST_LETTER, labels()).set(age);
        }
    }

    /// Keeps the letters fresh and the measured times tidy until `stop`, whatever the store does. A store that takes long is
    /// asked less often.
    pub async fn keep_fresh(&self, store: &dyn Store, every: Duration, stop: CancellationToken) {
        let both = async { tokio::join!(self.ask_again_and_again(store, every), self.tidy_often()) };
        // Both only read: they may be left anywhere.
        stop.run_until_cancelled(both).await;
    }

    async fn ask_again_and_again(&self, store: &dyn Store, every: Duration) {
        loop {
            let begun = tokio::time::Instant::now();
            if let Err(error) = self.refresh(store, Timestamp::now()).await {
                tracing::debug!(kind = ?error.kind(), "the store does not tell its letters");
            }
            tokio::time::sleep(pause_after(begun.elapsed(), every)).await;
        }
    }

    /// What is measured is kept one by one until it is sorted, so this waits for nobody (I7).
    async fn tidy_often(&self) {
        let mut ticks = tokio::time::interval(TIDY_EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            self.tidy();
        }
    }
}

/// How long a store that took so long is left alone.
fn pause_after(took: Duration, every: Duration) -> Duration {
    every.max(took.saturating_mul(10).min(LONGEST_PAUSE))
}

fn own_queues(handle: &lazaret_engine::Handle) -> Vec<QueueName> {
    handle.queues().cloned().collect()
}

/// How long ago that was. A clock that runs behind the store's makes nothing younger than new.
pub(crate) fn age(since: Timestamp, now: Timestamp) -> Duration {
    Duration::try_from(now.duration_since(since)).unwrap_or(Duration::ZERO)
}

fn open_states(counts: &Counts) -> impl Iterator<Item = LetterState> {
    LetterState::ALL.into_iter().filter(|state| state.is_open() && counts.of(*state) > 0)
}

/// Looks at the letters of states that have few. For the others the oldest of all stands.
async fn look_up(
    store: &dyn Store,
    summary: &QueueSummary,
    of_all: Timestamp,
) -> Result<BTreeMap<&'static str, Timestamp>> {
    let mut found = BTreeMap::new();
    for state in open_states(&summary.counts) {
        let few = summary.counts.of(state) <= LOOKED_AT;
        let oldest = if few { oldest_of(store, &summary.queue, state).await? } else { None };
        found.insert(state.as_str(), oldest.unwrap_or(of_all));
    }
    Ok(found)
}

/// The oldest letter of a state that has few; `None` when looking at them takes too long.
async fn oldest_of(store: &dyn Store, queue: &QueueName, state: LetterState) -> Result<Option<Timestamp>> {
    let text = format!("queue:{:?} state:{state}", queue.as_str());
    let Ok(query) = Query::parse(&text) else { return Ok(None) };
    let (mut oldest, mut after) = (None, None);
    for _ in 0..PAGES {
        let page = store.find(&query, after.as_deref(), LOOKED_AT as usize).await?;
        let first = page.letters.iter().map(|letter| letter.enqueued_at).min();
        oldest = [oldest, first].into_iter().flatten().min();
        match page.next {
            Some(next) => after = Some(next),
            None => return Ok(oldest),
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use lazaret_memory::MemoryStore;
    use lazaret_testkit::{Profile, Unreliable};

    use super::super::Rendering;
    use super::*;

    const EVERY: Duration = Duration::from_secs(2);

    /// Counts how often measured times are sorted.
    #[derive(Clone, Default)]
    struct Counted(Arc<AtomicU64>);

    impl Rendering for Counted {
        fn render(&self) -> String {
            String::new()
        }

        fn run_upkeep(&self) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    fn slow(latency: Duration) -> Unreliable<MemoryStore> {
        let store = Unreliable::new(MemoryStore::default(), 7);
        store.set_profile(Profile { latency, ..Profile::default() });
        store
    }

    #[tokio::test(start_paused = true)]
    async fn a_store_that_does_not_answer_keeps_no_measured_time_from_being_sorted_and_nobody_from_ending() {
        // I7
        let (counted, store) = (Counted::default(), slow(Duration::from_secs(1_000_000)));
        let metrics = Metrics::new(None, Some(Box::new(counted.clone())));
        let stop = CancellationToken::new();
        let fresh = metrics.keep_fresh(&store, EVERY, stop.clone());
        let ending = async {
            tokio::time::sleep(Duration::from_secs(100)).await;
            assert!(counted.0.load(Ordering::SeqCst) >= 50, "{:?}", counted.0);
            stop.cancel();
        };
        let both = async { tokio::join!(fresh, ending) };
        tokio::time::timeout(Duration::from_secs(101), both).await.unwrap();
    }

    #[test]
    fn a_slow_store_is_asked_less_often_but_within_a_minute() {
        let seconds = Duration::from_secs;
        assert_eq!(pause_after(Duration::from_millis(1), EVERY), EVERY);
        assert_eq!(pause_after(seconds(3), EVERY), seconds(30));
        assert_eq!(pause_after(seconds(30), EVERY), LONGEST_PAUSE);
        assert_eq!(pause_after(Duration::MAX, EVERY), LONGEST_PAUSE);
        assert_eq!(pause_after(seconds(30), seconds(300)), seconds(300), "who asks rarely still does");
    }
}
