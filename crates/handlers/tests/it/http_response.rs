//! The outcomes of HTTP handlers' responses: good, bad and hostile ones.

use std::time::{Duration, Instant};

use lazaret_core::failure::{BACKTRACE_LIMIT, MESSAGE_LIMIT};
use lazaret_core::handler::{Delivery, Handle};
use lazaret_core::{Phase, Reason, Verdict};
use lazaret_handlers::{HttpHandler, HttpOptions, HttpVersion};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::timeout;

use crate::support::{
    Server, answer, call, eventually, failed, message, raw, raw_answer, read_request, status,
};

fn handler(url: &str) -> HttpHandler {
    HttpHandler::new(HttpOptions::new(url)).unwrap()
}

fn hasty(url: &str) -> HttpHandler {
    HttpHandler::new(HttpOptions::new(url).with_timeout(Duration::from_millis(200))).unwrap()
}

#[tokio::test]
async fn each_status_leads_to_its_verdict() {
    use Verdict::{DeadLetter, Duplicate, Park, Retry};
    let server = Server::start(|seen| status(seen.header("lazaret-header-answer").parse().unwrap())).await;
    let handler = server.handler();
    let table = [
        (208, Duplicate, Reason::DUPLICATE),
        (302, Retry, Reason::HANDLER_ERROR),
        (400, DeadLetter, Reason::INVALID_SCHEMA),
        (401, DeadLetter, Reason::AUTHORIZATION_DENIED),
        (403, DeadLetter, Reason::AUTHORIZATION_DENIED),
        (404, Park, Reason::UNSUPPORTED),
        (405, Park, Reason::UNSUPPORTED),
        (408, Retry, Reason::TIMEOUT),
        (409, Retry, Reason::CONFLICT),
        (410, Park, Reason::UNSUPPORTED),
        (413, DeadLetter, Reason::TOO_LARGE),
        (415, DeadLetter, Reason::INVALID_SCHEMA),
        (418, Retry, Reason::HANDLER_ERROR),
        (422, DeadLetter, Reason::INVALID_SCHEMA),
        (425, Retry, Reason::HANDLER_ERROR),
        (429, Retry, Reason::RATE_LIMITED),
        (500, Retry, Reason::HANDLER_ERROR),
        (501, Park, Reason::UNSUPPORTED),
        (502, Retry, Reason::HANDLER_ERROR),
        (503, Retry, Reason::DEPENDENCY_UNAVAILABLE),
        (504, Retry, Reason::TIMEOUT),
    ];
    for (code, verdict, reason) in table {
        let error = call(&handler, message().with_header("answer", code.to_string())).await.unwrap_err();
        assert_eq!(error.suggested_verdict(), Some(verdict), "{code}");
        assert_eq!((error.failure().reason, error.failure().status), (reason, Some(code)), "{code}");
    }
    for code in [200, 201, 202, 203, 204, 205, 206, 299] {
        call(&handler, message().with_header("answer", code.to_string())).await.unwrap();
    }
    assert_eq!(server.connections(), 1, "all of it over one connection");
}

#[tokio::test]
async fn what_the_handler_demands_and_says_arrives() {
    let server = Server::start(|_| {
        let headers = [
            ("Lazaret-Verdict", "park"),
            ("Lazaret-Reason", "CARD_DECLINED"),
            ("Retry-After", "17"),
            ("Content-Type", "application/problem+json"),
        ];
        answer(503, &headers, r#"{"title":"Declined","detail":"by the bank"}"#)
    })
    .await;
    let (failure, verdict) = failed(&server.handler()).await;
    assert_eq!(verdict, Some(Verdict::Park));
    assert_eq!((failure.reason.as_str(), &*failure.message), ("CARD_DECLINED", "Declined: by the bank"));
    assert_eq!(failure.retry_after, Some(Duration::from_secs(17)));
}

#[tokio::test]
async fn what_the_handler_reports_of_its_error_arrives_whole() {
    // Longer than a message, as stack traces usually are.
    let trace = format!(
        "java.lang.IllegalStateException: no card\n{}",
        "\tat shop.Pay.charge(Pay.java:7)\n".repeat(600)
    );
    assert!(trace.len() > 2 * MESSAGE_LIMIT && trace.len() < BACKTRACE_LIMIT);
    let body = serde_json::json!({"title": "no card", "errorType": "java.lang.IllegalStateException", "stackTrace": trace});
    let server = Server::start(move |_| {
        let headers = [
            ("Content-Type", "application/problem+json"),
            ("Lazaret-Phase", "external-call"),
            ("Lazaret-Diagnostic-Gateway", "eu-1"),
        ];
        answer(500, &headers, body.to_string())
    })
    .await;
    let delivery = Delivery::new(message());
    let failure = server.handler().handle(delivery.clone()).await.unwrap_err().failure();
    assert_eq!((&*failure.error_type, &*failure.message), ("java.lang.IllegalStateException", "no card"));
    assert_eq!(failure.backtrace.as_deref(), Some(trace.trim_end()));
    assert_eq!(failure.phase, Phase::ExternalCall);
    assert_eq!(delivery.metadata()["gateway"], "eu-1");
}

#[tokio::test]
async fn a_redirect_is_not_followed() {
    let target = Server::start(|_| status(204)).await;
    let url = target.url();
    let server = Server::start(move |_| answer(307, &[("location", &url)], "")).await;
    let (failure, verdict) = failed(&server.handler()).await;
    assert_eq!(
        (verdict, failure.reason, failure.status),
        (Some(Verdict::Retry), Reason::HANDLER_ERROR, Some(307))
    );
    assert!(failure.message.contains("redirects are not followed"), "{}", failure.message);
    assert!(target.seen().is_empty());
}

#[tokio::test]
async fn a_long_body_is_cut_and_the_connection_is_used_again() {
    // I7
    let server = Server::start(|_| answer(500, &[], "x".repeat(MESSAGE_LIMIT * 3))).await;
    let handler = server.handler();
    for _ in 0..2 {
        assert_eq!(failed(&handler).await.0.message.len(), MESSAGE_LIMIT);
    }
    assert_eq!(server.connections(), 1);
}

#[tokio::test]
async fn a_body_without_an_end_is_cut_and_its_connection_given_up() {
    // I7
    let (closed, mut was_closed) = tokio::sync::mpsc::unbounded_channel();
    let url = raw(move |mut stream, number| {
        let closed = closed.clone();
        async move {
            read_request(&mut stream).await;
            let code = if number == 0 { 500 } else { 200 };
            let head = format!("HTTP/1.1 {code} X\r\ntransfer-encoding: chunked\r\n\r\n");
            stream.write_all(head.as_bytes()).await.unwrap();
            let chunk = format!("1000\r\n{}\r\n", "y".repeat(4096));
            while stream.write_all(chunk.as_bytes()).await.is_ok() {}
            closed.send(number).unwrap();
        }
    })
    .await;
    let handler = handler(&url);
    let (failure, _) = failed(&handler).await;
    assert_eq!((failure.status, failure.message.len()), (Some(500), MESSAGE_LIMIT));
    call(&handler, message()).await.unwrap();
    assert_eq!((was_closed.recv().await, was_closed.recv().await), (Some(0), Some(1)));
}

#[tokio::test]
async fn a_handler_that_is_not_there_is_unreachable() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    drop(listener);
    let (failure, verdict) = failed(&handler(&url)).await;
    assert_eq!((verdict, failure.reason), (Some(Verdict::Retry), Reason::HANDLER_UNREACHABLE));
    assert!(failure.message.starts_with("failed to connect to 127.0.0.1:"), "{}", failure.message);
    assert!(failure.message.contains("refused"), "{}", failure.message);
}

#[tokio::test]
async fn an_incomplete_answer_is_none_and_the_handler_unreachable() {
    let table: [(&str, &[u8]); 4] = [
        ("nothing", b""),
        ("half a head", b"HTTP/1.1 200 OK\r\ncontent-"),
        ("half a body", b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhello"),
        ("half a chunk", b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhel"),
    ];
    for (what, bytes) in table {
        let (failure, verdict) = failed(&handler(&raw_answer(bytes).await)).await;
        assert_eq!((verdict, failure.reason), (Some(Verdict::Retry), Reason::HANDLER_UNREACHABLE), "{what}");
        assert!(
            failure.message.starts_with("incomplete response from 127.0.0.1:"),
            "{what}: {}",
            failure.message
        );
    }
}

#[tokio::test]
async fn an_answer_that_is_not_http_is_an_invalid_response() {
    let huge = format!("HTTP/1.1 200 OK\r\nx: {}\r\n\r\n", "y".repeat(2_000_000));
    let many = format!("HTTP/1.1 200 OK\r\n{}\r\n", "x: y\r\n".repeat(1000));
    let table: [(&str, Vec<u8>); 6] = [
        ("garbage", b"\x00\x01\x02 hello\r\n\r\n".to_vec()),
        ("another protocol", b"SSH-2.0-OpenSSH_9.6\r\n".to_vec()),
        ("no status", b"HTTP/1.1 ok\r\n\r\n".to_vec()),
        ("a broken chunk", b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n".to_vec()),
        ("a huge head", huge.into_bytes()),
        ("a thousand headers", many.into_bytes()),
    ];
    for (what, bytes) in table {
        let (failure, verdict) = failed(&handler(&raw_answer(bytes).await)).await;
        assert_eq!((verdict, failure.reason), (Some(Verdict::Retry), Reason::INVALID_RESPONSE), "{what}");
        assert!(
            failure.message.starts_with("invalid response from 127.0.0.1:"),
            "{what}: {}",
            failure.message
        );
    }
    let other_version = raw(|mut stream, _| async move {
        stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await.unwrap();
        while stream.read(&mut [0; 1024]).await.unwrap_or(0) > 0 {}
    })
    .await;
    let options = HttpOptions::new(other_version).with_version(HttpVersion::Http2);
    let (failure, _) = failed(&HttpHandler::new(options).unwrap()).await;
    assert_eq!(failure.reason, Reason::INVALID_RESPONSE, "it does not speak HTTP/2: {}", failure.message);
}

#[tokio::test]
async fn a_reset_connection_is_unreachable() {
    let url = raw(|mut stream, _| async move {
        read_request(&mut stream).await;
        // Closing with unread bytes and no time to linger sends a reset.
        stream.set_zero_linger().unwrap();
    })
    .await;
    let (failure, verdict) = failed(&handler(&url)).await;
    assert_eq!((verdict, failure.reason), (Some(Verdict::Retry), Reason::HANDLER_UNREACHABLE));
}

#[tokio::test]
async fn a_failure_whose_body_breaks_off_is_still_that_failure() {
    let url = raw_answer("HTTP/1.1 422 X\r\ncontent-length: 100\r\n\r\nno such order").await;
    let (failure, verdict) = failed(&handler(&url)).await;
    assert_eq!((verdict, failure.reason), (Some(Verdict::DeadLetter), Reason::INVALID_SCHEMA));
    assert!(
        failure.message.starts_with("no such order (the connection closed before the end of the response"),
        "{}",
        failure.message
    );
}

#[tokio::test]
async fn interim_answers_are_passed_over() {
    let url = raw_answer(
        "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\nHTTP/1.1 204 No Content\r\n\r\n",
    )
    .await;
    call(&handler(&url), message()).await.unwrap();
    let (failure, verdict) = failed(&handler(
        &raw_answer("HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n").await,
    ))
    .await;
    assert_eq!(
        (verdict, failure.reason, failure.status),
        (Some(Verdict::Retry), Reason::HANDLER_ERROR, Some(101))
    );
}

#[tokio::test]
async fn the_time_limit_covers_the_head_and_the_body() {
    let beginnings = ["", "HTTP/1.1 200 OK\r\n", "HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhel"];
    for beginning in beginnings {
        let url = raw(move |mut stream, _| async move {
            read_request(&mut stream).await;
            stream.write_all(beginning.as_bytes()).await.unwrap();
            // Wait until the client disconnects.
            let _ = stream.read(&mut [0; 16]).await;
        })
        .await;
        let started = Instant::now();
        let (failure, verdict) = failed(&hasty(&url)).await;
        assert_eq!((verdict, failure.reason), (Some(Verdict::Retry), Reason::TIMEOUT), "{beginning:?}");
        assert!(failure.message.ends_with("within 200ms"), "{}", failure.message);
        assert!(started.elapsed() >= Duration::from_millis(200));
    }
}

#[tokio::test]
async fn the_time_limit_covers_the_connection() {
    // Nothing accepts connections. Once the queue is full, no further connection is established.
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let listener = socket.listen(1).unwrap();
    let address = listener.local_addr().unwrap();
    let mut queue = Vec::new();
    while let Ok(made) = timeout(Duration::from_millis(100), TcpStream::connect(address)).await {
        queue.push(made.unwrap());
        assert!(queue.len() < 100, "the queue is never full");
    }
    let (failure, verdict) = failed(&hasty(&format!("http://{address}/"))).await;
    assert_eq!((verdict, failure.reason), (Some(Verdict::Retry), Reason::TIMEOUT));
}

#[tokio::test]
async fn a_failure_whose_body_is_late_is_still_that_failure() {
    let url = raw(|mut stream, _| async move {
        read_request(&mut stream).await;
        let head = "HTTP/1.1 429 X\r\nretry-after: 7\r\ncontent-length: 100\r\n\r\nslow down";
        stream.write_all(head.as_bytes()).await.unwrap();
        let _ = stream.read(&mut [0; 16]).await;
    })
    .await;
    let options = HttpOptions::new(url).with_timeout(Duration::from_secs(2));
    let (failure, _) = failed(&HttpHandler::new(options).unwrap()).await;
    assert_eq!((failure.reason, failure.retry_after), (Reason::RATE_LIMITED, Some(Duration::from_secs(7))));
    assert_eq!(failure.message, "slow down (the end of the response was not received in time)");
}

#[tokio::test]
async fn a_handler_that_answers_before_it_has_read_all_is_heard() {
    let url = raw(|mut stream, _| async move {
        let _ = stream.read(&mut [0; 1024]).await;
        stream.write_all(b"HTTP/1.1 413 X\r\ncontent-length: 9\r\n\r\ntoo large").await.unwrap();
        // Keeps reading, so that the client is not reset before it has seen the response.
        let mut rest = vec![0; 64 * 1024];
        while stream.read(&mut rest).await.is_ok_and(|count| count > 0) {}
    })
    .await;
    let error = call(&handler(&url), message().with_payload(vec![0; 8_000_000])).await.unwrap_err();
    assert_eq!((error.failure().reason, error.to_string()), (Reason::TOO_LARGE, "too large".into()));
}

#[tokio::test]
async fn an_attempt_that_is_given_up_closes_its_connection() {
    let (closed, mut was_closed) = tokio::sync::mpsc::unbounded_channel();
    let (asked, mut was_asked) = tokio::sync::mpsc::unbounded_channel();
    let url = raw(move |mut stream, _| {
        let (asked, closed) = (asked.clone(), closed.clone());
        async move {
            read_request(&mut stream).await;
            asked.send(()).unwrap();
            let end = stream.read(&mut [0; 16]).await;
            closed.send(matches!(end, Ok(0) | Err(_))).unwrap();
        }
    })
    .await;
    let handler = handler(&url);
    let attempt = tokio::spawn(async move { call(&handler, message()).await });
    was_asked.recv().await.unwrap();
    attempt.abort();
    assert_eq!(was_closed.recv().await, Some(true));
    eventually("the attempt is over", || attempt.is_finished()).await;
}
