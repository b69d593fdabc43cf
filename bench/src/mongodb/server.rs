//! The server of all runs, and a database that is dropped at the end.

use std::sync::atomic::{AtomicU32, Ordering};

use bson::Document;
use mongodb::{Client, Collection, Database};

const VARIABLE: &str = "LAZARET_TEST_MONGODB";

/// The server, with a database of its own for this process.
pub(super) struct Server {
    pub(super) uri: String,
    pub(super) client: Client,
    pub(super) database: Database,
    collections: AtomicU32,
}

impl Server {
    /// Connects to the server that the environment variable names.
    pub(super) async fn find() -> Result<Self, String> {
        let uri = std::env::var(VARIABLE).map_err(|_| {
            format!("{VARIABLE} is not set; `cargo xtask bench mongodb` starts a server and sets it")
        })?;
        Self::at(uri).await
    }

    /// Connects to this server.
    pub(super) async fn at(uri: String) -> Result<Self, String> {
        let client = Client::with_uri_str(&uri).await.map_err(|error| error.to_string())?;
        let database = client.database(&format!("lazaret_bench_{}", std::process::id()));
        Ok(Self { uri, client, database, collections: AtomicU32::new(0) })
    }

    /// Returns a new collection.
    pub(super) fn collection(&self) -> Collection<Document> {
        self.database.collection(&self.new_name())
    }

    /// Returns the name of a new collection.
    pub(super) fn new_name(&self) -> String {
        format!("c{}", self.collections.fetch_add(1, Ordering::Relaxed))
    }

    /// Drops the database.
    pub(super) async fn clean_up(&self) {
        if let Err(error) = self.database.drop().await {
            eprintln!("failed to drop the database {}: {error}", self.database.name());
        }
    }
}
