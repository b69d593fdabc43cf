//! Shared parts of the tests: real servers, scripts, and helpers that wait.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::header::HeaderMap;
use hyper::service::service_fn;
use hyper::{Request, Response, Version};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use lazaret_core::handler::{DeadLetterSink, Delivery, Handle};
use lazaret_core::store::StoreError;
use lazaret_core::{Failure, HandlerError, Message, Position, Reason, Verdict};
use lazaret_handlers::{HttpHandler, HttpOptions};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

/// The timeout of every wait.
const DEADLINE: Duration = Duration::from_secs(240);

pub(crate) fn message() -> Message {
    Message::new("evt-1", "orders", Position::new(3, 41)).with_payload("{}")
}

/// The sink of a message that another process may have received.
struct Stale;

#[async_trait::async_trait]
impl DeadLetterSink for Stale {
    async fn send_to_dlq(&self, _: &Delivery, _: Reason, _: String) -> Result<(), StoreError> {
        unreachable!("nobody asks for it")
    }

    fn is_owned(&self) -> bool {
        false
    }
}

/// Calls a handler whose process was stopped after the attempt began.
pub(crate) async fn call_after_a_stop(handler: &impl Handle) -> Result<(), HandlerError> {
    handler.handle(Delivery::live(message(), Arc::new(Stale))).await
}

/// Calls a handler until it makes the attempt.
pub(crate) async fn call(handler: &impl Handle, message: Message) -> Result<(), HandlerError> {
    loop {
        let result = handler.handle(Delivery::new(message.clone())).await;
        match result.as_ref().err().and_then(HandlerError::deferral) {
            Some(delay) => tokio::time::sleep(delay).await,
            None => return result,
        }
    }
}

/// Calls a handler once and returns its failure.
pub(crate) async fn failed(handler: &impl Handle) -> (Failure, Option<Verdict>) {
    let error = call(handler, message()).await.expect_err("it should fail");
    (error.failure(), error.asked_verdict().or(error.suggested_verdict()))
}

/// Waits until the condition holds.
pub(crate) async fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let started = Instant::now();
    while !holds() {
        assert!(started.elapsed() < DEADLINE, "it never came about: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// A request as received by a server.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) version: Version,
    pub(crate) method: String,
    pub(crate) path: String,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Seen {
    /// Returns the value of a header, which must be present.
    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).unwrap_or_else(|| panic!("{name} is missing")).to_str().unwrap()
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.headers.contains_key(name)
    }
}

pub(crate) type Answer = Response<Full<Bytes>>;

pub(crate) fn status(code: u16) -> Answer {
    Response::builder().status(code).body(Full::default()).unwrap()
}

pub(crate) fn answer(code: u16, headers: &[(&str, &str)], body: impl Into<Bytes>) -> Answer {
    let answer =
        headers.iter().fold(Response::builder().status(code), |a, (name, value)| a.header(*name, *value));
    answer.body(Full::new(body.into())).unwrap()
}

/// A server that responds as scripted and records its requests. It speaks HTTP/1.1 and HTTP/2.
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    scheme: &'static str,
    seen: Arc<Mutex<Vec<Seen>>>,
    connections: Arc<AtomicUsize>,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Server {
    pub(crate) async fn start(answer: impl Fn(&Seen) -> Answer + Send + Sync + 'static) -> Self {
        Self::start_with(None, answer).await
    }

    pub(crate) async fn start_with(
        tls: Option<TlsAcceptor>,
        answer: impl Fn(&Seen) -> Answer + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let seen = Arc::<Mutex<Vec<Seen>>>::default();
        let connections = Arc::<AtomicUsize>::default();
        let scheme = if tls.is_some() { "https" } else { "http" };
        let (log, count, answer) = (seen.clone(), connections.clone(), Arc::new(answer));
        let task = tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                count.fetch_add(1, Ordering::SeqCst);
                let (log, answer, tls) = (log.clone(), answer.clone(), tls.clone());
                tokio::spawn(async move {
                    match tls {
                        None => serve(stream, log, answer).await,
                        // A client that does not trust the certificate disconnects.
                        Some(tls) => {
                            if let Ok(stream) = tls.accept(stream).await {
                                serve(stream, log, answer).await;
                            }
                        }
                    }
                });
            }
        });
        Self { address, scheme, seen, connections, task }
    }

    pub(crate) fn url(&self) -> String {
        format!("{}://{}/events", self.scheme, self.address)
    }

    pub(crate) fn options(&self) -> HttpOptions {
        HttpOptions::new(self.url()).for_consumer("shop")
    }

    pub(crate) fn handler(&self) -> HttpHandler {
        HttpHandler::new(self.options()).unwrap()
    }

    pub(crate) fn seen(&self) -> Vec<Seen> {
        self.seen.lock().unwrap().clone()
    }

    /// Returns the only request so far.
    pub(crate) fn only(&self) -> Seen {
        let seen = self.seen();
        assert_eq!(seen.len(), 1);
        seen.into_iter().next().unwrap()
    }

    pub(crate) fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }
}

async fn serve(
    stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    log: Arc<Mutex<Vec<Seen>>>,
    answer: Arc<impl Fn(&Seen) -> Answer + Send + Sync + 'static>,
) {
    let service = service_fn(move |request: Request<Incoming>| {
        let (log, answer) = (log.clone(), answer.clone());
        async move {
            let (head, body) = request.into_parts();
            let seen = Seen {
                version: head.version,
                method: head.method.to_string(),
                path: head.uri.path_and_query().unwrap().to_string(),
                headers: head.headers,
                body: body.collect().await.map(|body| body.to_bytes()).unwrap_or_default(),
            };
            log.lock().unwrap().push(seen.clone());
            Ok::<_, Infallible>(answer(&seen))
        }
    });
    // A client that disconnects in the middle does not matter here.
    let _ = auto::Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(stream), service).await;
}

/// Starts a server that runs `work` on each connection, at the level of bytes. Connections are numbered
/// from 0.
pub(crate) async fn raw<F, W>(work: F) -> String
where
    F: Fn(TcpStream, usize) -> W + Send + 'static,
    W: Future<Output = ()> + Send + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        for number in 0.. {
            let (stream, _) = listener.accept().await.unwrap();
            tokio::spawn(work(stream, number));
        }
    });
    format!("http://{address}/")
}

/// Reads one request with a body of the announced length.
pub(crate) async fn read_request(stream: &mut TcpStream) -> String {
    let mut bytes = Vec::new();
    loop {
        let text = String::from_utf8_lossy(&bytes).to_lowercase();
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
            if body.len() >= length.map_or(0, |length| length.parse().unwrap()) {
                return text;
            }
        }
        let mut buffer = [0; 4096];
        let count = stream.read(&mut buffer).await.unwrap();
        assert_ne!(count, 0, "the client went away in the middle of a request");
        bytes.extend_from_slice(&buffer[..count]);
    }
}

/// Starts a server that reads each request, writes these bytes, and closes the connection.
pub(crate) async fn raw_answer(bytes: impl Into<Vec<u8>>) -> String {
    let bytes = bytes.into();
    raw(move |mut stream, _| {
        let bytes = bytes.clone();
        async move {
            read_request(&mut stream).await;
            let _ = stream.write_all(&bytes).await;
            let _ = stream.shutdown().await;
        }
    })
    .await
}

/// Returns the root of the repository.
pub(crate) fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap().to_owned()
}

/// Returns `true` if a process exists and is not a zombie.
pub(crate) fn is_alive(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with('Z'))
}

/// Returns the path of Python on this machine. It is the program itself, because the one on the path may
/// be a slow wrapper script. Under `CI=true`, where all programs must exist, a missing Python is a
/// failure.
pub(crate) fn python() -> Option<String> {
    static PLACE: OnceLock<Option<String>> = OnceLock::new();
    let place = PLACE.get_or_init(|| {
        let ask = ["-c", "import sys; print(sys.executable)"];
        let asked = std::process::Command::new("python3").args(ask).output().ok()?;
        let place = String::from_utf8(asked.stdout).ok()?.trim().to_owned();
        (asked.status.success() && !place.is_empty()).then_some(place)
    });
    let must = std::env::var("CI").is_ok_and(|value| value == "true");
    assert!(place.is_some() || !must, "python3 is missing, and CI=true");
    if place.is_none() {
        println!("not run: python3 is missing");
    }
    place.clone()
}

/// Returns `true` if a program exists on this machine. Otherwise prints what is skipped.
pub(crate) fn has(program: &str, version: &str) -> bool {
    let nothing = std::process::Stdio::null;
    let asked = std::process::Command::new(program).arg(version).stdout(nothing()).stderr(nothing()).status();
    let found = asked.is_ok_and(|status| status.success());
    if !found {
        println!("not run: {program} is missing");
    }
    found
}
