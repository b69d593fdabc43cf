//! The healthy path as a user has it: default options, a durable store and the flight recorder attached, six partitions.

use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

use lazaret_core::FlightRecorder;
use lazaret_core::handler::Payload;
use lazaret_engine::Options;
use lazaret_flight_recorder::{MappedRecorder, Options as RecorderOptions};

use super::runs::Runs;
use super::topic::{Cluster, Topic};
use super::{BENCH, bare, consumer, timed};
use crate::Scale;
use crate::consumer::let_go;
use crate::embedded::disk::{Disk, remove};
use crate::embedded::open;
use crate::table::{Bar, Compared, Row, median, spread};
use crate::zipf::Random;

const PARTITIONS: u32 = 6;
const MESSAGES: usize = 2_000_000;
const KEYS: u32 = 100_000;
const ROUNDS: usize = 7;

pub(super) async fn run(scale: Scale, cluster: &Cluster) -> Result<Vec<Row>, String> {
    let disk = Disk::find()?;
    let mut random = Random::new(1);
    let topic = cluster.fill(PARTITIONS, scale.count(MESSAGES), |_| random.below(KEYS)).await;
    let recorder = MappedRecorder::open(disk.file(), RecorderOptions::default());
    let recorder: Arc<dyn FlightRecorder> = Arc::new(recorder.map_err(|error| error.to_string())?);
    // Warm-up: the broker reads its files into memory.
    bare::polling(&topic).await;
    let (mut polling, mut streaming) = (Runs::default(), Runs::default());
    let (mut recorded, mut unrecorded) = (Runs::default(), Runs::default());
    for _ in 0..ROUNDS {
        polling.add(&topic, bare::polling(&topic)).await;
        recorded.add(&topic, engine_run(&topic, &disk, Some(recorder.clone()))).await;
        streaming.add(&topic, bare::streaming(&topic)).await;
        unrecorded.add(&topic, engine_run(&topic, &disk, None)).await;
    }
    let faster = if median(&polling.rates) >= median(&streaming.rates) { &polling } else { &streaming };
    let note = |subject: &[f64], baseline: &[f64]| {
        format!("{ROUNDS} rounds; the ratios lie between {}", spread(subject, baseline))
    };
    let rates = |name, runs: &Runs| {
        let row = Row::compared(BENCH, name, "msg/s", &Compared::new(&runs.rates, &faster.rates));
        row.with_note(note(&runs.rates, &faster.rates))
    };
    let costs = |name, runs: &Runs| {
        let row = Row::compared(BENCH, name, "ns/msg", &Compared::new(&runs.costs, &faster.costs));
        row.with_note(note(&runs.costs, &faster.costs))
    };
    Ok(vec![
        rates("healthy-6/defaults and flight recorder, beside a bare loop", &recorded)
            .with_bar(Bar::RatioAtLeast(0.85)),
        costs("healthy-6/processor time of the same", &recorded).with_bar(Bar::RatioAtMost(1.6)),
        rates("healthy-6/defaults", &unrecorded),
        costs("healthy-6/processor time of the same, without recorder", &unrecorded),
    ])
}

async fn no_op(Payload(payload): Payload) {
    black_box(payload);
}

/// Runs with default options on a store in a new file. Nothing fails, so the store holds no letter in the end.
async fn engine_run(
    topic: &Topic,
    disk: &Disk,
    flight_recorder: Option<Arc<dyn FlightRecorder>>,
) -> Duration {
    let file = disk.file();
    let store = open(&file);
    let options = Options { until_idle: true, flight_recorder, ..Options::default() };
    let consumer = consumer(topic, store.clone(), options, no_op);
    let (took, stats) = timed(consumer, topic.messages).await;
    assert_eq!(stats.handled, topic.messages as u64, "every message is handled once");
    let_go(store).await;
    remove(&file);
    took
}
