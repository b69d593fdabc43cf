//! Replays through a handler over HTTP: its verdicts count as on a first attempt.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;

use lazaret_core::LetterState;
use rustix::process::Signal;

use crate::support::{Folder, ask, get, wait_for};

/// Starts a handler that refuses every message, answers its replay by its id, and lives as long as the test.
fn handler() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            thread::spawn(move || answer(stream));
        }
    });
    url
}

fn answer(mut stream: TcpStream) {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let mut head = String::new();
    while reader.read_line(&mut head).unwrap_or(0) > 2 {}
    let head = head.to_ascii_lowercase();
    let header = |name: &str| head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
    let length = header("content-length").and_then(|length| length.parse().ok()).unwrap_or(0);
    reader.take(length).read_to_end(&mut Vec::new()).unwrap();
    let answer = match (header("lazaret-replay"), header("ce-id")) {
        (None, _) => "422 No\r\n",
        (_, Some("known")) => "208 Known\r\n",
        _ => "500 No\r\nlazaret-verdict: park\r\n",
    };
    let answer = format!("HTTP/1.1 {answer}content-length: 0\r\nconnection: close\r\n\r\n");
    stream.write_all(answer.as_bytes()).unwrap();
}

#[test]
fn what_a_handler_answers_to_a_replay_counts_as_on_a_first_attempt() {
    // I11
    let folder = Folder::new();
    let handler = handler();
    folder.write(
        "lazaret.yaml",
        &format!(
            "
listen: 127.0.0.1:0
store: sqlite:lazaret.db
consumers:
  shop:
    source: {{ inbox: {{}} }}
    handler: {{ http: {{ url: '{handler}' }} }}
"
        ),
    );
    let mut daemon = folder.start(&["run"]);
    let address = daemon.address();
    for id in ["known", "other"] {
        let headers = format!("lazaret-id: {id}\r\nlazaret-key: {id}\r\ncontent-type: application/json\r\n");
        assert_eq!(ask(&address, "POST", "/v1/inbox/shop", &headers, "{}").0, 202);
    }
    wait_for("the letters", || get(&address, "/v1/status").1.contains("\"dead\":2").then_some(()));
    let begin =
        "{\"action\": \"retry\", \"query\": \"\", \"all\": true, \"reason\": \"mended\", \"stop-at\": 1}";
    let (status, body) = ask(&address, "POST", "/v1/operations", "content-type: application/json\r\n", begin);
    assert_eq!(status, 201, "{body}");
    let done = wait_for("the operation", || {
        let (_, body) = get(&address, "/v1/operations");
        body.contains("\"state\":\"done\"").then_some(body)
    });
    assert!(done.contains("\"ok\":1") && done.contains("\"failed-again\":1"), "{done}");
    daemon.signal(Signal::TERM);
    assert_eq!(daemon.wait().code(), Some(0));
    assert_eq!(folder.open_letters(), [("other".to_owned(), LetterState::Parked)]);
    assert!(folder.acts().contains(&"resolve".to_owned()), "{:?}", folder.acts());
}
