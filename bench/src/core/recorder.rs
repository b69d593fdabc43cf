//! The cost of the flight recorder per healthy message.

use std::sync::Arc;

use lazaret_engine::Options;
use lazaret_flight_recorder::{MappedRecorder, Options as RecorderOptions};

use super::{BENCH, consume, options, rate};
use crate::Scale;
use crate::source::Plan;
use crate::table::{Bar, Compared, Row};

/// Many short rounds: the difference is smaller than the noise of one round.
const MESSAGES: usize = 250_000;
const KEYS: u32 = 10_000;
const ROUNDS: usize = 60;

pub(super) async fn run(scale: Scale) -> Vec<Row> {
    let plan = Plan::zipf(scale.count(MESSAGES), KEYS);
    let folder = tempfile::tempdir().expect("a folder for the recorder");
    let recorder = MappedRecorder::open(folder.path().join("bench.flight"), RecorderOptions::default());
    let recorder = Arc::new(recorder.expect("a recorder of its own"));
    let (mut without, mut with) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        for turn in 0..2 {
            if (round + turn) % 2 == 0 {
                without.push(messages_per_second(&plan, None).await);
            } else {
                with.push(messages_per_second(&plan, Some(recorder.clone())).await);
            }
        }
    }
    let compared = Compared::new(&with, &without);
    vec![
        Row::compared(BENCH, "flight recorder/healthy messages", "msg/s", &compared)
            .with_bar(Bar::RatioAtLeast(0.97)),
    ]
}

async fn messages_per_second(plan: &Arc<Plan>, recorder: Option<Arc<MappedRecorder>>) -> f64 {
    let flight_recorder = recorder.map(|recorder| recorder as Arc<dyn lazaret_core::FlightRecorder>);
    let (took, stats) = consume(plan, Options { flight_recorder, ..options() }, || async {}).await;
    assert_eq!(stats.handled, plan.len() as u64, "every message is handled");
    rate(plan.len(), took)
}
