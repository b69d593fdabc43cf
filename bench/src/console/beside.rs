//! A consumer on the same store, with and without viewers.

use std::sync::Arc;
use std::time::{Duration, Instant};

use lazaret_core::handler::Payload;
use lazaret_core::{HandlerError, Reason};
use lazaret_engine::Consumer;
use tokio_util::sync::CancellationToken;

use super::site::Site;
use super::viewers::Viewers;
use super::{BENCH, VIEWERS};
use crate::Scale;
use crate::core::{options, rate};
use crate::source::{BenchSource, Plan, is_bad};
use crate::table::{Bar, Compared, ROUNDS, Row};

/// The messages of a round, and the share that becomes letters: enough that the store has work.
const MESSAGES: usize = 200_000;
const BAD: f64 = 0.01;
/// The consumer keeps this share of its throughput.
const KEPT: f64 = 0.98;

pub(super) async fn run(scale: Scale, site: &Site) -> Vec<Row> {
    let (mut alone, mut viewed) = (Vec::new(), Vec::new());
    let paths: Vec<String> = site.screens().await.into_iter().map(|(_, path)| path).collect();
    let plan = Plan::distinct(scale.count(MESSAGES) as u32, BAD);
    for round in 0..ROUNDS {
        alone.push(rate(plan.len(), measure(site, &plan, &format!("alone-{round}")).await));
        let viewers = Viewers::open(site, &paths, VIEWERS).await;
        viewed.push(rate(plan.len(), measure(site, &plan, &format!("viewed-{round}")).await));
        viewers.close().await;
    }
    let name = format!("beside/consumer, {BAD} of its messages dead-lettered, beside {VIEWERS} viewers");
    let row = Row::compared(BENCH, name, "msg/s", &Compared::new(&viewed, &alone));
    let note = format!("each viewer has one of the screens open, over {} groups", site.groups);
    vec![row.with_bar(Bar::RatioAtLeast(KEPT)).with_note(note)]
}

/// Runs a consumer with a queue of its own: messages that the store knows from an earlier run would cost a lookup each.
async fn measure(site: &Site, plan: &Arc<Plan>, name: &str) -> Duration {
    let builder = Consumer::builder(name).source(BenchSource::new(plan.clone())).store(site.store.clone());
    let consumer = builder.handler(refuse_bad).options(options()).build();
    let consumer = consumer.expect("the options of the benchmarks are valid");
    let started = Instant::now();
    let run = tokio::spawn(consumer.run(CancellationToken::new()));
    let stats = run.await.expect("the engine does not panic").expect("the engine ends without an error");
    let took = started.elapsed();
    assert_eq!(stats.read, plan.len() as u64, "the engine has read every message");
    took
}

async fn refuse_bad(Payload(payload): Payload) -> Result<(), HandlerError> {
    if is_bad(payload.as_ref()) {
        return Err(HandlerError::msg("negative amount").reason(Reason::DOMAIN_INVALID));
    }
    Ok(())
}
