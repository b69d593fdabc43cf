//! All metrics of one process: consumers are registered, their counters are read at each scrape.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lazaret_core::policy::BreakerState;
use lazaret_core::store::{Result, Store};
use lazaret_core::{Phase, QueueName, Timestamp};
use lazaret_engine::{FuseState, Handle, Observer, Stats};
use metrics::{Counter, Histogram, Label, Recorder};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

use super::failed::{FailedConsumer, FailedConsumers};
use super::instruments::Instruments;
use super::labels::{Reasons, ReplayOutcome, SCOPES, label, of_queue, scope_name};
use super::letters::{LetterGauges, Overview};
use super::observer::MetricsObserver;
use super::process;
use crate::names;

/// The upper bounds of the buckets of both histograms, in seconds.
pub const BUCKETS: [f64; 14] =
    [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0, 300.0];

/// The interval of histogram upkeep.
const UPKEEP_INTERVAL: Duration = Duration::from_secs(1);
/// The longest interval between reads of a slow store, unless a longer one is configured.
const MAX_REFRESH_INTERVAL: Duration = Duration::from_secs(60);

/// All metrics of one process. Clones share them.
///
/// ```
/// use lazaret_telemetry::Metrics;
/// let metrics = Metrics::prometheus();
/// metrics.owner("orders", Some("checkout-team"));
/// assert!(metrics.render().contains("lazaret_consumer_info{consumer=\"orders\",owner=\"checkout-team\"} 1"));
/// ```
#[derive(Clone)]
pub struct Metrics(Arc<Inner>);

/// The measurements of a change stream; an age is `None` while unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChangeStreamStats {
    /// The time between the last change that was read or passed over and the newest entry of the oplog.
    pub oplog_lag: Option<Duration>,
    /// The age of the position that the stream would resume from.
    pub token_age: Option<Duration>,
    /// How often the stream was opened again after an error, since it was registered.
    pub restarts: u64,
}

/// A change stream that is read at each scrape.
struct ScrapedStream {
    read: Box<dyn Fn() -> ChangeStreamStats + Send + Sync>,
    /// The restarts at the last scrape.
    counted: u64,
}

/// Reads the lag of a file, in bytes.
type ReadBytes = Box<dyn Fn() -> Option<u64> + Send + Sync>;

/// Reads how many records retry topics and dead-letter topics hold.
type ReadTopics = Box<dyn Fn() -> Option<(u64, u64)> + Send + Sync>;

/// Reads the age of the oldest record in dead-letter topics.
type ReadAge = Box<dyn Fn() -> Option<Duration> + Send + Sync>;

struct Inner {
    instruments: Arc<Instruments>,
    rendering: Option<Box<dyn Rendering>>,
    reasons: Arc<Reasons>,
    consumers: Mutex<BTreeMap<String, Scraped>>,
    owners: Mutex<BTreeMap<String, String>>,
    /// The change streams of the consumers that read one.
    streams: Mutex<BTreeMap<String, ScrapedStream>>,
    /// The files of the consumers that read one.
    files: Mutex<BTreeMap<String, ReadBytes>>,
    /// What the broker holds of consumers with retry topics.
    topics: Mutex<BTreeMap<String, ReadTopics>>,
    /// How old the records are that dead-letter topics of consumers hold.
    oldest_in_topics: Mutex<BTreeMap<String, ReadAge>>,
    /// Whether the metrics of the process are exported.
    has_process: AtomicBool,
    letters: LetterGauges,
    failed: FailedConsumers,
}

/// Renders what a recorder holds.
trait Rendering: Send + Sync {
    fn render(&self) -> String;
    /// Moves recorded histogram values into buckets.
    fn run_upkeep(&self);
}

impl Rendering for PrometheusHandle {
    fn render(&self) -> String {
        Self::render(self)
    }

    fn run_upkeep(&self) {
        Self::run_upkeep(self);
    }
}

/// A consumer whose counters are read at each scrape.
struct Scraped {
    handle: Handle,
    /// The counters at the last scrape: a restarted consumer counts from zero, a metric does not.
    counted: Stats,
}

impl Metrics {
    /// Creates metrics that [`render`](Self::render) returns in the Prometheus text format.
    pub fn prometheus() -> Self {
        let builder = [names::ATTEMPT_SECONDS, names::RETRY_LATENESS].iter().fold(
            PrometheusBuilder::new(),
            |builder, family| {
                let matcher = Matcher::Full(family.name.to_owned());
                builder.set_buckets_for_metric(matcher, &BUCKETS).expect("the bucket list is not empty")
            },
        );
        let recorder = builder.build_recorder();
        let rendering = recorder.handle();
        Self::new(Some(Box::new(recorder)), Some(Box::new(rendering)))
    }

    /// Creates metrics for the recorder that the program has installed for the `metrics` facade.
    /// [`render`](Self::render) returns nothing then; call [`collect`](Self::collect) before each scrape.
    pub fn facade() -> Self {
        Self::new(None, None)
    }

    fn new(recorder: Option<Box<dyn Recorder + Send + Sync>>, rendering: Option<Box<dyn Rendering>>) -> Self {
        let instruments = Arc::new(Instruments::new(recorder));
        let version = Label::from_static_parts("version", env!("CARGO_PKG_VERSION"));
        instruments.gauge(&names::BUILD_INFO, vec![version]).set(1.0);
        Self(Arc::new(Inner {
            letters: LetterGauges::new(instruments.clone()),
            instruments,
            rendering,
            reasons: Arc::default(),
            consumers: Mutex::default(),
            owners: Mutex::default(),
            streams: Mutex::default(),
            files: Mutex::default(),
            topics: Mutex::default(),
            oldest_in_topics: Mutex::default(),
            has_process: AtomicBool::new(false),
            failed: FailedConsumers::default(),
        }))
    }

    /// Creates the observer that counts the events of a consumer. Pass it to the consumer's builder.
    pub fn observer(&self, consumer: &str) -> impl Observer + use<> {
        MetricsObserver {
            instruments: self.0.instruments.clone(),
            reasons: self.0.reasons.clone(),
            consumer: consumer.to_owned(),
        }
    }

    /// Sets the team that owns the dead letters of a consumer.
    pub fn owner(&self, consumer: &str, owner: Option<&str>) {
        let owner = owner.unwrap_or_default().to_owned();
        let before = lock(&self.0.owners).insert(consumer.to_owned(), owner.clone());
        let info = |owner: &str| {
            let labels = vec![label("consumer", consumer), label("owner", owner)];
            self.0.instruments.gauge(&names::CONSUMER_INFO, labels)
        };
        if let Some(before) = before.filter(|before| *before != owner) {
            info(&before).set(0.0);
        }
        info(&owner).set(1.0);
    }

    /// Registers a running consumer: its counters are read at each scrape. After a restart they continue from the previous values.
    pub fn running(&self, handle: Handle) {
        let name = handle.name().to_string();
        let mut consumers = lock(&self.0.consumers);
        if let Some(before) = consumers.get_mut(&name) {
            self.read(&name, before);
        }
        let mut scraped = Scraped { handle, counted: Stats::default() };
        self.read(&name, &mut scraped);
        self.init_counters(&name, &scraped.handle);
        self.failed(&name, false);
        consumers.insert(name, scraped);
    }

    /// Sets whether a consumer has failed. One that fails is restarted, or runs again after a reload.
    pub fn failed(&self, consumer: &str, failed: bool) {
        self.set_failed(consumer, failed);
        match failed {
            true => self.0.failed.fails(consumer, false),
            false => self.0.failed.runs(consumer),
        }
    }

    /// Sets that a consumer has failed, and is not restarted before a person acts.
    ///
    /// ```
    /// let metrics = lazaret_telemetry::Metrics::prometheus();
    /// metrics.failed_permanently("orders");
    /// assert!(metrics.render().contains("lazaret_consumer_failed{consumer=\"orders\"} 1"));
    /// ```
    pub fn failed_permanently(&self, consumer: &str) {
        self.set_failed(consumer, true);
        self.0.failed.fails(consumer, true);
    }

    fn set_failed(&self, consumer: &str, failed: bool) {
        let gauge = self.0.instruments.gauge(&names::CONSUMER_FAILED, vec![label("consumer", consumer)]);
        gauge.set(if failed { 1.0 } else { 0.0 });
    }

    /// Registers the change stream of a consumer: its measurements are read at each scrape. A later one replaces it, and its restarts
    /// add to those of the earlier one.
    ///
    /// ```
    /// use std::time::Duration;
    /// use lazaret_telemetry::{ChangeStreamStats, Metrics};
    /// let metrics = Metrics::prometheus();
    /// let token_age = Some(Duration::from_secs(90));
    /// metrics.change_stream("orders", move || ChangeStreamStats { token_age, restarts: 2, ..Default::default() });
    /// let text = metrics.render();
    /// assert!(text.contains("lazaret_mongodb_token_age_seconds{consumer=\"orders\"} 90"));
    /// assert!(text.contains("lazaret_mongodb_oplog_lag_seconds{consumer=\"orders\"} NaN"));
    /// assert!(text.contains("lazaret_mongodb_restarts_total{consumer=\"orders\"} 2"));
    /// ```
    pub fn change_stream(
        &self,
        consumer: &str,
        read: impl Fn() -> ChangeStreamStats + Send + Sync + 'static,
    ) {
        let mut streams = lock(&self.0.streams);
        if let Some(before) = streams.get_mut(consumer) {
            self.read_stream(consumer, before);
        }
        streams.insert(consumer.to_owned(), ScrapedStream { read: Box::new(read), counted: 0 });
        self.restarts(consumer).increment(0);
    }

    /// Registers the file of a consumer: the bytes that are not read yet are read at each scrape, `None` while unknown. A later
    /// one replaces it.
    ///
    /// ```
    /// let metrics = lazaret_telemetry::Metrics::prometheus();
    /// metrics.file("orders", || Some(4096));
    /// assert!(metrics.render().contains("lazaret_source_lag_bytes{consumer=\"orders\"} 4096"));
    /// ```
    pub fn file(&self, consumer: &str, bytes_behind: impl Fn() -> Option<u64> + Send + Sync + 'static) {
        lock(&self.0.files).insert(consumer.to_owned(), Box::new(bytes_behind));
    }

    /// Registers the retry topics and dead-letter topics of a consumer: how many records they hold, those to be retried and the
    /// dead ones, is read at each scrape, `None` while unknown. A later one replaces it.
    ///
    /// ```
    /// let metrics = lazaret_telemetry::Metrics::prometheus();
    /// metrics.topics("orders", || Some((2, 3)));
    /// assert!(metrics.render().contains("lazaret_broker_letters{consumer=\"orders\",state=\"dead\"} 3"));
    /// ```
    pub fn topics(&self, consumer: &str, count: impl Fn() -> Option<(u64, u64)> + Send + Sync + 'static) {
        lock(&self.0.topics).insert(consumer.to_owned(), Box::new(count));
    }

    /// Registers the dead-letter topics of a consumer: the age of their oldest record is read at each scrape, zero without records,
    /// `None` while unknown. A later one replaces it.
    ///
    /// ```
    /// use std::time::Duration;
    /// let metrics = lazaret_telemetry::Metrics::prometheus();
    /// metrics.oldest_in_topics("orders", || Some(Duration::from_secs(50)));
    /// assert!(metrics.render().contains("lazaret_broker_oldest_letter_age_seconds{consumer=\"orders\"} 50"));
    /// ```
    pub fn oldest_in_topics(
        &self,
        consumer: &str,
        age: impl Fn() -> Option<Duration> + Send + Sync + 'static,
    ) {
        lock(&self.0.oldest_in_topics).insert(consumer.to_owned(), Box::new(age));
    }

    /// Exports the metrics of this process, `process_*`, at each scrape. For a program that has no other exporter of them.
    pub fn process(&self) {
        self.0.has_process.store(true, Ordering::Relaxed);
    }

    /// Adds records of a dead-letter topic of another framework, by outcome, and sets how many remain.
    ///
    /// ```
    /// use lazaret_telemetry::Metrics;
    /// let metrics = Metrics::prometheus();
    /// metrics.adopted("orders", "orders-dlt", &[("adopted", 3)], 7);
    /// let text = metrics.render();
    /// assert!(text.contains("lazaret_adopt_records_total{consumer=\"orders\",topic=\"orders-dlt\",outcome=\"adopted\"} 3"));
    /// assert!(text.contains("lazaret_adopt_remaining{consumer=\"orders\",topic=\"orders-dlt\"} 7"));
    /// ```
    pub fn adopted(&self, consumer: &str, topic: &str, outcomes: &[(&'static str, u64)], remaining: u64) {
        let labels = || vec![label("consumer", consumer), label("topic", topic)];
        for (outcome, records) in outcomes {
            let mut labels = labels();
            labels.push(Label::from_static_parts("outcome", outcome));
            self.0.instruments.counter(&names::ADOPT_RECORDS, labels).increment(*records);
        }
        self.0.instruments.gauge(&names::ADOPT_REMAINING, labels()).set(remaining as f64);
    }

    /// Sets whether the adoption of a dead-letter topic fails.
    pub fn adoption_failed(&self, consumer: &str, topic: &str, failed: bool) {
        let labels = vec![label("consumer", consumer), label("topic", topic)];
        self.0.instruments.gauge(&names::ADOPT_FAILED, labels).set(if failed { 1.0 } else { 0.0 });
    }

    /// Exports the counters that alert rules use with zero: a counter that appears with 1 has not increased.
    fn init_counters(&self, consumer: &str, handle: &Handle) {
        let instruments = &self.0.instruments;
        for queue in handle.queues() {
            let with = |more: &[(&'static str, &'static str)]| {
                let mut labels = of_queue(consumer, queue);
                labels.extend(more.iter().map(|(name, value)| Label::from_static_parts(name, value)));
                labels
            };
            instruments.counter(&names::POISON, with(&[])).increment(0);
            instruments.counter(&names::LEASES_LOST, with(&[])).increment(0);
            for phase in [Phase::Decode, Phase::Handle] {
                let invalid = [("reason", "INVALID_SCHEMA"), ("phase", phase.as_str())];
                instruments.counter(&names::FAILURES, with(&invalid)).increment(0);
            }
            for outcome in ReplayOutcome::ALL {
                instruments.counter(&names::REPLAY, with(&[("outcome", outcome.as_str())])).increment(0);
            }
        }
        instruments.counter(&names::COMMIT_FAILURES, vec![label("consumer", consumer)]).increment(0);
    }

    /// The team that owns the dead letters of a consumer, if there is one.
    pub(crate) fn owner_of(&self, consumer: &str) -> Option<String> {
        lock(&self.0.owners).get(consumer).filter(|owner| !owner.is_empty()).cloned()
    }

    /// The consumers that have failed.
    pub(crate) fn failed_consumers(&self) -> BTreeMap<String, FailedConsumer> {
        self.0.failed.all()
    }

    /// Waits until a consumer fails or runs again. Cancellation safe.
    pub(crate) async fn failed_changed(&self) {
        self.0.failed.changed().await;
    }

    /// The letters at the last refresh.
    pub(crate) fn overview(&self) -> Arc<Overview> {
        self.0.letters.overview()
    }

    /// The handles of the registered consumers.
    pub(crate) fn handles(&self) -> Vec<Handle> {
        lock(&self.0.consumers).values().map(|scraped| scraped.handle.clone()).collect()
    }

    /// Reads the counters of the registered consumers.
    pub fn collect(&self) {
        for (name, scraped) in lock(&self.0.consumers).iter_mut() {
            self.read(name, scraped);
        }
        for (name, stream) in lock(&self.0.streams).iter_mut() {
            self.read_stream(name, stream);
        }
        for (name, bytes_behind) in lock(&self.0.files).iter() {
            let gauge = self.0.instruments.gauge(&names::SOURCE_LAG_BYTES, vec![label("consumer", name)]);
            gauge.set(bytes_behind().map_or(f64::NAN, |bytes| bytes as f64));
        }
        for (name, count) in lock(&self.0.topics).iter() {
            let (retrying, dead) = count().unzip();
            for (state, records) in [("retrying", retrying), ("dead", dead)] {
                let labels = vec![label("consumer", name), Label::from_static_parts("state", state)];
                let gauge = self.0.instruments.gauge(&names::BROKER_LETTERS, labels);
                gauge.set(records.map_or(f64::NAN, |records| records as f64));
            }
        }
        for (name, age) in lock(&self.0.oldest_in_topics).iter() {
            let gauge = self.0.instruments.gauge(&names::BROKER_OLDEST_LETTER, vec![label("consumer", name)]);
            gauge.set(age().map_or(f64::NAN, |age| age.as_secs_f64()));
        }
        if self.0.has_process.load(Ordering::Relaxed) {
            process::export(&self.0.instruments);
        }
    }

    /// Renders all metrics in the Prometheus text format.
    pub fn render(&self) -> String {
        self.collect();
        self.0.rendering.as_ref().map(|rendering| rendering.render()).unwrap_or_default()
    }

    /// Moves recorded histogram values into buckets. Until then each value is kept by itself: call it regularly.
    pub fn run_upkeep(&self) {
        if let Some(rendering) = &self.0.rendering {
            rendering.run_upkeep();
        }
    }

    /// Reads the letters from the store and exports them.
    ///
    /// # Errors
    /// When the store fails. The previous values stay.
    pub async fn refresh(&self, store: &dyn Store, now: Timestamp) -> Result<Arc<Overview>> {
        self.0.letters.refresh(store, || self.queues(), now).await
    }

    /// Refreshes letters and runs histogram upkeep until `stop`, each at its own interval. A slow store is read less often.
    pub async fn keep_fresh(&self, store: &dyn Store, every: Duration, stop: CancellationToken) {
        let both = async { tokio::join!(self.refresh_loop(store, every), self.upkeep_loop()) };
        // Both only read: they may be cancelled anywhere.
        stop.run_until_cancelled(both).await;
    }

    async fn refresh_loop(&self, store: &dyn Store, every: Duration) {
        loop {
            let started = tokio::time::Instant::now();
            if let Err(error) = self.refresh(store, Timestamp::now()).await {
                tracing::debug!(kind = ?error.kind(), "letter metrics not refreshed");
            }
            tokio::time::sleep(refresh_interval(started.elapsed(), every)).await;
        }
    }

    /// Runs beside the refresh: values pile up until upkeep, so it waits for no store (I7).
    async fn upkeep_loop(&self) {
        let mut ticks = tokio::time::interval(UPKEEP_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            self.run_upkeep();
        }
    }

    /// The queues of the registered consumers, and since when a message of each has been failing in memory.
    fn queues(&self) -> Vec<(QueueName, Option<Timestamp>)> {
        let consumers = lock(&self.0.consumers);
        let of = |handle: &Handle| -> Vec<_> {
            handle.queues().map(|queue| (queue.clone(), handle.failing_since(queue))).collect()
        };
        consumers.values().flat_map(|scraped| of(&scraped.handle)).collect()
    }

    /// The histogram of the attempts of a queue.
    pub(crate) fn attempt_seconds(&self, consumer: &str, queue: &QueueName) -> Histogram {
        self.0.instruments.histogram(&names::ATTEMPT_SECONDS, of_queue(consumer, queue))
    }

    /// The counter of notices that were not delivered to a webhook.
    pub(crate) fn alerts_dropped(&self, webhook: usize) -> Counter {
        let labels = vec![Label::new("webhook", webhook.to_string())];
        self.0.instruments.counter(&names::ALERTS_DROPPED, labels)
    }

    /// The counter of the restarts of a change stream.
    fn restarts(&self, consumer: &str) -> Counter {
        self.0.instruments.counter(&names::MONGODB_RESTARTS, vec![label("consumer", consumer)])
    }

    fn read_stream(&self, consumer: &str, stream: &mut ScrapedStream) {
        let ChangeStreamStats { oplog_lag, token_age, restarts } = (stream.read)();
        for (family, age) in [(&names::MONGODB_OPLOG_LAG, oplog_lag), (&names::MONGODB_TOKEN_AGE, token_age)]
        {
            let gauge = self.0.instruments.gauge(family, vec![label("consumer", consumer)]);
            gauge.set(age.map_or(f64::NAN, |age| age.as_secs_f64()));
        }
        self.restarts(consumer).increment(restarts.saturating_sub(stream.counted));
        stream.counted = restarts;
    }

    fn read(&self, consumer: &str, scraped: &mut Scraped) {
        let instruments = &self.0.instruments;
        let labels = || vec![label("consumer", consumer)];
        let (stats, before) = (scraped.handle.stats(), scraped.counted);
        let hand_offs = |stats: &Stats| stats.hand_off_failures + stats.relay_failures;
        for (family, now, then) in [
            (&names::HANDLED, stats.handled, before.handled),
            (&names::DUPLICATES, stats.duplicates, before.duplicates),
            (&names::ID_CONFLICTS, stats.id_conflicts, before.id_conflicts),
            (&names::READ, stats.read, before.read),
            (&names::SKIPPED, stats.skipped, before.skipped),
            (&names::HANDOFF_FAILURES, hand_offs(&stats), hand_offs(&before)),
        ] {
            instruments.counter(family, labels()).increment(now.saturating_sub(then));
        }
        scraped.counted = stats;
        let handle = &scraped.handle;
        let pauses = handle.pauses();
        let scope = |name: &str| pauses.iter().filter(|pause| scope_name(&pause.scope) == name).count();
        for name in SCOPES {
            let labels = vec![label("consumer", consumer), Label::from_static_parts("scope", name)];
            instruments.gauge(&names::PAUSES, labels).set(scope(name) as f64);
        }
        let flag = |up: bool| f64::from(u8::from(up));
        let breaker = match handle.breaker() {
            None | Some(BreakerState::Closed) => 0.0,
            Some(BreakerState::HalfOpen) => 1.0,
            Some(BreakerState::Open { .. }) => 2.0,
        };
        let probe = handle.breaker_probe_in().unwrap_or_default().as_secs_f64();
        let attempt = handle.attempt_age().unwrap_or_default().as_secs_f64();
        for (family, value) in [
            (&names::OLDEST_ATTEMPT, attempt),
            (&names::BREAKER_PROBE, probe),
            (&names::PAUSED, flag(scope("consumer") > 0)),
            (&names::BREAKER_STATE, breaker),
            (&names::FUSE_BLOWN, flag(matches!(handle.fuse(), Some(FuseState::Blown { .. })))),
            (&names::INFLIGHT, handle.in_flight() as f64),
            (&names::STORE_TROUBLE, flag(handle.is_store_failing())),
            (&names::SOURCE_LAG, handle.lag().map_or(f64::NAN, |lag| lag as f64)),
        ] {
            instruments.gauge(family, labels()).set(value);
        }
    }
}

/// The time until the next read of a store, by how long the last one took.
fn refresh_interval(took: Duration, every: Duration) -> Duration {
    every.max(took.saturating_mul(10).min(MAX_REFRESH_INTERVAL))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Only whole values are written under these locks.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;

    use lazaret_memory::MemoryStore;
    use lazaret_testkit::{Profile, Unreliable};

    use super::*;

    const EVERY: Duration = Duration::from_secs(2);

    /// Counts upkeep runs.
    #[derive(Clone, Default)]
    struct CountingUpkeep(Arc<AtomicU64>);

    impl Rendering for CountingUpkeep {
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
    async fn an_unresponsive_store_delays_neither_histogram_upkeep_nor_shutdown() {
        // I7
        let (upkeep, store) = (CountingUpkeep::default(), slow(Duration::from_secs(1_000_000)));
        let metrics = Metrics::new(None, Some(Box::new(upkeep.clone())));
        let stop = CancellationToken::new();
        let fresh = metrics.keep_fresh(&store, EVERY, stop.clone());
        let ending = async {
            tokio::time::sleep(Duration::from_secs(100)).await;
            assert!(upkeep.0.load(Ordering::SeqCst) >= 50, "{:?}", upkeep.0);
            stop.cancel();
        };
        let both = async { tokio::join!(fresh, ending) };
        tokio::time::timeout(Duration::from_secs(101), both).await.unwrap();
    }

    #[test]
    fn a_slow_store_is_read_less_often_but_at_least_once_a_minute() {
        let seconds = Duration::from_secs;
        assert_eq!(refresh_interval(Duration::from_millis(1), EVERY), EVERY);
        assert_eq!(refresh_interval(seconds(3), EVERY), seconds(30));
        assert_eq!(refresh_interval(seconds(30), EVERY), MAX_REFRESH_INTERVAL);
        assert_eq!(refresh_interval(Duration::MAX, EVERY), MAX_REFRESH_INTERVAL);
        assert_eq!(refresh_interval(seconds(30), seconds(300)), seconds(300), "a longer interval is kept");
    }
}
