//! Reads the number of letters and the age of the oldest from the store, at a bounded cost.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lazaret_core::query::Query;
use lazaret_core::store::{Counts, QueueSummary, Result, Store};
use lazaret_core::{LetterState, QueueName, Timestamp};
use metrics::Label;

use super::instruments::Instruments;
use super::labels::of_queue;
use crate::age::age;
use crate::names;

/// Up to this number of letters per state are read for their age, where the store does not index it. Whole letters are
/// read, with their payloads.
const SCAN_LIMIT: u64 = 100;
/// The interval between two such reads.
const SCAN_INTERVAL: Duration = Duration::from_secs(30);
/// The maximum number of pages per read.
const SCAN_PAGES: usize = 8;

/// A snapshot of one queue.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct QueueOverview {
    /// The letters by state.
    pub counts: Counts,
    /// When the oldest letter of each open state was enqueued; for `retrying`, when the oldest message that waits in memory first
    /// failed, if that is earlier. When several states have letters, this is refreshed at a
    /// longer interval; for states with too many letters to scan, it is the oldest letter of the queue.
    pub oldest: BTreeMap<LetterState, Timestamp>,
    /// When the next open letter expires.
    pub next_expiry: Option<Timestamp>,
}

/// A snapshot of all queues.
pub type Overview = BTreeMap<QueueName, QueueOverview>;

/// The oldest letters of a queue at the last scan.
struct Scan {
    at: Timestamp,
    oldest: BTreeMap<LetterState, Timestamp>,
}

impl Scan {
    /// Returns `true` if the scan is recent and the same states have letters.
    fn is_current(&self, summary: &QueueSummary, now: Timestamp) -> bool {
        let is_recent = self.at <= now && age(self.at, now) < SCAN_INTERVAL;
        is_recent && open_states(&summary.counts).collect::<BTreeSet<_>>().iter().eq(self.oldest.keys())
    }
}

/// Exports the letters of the store as gauges.
pub(super) struct LetterGauges {
    instruments: Arc<Instruments>,
    overview: Mutex<Arc<Overview>>,
    /// The scans of queues with letters in several states.
    scans: Mutex<BTreeMap<QueueName, Scan>>,
}

impl LetterGauges {
    pub(super) fn new(instruments: Arc<Instruments>) -> Self {
        Self { instruments, overview: Mutex::default(), scans: Mutex::default() }
    }

    /// The last snapshot.
    pub(super) fn overview(&self) -> Arc<Overview> {
        lock(&self.overview).clone()
    }

    /// Reads a new snapshot. Queues of running consumers are exported with zeros even when they have no letters. Each comes with the
    /// first failure of the oldest message that waits in memory.
    pub(super) async fn refresh(
        &self,
        store: &dyn Store,
        running: impl FnOnce() -> Vec<(QueueName, Option<Timestamp>)>,
        now: Timestamp,
    ) -> Result<Arc<Overview>> {
        let mut overview = Overview::new();
        for summary in store.queues().await? {
            let oldest = self.oldest(store, &summary, now).await?;
            let QueueSummary { queue, counts, next_expiry, .. } = summary;
            overview.insert(queue, QueueOverview { counts, oldest, next_expiry });
        }
        lock(&self.scans).retain(|queue, _| overview.contains_key(queue));
        for (queue, failing_since) in running() {
            let oldest = &mut overview.entry(queue).or_default().oldest;
            let retrying = oldest.get(&LetterState::Retrying).copied();
            if let Some(since) = retrying.into_iter().chain(failing_since).min() {
                oldest.insert(LetterState::Retrying, since);
            }
        }
        for (queue, snapshot) in &overview {
            self.export(queue, snapshot, now);
        }
        let overview = Arc::new(overview);
        *lock(&self.overview) = overview.clone();
        Ok(overview)
    }

    /// When the oldest letter of each open state was enqueued. With one open state the summary has it; with several, letters
    /// are scanned at an interval.
    async fn oldest(
        &self,
        store: &dyn Store,
        summary: &QueueSummary,
        now: Timestamp,
    ) -> Result<BTreeMap<LetterState, Timestamp>> {
        let Some(of_queue) = summary.oldest else { return Ok(BTreeMap::new()) };
        if open_states(&summary.counts).count() == 1 {
            return Ok(open_states(&summary.counts).map(|state| (state, of_queue)).collect());
        }
        let current = lock(&self.scans)
            .get(&summary.queue)
            .filter(|scan| scan.is_current(summary, now))
            .map(|scan| scan.oldest.clone());
        if let Some(oldest) = current {
            return Ok(oldest);
        }
        let oldest = scan(store, summary, of_queue).await?;
        lock(&self.scans).insert(summary.queue.clone(), Scan { at: now, oldest: oldest.clone() });
        Ok(oldest)
    }

    fn export(&self, queue: &QueueName, snapshot: &QueueOverview, now: Timestamp) {
        for state in LetterState::ALL.into_iter().filter(|state| state.is_open()) {
            let labels = || {
                let mut labels = of_queue(queue.consumer(), queue);
                labels.push(Label::from_static_parts("state", state.as_str()));
                labels
            };
            self.instruments.gauge(&names::LETTERS, labels()).set(snapshot.counts.of(state) as f64);
            let age = snapshot.oldest.get(&state).map_or(0.0, |oldest| age(*oldest, now).as_secs_f64());
            self.instruments.gauge(&names::OLDEST_LETTER, labels()).set(age);
        }
        // It may have passed: letters are closed at an interval.
        let left = snapshot.next_expiry.map_or(f64::NAN, |at| age(now, at).as_secs_f64());
        self.instruments.gauge(&names::NEXT_EXPIRY, of_queue(queue.consumer(), queue)).set(left);
    }
}

fn open_states(counts: &Counts) -> impl Iterator<Item = LetterState> {
    LetterState::ALL.into_iter().filter(|state| state.is_open() && counts.of(*state) > 0)
}

/// Finds the oldest letter of each state with few letters. For the others it is the oldest of the queue.
async fn scan(
    store: &dyn Store,
    summary: &QueueSummary,
    of_queue: Timestamp,
) -> Result<BTreeMap<LetterState, Timestamp>> {
    let mut found = BTreeMap::new();
    for state in open_states(&summary.counts) {
        let few = summary.counts.of(state) <= SCAN_LIMIT;
        let oldest = if few { oldest_of(store, &summary.queue, state).await? } else { None };
        found.insert(state, oldest.unwrap_or(of_queue));
    }
    Ok(found)
}

/// The oldest letter of a state; `None` when it takes too many pages.
async fn oldest_of(store: &dyn Store, queue: &QueueName, state: LetterState) -> Result<Option<Timestamp>> {
    let text = format!("queue:{:?} state:{state}", queue.as_str());
    let Ok(query) = Query::parse(&text) else { return Ok(None) };
    let (mut oldest, mut after) = (None, None);
    for _ in 0..SCAN_PAGES {
        let page = store.find(&query, after.as_deref(), SCAN_LIMIT as usize).await?;
        let first = page.letters.iter().map(|letter| letter.enqueued_at).min();
        oldest = [oldest, first].into_iter().flatten().min();
        match page.next {
            Some(next) => after = Some(next),
            None => return Ok(oldest),
        }
    }
    Ok(None)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Only whole values are written under these locks.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
