//! The cost of dead-lettering, from 0 % to 100 % of the messages.

use std::future::{Ready, ready};
use std::sync::Arc;
use std::time::Duration;

use lazaret_core::handler::Payload;
use lazaret_core::policy::{RetryPolicy, Strategy};
use lazaret_core::{HandlerError, Reason};
use lazaret_engine::{Consumer, Options};
use lazaret_memory::MemoryStore;
use lazaret_source_kafka::{KafkaOptions, KafkaRelay, KafkaSource, RetryTopics};

use super::topic::{Cluster, Topic, draws_the_short_straw, fresh_group};
use super::{BENCH, COMMIT_INTERVAL, consumer, timed};
use crate::Scale;
use crate::consumer::let_go;
use crate::core::{options_failing, rate, without_fuse};
use crate::embedded::disk::{Disk, remove};
use crate::embedded::open;
use crate::table::{Compared, ROUNDS, Row};

const PARTITIONS: u32 = 12;
/// The number of messages: as many as the embedded store accepts in a few seconds when all fail.
const MESSAGES: usize = 100_000;
/// The shares of dead-lettered messages, in percent. The first is the baseline.
const PERCENT: [f64; 6] = [0.0, 0.1, 1.0, 10.0, 50.0, 100.0];

pub(super) async fn run(scale: Scale, cluster: &Cluster) -> Result<Vec<Row>, String> {
    let disk = Disk::find()?;
    // No two messages share a key: a failed one would block the others.
    let topic = cluster.fill(PARTITIONS, scale.count(MESSAGES), |number| number as u32).await;
    let (mut stored, mut passed_on) = (PERCENT.map(|_| Vec::new()), PERCENT.map(|_| Vec::new()));
    for _ in 0..ROUNDS {
        for (index, percent) in PERCENT.iter().enumerate() {
            stored[index].push(into_the_store(&topic, &disk, percent / 100.0).await);
            passed_on[index].push(into_a_topic(&topic, percent / 100.0).await);
        }
    }
    let mut rows = rows("into the embedded store", &stored);
    rows.extend(self::rows("into a topic", &passed_on));
    Ok(rows)
}

/// Returns a row for each share, against no failures.
fn rows(whither: &str, rates: &[Vec<f64>]) -> Vec<Row> {
    let rows = PERCENT.iter().zip(rates).map(|(percent, each)| {
        let fuse = without_fuse(percent / 100.0);
        let name = format!("failure sweep/{percent} % dead-lettered {whither}{fuse}");
        Row::compared(BENCH, name, "msg/s", &Compared::new(each, &rates[0]))
    });
    rows.collect()
}

/// Fails for this share of all messages.
fn refusing(
    share: f64,
) -> impl Fn(Payload) -> Ready<Result<(), HandlerError>> + Clone + Send + Sync + 'static {
    move |Payload(payload)| {
        ready(match draws_the_short_straw(payload.as_deref(), share) {
            true => Err(HandlerError::msg("negative amount").reason(Reason::DOMAIN_INVALID)),
            false => Ok(()),
        })
    }
}

/// Checks that the expected share failed.
fn assert_share(failed: u64, topic: &Topic, share: f64) {
    let expected = topic.messages as f64 * share;
    let close = expected.sqrt() * 6.0 + 1.0;
    assert!((failed as f64 - expected).abs() <= close, "{failed} failed, not {expected}");
}

/// Measures messages per second with dead letters in a topic of the same broker, durable before the position is committed.
async fn into_a_topic(topic: &Topic, share: f64) -> f64 {
    let kafka = KafkaOptions::new(&topic.brokers, fresh_group(), [&topic.name]).reading_to_end();
    let topics = RetryTopics::new("bench", [Duration::from_secs(60)]).creating_topics();
    let relay = KafkaRelay::open(&kafka, topics).await.expect("the topics can be made");
    let source = KafkaSource::open_with(kafka, &relay).expect("the options of the benchmarks are valid");
    let retry = RetryPolicy { strategy: Strategy::Topics, ..RetryPolicy::default() };
    let options = Options {
        retry,
        relay: Some(Arc::new(relay)),
        commit_interval: COMMIT_INTERVAL,
        ..options_failing(share)
    };
    let builder = Consumer::builder("bench").source(source).store(Arc::new(MemoryStore::default()));
    let consumer = builder.handler(refusing(share)).options(options).build();
    let consumer = consumer.expect("the options of the benchmarks are valid");
    let (took, stats) = timed(consumer, topic.messages).await;
    assert_share(stats.relayed, topic, share);
    rate(topic.messages, took)
}

/// Measures messages per second with letters in a durable embedded store.
async fn into_the_store(topic: &Topic, disk: &Disk, share: f64) -> f64 {
    let file = disk.file();
    let store = open(&file);
    let consumer = consumer(topic, store.clone(), options_failing(share), refusing(share));
    let (took, stats) = timed(consumer, topic.messages).await;
    assert_share(stats.handed_off, topic, share);
    let_go(store).await;
    remove(&file);
    rate(topic.messages, took)
}
