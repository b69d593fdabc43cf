//! Slow handlers: whether the engine keeps `concurrency` of them busy.

use std::sync::Arc;
use std::time::{Duration, Instant};

use lazaret_core::handler::Payload;
use lazaret_engine::Options;
use tokio::task::JoinSet;

use super::{BENCH, consume, options, rate};
use crate::Scale;
use crate::source::Plan;
use crate::table::{Bar, Compared, ROUNDS, Row};

const CONCURRENCY: usize = 1000;
const KEYS: u32 = 10_000;
/// Enough distinct keys that blocked lanes never starve the workers, and few messages per key, so that the last lanes are short
/// when the source ends.
const WINDOW: usize = 16 * 1024;
const MESSAGES_1_MS: usize = 1_000_000;
const MESSAGES_10_MS: usize = 500_000;

pub(super) async fn run(scale: Scale) -> Vec<Row> {
    let mut rows = Vec::new();

    let ten = Measured::new(scale.count(MESSAGES_10_MS), Duration::from_millis(10)).await;
    rows.push(ten.row("slow 10 ms/throughput vs ideal", &ten.ideal()).with_bar(Bar::RatioAtLeast(0.8)));
    rows.push(ten.row("slow 10 ms/throughput vs bare tasks", &ten.bare));

    let one = Measured::new(scale.count(MESSAGES_1_MS), Duration::from_millis(1)).await;
    // Above a few hundred thousand timers per second the machine is the limit, not the engine.
    let possible: Vec<f64> = one.bare.iter().zip(one.ideal()).map(|(bare, ideal)| bare.min(ideal)).collect();
    let name = "slow 1 ms/throughput vs min(ideal, bare)";
    rows.push(one.row(name, &possible).with_bar(Bar::RatioAtLeast(0.8)));
    rows.push(one.row("slow 1 ms/throughput vs ideal", &one.ideal()));
    rows
}

/// Messages per second of subject and baseline, by round.
struct Measured {
    takes: Duration,
    engine: Vec<f64>,
    bare: Vec<f64>,
}

impl Measured {
    async fn new(messages: usize, takes: Duration) -> Self {
        let plan = Plan::uniform(messages, KEYS);
        let (mut bare, mut engine) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            bare.push(rate(plan.len(), bare_tasks(&plan, takes).await));
            engine.push(rate(plan.len(), engine_run(&plan, takes).await));
        }
        Self { takes, engine, bare }
    }

    fn ideal(&self) -> [f64; ROUNDS] {
        [CONCURRENCY as f64 / self.takes.as_secs_f64(); ROUNDS]
    }

    fn row(&self, name: &str, baseline: &[f64]) -> Row {
        Row::compared(BENCH, name, "msg/s", &Compared::new(&self.engine, baseline))
    }
}

async fn engine_run(plan: &Arc<Plan>, takes: Duration) -> Duration {
    let options = Options { concurrency: CONCURRENCY, window: WINDOW, ..options() };
    let (took, stats) = consume(plan, options, move |payload: Payload| wait(payload, takes)).await;
    assert_eq!(stats.handled, plan.len() as u64, "every message is handled once");
    took
}

/// Runs the baseline: `concurrency` tasks that each handle one message, without ordering, watermark or failure handling.
async fn bare_tasks(plan: &Arc<Plan>, takes: Duration) -> Duration {
    let started = Instant::now();
    let plan = plan.clone();
    let all = tokio::spawn(async move {
        let mut tasks = JoinSet::new();
        for number in 0..plan.len() {
            if tasks.len() == CONCURRENCY {
                tasks.join_next().await;
            }
            let message = plan.message(number);
            tasks.spawn(async move { wait(Payload(message.payload.clone()), takes).await });
        }
        while tasks.join_next().await.is_some() {}
    });
    all.await.expect("the baseline does not panic");
    started.elapsed()
}

async fn wait(_: Payload, takes: Duration) {
    tokio::time::sleep(takes).await;
}
