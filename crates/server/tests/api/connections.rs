//! Connections that send nothing, trickle or do not read, and the caps that keep them from others.

use std::time::Duration;

use axum::Router;
use axum::routing::{get, post};
use bytes::Bytes;
use lazaret_api::Scope;
use lazaret_server::{Limits, Listener};
use reqwest::Method;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};

use crate::events;
use crate::support::{Bench, Setup, eventually, http2, secret, token, with_json};

/// The first bytes of an HTTP/2 connection, and its empty settings.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

/// The timeout of every wait.
const DEADLINE: Duration = Duration::from_secs(240);
const FOREVER: Duration = Duration::from_secs(3600);

/// A page for everybody, and a form that everybody may send.
const LARGE_PAGE: &str = "/console/assets/large";
const FORM: &str = "/console/login";

fn address(bench: &Bench) -> String {
    bench.base.strip_prefix("http://").unwrap().to_owned()
}

/// Sends a request on a connection of its own. `None` if the server closes it without a response.
async fn asked(bench: &Bench, method: &str, path: &str, token: Option<&str>) -> Option<String> {
    let ask = async {
        let mut stream = TcpStream::connect(address(bench)).await.ok()?;
        let token = token.map(|token| format!("authorization: Bearer {}\r\n", secret(token)));
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{}\r\n",
            token.unwrap_or_default()
        );
        stream.write_all(head.as_bytes()).await.ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.ok()?;
        (!answer.is_empty()).then_some(answer)
    };
    tokio::time::timeout(DEADLINE, ask).await.expect("an answer or an end")
}

fn status(answer: Option<&String>) -> &str {
    answer.and_then(|answer| answer.split(' ').nth(1)).unwrap_or("none")
}

#[tokio::test(flavor = "multi_thread")]
async fn silent_connections_keep_nobody_out() {
    let limits = Limits { connections: 8, header_timeout: Duration::from_secs(600), ..Limits::default() };
    let bench = Bench::with(Setup::limits(limits)).await;
    let mut silent = Vec::new();
    for n in 0..40 {
        let mut stream = TcpStream::connect(address(&bench)).await.unwrap();
        if n % 2 == 0 {
            stream.write_all(PREFACE).await.unwrap();
        }
        silent.push(stream);
    }
    for path in ["/healthz", "/readyz", "/v1/status"] {
        let answer = asked(&bench, "GET", path, None).await;
        assert_eq!(status(answer.as_ref()), "200", "{path}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_without_a_request_is_closed() {
    let limits = Limits { header_timeout: Duration::from_millis(100), ..Limits::default() };
    let bench = Bench::with(Setup::limits(limits)).await;
    for first in [&b""[..], b"P", PREFACE, b"GET /v1/status HTTP/1.1\r\n"] {
        let mut stream = TcpStream::connect(address(&bench)).await.unwrap();
        stream.write_all(first).await.unwrap();
        let mut rest = Vec::new();
        let ended = tokio::time::timeout(DEADLINE, stream.read_to_end(&mut rest)).await;
        assert!(ended.is_ok(), "{first:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idle_connection_is_closed() {
    let limits = Limits { idle_timeout: Duration::from_millis(100), ..Limits::default() };
    let bench = Bench::with(Setup::limits(limits)).await;
    let mut stream = TcpStream::connect(address(&bench)).await.unwrap();
    stream.write_all(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
    let mut answer = String::new();
    tokio::time::timeout(DEADLINE, stream.read_to_string(&mut answer)).await.expect("it ends").unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
}

#[tokio::test(flavor = "multi_thread")]
async fn busy_connections_leave_health_checks_a_reserve() {
    let limits = Limits { connections: 2, ..Limits::default() };
    let bench = Bench::with(Setup::limits(limits)).await;
    let mut streams = Vec::new();
    for _ in 0..2 {
        // Event streams are busy for as long as they are open.
        let mut stream = TcpStream::connect(address(&bench)).await.unwrap();
        stream.write_all(b"GET /v1/events HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
        let mut first = [0; 12];
        stream.read_exact(&mut first).await.unwrap();
        assert_eq!(&first, b"HTTP/1.1 200");
        streams.push(stream);
    }
    for (path, expected) in [("/healthz", "200"), ("/readyz", "200"), ("/v1/status", "429")] {
        let answer = asked(&bench, "GET", path, None).await;
        assert_eq!(status(answer.as_ref()), expected, "{path}");
    }
    drop(streams);
    eventually("there is room again", || async {
        status(asked(&bench, "GET", "/v1/status", None).await.as_ref()) == "200"
    })
    .await;
}

/// A server with tokens and pages, which ends no connection by a timeout.
async fn patient_bench(limits: Limits) -> Bench {
    let limits = Limits {
        header_timeout: FOREVER,
        idle_timeout: FOREVER,
        write_timeout: FOREVER,
        http2_keep_alive: FOREVER,
        anonymous_form_timeout: FOREVER,
        ..limits
    };
    let tokens = vec![token("ada", &[Scope::Read, Scope::Ingest, Scope::Pause])];
    // Larger than the buffers of both sides.
    let large = Bytes::from(vec![b'x'; 16 * 1024 * 1024]);
    Bench::built(Setup { tokens, ..Setup::limits(limits) }, |builder| {
        builder.pages(|_api| {
            Router::new()
                .route(LARGE_PAGE, get(|| async move { large }))
                .route(FORM, post(|| async { "a form" }))
        })
    })
    .await
}

/// Asks for a large page twice, and reads the first status only.
async fn unread_http1(bench: &Bench) -> TcpStream {
    let mut stream = connect_with_a_small_buffer(bench).await;
    let requests = format!("GET {LARGE_PAGE} HTTP/1.1\r\nhost: localhost\r\n\r\n").repeat(2);
    stream.write_all(requests.as_bytes()).await.unwrap();
    let mut first = [0; 12];
    stream.read_exact(&mut first).await.unwrap();
    assert_eq!(&first, b"HTTP/1.1 200");
    stream
}

/// Asks for a large page, and has no window for it.
async fn unread_http2(bench: &Bench) -> TcpStream {
    let mut stream = connect_with_a_small_buffer(bench).await;
    let no_window = http2::frame(http2::SETTINGS, 0, 0, &[0, 4, 0, 0, 0, 0]);
    let headers = http2::request_headers(http2::GET, LARGE_PAGE);
    let request = http2::frame(http2::HEADERS, http2::END_HEADERS | http2::END_STREAM, 1, &headers);
    stream.write_all(&[http2::PREFACE, &no_window, &request].concat()).await.unwrap();
    assert!(http2::read_response_start(&mut stream).await);
    stream
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_that_read_nothing_keep_no_caller_out() {
    const CONNECTIONS: usize = 4;
    for is_http2 in [false, true] {
        let bench = patient_bench(Limits { connections: CONNECTIONS, ..Limits::default() }).await;
        let mut unread = Vec::new();
        for _ in 0..CONNECTIONS {
            unread.push(if is_http2 { unread_http2(&bench).await } else { unread_http1(&bench).await });
        }
        for path in ["/v1/status", "/healthz", "/v1/letters"] {
            let answer = asked(&bench, "GET", path, Some("ada")).await;
            assert_eq!(status(answer.as_ref()), "200", "{path}, HTTP/2: {is_http2}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn quiet_connections_of_an_address_keep_its_callers_in() {
    const CONNECTIONS: usize = 4;
    let limits = Limits { connections: 64, connections_per_peer: CONNECTIONS, ..Limits::default() };
    let bench = patient_bench(limits).await;
    let events = bench.request(Method::GET, "/v1/events").bearer_auth(secret("ada"));
    let mut events = events::Listener::open(events).await;
    let mut slow_post = begin_post(&bench, "ada", 1).await;
    let mut quiet = Vec::new();
    for begin_only_the_body in [false, true] {
        for _ in 0..CONNECTIONS {
            let mut stream = TcpStream::connect(address(&bench)).await.unwrap();
            if begin_only_the_body {
                let head = format!(
                    "POST {FORM} HTTP/1.1\r\nhost: localhost\r\ncontent-length: 9\r\nexpect: 100-continue\r\n\r\n"
                );
                stream.write_all(head.as_bytes()).await.unwrap();
                let mut question = [0; 12];
                stream.read_exact(&mut question).await.unwrap();
                assert_eq!(&question, b"HTTP/1.1 100", "it waits for the form");
            } else {
                stream.write_all(b"GET /v1/status HTTP/1.1\r\nhost: loc").await.unwrap();
            }
            quiet.push(stream);
        }
        let answer = asked(&bench, "GET", "/v1/status", Some("ada")).await;
        assert_eq!(status(answer.as_ref()), "200", "a body: {begin_only_the_body}");
    }
    // The requests of the caller that were in progress all the time go on.
    slow_post.write_all(b"x").await.unwrap();
    let mut first = [0; 12];
    slow_post.read_exact(&mut first).await.unwrap();
    assert_eq!(&first, b"HTTP/1.1 202");
    let pause = bench.request(Method::POST, "/v1/consumers/orders/pause").bearer_auth(secret("ada"));
    let pause = with_json(pause, &serde_json::json!({"replay": true, "reason": "x"}));
    bench.send(pause).await.expect(200);
    events.next_of(&bench, "paused").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_that_trickles_is_refused_and_its_slot_freed() {
    let limits = Limits {
        header_timeout: Duration::from_secs(1),
        body_bytes_per_second: 1_000_000,
        ..Limits::default()
    };
    let bench = Bench::with(Setup::limits(limits)).await;
    for path in ["/v1/inbox/orders", "/v1/inbox/orders/batch", "/v1/letters/import?reason=x"] {
        let mut stream = TcpStream::connect(address(&bench)).await.unwrap();
        let head = format!(
            "POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/x-ndjson\r\n\
             connection: close\r\ncontent-length: 1000\r\n\r\n{{"
        );
        stream.write_all(head.as_bytes()).await.unwrap();
        let mut answer = String::new();
        tokio::time::timeout(DEADLINE, stream.read_to_string(&mut answer)).await.expect("it ends").unwrap();
        assert!(answer.starts_with("HTTP/1.1 408"), "{path}: {answer}");
    }
}

/// Connects without a buffer in which the system of the receiver would keep much of a response that nobody reads.
async fn connect_with_a_small_buffer(bench: &Bench) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    socket.connect(address(bench).parse().unwrap()).await.unwrap()
}

/// Starts an export that is larger than the buffers of both sides, where one export may be open at a time. Nobody reads it.
async fn unread_export(limits: Limits) -> (Bench, TcpStream) {
    let bench = Bench::with(Setup::limits(Limits { exports: 1, ..limits })).await;
    let payload = "bad".repeat(300_000);
    for n in 0..12 {
        let post = bench.request(Method::POST, "/v1/inbox/orders").header("lazaret-key", format!("k{n}"));
        bench.send(post.body(payload.clone())).await.expect(202);
    }
    bench.open_letters(12).await;
    let mut unread = connect_with_a_small_buffer(&bench).await;
    let head =
        "GET /v1/letters?view=full HTTP/1.1\r\nhost: localhost\r\naccept: application/x-ndjson\r\n\r\n";
    unread.write_all(head.as_bytes()).await.unwrap();
    let mut first = [0; 12];
    unread.read_exact(&mut first).await.unwrap();
    assert_eq!(&first, b"HTTP/1.1 200");
    (bench, unread)
}

/// The status of another export. Its response is dropped.
async fn other_export(bench: &Bench) -> u16 {
    let request = bench.request(Method::GET, "/v1/letters?view=full");
    request.header("accept", "application/x-ndjson").send().await.unwrap().status().as_u16()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_export_has_its_place_until_it_is_read_or_its_client_is_gone() {
    let (bench, unread) = unread_export(Limits::default()).await;
    assert_eq!(other_export(&bench).await, 429);
    drop(unread);
    eventually("the place is free", || async { other_export(&bench).await == 200 }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_export_that_nobody_reads_is_closed() {
    let limits = Limits { write_timeout: Duration::from_millis(200), ..Limits::default() };
    let (bench, mut unread) = unread_export(limits).await;
    eventually("the place is free", || async { other_export(&bench).await == 200 }).await;
    let mut rest = Vec::new();
    let _ = unread.read_to_end(&mut rest).await;
    assert!(!rest.ends_with(b"\r\n0\r\n\r\n"), "it was cut off");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_streams_of_one_token_do_not_keep_others_out() {
    let limits = Limits { streams_per_token: 1, ..Limits::default() };
    let tokens = vec![token("ada", &[Scope::Read]), token("bob", &[Scope::Read])];
    let bench = Bench::with(Setup { tokens, ..Setup::limits(limits) }).await;
    let events = |name: &str| bench.request(Method::GET, "/v1/events").bearer_auth(secret(name));
    let first = events("ada").send().await.unwrap();
    assert_eq!(first.status().as_u16(), 200);
    bench.send(events("ada")).await.problem(429, "LZ0214");
    assert_eq!(events("bob").send().await.unwrap().status().as_u16(), 200);
    drop(first);
    eventually("its place is free again", || async {
        events("ada").send().await.unwrap().status().as_u16() == 200
    })
    .await;
}

/// Begins a post, up to the question of the server for its body: it is in progress, and has its share of memory. A request that is sent
/// beside it may be served first, and take that from it.
async fn begin_post(bench: &Bench, token: &str, length: usize) -> TcpStream {
    let mut stream = TcpStream::connect(address(bench)).await.unwrap();
    let head = format!(
        "POST /v1/inbox/orders HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {}\r\ncontent-length: {length}\r\n\
         expect: 100-continue\r\n\r\n",
        secret(token)
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut question = [0; 25];
    stream.read_exact(&mut question).await.unwrap();
    assert_eq!(question, *b"HTTP/1.1 100 Continue\r\n\r\n");
    stream
}

#[tokio::test(flavor = "multi_thread")]
async fn the_requests_of_one_token_do_not_keep_others_out() {
    let limits = Limits { requests_per_token: 1, ..Limits::default() };
    let scopes = [Scope::Read, Scope::Ingest];
    let tokens = vec![token("ada", &scopes), token("bob", &scopes)];
    let bench = Bench::with(Setup { tokens, ..Setup::limits(limits) }).await;
    let status = |name: &str| bench.send(bench.request(Method::GET, "/v1/status").bearer_auth(secret(name)));
    let mut slow = begin_post(&bench, "ada", 1).await;
    status("ada").await.problem(429, "LZ0214");
    status("bob").await.expect(200);
    slow.write_all(b"x").await.unwrap();
    eventually("its place is free again", || async { status("ada").await.status == 200 }).await;
}

#[cfg(unix)]
#[tokio::test(flavor = "multi_thread")]
async fn a_unix_socket_is_served_without_tokens() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("api.sock");
    let listener = Listener::from(tokio::net::UnixListener::bind(&path).unwrap());
    let server = lazaret_server::Server::builder(std::sync::Arc::new(lazaret_memory::MemoryStore::default()));
    let stop = tokio_util::sync::CancellationToken::new();
    let serving = tokio::spawn({
        let (server, stop) = (server.build(), stop.clone());
        async move { server.serve(listener, stop).await }
    });
    let mut stream = tokio::net::UnixStream::connect(&path).await.unwrap();
    let head = b"GET /v1/status HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
    stream.write_all(head).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    stop.cancel();
    serving.await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_compressed_body_is_refused() {
    let bench = Bench::new().await;
    for path in ["/v1/inbox/orders", "/v1/inbox/orders/batch", "/v1/plans", "/v1/letters/import"] {
        let request = bench.request(Method::POST, path).header("content-encoding", "gzip");
        let request = request.header("content-type", "application/json");
        bench.send(request.body("x")).await.problem(415, "LZ0212");
    }
    let plain = bench.request(Method::POST, "/v1/inbox/orders").header("content-encoding", "identity");
    bench.send(plain.body("x")).await.expect(202);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_bytes_of_bodies_in_memory_are_bounded() {
    let limits = Limits { body_bytes_per_token: 100, ..Limits::default() };
    let tokens = vec![token("ada", &[Scope::Read, Scope::Ingest])];
    let bench = Bench::with(Setup { tokens, ..Setup::limits(limits) }).await;
    let mut slow = begin_post(&bench, "ada", 80).await;
    let post =
        || bench.request(Method::POST, "/v1/inbox/orders").bearer_auth(secret("ada")).body("x".repeat(40));
    assert_eq!(bench.send(post()).await.status, 429);
    slow.write_all(&[b'x'; 80]).await.unwrap();
    eventually("the share is free", || async { bench.send(post()).await.status == 202 }).await;
    let plan = bench.request(Method::POST, "/v1/plans").bearer_auth(secret("ada"));
    bench
        .send(with_json(plan, &serde_json::json!({"action": "retry", "query": "x"})))
        .await
        .problem(403, "LZ0207");
}
