//! Viewers with an open page each, as the scripts of a page behave: they listen for changes, and fetch their page again.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use futures_util::StreamExt;
use reqwest::Client;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::site::{Site, fetch};

/// The shortest time between two loads of a page: the scripts wait as long.
const PAUSE: Duration = Duration::from_secs(1);
/// The name of the thread of all viewers. Its CPU time is not that of the server.
pub(super) const THREAD: &str = "viewers";

/// People with open pages, in a thread of their own.
pub(super) struct Viewers {
    loads: Arc<AtomicU64>,
    stop: CancellationToken,
    thread: JoinHandle<()>,
}

impl Viewers {
    /// Opens this many pages, one after the other from the list of paths. Returns when every viewer listens.
    pub(super) async fn open(site: &Site, paths: &[String], count: usize) -> Self {
        let (loads, stop) = (Arc::new(AtomicU64::new(0)), CancellationToken::new());
        let (ready, mut listening) = watch::channel(0_usize);
        let viewers: Vec<Viewer> = (0..count)
            .map(|number| Viewer {
                events: format!("{}/console/events", site.base),
                page: format!("{}{}", site.base, paths[number % paths.len()]),
                loads: loads.clone(),
                ready: ready.clone(),
            })
            .collect();
        let thread = std::thread::Builder::new().name(THREAD.to_owned()).spawn({
            let stop = stop.clone();
            move || {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
                runtime.expect("a runtime starts").block_on(async {
                    let mut all: JoinSet<()> = viewers.into_iter().map(Viewer::watch).collect();
                    stop.cancelled().await;
                    all.shutdown().await;
                });
            }
        });
        let thread = thread.expect("a thread starts");
        listening.wait_for(|listening| *listening == count).await.expect("the viewers run");
        Self { loads, stop, thread }
    }

    /// The pages that were loaded so far.
    pub(super) fn loads(&self) -> u64 {
        self.loads.load(Ordering::Relaxed)
    }

    /// Closes all pages.
    pub(super) async fn close(self) {
        self.stop.cancel();
        let joined = tokio::task::spawn_blocking(|| self.thread.join()).await;
        joined.expect("the thread is awaited").expect("the viewers do not panic");
    }
}

/// One open page.
struct Viewer {
    events: String,
    page: String,
    loads: Arc<AtomicU64>,
    ready: watch::Sender<usize>,
}

impl Viewer {
    async fn watch(self) {
        // A client of its own: a browser shares no connection with another.
        let client = Client::builder().no_proxy().build().expect("the settings are valid");
        let answer = client.get(&self.events).send().await.expect("the server answers");
        assert!(answer.status().is_success(), "{}", answer.status());
        let mut events = answer.bytes_stream();
        self.ready.send_modify(|listening| *listening += 1);
        let mut next = tokio::time::Instant::now();
        while let Some(Ok(part)) = events.next().await {
            if !part.windows(6).any(|text| text == b"event:") {
                continue;
            }
            tokio::time::sleep_until(next).await;
            next = tokio::time::Instant::now() + PAUSE;
            fetch(&client, &self.page).await;
            self.loads.fetch_add(1, Ordering::Relaxed);
        }
    }
}
