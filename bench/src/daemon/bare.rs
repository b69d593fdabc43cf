//! The baseline: a bare HTTP client with a fixed number of concurrent requests.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use reqwest::{Client, RequestBuilder, StatusCode, retry};
use tokio::task::JoinSet;

use super::CONCURRENCY;

/// Creates a client with the settings of HTTP handlers.
pub(super) fn client() -> Client {
    // An error means that the provider is installed already.
    _ = rustls::crypto::ring::default_provider().install_default();
    let builder = Client::builder().no_proxy().tcp_nodelay(true).referer(false).retry(retry::never());
    builder.build().expect("the settings are valid")
}

/// Sends this many requests, built from their numbers, concurrently. All must get the expected status.
pub(super) async fn post(
    client: &Client,
    requests: usize,
    wanted: StatusCode,
    make: impl Fn(&Client, usize) -> RequestBuilder + Clone + Send + Sync + 'static,
) {
    let next = Arc::new(AtomicUsize::new(0));
    let mut tasks = JoinSet::new();
    for _ in 0..CONCURRENCY {
        let (client, next, make) = (client.clone(), next.clone(), make.clone());
        tasks.spawn(async move {
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= requests {
                    return;
                }
                let answer = make(&client, number).send().await.expect("the server answers");
                assert_eq!(answer.status(), wanted);
                answer.bytes().await.expect("the answer is whole");
            }
        });
    }
    while let Some(done) = tasks.join_next().await {
        done.expect("every request is answered");
    }
}
