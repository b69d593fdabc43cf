//! The server of all runs, and schemas that are dropped after their use.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use lazaret_store_postgres::driver::{Client, NoTls, connect};
use lazaret_store_postgres::{PostgresStore, PostgresStoreOptions};

use crate::consumer::let_go;

const VARIABLE: &str = "LAZARET_TEST_POSTGRES";

/// The server.
pub(super) struct Server {
    dsn: String,
    client: Client,
    schemas: AtomicU32,
}

impl Server {
    /// Connects to the server that the environment variable names.
    pub(super) async fn find() -> Result<Self, String> {
        let dsn = std::env::var(VARIABLE).map_err(|_| {
            format!("{VARIABLE} is not set; `cargo xtask bench postgres` starts a server and sets it")
        })?;
        let client = open(&dsn).await.map_err(|error| error.to_string())?;
        let fsync: String = client
            .query_one("SHOW fsync", &[])
            .await
            .and_then(|row| row.try_get(0))
            .map_err(|error| error.to_string())?;
        if fsync != "on" {
            return Err(format!("the server has fsync {fsync}: no figure would be that of a durable store"));
        }
        Ok(Self { dsn, client, schemas: AtomicU32::new(0) })
    }

    /// Creates a schema for one run.
    pub(super) async fn schema(&self) -> Schema<'_> {
        let number = self.schemas.fetch_add(1, Ordering::Relaxed);
        let name = format!("lazaret_bench_{}_{number}", std::process::id());
        self.execute(&format!("CREATE SCHEMA {name}")).await;
        Schema { server: self, name }
    }

    async fn execute(&self, sql: &str) {
        self.client.batch_execute(sql).await.expect("the server executes statements");
    }
}

async fn open(dsn: &str) -> Result<Client, lazaret_store_postgres::driver::Error> {
    let (client, connection) = connect(dsn, NoTls).await?;
    tokio::spawn(connection);
    Ok(client)
}

/// The schema of one run.
pub(super) struct Schema<'s> {
    server: &'s Server,
    pub(super) name: String,
}

impl Schema<'_> {
    /// The DSN of the server, with this schema as search path.
    pub(super) fn dsn(&self) -> String {
        let dsn = &self.server.dsn;
        let between = if dsn.contains('?') { '&' } else { '?' };
        format!("{dsn}{between}options=-c%20search_path={}", self.name)
    }

    /// Opens a connection with this schema as search path.
    pub(super) async fn client(&self) -> Client {
        open(&self.dsn()).await.expect("the server takes connections")
    }

    /// Opens a store with default options.
    pub(super) async fn store(&self) -> Arc<PostgresStore> {
        store(&self.server.dsn, &self.name).await
    }

    /// The DSN of the server alone.
    pub(super) fn server_dsn(&self) -> &str {
        &self.server.dsn
    }

    /// Brings the tables to the state in which autovacuum would leave them.
    pub(super) async fn vacuum(&self) {
        let client = self.client().await;
        client.batch_execute("VACUUM ANALYZE").await.expect("the server vacuums");
    }

    /// Drops the schema after the store was released.
    pub(super) async fn drop(self, store: Arc<PostgresStore>) {
        let_go(store).await;
        self.clean_up().await;
    }

    /// Drops the schema.
    pub(super) async fn clean_up(self) {
        self.server.execute(&format!("DROP SCHEMA {} CASCADE", self.name)).await;
    }
}

/// Opens a store with default options.
pub(super) async fn store(dsn: &str, schema: &str) -> Arc<PostgresStore> {
    let options = PostgresStoreOptions { schema: schema.to_owned(), ..PostgresStoreOptions::default() };
    Arc::new(PostgresStore::connect(dsn, options).await.expect("the server takes a store"))
}
