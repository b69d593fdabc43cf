//! The cost of a message when nothing fails: the engine on the Kafka source, against bare loops around the client.

use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

use lazaret_core::handler::Payload;
use lazaret_memory::MemoryStore;

use super::runs::Runs;
use super::topic::{Cluster, Topic};
use super::{BENCH, bare, consumer, timed};
use crate::Scale;
use crate::core::options;
use crate::table::{Bar, Compared, Row, median, spread};
use crate::zipf::Random;

const PARTITIONS: u32 = 12;
const MESSAGES: usize = 2_000_000;
const KEYS: u32 = 100_000;
/// Many short rounds, so that other load on the machine affects all contenders alike.
const ROUNDS: usize = 7;

pub(super) async fn run(scale: Scale, cluster: &Cluster) -> Vec<Row> {
    let mut random = Random::new(1);
    let topic = cluster.fill(PARTITIONS, scale.count(MESSAGES), |_| random.below(KEYS)).await;
    // Warm-up: the broker reads its files into memory.
    bare::polling(&topic).await;
    let (mut polling, mut streaming, mut engine) = (Runs::default(), Runs::default(), Runs::default());
    for _ in 0..ROUNDS {
        polling.add(&topic, bare::polling(&topic)).await;
        engine.add(&topic, engine_run(&topic)).await;
        streaming.add(&topic, bare::streaming(&topic)).await;
    }
    // The faster loop overall. Choosing the faster one per round would favor noise.
    let faster = if median(&polling.rates) >= median(&streaming.rates) { &polling } else { &streaming };
    let note = format!(
        "{ROUNDS} rounds; the ratios lie between {}, beside the loop that was faster in most. Loops, source and engine run \
         in this process, the broker beside it on the same cores",
        spread(&engine.rates, &faster.rates)
    );
    let row =
        |name, baseline: &[f64]| Row::compared(BENCH, name, "msg/s", &Compared::new(&engine.rates, baseline));
    vec![
        row("healthy/1 KiB, 12 partitions, beside a bare loop", &faster.rates)
            .with_bar(Bar::RatioAtLeast(0.85))
            .with_note(note),
        row("healthy/the same, beside BaseConsumer", &polling.rates),
        row("healthy/the same, beside StreamConsumer", &streaming.rates),
        Row::compared(
            BENCH,
            "healthy/processor time of this process, joining and leaving included",
            "ns/msg",
            &Compared::new(&engine.costs, &faster.costs),
        ),
    ]
}

async fn no_op(Payload(payload): Payload) {
    black_box(payload);
}

async fn engine_run(topic: &Topic) -> Duration {
    let consumer = consumer(topic, Arc::new(MemoryStore::default()), options(), no_op);
    let (took, stats) = timed(consumer, topic.messages).await;
    assert_eq!(stats.handled, topic.messages as u64, "every message is handled once");
    took
}
