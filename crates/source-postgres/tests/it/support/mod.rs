//! The server of the tests, a schema with private outboxes, and a consumer that takes messages one by one.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use lazaret_core::source::{Commit, Source, SourceError, SourceEvent};
use lazaret_core::store::KeyValue;
use lazaret_core::{Message, Partition};
use lazaret_source_postgres::{Ack, OutboxOptions, OutboxSource};
use tokio_postgres::{Client, NoTls};

/// The maximum wait for something expected.
pub(crate) const LONG: Duration = Duration::from_secs(240);
/// How long a test watches that nothing arrives.
pub(crate) const SHORT: Duration = Duration::from_millis(400);

/// Returns the DSN of the server. Without a server, the test prints that it did not run. With `CI=true`,
/// it fails instead.
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

/// Returns `true` if there is a server.
pub(crate) fn server_is_there() -> bool {
    server().is_some()
}

/// Opens a connection without TLS.
pub(crate) async fn connect(dsn: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(dsn, NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

/// A private schema, dropped with this value, and a connection that uses it.
pub(crate) struct Shop {
    pub(crate) dsn: String,
    pub(crate) schema: String,
    pub(crate) client: Client,
}

impl Shop {
    pub(crate) async fn new(dsn: String) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let time = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_micros();
        let schema = format!("lzo_{time}_{}_{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let client = connect(&dsn).await;
        client.batch_execute(&format!("CREATE SCHEMA {schema}; SET search_path = {schema}")).await.unwrap();
        Self { dsn, schema, client }
    }

    /// Creates a schema with the table `outbox`.
    pub(crate) async fn with_outbox(dsn: String) -> Self {
        let shop = Self::new(dsn).await;
        shop.sql(
            "CREATE TABLE outbox (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, key text, type text, payload text, \
             headers jsonb, created_at timestamptz NOT NULL DEFAULT now())",
        )
        .await;
        shop
    }

    pub(crate) async fn sql(&self, sql: &str) {
        self.client.batch_execute(sql).await.unwrap_or_else(|error| panic!("{sql}: {error:?}"));
    }

    /// Opens another connection that uses the schema.
    pub(crate) async fn connection(&self) -> Client {
        let client = connect(&self.dsn).await;
        client.batch_execute(&format!("SET search_path = {}", self.schema)).await.unwrap();
        client
    }

    /// Opens another connection and begins a transaction.
    pub(crate) async fn transaction(&self) -> Client {
        let client = self.connection().await;
        client.batch_execute("BEGIN").await.unwrap();
        client
    }

    pub(crate) fn options(&self, table: &str) -> OutboxOptions {
        OutboxOptions {
            stream: table.into(),
            poll: Duration::from_millis(100),
            ack: Ack::Position,
            ..OutboxOptions::new(&self.dsn, format!("{}.{table}", self.schema))
        }
    }

    pub(crate) async fn count(&self, table: &str) -> i64 {
        self.client.query_one(&format!("SELECT count(*) FROM {table}"), &[]).await.unwrap().get(0)
    }
}

/// Adds a row with a payload, in the transaction of this connection. Returns its id.
pub(crate) async fn insert(client: &Client, payload: &str) -> i64 {
    let sql = "INSERT INTO outbox (key, payload) VALUES ('k', $1) RETURNING id";
    client.query_one(sql, &[&payload]).await.unwrap().get(0)
}

impl Drop for Shop {
    fn drop(&mut self) {
        let (dsn, schema) = (self.dsn.clone(), self.schema.clone());
        // The runtime of the test may be shutting down.
        let dropping = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let Ok((client, connection)) = tokio_postgres::connect(&dsn, NoTls).await else { return };
                tokio::spawn(connection);
                // A failed test may have left an open transaction, which would be waited for.
                let sql = format!("SET lock_timeout = '5s'; DROP SCHEMA IF EXISTS {schema} CASCADE");
                client.batch_execute(&sql).await.ok();
            });
        });
        dropping.join().ok();
    }
}

/// A consumer of one outbox.
pub(crate) struct Taker {
    pub(crate) source: OutboxSource,
    pub(crate) messages: Vec<Message>,
    pub(crate) assignments: u32,
    pub(crate) losses: u32,
}

impl Taker {
    pub(crate) fn open(options: OutboxOptions, store: Arc<dyn KeyValue>) -> Self {
        let source = OutboxSource::open(options, store).unwrap();
        Self { source, messages: Vec::new(), assignments: 0, losses: 0 }
    }

    /// Takes the next event if one arrives in time. Skips temporary errors.
    pub(crate) async fn step(&mut self, timeout: Duration) -> bool {
        let Ok(event) = tokio::time::timeout(timeout, self.source.next()).await else { return false };
        match event {
            Ok(SourceEvent::Messages(messages)) => self.messages.extend(messages),
            Ok(SourceEvent::Assigned(_)) => {
                self.assignments += 1;
                self.messages.clear();
            }
            Ok(SourceEvent::Lost(_)) => self.losses += 1,
            Ok(_) => {}
            Err(error) => assert!(error.is_temporary(), "{error}"),
        }
        true
    }

    pub(crate) async fn until(&mut self, what: &str, holds: impl Fn(&Self) -> bool) {
        while !holds(self) {
            assert!(self.step(LONG).await, "timed out: waited until {what}; got {:?}", self.payloads());
        }
    }

    /// Takes events until the source stops, and returns the error. No message may arrive.
    pub(crate) async fn until_refused(&mut self) -> String {
        loop {
            match tokio::time::timeout(LONG, self.source.next()).await.expect("it is refused") {
                Ok(SourceEvent::Messages(messages)) => panic!("{messages:?}"),
                Err(error) if !error.is_temporary() => return error.to_string(),
                Ok(_) | Err(_) => {}
            }
        }
    }

    /// Takes events until none arrives for a while.
    pub(crate) async fn until_quiet(&mut self) {
        while self.step(SHORT).await {}
    }

    pub(crate) fn payloads(&self) -> Vec<String> {
        let text = |message: &Message| String::from_utf8(message.payload.clone().unwrap().into()).unwrap();
        self.messages.iter().map(text).collect()
    }

    /// Commits everything up to the message with this index.
    pub(crate) async fn commit(&mut self, number: usize) -> Result<(), SourceError> {
        let (partition, position): (Partition, _) =
            (self.source.partition(), self.messages[number].position.clone());
        let commit = Commit { partition, position: Some(position), settled_beyond: vec![] };
        self.source.commit(vec![commit]).await
    }
}

/// Returns the permanent error with which a source stops.
pub(crate) async fn refusal(options: OutboxOptions) -> String {
    let store = Arc::new(lazaret_memory::MemoryStore::default());
    let mut source = OutboxSource::open(options.clone(), store).unwrap();
    loop {
        let event = tokio::time::timeout(LONG, source.next()).await.expect("it is refused");
        if let Err(error) = event {
            assert!(!error.is_temporary(), "{error}");
            let checked = OutboxSource::check(&options).await.expect_err("the check says it beforehand");
            assert_eq!(checked.to_string(), error.to_string());
            return error.to_string();
        }
    }
}
