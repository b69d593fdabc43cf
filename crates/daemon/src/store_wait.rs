//! Waits for a store whose disk is full, and tells why meanwhile.
//!
//! Opening a store may need room: a crash leaves logs, which are replayed first. A daemon that ended for it would be restarted again
//! and again, and nobody could ask it why. So it serves the API instead: it is alive and not ready, every call of the store fails
//! with the reason, and no source is read. Other errors of a store end the daemon: they are in its address, or in the file.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use lazaret_config::{Config, Source};
use lazaret_core::source::{Backlog, Ingest, NewMessage, Posted};
use lazaret_core::store::{self, ErrorKind, StoreError};
use lazaret_memory::MemoryStore;
use lazaret_server::{Builder, Listener, Registry};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::assemble::Stores;
use crate::daemon::{ServerParts, bind, listen_failed, listener, server};
use crate::error::Error;
use crate::fleet::Fleet;
use crate::runner::register;
use crate::telemetry::Telemetry;

/// The time between two attempts to open the store.
const INTERVAL: Duration = Duration::from_secs(1);

/// Opens the store. While its disk is full, it serves the API, and tries again. Returns the bound address as well, if it was bound.
pub(crate) async fn open(
    config: &Config,
    telemetry: &Telemetry,
    until_idle: bool,
) -> Result<(Stores, Option<TcpListener>), Error> {
    match Stores::open(&config.store, config.encryption.as_ref()).await {
        Ok(stores) => Ok((stores, None)),
        Err(Error::Store(error)) if error.kind() == ErrorKind::Full && !until_idle => {
            let (stores, bound) = wait(config, telemetry, error).await?;
            Ok((stores, Some(bound)))
        }
        Err(error) => Err(error),
    }
}

async fn wait(
    config: &Config,
    telemetry: &Telemetry,
    error: StoreError,
) -> Result<(Stores, TcpListener), Error> {
    tracing::error!(%error, "store not opened, its disk is full; sources held until there is room");
    let closed = Arc::new(ClosedStore::new(&error));
    let registry = Registry::default();
    for consumer in &config.consumers {
        register(&registry, consumer);
        registry.waits_for_source(&consumer.name, format!("store not opened: {error}"));
        telemetry.metrics.failed(&consumer.name, true);
    }
    let fleet = Fleet::new(Arc::new(MemoryStore::default()));
    let parts = ServerParts { registry: &registry, telemetry, fleet: &fleet };
    let inboxes = |mut builder: Builder| {
        for consumer in config.consumers.iter().filter(|consumer| consumer.source == Source::Inbox) {
            builder = builder.inbox(&consumer.name, ClosedInbox(closed.clone()));
        }
        builder
    };
    let server = server(config, closed.clone(), inboxes, &parts)?;
    let bound = bind(config).await?.into_std().map_err(|source| listen_failed(config, source))?;
    let address = bound.local_addr().map_err(|source| listen_failed(config, source))?;
    tracing::info!(%address, "API listening, store not open");
    let shared = bound.try_clone().and_then(TcpListener::from_std);
    let serving = serve(server, listener(config, shared.map_err(|source| listen_failed(config, source))?)?);
    let opened = open_again(config, &closed).await;
    serving.end().await?;
    for consumer in &config.consumers {
        telemetry.metrics.failed(&consumer.name, false);
    }
    let bound = TcpListener::from_std(bound).map_err(|source| listen_failed(config, source))?;
    Ok((opened?, bound))
}

/// Tries until the store opens, or fails for another reason.
async fn open_again(config: &Config, closed: &ClosedStore) -> Result<Stores, Error> {
    loop {
        tokio::time::sleep(INTERVAL).await;
        match Stores::open(&config.store, config.encryption.as_ref()).await {
            Ok(stores) => {
                tracing::info!("store opened, its disk has room again");
                return Ok(stores);
            }
            Err(Error::Store(error)) if error.kind() == ErrorKind::Full => closed.fails_with(&error),
            Err(error) => return Err(error),
        }
    }
}

/// A server that runs until its end is asked for, or until this is dropped.
struct Serving {
    close: CancellationToken,
    task: tokio::task::JoinHandle<Result<(), lazaret_server::Error>>,
}

fn serve(server: lazaret_server::Server, listener: Listener) -> Serving {
    let close = CancellationToken::new();
    let stop = close.clone();
    let task = tokio::spawn(async move { server.serve(listener, stop).await });
    Serving { close, task }
}

impl Serving {
    async fn end(mut self) -> Result<(), Error> {
        self.close.cancel();
        (&mut self.task).await.map_err(|error| Error::Panicked(error.to_string()))??;
        Ok(())
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.close.cancel();
    }
}

/// A store that is not open. Every call fails with the reason.
struct ClosedStore {
    /// Never called.
    none: MemoryStore,
    why: Mutex<String>,
}

impl ClosedStore {
    fn new(error: &StoreError) -> Self {
        Self { none: MemoryStore::default(), why: Mutex::new(error.context().to_owned()) }
    }

    fn fails_with(&self, error: &StoreError) {
        error.context().clone_into(&mut self.why.lock().unwrap_or_else(PoisonError::into_inner));
    }

    fn error(&self, operation: &'static str) -> StoreError {
        let why = self.why.lock().unwrap_or_else(PoisonError::into_inner);
        StoreError::not_done(ErrorKind::Full, operation, format!("the store is not open: {why}"))
    }
}

lazaret_core::forward_store! {
    impl LetterStore for ClosedStore {}
    impl Operations for ClosedStore {}
    impl Triage for ClosedStore {}
    impl Audit for ClosedStore {}

    inner: |this| &this.none;
    around: |this, call, run| {
        drop(run);
        Err(this.error(call.operation))
    };
}

/// The inbox of a consumer whose store is not open: nothing is taken.
struct ClosedInbox(Arc<ClosedStore>);

#[async_trait]
impl Ingest for ClosedInbox {
    async fn post(&self, _: Vec<NewMessage>) -> store::Result<Vec<Posted>> {
        Err(self.0.error("post"))
    }

    async fn backlog(&self) -> store::Result<Backlog> {
        Err(self.0.error("backlog"))
    }
}
