//! What a message costs when nothing fails: the engine on the Kafka source, beside bare loops around the client.

use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

use lazaret_core::handler::Payload;
use lazaret_memory::MemoryStore;

use super::topic::{Cluster, Topic};
use super::{BENCH, bare, consumer, timed};
use crate::Scale;
use crate::core::{options, rate};
use crate::table::{Bar, Compared, Row, spread};
use crate::zipf::Random;

const PARTITIONS: u32 = 12;
const MESSAGES: usize = 1_000_000;
const KEYS: u32 = 100_000;
/// Many and short, so that what else the machine does hits all contenders alike.
const ROUNDS: usize = 7;

pub(super) async fn run(scale: Scale, cluster: &Cluster) -> Vec<Row> {
    let mut random = Random::new(1);
    let topic = cluster.fill(PARTITIONS, scale.count(MESSAGES), |_| random.below(KEYS)).await;
    // Once for nobody: the broker reads its files into memory.
    bare::polling(&topic).await;
    let (mut polling, mut streaming, mut engine) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        polling.push(rate(topic.messages, bare::polling(&topic).await));
        engine.push(rate(topic.messages, engine_run(&topic).await));
        streaming.push(rate(topic.messages, bare::streaming(&topic).await));
    }
    let faster: Vec<f64> = polling.iter().zip(&streaming).map(|(a, b)| a.max(*b)).collect();
    let note = format!(
        "{ROUNDS} rounds; the ratios lie between {}; each beside the faster of both loops in its round. Loops, source \
         and engine run in this process, the broker beside it on the same cores",
        spread(&engine, &faster)
    );
    let row = |name, baseline: &[f64]| Row::compared(BENCH, name, "msg/s", &Compared::new(&engine, baseline));
    vec![
        row("healthy/1 KiB, 12 partitions, beside a bare loop", &faster)
            .with_bar(Bar::RatioAtLeast(0.85))
            .with_note(note),
        row("healthy/the same, beside BaseConsumer", &polling),
        row("healthy/the same, beside StreamConsumer", &streaming),
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
