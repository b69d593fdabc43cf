//! No part of a password with special characters is in any output: of the commands that check a configuration, and of the start.

use std::fs;
use std::path::Path;

use lazaret_port_testkit::free_port;
use tempfile::TempDir;

use crate::support::{Ran, finish, lazaret};

/// The parts of the password around its `@`.
const PARTS: [&str; 2] = ["hunter2", "swordfish"];

/// Runs a command in a folder, with the URL of the store in a variable.
fn run(folder: &Path, arguments: &[&str], url: &str) -> Ran {
    let mut command = lazaret(arguments);
    command.current_dir(folder).env("STORE_URL", url);
    finish(command, "")
}

/// The URLs of a store that is away.
fn urls(at: &str) -> [String; 2] {
    let [before, after] = PARTS;
    let port = free_port();
    [
        "postgres://lazaret:PASSWORD@127.0.0.1:PORT/shop?connect_timeout=2",
        "mongodb://lazaret:PASSWORD@127.0.0.1:PORT/shop?serverSelectionTimeoutMS=300",
    ]
    .map(|url| url.replace("PASSWORD", &format!("{before}{at}{after}")).replace("PORT", &port.to_string()))
}

#[track_caller]
fn assert_hidden(ran: &Ran, command: &[&str]) {
    let said = format!("{}{}", ran.out, ran.err).to_lowercase();
    for part in PARTS {
        assert!(!said.contains(part), "{command:?}: {said}");
    }
}

#[test]
fn a_password_with_an_at_sign_is_in_no_output() {
    let folder = TempDir::new().unwrap();
    fs::write(folder.path().join("x.jsonl"), "").unwrap();
    let commands: [&[&str]; 6] = [
        &["check"],
        &["check", "--effective", "orders"],
        &["doctor"],
        &["doctor", "--json"],
        &["run", "--check"],
        &["run"],
    ];
    for (at, is_encoded) in [("@", false), ("%40", true)] {
        for url in urls(at) {
            for store in [url.as_str(), "${STORE_URL}"] {
                let config = format!(
                    "listen: 127.0.0.1:0\nstore: '{store}'\nconsumers:\n  orders:\n    source: {{ file: {{ path: x.jsonl }} }}\n    \
                     handler: {{ http: {{ url: 'http://127.0.0.1:1/' }} }}\n"
                );
                fs::write(folder.path().join("lazaret.yaml"), config).unwrap();
                for command in commands {
                    let ran = run(folder.path(), command, &url);
                    assert_hidden(&ran, command);
                    // The server is away, and without the encoding nobody knows where the password ends.
                    match command {
                        ["check", ..] => assert_eq!(ran.code == 0, is_encoded, "{command:?}: {}", ran.err),
                        ["run"] | ["doctor", ..] => assert_ne!(ran.code, 0, "{command:?}: {}", ran.out),
                        _ => {}
                    }
                }
            }
            let arguments = ["serve", "--store", &url, "--listen", "127.0.0.1:0"];
            let ran = run(folder.path(), &arguments, "");
            assert_hidden(&ran, &arguments[..1]);
            assert_ne!(ran.code, 0, "{}", ran.err);
        }
    }
}
