//! A server to try the API: an inbox, and a consumer that fails on orders with a negative total.
//!
//! `cargo run -p lazaret-server --example serve` listens on 127.0.0.1:7117 and keeps everything in a temporary folder.
//! The examples in `docs/api.md` were run against it.

use std::error::Error;
use std::sync::Arc;

use lazaret_core::handler::Json;
use lazaret_core::{HandlerError, Reason};
use lazaret_engine::{Consumer, Options};
use lazaret_server::{Approval, Registry, Server};
use lazaret_store_sqlite::{InboxOptions, SqliteStore};
use serde::Deserialize;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

#[derive(Deserialize)]
struct Order {
    total: f64,
}

async fn on_order(Json(order): Json<Order>) -> Result<(), HandlerError> {
    if order.total < 0.0 {
        let why = format!("negative total {}", order.total);
        return Err(HandlerError::msg(why).reason(Reason::DOMAIN_INVALID));
    }
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    let store =
        SqliteStore::open(folder.path().join("lazaret.db"), lazaret_store_sqlite::Options::default())?;
    let inbox = store.inbox_log("orders", InboxOptions::default());
    let registry = Registry::default();
    registry.starting("orders", Approval::None);
    let consumer = Consumer::builder("orders")
        .source(inbox.source())
        .store(Arc::new(store.clone()))
        .options(Options::default())
        .observer(registry.observer("orders"))
        .handler(on_order)
        .build()?;
    registry.running(consumer.handle());
    let shutdown = CancellationToken::new();
    let running = tokio::spawn(consumer.run(shutdown.clone()));

    let server = Server::builder(Arc::new(store.clone())).registry(registry).inbox("orders", inbox).build();
    let listener = TcpListener::bind("127.0.0.1:7117").await?;
    println!("listening on http://{}", listener.local_addr()?);
    server.serve(listener, shutdown.clone()).await?;
    shutdown.cancel();
    running.await??;
    Ok(())
}
