//! A file through the daemon to an HTTP handler, against the same HTTP client in a bare loop.

use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use lazaret_config::{NoEnv, load};
use lazaret_daemon::{Options, Service, capabilities};
use reqwest::header::CONTENT_TYPE;
use reqwest::{Client, StatusCode};
use tokio_util::sync::CancellationToken;

use super::server::Server;
use super::{BENCH, CONCURRENCY, CONSUMER, bare, file, payload};
use crate::Scale;
use crate::core::rate;
use crate::embedded::disk::{Disk, remove};
use crate::table::{Bar, Compared, ROUNDS, Row};

/// The number of messages: a few seconds of work.
const MESSAGES: usize = 60_000;
/// The number of keys: enough lanes for all concurrent attempts.
const KEYS: usize = 10_000;

pub(super) async fn run(scale: Scale, disk: &Disk) -> Result<Vec<Row>, String> {
    let messages = scale.count(MESSAGES);
    let server = Server::start()?;
    let line = |number| {
        format!(
            r#"{{"id":"e-{number}","key":"k-{}","type":"OrderPlaced","payload":{}}}"#,
            number % KEYS,
            payload(number)
        )
    };
    let events = file(disk, messages, line)?;
    let payloads: Arc<[Bytes]> = (0..messages).map(|number| payload(number).into()).collect();
    let (mut bare, mut daemon) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        bare.push(measure_bare(&server, &payloads).await);
        daemon.push(measure_daemon(&server, &events, disk, messages).await?);
    }
    remove(&events);
    let row =
        Row::compared(BENCH, "http/file to handler, 64 at once", "msg/s", &Compared::new(&daemon, &bare));
    Ok(vec![row.with_bar(Bar::RatioAtLeast(0.7)).with_note(
        "the baseline is the same client sending bodies only; the daemon also reads, orders, sends a dozen headers and commits",
    )])
}

async fn measure_bare(server: &Server, payloads: &Arc<[Bytes]>) -> f64 {
    let url = format!("http://{}/events", server.address);
    server.expect(payloads.len());
    let client = bare::client();
    let bodies = payloads.clone();
    let make = move |client: &Client, number: usize| {
        client.post(&url).header(CONTENT_TYPE, "application/json").body(bodies[number].clone())
    };
    bare::post(&client, payloads.len(), StatusCode::NO_CONTENT, make).await;
    rate(payloads.len(), server.wait().await)
}

async fn measure_daemon(server: &Server, events: &Path, disk: &Disk, messages: usize) -> Result<f64, String> {
    let store = disk.file();
    let text = format!(
        "
listen: 127.0.0.1:0
store: 'sqlite:{}'
flight-recorder: '{}'
consumers:
  {CONSUMER}:
    source: {{ file: {{ path: '{}' }} }}
    handler: {{ http: {{ url: 'http://{}/events', timeout: 10s }} }}
    concurrency: {CONCURRENCY}
",
        store.display(),
        store.with_extension("flight").display(),
        events.display(),
        server.address
    );
    let loaded = load("bench.yaml", text.as_bytes(), &NoEnv, &capabilities());
    let config = loaded.map_err(|wrong| wrong.plain())?.config;
    server.expect(messages);
    let options = Options { until_idle: true, ..Options::default() };
    let service = Service::open(config, options).await.map_err(|error| error.to_string())?;
    let run = tokio::spawn(service.run(CancellationToken::new()));
    let took = server.wait().await;
    let report = run.await.expect("the daemon does not panic").map_err(|error| error.to_string())?;
    assert!(
        report.failed.is_empty() && report.open_letters.is_empty(),
        "every message is handled: {report:?}"
    );
    remove(&store);
    _ = std::fs::remove_dir_all(store.with_extension("flight"));
    Ok(rate(messages, took))
}
