//! The console of a daemon: who is let in, over real connections.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

use crate::support::{Folder, ask, get, wait_for};

/// A daemon that trusts a proxy at these addresses.
fn folder(trusted: &str) -> Folder {
    let hash = "0".repeat(64);
    let folder = Folder::new();
    folder.write(
        "lazaret.yaml",
        &format!(
            "listen: 127.0.0.1:0\nstore: sqlite:lazaret.db\nsocket: api.sock\n\
             auth: {{ tokens: [{{ name: robot, hash: 'sha256:{hash}', scopes: [read] }}] }}\n\
             console:\n  proxy:\n    trusted: [{trusted}]\n    user-header: X-Auth-Request-Email\n    \
             roles: [{{ group: staff, scopes: [read] }}]\nconsumers: {{}}\n"
        ),
    );
    folder
}

const EVE: &str =
    "accept: text/html\r\nx-auth-request-email: eve@example.com\r\nx-auth-request-groups: staff\r\n";

#[test]
fn a_trusted_proxy_names_the_person_and_no_other_peer_does() {
    let trusting = folder("127.0.0.1");
    let mut daemon = trusting.start(&["run"]);
    let address = daemon.address();
    let (status, page) = ask(&address, "GET", "/console/overview", EVE, "");
    assert!(status == 200 && page.contains("eve@example.com"), "{status} {page}");
    assert_eq!(ask(&address, "GET", "/v1/status", EVE, "").0, 401, "the API takes tokens only");
    let (status, page) = get(&address, "/console/login");
    assert!(status == 200 && page.contains("name=\"token\""), "{status} {page}");
    drop(daemon);

    let other = folder("10.1.0.0/16");
    let mut daemon = other.start(&["run"]);
    let address = daemon.address();
    let (status, page) = ask(&address, "GET", "/console/overview", EVE, "");
    assert_eq!(status, 303, "to the sign-in: {page}");
    // Only the user of the daemon can connect to the socket.
    let mut socket = wait_for("the socket", || UnixStream::connect(other.path("api.sock")).ok());
    write!(socket, "GET /console/overview HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{EVE}\r\n")
        .unwrap();
    let mut answer = String::new();
    socket.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("eve@example.com"), "{answer}");
}

#[test]
fn a_secret_file_that_is_missing_is_refused_at_the_start() {
    let hash = "0".repeat(64);
    let folder = Folder::new();
    folder.write(
        "lazaret.yaml",
        &format!(
            "listen: 127.0.0.1:0\nstore: sqlite:lazaret.db\n\
             auth: {{ tokens: [{{ name: robot, hash: 'sha256:{hash}', scopes: [read] }}] }}\n\
             console:\n  oidc:\n    issuer: https://login.example.com\n    client-id: lazaret\n    \
             client-secret-file: no-such-file\n    roles: [{{ group: staff, scopes: [read] }}]\nconsumers: {{}}\n"
        ),
    );
    assert_eq!(folder.run(&["run"]), 1);
    let log = folder.read("stderr.log");
    assert!(log.contains("console.oidc") && log.contains("no-such-file"), "{log}");
}

#[test]
fn the_effective_configuration_shows_origins_and_no_secrets() {
    let folder = Folder::new();
    folder.write(
        "lazaret.yaml",
        "listen: 127.0.0.1:0\nstore: sqlite:lazaret.db\ndefaults: { retry: { max-attempts: 4 } }\n\
         redact: { headers: [authorization] }\n\
         alerts: { webhooks: [{ url: 'http://127.0.0.1:9/', secret: do-not-show }] }\n\
         consumers:\n  orders:\n    source: { inbox: {} }\n    handler: { http: { url: 'http://127.0.0.1:9/' } }\n    \
         grouping: { by: [message, event-type], replace: [acme] }\n",
    );
    let mut daemon = folder.start(&["run"]);
    let (status, config) = get(&daemon.address(), "/v1/config");
    assert_eq!(status, 200, "{config}");
    let grouping = r#""grouping":{"by":["message","event-type"],"replace":["acme"]}"#;
    for part in
        ["max-attempts: 4", "# defaults, line 3", "headers: [authorization]", "replace: [acme]", grouping]
    {
        assert!(config.contains(part), "{part} is not in {config}");
    }
    assert!(!config.contains("do-not-show"), "{config}");
    let (status, page) = get(&daemon.address(), "/console/admin");
    assert_eq!(status, 200, "{page}");
    let (_, shown) = page.split_once("id=\"config\"").expect("the section of the configuration");
    let (general, consumer) = shown.split_once("id=\"config-consumer-0\"").expect("the consumer apart");
    for part in ["listen: ", "headers: [authorization]", "# built-in"] {
        assert!(general.contains(part), "{part} is not in {general}");
    }
    for part in ["<summary>orders</summary>", "max-attempts: 4", "# defaults, line 3"] {
        assert!(consumer.contains(part), "{part} is not in {consumer}");
    }
    assert!(consumer.contains("lazaret check --effective orders"), "its command: {consumer}");
    assert!(!page.contains("do-not-show"), "{page}");
}
