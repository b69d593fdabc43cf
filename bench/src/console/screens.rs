//! The time of each screen, with several viewers at once.

use std::sync::Arc;
use std::time::Instant;

use tokio::task::JoinSet;

use super::site::{Site, fetch};
use super::{BENCH, VIEWERS};
use crate::Scale;
use crate::table::{Bar, Row, share_of};

/// The pages that each viewer opens, of each screen.
const PAGES: usize = 50;
/// The most that a page takes, but for one in a hundred.
const LIMIT_MS: f64 = 50.0;

pub(super) async fn run(scale: Scale, site: &Site) -> Vec<Row> {
    // A quick run still has pages for a percentile.
    let pages = scale.count(PAGES).max(5);
    let mut rows = Vec::new();
    for (name, path) in site.screens().await {
        let bytes = site.page(&path).await;
        let times = times(site, &path, pages).await;
        let row = |share: f64, label: &str| {
            let name = format!("screens/{name}, {label}, {VIEWERS} viewers, {} letters", site.letters);
            Row::new(BENCH, name, "ms", share_of(&times, share))
        };
        rows.push(row(0.5, "p50"));
        let note = format!("the page {name} has {bytes} bytes");
        rows.push(row(0.99, "p99").with_bar(Bar::ValueAtMost(LIMIT_MS)).with_note(note));
    }
    rows
}

/// The sorted times of all pages, in milliseconds.
async fn times(site: &Site, path: &str, pages: usize) -> Vec<f64> {
    let url: Arc<str> = format!("{}{path}", site.base).into();
    let mut viewers = JoinSet::new();
    for _ in 0..VIEWERS {
        let (client, url) = (site.client.clone(), url.clone());
        viewers.spawn(async move {
            let mut times = Vec::with_capacity(pages);
            for _ in 0..pages {
                let started = Instant::now();
                fetch(&client, &url).await;
                times.push(started.elapsed().as_secs_f64() * 1e3);
            }
            times
        });
    }
    let mut times = viewers.join_all().await.concat();
    times.sort_by(f64::total_cmp);
    times
}
