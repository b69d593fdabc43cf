//! The server: built from a store, then run, or embedded as a router.

use std::collections::HashMap;
use std::pin::pin;
use std::sync::{Arc, OnceLock, PoisonError, RwLock};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::{HeaderValue, Request, Version, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use lazaret_api::{Code, EffectiveConfig, Problem};
use lazaret_core::source::Ingest;
use lazaret_core::store::KeyValue;
use lazaret_core::{Clock, Store, SystemClock};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower::ServiceExt;

use crate::activity::{self, ActivityLog};
use crate::anonymous::AnonymousPool;
use crate::api_error::ApiError;
use crate::app::{ActiveTokens, App, Metrics, ProblemPage, Shared};
use crate::auth::{Attempts, CsrfKey, Hosts, LatestRights, Sessions, Tokens};
use crate::change::drafts::Drafts;
use crate::connections::{Activity, Connections, Protocol, Slot, TrackedBody, TrackedIo, closed};
use crate::error::Error;
use crate::idempotency::IdempotencyStore;
use crate::listener::{Listener, Peer, Stream};
use crate::middleware::{adopt_page_request, is_health_check, no_route};
use crate::operation_watch::watch_operations;
use crate::options::{Limits, Options};
use crate::per_token::PerToken;
use crate::read::facets::FacetReads;
use crate::read::plan_contents::PlanContents;
use crate::registry::Registry;
use crate::routes;
use crate::scan_turns::ScanTurns;
use crate::schedule_watch;

/// The pause after a failed accept.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The bytes that are buffered for each HTTP/2 stream.
const HTTP2_SEND_BYTES: usize = 64 * 1024;

/// Makes pages from the API that they call.
type MakePages = Box<dyn FnOnce(Router) -> Router + Send>;

/// The HTTP API of one process.
#[derive(Clone)]
pub struct Server {
    pub(crate) app: App,
    pages: Option<Router>,
}

/// Builds a [`Server`].
pub struct Builder {
    store: Arc<dyn Store>,
    registry: Registry,
    inboxes: HashMap<String, Arc<dyn Ingest>>,
    instances: Option<Arc<dyn KeyValue>>,
    tokens: Tokens,
    options: Options,
    metrics: Option<Metrics>,
    clock: Arc<dyn Clock>,
    pages: Option<MakePages>,
    problem_page: Option<ProblemPage>,
}

impl Server {
    /// Creates a builder for a server on this store.
    pub fn builder(store: Arc<dyn Store>) -> Builder {
        Builder {
            store,
            registry: Registry::default(),
            inboxes: HashMap::new(),
            instances: None,
            tokens: Tokens::default(),
            options: Options::default(),
            metrics: None,
            clock: Arc::new(SystemClock),
            pages: None,
            problem_page: None,
        }
    }

    /// The router, for embedding in another server. That server is responsible for the address: without tokens the API is
    /// unauthenticated. [`watch`](Self::watch) must be polled beside it.
    pub fn router(&self) -> Router {
        routes::router(self.app.clone(), self.pages.clone())
    }

    /// Stops: streams end, and new requests are rejected. [`serve`](Self::serve) does so at shutdown; a server that embeds the
    /// [`router`](Self::router) must call it before it waits for open connections.
    pub fn stop(&self) {
        self.app.stopping.cancel();
    }

    /// Replaces the tokens, for requests from now on; open event streams end. Returns `false` if the tokens are the same as
    /// before.
    ///
    /// # Errors
    /// When there are no tokens: authentication cannot be removed from a running server.
    pub fn set_tokens(&self, tokens: Tokens) -> Result<bool, Error> {
        if tokens.is_empty() {
            return Err(Error::NoTokens);
        }
        let mut current = self.app.tokens.write().unwrap_or_else(PoisonError::into_inner);
        if current.tokens == tokens {
            return Ok(false);
        }
        current.replaced.cancel();
        self.app.sessions.retain(&tokens);
        *current = ActiveTokens { tokens, replaced: CancellationToken::new() };
        Ok(true)
    }

    /// Sets the effective configuration that administrators see. Secrets in it must be masked.
    pub fn set_config(&self, config: EffectiveConfig) {
        *self.app.config.write().unwrap_or_else(PoisonError::into_inner) = config;
    }

    /// Holds the scheduled operations of people who may not start them any more: their token was revoked, has expired or has lost
    /// the scope or a consumer. The [watch](Self::watch) does so as well; a program that runs consumers calls it before they start.
    ///
    /// # Errors
    /// When the store is unavailable.
    pub async fn hold_schedules(&self) -> lazaret_core::store::Result<()> {
        schedule_watch::hold(&self.app).await
    }

    /// Publishes the progress of operations, holds scheduled ones of people who may not start them any more, and records the throughput
    /// of consumers, until the server stops.
    pub async fn watch(&self) {
        tokio::join!(
            watch_operations(self.app.clone()),
            schedule_watch::watch(self.app.clone()),
            activity::record(self.app.clone())
        );
    }

    /// Serves until `shutdown` is cancelled or the server is [stopped](Self::stop), then drains running requests.
    ///
    /// # Errors
    /// When the address is a TCP address other than loopback and no tokens are configured.
    pub async fn serve(
        &self,
        listener: impl Into<Listener>,
        shutdown: CancellationToken,
    ) -> Result<(), Error> {
        let listener = listener.into();
        if let Some(address) = listener.address()?
            && self.app.tokens().tokens.is_empty()
            && !address.ip().is_loopback()
        {
            return Err(Error::OpenToTheWorld { address });
        }
        let _stopping = self.app.stopping.clone().drop_guard();
        let router = self.router();
        let connections = Connections::new(&self.app.options.limits);
        let open = TaskTracker::new();
        let watch = self.watch();
        tokio::pin!(watch);
        loop {
            tokio::select! {
                () = shutdown.cancelled() => break,
                () = &mut watch => break,
                accepted = listener.accept() => match accepted {
                    Ok((stream, peer)) => {
                        let slot = connections.accept(peer);
                        let peer = Peer { address: peer, transport: stream.transport() };
                        open.spawn(self.clone().serve_accepted(stream, peer, slot, router.clone()));
                    }
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
        open.close();
        if tokio::time::timeout(drain, open.wait()).await.is_err() {
            tracing::warn!("requests aborted at shutdown");
        }
        Ok(())
    }

    /// Serves one connection until it ends or the server stops.
    async fn serve_accepted(self, stream: Stream, peer: Peer, slot: Slot, router: Router) {
        let (limits, stopping) = (&self.app.options.limits, &self.app.stopping);
        let served = async {
            match stream {
                Stream::Tcp(stream) => {
                    // Small responses must not be delayed.
                    let _ = stream.set_nodelay(true);
                    serve_connection(stream, peer, limits, &slot, router, stopping).await;
                }
                Stream::Tls(stream, acceptor) => {
                    let _ = stream.set_nodelay(true);
                    let accepted = tokio::select! {
                        accepted = acceptor.accept(stream) => accepted,
                        // There is no request yet that the shutdown would have to wait for.
                        () = stopped(stopping, &slot.activity) => return,
                    };
                    match accepted {
                        Ok(stream) => serve_connection(stream, peer, limits, &slot, router, stopping).await,
                        Err(error) => tracing::debug!(%error, "TLS handshake failed"),
                    }
                }
                #[cfg(unix)]
                Stream::Unix(stream) => {
                    serve_connection(stream, peer, limits, &slot, router, stopping).await;
                }
            }
        };
        tokio::select! {
            () = served => {}
            reason = closed(&slot.activity, &slot.close, limits) => tracing::debug!(reason, "connection closed"),
        }
    }
}

/// Waits until the server stops, and a connection without a request had time for its first one.
async fn stopped(stopping: &CancellationToken, activity: &Activity) {
    stopping.cancelled().await;
    activity.first_request().await;
}

/// Serves HTTP/1 and HTTP/2 on a stream until the client or the server ends the connection.
async fn serve_connection(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    peer: Peer,
    limits: &Limits,
    slot: &Slot,
    router: Router,
    stopping: &CancellationToken,
) {
    let mut builder = auto::Builder::new(TokioExecutor::new());
    let header_bytes = limits.header_bytes.max(8192);
    // `closed` bounds the time for headers. A timeout here would also run between two requests.
    builder.http1().header_read_timeout(None).max_buf_size(header_bytes);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_header_list_size(u32::try_from(header_bytes).unwrap_or(u32::MAX))
        .max_concurrent_streams(limits.http2_streams.max(1))
        .max_send_buf_size(HTTP2_SEND_BYTES)
        .keep_alive_interval(limits.http2_keep_alive)
        .keep_alive_timeout(limits.http2_keep_alive);
    let (activity, is_reserve) = (slot.activity.clone(), slot.is_reserve());
    let service = hyper::service::service_fn(move |mut request: Request<Incoming>| {
        request.extensions_mut().insert(peer);
        request.extensions_mut().insert(activity.clone());
        let protocol = if request.version() == Version::HTTP_2 { Protocol::Http2 } else { Protocol::Http1 };
        let guard = activity.begin(protocol);
        let router = router.clone();
        async move {
            let response = if is_reserve && !is_health_check(request.uri().path()) {
                busy()
            } else {
                router.oneshot(request.map(Body::new)).await?
            };
            Ok::<_, std::convert::Infallible>(response.map(|body| TrackedBody::new(body, guard)))
        }
    });
    let stream = TrackedIo::new(stream, slot.activity.clone());
    let mut connection = pin!(builder.serve_connection(TokioIo::new(stream), service));
    let ended = tokio::select! {
        ended = &mut connection => ended,
        () = stopped(stopping, &slot.activity) => {
            // The request in progress is the last one.
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "connection failed");
    }
}

/// The response on a connection that is reserved for health checks.
fn busy() -> Response {
    let busy = ApiError::new(Code::Busy, "too many connections").retry_after(1);
    let mut response = busy.into_response();
    response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    response
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

    /// Sets the values in which the processes that share the store report themselves. Default: none are listed.
    #[must_use]
    pub fn instances(mut self, instances: Arc<dyn KeyValue>) -> Self {
        self.instances = Some(instances);
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

    /// Adds pages, such as a console. They are made from the API, as a router that calls it in process, and are merged into the
    /// router of this server: their paths must differ from those of the API, and they must have no fallback.
    ///
    /// A request to the API must carry the extensions of the page's request, in which the server keeps its authenticated caller. It is
    /// then authorized, limited and audited like any other, via the console. Without them it is not authenticated.
    ///
    /// ```
    /// use axum::{Router, extract::Request, routing::get};
    /// use tower::ServiceExt;
    /// # let store = std::sync::Arc::new(lazaret_memory::MemoryStore::default());
    /// let server = lazaret_server::Server::builder(store).pages(|api| {
    ///     let me = |page: Request| async move {
    ///         let mut request = Request::get("/v1/whoami").body(axum::body::Body::empty()).unwrap();
    ///         *request.extensions_mut() = page.extensions().clone();
    ///         api.oneshot(request).await
    ///     };
    ///     Router::new().route("/me", get(me))
    /// });
    /// # let _ = server.build();
    /// ```
    #[must_use]
    pub fn pages(mut self, make: impl FnOnce(Router) -> Router + Send + 'static) -> Self {
        self.pages = Some(Box::new(make));
        self
    }

    /// Sets how a problem is shown to a browser that asks for a page, such as the form of a session that has ended. Other clients get
    /// the problem as JSON.
    #[must_use]
    pub fn problem_page(mut self, render: fn(&Problem) -> Response) -> Self {
        self.problem_page = Some(render);
        self
    }

    /// Builds the server.
    pub fn build(self) -> Server {
        let limits = &self.options.limits;
        let feed = self.registry.feed().clone();
        feed.set_capacity(limits.events);
        feed.set_texts(self.options.redaction.texts());
        let app = App::new(Shared {
            sessions: Sessions::new(self.options.sessions.clone()),
            latest_rights: LatestRights::default(),
            attempts: Attempts::default(),
            csrf: CsrfKey::new(),
            hosts: Hosts::new(&self.options.hosts, !self.tokens.is_empty()),
            idempotency: IdempotencyStore::new(
                limits.idempotency_keys,
                limits.idempotency_bytes,
                limits.idempotency_window,
            ),
            requests: Arc::new(Semaphore::new(limits.requests.max(1))),
            anonymous: AnonymousPool::new(limits),
            by_token: PerToken::new(limits),
            scans: ScanTurns::new(limits),
            readiness: tokio::sync::Mutex::default(),
            streams: Arc::new(Semaphore::new(limits.streams)),
            exports: Arc::new(Semaphore::new(limits.exports)),
            body_bytes: Arc::new(Semaphore::new(limits.body_bytes.min(Semaphore::MAX_PERMITS))),
            stopping: CancellationToken::new(),
            document: document(),
            activity: ActivityLog::default(),
            facet_reads: FacetReads::default(),
            plan_contents: PlanContents::default(),
            edits: tokio::sync::Mutex::default(),
            drafts: Drafts::default(),
            feed,
            store: self.store,
            registry: self.registry,
            inboxes: self.inboxes,
            instances: self.instances,
            tokens: RwLock::new(ActiveTokens { tokens: self.tokens, replaced: CancellationToken::new() }),
            config: RwLock::default(),
            options: self.options,
            metrics: self.metrics,
            problem_page: self.problem_page,
            clock: self.clock,
        });
        let pages = self.pages.map(|make| make(api_for_pages(&app)));
        Server { app, pages }
    }
}

/// The API for pages of this server.
fn api_for_pages(app: &App) -> Router {
    let api = routes::api(app).fallback(no_route);
    // Around the router: within, the parameters of the page's path would be added to those of the API.
    Router::new().fallback_service(tower::service_fn(move |mut request: Request<Body>| {
        adopt_page_request(&mut request);
        api.clone().oneshot(request)
    }))
}

/// The serialized document, shared by all servers of the process.
fn document() -> Bytes {
    static DOCUMENT: OnceLock<Bytes> = OnceLock::new();
    let write = || serde_json::to_vec_pretty(&routes::document()).unwrap_or_default().into();
    DOCUMENT.get_or_init(write).clone()
}

/// The OpenAPI document, as served at `/v1/openapi.json`.
pub fn openapi() -> serde_json::Value {
    routes::document()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use axum::routing::get;
    use lazaret_core::source::{Backlog, NewMessage, Posted};
    use lazaret_memory::MemoryStore;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};

    use super::*;

    /// The bytes between client and server.
    const BUFFER: usize = 4096;
    /// The body of a large response.
    const LARGE: usize = 300 * 1024;

    /// Serves a connection, and returns the end of the client.
    fn connect(limits: Limits, router: Router) -> DuplexStream {
        connect_until(CancellationToken::new(), limits, router)
    }

    /// Serves a connection of a server that stops then, and returns the end of the client.
    fn connect_until(stopping: CancellationToken, limits: Limits, router: Router) -> DuplexStream {
        let (client, stream) = duplex(BUFFER);
        tokio::spawn(async move {
            let slot = Connections::new(&limits).accept(None);
            tokio::select! {
                () = serve_connection(stream, Peer::UNKNOWN, &limits, &slot, router, &stopping) => {}
                _ = closed(&slot.activity, &slot.close, &limits) => {}
            }
        });
        client
    }

    fn pages() -> Router {
        Router::new()
            .route("/small", get(|| async { "small" }))
            .route("/medium", get(|| async { vec![b'x'; LARGE / 20] }))
            .route("/large", get(|| async { vec![b'x'; LARGE] }))
    }

    /// Reads a response with the small body.
    async fn read_small(client: &mut DuplexStream) -> String {
        let mut answer = String::new();
        while !answer.ends_with("\r\n\r\nsmall") {
            answer.push(char::from(client.read_u8().await.expect("the connection is open")));
        }
        answer
    }

    #[tokio::test(start_paused = true)]
    async fn an_http1_connection_stays_open_between_requests_for_the_idle_timeout() {
        let limits = Limits {
            header_timeout: Duration::from_secs(1),
            idle_timeout: Duration::from_secs(60),
            ..Limits::default()
        };
        let mut client = connect(limits, pages());
        for _ in 0..3 {
            client.write_all(b"GET /small HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
            assert!(read_small(&mut client).await.starts_with("HTTP/1.1 200"));
            tokio::time::sleep(Duration::from_secs(59)).await;
        }
        // Headers that do not end are no request.
        client.write_all(b"GET /small HTTP/1.1\r\nho").await.unwrap();
        assert_eq!(client.read_to_end(&mut Vec::new()).await.unwrap(), 0, "closed");
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_reads_slowly_receives_the_whole_response() {
        let limits = Limits {
            idle_timeout: Duration::from_secs(3),
            write_timeout: Duration::from_secs(3),
            ..Limits::default()
        };
        let mut client = connect(limits, pages());
        client.write_all(b"GET /large HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
        let (mut answer, mut part) = (Vec::new(), vec![0; BUFFER]);
        while answer.len() < LARGE {
            tokio::time::sleep(Duration::from_secs(2)).await;
            let read = client.read(&mut part).await.unwrap();
            assert_ne!(read, 0, "closed after {} bytes", answer.len());
            answer.extend_from_slice(&part[..read]);
        }
        client.read_to_end(&mut answer).await.unwrap();
        let head = answer.windows(4).position(|end| end == b"\r\n\r\n").unwrap() + 4;
        assert_eq!((answer.len() - head, answer.starts_with(b"HTTP/1.1 200")), (LARGE, true));
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_reads_nothing_is_disconnected() {
        let limits = Limits { write_timeout: Duration::from_secs(3), ..Limits::default() };
        let mut client = connect(limits, pages());
        client.write_all(b"GET /large HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
        tokio::time::sleep(Duration::from_secs(10)).await;
        let mut answer = Vec::new();
        client.read_to_end(&mut answer).await.unwrap();
        assert!(answer.len() <= BUFFER, "{} bytes", answer.len());
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_reads_none_of_many_responses_is_disconnected() {
        let limits = Limits { write_timeout: Duration::from_secs(3), ..Limits::default() };
        let mut client = connect(limits, pages());
        // The end of a response is in the buffer of the connection when the next request begins.
        for _ in 0..40 {
            client.write_all(b"GET /medium HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
        }
        tokio::time::sleep(Duration::from_secs(10)).await;
        let mut answers = Vec::new();
        client.read_to_end(&mut answers).await.unwrap();
        assert!(answers.len() <= BUFFER, "{} bytes", answers.len());
    }

    #[tokio::test(start_paused = true)]
    async fn a_first_request_that_is_on_its_way_when_the_server_stops_is_answered() {
        let stopping = CancellationToken::new();
        let connect = || connect_until(stopping.clone(), Limits::default(), pages());
        let (mut early, mut used, mut silent) = (connect(), connect(), connect());
        used.write_all(b"GET /small HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
        read_small(&mut used).await;
        let before = tokio::time::Instant::now();
        stopping.cancel();
        assert_eq!(used.read_to_end(&mut Vec::new()).await.unwrap(), 0, "closed at once");
        assert_eq!(before.elapsed(), Duration::ZERO);
        early.write_all(b"GET /small HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
        let mut answer = String::new();
        early.read_to_string(&mut answer).await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("small"), "{answer}");
        assert_eq!(silent.read_to_end(&mut Vec::new()).await.unwrap(), 0, "it does not hold the server up");
    }

    #[tokio::test(start_paused = true)]
    async fn the_time_limit_of_a_request_starts_at_the_end_of_its_body() {
        let limits = Limits {
            request_timeout: Duration::from_secs(1),
            header_timeout: Duration::from_secs(60),
            ..Limits::default()
        };
        let options = Options { limits: limits.clone(), ..Options::default() };
        let server = Server::builder(Arc::new(MemoryStore::default())).options(options).build();
        for key in ["", "idempotency-key: k\r\n"] {
            let mut client = connect(limits.clone(), server.router());
            let body = br#"{"action": "retry", "all": true}"#;
            let head = format!(
                "POST /v1/plans HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\
                 content-type: application/json\r\n{key}content-length: {}\r\n\r\n",
                body.len()
            );
            client.write_all(head.as_bytes()).await.unwrap();
            client.write_all(&body[..9]).await.unwrap();
            tokio::time::sleep(Duration::from_secs(30)).await;
            client.write_all(&body[9..]).await.unwrap();
            let mut answer = String::new();
            client.read_to_string(&mut answer).await.unwrap();
            assert!(answer.starts_with("HTTP/1.1 201"), "{key:?}: {answer}");
        }
    }

    /// An inbox that never answers, and the number of calls that wait for it.
    #[derive(Clone, Default)]
    struct Stuck(Arc<AtomicUsize>);

    #[async_trait::async_trait]
    impl Ingest for Stuck {
        async fn post(&self, _messages: Vec<NewMessage>) -> lazaret_core::store::Result<Vec<Posted>> {
            struct Waiting<'a>(&'a AtomicUsize);

            impl Drop for Waiting<'_> {
                fn drop(&mut self) {
                    self.0.fetch_sub(1, Ordering::SeqCst);
                }
            }

            self.0.fetch_add(1, Ordering::SeqCst);
            let _waiting = Waiting(&self.0);
            std::future::pending().await
        }

        async fn backlog(&self) -> lazaret_core::store::Result<Backlog> {
            Ok(Backlog::default())
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_change_with_a_key_ends_at_its_time_limit() {
        let inbox = Stuck::default();
        let server = Server::builder(Arc::new(MemoryStore::default())).inbox("stuck", inbox.clone()).build();
        let request = Request::post("/v1/inbox/stuck/batch")
            .header("host", "localhost")
            .header("idempotency-key", "k")
            .body(Body::from("{\"payload\": 1}"))
            .unwrap();
        let change = tokio::spawn(server.router().oneshot(request));
        while inbox.0.load(Ordering::SeqCst) == 0 {
            tokio::task::yield_now().await;
        }
        assert_eq!(change.await.unwrap().unwrap().status().as_u16(), 408);
        assert_eq!(inbox.0.load(Ordering::SeqCst), 0, "nothing goes on after the response");
    }

    #[tokio::test]
    async fn an_unfinished_tls_handshake_does_not_delay_the_shutdown() {
        /// Never asked: the client sends nothing.
        #[derive(Debug)]
        struct NoCertificates;

        impl rustls::server::ResolvesServerCert for NoCertificates {
            fn resolve(
                &self,
                _hello: rustls::server::ClientHello<'_>,
            ) -> Option<Arc<rustls::sign::CertifiedKey>> {
                None
            }
        }

        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_cert_resolver(Arc::new(NoCertificates));
        let forever = Duration::from_secs(600);
        let limits = Limits { header_timeout: forever, drain: forever, ..Limits::default() };
        let options = Options { limits, ..Options::default() };
        let server = Server::builder(Arc::new(MemoryStore::default())).options(options).build();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let shutdown = CancellationToken::new();
        let serving = tokio::spawn({
            let (server, shutdown) = (server.clone(), shutdown.clone());
            async move { server.serve(Listener::tls(listener, Arc::new(config)), shutdown).await }
        });
        let mut silent = tokio::net::TcpStream::connect(address).await.unwrap();
        // Connections are accepted in order, and the server answers this one.
        let mut refused = tokio::net::TcpStream::connect(address).await.unwrap();
        refused.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
        refused.read_u8().await.expect("a TLS alert");
        shutdown.cancel();
        let served = tokio::time::timeout(Duration::from_secs(20), serving).await;
        served.expect("it ends").unwrap().unwrap();
        assert_eq!(silent.read_to_end(&mut Vec::new()).await.unwrap(), 0, "closed");
    }
}
