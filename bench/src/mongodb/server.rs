//! The server of all runs, and a database that is dropped at the end.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use bson::Document;
use lazaret_store_mongodb::{MongoStore, MongoStoreOptions};
use mongodb::{Client, Collection, Database};

const VARIABLE: &str = "LAZARET_TEST_MONGODB";
/// Set beside it if the server is the one that `cargo xtask` starts.
const KIND: &str = "LAZARET_TEST_MONGODB_KIND";
const WIRE_SERVER: &str = "wire-server";

/// The server, with a database of its own for this process.
pub(super) struct Server {
    pub(super) uri: String,
    pub(super) client: Client,
    pub(super) database: Database,
    /// It is the wire server of the tests, and no MongoDB.
    pub(super) is_wire_server: bool,
    collections: AtomicU32,
}

/// A new store, with a client of its own.
pub(super) struct OwnStore {
    pub(super) store: Arc<MongoStore>,
    /// The collection of its letters.
    pub(super) collection: String,
}

impl Server {
    /// Connects to the server that the environment variable names.
    pub(super) async fn find() -> Result<Self, String> {
        let uri = std::env::var(VARIABLE).map_err(|_| {
            format!("{VARIABLE} is not set; `cargo xtask bench mongodb` starts a server and sets it")
        })?;
        let is_wire_server = std::env::var(KIND).is_ok_and(|kind| kind == WIRE_SERVER);
        Ok(Self { is_wire_server, ..Self::at(uri).await? })
    }

    /// Connects to this server.
    pub(super) async fn at(uri: String) -> Result<Self, String> {
        let client = Client::with_uri_str(&uri).await.map_err(|error| error.to_string())?;
        let database = client.database(&format!("lazaret_bench_{}", std::process::id()));
        Ok(Self { uri, client, database, is_wire_server: false, collections: AtomicU32::new(0) })
    }

    /// Returns a new collection.
    pub(super) fn collection(&self) -> Collection<Document> {
        self.database.collection(&self.new_name())
    }

    /// Returns the name of a new collection.
    pub(super) fn new_name(&self) -> String {
        format!("c{}", self.collections.fetch_add(1, Ordering::Relaxed))
    }

    /// Opens a new store as a daemon does.
    pub(super) async fn store(&self) -> OwnStore {
        let collection = self.new_name();
        let store = open(&self.uri, self.database.name(), collection.clone()).await;
        OwnStore { store, collection }
    }

    /// Drops the database.
    pub(super) async fn clean_up(&self) {
        if let Err(error) = self.database.drop().await {
            eprintln!("failed to drop the database {}: {error}", self.database.name());
        }
    }
}

/// Opens a store as a daemon does, with a client of its own and default options.
pub(super) async fn open(uri: &str, database: &str, collection: String) -> Arc<MongoStore> {
    let database = Some(database.to_owned());
    let options = MongoStoreOptions { database, collection, ..MongoStoreOptions::default() };
    Arc::new(MongoStore::connect(uri, options).await.expect("the server takes a store"))
}
