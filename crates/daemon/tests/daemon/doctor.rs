//! What the doctor finds, and that it changes nothing.

use std::net::TcpListener;
use std::process::Command;
use std::sync::Arc;

use crate::support::{Folder, event};

/// Returns the output and the exit code.
fn preflight(folder: &Folder) -> (String, Option<i32>) {
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
    let free = lazaret_port_testkit::free_port();
    folder.write("lazaret.yaml", &config(free, taken.local_addr().unwrap().port()));
    let (text, code) = preflight(&folder);
    assert_eq!(code, Some(1), "{text}");
    assert_says(
        &text,
        &[
            "ok    configuration: lazaret.yaml is valid",
            "ok    store: . is writable",
            "MiB free",
            "is in use by another program\n      stop the program",
            "ok    flight recorder: lazaret.flight does not exist and can be created",
            "FAIL  shop handler: 127.0.0.1:",
            "start the service, or correct `url`",
            "FAIL  shop source: events.jsonl",
            "FAIL  mail handler: program not found: \"no-such-program-anywhere\"",
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
    let (text, code) = preflight(&folder);
    assert_eq!(code, Some(0), "{text}");
    assert!(!text.contains("FAIL"), "{text}");
    assert!(handler.set_nonblocking(true).is_ok());
    let (mut stream, _) = handler.accept().expect("it was connected to");
    let mut said = Vec::new();
    std::io::Read::read_to_end(&mut stream, &mut said).unwrap();
    assert!(said.is_empty(), "and nothing was sent");
}

#[test]
fn a_store_that_run_could_not_open_is_not_said_to_be_well() {
    let folder = Folder::new();
    folder.write("lazaret.yaml", "listen: 127.0.0.1:0\nstore: sqlite:nope/dir/x.db\nconsumers: {}\n");
    assert_eq!(folder.run(&["run", "--until-idle"]), 1);
    let (text, code) = preflight(&folder);
    assert_says(
        &text,
        &["FAIL  store: the directory nope/dir does not exist\n      create it: mkdir -p nope/dir"],
    );
    assert_eq!(code, Some(1), "{text}");
    std::fs::create_dir_all(folder.path("nope/dir")).unwrap();
    let (text, code) = preflight(&folder);
    assert_says(&text, &["ok    store: nope/dir is writable"]);
    assert_eq!(code, Some(0), "{text}");
    assert_eq!(folder.run(&["run", "--until-idle"]), 0);
}

/// A server for one TLS handshake after the other, with a certificate that signs itself; and that certificate.
fn secured(is_authority: bool) -> (u16, String) {
    let mut params = rcgen::CertificateParams::new(["127.0.0.1".to_owned()]).unwrap();
    if is_authority {
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    }
    let key = rcgen::KeyPair::generate().unwrap();
    let certificate = params.self_signed(&key).unwrap();
    let secret = rustls::pki_types::PrivateKeyDer::try_from(key.serialize_der()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate.der().clone()], secret)
        .unwrap();
    let (config, listener) = (Arc::new(config), TcpListener::bind("127.0.0.1:0").unwrap());
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut connection = rustls::ServerConnection::new(Arc::clone(&config)).unwrap();
            // A client that refuses the certificate goes away.
            let _ = connection.complete_io(&mut stream.unwrap());
        }
    });
    (port, certificate.pem())
}

#[test]
fn a_certificate_that_the_handler_would_refuse_is_found_with_how_to_mend_it() {
    let folder = Folder::new();
    let (port, pem) = secured(false);
    let configure = |tls: &str| {
        let handler = format!("{{ http: {{ url: 'https://127.0.0.1:{port}/'{tls} }} }}");
        let consumer = format!("{{ source: {{ inbox: {{}} }}, handler: {handler} }}");
        folder.write("lazaret.yaml", &format!("listen: 127.0.0.1:0\nconsumers: {{ shop: {consumer} }}\n"));
    };
    configure("");
    let (text, code) = preflight(&folder);
    assert_says(
        &text,
        &["FAIL  shop handler: 127.0.0.1:", "invalid certificate: ", "set `tls-ca` to its path"],
    );
    assert_eq!(code, Some(1), "{text}");
    configure(", tls-ca: ca.pem");
    folder.write("ca.pem", &pem);
    let (text, code) = preflight(&folder);
    assert_says(&text, &["ok    shop handler: 127.0.0.1:", "and its certificate is trusted"]);
    assert_eq!(code, Some(0), "{text}");
    folder.write("ca.pem", &secured(false).1);
    assert_says(&preflight(&folder).0, &["to ca.pem, the file in `tls-ca`"]);
}

#[test]
fn a_certificate_of_an_authority_is_explained() {
    let folder = Folder::new();
    let (port, pem) = secured(true);
    folder.write("ca.pem", &pem);
    folder.write(
        "lazaret.yaml",
        &format!(
            "
listen: 127.0.0.1:0
consumers:
  shop:
    source: {{ inbox: {{}} }}
    handler: {{ http: {{ url: 'https://127.0.0.1:{port}/', tls-ca: ca.pem }} }}
"
        ),
    );
    let (text, code) = preflight(&folder);
    assert_says(&text, &["FAIL  shop handler: ", "CA:TRUE", "basicConstraints=critical,CA:FALSE"]);
    assert_eq!(code, Some(1), "{text}");
}

#[test]
fn who_has_read_enough_changes_nothing_about_how_it_ends() {
    let folder = Folder::new();
    folder.write("lazaret.yaml", "listen: 127.0.0.1:0\nconsumers: {}\n");
    folder.write("wrong.yaml", "consumers: 5\n");
    for (verb, file, code) in [
        ("doctor", "lazaret.yaml", 0),
        ("doctor", "wrong.yaml", 1),
        ("check", "lazaret.yaml", 0),
        ("check", "wrong.yaml", 1),
    ] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let status = Command::new(env!("CARGO_BIN_EXE_lazaret-daemon"))
            .args([verb, "-c", file])
            .current_dir(folder.path("."))
            .stdout(writer.try_clone().unwrap())
            .stderr(writer)
            .status()
            .unwrap();
        assert_eq!(status.code(), Some(code), "{verb} {file}");
    }
}

#[test]
fn a_lazaret_that_runs_already_is_recognised_and_its_store_can_be_looked_at() {
    let folder = Folder::new();
    folder.write("lazaret.yaml", "listen: 127.0.0.1:0\nconsumers: {}\n");
    let mut daemon = folder.start(&["run"]);
    let address = daemon.address();
    folder.write("lazaret.yaml", &format!("listen: {address}\nconsumers: {{}}\n"));
    let (text, code) = preflight(&folder);
    assert_says(&text, &["a Lazaret daemon is running at", "ok    store: lazaret.db is usable, format"]);
    assert_eq!(code, Some(0), "{text}");
}

#[test]
fn a_lazaret_with_tls_and_a_socket_is_recognised() {
    let folder = Folder::new();
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    folder.write("tls.crt", &made.cert.pem());
    folder.write("tls.key", &made.signing_key.serialize_pem());
    let rest = "tls: { certificate: tls.crt, key: tls.key }\nsocket: api.sock\nconsumers: {}\n";
    folder.write("lazaret.yaml", &format!("listen: 127.0.0.1:0\n{rest}"));
    let (text, code) = preflight(&folder);
    assert_says(&text, &["ok    tls: tls.crt and its key are usable", "ok    socket: . is writable"]);
    assert_eq!(code, Some(0), "{text}");
    let mut daemon = folder.start(&["run"]);
    let address = daemon.address();
    let address = address.trim_start_matches("http://").trim_start_matches("https://");
    for tls in [rest, "consumers: {}\n"] {
        folder.write("lazaret.yaml", &format!("listen: {address}\n{tls}"));
        let (text, code) = preflight(&folder);
        assert_says(&text, &["a Lazaret daemon is running at"]);
        assert_eq!(code, Some(0), "{text}");
    }
    folder.write("lazaret.yaml", &format!("listen: 127.0.0.1:0\n{rest}"));
    assert_says(&preflight(&folder).0, &["warn  socket: a program is listening at api.sock"]);
}

#[test]
fn tls_files_and_sockets_that_run_could_not_use_are_found() {
    let folder = Folder::new();
    folder.write("tls.crt", "no certificate");
    for (rest, found) in [
        ("tls: { certificate: tls.crt, key: tls.key }", "FAIL  tls: "),
        ("socket: tls.crt", "FAIL  socket: tls.crt is not a socket"),
        ("socket: no/folder/api.sock", "FAIL  socket: the directory no/folder does not exist"),
    ] {
        folder.write("lazaret.yaml", &format!("listen: 127.0.0.1:0\n{rest}\nconsumers: {{}}\n"));
        let (text, code) = preflight(&folder);
        assert_says(&text, &[found]);
        assert_eq!(code, Some(1), "{text}");
    }
}

#[test]
fn a_store_that_is_none_and_a_file_with_mistakes_are_found() {
    let folder = Folder::new();
    folder.write("lazaret.yaml", "listen: 127.0.0.1:0\nconsumers: {}\n");
    folder.write("lazaret.db", &"this is not a database. ".repeat(10));
    let (text, code) = preflight(&folder);
    assert_says(&text, &["FAIL  store: stored data is corrupt", "lazaret.db", "set the right file"]);
    assert_eq!(code, Some(1));
    folder.write("lazaret.yaml", "consumers: 5\n");
    let (text, code) = preflight(&folder);
    assert_says(&text, &["FAIL  configuration: error[LZ0122]", "no other check was run"]);
    assert_eq!(code, Some(1));
}
