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
    let mut cases = Vec::new();
    if cfg!(not(feature = "postgres")) {
        cases.push(("sqlite:lazaret.db", "postgres://localhost/x", "the store `postgres`"));
    }
    if cfg!(not(feature = "mongodb")) {
        cases.push(("sqlite:lazaret.db", "mongodb://localhost/x", "the store `mongodb`"));
    }
    // No build has it yet.
    cases.push(("sqlite:lazaret.db", "'memory:'", "the source `inbox` with a store in memory"));
    if cfg!(not(feature = "otlp")) {
        let traced = "telemetry: { otlp-endpoint: 'http://127.0.0.1:4318' }\nconsumers:\n";
        cases.push(("consumers:\n", traced, "traces by OTLP"));
    }
    if cfg!(feature = "kafka") {
        // Without a broker: the client alone knows.
        let source =
            "{ kafka: { brokers: '127.0.0.1:1', topics: [a], properties: { max.poll.records: 5 } } }";
        cases.push(("{ inbox: {} }", source, "unknown Kafka client property `max.poll.records`"));
    }
    for (line, other, words) in cases {
        let folder = folder(&CONFIG.replace(line, other));
        for arguments in [&["run"][..], &["check"], &["run", "--check"]] {
            assert_eq!(folder.run(arguments), 1);
        }
        let said = folder.read("stderr.log");
        assert_eq!(said.matches(words).count(), 3, "{said}");
        assert!(!folder.path("lazaret.db").exists());
    }
}

#[test]
fn what_the_configuration_says_of_replays_holds_for_those_begun_over_the_api() {
    let folder = folder(&format!("{CONFIG}    replay: {{ approval: second-person, rate: 30/m }}\n"));
    let mut daemon = folder.start(&["run"]);
    let address = daemon.address();
    let headers = "lazaret-key: k\r\ncontent-type: application/json\r\n";
    ask(&address, "POST", "/v1/inbox/shop", headers, "{\"n\": 0, \"kind\": \"poison\"}");
    wait_for("the letter", || get(&address, "/v1/status").1.contains("\"dead\":1").then_some(()));
    let begin = "{\"action\": \"retry\", \"query\": \"\", \"all\": true, \"reason\": \"mended\"}";
    let (status, body) = ask(&address, "POST", "/v1/operations", "content-type: application/json\r\n", begin);
    assert_eq!(status, 201, "{body}");
    assert!(body.contains("\"state\":\"awaiting-approval\"") && body.contains("\"rate\":0.5"), "{body}");
}

#[test]
fn an_import_before_a_consumer_runs_needs_its_approval_too() {
    let folder = folder(CONFIG);
    let mut daemon = folder.start(&["run"]);
    let address = daemon.address();
    let json = "content-type: application/json\r\n";
    ask(&address, "POST", "/v1/inbox/shop", json, "{\"n\": 0, \"kind\": \"poison\"}");
    wait_for("the letter", || get(&address, "/v1/status").1.contains("\"dead\":1").then_some(()));
    let (_, export) = ask(&address, "GET", "/v1/letters?view=full", "accept: application/x-ndjson\r\n", "");
    let letter = export.lines().find(|line| line.starts_with('{')).unwrap();
    let runs = letter.replace("\"state\":\"dead\"", "\"state\":\"retrying\"");
    assert_ne!(runs, letter);
    daemon.signal(Signal::TERM);
    assert_eq!(daemon.wait().code(), Some(0));
    // Now the consumer waits for its file, and does not run yet.
    let waits = CONFIG.replace("{ inbox: {} }", "{ file: { path: late.jsonl, follow: true } }");
    folder.write("lazaret.yaml", &format!("{waits}    replay: {{ approval: second-person }}\n"));
    // The address of the next one, not of the one before.
    folder.write("stderr.log", "");
    let mut daemon = folder.start(&["run"]);
    let path = "/v1/letters/import?reason=moved";
    let (status, body) =
        ask(&daemon.address(), "POST", path, "content-type: application/x-ndjson\r\n", &runs);
    assert_eq!(status, 200, "{body}");
    assert!(body.contains("\"taken\":0") && body.contains("requires a second person"), "{body}");
    assert_eq!(attempts(&folder).len(), 1);
}

#[test]
fn with_tokens_in_a_file_nobody_gets_in_without_one() {
    let folder = folder(&format!("{CONFIG}auth: {{ tokens-file: tokens.yaml }}\n"));
    assert_eq!(folder.run(&["run"]), 1, "without the file nothing starts");
    // The hash of `lz_example`.
    let hash = "35006e23a9f72d7d9470825a38ec4d981a3167dc313a46c7b291dbb90632af0c";
    folder.write(
        "tokens.yaml",
        &format!("auth:\n  tokens:\n    - {{ name: ada, hash: 'sha256:{hash}', scopes: [read] }}\n"),
    );
    let mut daemon = folder.start(&["run"]);
    let address = daemon.address();
    assert_eq!(get(&address, "/v1/status").0, 401);
    let with =
        |token: &str| ask(&address, "GET", "/v1/status", &format!("authorization: Bearer {token}\r\n"), "").0;
    assert_eq!((with("lz_example"), with("lz_other")), (200, 401));
}

#[test]
fn a_tokens_file_without_tokens_lets_nobody_in() {
    for file in ["", "auth: { tokens: [] }\n", "# not yet\n"] {
        let folder = folder(&format!("{CONFIG}auth: {{ tokens-file: tokens.yaml }}\n"));
        folder.write("tokens.yaml", file);
        assert_eq!(folder.run(&["run"]), 1, "{file:?}");
        let said = folder.read("stderr.log");
        assert!(said.contains("tokens.yaml") && said.contains("no tokens"), "{said}");
    }
}

#[test]
fn tokens_are_reloaded_and_an_invalid_file_keeps_the_old_ones() {
    let folder = folder(&format!("{CONFIG}auth: {{ tokens-file: tokens.yaml }}\n"));
    // The hashes of `lz_example` and `lz_other`.
    let example = "35006e23a9f72d7d9470825a38ec4d981a3167dc313a46c7b291dbb90632af0c";
    let other = "fd006dce36dfc2c8d045a882e4f38dc5463973b1ddc09a507d73de5e79a033da";
    let tokens = |hash: &str| {
        format!("auth:\n  tokens:\n    - {{ name: ada, hash: 'sha256:{hash}', scopes: [read] }}\n")
    };
    folder.write("tokens.yaml", &tokens(example));
    let mut daemon = folder.start(&["run"]);
    let address = daemon.address();
    let with =
        |token: &str| ask(&address, "GET", "/v1/status", &format!("authorization: Bearer {token}\r\n"), "").0;
    for (broken, times) in ["", "auth: 5\n"].into_iter().zip(1..) {
        folder.write("tokens.yaml", broken);
        daemon.signal(Signal::HUP);
        daemon.logs("the previous tokens stay active", times);
        assert_eq!((with("lz_example"), with("lz_other")), (200, 401), "{broken:?}");
    }
    folder.write("tokens.yaml", &tokens(other));
    daemon.signal(Signal::HUP);
    daemon.logs("tokens reloaded", 1);
    assert_eq!((with("lz_example"), with("lz_other")), (401, 200));
}

#[test]
fn a_unix_socket_serves_the_api_to_its_user_only() {
    use std::io::{Read, Write};
    use std::os::unix::fs::PermissionsExt;
    let folder = folder(&format!("{CONFIG}socket: api.sock\n"));
    let path = folder.path("api.sock");
    for starts in 1..3 {
        // Killed, it leaves the socket behind, and the next one replaces it.
        let mut daemon = folder.start(&["run"]);
        daemon.logs("listening", starts);
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let mut stream = std::os::unix::net::UnixStream::connect(&path).unwrap();
        stream.write_all(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        daemon.signal(Signal::KILL);
        daemon.wait();
    }
}

#[test]
fn a_certificate_that_cannot_be_read_is_a_start_error() {
    let folder = folder(&format!("{CONFIG}tls: {{ certificate: tls.crt, key: tls.key }}\n"));
    assert_eq!(folder.run(&["run"]), 1);
    folder.write("tls.crt", "no certificate");
    folder.write("tls.key", "no key");
    assert_eq!(folder.run(&["run"]), 1);
    assert_eq!(folder.read("stderr.log").matches("invalid TLS file tls.crt").count(), 2);
}

#[test]
fn the_api_speaks_tls_with_a_certificate() {
    use std::io::{Read, Write};
    let tls = "tls: { certificate: tls.crt, key: tls.key, hsts: 30d }\nhosts: [lazaret.example.com]\n";
    let folder = folder(&format!("{CONFIG}{tls}"));
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    folder.write("tls.crt", &made.cert.pem());
    folder.write("tls.key", &made.signing_key.serialize_pem());
    let mut daemon = folder.start(&["run"]);
    let address = daemon.address();
    let mut roots = rustls::RootCertStore::empty();
    roots.add(made.cert.der().clone()).unwrap();
    let provider = std::sync::Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let config = std::sync::Arc::new(config);
    for (host, is_strict) in [("localhost", false), ("lazaret.example.com", true)] {
        let name = "localhost".try_into().unwrap();
        let connection = rustls::ClientConnection::new(config.clone(), name).unwrap();
        let socket = std::net::TcpStream::connect(address.trim_start_matches("http://")).unwrap();
        let mut stream = rustls::StreamOwned::new(connection, socket);
        write!(stream, "GET /healthz HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n").unwrap();
        let mut answer = String::new();
        let _ = stream.read_to_string(&mut answer);
        assert!(answer.starts_with("HTTP/1.1 200"), "{host}: {answer}");
        // Names of this machine are those of other programs as well.
        let strict = answer.contains("strict-transport-security: max-age=2592000\r\n");
        assert_eq!(strict, is_strict, "{host}: {answer}");
    }
}

#[test]
fn a_file_that_is_fine_is_said_to_be_fine_and_nothing_is_touched() {
    let folder = folder(CONFIG);
    assert_eq!(folder.run(&["check"]), 0);
    assert!(folder.read("stderr.log").contains("lazaret.yaml is valid: 1 consumer"));
    assert!(!folder.path("lazaret.db").exists() && !folder.path("lazaret.flight").exists());
}
