//! The server of the tests, and a store in a schema of its own.

pub(crate) mod simulated;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use lazaret_core::store::{Changes, Triage};
use lazaret_core::{Clock, QueueName};
use lazaret_store_postgres::{PostgresStore, PostgresStoreOptions};
use tokio_postgres::{Client, NoTls};

/// Returns the DSN of the server. Without one the test prints that it did not run, and fails when `CI=true`.
pub(crate) fn server() -> Option<String> {
    let dsn = std::env::var("LAZARET_TEST_POSTGRES").ok();
    if dsn.is_none() {
        let must = std::env::var("CI").is_ok_and(|value| value == "true");
        assert!(!must, "LAZARET_TEST_POSTGRES is not set; `cargo xtask test` starts a server and sets it");
        println!(
            "not run: LAZARET_TEST_POSTGRES is not set; `cargo xtask services` starts a server and prints it"
        );
    }
    dsn
}

/// Returns whether there is a server.
pub(crate) fn server_is_there() -> bool {
    server().is_some()
}

/// A schema of its own, which is dropped with this.
pub(crate) struct TestSchema {
    pub(crate) dsn: String,
    pub(crate) name: String,
}

impl TestSchema {
    pub(crate) fn new(dsn: String) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let time = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_micros();
        let name = format!("lzp_{time}_{}_{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        Self { dsn, name }
    }

    pub(crate) fn options(&self, clock: Option<Arc<dyn Clock>>) -> PostgresStoreOptions {
        PostgresStoreOptions {
            schema: self.name.clone(),
            max_connections: 4,
            clock,
            ..PostgresStoreOptions::default()
        }
    }

    pub(crate) async fn open(&self, clock: Option<Arc<dyn Clock>>) -> PostgresStore {
        PostgresStore::connect(&self.dsn, self.options(clock)).await.unwrap()
    }

    /// A connection as the user of the DSN, with this schema.
    pub(crate) async fn client(&self) -> Client {
        let client = connect(&self.dsn).await;
        client.batch_execute(&format!("SET search_path = {}", self.name)).await.unwrap();
        client
    }
}

/// Waits for a notification.
pub(crate) async fn told(changes: &mut Changes) {
    tokio::time::timeout(Duration::from_secs(240), changes.changed()).await.expect("a notification comes");
}

/// The number of rows of a table.
pub(crate) async fn count(client: &Client, table: &str) -> i64 {
    client.query_one(&format!("SELECT count(*) FROM {table}"), &[]).await.unwrap().get(0)
}

/// Has the notes about groups added by a call that does so, and waits until none is left.
pub(crate) async fn add_notes(store: &PostgresStore, queue: &QueueName, client: &Client) {
    let added = async {
        while count(client, "group_notes").await > 0 {
            store.expire(queue, None, 1).await.unwrap();
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(240), added).await.expect("notes are added");
}

/// A connection without TLS.
pub(crate) async fn connect(dsn: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(dsn, NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

impl Drop for TestSchema {
    fn drop(&mut self) {
        let (dsn, name) = (self.dsn.clone(), self.name.clone());
        // The runtime of the test may be on its way out.
        let dropping = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let client = connect(&dsn).await;
                client.batch_execute(&format!("DROP SCHEMA IF EXISTS {name} CASCADE")).await.ok();
            });
        });
        dropping.join().ok();
    }
}

/// A store whose schema is dropped with it.
pub(crate) struct TestStore {
    store: PostgresStore,
    _schema: TestSchema,
}

lazaret_core::forward_store! {
    impl LetterStore for TestStore {}
    impl Operations for TestStore {}
    impl Triage for TestStore {}
    impl Audit for TestStore {}
    impl KeyValue for TestStore {}
    impl Outbox for TestStore {}

    inner: |this| &this.store;
    around: |_this, _call, run| run.await;
}

/// An empty store.
pub(crate) async fn store(clock: Arc<dyn Clock>) -> TestStore {
    let schema = TestSchema::new(server().expect("the suite runs only with a server"));
    TestStore { store: schema.open(Some(clock)).await, _schema: schema }
}
