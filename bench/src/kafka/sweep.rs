//! What dead-lettering costs, from none of the messages to all of them.

use lazaret_core::handler::Payload;
use lazaret_core::{HandlerError, Reason};

use super::topic::{Cluster, Topic, draws_the_short_straw};
use super::{BENCH, consumer, timed};
use crate::Scale;
use crate::core::{options, rate};
use crate::embedded::disk::{Disk, remove};
use crate::embedded::{let_go, open};
use crate::table::{Compared, ROUNDS, Row};

const PARTITIONS: u32 = 12;
/// As many as the embedded store takes in a few seconds when all of them fail.
const MESSAGES: usize = 100_000;
/// The shares of dead-lettered messages, in percent. The first is the baseline of the others.
const PERCENT: [f64; 6] = [0.0, 0.1, 1.0, 10.0, 50.0, 100.0];

pub(super) async fn run(scale: Scale, cluster: &Cluster) -> Result<Vec<Row>, String> {
    let disk = Disk::find()?;
    // No two messages share a key: otherwise one that failed would hold others back.
    let topic = cluster.fill(PARTITIONS, scale.count(MESSAGES), |number| number as u32).await;
    let mut rates = PERCENT.map(|_| Vec::new());
    for _ in 0..ROUNDS {
        for (percent, rates) in PERCENT.iter().zip(&mut rates) {
            rates.push(into_the_store(&topic, &disk, percent / 100.0).await);
        }
    }
    let rows = PERCENT.iter().zip(&rates).map(|(percent, each)| {
        let name = format!("failure sweep/{percent} % dead-lettered into the embedded store");
        Row::compared(BENCH, name, "msg/s", &Compared::new(each, &rates[0]))
    });
    Ok(rows.collect())
}

/// Messages per second when the letters go into a file whose answers are durable.
async fn into_the_store(topic: &Topic, disk: &Disk, share: f64) -> f64 {
    let file = disk.file();
    let store = open(&file);
    let handler = move |Payload(payload): Payload| async move {
        if draws_the_short_straw(payload.as_deref(), share) {
            return Err(HandlerError::msg("negative amount").reason(Reason::DOMAIN_INVALID));
        }
        Ok(())
    };
    let consumer = consumer(topic, store.clone(), options(), handler);
    let (took, stats) = timed(consumer, topic.messages).await;
    let expected = topic.messages as f64 * share;
    let close = expected.sqrt() * 6.0 + 1.0;
    assert!((stats.handed_off as f64 - expected).abs() <= close, "as many failed as should: {stats:?}");
    let_go(store).await;
    remove(&file);
    rate(topic.messages, took)
}
