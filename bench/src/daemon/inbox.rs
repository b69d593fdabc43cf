//! Posting to an inbox: durable before the response, against the same server without storage.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use async_trait::async_trait;
use bytes::Bytes;
use lazaret_core::source::{Backlog, Ingest};
use lazaret_core::source::{NewMessage, Posted};
use lazaret_core::{Position, store};
use lazaret_server::Server;
use lazaret_store_sqlite::InboxOptions;
use reqwest::{Client, StatusCode};
use tokio_util::sync::CancellationToken;

use super::{BENCH, CONSUMER, bare, payload};
use crate::Scale;
use crate::consumer::let_go;
use crate::core::rate;
use crate::embedded::disk::{Disk, remove};
use crate::embedded::open;
use crate::table::{Bar, Compared, ROUNDS, Row};

/// The number of messages: a few seconds of work.
const MESSAGES: usize = 60_000;

pub(super) async fn run(scale: Scale, disk: &Disk) -> Result<Vec<Row>, String> {
    let messages = scale.count(MESSAGES);
    let payloads: Arc<[Bytes]> = (0..messages).map(|number| payload(number).into()).collect();
    let (mut nothing, mut durable) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        for (stores, rates) in [(false, &mut nothing), (true, &mut durable)] {
            rates.push(measure(disk, &payloads, stores).await?);
        }
    }
    let row = Row::compared(
        BENCH,
        "inbox/durable accepts, 64 clients",
        "msg/s",
        &Compared::new(&durable, &nothing),
    );
    Ok(vec![row.with_bar(Bar::RatioAtLeast(0.5))])
}

/// Posts every payload. The server uses the runtime of the benchmarks, the clients a separate one.
async fn measure(disk: &Disk, payloads: &Arc<[Bytes]>, stores: bool) -> Result<f64, String> {
    let path = disk.file();
    let store = open(&path);
    let inbox = store.inbox_log(CONSUMER, InboxOptions::default());
    let builder = Server::builder(store.clone());
    let server = if stores {
        builder.inbox(CONSUMER, inbox.clone())
    } else {
        builder.inbox(CONSUMER, Nothing::default())
    };
    let server = server.build();
    let wrong = |error: std::io::Error| format!("failed to listen: {error}");
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.map_err(wrong)?;
    let url = format!("http://{}/v1/inbox/{CONSUMER}", listener.local_addr().map_err(wrong)?);
    let stop = CancellationToken::new();
    let serving = tokio::spawn({
        let stop = stop.clone();
        async move { server.serve(listener, stop).await }
    });
    let bodies = payloads.clone();
    let clients = tokio::task::spawn_blocking(move || post(&url, &bodies));
    let took = clients.await.expect("every message is accepted");
    stop.cancel();
    serving.await.expect("the server does not panic").map_err(|error| error.to_string())?;
    let kept = inbox.backlog().await.map_err(|error| error.to_string())?.messages;
    assert_eq!(kept, if stores { payloads.len() as u64 } else { 0 }, "accepted messages are stored");
    drop(inbox);
    let_go(store).await;
    remove(&path);
    Ok(rate(payloads.len(), took))
}

fn post(url: &str, payloads: &Arc<[Bytes]>) -> std::time::Duration {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.expect("a runtime can be made");
    let (url, bodies) = (url.to_owned(), payloads.clone());
    let make = move |client: &Client, number: usize| {
        let post = client.post(&url).header("lazaret-id", format!("e-{number}"));
        let post = post
            .header("lazaret-key", format!("k-{}", number % 10_000))
            .header("lazaret-type", "OrderPlaced");
        post.body(bodies[number].clone())
    };
    let client = bare::client();
    let started = Instant::now();
    runtime.block_on(bare::post(&client, payloads.len(), StatusCode::ACCEPTED, make));
    started.elapsed()
}

/// An inbox that discards messages.
#[derive(Default)]
struct Nothing {
    next: AtomicU64,
}

#[async_trait]
impl Ingest for Nothing {
    async fn post(&self, messages: Vec<NewMessage>) -> store::Result<Vec<Posted>> {
        let answer = |message: NewMessage| {
            let position = Position::new(0, self.next.fetch_add(1, Ordering::Relaxed));
            let id = message.id.unwrap_or_else(|| position.to_string().into());
            Posted::Taken { id, position }
        };
        Ok(messages.into_iter().map(answer).collect())
    }

    async fn backlog(&self) -> store::Result<Backlog> {
        Ok(Backlog::default())
    }
}
