//! `serve` at a PostgreSQL store: the API and the console without consumers, beside a daemon that carries out what they are told. Needs a
//! server.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;
use tokio_postgres::NoTls;

use lazaret_port_testkit::free_port;

use crate::daemon::{Daemon, wait_for};
use crate::support::{DEADLINE, Ran, ended, finish, lazaret, server};

/// A schema of its own, which is dropped with this.
struct Schema {
    dsn: String,
    name: String,
}

impl Schema {
    fn open() -> Option<Self> {
        let dsn = server("LAZARET_TEST_POSTGRES")?;
        let time = jiff::Timestamp::now().as_millisecond();
        Some(Self { dsn, name: format!("serve_{time}_{}", std::process::id()) })
    }

    /// The URL of the store.
    fn store(&self) -> String {
        let between = if self.dsn.contains('?') { '&' } else { '?' };
        format!("{}{between}schema={}&max_connections=4", self.dsn, self.name)
    }
}

impl Drop for Schema {
    fn drop(&mut self) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let Ok((client, connection)) = tokio_postgres::connect(&self.dsn, NoTls).await else { return };
            tokio::spawn(connection);
            client.batch_execute(&format!("DROP SCHEMA IF EXISTS {} CASCADE", self.name)).await.ok();
        });
    }
}

/// A configuration whose handler refuses messages of `bad` while the file `mended` is missing. Nobody looks at the store for ten
/// minutes: what the daemon sees earlier, it was told.
fn configure(folder: &Path, store: &str, listen: &str) {
    let config = format!(
        "
listen: {listen}
store: '{store}'
consumers:
  orders:
    source: {{ file: {{ path: events.jsonl, follow: true }} }}
    handler: {{ command: {{ program: [sh, handler.sh] }} }}
    retry: {{ max-attempts: 1 }}
    advanced: {{ refresh: 10m }}
"
    );
    fs::write(folder.join("lazaret.yaml"), config).unwrap();
    // Exit code 65 means dead-letter.
    let handler = "if grep -q bad && [ ! -e mended ]; then exit 65; fi\n";
    fs::write(folder.join("handler.sh"), handler).unwrap();
    let events = r#"{"id": "e-1", "key": "a", "payload": "good"}
{"id": "e-2", "key": "b", "payload": "bad"}
{"id": "e-3", "key": "b", "payload": "behind"}
"#;
    fs::write(folder.join("events.jsonl"), events).unwrap();
}

/// Starts a command in a folder, and waits until it responds at this address.
fn start(folder: &Path, arguments: &[&str], address: &str) -> Daemon {
    let mut command = lazaret(arguments);
    command.current_dir(folder).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut daemon = Daemon(Some(command.spawn().unwrap()));
    wait_for(&format!("http://{address}"), daemon.child());
    daemon
}

/// Ends it as a supervisor does.
fn stop(mut daemon: Daemon) {
    let stopped = Command::new("kill").args(["-TERM", &daemon.child().id().to_string()]).status().unwrap();
    assert!(stopped.success());
    ended(daemon.0.take().unwrap()).ends(0);
}

/// The response to a request for a page, with its headers.
fn page(address: &str, path: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(DEADLINE)).unwrap();
    write!(
        stream,
        "GET {path} HTTP/1.1\r\nhost: {address}\r\naccept: text/html\r\nconnection: close\r\n\r\n"
    )
    .unwrap();
    let mut response = String::new();
    stream.read_to_string(&mut response).unwrap();
    response
}

/// Waits until something is there.
fn eventually<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + DEADLINE;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < deadline, "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_postgresql_store_is_served_without_consumers_and_another_daemon_carries_out_what_it_is_told() {
    // I2
    let Some(schema) = Schema::open() else { return };
    let folder = TempDir::new().unwrap();
    let [daemon, server] = [(); 2].map(|()| format!("127.0.0.1:{}", free_port()));
    let (store, url) = (schema.store(), format!("http://{server}"));
    configure(folder.path(), &store, &daemon);
    let runs = start(folder.path(), &["run"], &daemon);
    let elsewhere = TempDir::new().unwrap();
    let serves = start(elsewhere.path(), &["serve", "--store", &store, "--listen", &server], &server);
    assert_eq!(fs::read_dir(elsewhere.path()).unwrap().count(), 0, "it needs no file");

    let ask = |arguments: &[&str]| -> Ran { finish(lazaret(&[arguments, &["--url", &url]].concat()), "") };
    let status = || ask(&["status", "-o", "json"]).ends(0).json();
    let orders = eventually("both letters", || {
        let orders = status()["consumers"][0].clone();
        (orders["dead"] == 1 && orders["waiting"] == 1).then_some(orders)
    });
    assert_eq!((&orders["name"], &orders["state"]), (&"orders".into(), &"elsewhere".into()));
    eventually("both instances", || {
        let status = status();
        let instances = status["instances"].as_array().unwrap();
        let running = |names: &[&str]| {
            let names: Vec<Value> = names.iter().map(|name| (*name).into()).collect();
            instances.iter().filter(|instance| instance["consumers"] == Value::Array(names.clone())).count()
        };
        ((running(&["orders"]), running(&[])) == (1, 1)).then_some(())
    });
    let dead = ask(&["ls", "state:dead", "-o", "jsonl"]).ends(0).lines().remove(0);
    let shown = page(&server, &format!("/console/letters/{}", dead["id"].as_str().unwrap()));
    assert!(shown.starts_with("HTTP/1.1 200") && shown.contains("e-2"), "{shown}");

    let plan = ask(&["plan", "retry", "state:dead", "-o", "json"]).ends(0).json();
    assert_eq!(plan["letters"], 1);
    fs::write(folder.path().join("mended"), "").unwrap();
    let id = plan["id"].as_str().unwrap();
    ask(&["retry", "--plan", id, "--reason", "mended", "--yes", "--wait"]).ends(0);
    // The letter behind it runs by itself.
    eventually("no open letters", || ask(&["ls", "-o", "jsonl"]).ends(0).out.is_empty().then_some(()));
    let resolved = ask(&["ls", "state:resolved", "-o", "jsonl"]).ends(0).lines();
    assert_eq!(resolved.len(), 2);
    stop(serves);
    stop(runs);
}
