//! Daemons that drop connections, stop and restart, simulated response by response.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::thread::JoinHandle;

use serde_json::{Value, json};

use crate::support::{ada, finish, lazaret};

/// What a simulated daemon does with one connection.
enum Does {
    Answers(Value),
    BreaksOff,
}

/// Serves one request per connection and step; returns the requests with lower-case headers.
fn play(listener: TcpListener, steps: Vec<Does>) -> JoinHandle<Vec<String>> {
    std::thread::spawn(move || {
        let mut requests = Vec::new();
        for step in steps {
            let (mut stream, _) = listener.accept().unwrap();
            requests.push(read_request(&stream));
            if let Does::Answers(value) = step {
                let body = value.to_string();
                let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close";
                write!(stream, "{head}\r\ncontent-length: {}\r\n\r\n{body}", body.len()).unwrap();
            }
        }
        requests
    })
}

fn read_request(stream: &std::net::TcpStream) -> String {
    let mut reader = BufReader::new(stream);
    let (mut text, mut length) = (String::new(), 0);
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        let line = line.to_lowercase();
        if let Some(value) = line.strip_prefix("content-length:") {
            length = value.trim().parse().unwrap();
        }
        text.push_str(&line);
        if line.trim().is_empty() {
            break;
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).unwrap();
    text + &String::from_utf8(body).unwrap()
}

fn listen() -> (TcpListener, SocketAddr, String) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address, format!("http://{address}"))
}

fn header<'a>(request: &'a str, name: &str) -> &'a str {
    let found = request.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
    found.unwrap_or_else(|| panic!("{name} in {request}"))
}

fn operation(state: &str) -> Value {
    json!({
        "id": "op_1", "state": state, "sent": 2, "ok": 2, "failed-again": 0, "skipped": 0, "letters": 2, "plan": "p_1",
        "action": "retry", "note": null, "stage": 0, "rate": null, "ramp": [], "stop-at": null, "start-at": null,
        "needs-approval": false, "by": {"who": "ada", "via": "cli", "why": "x"}, "approved-by": null,
        "created-at": "1970-01-01T00:00:00Z", "updated-at": "1970-01-01T00:00:00Z", "ended-at": null,
    })
}

#[test]
fn a_change_without_a_response_is_sent_again_with_the_same_key() {
    let (listener, _, url) = listen();
    let played = play(listener, vec![Does::BreaksOff, Does::Answers(json!({"resumed": true}))]);
    let ran =
        finish(lazaret(&["--url", &url, "resume", "orders", "--reason", "x", "-o", "json"]), "").ends(0);
    assert_eq!(ran.json(), json!({"resumed": true}));
    let requests = played.join().unwrap();
    assert_eq!(header(&requests[0], "idempotency-key"), header(&requests[1], "idempotency-key"));
    assert!(requests[0].starts_with("post /v1/consumers/orders/resume"), "{}", requests[0]);
    assert_eq!(
        (header(&requests[0], "lazaret-via"), header(&requests[0], "lazaret-actor")),
        ("cli", &*ada())
    );
}

#[test]
fn a_change_without_any_response_may_have_been_applied() {
    let (listener, _, url) = listen();
    let played = play(listener, vec![Does::BreaksOff, Does::BreaksOff, Does::BreaksOff]);
    let ran = finish(lazaret(&["--url", &url, "pause", "orders", "--reason", "x"]), "").ends(1);
    assert!(
        ran.err.contains("the change may have been applied") && ran.err.contains("lazaret status"),
        "{}",
        ran.err
    );
    played.join().unwrap();
}

#[test]
fn a_restarted_daemon_is_waited_for() {
    let (listener, address, url) = listen();
    let restarted = std::thread::spawn(move || {
        // The status that it is asked for second, which would tell of a pause, is of no use.
        let steps = vec![Does::Answers(operation("running")), Does::Answers(json!({})), Does::BreaksOff];
        play(listener, steps).join().unwrap();
        // The port is closed briefly, and then another server listens there.
        let listener = TcpListener::bind(address).unwrap();
        play(listener, vec![Does::Answers(operation("running")), Does::Answers(operation("done"))])
            .join()
            .unwrap();
    });
    let ran = finish(lazaret(&["--url", &url, "op", "watch", "op_1", "-o", "json"]), "").ends(0);
    assert_eq!(ran.last()["state"], "done");
    assert_eq!(ran.err.matches("retrying until the daemon is back").count(), 1, "{}", ran.err);
    restarted.join().unwrap();
}

#[test]
fn a_truncated_list_is_an_error() {
    let (listener, _, url) = listen();
    let server = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        read_request(&stream);
        let head =
            "HTTP/1.1 200 OK\r\ncontent-type: application/x-ndjson\r\ntransfer-encoding: chunked\r\n\r\n";
        // One line, and then the connection closes before the end of the response.
        write!(stream, "{head}9\r\n{{\"id\":\"a\"\r\n1\r\n}}\r\n1\r\n\n\r\n").unwrap();
    });
    let ran = finish(lazaret(&["--url", &url, "export"]), "").ends(1);
    assert_eq!(ran.out, "{\"id\":\"a\"}\n");
    assert!(ran.err.contains("error: ") && !ran.err.contains("written"), "{}", ran.err);
    server.join().unwrap();
}

#[test]
fn an_unexpected_response_is_an_error() {
    let (listener, _, url) = listen();
    let played = play(listener, vec![Does::Answers(json!({"consumers": 7}))]);
    let ran = finish(lazaret(&["--url", &url, "status"]), "").ends(1);
    assert!(ran.err.contains("invalid response from /v1/status"), "{}", ran.err);
    played.join().unwrap();
}
