//! The cost of a message when nothing fails: the engine against a bare channel with the same handler.

use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use lazaret_core::Message;
use lazaret_core::handler::Payload;
use tokio::sync::mpsc;

use super::{BENCH, consume, options};
use crate::Scale;
use crate::alloc::Meter;
use crate::source::Plan;
use crate::table::{Bar, Compared, ROUNDS, Row};

const MESSAGES: usize = 10_000_000;
/// The number of messages of the untimed runs that count allocations.
const COUNTED_MESSAGES: usize = 1_000_000;
const KEYS: u32 = 100_000;
const CHANNEL: usize = 1024;
const RECEIVE_MANY: usize = 256;

pub(super) async fn run(scale: Scale) -> Vec<Row> {
    let plan = Plan::zipf(scale.count(MESSAGES), KEYS);
    let (mut bare, mut bare_many, mut engine) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        bare.push(per_message(&plan, one_by_one(&plan).await));
        bare_many.push(per_message(&plan, many_at_once(&plan).await));
        engine.push(per_message(&plan, engine_run(&plan).await));
    }
    vec![
        Row::compared(BENCH, "healthy/cost", "ns/msg", &Compared::new(&engine, &bare))
            .with_bar(Bar::RatioAtMost(5.0)),
        Row::compared(BENCH, "healthy/cost vs recv_many", "ns/msg", &Compared::new(&engine, &bare_many)),
        allocations(scale).await,
    ]
}

/// Measures allocations per message, including the message's own on both sides.
async fn allocations(scale: Scale) -> Row {
    let plan = Plan::zipf(scale.count(COUNTED_MESSAGES), KEYS);
    let meter = Meter::start();
    one_by_one(&plan).await;
    let bare = meter.read().allocations as f64 / plan.len() as f64;
    let meter = Meter::start();
    engine_run(&plan).await;
    let engine = meter.read().allocations as f64 / plan.len() as f64;
    Row::compared(BENCH, "healthy/allocations", "allocs/msg", &Compared::new(&[engine], &[bare]))
}

async fn no_op(Payload(payload): Payload) {
    black_box(payload);
}

/// Calls the handler in the baseline: the extraction, then the function.
async fn call(message: Message) {
    no_op(Payload(message.payload.clone())).await;
}

async fn engine_run(plan: &Arc<Plan>) -> Duration {
    let (took, stats) = consume(plan, options(), no_op).await;
    assert_eq!(stats.handled, plan.len() as u64, "every message is handled once");
    took
}

/// Runs the baseline: one task sends messages one by one, another receives and handles them one by one.
async fn one_by_one(plan: &Arc<Plan>) -> Duration {
    let started = Instant::now();
    let mut messages = produce(plan);
    let consumer = tokio::spawn(async move {
        while let Some(message) = messages.recv().await {
            call(message).await;
        }
    });
    consumer.await.expect("the baseline does not panic");
    started.elapsed()
}

/// Runs the baseline with a receiver that takes messages in batches.
async fn many_at_once(plan: &Arc<Plan>) -> Duration {
    let started = Instant::now();
    let mut messages = produce(plan);
    let consumer = tokio::spawn(async move {
        let mut gathered = Vec::with_capacity(RECEIVE_MANY);
        while messages.recv_many(&mut gathered, RECEIVE_MANY).await > 0 {
            for message in gathered.drain(..) {
                call(message).await;
            }
        }
    });
    consumer.await.expect("the baseline does not panic");
    started.elapsed()
}

fn produce(plan: &Arc<Plan>) -> mpsc::Receiver<Message> {
    let (sender, messages) = mpsc::channel(CHANNEL);
    let plan = plan.clone();
    tokio::spawn(async move {
        for number in 0..plan.len() {
            if sender.send(plan.message(number)).await.is_err() {
                return;
            }
        }
    });
    messages
}

fn per_message(plan: &Plan, took: Duration) -> f64 {
    took.as_nanos() as f64 / plan.len() as f64
}
