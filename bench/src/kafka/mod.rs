//! The group `kafka`: a consumer on a real broker, against bare loops over the same topics.
//!
//! Every run reads the same records with a new consumer group. It is timed from the first message received to the last one
//! handled: joining and leaving a group takes the same time for every contender.

mod bare;
mod healthy;
mod healthy_6;
mod isolation;
mod runs;
mod slow;
mod sweep;
mod topic;

use std::sync::Arc;
use std::time::{Duration, Instant};

use lazaret_core::Store;
use lazaret_core::handler::Handler;
use lazaret_engine::{Consumer, Handle, Options, Stats};
use lazaret_source_kafka::{KafkaOptions, KafkaSource};
use tokio_util::sync::CancellationToken;

use crate::Scale;
use crate::table::Row;
use topic::{Cluster, Topic};

const BENCH: &str = "kafka";
/// The commit interval of the engine and the bare loops.
const COMMIT_INTERVAL: Duration = Duration::from_millis(200);
/// The poll interval for the start and end of a run.
const LOOK: Duration = Duration::from_millis(1);
/// The timeout of a run.
const TOO_LONG: Duration = Duration::from_secs(300);

/// The benchmarks of the group, in order.
pub(crate) const NAMES: [&str; 5] = ["healthy", "healthy-6", "isolation", "slow", "sweep"];

/// Runs every benchmark of the group, or only the given one.
pub(crate) async fn run(scale: Scale, only: Option<&str>) -> Result<Vec<Row>, String> {
    let cluster = Cluster::find()?;
    let mut rows = Vec::new();
    for name in NAMES.into_iter().filter(|name| only.is_none_or(|only| only == *name)) {
        eprintln!("running {name}");
        let started = Instant::now();
        rows.extend(match name {
            "healthy" => healthy::run(scale, &cluster).await,
            "healthy-6" => healthy_6::run(scale, &cluster).await?,
            "isolation" => Box::pin(isolation::run(scale, &cluster)).await?,
            "slow" => slow::run(scale, &cluster).await,
            "sweep" => sweep::run(scale, &cluster).await?,
            _ => unreachable!("every name has its benchmark"),
        });
        eprintln!("{name} took {:.0} s", started.elapsed().as_secs_f64());
    }
    Ok(rows)
}

/// Creates a consumer of a topic with a new consumer group. It stops at the end of the topic.
fn consumer<A: 'static>(
    topic: &Topic,
    store: Arc<dyn Store>,
    options: Options,
    handler: impl Handler<A>,
) -> Consumer {
    let source = KafkaOptions::new(&topic.brokers, topic::fresh_group(), [&topic.name]).reading_to_end();
    let source = KafkaSource::open(source).expect("the options of the benchmarks are valid");
    let options = Options { commit_interval: COMMIT_INTERVAL, ..options };
    let builder = Consumer::builder("bench").source(source).store(store).handler(handler);
    builder.options(options).build().expect("the options of the benchmarks are valid")
}

/// Runs a consumer to the end of its topic. Returns the time from the first message to the last one settled.
async fn timed(consumer: Consumer, messages: usize) -> (Duration, Stats) {
    let handle = consumer.handle();
    let run = tokio::spawn(consumer.run(CancellationToken::new()));
    let settled = |stats: Stats| stats.handled + stats.handed_off + stats.relayed;
    until(&handle, |stats| stats.read > 0).await;
    let started = Instant::now();
    until(&handle, |stats| settled(stats) >= messages as u64).await;
    let took = started.elapsed();
    let stats = run.await.expect("the engine does not panic").expect("the engine ends without an error");
    assert_eq!(
        (stats.read, settled(stats)),
        (messages as u64, messages as u64),
        "every message is settled once"
    );
    (took, stats)
}

async fn until(handle: &Handle, holds: impl Fn(Stats) -> bool) {
    let started = Instant::now();
    while !holds(handle.stats()) {
        assert!(started.elapsed() < TOO_LONG, "the run hangs: {:?}", handle.stats());
        tokio::time::sleep(LOOK).await;
    }
}
