//! What the doctor finds, and that it changes nothing.

use std::net::TcpListener;
use std::process::Command;

use crate::support::{Folder, event};

/// What it says, and its exit code.
fn examine(folder: &Folder) -> (String, Option<i32>) {
    let output = Command::new(env!("CARGO_BIN_EXE_lazaret-daemon"))
        .arg("doctor")
        .current_dir(folder.path("."))
        .output()
        .unwrap();
    (String::from_utf8(output.stdout).unwrap(), output.status.code())
}

#[track_caller]
fn assert_says(text: &str, lines: &[&str]) {
    for line in lines {
        assert!(text.contains(line), "{line:?} is not in:\n{text}");
    }
}

fn config(port: u16, listen: u16) -> String {
    format!(
        "
listen: 127.0.0.1:{listen}
store: sqlite:lazaret.db
consumers:
  shop:
    source: {{ file: {{ path: events.jsonl }} }}
    handler: {{ http: {{ url: 'http://127.0.0.1:{port}/' }} }}
  mail:
    source: {{ inbox: {{}} }}
    handler: {{ command: {{ program: [no-such-program-anywhere] }} }}
"
    )
}

#[test]
fn what_is_wrong_is_found_with_what_to_do_and_nothing_is_made() {
    let folder = Folder::new();
    // Taken, so that the address is in use; and one that nobody listens on.
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    folder.write("lazaret.yaml", &config(free, taken.local_addr().unwrap().port()));
    let (text, code) = examine(&folder);
    assert_eq!(code, Some(1), "{text}");
    assert_says(
        &text,
        &[
            "ok    configuration: lazaret.yaml is fine",
            "ok    store: . can be written to",
            "MiB are free",
            "is in use by another program\n      stop the program",
            "ok    flight recorder: lazaret.flight is not there yet and can be made",
            "FAIL  shop handler: 127.0.0.1:",
            "start it, or correct `url`",
            "FAIL  shop source: events.jsonl",
            "FAIL  mail handler: there is no program \"no-such-program-anywhere\"",
            "ok    mail source",
        ],
    );
    assert!(!folder.path("lazaret.db").exists() && !folder.path("lazaret.flight").exists());
}

#[test]
fn what_is_well_is_said_to_be_well() {
    let folder = Folder::new();
    let handler = TcpListener::bind("127.0.0.1:0").unwrap();
    let text = config(handler.local_addr().unwrap().port(), 0).replace("no-such-program-anywhere", "true");
    folder.write("lazaret.yaml", &text);
    folder.write("events.jsonl", &event(0, "k", "fine"));
    let (text, code) = examine(&folder);
    assert_eq!(code, Some(0), "{text}");
    assert!(!text.contains("FAIL"), "{text}");
    assert!(handler.set_nonblocking(true).is_ok());
    let (mut stream, _) = handler.accept().expect("it was connected to");
    let mut said = Vec::new();
    std::io::Read::read_to_end(&mut stream, &mut said).unwrap();
    assert!(said.is_empty(), "and nothing was sent");
}

#[test]
fn a_lazaret_that_runs_already_is_recognised_and_its_store_can_be_looked_at() {
    let folder = Folder::new();
    folder.write("lazaret.yaml", "listen: 127.0.0.1:0\nconsumers: {}\n");
    let mut daemon = folder.start(&["run"]);
    let address = daemon.address();
    folder.write("lazaret.yaml", &format!("listen: {address}\nconsumers: {{}}\n"));
    let (text, code) = examine(&folder);
    assert_says(&text, &["a Lazaret runs at", "ok    store: lazaret.db can be used; its format is"]);
    assert_eq!(code, Some(0), "{text}");
}

#[test]
fn a_store_that_is_none_and_a_file_with_mistakes_are_found() {
    let folder = Folder::new();
    folder.write("lazaret.yaml", "listen: 127.0.0.1:0\nconsumers: {}\n");
    folder.write("lazaret.db", &"this is not a database. ".repeat(10));
    let (text, code) = examine(&folder);
    assert_says(&text, &["FAIL  store: stored data is corrupt", "lazaret.db", "name the right file"]);
    assert_eq!(code, Some(1));
    folder.write("lazaret.yaml", "consumers: 5\n");
    let (text, code) = examine(&folder);
    assert_says(&text, &["FAIL  configuration: error[LZ0122]", "nothing else was looked at"]);
    assert_eq!(code, Some(1));
}
