//! The server of the tests, and a store in a database of its own.

pub(crate) mod relay;
pub(crate) mod running;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use bson::doc;
use lazaret_core::Clock;
use lazaret_store_mongodb::{Layout, MongoStore, MongoStoreOptions};
use mongodb::Client;

/// Returns the URI of the server. Without one the test prints that it did not run, and fails when `CI=true`.
pub(crate) fn server() -> Option<String> {
    let uri = std::env::var("LAZARET_TEST_MONGODB").ok();
    if uri.is_none() {
        let must = std::env::var("CI").is_ok_and(|value| value == "true");
        assert!(!must, "LAZARET_TEST_MONGODB is not set; `cargo xtask test` starts a server and sets it");
        println!(
            "not run: LAZARET_TEST_MONGODB is not set; `cargo xtask services` starts a server and prints it"
        );
    }
    uri
}

/// Returns whether there is a server.
pub(crate) fn server_is_there() -> bool {
    server().is_some()
}

/// Returns the URI of the router of a cluster. Without one the test prints that it did not run.
pub(crate) fn cluster() -> Option<String> {
    let uri = std::env::var("LAZARET_TEST_MONGODB_SHARDED").ok();
    if uri.is_none() {
        println!("not run: the suites on a cluster; LAZARET_TEST_MONGODB_SHARDED names none");
    }
    uri
}

/// Returns whether there is a cluster.
pub(crate) fn cluster_is_there() -> bool {
    cluster().is_some()
}

/// Options of the collection and the layout of the fixtures in this database.
pub(crate) fn options_of(database: String) -> MongoStoreOptions {
    let (collection, layout) = ("_fw_dlq".to_owned(), Layout::FlowWarden);
    MongoStoreOptions { database: Some(database), collection, layout, ..MongoStoreOptions::default() }
}

/// A database of its own, which is dropped with this.
pub(crate) struct TestDatabase {
    pub(crate) uri: String,
    pub(crate) name: String,
}

impl TestDatabase {
    pub(crate) fn new(uri: String) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let time = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_micros();
        // The wire server of the tests keeps databases of this name out of its oplog.
        let name = format!("lzs_{time}_{}_{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        Self { uri, name }
    }

    /// Options of the collection and the layout of the fixtures.
    pub(crate) fn options(&self, clock: Option<Arc<dyn Clock>>) -> MongoStoreOptions {
        MongoStoreOptions { clock, ..options_of(self.name.clone()) }
    }

    pub(crate) fn default_options(&self) -> MongoStoreOptions {
        MongoStoreOptions { database: Some(self.name.clone()), ..MongoStoreOptions::default() }
    }

    pub(crate) async fn open(&self, clock: Option<Arc<dyn Clock>>) -> MongoStore {
        MongoStore::connect(&self.uri, self.options(clock)).await.unwrap()
    }

    /// Shards the collections of the store, as its users do.
    pub(crate) async fn shard(&self) {
        let client = Client::with_uri_str(&self.uri).await.unwrap();
        let admin = client.database("admin");
        admin.run_command(doc! { "enableSharding": &self.name }).await.unwrap();
        for collection in MongoStore::collections(&client, &self.name, self.options(None)) {
            let Some(key) = collection.shard_key else { continue };
            let of = format!("{}.{}", self.name, collection.name);
            admin.run_command(doc! { "shardCollection": of, "key": key }).await.unwrap();
        }
    }

    pub(crate) async fn database(&self) -> mongodb::Database {
        Client::with_uri_str(&self.uri).await.unwrap().database(&self.name)
    }
}

impl Drop for TestDatabase {
    fn drop(&mut self) {
        let (uri, name) = (self.uri.clone(), self.name.clone());
        // The runtime of the test may be on its way out.
        let dropping = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let client = Client::with_uri_str(uri).await.unwrap();
                client.database(&name).drop().await.ok();
            });
        });
        dropping.join().ok();
    }
}

/// A store whose database is dropped with it.
pub(crate) struct TestStore {
    store: MongoStore,
    _database: TestDatabase,
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
    let database = TestDatabase::new(server().expect("the suite runs only with a server"));
    TestStore { store: database.open(Some(clock)).await, _database: database }
}

/// An empty store, spread over the shards of a cluster.
pub(crate) async fn sharded_store(clock: Arc<dyn Clock>) -> TestStore {
    let database = TestDatabase::new(cluster().expect("the suite runs only with a cluster"));
    database.shard().await;
    TestStore { store: database.open(Some(clock)).await, _database: database }
}
