//! Requests without a valid token or session: however many there are, callers with a token are served.

use std::time::Duration;

use axum::Router;
use axum::routing::post;
use lazaret_api::Scope;
use lazaret_server::Limits;
use reqwest::Method;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::support::{Bench, Setup, eventually, http2, secret, token};

/// The timeout of every wait.
const DEADLINE: Duration = Duration::from_secs(240);
const FOREVER: Duration = Duration::from_secs(3600);
/// The page with a form that anybody may send.
const FORM: &str = "/console/login";
/// The places of callers, and of others from one address. There are more places for others than one address gets.
const REQUESTS: usize = 24;
const HELD: usize = 3;

/// A server with a form that anybody may send, and a client `ada` that posts to an inbox.
async fn bench(limits: Limits) -> Bench {
    let tokens = vec![token("ada", &[Scope::Ingest, Scope::Read])];
    let setup = Setup { tokens, ..Setup::limits(limits) };
    Bench::built(setup, |builder| {
        builder.pages(|_api| Router::new().route(FORM, post(|| async { "a form" })))
    })
    .await
}

/// Few places, and no end of a form by a timeout.
fn few_places() -> Limits {
    Limits {
        requests: REQUESTS,
        anonymous_requests: HELD + 1,
        anonymous_requests_per_peer: HELD,
        anonymous_form_timeout: FOREVER,
        http2_keep_alive: FOREVER,
        ..Limits::default()
    }
}

async fn connect(bench: &Bench) -> TcpStream {
    TcpStream::connect(bench.base.strip_prefix("http://").unwrap()).await.unwrap()
}

/// The head of a form, and a part of it.
fn form_head(announced: &str, token: Option<&str>) -> String {
    let token = token.map(|token| format!("authorization: Bearer {token}\r\n")).unwrap_or_default();
    format!(
        "POST {FORM} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/x-www-form-urlencoded\r\n\
         {token}{announced}\r\n\r\n"
    )
}

/// Sends a request on a connection of its own, and returns the status.
async fn status(bench: &Bench, head: &str) -> String {
    let mut stream = connect(bench).await;
    stream.write_all(head.as_bytes()).await.unwrap();
    status_of(&mut stream).await
}

async fn status_of(stream: &mut TcpStream) -> String {
    let mut line = [0; 12];
    let read = tokio::time::timeout(DEADLINE, stream.read_exact(&mut line)).await;
    read.expect("a response").unwrap();
    String::from_utf8_lossy(&line[9..]).into_owned()
}

/// Waits until so many of the tasks have ended. The others stay.
async fn wait_for<T: 'static>(tasks: &mut JoinSet<T>, count: usize) -> Vec<T> {
    let mut ended = Vec::new();
    while ended.len() < count {
        let next = tokio::time::timeout(DEADLINE, tasks.join_next()).await;
        ended.push(next.expect("all but a few are refused").unwrap().unwrap());
    }
    ended
}

/// Asserts that the places of others are taken, and that callers with a token do not notice.
async fn assert_only_others_wait(bench: &Bench) {
    assert_eq!(status(bench, &form_head("content-length: 9", None)).await, "429", "the places are taken");
    assert_eq!(
        status(bench, &form_head("content-length: 9", Some("lz_guess"))).await,
        "429",
        "a wrong token"
    );
    let posts: Vec<_> = (0..REQUESTS)
        .map(|number| {
            let post = bench.request(Method::POST, "/v1/inbox/orders").bearer_auth(secret("ada"));
            bench.send(post.body(format!("message {number}")))
        })
        .collect();
    for post in futures_util::future::join_all(posts).await {
        post.expect(202);
    }
    for path in ["/healthz", "/readyz"] {
        bench.get(path).await.expect(200);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn forms_that_never_end_take_no_place_of_a_caller() {
    let bench = bench(few_places()).await;
    let mut forms = JoinSet::new();
    for _ in 0..2 * REQUESTS {
        let mut stream = connect(&bench).await;
        let begun = form_head("content-length: 4000", None) + "token=";
        stream.write_all(begun.as_bytes()).await.unwrap();
        forms.spawn(async move { status_of(&mut stream).await });
    }
    let refused = wait_for(&mut forms, 2 * REQUESTS - HELD).await;
    assert!(refused.iter().all(|status| status == "429"), "{refused:?}");
    assert_only_others_wait(&bench).await;
    assert_eq!(forms.len(), HELD, "these wait for the rest of their forms");
}

/// Counts the responses that have begun, up to the end of the connection.
async fn count_responses(stream: &mut TcpStream, count: &tokio::sync::mpsc::UnboundedSender<()>) {
    while http2::read_response_start(stream).await {
        count.send(()).unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_that_never_end_take_no_place_of_a_caller() {
    const CONNECTIONS: usize = 4;
    const STREAMS: usize = 12;
    let bench = bench(few_places()).await;
    let (count, mut counted) = tokio::sync::mpsc::unbounded_channel();
    let mut connections = JoinSet::new();
    for _ in 0..CONNECTIONS {
        let mut stream = connect(&bench).await;
        let mut opening = http2::PREFACE.to_vec();
        opening.extend(http2::frame(http2::SETTINGS, 0, 0, &[]));
        for number in 0..STREAMS {
            // The end of the headers, and not of the stream.
            let stream = 2 * u32::try_from(number).unwrap() + 1;
            let headers = http2::request_headers(http2::POST, FORM);
            opening.extend(http2::frame(http2::HEADERS, http2::END_HEADERS, stream, &headers));
        }
        stream.write_all(&opening).await.unwrap();
        let count = count.clone();
        connections.spawn(async move { count_responses(&mut stream, &count).await });
    }
    for _ in 0..CONNECTIONS * STREAMS - HELD {
        let refused = tokio::time::timeout(DEADLINE, counted.recv()).await;
        refused.expect("all but a few are refused").unwrap();
    }
    assert_only_others_wait(&bench).await;
    assert!(counted.try_recv().is_err(), "the others wait for their forms");
    assert_eq!(connections.len(), CONNECTIONS, "and their connections are open");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_form_of_somebody_unknown_is_small_and_has_to_arrive_soon() {
    let limits = Limits {
        anonymous_form_bytes: 100,
        anonymous_form_timeout: Duration::from_millis(50),
        ..Limits::default()
    };
    let bench = bench(limits).await;
    assert_eq!(status(&bench, &form_head("content-length: 100", None)).await, "408");
    assert_eq!(status(&bench, &form_head("content-length: 101", None)).await, "413");
    let chunk = format!("{}65\r\n{}\r\n", form_head("transfer-encoding: chunked", None), "x".repeat(0x65));
    assert_eq!(status(&bench, &chunk).await, "413", "however it is sent");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_place_is_free_again_when_its_client_has_gone() {
    let bench = bench(Limits { anonymous_requests_per_peer: 1, ..few_places() }).await;
    // The server asks for the form once it has a place.
    let mut first = connect(&bench).await;
    let head = form_head("expect: 100-continue\r\ncontent-length: 9", None);
    first.write_all(head.as_bytes()).await.unwrap();
    assert_eq!(status_of(&mut first).await, "100");
    assert_eq!(status(&bench, &head).await, "429");
    drop(first);
    eventually("its place is free", || async { status(&bench, &head).await == "100" }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_only_place_of_callers_is_free_while_others_hold_all_of_theirs() {
    let bench = bench(Limits { requests: 1, ..few_places() }).await;
    let mut held = Vec::new();
    for _ in 0..HELD {
        let mut stream = connect(&bench).await;
        let head = form_head("expect: 100-continue\r\ncontent-length: 9", None);
        stream.write_all(head.as_bytes()).await.unwrap();
        // The server asks for the form once it has a place.
        assert_eq!(status_of(&mut stream).await, "100");
        held.push(stream);
    }
    assert_eq!(status(&bench, &form_head("content-length: 9", None)).await, "429");
    let post = bench.request(Method::POST, "/v1/inbox/orders").bearer_auth(secret("ada"));
    bench.send(post.body("message")).await.expect(202);
    assert_eq!(status(&bench, &form_head("content-length: 9", None)).await, "429", "they are still held");
    drop(held);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_over_the_limit_is_refused_before_it_is_sent() {
    let bench = bench(Limits::default()).await;
    for path in ["/v1/inbox/orders", "/v1/inbox/orders/batch"] {
        let head = format!(
            "POST {path} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {}\r\ncontent-length: 99999999999\r\n\
             expect: 100-continue\r\n\r\n",
            secret("ada")
        );
        assert_eq!(status(&bench, &head).await, "413", "{path}");
    }
}
