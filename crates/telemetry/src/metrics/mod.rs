//! Metrics: events are counted as they are told, and what the engine counts itself is read when somebody asks.
//!
//! The healthy path pays nothing: handled messages are read from [`Handle::stats`] at each scrape.

mod labels;
mod letters;
mod observer;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use lazaret_core::policy::BreakerState;
use lazaret_core::store::PauseScope;
use lazaret_core::{Phase, QueueName};
use lazaret_engine::{FuseState, Handle, Observer, Stats};
use metrics::{Counter, Gauge, Histogram, Key, KeyName, Label, Level, Metadata, Recorder, SharedString};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};

pub use labels::{OTHER, OWN_REASONS};
pub(crate) use letters::age;
pub use letters::{Overview, QueueOverview};

use crate::names::{self, Family, Kind};
use labels::Reasons;
use letters::Looked;
use observer::Counting;

/// The upper bounds of the buckets of both histograms, in seconds: from a handler in memory to one that waits long.
pub const BUCKETS: [f64; 14] =
    [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0, 300.0];

/// The scopes of pauses, as labels.
const SCOPES: [&str; 5] = ["consumer", "stream", "partition", "sequence", "replay"];

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

struct Inner {
    recorder: Option<Box<dyn Recorder + Send + Sync>>,
    rendering: Option<Box<dyn Rendering>>,
    reasons: Reasons,
    consumers: Mutex<BTreeMap<String, Scraped>>,
    owners: Mutex<BTreeMap<String, String>>,
    overview: Mutex<Arc<Overview>>,
    /// For queues with letters in several states.
    looked: Mutex<BTreeMap<QueueName, Looked>>,
}

/// Who keeps what was counted and measured, and shows it.
trait Rendering: Send + Sync {
    fn render(&self) -> String;
    /// Sorts what was measured into buckets.
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

/// A consumer whose numbers are read at each scrape.
struct Scraped {
    handle: Handle,
    /// What was counted so far: a consumer that is started anew counts from zero, a metric does not.
    counted: Stats,
}

impl Metrics {
    /// Metrics that [`render`](Self::render) shows as Prometheus reads them.
    pub fn prometheus() -> Self {
        let builder = [names::ATTEMPT_SECONDS, names::RETRY_LATENESS].iter().fold(
            PrometheusBuilder::new(),
            |builder, family| {
                let matcher = Matcher::Full(family.name.to_owned());
                builder.set_buckets_for_metric(matcher, &BUCKETS).expect("there are buckets")
            },
        );
        let recorder = builder.build_recorder();
        let rendering = recorder.handle();
        Self::new(Some(Box::new(recorder)), Some(Box::new(rendering)))
    }

    /// Metrics that go to the recorder that the program has installed for the `metrics` facade.
    /// [`render`](Self::render) shows nothing then; call [`collect`](Self::collect) before each scrape.
    pub fn facade() -> Self {
        Self::new(None, None)
    }

    fn new(recorder: Option<Box<dyn Recorder + Send + Sync>>, rendering: Option<Box<dyn Rendering>>) -> Self {
        let metrics = Self(Arc::new(Inner {
            recorder,
            rendering,
            reasons: Reasons::default(),
            consumers: Mutex::default(),
            owners: Mutex::default(),
            overview: Mutex::default(),
            looked: Mutex::default(),
        }));
        metrics.describe();
        metrics
    }

    fn describe(&self) {
        for family in names::FAMILIES {
            let (name, help) = (KeyName::from_const_str(family.name), SharedString::const_str(family.help));
            self.with(|recorder| match family.kind {
                Kind::Counter => recorder.describe_counter(name, None, help),
                Kind::Gauge => recorder.describe_gauge(name, None, help),
                Kind::Histogram => recorder.describe_histogram(name, None, help),
            });
        }
    }

    /// Who counts what happens to a consumer. Give it to the consumer's builder.
    pub fn observer(&self, consumer: &str) -> impl Observer + use<> {
        Counting::new(self.clone(), consumer)
    }

    /// Says which team owns the dead letters of a consumer.
    pub fn owner(&self, consumer: &str, owner: Option<&str>) {
        let owner = owner.unwrap_or_default().to_owned();
        let before = lock(&self.0.owners).insert(consumer.to_owned(), owner.clone());
        if let Some(before) = before.filter(|before| *before != owner) {
            self.gauge(&names::CONSUMER_INFO, vec![label("consumer", consumer), label("owner", &before)])
                .set(0.0);
        }
        self.gauge(&names::CONSUMER_INFO, vec![label("consumer", consumer), label("owner", &owner)]).set(1.0);
    }

    /// A consumer runs: from now on its numbers are read at each scrape. Those of an earlier life go on.
    pub fn running(&self, handle: Handle) {
        let name = handle.name().to_string();
        let mut consumers = lock(&self.0.consumers);
        if let Some(before) = consumers.get_mut(&name) {
            self.read(&name, before);
        }
        let mut scraped = Scraped { handle, counted: Stats::default() };
        self.read(&name, &mut scraped);
        self.begin_at_zero(&name, &scraped.handle);
        self.failed(&name, false);
        consumers.insert(name, scraped);
    }

    /// Says whether a consumer has failed: while it has, nothing else can be read of it.
    pub fn failed(&self, consumer: &str, failed: bool) {
        let gauge = self.gauge(&names::CONSUMER_FAILED, vec![label("consumer", consumer)]);
        gauge.set(if failed { 1.0 } else { 0.0 });
    }

    /// Shows counters that alerts go by before anything happened: a counter that appears with 1 has not increased.
    fn begin_at_zero(&self, consumer: &str, handle: &Handle) {
        for queue in handle.queues() {
            let with = |more: &[(&'static str, &'static str)]| {
                let mut labels = of_queue(consumer, queue);
                labels.extend(more.iter().map(|(name, value)| Label::from_static_parts(name, value)));
                labels
            };
            self.counter(&names::POISON, with(&[])).increment(0);
            let unreadable = [("reason", "INVALID_SCHEMA"), ("phase", Phase::Decode.as_str())];
            self.counter(&names::FAILURES, with(&unreadable)).increment(0);
            for outcome in ["ok", "failed-again", "skipped"] {
                self.counter(&names::REPLAY, with(&[("outcome", outcome)])).increment(0);
            }
        }
        self.counter(&names::COMMIT_FAILURES, vec![label("consumer", consumer)]).increment(0);
    }

    /// The team that owns the dead letters of a consumer, if there is one.
    pub(crate) fn owner_of(&self, consumer: &str) -> Option<String> {
        lock(&self.0.owners).get(consumer).filter(|owner| !owner.is_empty()).cloned()
    }

    /// The letters as they were when the store was last asked.
    pub(crate) fn overview(&self) -> Arc<Overview> {
        lock(&self.0.overview).clone()
    }

    /// The handles of the consumers that were said to run.
    pub(crate) fn handles(&self) -> Vec<Handle> {
        lock(&self.0.consumers).values().map(|scraped| scraped.handle.clone()).collect()
    }

    /// Reads what the consumers count themselves.
    pub fn collect(&self) {
        for (name, scraped) in lock(&self.0.consumers).iter_mut() {
            self.read(name, scraped);
        }
    }

    /// Everything as Prometheus reads it.
    pub fn render(&self) -> String {
        self.collect();
        self.0.rendering.as_ref().map(|rendering| rendering.render()).unwrap_or_default()
    }

    /// Sorts measured times into their buckets. To be called now and then: what was measured since is kept one by one.
    pub fn tidy(&self) {
        if let Some(rendering) = &self.0.rendering {
            rendering.run_upkeep();
        }
    }

    /// Where the time of the attempts of a queue goes.
    pub(crate) fn attempt_seconds(&self, consumer: &str, queue: &QueueName) -> Histogram {
        self.histogram(&names::ATTEMPT_SECONDS, of_queue(consumer, queue))
    }

    /// Counts notices that a webhook did not take.
    pub(crate) fn alerts_dropped(&self, webhook: usize) -> Counter {
        self.counter(&names::ALERTS_DROPPED, vec![Label::new("webhook", webhook.to_string())])
    }

    fn read(&self, consumer: &str, scraped: &mut Scraped) {
        let labels = || vec![label("consumer", consumer)];
        let (stats, before) = (scraped.handle.stats(), scraped.counted);
        let lost = |stats: &Stats| stats.hand_off_failures + stats.relay_failures;
        for (family, now, then) in [
            (&names::HANDLED, stats.handled, before.handled),
            (&names::DUPLICATES, stats.duplicates, before.duplicates),
            (&names::READ, stats.read, before.read),
            (&names::SKIPPED, stats.skipped, before.skipped),
            (&names::HANDOFF_FAILURES, lost(&stats), lost(&before)),
        ] {
            self.counter(family, labels()).increment(now.saturating_sub(then));
        }
        scraped.counted = stats;
        let handle = &scraped.handle;
        let pauses = handle.pauses();
        let scope = |name: &str| pauses.iter().filter(|pause| scope_name(&pause.scope) == name).count();
        for name in SCOPES {
            let labels = vec![label("consumer", consumer), Label::from_static_parts("scope", name)];
            self.gauge(&names::PAUSES, labels).set(scope(name) as f64);
        }
        let flag = |up: bool| f64::from(u8::from(up));
        let breaker = match handle.breaker() {
            None | Some(BreakerState::Closed) => 0.0,
            Some(BreakerState::HalfOpen) => 1.0,
            Some(BreakerState::Open { .. }) => 2.0,
        };
        for (family, value) in [
            (&names::PAUSED, flag(scope("consumer") > 0)),
            (&names::BREAKER_STATE, breaker),
            (&names::FUSE_BLOWN, flag(matches!(handle.fuse(), Some(FuseState::Blown { .. })))),
            (&names::INFLIGHT, handle.in_flight() as f64),
            (&names::STORE_TROUBLE, flag(handle.has_store_trouble())),
            (&names::SOURCE_LAG, handle.lag().map_or(f64::NAN, |lag| lag as f64)),
        ] {
            self.gauge(family, labels()).set(value);
        }
    }

    fn counter(&self, family: &Family, labels: Vec<Label>) -> Counter {
        let key = key(family, labels);
        self.with(|recorder| recorder.register_counter(&key, &METADATA))
    }

    fn gauge(&self, family: &Family, labels: Vec<Label>) -> Gauge {
        let key = key(family, labels);
        self.with(|recorder| recorder.register_gauge(&key, &METADATA))
    }

    fn histogram(&self, family: &Family, labels: Vec<Label>) -> Histogram {
        let key = key(family, labels);
        self.with(|recorder| recorder.register_histogram(&key, &METADATA))
    }

    fn with<T>(&self, call: impl FnOnce(&dyn Recorder) -> T) -> T {
        match &self.0.recorder {
            Some(recorder) => call(&**recorder),
            None => metrics::with_recorder(call),
        }
    }
}

static METADATA: Metadata<'static> = Metadata::new("lazaret", Level::INFO, None);

fn key(family: &Family, labels: Vec<Label>) -> Key {
    debug_assert!(labels.iter().map(Label::key).eq(family.labels.iter().copied()), "{}", family.name);
    Key::from_parts(family.name, labels)
}

fn label(name: &'static str, value: &str) -> Label {
    Label::new(name, value.to_owned())
}

fn of_queue(consumer: &str, queue: &QueueName) -> Vec<Label> {
    vec![label("consumer", consumer), label("queue", queue.as_str())]
}

/// What kind of scope it is. Which sequence it is stays untold: a sequence is a key.
pub(crate) const fn scope_name(scope: &PauseScope) -> &'static str {
    match scope {
        PauseScope::Consumer => SCOPES[0],
        PauseScope::Stream(_) => SCOPES[1],
        PauseScope::Partition(_) => SCOPES[2],
        PauseScope::Sequence(_) => SCOPES[3],
        PauseScope::Replay => SCOPES[4],
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Only whole values are written under these locks.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
