//! The server: built from a store, then run, or embedded as a router.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::Request;
use bytes::Bytes;
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::server::graceful::GracefulShutdown;
use lazaret_core::source::Ingest;
use lazaret_core::{Clock, Store, SystemClock};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;

use crate::app::{App, Metrics, Shared};
use crate::auth::{Hosts, Tokens};
use crate::error::Error;
use crate::idempotency::IdempotencyStore;
use crate::operation_watch::watch_operations;
use crate::options::Options;
use crate::registry::Registry;
use crate::routes;

/// The pause after a failed accept.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The HTTP API of one process.
#[derive(Clone)]
pub struct Server {
    app: App,
}

/// Builds a [`Server`].
pub struct Builder {
    store: Arc<dyn Store>,
    registry: Registry,
    inboxes: HashMap<String, Arc<dyn Ingest>>,
    tokens: Tokens,
    options: Options,
    metrics: Option<Metrics>,
    clock: Arc<dyn Clock>,
}

impl Server {
    /// Creates a builder for a server on this store.
    pub fn builder(store: Arc<dyn Store>) -> Builder {
        Builder {
            store,
            registry: Registry::default(),
            inboxes: HashMap::new(),
            tokens: Tokens::default(),
            options: Options::default(),
            metrics: None,
            clock: Arc::new(SystemClock),
        }
    }

    /// The router, for embedding in another server. That server is responsible for the address: without tokens the API is
    /// unauthenticated. [`watch`](Self::watch) must be polled beside it.
    pub fn router(&self) -> Router {
        routes::router(self.app.clone())
    }

    /// Stops: streams end, and new requests are rejected. [`serve`](Self::serve) does so at shutdown; a server that embeds the
    /// [`router`](Self::router) must call it before it waits for open connections.
    pub fn stop(&self) {
        self.app.stopping.cancel();
    }

    /// Publishes the progress of operations until the server stops.
    pub async fn watch(&self) {
        watch_operations(self.app.clone()).await;
    }

    /// Serves until `shutdown` is cancelled or the server is [stopped](Self::stop), then drains running requests.
    ///
    /// # Errors
    /// When the address is not a loopback address and no tokens are configured.
    pub async fn serve(&self, listener: TcpListener, shutdown: CancellationToken) -> Result<(), Error> {
        let address = listener.local_addr()?;
        if self.app.tokens.is_empty() && !address.ip().is_loopback() {
            return Err(Error::OpenToTheWorld { address });
        }
        let _stopping = self.app.stopping.clone().drop_guard();
        let router = self.router();
        let connections = Arc::new(Semaphore::new(self.app.options.limits.connections.max(1)));
        let graceful = GracefulShutdown::new();
        let watch = watch_operations(self.app.clone());
        tokio::pin!(watch);
        loop {
            let accepted = async {
                // No more connections are accepted than can be served.
                let permit = connections.clone().acquire_owned().await;
                (listener.accept().await, permit)
            };
            tokio::select! {
                () = shutdown.cancelled() => break,
                () = &mut watch => break,
                (accepted, permit) = accepted => match accepted {
                    Ok((stream, _)) => self.serve_connection(stream, router.clone(), &graceful, permit.ok()),
                    Err(error) => {
                        tracing::warn!(%error, "connection accept failed");
                        tokio::time::sleep(ACCEPT_PAUSE).await;
                    }
                },
            }
        }
        drop(listener);
        // Streams end; requests are drained.
        self.stop();
        let drain = self.app.options.limits.drain;
        if tokio::time::timeout(drain, graceful.shutdown()).await.is_err() {
            tracing::warn!("requests aborted at shutdown");
        }
        Ok(())
    }

    /// Serves one connection in its own task.
    fn serve_connection(
        &self,
        stream: TcpStream,
        router: Router,
        graceful: &GracefulShutdown,
        permit: Option<tokio::sync::OwnedSemaphorePermit>,
    ) {
        let limits = &self.app.options.limits;
        // Small responses must not be delayed.
        let _ = stream.set_nodelay(true);
        let mut builder = auto::Builder::new(TokioExecutor::new());
        let header_bytes = limits.header_bytes.max(8192);
        builder
            .http1()
            .timer(TokioTimer::new())
            .header_read_timeout(limits.header_timeout)
            .max_buf_size(header_bytes);
        builder
            .http2()
            .timer(TokioTimer::new())
            .max_header_list_size(u32::try_from(header_bytes).unwrap_or(u32::MAX));
        let service = hyper::service::service_fn(move |request: Request<Incoming>| {
            router.clone().oneshot(request.map(Body::new))
        });
        let connection = builder.serve_connection(TokioIo::new(stream), service).into_owned();
        let connection = graceful.watch(connection);
        tokio::spawn(async move {
            let _permit = permit;
            if let Err(error) = connection.await {
                tracing::debug!(%error, "connection failed");
            }
        });
    }
}

impl Builder {
    /// Sets the consumers of this process.
    #[must_use]
    pub fn registry(mut self, registry: Registry) -> Self {
        self.registry = registry;
        self
    }

    /// Adds the inbox of a consumer.
    #[must_use]
    pub fn inbox(mut self, consumer: impl Into<String>, inbox: impl Ingest) -> Self {
        self.inboxes.insert(consumer.into(), Arc::new(inbox));
        self
    }

    /// Sets the tokens. Default: none, the API is unauthenticated and serves loopback addresses only.
    #[must_use]
    pub fn tokens(mut self, tokens: Tokens) -> Self {
        self.tokens = tokens;
        self
    }

    /// Sets the options.
    #[must_use]
    pub fn options(mut self, options: Options) -> Self {
        self.options = options;
        self
    }

    /// Sets the renderer of the metrics in the Prometheus text format.
    #[must_use]
    pub fn metrics(mut self, render: Arc<dyn Fn() -> String + Send + Sync>) -> Self {
        self.metrics = Some(render);
        self
    }

    /// Sets the clock. Default: the system clock.
    #[must_use]
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = clock;
        self
    }

    /// Builds the server.
    pub fn build(self) -> Server {
        let limits = &self.options.limits;
        let feed = self.registry.feed().clone();
        feed.set_capacity(limits.events);
        let app = App::new(Shared {
            hosts: Hosts::new(&self.options.hosts, !self.tokens.is_empty()),
            idempotency: IdempotencyStore::new(limits.idempotency_keys, limits.idempotency_window),
            requests: Arc::new(Semaphore::new(limits.requests.max(1))),
            streams: Arc::new(Semaphore::new(limits.streams)),
            stopping: CancellationToken::new(),
            document: document(),
            feed,
            store: self.store,
            registry: self.registry,
            inboxes: self.inboxes,
            tokens: self.tokens,
            options: self.options,
            metrics: self.metrics,
            clock: self.clock,
        });
        Server { app }
    }
}

/// The serialized document, shared by all servers of the process.
fn document() -> Bytes {
    static DOCUMENT: OnceLock<Bytes> = OnceLock::new();
    let write = || serde_json::to_vec_pretty(&routes::document()).unwrap_or_default().into();
    DOCUMENT.get_or_init(write).clone()
}

/// The OpenAPI document, as served at `/v1/openapi.json`.
pub fn openapi() -> utoipa::openapi::OpenApi {
    routes::document()
}
