//! A consumer on the same store, with and without viewers, as a daemon runs it: its events reach the pages.

use std::time::{Duration, Instant};

use lazaret_core::handler::{Handler, Payload};
use lazaret_core::{HandlerError, QueueName, Reason};
use lazaret_engine::Consumer;
use lazaret_server::Approval;
use lazaret_telemetry::{AttemptLayer, LogObserver, Metrics};
use tokio_util::sync::CancellationToken;

use super::processor::viewers_cpu;
use super::site::Site;
use super::viewers::Viewers;
use super::{BENCH, VIEWERS};
use crate::Scale;
use crate::core::{options, rate};
use crate::source::{BenchSource, Plan, is_bad};
use crate::table::{Bar, Compared, ROUNDS, Row, spread};

/// The messages, which are repeated, and the share that becomes letters: enough that the store has work.
const MESSAGES: u32 = 200_000;
const BAD: f64 = 0.01;
/// The time of a round in milliseconds: viewers load their pages about every four seconds. A quick run has shorter ones.
const ROUND_MS: usize = 10_000;
const SHORTEST_MS: usize = 2_000;
/// Fewer messages in a round are no rate.
const LEAST: u64 = 10_000;
/// The consumer keeps this share of its throughput.
const KEPT: f64 = 0.98;

pub(super) async fn run(scale: Scale, site: &Site) -> Vec<Row> {
    let (mut alone, mut viewed, mut loads) = (Vec::new(), Vec::new(), 0);
    let (mut viewers_time, mut all_time) = (Duration::ZERO, Duration::ZERO);
    let paths: Vec<String> = site.screens().await.into_iter().map(|(_, path)| path).collect();
    let plan = Plan::distinct(MESSAGES, BAD);
    let lasts = Duration::from_millis(scale.count(ROUND_MS).max(SHORTEST_MS) as u64);
    let metrics = Metrics::prometheus();
    for round in 0..ROUNDS {
        // The store grows with each run, so that neither always comes second.
        let begins = !round.is_multiple_of(2);
        for with_viewers in [begins, !begins] {
            let source = BenchSource::repeated(plan.clone(), lasts);
            if with_viewers {
                let viewers = Viewers::open(site, &paths, VIEWERS).await;
                let (before, started) = (viewers_cpu(), Instant::now());
                viewed.push(measure(site, &metrics, source, &format!("viewed-{round}")).await);
                viewers_time += viewers_cpu().saturating_sub(before);
                all_time += started.elapsed();
                loads += viewers.loads();
                viewers.close().await;
            } else {
                alone.push(measure(site, &metrics, source, &format!("alone-{round}")).await);
            }
        }
    }
    assert!(loads > 0, "the pages of the viewers are loaded again, because letters arrive");
    let name = format!("beside/consumer, {BAD} of its messages dead-lettered, beside {VIEWERS} viewers");
    let row = Row::compared(BENCH, name, "msg/s", &Compared::new(&viewed, &alone));
    let note = format!(
        "each viewer has one of the screens open, over {} groups; {ROUNDS} rounds of {} s, with {loads} loads of a page; ratios of \
         the rounds between {}; the viewers run on the same processor and take {:.1} % of one core themselves",
        site.groups,
        lasts.as_secs(),
        spread(&viewed, &alone),
        viewers_time.as_secs_f64() / all_time.as_secs_f64() * 100.0
    );
    vec![row.with_bar(Bar::RatioAtLeast(KEPT)).with_note(note)]
}

/// Runs a consumer with a queue of its own: messages that the store knows from an earlier run would cost a lookup each. It has the
/// observers of a daemon: events for pages, logs, which nobody reads here, and metrics. Returns its messages per second.
async fn measure(site: &Site, metrics: &Metrics, source: BenchSource, name: &str) -> f64 {
    let layer = AttemptLayer::new(metrics, name, &QueueName::of(name, name));
    let builder = Consumer::builder(name)
        .source(source)
        .store(site.store.clone())
        .handler(refuse_bad.layer(layer))
        .observer(site.registry.observer(name))
        .observer(LogObserver::new(name))
        .observer(metrics.observer(name));
    let consumer = builder.options(options()).build().expect("the options of the benchmarks are valid");
    site.registry.starting(name, Approval::None);
    site.registry.running(consumer.handle());
    let started = Instant::now();
    let run = tokio::spawn(consumer.run(CancellationToken::new()));
    let stats = run.await.expect("the engine does not panic").expect("the engine ends without an error");
    let took = started.elapsed();
    site.registry.stopped(name);
    assert!(stats.read > LEAST, "{} messages are too few for a rate", stats.read);
    rate(stats.read as usize, took)
}

async fn refuse_bad(Payload(payload): Payload) -> Result<(), HandlerError> {
    if is_bad(payload.as_ref()) {
        return Err(HandlerError::msg("negative amount").reason(Reason::DOMAIN_INVALID));
    }
    Ok(())
}
