//! The group `kafka`: a consumer on a real broker, beside bare loops over the same topics.
//!
//! Every run reads the same records as a group of its own. It is timed from the first message that came to the last one
//! that was done: joining and leaving a group take as long for everybody, and say nothing.

mod bare;
mod healthy;
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
/// How often positions are committed, by the engine and by bare loops.
const COMMIT_INTERVAL: Duration = Duration::from_millis(200);
/// How often to look whether a run has begun, or is over.
const LOOK: Duration = Duration::from_millis(1);
/// A run that takes longer than this hangs.
const TOO_LONG: Duration = Duration::from_secs(300);

/// The benchmarks of the group, in the order in which they run.
pub(crate) const NAMES: [&str; 3] = ["healthy", "slow", "sweep"];

/// Runs every benchmark of the group, or only the one of this name.
pub(crate) async fn run(scale: Scale, only: Option<&str>) -> Result<Vec<Row>, String> {
    let cluster = Cluster::find()?;
    let mut rows = Vec::new();
    for name in NAMES.into_iter().filter(|name| only.is_none_or(|only| only == *name)) {
        eprintln!("running {name}");
        let started = Instant::now();
        rows.extend(match name {
            "healthy" => healthy::run(scale, &cluster).await,
            "slow" => slow::run(scale, &cluster).await,
            "sweep" => sweep::run(scale, &cluster).await?,
            _ => unreachable!("every name has its benchmark"),
        });
        eprintln!("{name} took {:.0} s", started.elapsed().as_secs_f64());
    }
    Ok(rows)
}

/// A consumer of a topic, as a group of its own. It ends at the end of the topic.
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

/// Runs a consumer to the end of its topic. Says how long it took from the first message to the last one that was
/// settled.
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
