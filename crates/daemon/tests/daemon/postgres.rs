//! A daemon on PostgreSQL: letters, positions and inboxes in the database, and what the doctor says. Needs a server.

use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::process::Signal;
use tokio_postgres::{NoTls, SimpleQueryMessage};

use crate::encryption::examine_keys;
use crate::support::{Daemon, Folder, WORKER, ask, event, get, wait_for};

/// A schema of its own for each test, which is dropped with this.
pub(crate) struct Database {
    dsn: String,
    pub(crate) schema: String,
}

impl Database {
    /// Without a server the test says that it did not run, and fails where everything must run.
    pub(crate) fn open() -> Option<Self> {
        let Ok(dsn) = std::env::var("LAZARET_TEST_POSTGRES") else {
            let must = std::env::var("CI").is_ok_and(|value| value == "true");
            assert!(
                !must,
                "LAZARET_TEST_POSTGRES is not set; `cargo xtask test` starts a server and sets it"
            );
            println!(
                "not run: LAZARET_TEST_POSTGRES is not set; `cargo xtask services` starts a server and prints it"
            );
            return None;
        };
        Some(Self::at(dsn))
    }

    /// On this server.
    pub(crate) fn at(dsn: String) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let time = jiff::Timestamp::now().as_millisecond();
        Self { dsn, schema: format!("daemon_{time}_{}_{number}", std::process::id()) }
    }

    /// The URL of the store.
    pub(crate) fn store(&self) -> String {
        let between = if self.dsn.contains('?') { '&' } else { '?' };
        format!("{}{between}schema={}&max_connections=6", self.dsn, self.schema)
    }

    /// Runs statements on a connection of its own, and gives the first column of the rows.
    pub(crate) fn query(&self, sql: &str) -> Vec<String> {
        self.try_query(sql).unwrap()
    }

    pub(crate) fn try_query(&self, sql: &str) -> Result<Vec<String>, tokio_postgres::Error> {
        let (dsn, sql) = (
            self.dsn.clone(),
            format!("SET statement_timeout = 0; SET search_path = {}; {sql}", self.schema),
        );
        // The test may be asynchronous itself.
        let asking = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let (client, connection) = tokio_postgres::connect(&dsn, NoTls).await?;
                let driving = tokio::spawn(connection);
                let rows = client.simple_query(&sql).await?;
                drop(client);
                driving.await.ok();
                Ok(rows)
            })
        });
        let rows: Vec<SimpleQueryMessage> = asking.join().unwrap()?;
        Ok(rows
            .iter()
            .filter_map(|row| match row {
                SimpleQueryMessage::Row(row) => Some(row.get(0).unwrap_or("").to_owned()),
                _ => None,
            })
            .collect())
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        // The server of a test may be gone by now.
        let _ = self.try_query(&format!("DROP SCHEMA IF EXISTS {} CASCADE", self.schema));
    }
}

/// A folder with a configuration of this store and source; `keys` are further keys of the consumer.
pub(crate) fn folder(store: &str, source: &str, keys: &str) -> Folder {
    let folder = Folder::new();
    let config = format!(
        "
listen: 127.0.0.1:0
store: '{store}'
consumers:
  shop:
    source: {source}
    handler: {{ command: {{ program: [python3, handler.py], mode: lines, workers: 4 }} }}
    {keys}
"
    );
    folder.write("lazaret.yaml", &config);
    folder.write("handler.py", WORKER);
    folder
}

/// Posts lines of [`event`], and expects that all were taken.
pub(crate) fn post(address: &str, lines: &str) {
    let json = "content-type: application/jsonl\r\n";
    let (status, said) = ask(address, "POST", "/v1/inbox/shop/batch", json, lines);
    assert_eq!(status, 202, "{said}");
}

/// Ends a daemon as a supervisor does.
#[track_caller]
pub(crate) fn stop(daemon: Daemon, folder: &Folder) {
    daemon.signal(Signal::TERM);
    assert_eq!(daemon.wait().code(), Some(0), "{}", folder.read("stderr.log"));
}

pub(crate) fn doctor(folder: &Folder) -> String {
    let doctor = Command::new(env!("CARGO_BIN_EXE_lazaret-daemon"))
        .arg("doctor")
        .current_dir(folder.path("."))
        .output();
    String::from_utf8(doctor.unwrap().stdout).unwrap()
}

#[test]
fn letters_and_positions_of_a_file_are_kept_in_postgresql() {
    // I1, I8
    let Some(database) = Database::open() else { return };
    let retry = "retry: { initial-delay: 5ms, max-delay: 20ms, hold: 10ms }";
    let folder = folder(&database.store(), "{ file: { path: events.jsonl } }", retry);
    let kinds = ["fine", "poison", "flaky", "fine"];
    let lines: String = kinds.iter().enumerate().map(|(n, kind)| event(n, &format!("k{n}"), kind)).collect();
    folder.write("events.jsonl", &lines);
    for _ in 0..2 {
        // A second run finds nothing to do, and the same letter.
        assert_eq!(folder.run(&["run", "--until-idle"]), 3, "{}", folder.read("stderr.log"));
    }
    let done = folder.read("attempts.log");
    assert_eq!(done.lines().filter(|line| line.ends_with(" handled")).count(), 3, "{done}");
    assert_eq!(database.query("SELECT message FROM letters WHERE sid IS NOT NULL"), ["e-1"]);
    let files: Vec<String> = std::fs::read_dir(folder.path("."))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.contains("lazaret") && name != "lazaret.yaml")
        .collect();
    assert!(files.iter().all(|name| name.contains("flight")), "no file but the recorder: {files:?}");
}

#[test]
fn an_inbox_in_postgresql_survives_the_daemon() {
    // I1, I8
    let Some(database) = Database::open() else { return };
    let folder = folder(&database.store(), "{ inbox: {} }", "retry: { initial-delay: 5ms, max-delay: 20ms }");
    let mut daemon = folder.start(&["run"]);
    let address = daemon.address();
    post(&address, &(0..20).map(|n| event(n, &format!("k{}", n % 5), "fine")).collect::<String>());
    let (status, said) = ask(&address, "POST", "/v1/inbox/shop", "lazaret-id: e-7\r\n", "{}");
    assert_eq!(status, 409, "the id was posted with another payload: {said}");
    let handled = || folder.read("attempts.log").lines().filter(|line| line.ends_with("handled")).count();
    wait_for("all messages", || (handled() == 20).then_some(()));
    stop(daemon, &folder);
    assert_eq!(database.query("SELECT messages || ' ' || consumed FROM inboxes"), ["0 20"]);
    let again = event(7, "k2", "fine");
    let mut daemon = folder.start(&["run"]);
    daemon.logs("listening", 2);
    let address = daemon.address();
    let json = "content-type: application/jsonl\r\n";
    assert_eq!(ask(&address, "POST", "/v1/inbox/shop/batch", json, &again).0, 200, "it is a duplicate");
    post(&address, &event(20, "k0", "fine"));
    wait_for("the next message", || (handled() == 21).then_some(()));
    stop(daemon, &folder);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_daemon_whose_inbox_cannot_be_read_is_not_ready() {
    // I9
    let Some(database) = Database::open() else { return };
    // Statements that wait for a lock longer than this are cancelled.
    let store = format!("{}&options=-c%20statement_timeout%3D2000", database.store());
    let folder = folder(&store, "{ inbox: {} }", "order: key");
    let mut daemon = folder.start(&["run"]);
    let address = daemon.address();
    wait_for("readiness", || (get(&address, "/readyz").0 == 200).then_some(()));
    let (other, connection) = tokio_postgres::connect(&database.dsn, NoTls).await.unwrap();
    tokio::spawn(connection);
    // The rest of the store responds.
    let lock = format!("BEGIN; LOCK TABLE {}.inbox_messages IN ACCESS EXCLUSIVE MODE", database.schema);
    other.batch_execute(&lock).await.unwrap();
    wait_for("the outage", || {
        let (status, reasons) = get(&address, "/readyz");
        (status == 503 && reasons.contains("the inbox is not readable, retrying")).then_some(())
    });
    other.batch_execute("ROLLBACK").await.unwrap();
    wait_for("readiness", || (get(&address, "/readyz").0 == 200).then_some(()));
    post(&address, &event(0, "k", "fine"));
    wait_for("the message", || folder.read("attempts.log").contains(" handled").then_some(()));
    stop(daemon, &folder);
}

#[test]
fn a_server_that_is_away_is_named_without_its_password() {
    let away = "postgres://lazaret:hunter2@127.0.0.1:1/shop?sslmode=disable";
    let here = folder(away, "{ inbox: {} }", "order: key");
    assert_eq!(here.run(&["run"]), 1);
    let said = here.read("stderr.log");
    let place = "postgres at 127.0.0.1:1, database shop, schema lazaret";
    assert!(said.contains(&format!("LZ0221: failed to open the store `{place}`")), "{said}");
    assert!(said.contains("start the server") && !said.contains("hunter2"), "{said}");
    let said = doctor(&here);
    assert!(said.contains("FAIL  store: failed to connect to PostgreSQL at 127.0.0.1:1"), "{said}");
    assert!(said.contains("start the server") && !said.contains("hunter2"), "{said}");
    let wrong =
        folder("postgres://u:hunter2@127.0.0.1/db?no_such_parameter=1", "{ inbox: {} }", "order: key");
    assert_eq!(wrong.run(&["run"]), 1);
    let said = wrong.read("stderr.log");
    assert!(said.contains("correct the URL in `store`") && !said.contains("hunter2"), "{said}");
}

#[test]
fn the_doctor_examines_server_tables_and_grants() {
    let Some(database) = Database::open() else { return };
    let here = folder(&database.store(), "{ inbox: {} }", "order: key");
    let said = doctor(&here);
    assert!(said.contains("ok    store: PostgreSQL 1"), "{said}");
    assert!(said.contains("has no tables yet; the first start creates"), "{said}");
    assert!(database.query("SELECT nspname FROM pg_namespace WHERE nspname = current_schema()").is_empty());
    let daemon = here.start(&["run"]);
    let mut daemon = daemon;
    daemon.address();
    stop(daemon, &here);
    let said = doctor(&here);
    assert!(said.contains("no migration is pending") && said.contains("has all rights"), "{said}");
    assert!(!said.contains("FAIL"), "{said}");
    // Another role lacks the grants, which are listed; with them it lacks nothing.
    let role = format!("{}_app", database.schema);
    database.query(&format!("CREATE ROLE {role} LOGIN"));
    let (_, rest) = database.dsn.split_once('@').unwrap();
    let store = format!("postgres://{role}@{rest}&schema={}", database.schema);
    let app = folder(&store, "{ inbox: {} }", "order: key");
    let said = doctor(&app);
    assert!(said.contains("FAIL  store: ") && said.contains("lacks rights"), "{said}");
    let grants: Vec<&str> = said
        .lines()
        .map(str::trim)
        .filter(|line| line.starts_with("GRANT ") && line.ends_with(';'))
        .collect();
    assert!(grants.len() > 10, "{said}");
    assert!(!grants.iter().any(|grant| grant.contains("UPDATE") && grant.contains(".audit ")), "{said}");
    database.query(&grants.join("\n"));
    let said = doctor(&app);
    assert!(said.contains("has all rights") && !said.contains("FAIL"), "{said}");
    let mut daemon = app.start(&["run"]);
    let address = daemon.address();
    post(&address, &event(0, "k", "poison"));
    wait_for("the letter", || get(&address, "/v1/status").1.contains("\"dead\":1").then_some(()));
    stop(daemon, &app);
    database.query(&format!("DROP OWNED BY {role}; DROP ROLE {role}"));
}

#[test]
fn the_doctor_decrypts_the_data_keys_of_a_store_in_postgresql() {
    let Some(database) = Database::open() else { return };
    let here = folder(&database.store(), "{ file: { path: events.jsonl } }", "order: key");
    here.write("events.jsonl", &event(0, "k", "fine"));
    examine_keys(&here);
}
