//! The requests that an HTTP handler receives.

use std::sync::Arc;

use bytes::Bytes;
use lazaret_core::handler::{Delivery, Handle};
use lazaret_core::{Letter, LetterId, Message, Operation, Position, QueueName, Reason, Sequencing, Verdict};
use lazaret_handlers::{
    Error, HEADER_BYTES_LIMIT, HEADERS_LIMIT, HttpHandler, HttpOptions, NAME_BYTES_LIMIT,
};

use crate::support::{Seen, Server, call, message, status};

const TRACE: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

/// Returns the request that a server receives for this message.
async fn seen(message: Message) -> Seen {
    let server = Server::start(|_| status(204)).await;
    call(&server.handler(), message).await.unwrap();
    server.only()
}

#[tokio::test]
async fn a_message_is_posted_with_all_that_is_known_of_it() {
    let mut message =
        message().with_key("order-7").with_type("OrderPlaced").with_header("tenant", "acme corp");
    message.timestamp = Some("2026-01-01T00:00:00Z".parse().unwrap());
    message.content_type = Some("application/json".into());
    message.correlation = Some("c-1".into());
    message.operation = Some(Operation::Insert);
    let seen = seen(message).await;
    assert_eq!((&*seen.method, &*seen.path, &*seen.body), ("POST", "/events", &b"{}"[..]));
    let expected = [
        ("content-type", "application/json"),
        ("content-length", "2"),
        ("ce-specversion", "1.0"),
        ("ce-id", "evt-1"),
        ("ce-source", "orders"),
        ("ce-type", "OrderPlaced"),
        ("ce-time", "2026-01-01T00:00:00Z"),
        ("ce-partitionkey", "order-7"),
        ("lazaret-consumer", "shop"),
        ("lazaret-attempt", "1"),
        ("lazaret-sequence", "order-7"),
        ("lazaret-position", "3:41"),
        ("lazaret-header-tenant", "acme corp"),
        ("lazaret-correlation", "c-1"),
        ("lazaret-operation", "insert"),
    ];
    for (name, value) in expected {
        assert_eq!(seen.header(name), value, "{name}");
    }
    for name in
        ["lazaret-letter", "lazaret-replay", "lazaret-replay-attempt", "traceparent", "lazaret-tombstone"]
    {
        assert!(!seen.has(name), "{name}");
    }
}

#[tokio::test]
async fn a_message_of_which_little_is_known_says_so() {
    let seen = seen(message()).await;
    assert_eq!(seen.header("content-type"), "application/octet-stream");
    assert_eq!(seen.header("ce-type"), "lazaret.message");
    assert_eq!(seen.header("lazaret-sequence"), "~m:evt-1");
    assert!(!seen.has("ce-time") && !seen.has("ce-partitionkey"));
}

#[tokio::test]
async fn null_is_told_from_empty() {
    // I5
    let tombstone = Message { payload: None, ..message() };
    let told = seen(tombstone).await;
    assert_eq!((told.header("lazaret-tombstone"), &*told.body), ("true", &b""[..]));
    let told = seen(message().with_payload("").with_key("")).await;
    assert_eq!((told.header("ce-partitionkey"), told.has("lazaret-tombstone")), ("", false));
}

#[tokio::test]
async fn the_payload_is_passed_on_byte_for_byte() {
    // I5
    let bytes: Vec<u8> = (0..300_000_u32).map(|n| (n % 251) as u8).collect();
    assert_eq!(seen(message().with_payload(bytes.clone())).await.body, bytes);
}

#[tokio::test]
async fn later_attempts_are_counted_and_a_replay_names_its_letter() {
    let server = Server::start(|_| status(204)).await;
    let handler = server.handler();
    let delivery = Delivery::new(message());
    delivery.begin_attempt(3);
    handler.handle(delivery).await.unwrap();
    let queue = QueueName::of("shop", "shop");
    let mut letter =
        Letter::new(queue.clone(), "k".into(), message().into(), lazaret_core::Timestamp::UNIX_EPOCH);
    (letter.attempts, letter.replay_attempts) = (5, 1);
    let letter = Arc::new(letter);
    handler.handle(Delivery::for_letter(letter.clone(), None)).await.unwrap();
    handler.handle(Delivery::for_letter(letter, Some("op 7".to_owned()))).await.unwrap();
    let [later, retry, replay] = &server.seen()[..] else { panic!() };
    assert_eq!(later.header("lazaret-attempt"), "3");
    assert_eq!((retry.header("lazaret-attempt"), retry.has("lazaret-letter")), ("6", false));
    assert_eq!(replay.header("lazaret-letter"), LetterId::of(&queue, &"evt-1".into()).to_string());
    assert_eq!((replay.header("lazaret-replay"), replay.header("lazaret-replay-attempt")), ("op 7", "2"));
}

#[tokio::test]
async fn the_sequence_is_that_of_the_consumer() {
    let server = Server::start(|_| status(204)).await;
    let handler = HttpHandler::new(server.options().with_sequencing(Sequencing::Partition)).unwrap();
    call(&handler, message().with_key("k")).await.unwrap();
    assert_eq!(server.only().header("lazaret-sequence"), "~p:orders/3");
}

#[tokio::test]
async fn a_trace_is_passed_through_and_what_only_looks_like_one_is_not() {
    let traced = message().with_header("traceparent", TRACE).with_header("tracestate", "a=b");
    let told = seen(traced.clone().with_header("traceparent", "second")).await;
    assert_eq!((told.header("traceparent"), told.header("tracestate")), (TRACE, "a=b"));
    assert_eq!(told.header("lazaret-header-traceparent"), "second");
    assert!(!told.has("lazaret-header-tracestate"));
    let told =
        seen(message().with_header("traceparent", "00-nonsense").with_header("tracestate", "a=b")).await;
    assert!(!told.has("traceparent") && !told.has("tracestate"));
    assert_eq!(told.header("lazaret-header-traceparent"), "00-nonsense");
    assert_eq!(told.header("lazaret-header-tracestate"), "a=b");
}

#[tokio::test]
async fn nothing_in_a_message_can_break_out_of_its_header() {
    let hostile = "a\r\nlazaret-verdict: skip\r\n\r\nGET / \0 é%";
    let encoded = "a%0D%0Alazaret-verdict:%20skip%0D%0A%0D%0AGET%20/%20%00%20%C3%A9%25";
    let plain = "a%0D%0Alazaret-verdict: skip%0D%0A%0D%0AGET / %00 %C3%A9%25";
    let mut message = Message::new(hostile, hostile, Position::new(0, 0))
        .with_payload("x")
        .with_key(hostile)
        .with_type(hostile)
        .with_header(hostile, hostile)
        .with_header("host", "evil")
        .with_header("Content-Length", "7")
        .with_header("transfer-encoding", "chunked")
        .with_header("ce-id", "forged");
    message.content_type = Some(hostile.into());
    message.correlation = Some(hostile.into());
    let server = Server::start(|_| status(204)).await;
    let handler = HttpHandler::new(server.options().for_consumer(hostile)).unwrap();
    call(&handler, message).await.unwrap();
    let seen = server.only();
    for name in ["ce-id", "ce-source", "ce-type", "ce-partitionkey"] {
        assert_eq!(seen.header(name), encoded, "{name}");
        assert_eq!(seen.headers.get_all(name).iter().count(), 1, "{name}");
    }
    assert_eq!(seen.header("lazaret-correlation"), plain);
    assert_eq!(seen.header("lazaret-consumer"), plain);
    assert_eq!(seen.header("content-type"), "application/octet-stream");
    assert_eq!(seen.header("host"), server.address.to_string());
    assert_eq!((seen.header("content-length"), &*seen.body), ("1", &b"x"[..]));
    assert!(!seen.has("lazaret-verdict") && !seen.has("transfer-encoding"));
    assert_eq!(seen.header("lazaret-header-ce-id"), "forged");
    let name = "lazaret-header-a%0d%0alazaret-verdict%3a%20skip%0d%0a%0d%0aget%20%2f%20%00%20%c3%a9%25";
    assert_eq!(seen.header(name), plain);
    assert_eq!(server.connections(), 1);
}

#[tokio::test]
async fn repeated_headers_keep_their_order_and_binary_ones_their_bytes() {
    // I5
    let message = message().with_header("a", "1").with_header("b", &b"\xff\x00"[..]).with_header("A", " 2 ");
    let seen = seen(message).await;
    let values: Vec<_> =
        seen.headers.get_all("lazaret-header-a").iter().map(|v| v.to_str().unwrap()).collect();
    assert_eq!(values, ["1", "%202%20"]);
    assert_eq!(seen.header("lazaret-header-b"), "%FF%00");
    assert!(!seen.has("lazaret-headers-left-out"));
}

#[tokio::test]
async fn headers_beyond_the_limits_are_left_out_and_counted() {
    // I7
    let many = (0..HEADERS_LIMIT + 5).fold(message(), |m, n| m.with_header(format!("h{n}"), "v"));
    let told = seen(many).await;
    assert_eq!(told.header("lazaret-headers-left-out"), "5");
    assert!(told.has("lazaret-header-h0") && !told.has("lazaret-header-h64"));
    let large = message()
        .with_header("large", Bytes::from(vec![b'x'; HEADER_BYTES_LIMIT]))
        .with_header("", "nameless")
        .with_header("n".repeat(70_000), "a name that no header may have")
        .with_header("small", "v");
    let told = seen(large).await;
    assert_eq!((told.header("lazaret-headers-left-out"), told.header("lazaret-header-small")), ("3", "v"));
}

#[tokio::test]
async fn a_message_whose_names_do_not_fit_is_a_dead_letter_and_nobody_is_called() {
    // I7
    let server = Server::start(|_| status(204)).await;
    let error = call(&server.handler(), message().with_key(vec![0; NAME_BYTES_LIMIT / 2])).await.unwrap_err();
    assert_eq!(error.suggested_verdict(), Some(Verdict::DeadLetter));
    assert_eq!(error.failure().reason, Reason::TOO_LARGE);
    assert!(server.seen().is_empty());
}

#[tokio::test]
async fn configured_headers_are_sent_and_never_shown() {
    let server = Server::start(|_| status(204)).await;
    let options = server
        .options()
        .with_header("X-Api-Key", "s3cret")
        .with_bearer("t0ken")
        .with_header("content-type", "application/json");
    let handler = HttpHandler::new(options.clone()).unwrap();
    call(&handler, message()).await.unwrap();
    let seen = server.only();
    assert_eq!((seen.header("x-api-key"), seen.header("authorization")), ("s3cret", "Bearer t0ken"));
    assert_eq!(seen.header("content-type"), "application/json", "for messages that do not say their own");
    let shown = format!("{options:?} {handler:?}");
    assert!(!shown.contains("s3cret") && !shown.contains("t0ken"), "{shown}");
    assert!(shown.contains("X-Api-Key"), "{shown}");
}

#[tokio::test]
async fn a_password_in_the_url_is_sent_as_basic_authentication_and_never_shown() {
    let server = Server::start(|_| status(500)).await;
    let url = format!("http://ada:p%40ss@{}/events?token=s3cret#part", server.address);
    let options = HttpOptions::new(url);
    let handler = HttpHandler::new(options.clone()).unwrap();
    let error = call(&handler, message()).await.unwrap_err();
    let seen = server.only();
    assert_eq!(seen.header("authorization"), "Basic YWRhOnBAc3M=");
    assert_eq!(seen.path, "/events?token=s3cret");
    let gone = HttpHandler::new(HttpOptions::new("http://ada:p%40ss@127.0.0.1:1/?token=s3cret")).unwrap();
    let refused = call(&gone, message()).await.unwrap_err();
    let shown = format!("{options:?} {handler:?} {error:?} {refused:?}");
    assert!(!shown.contains("p%40ss") && !shown.contains("p@ss") && !shown.contains("s3cret"), "{shown}");
}

#[test]
fn invalid_options_are_rejected_without_showing_values() {
    let options = || HttpOptions::new("http://127.0.0.1:1/");
    let table = [
        (HttpOptions::new("127.0.0.1:80"), "invalid URL"),
        (HttpOptions::new("ftp://host/"), "the scheme must be http or https, not \"ftp\""),
        (options().with_timeout(std::time::Duration::ZERO), "the timeout must not be zero"),
        (options().with_max_connections(0), "the number of connections must not be zero"),
        (options().with_header("Lazaret-Id", "s3cret"), "reserved for Lazaret"),
        (options().with_header("ce-id", "s3cret"), "reserved for Lazaret"),
        (options().with_header("Host", "s3cret"), "reserved for Lazaret"),
        (options().with_header("a b", "s3cret"), "invalid header name"),
        (options().with_header("x", "s3cret\r\n"), "the value contains control characters"),
        (options().with_ca_file("/nowhere/ca.pem"), "failed to load certificates from /nowhere/ca.pem"),
        (options().with_ca_pem("s3cret"), "it contains no certificate"),
    ];
    for (options, expected) in table {
        let error: Error = HttpHandler::new(options).unwrap_err();
        let text = format!("{error}");
        assert!(text.contains(expected), "{text}");
        assert!(!format!("{error:?}").contains("s3cret"), "{error:?}");
    }
}
