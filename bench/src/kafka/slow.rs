//! Slow handlers on few partitions: lanes by key against one message at a time per partition.

use std::sync::Arc;
use std::time::{Duration, Instant};

use lazaret_core::Sequencing;
use lazaret_core::handler::Payload;
use lazaret_engine::Options;
use lazaret_memory::MemoryStore;
use rdkafka::consumer::{CommitMode, Consumer, StreamConsumer};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::topic::{Cluster, Topic};
use super::{BENCH, COMMIT_INTERVAL, bare, consumer, timed};
use crate::Scale;
use crate::core::{options, rate};
use crate::table::{Bar, Compared, ROUNDS, Row, spread};
use crate::zipf::{Random, Zipf};

const TAKES: Duration = Duration::from_millis(10);
const PARTITIONS: u32 = 3;
const KEYS: u32 = 10_000;
const CONCURRENCY: usize = 1000;
const WINDOW: usize = 32 * 1024;
/// The number of messages: a few seconds of work for the engine.
const MESSAGES: usize = 100_000;
/// The number of messages for skewed keys, where one lane has a tenth of all: a few seconds of work for that lane.
const STEEP_MESSAGES: usize = 5_000;
/// The number of messages for the baseline: a few seconds of work.
const BASELINE_MESSAGES: usize = 900;

pub(super) async fn run(scale: Scale, cluster: &Cluster) -> Vec<Row> {
    let flat = Contest::new(cluster, scale.count(MESSAGES), 0.5).await;
    let steep = Contest::new(cluster, scale.count(MESSAGES), 1.0).await;
    let few = Contest::new(cluster, scale.count(STEEP_MESSAGES), 1.0).await;
    let one_by_one = scale.count(BASELINE_MESSAGES);
    let (mut baseline, mut possible) = (Vec::new(), Vec::new());
    let (mut by_key, mut alone, mut hot) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let rate = one_at_a_time(&flat.topic, one_by_one).await;
        baseline.push(rate);
        // The rate that the longest lane allows, at the pace of the baseline.
        possible.push(rate / f64::from(PARTITIONS) / few.largest_share);
        by_key.push(flat.measure(Sequencing::Key).await);
        alone.push(steep.measure(Sequencing::Alone).await);
        hot.push(few.measure(Sequencing::Key).await);
    }
    let row = |name: &str, subject: &[f64], baseline: &[f64]| {
        Row::compared(BENCH, name, "msg/s", &Compared::new(subject, baseline))
            .with_note(format!("the ratios are between {}", spread(subject, baseline)))
    };
    vec![
        row("slow 10 ms/10 k keys, Zipf 0.5, in order by key", &by_key, &baseline)
            .with_bar(Bar::RatioAtLeast(50.0)),
        row("slow 10 ms/10 k keys, Zipf 1, no order", &alone, &baseline).with_bar(Bar::RatioAtLeast(50.0)),
        row("slow 10 ms/10 k keys, Zipf 1, in order by key", &hot, &baseline).with_note(format!(
            "one key has {:.1} % of all messages here, handled one by one: any ordered consumer is at most \
             {:.1} times as fast as the baseline",
            100.0 * few.largest_share,
            1.0 / few.largest_share / f64::from(PARTITIONS),
        )),
        row("slow 10 ms/the same, beside what its longest lane allows", &hot, &possible)
            .with_bar(Bar::RatioAtLeast(0.8)),
    ]
}

/// A topic, and the share of its most frequent key.
struct Contest {
    topic: Topic,
    largest_share: f64,
}

impl Contest {
    async fn new(cluster: &Cluster, messages: usize, exponent: f64) -> Self {
        let (zipf, mut random) = (Zipf::with_exponent(KEYS, exponent), Random::new(1));
        let mut counts = vec![0_usize; KEYS as usize];
        let draw = |_| {
            let key = zipf.draw(&mut random);
            counts[key as usize] += 1;
            key
        };
        let topic = cluster.fill(PARTITIONS, messages, draw).await;
        let largest = counts.into_iter().max().unwrap_or(0);
        Self { topic, largest_share: largest as f64 / messages as f64 }
    }

    /// Measures messages per second of the engine.
    async fn measure(&self, sequencing: Sequencing) -> f64 {
        let options = Options { concurrency: CONCURRENCY, window: WINDOW, sequencing, ..options() };
        let handler = |_: Payload| tokio::time::sleep(TAKES);
        let consumer = consumer(&self.topic, Arc::new(MemoryStore::default()), options, handler);
        let (took, stats) = timed(consumer, self.topic.messages).await;
        assert_eq!(stats.handled, self.topic.messages as u64, "every message is handled once");
        rate(self.topic.messages, took)
    }
}

/// Runs the baseline: one task per partition that handles one message after the other, up to a number of messages.
async fn one_at_a_time(topic: &Topic, messages: usize) -> f64 {
    let consumer: StreamConsumer = bare::settings(topic).create().expect("the settings are valid");
    let consumer = Arc::new(consumer);
    let (done, mut is_done) = mpsc::channel(1024);
    let mut tasks = JoinSet::new();
    for partition in 0..topic.partitions {
        let queue = consumer.split_partition_queue(&topic.name, partition as i32);
        let (queue, done) = (queue.expect("the partition is there"), done.clone());
        tasks.spawn(async move {
            while let Ok(record) = queue.recv().await {
                drop(record);
                tokio::time::sleep(TAKES).await;
                if done.send(()).await.is_err() {
                    return;
                }
            }
        });
    }
    consumer.subscribe(&[&topic.name]).expect("the topic is there");
    let poll = {
        let consumer = consumer.clone();
        tokio::spawn(async move { while consumer.recv().await.is_ok() {} })
    };
    // The first message of each partition is not counted: it arrives when the group is ready.
    for _ in 0..topic.partitions {
        is_done.recv().await;
    }
    let (started, mut last_commit) = (Instant::now(), Instant::now());
    for _ in 0..messages {
        is_done.recv().await;
        if last_commit.elapsed() >= COMMIT_INTERVAL {
            consumer.commit_consumer_state(CommitMode::Async).expect("a commit can be sent");
            last_commit = Instant::now();
        }
    }
    let took = started.elapsed();
    tasks.shutdown().await;
    poll.abort();
    rate(messages, took)
}
