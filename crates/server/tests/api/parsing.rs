//! Large bodies are parsed off the runtime: other requests are answered meanwhile.

use std::convert::Infallible;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, mpsc};
use std::task::Poll;
use std::time::Duration;

use async_trait::async_trait;
use axum::body::Body;
use axum::http::Request;
use bytes::Bytes;
use futures_util::{StreamExt, stream};
use http_body_util::BodyExt;
use lazaret_api::LetterDetail;
use lazaret_core::source::{Backlog, Ingest, NewMessage};
use lazaret_core::{Failure, Letter, LetterState, Message, Position, QueueName, Reason, Timestamp, store};
use lazaret_memory::MemoryStore;
use lazaret_server::{Approval, Limits, Options, Posted, Registry, Server};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;

use crate::support::{ORDERS, QUEUE};

/// The timeout of every wait.
const DEADLINE: Duration = Duration::from_secs(240);
/// The lines of a body, each with a payload of some kilobytes.
const LINES: u64 = 500;

/// An inbox that takes messages without waiting for anything.
struct Immediate;

#[async_trait]
impl Ingest for Immediate {
    async fn post(&self, messages: Vec<NewMessage>) -> store::Result<Vec<Posted>> {
        let taken = |(message, offset): (NewMessage, u64)| {
            let position = Position::new(0, offset);
            Posted::Taken { id: message.id.unwrap(), position }
        };
        Ok(messages.into_iter().zip(0..).map(taken).collect())
    }

    async fn backlog(&self) -> store::Result<Backlog> {
        Ok(Backlog::default())
    }
}

fn server() -> Server {
    let registry = Registry::default();
    registry.starting(ORDERS, Approval::None);
    let limits = Limits { request_timeout: DEADLINE, ..Limits::default() };
    Server::builder(Arc::new(MemoryStore::default()))
        .registry(registry)
        .inbox(ORDERS, Immediate)
        .options(Options { limits, ..Options::default() })
        .build()
}

/// A body that tells when it was read to its end.
fn told_at_its_end(lines: Vec<String>) -> (Body, Arc<Notify>) {
    let read = Arc::new(Notify::new());
    let end = read.clone();
    let lines = stream::iter(lines.into_iter().map(|line| Ok::<_, Infallible>(Bytes::from(line + "\n"))));
    let end = stream::poll_fn(move |_| {
        end.notify_one();
        Poll::Ready(None)
    });
    (Body::from_stream(lines.chain(end)), read)
}

/// Requests a page on a connection of its own, and returns the response.
async fn get(address: SocketAddr, path: &str) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let head = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer
}

/// Sends a body whose parser is held up, and requests the health of the server meanwhile. Returns the status and the JSON of the
/// response to the body.
///
/// The proof needs no time: the runtime has one thread for all requests, and one for blocking work, which is taken until health has
/// been answered. A body that is parsed by a task of the runtime would be answered as soon as it was read, since neither the inbox nor
/// the store of this server ever waits. So its request would be over before anything else runs.
async fn answered_after_health(path: &str, lines: Vec<String>) -> (u16, Value) {
    let (release, released) = mpsc::channel::<()>();
    tokio::task::spawn_blocking(move || {
        // Ends when the sender is dropped, also by a failed assertion.
        let _ = released.recv();
    });
    let (server, shutdown) = (server(), CancellationToken::new());
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    let serving = tokio::spawn({
        let (server, shutdown) = (server.clone(), shutdown.clone());
        async move { server.serve(listener, shutdown).await }
    });
    let (body, read) = told_at_its_end(lines);
    let request =
        Request::post(path).header("host", "localhost").header("content-type", "application/x-ndjson");
    let change = tokio::spawn(server.router().oneshot(request.body(body).unwrap()));
    read.notified().await;
    for path in ["/healthz", "/v1/status"] {
        let answer = get(address, path).await;
        assert!(answer.starts_with("HTTP/1.1 200"), "{path}: {answer}");
    }
    assert!(!change.is_finished(), "{path}: the body was parsed on the runtime");
    drop(release);
    let response = change.await.unwrap().unwrap();
    let status = response.status().as_u16();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    shutdown.cancel();
    serving.await.unwrap().unwrap();
    (status, serde_json::from_slice(&body).unwrap())
}

/// Runs a test on a runtime with one thread for tasks and one for blocking work.
fn on_two_threads<T>(test: impl Future<Output = T>) -> T {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_all().max_blocking_threads(1).build().unwrap();
    runtime.block_on(async { tokio::time::timeout(DEADLINE, test).await.expect("it ends") })
}

#[test]
fn health_is_answered_while_a_batch_is_parsed() {
    let payload = "x".repeat(8 * 1024);
    let line = |n| json!({"id": format!("e-{n}"), "payload": payload}).to_string();
    let batch = answered_after_health("/v1/inbox/orders/batch", (0..LINES).map(line).collect());
    let (status, answer) = on_two_threads(batch);
    assert_eq!((status, &answer["taken"]), (202, &json!(LINES)));
}

#[test]
fn health_is_answered_while_an_import_is_parsed() {
    let queue = QueueName::from(QUEUE);
    let line = |n: u64| {
        let mut message = Message::new(format!("e-{n}"), ORDERS, Position::new(0, n));
        message.payload = Some("x".repeat(8 * 1024).into());
        let sequence = format!("s-{n}").as_str().into();
        let now = Timestamp::UNIX_EPOCH;
        let failure = Failure::new(Reason::TIMEOUT, "Late", "no response");
        let mut letter =
            Letter::new(queue.clone(), sequence, message.into(), now).with_cause(Some(failure), now);
        letter.state = LetterState::Dead;
        serde_json::to_string(&LetterDetail::of(&letter, true)).unwrap()
    };
    let import = answered_after_health("/v1/letters/import", (0..LINES).map(line).collect());
    let (status, answer) = on_two_threads(import);
    assert_eq!((status, &answer["taken"]), (200, &json!(LINES)), "{answer}");
}
