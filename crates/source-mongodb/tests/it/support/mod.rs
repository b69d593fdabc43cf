//! Shared support of the tests: the server that `LAZARET_TEST_MONGODB` names, a new database for each test, and a scripted server.

pub(crate) mod disturbed;
pub(crate) mod matching;
pub(crate) mod peer;
pub(crate) mod relay;

use std::any::Any;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bson::{Bson, Document, Timestamp, doc};
use lazaret_core::incarnation::{Beginning, Incarnation, IncarnationRegistry, Incarnations};
use lazaret_core::source::{Commit, Source, SourceError, SourceEvent};
use lazaret_core::store::{KeyValue, LetterStore, Locks, Result as StoreResult};
use lazaret_core::{ConsumerName, Message, Operation, Partition, Position};
use lazaret_memory::MemoryStore;
use lazaret_mongodb_testkit::{Cluster, ReplicaSet};
use lazaret_source_mongodb::{
    FullDocument, LeaseOptions, MongoSource, MongoSourceOptions, MongoStatus, RestartPolicy, Start,
};
use mongodb::{Client, Collection};

/// How long to wait for an event that must occur.
pub(crate) const LONG: Duration = Duration::from_secs(240);

/// Returns the server. Without one the test prints that it did not run, and fails when `CI=true`.
pub(crate) fn server() -> Option<String> {
    let server = std::env::var("LAZARET_TEST_MONGODB").ok();
    if server.is_none() {
        let must = std::env::var("CI").is_ok_and(|value| value == "true");
        assert!(!must, "LAZARET_TEST_MONGODB is not set; `cargo xtask test` starts a server and sets it");
        println!(
            "not run: LAZARET_TEST_MONGODB is not set; `cargo xtask services` starts a server and prints it"
        );
    }
    server
}

/// Returns whether there is a server.
pub(crate) fn server_is_there() -> bool {
    server().is_some()
}

fn is_wire_server() -> bool {
    std::env::var("LAZARET_TEST_MONGODB_KIND").is_ok_and(|kind| kind == "wire-server")
}

/// Returns a server that does all that MongoDB does. Prints what was not run on the small wire server.
pub(crate) fn replica_set(what: &str) -> Option<String> {
    let server = server()?;
    if is_wire_server() {
        println!("not run: {what}; the wire server cannot do it, set LAZARET_TEST_MONGODB to a replica set");
        return None;
    }
    Some(server)
}

/// A real server.
pub(crate) struct RealServer {
    pub(crate) uri: String,
    /// The servers that the test has started. They end with this.
    _own: Option<Box<dyn Any>>,
}

impl RealServer {
    fn named(uri: String) -> Self {
        Self { uri, _own: None }
    }

    async fn set(what: &str, members: usize) -> Option<Self> {
        let set = ReplicaSet::for_test(what, members, &[]).await?;
        Some(Self { uri: set.uri(), _own: Some(Box::new(set)) })
    }
}

/// Returns a replica set that other tests may use, too: that of `LAZARET_TEST_MONGODB`, unless it is the small wire server, or an own one.
/// Prints what was not run without one.
pub(crate) async fn real_server(what: &str) -> Option<RealServer> {
    match std::env::var("LAZARET_TEST_MONGODB") {
        Ok(uri) if !is_wire_server() => Some(RealServer::named(uri)),
        _ => RealServer::set(what, 1).await,
    }
}

/// Returns a replica set whose primary may step down, which no other test uses meanwhile: that of `LAZARET_TEST_MONGODB_FAILOVER`, or an own
/// one. Prints what was not run without one.
pub(crate) async fn failover_set(what: &str) -> Option<RealServer> {
    match std::env::var("LAZARET_TEST_MONGODB_FAILOVER") {
        Ok(uri) => Some(RealServer::named(uri)),
        Err(_) => RealServer::set(what, 3).await,
    }
}

/// Returns a cluster of two shards or more: that of `LAZARET_TEST_MONGODB_SHARDED`, or an own one. Prints what was not run without one.
pub(crate) async fn sharded_cluster(what: &str) -> Option<RealServer> {
    if let Ok(uri) = std::env::var("LAZARET_TEST_MONGODB_SHARDED") {
        return Some(RealServer::named(uri));
    }
    let cluster = Cluster::for_test(what, &[1, 1]).await?;
    Some(RealServer { uri: cluster.uri(), _own: Some(Box::new(cluster)) })
}

/// Returns a name that was not used before.
pub(crate) fn unique(prefix: &str) -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let time = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_millis();
    format!("{prefix}_{time}_{}_{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed))
}

/// Times that suit tests.
pub(crate) fn quick(options: MongoSourceOptions) -> MongoSourceOptions {
    MongoSourceOptions {
        lease: LeaseOptions { standby: Duration::from_millis(50), ..LeaseOptions::default() },
        restart: RestartPolicy {
            initial_delay: Duration::from_millis(10),
            max_delay: Duration::from_millis(50),
            ..RestartPolicy::default()
        },
        max_await: Duration::from_millis(100),
        ..options
    }
}

/// A lease that ends soon after a crash.
pub(crate) const SHORT_LEASE: LeaseOptions = LeaseOptions {
    ttl: Duration::from_secs(2),
    renew: Duration::from_millis(200),
    margin: Duration::from_millis(200),
    standby: Duration::from_millis(50),
};

/// Ends the lease of a source that was dropped, as if its time had passed.
pub(crate) async fn expire_lease<S: KeyValue>(store: &S, stream: &str) {
    let name = format!("change-stream/{stream}");
    if let Some(lock) = store.state(&name).await.unwrap() {
        store.release(&name, &lock.owner).await.unwrap();
    }
}

/// A database of its own.
pub(crate) struct Shop {
    pub(crate) uri: String,
    pub(crate) client: Client,
    pub(crate) database: String,
    /// A time before the first write.
    pub(crate) began: Timestamp,
}

impl Shop {
    pub(crate) async fn new(uri: String) -> Self {
        Self::existing(uri, unique("src")).await
    }

    pub(crate) async fn existing(uri: String, database: String) -> Self {
        let client = Client::with_uri_str(&uri).await.unwrap();
        let hello = client.database("admin").run_command(doc! { "hello": 1 }).await.unwrap();
        let now = hello.get_datetime("localTime").unwrap().timestamp_millis() / 1000;
        let began = Timestamp { time: u32::try_from(now).unwrap() - 1, increment: 0 };
        Self { uri, client, database, began }
    }

    pub(crate) fn collection(&self, name: &str) -> Collection<Document> {
        self.client.database(&self.database).collection(name)
    }

    /// The UUID of a collection, as incarnations have it.
    pub(crate) async fn uuid(&self, collection: &str) -> String {
        let command = doc! { "listCollections": 1, "filter": { "name": collection } };
        let listed = self.client.database(&self.database).run_command(command).await.unwrap();
        let found = listed.get_document("cursor").unwrap().get_array("firstBatch").unwrap();
        let info = found[0].as_document().unwrap().get_document("info").unwrap();
        let Some(Bson::Binary(uuid)) = info.get("uuid") else { panic!("{listed}") };
        uuid.to_uuid().unwrap().to_string()
    }

    /// Options for a collection, read from before the first write.
    pub(crate) fn options(&self, collection: &str) -> MongoSourceOptions {
        let options = MongoSourceOptions::collection(&self.uri, &self.database, collection);
        quick(MongoSourceOptions {
            start: Start::At(self.began),
            full_document: FullDocument::UpdateLookup,
            // The wire server sends the drops of all collections.
            operations: vec![Operation::Insert, Operation::Update, Operation::Replace, Operation::Delete],
            ..options
        })
    }

    pub(crate) async fn drop(self) {
        self.client.database(&self.database).drop().await.unwrap();
    }
}

/// The incarnations that the store of a consumer keeps, as its engine gives them to the source.
pub(crate) struct Registry(pub(crate) Arc<MemoryStore>);

impl Registry {
    fn consumer() -> ConsumerName {
        "orders".into()
    }
}

#[async_trait]
impl IncarnationRegistry for Registry {
    async fn incarnations(&self) -> StoreResult<Incarnations> {
        self.0.incarnations(&Self::consumer()).await
    }

    async fn begin(&self, beginning: &Beginning) -> StoreResult<Incarnations> {
        self.0.begin_incarnation(&Self::consumer(), beginning).await
    }
}

/// The incarnation of the stream `orders` that was recorded last.
pub(crate) async fn current_incarnation(store: &MemoryStore) -> Incarnation {
    let known = store.incarnations(&Registry::consumer()).await.unwrap();
    known.current(&Partition::new("orders", 0)).unwrap().clone()
}

/// A source whose events a test takes one by one.
pub(crate) struct Reading {
    pub(crate) source: MongoSource,
    pub(crate) assigned: bool,
    /// What the last assignment said is settled beyond the position.
    pub(crate) settled: Vec<RangeInclusive<u64>>,
    /// The partitions whose incarnation began.
    pub(crate) recreated: Vec<Partition>,
    pub(crate) messages: Vec<Message>,
    pub(crate) errors: Vec<SourceError>,
}

impl Reading {
    pub(crate) fn open(options: MongoSourceOptions, store: Arc<dyn KeyValue>) -> Self {
        Self {
            source: MongoSource::open(options, store).unwrap(),
            assigned: false,
            settled: vec![],
            recreated: vec![],
            messages: vec![],
            errors: vec![],
        }
    }

    /// Opens a source whose incarnations are recorded, as with an engine.
    pub(crate) fn attached(options: MongoSourceOptions, store: &Arc<MemoryStore>) -> Self {
        let mut reading = Self::open(options, store.clone());
        reading.source.attach(Arc::new(Registry(store.clone())));
        reading
    }

    async fn step(&mut self, what: &str) {
        let next = tokio::time::timeout(LONG, self.source.next()).await;
        match next.unwrap_or_else(|_| panic!("timed out waiting until {what}; {:?}", self.status())) {
            Ok(SourceEvent::Assigned(assignments)) => {
                self.assigned = true;
                self.settled = assignments[0].settled.clone();
                self.messages.clear();
            }
            Ok(SourceEvent::Messages(messages)) => self.messages.extend(messages),
            Ok(SourceEvent::Lost(_)) => self.assigned = false,
            Ok(SourceEvent::Recreated(partitions)) => self.recreated.extend(partitions),
            Ok(SourceEvent::Committed(outcome)) => outcome.unwrap(),
            Ok(other) => panic!("unexpected {other:?}"),
            Err(error) => self.errors.push(error),
        }
    }

    /// Takes events until the condition holds.
    pub(crate) async fn until(&mut self, what: &str, holds: impl Fn(&Self) -> bool) {
        while !holds(self) {
            self.step(what).await;
        }
    }

    pub(crate) async fn until_count(&mut self, count: usize) {
        self.until(&format!("{count} messages have come"), |reading| reading.messages.len() >= count).await;
        let (ids, status) = (self.ids(), self.status());
        assert_eq!(ids.len(), count, "{ids:?}; {status:?}; {:?}", self.errors);
    }

    /// Takes events until the status is so.
    pub(crate) async fn until_status(&mut self, what: &str, holds: impl Fn(&MongoStatus) -> bool) {
        let mut status = self.source.status();
        while !holds(&status.borrow_and_update()) {
            let waited = tokio::time::timeout(LONG, async {
                tokio::select! {
                    changed = status.changed() => changed.is_ok(),
                    () = self.step(what) => true,
                }
            });
            assert!(waited.await.is_ok(), "timed out waiting until {what}");
        }
    }

    pub(crate) async fn permanent_error(&mut self) -> String {
        self.until("it fails", |reading| reading.errors.iter().any(|error| !error.is_temporary())).await;
        self.errors.iter().find(|error| !error.is_temporary()).unwrap().to_string()
    }

    pub(crate) fn status(&self) -> MongoStatus {
        self.source.status().borrow().clone()
    }

    /// Commits everything up to the nth message.
    pub(crate) async fn commit(&mut self, nth: usize) {
        self.commit_with(nth, vec![]).await;
    }

    /// The same, with ranges of offsets that are settled beyond it.
    pub(crate) async fn commit_with(&mut self, nth: usize, settled_beyond: Vec<RangeInclusive<u64>>) {
        let position: Position = self.messages[nth].position.clone();
        let partition = self.source.partition();
        let commit = Commit { partition, position: Some(position), settled_beyond };
        self.source.commit(vec![commit]).await.unwrap();
    }

    /// Takes events until an incarnation began, and this many of its messages have come. Until it is assigned, the messages
    /// are those of the one before.
    pub(crate) async fn until_recreated(&mut self, count: usize) {
        let holds = |reading: &Self| {
            reading.recreated.len() == 1 && reading.assigned && reading.messages.len() >= count
        };
        self.until(&format!("{count} messages of another incarnation have come"), holds).await;
        let (ids, status) = (self.ids(), self.status());
        assert_eq!(ids.len(), count, "{ids:?}; {status:?}; {:?}", self.errors);
    }

    /// Drops it as a crash does, and ends its lease.
    pub(crate) async fn crash<S: KeyValue>(self, store: &S) {
        let stream = self.source.partition().stream;
        drop(self);
        expire_lease(store, stream.as_str()).await;
    }

    pub(crate) async fn close(mut self) {
        self.source.close().await.unwrap();
    }

    pub(crate) fn ids(&self) -> Vec<String> {
        self.messages.iter().map(|message| message.id.to_string()).collect()
    }
}
