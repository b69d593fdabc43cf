//! The cost of live updates: open event streams while letters change.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use lazaret_core::query::Query;
use lazaret_core::store::Triage;
use tokio::task::JoinSet;

use super::BENCH;
use super::site::Site;
use crate::Scale;
use crate::table::{Compared, Row};

/// The open pages.
const VIEWERS: usize = 100;
/// The changes of a run, and how many come in a second.
const CHANGES: usize = 600;
const PER_SECOND: u32 = 20;

/// What a run cost.
struct Cost {
    /// CPU time of this process per second, in milliseconds: server, viewers and the one who makes changes.
    cpu: f64,
    /// Updates per viewer and second.
    updates: f64,
}

pub(super) async fn run(scale: Scale, site: &Site) -> Vec<Row> {
    let changes = scale.count(CHANGES).max(60);
    let nobody = measure(site, 0, changes).await;
    let viewed = measure(site, VIEWERS, changes).await;
    let name =
        format!("live/CPU time per second with {VIEWERS} viewers, {PER_SECOND} changes/s, beside none");
    vec![
        Row::compared(BENCH, name, "ms", &Compared::new(&[viewed.cpu], &[nobody.cpu]))
            .with_note("the viewers are part of the measured process"),
        Row::new(BENCH, "live/updates per viewer", "1/s", viewed.updates),
    ]
}

async fn measure(site: &Site, viewers: usize, changes: usize) -> Cost {
    let received = Arc::new(AtomicU64::new(0));
    let mut streams = JoinSet::new();
    for _ in 0..viewers {
        let url = format!("{}/console/events", site.base);
        let answer = site.client.get(url).send().await.expect("the server answers");
        assert!(answer.status().is_success(), "{}", answer.status());
        let received = received.clone();
        streams.spawn(async move {
            let mut events = answer.bytes_stream();
            while let Some(Ok(part)) = events.next().await {
                let updates = part.windows(7).filter(|text| text == b"event: ").count();
                received.fetch_add(updates as u64, Ordering::Relaxed);
            }
        });
    }
    let query = Query::everything();
    let letters = site.store.find(&query, None, changes).await.expect("the store finds").letters;
    let (cpu, started) = (cpu_time(), Instant::now());
    let mut ticks = tokio::time::interval(Duration::from_secs(1) / PER_SECOND);
    for number in 0..changes {
        ticks.tick().await;
        let letter = &letters[number % letters.len()];
        let url = format!("{}/v1/letters/{}/comments", site.base, letter.id);
        let request = site.client.post(url).header("content-type", "application/json");
        let answer = request.body(r#"{"text": "seen"}"#).send().await.expect("the server answers");
        assert!(answer.status().is_success(), "{}", answer.status());
    }
    let seconds = started.elapsed().as_secs_f64();
    let cpu = (cpu_time() - cpu).as_secs_f64() * 1e3 / seconds;
    let updates = received.load(Ordering::Relaxed) as f64 / viewers.max(1) as f64 / seconds;
    streams.shutdown().await;
    Cost { cpu, updates }
}

/// The CPU time of this process, from the kernel. Its clock has 100 ticks a second.
fn cpu_time() -> Duration {
    let stat = std::fs::read_to_string("/proc/self/stat").expect("the kernel describes this process");
    // The second field is the name in parentheses; the fourteenth and fifteenth are user and system time.
    let fields = stat.rsplit_once(") ").expect("the name is in parentheses").1;
    let ticks: u64 = fields.split(' ').skip(11).take(2).filter_map(|field| field.parse::<u64>().ok()).sum();
    Duration::from_millis(ticks * 10)
}
