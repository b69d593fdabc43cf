//! The API of a daemon: its inboxes and its status; and what is refused before anything starts.

use rustix::process::Signal;

use crate::support::{Folder, WORKER, ask, attempts, get, wait_for};

const CONFIG: &str = "
listen: 127.0.0.1:0
store: sqlite:lazaret.db
consumers:
  shop:
    source: { inbox: {} }
    handler: { command: { program: [python3, handler.py], mode: lines, workers: 1 } }
";

fn folder(config: &str) -> Folder {
    let folder = Folder::new();
    folder.write("lazaret.yaml", config);
    folder.write("handler.py", WORKER);
    folder
}

#[test]
fn what_is_posted_to_an_inbox_is_handled_and_known_later() {
    // I8
    let folder = folder(CONFIG);
    let mut daemon = folder.start(&["run"]);
    let address = daemon.address();
    let post = |n: usize| {
        let headers = format!("lazaret-id: e-{n}\r\nlazaret-key: k\r\ncontent-type: application/json\r\n");
        let body = format!("{{\"n\": {n}, \"kind\": \"fine\"}}");
        ask(&address, "POST", "/v1/inbox/shop", &headers, &body).0
    };
    assert_eq!((post(0), post(1), post(0)), (202, 202, 200));
    wait_for("both messages", || (attempts(&folder).len() == 2).then_some(()));
    let (status, body) = get(&address, "/v1/status");
    assert_eq!(status, 200);
    assert!(body.contains("\"name\":\"shop\"") && body.contains("\"state\":\"running\""), "{body}");
    daemon.signal(Signal::TERM);
    assert_eq!(daemon.wait().code(), Some(0));
    // An inbox is read to its end, too.
    assert_eq!(folder.run(&["run", "--until-idle"]), 0);
    assert_eq!(attempts(&folder).len(), 2);
}

#[test]
fn what_this_build_cannot_do_is_refused_before_anything_starts() {
    let cases = [
        ("alerts: { webhooks: [{ url: 'http://127.0.0.1:1/' }] }", "alerts by webhook"),
        ("telemetry: { otlp-endpoint: 'http://127.0.0.1:4318' }", "traces by OTLP"),
        ("auth: { tokens-file: tokens.yaml }", "tokens in a file of their own"),
    ];
    for (line, words) in cases {
        let folder = folder(&format!("{CONFIG}{line}\n"));
        for arguments in [&["run"][..], &["check"], &["run", "--check"]] {
            assert_eq!(folder.run(arguments), 1);
        }
        let said = folder.read("stderr.log");
        assert_eq!(said.matches(words).count(), 3, "{said}");
        assert!(!folder.path("lazaret.db").exists());
    }
}

#[test]
fn a_file_that_is_fine_is_said_to_be_fine_and_nothing_is_touched() {
    let folder = folder(CONFIG);
    assert_eq!(folder.run(&["check"]), 0);
    assert!(folder.read("stderr.log").contains("lazaret.yaml is fine: 1 consumer"));
    assert!(!folder.path("lazaret.db").exists() && !folder.path("lazaret.flight").exists());
}
