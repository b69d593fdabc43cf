//! The cost of dead-lettering, from 0 % to 100 % of the messages.

use std::sync::Arc;

use lazaret_core::handler::Payload;
use lazaret_core::{HandlerError, Reason};

use super::{BENCH, consume, options_failing, rate, without_fuse};
use crate::Scale;
use crate::source::{Plan, is_bad};
use crate::table::{Compared, ROUNDS, Row};

/// The number of messages: as many as fit in memory as letters.
const MESSAGES: usize = 500_000;
/// The shares of dead-lettered messages, in percent. The first is the baseline.
const PERCENT: [f64; 6] = [0.0, 0.1, 1.0, 10.0, 50.0, 100.0];

pub(super) async fn run(scale: Scale) -> Vec<Row> {
    let count = scale.count(MESSAGES) as u32;
    let plans = PERCENT.map(|percent| Plan::distinct(count, percent / 100.0));
    let mut rates = PERCENT.map(|_| Vec::new());
    for _ in 0..ROUNDS {
        for ((plan, percent), rates) in plans.iter().zip(PERCENT).zip(&mut rates) {
            rates.push(measure(plan, percent / 100.0).await);
        }
    }
    let rows = PERCENT.iter().zip(&rates).map(|(percent, each)| {
        let name = format!("failure sweep/{percent} % dead-lettered{}", without_fuse(percent / 100.0));
        Row::compared(BENCH, name, "msg/s", &Compared::new(each, &rates[0]))
    });
    rows.collect()
}

async fn measure(plan: &Arc<Plan>, share: f64) -> f64 {
    let (took, stats) = consume(plan, options_failing(share), refuse_bad).await;
    assert_eq!(stats.handed_off, plan.bad_count() as u64, "every bad message became a letter");
    rate(plan.len(), took)
}

async fn refuse_bad(Payload(payload): Payload) -> Result<(), HandlerError> {
    if is_bad(payload.as_ref()) {
        return Err(HandlerError::msg("negative amount").reason(Reason::DOMAIN_INVALID));
    }
    Ok(())
}
