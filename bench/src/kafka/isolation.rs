//! Failing keys beside healthy ones: the throughput that the healthy ones keep (I3).
//!
//! The baseline reads the same healthy messages alone. The failing keys add their messages: of all keys, the given share fails at
//! every attempt, so its messages are retried, wait, and go to the store with default options.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use lazaret_core::HandlerError;
use lazaret_core::handler::Key;
use lazaret_engine::Options;
use tokio_util::sync::CancellationToken;

use super::topic::{Cluster, Topic, key_number};
use super::{BENCH, LOOK, TOO_LONG, consumer};
use crate::Scale;
use crate::consumer::let_go;
use crate::core::rate;
use crate::embedded::disk::{Disk, remove};
use crate::embedded::open;
use crate::table::{Bar, Compared, ROUNDS, Row, spread};
use crate::zipf::Random;

const PARTITIONS: u32 = 6;
/// The keys have many messages each: it is the messages behind a failed one that could stop others, not its few attempts.
const HEALTHY_KEYS: u32 = 1_000;
/// The shares of failing keys, in percent. The first is the baseline.
const PERCENT: [u32; 4] = [0, 1, 10, 30];
/// The duration of a handler call with which the processor is not the limit.
const TAKES: Duration = Duration::from_millis(2);
/// The number of healthy messages for such a handler: a few seconds of work.
const SLOW_MESSAGES: usize = 100_000;
/// The number of healthy messages for a handler that does nothing.
const FAST_MESSAGES: usize = 1_000_000;

pub(super) async fn run(scale: Scale, cluster: &Cluster) -> Result<Vec<Row>, String> {
    let disk = Disk::find()?;
    let slow = contest(scale.count(SLOW_MESSAGES), cluster, &disk, || tokio::time::sleep(TAKES)).await;
    let fast = contest(scale.count(FAST_MESSAGES), cluster, &disk, || std::future::ready(())).await;
    let mut rows = Vec::new();
    for (index, percent) in PERCENT.iter().enumerate().skip(1) {
        let name = format!("isolation/{percent} % of keys fail, 2 ms handler");
        rows.push(row(name, &slow[index], &slow[0]).with_bar(Bar::RatioAtLeast(0.9)));
    }
    // The processor is the limit of these, and the messages of failing keys take their part of it: no target.
    for (index, percent) in PERCENT.iter().enumerate().skip(1) {
        let name = format!("isolation/{percent} % of keys fail, no-op handler");
        rows.push(row(name, &fast[index], &fast[0]));
    }
    Ok(rows)
}

fn row(name: String, subject: &[f64], baseline: &[f64]) -> Row {
    Row::compared(BENCH, name, "msg/s", &Compared::new(subject, baseline))
        .with_note(format!("{ROUNDS} rounds; the ratios lie between {}", spread(subject, baseline)))
}

/// Measures healthy messages per second for every share of failing keys, by round.
async fn contest<F: Future<Output = ()> + Send + 'static>(
    healthy: usize,
    cluster: &Cluster,
    disk: &Disk,
    work: impl Fn() -> F + Clone + Send + Sync + 'static,
) -> [Vec<f64>; PERCENT.len()] {
    let mut topics = Vec::new();
    for percent in PERCENT {
        topics.push(fill(cluster, healthy, percent).await);
    }
    let mut rates = PERCENT.map(|_| Vec::new());
    for _ in 0..ROUNDS {
        for (topic, rates) in topics.iter().zip(&mut rates) {
            rates.push(measure(topic, healthy, disk, work.clone()).await);
        }
    }
    rates
}

/// Fills a topic with healthy messages, and those of failing keys at random places between them. Healthy keys are below
/// [`HEALTHY_KEYS`], and every key has about as many messages as any other.
async fn fill(cluster: &Cluster, healthy: usize, percent: u32) -> Topic {
    let failing_keys = HEALTHY_KEYS * percent / (100 - percent);
    let failing = healthy * percent as usize / (100 - percent as usize);
    let mut random = Random::new(u64::from(percent) + 1);
    let all = healthy + failing;
    let (mut healthy, mut failing) = (healthy as u32, failing as u32);
    let draw = |_| {
        if random.below(healthy + failing) < healthy {
            healthy -= 1;
            random.below(HEALTHY_KEYS)
        } else {
            failing -= 1;
            HEALTHY_KEYS + random.below(failing_keys)
        }
    };
    cluster.fill(PARTITIONS, all, draw).await
}

/// Measures healthy messages per second, until the last of them is handled. The letters of the others are left behind.
async fn measure<F: Future<Output = ()> + Send + 'static>(
    topic: &Topic,
    healthy: usize,
    disk: &Disk,
    work: impl Fn() -> F + Clone + Send + Sync + 'static,
) -> f64 {
    let file = disk.file();
    let store = open(&file);
    let handled = Arc::new(AtomicUsize::new(0));
    let count = handled.clone();
    let handler = move |Key(key): Key| {
        let (count, work) = (count.clone(), work.clone());
        async move {
            work().await;
            if key_number(key.as_deref()).is_none_or(|key| key >= HEALTHY_KEYS) {
                return Err(HandlerError::msg("this key always fails"));
            }
            count.fetch_add(1, Ordering::Relaxed);
            Ok(())
        }
    };
    let consumer = consumer(topic, store.clone(), Options::default(), handler);
    let handle = consumer.handle();
    let drain = CancellationToken::new();
    let run = tokio::spawn(consumer.run(drain.clone()));
    super::until(&handle, |stats| stats.read > 0).await;
    let started = Instant::now();
    while handled.load(Ordering::Relaxed) < healthy {
        assert!(started.elapsed() < TOO_LONG, "the run hangs: {:?}", handle.stats());
        tokio::time::sleep(LOOK).await;
    }
    let took = started.elapsed();
    drain.cancel();
    run.await.expect("the engine does not panic").expect("the engine ends without an error");
    assert_eq!(handled.load(Ordering::Relaxed), healthy, "every healthy message is handled once");
    drop(handle);
    let_go(store).await;
    remove(&file);
    rate(healthy, took)
}
