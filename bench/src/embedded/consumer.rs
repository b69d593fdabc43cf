//! A consumer end to end on the embedded store, from 0 % to 100 % failures.

use std::sync::Arc;
use std::time::{Duration, Instant};

use lazaret_core::handler::Payload;
use lazaret_core::{HandlerError, Reason};
use tokio_util::sync::CancellationToken;

use super::disk::{Disk, remove};
use super::{BENCH, open};
use crate::Scale;
use crate::consumer::{consumer, let_go};
use crate::core::{options_failing, rate, without_fuse};
use crate::source::{Plan, is_bad};
use crate::table::{Compared, ROUNDS, Row};

/// The shares of dead-lettered messages, in percent, and the number of messages for about the same duration each.
const PERCENT: [(f64, usize); 4] = [(0.0, 1_000_000), (1.0, 500_000), (10.0, 200_000), (100.0, 40_000)];

pub(super) async fn run(scale: Scale, disk: &Disk) -> Vec<Row> {
    let plans = PERCENT.map(|(percent, count)| Plan::distinct(scale.count(count) as u32, percent / 100.0));
    let mut rates = PERCENT.map(|_| Vec::new());
    for _ in 0..ROUNDS {
        for ((plan, (percent, _)), rates) in plans.iter().zip(PERCENT).zip(&mut rates) {
            rates.push(rate(plan.len(), measure(plan, percent / 100.0, disk).await));
        }
    }
    let rows = PERCENT.iter().zip(&rates).map(|((percent, _), each)| {
        let name = format!("consumer/{percent} % dead-lettered{}", without_fuse(percent / 100.0));
        Row::compared(BENCH, name, "msg/s", &Compared::new(each, &rates[0]))
    });
    rows.collect()
}

async fn measure(plan: &Arc<Plan>, share: f64, disk: &Disk) -> Duration {
    let file = disk.file();
    let store = open(&file);
    let consumer = consumer(plan, &store, options_failing(share), refuse_bad);
    let started = Instant::now();
    let run = tokio::spawn(consumer.run(CancellationToken::new()));
    let stats = run.await.expect("the engine does not panic").expect("the engine ends without an error");
    let took = started.elapsed();
    assert_eq!(stats.read, plan.len() as u64, "the engine has read every message");
    assert_eq!(stats.handed_off, plan.bad_count() as u64, "every bad message became a letter");
    let_go(store).await;
    remove(&file);
    took
}

async fn refuse_bad(Payload(payload): Payload) -> Result<(), HandlerError> {
    if is_bad(payload.as_ref()) {
        return Err(HandlerError::msg("negative amount").reason(Reason::DOMAIN_INVALID));
    }
    Ok(())
}
