//! The group `core`: the cost of the engine itself, with a fast source and a store in memory.

mod blocked;
mod healthy;
mod hot_key;
mod recorder;
mod slow;
mod sweep;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use lazaret_core::handler::Handler;
use lazaret_core::policy::FusePolicy;
use lazaret_core::store::Limits;
use lazaret_engine::{Consumer, DeadLetterOptions, Options, Stats};
use lazaret_memory::MemoryStore;
use tokio_util::sync::CancellationToken;

use crate::Scale;
use crate::source::{BenchSource, Committed, Plan};
use crate::table::Row;

const BENCH: &str = "core";

/// The benchmarks of the group, in order.
pub(crate) const NAMES: [&str; 6] = ["healthy", "recorder", "slow", "hot-key", "sweep", "blocked"];

/// Runs every benchmark of the group, or only the given one.
pub(crate) async fn run(scale: Scale, only: Option<&str>) -> Vec<Row> {
    let mut rows = Vec::new();
    for name in NAMES.into_iter().filter(|name| only.is_none_or(|only| only == *name)) {
        eprintln!("running {name}");
        rows.extend(match name {
            "healthy" => healthy::run(scale).await,
            "recorder" => recorder::run(scale).await,
            "slow" => slow::run(scale).await,
            "hot-key" => hot_key::run(scale).await,
            "sweep" => sweep::run(scale).await,
            "blocked" => blocked::run(scale),
            _ => unreachable!("every name has its benchmark"),
        });
    }
    rows
}

/// Returns the options of all runs: they end with their source, and dead letters have no limits. All else is as a user has it.
pub(crate) fn options() -> Options {
    Options {
        until_idle: true,
        dead_letter: Some(DeadLetterOptions { limits: Limits::NONE, ..DeadLetterOptions::default() }),
        ..Options::default()
    }
}

/// Returns the options of a run in which this share of the messages is dead-lettered. The default fuse stops a consumer at its ratio, as
/// it should; such a run can only be measured without it, and the row says so: [`without_fuse`].
pub(crate) fn options_failing(share: f64) -> Options {
    let Options { fuse, .. } = Options::default();
    Options { fuse: fuse.filter(|fuse| !blows(fuse, share)), ..options() }
}

/// Returns what the row of a run with this share of dead letters has to say about its fuse.
pub(crate) fn without_fuse(share: f64) -> &'static str {
    let Options { fuse, .. } = Options::default();
    if fuse.is_some_and(|fuse| blows(&fuse, share)) { ", without the fuse that would stop it" } else { "" }
}

/// Half of the ratio is far enough from it for any window.
fn blows(fuse: &FusePolicy, share: f64) -> bool {
    share >= fuse.ratio / 2.0
}

/// A consumer before its run, with handles to inspect afterwards.
struct Bench {
    consumer: Consumer,
    store: Arc<MemoryStore>,
    committed: Arc<Committed>,
}

impl Bench {
    /// Creates a consumer of this plan on an empty store.
    fn new<A: 'static>(plan: &Arc<Plan>, options: Options, handler: impl Handler<A>) -> Self {
        let source = BenchSource::new(plan.clone());
        let committed = source.committed();
        let store = Arc::new(MemoryStore::default());
        let builder = Consumer::builder("bench").source(source).store(store.clone());
        let consumer = builder.handler(handler).options(options).build();
        Self { consumer: consumer.expect("the options of the benchmarks are valid"), store, committed }
    }
}

/// Runs a consumer until its source is read, settled and committed. Only the run is timed.
async fn consume<A: 'static>(
    plan: &Arc<Plan>,
    options: Options,
    handler: impl Handler<A>,
) -> (Duration, Stats) {
    let Bench { consumer, store, committed } = Bench::new(plan, options, handler);
    let started = Instant::now();
    let run = tokio::spawn(consumer.run(CancellationToken::new()));
    let stats = run.await.expect("the engine does not panic").expect("the engine ends without an error");
    let took = started.elapsed();
    assert_eq!(stats.read, plan.len() as u64, "the engine has read every message");
    assert_eq!(stats.commits, committed.commits.load(Ordering::Relaxed), "the engine counts its commits");
    assert_eq!(committed.behind.load(Ordering::Relaxed), 0, "every partition is committed to its end");
    clear_away(store).await;
    (took, stats)
}

/// Waits until the engine's tasks have ended and drops the store, so that the next run is not disturbed.
async fn clear_away(store: Arc<MemoryStore>) {
    let started = Instant::now();
    while Arc::strong_count(&store) > 1 {
        assert!(started.elapsed() < Duration::from_secs(60), "the engine lets go of its store after the run");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// Returns messages per second.
pub(crate) fn rate(messages: usize, took: Duration) -> f64 {
    messages as f64 / took.as_secs_f64()
}
