//! The cost of live updates: open pages while letters change.

use std::time::{Duration, Instant};

use lazaret_core::query::Query;
use lazaret_core::store::Triage;

use super::BENCH;
use super::processor::server_cpu;
use super::site::Site;
use super::viewers::Viewers;
use crate::Scale;
use crate::table::{Bar, Row};

/// The open pages.
const VIEWERS: usize = 100;
/// The changes of a run, and how many come in a second.
const CHANGES: usize = 600;
const PER_SECOND: u32 = 20;
/// Two percent of one core.
const LIMIT_MS: f64 = 20.0;

/// What a run cost.
struct Cost {
    /// CPU time of the server per second, in milliseconds, with what the changes cost.
    cpu: f64,
    /// Loads of a page per viewer and second.
    loads: f64,
}

pub(super) async fn run(scale: Scale, site: &Site) -> Vec<Row> {
    let changes = scale.count(CHANGES).max(200);
    let nobody = measure(site, 0, changes).await;
    let viewed = measure(site, VIEWERS, changes).await;
    let name = format!("live/CPU time per second for {VIEWERS} viewers, {PER_SECOND} changes/s");
    let note = format!(
        "{:.1} ms with viewers, {:.1} ms without; {:.2} loads of a page per viewer and second",
        viewed.cpu, nobody.cpu, viewed.loads
    );
    vec![
        Row::new(BENCH, name, "ms", viewed.cpu - nobody.cpu)
            .with_bar(Bar::ValueAtMost(LIMIT_MS))
            .with_note(note),
    ]
}

async fn measure(site: &Site, count: usize, changes: usize) -> Cost {
    let paths: Vec<String> = site.screens().await.into_iter().map(|(_, path)| path).collect();
    let viewers = Viewers::open(site, &paths, count).await;
    let query = Query::everything();
    let letters = site.store.find(&query, None, changes).await.expect("the store finds").letters;
    let (cpu, started) = (server_cpu(), Instant::now());
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
    let cpu = (server_cpu() - cpu).as_secs_f64() * 1e3 / seconds;
    let loads = viewers.loads() as f64 / count.max(1) as f64 / seconds;
    viewers.close().await;
    Cost { cpu, loads }
}
