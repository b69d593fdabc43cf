//! A consumer with a scripted handler, and an HTTP server that records requests.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::header::HeaderMap;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioIo};
use lazaret_core::handler::{BoxHandler, Context, Text, handler};
use lazaret_core::policy::{PoisonPolicy, RetryPolicy, Strategy};
use lazaret_core::store::Store;
use lazaret_core::{Clock, HandlerError, QueueName, Reason, Verdict};
use lazaret_engine::{Builder, Consumer, Handle, Options};
use lazaret_memory::{MemoryLog, MemoryStore};
use lazaret_testkit::TokioClock;
use tokio::net::TcpListener;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

pub(crate) const NAME: &str = "orders";

/// The timeout of every wait.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(240);

pub(crate) fn queue() -> QueueName {
    QueueName::of(NAME, NAME)
}

/// Source, store and clock of a consumer.
pub(crate) struct Bench {
    pub(crate) log: MemoryLog,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) clock: Arc<dyn Clock>,
}

impl Bench {
    pub(crate) fn new() -> Self {
        let clock: Arc<dyn Clock> = Arc::new(TokioClock::new());
        Self { log: MemoryLog::new("events", 1), store: Arc::new(MemoryStore::new(clock.clone())), clock }
    }

    /// Adds messages: the key is the part before the dash, the payload the whole text.
    pub(crate) fn push(&self, words: &[&str]) {
        for word in words {
            let key = word.split('-').next().unwrap();
            self.log.push(0, format!("key-of-{key}"), format!("payload-of-{word}"));
        }
    }

    pub(crate) fn builder(&self, handler: BoxHandler) -> Builder {
        Consumer::builder(NAME)
            .source(self.log.join())
            .store(self.store.clone())
            .clock(self.clock.clone())
            .options(options())
            .handler(handler)
    }
}

/// Deterministic options: no jitter, breaker, fuse or poison rule; three attempts.
pub(crate) fn options() -> Options {
    Options {
        seed: 7,
        concurrency: 4,
        breaker: None,
        fuse: None,
        poison: PoisonPolicy { same_failure: None },
        retry: RetryPolicy {
            strategy: Strategy::InPlace,
            max_attempts: 3,
            initial_delay: Duration::from_secs(1),
            multiplier: 2.0,
            jitter: 0.0,
            ..RetryPolicy::default()
        },
        ..Options::default()
    }
}

/// A handler that fails as the payload says, until it is fixed.
pub(crate) fn scripted(fixed: Arc<std::sync::atomic::AtomicBool>) -> BoxHandler {
    handler(move |Text(word): Text, context: Context| {
        let is_fixed = fixed.load(std::sync::atomic::Ordering::SeqCst);
        async move {
            let refuse = |reason: &str| {
                HandlerError::foreign("TestError", "words-of-a-failure").reason(Reason::new(reason).unwrap())
            };
            match () {
                () if is_fixed => Ok(()),
                () if word.contains("flaky") && context.attempt() < 3 => Err(refuse("TIMEOUT")),
                () if word.contains("hopeless") => Err(refuse("TIMEOUT")),
                () if word.contains("invalid") => Err(refuse("INVALID_SCHEMA")),
                () if word.contains("bad") => Err(refuse("CARD_DECLINED").verdict(Verdict::DeadLetter)),
                () => Ok(()),
            }
        }
    })
}

/// A running consumer.
pub(crate) struct Running {
    pub(crate) handle: Handle,
    drain: CancellationToken,
    task: tokio::task::JoinHandle<Result<lazaret_engine::Stats, lazaret_engine::Error>>,
}

impl Running {
    pub(crate) fn start(builder: Builder) -> Self {
        let consumer = builder.build().unwrap();
        let (handle, drain) = (consumer.handle(), CancellationToken::new());
        let task = tokio::spawn(Box::pin(consumer.run(drain.clone())));
        Self { handle, drain, task }
    }

    pub(crate) async fn stop(self) {
        self.drain.cancel();
        self.task.await.unwrap().unwrap();
    }
}

/// Waits until the condition holds. A paused clock advances by itself.
pub(crate) async fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = std::time::Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < TIMEOUT, "timed out: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// A received request.
#[derive(Clone, Debug)]
pub(crate) struct Got {
    #[cfg_attr(not(feature = "otlp"), allow(dead_code, reason = "only the tests of traces read it"))]
    pub(crate) path: String,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

/// A server that records requests and returns scripted statuses.
#[derive(Clone)]
pub(crate) struct Receiver {
    pub(crate) address: SocketAddr,
    got: Arc<Mutex<Vec<Got>>>,
    answers: Arc<Mutex<VecDeque<u16>>>,
    received: Arc<Notify>,
}

impl Receiver {
    /// Returns these statuses, then 200.
    pub(crate) async fn start(answers: &[u16]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let receiver = Self {
            address: listener.local_addr().unwrap(),
            got: Arc::default(),
            answers: Arc::new(Mutex::new(answers.iter().copied().collect())),
            received: Arc::default(),
        };
        let own = receiver.clone();
        tokio::spawn(async move {
            loop {
                let Ok((stream, _)) = listener.accept().await else { return };
                let own = own.clone();
                tokio::spawn(async move {
                    let service = service_fn(move |request| own.clone().take(request));
                    let builder = hyper_util::server::conn::auto::Builder::new(TokioExecutor::new());
                    let _ = builder.serve_connection(TokioIo::new(stream), service).await;
                });
            }
        });
        receiver
    }

    async fn take(self, request: Request<Incoming>) -> Result<Response<Full<Bytes>>, hyper::Error> {
        let (parts, body) = request.into_parts();
        let body = body.collect().await?.to_bytes();
        let answer = self.answers.lock().unwrap().pop_front().unwrap_or(200);
        self.got.lock().unwrap().push(Got {
            path: parts.uri.path().to_owned(),
            headers: parts.headers,
            body,
        });
        self.received.notify_waiters();
        let mut response = Response::new(Full::default());
        *response.status_mut() = StatusCode::from_u16(answer).unwrap();
        Ok(response)
    }

    pub(crate) fn all(&self) -> Vec<Got> {
        self.got.lock().unwrap().clone()
    }

    /// Waits for a number of requests.
    pub(crate) async fn wait_for(&self, requests: usize) -> Vec<Got> {
        let come = async {
            loop {
                let told = self.received.notified();
                tokio::pin!(told);
                told.as_mut().enable();
                if self.all().len() >= requests {
                    return;
                }
                told.await;
            }
        };
        let waited = tokio::time::timeout(TIMEOUT, come).await;
        assert!(waited.is_ok(), "fewer than {requests} requests: {:?}", self.all());
        self.all()
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }
}
