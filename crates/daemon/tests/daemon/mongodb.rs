//! MongoDB: change streams that are resumed, letters that are kept in MongoDB, and what the doctor says. Needs a server.

use std::collections::BTreeSet;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use bson::{Document, doc};
use mongodb::Client;
use rustix::process::Signal;

use crate::encryption::examine_keys;
use crate::support::{Daemon, Folder, WORKER, ask, event, get, wait_for};

/// A handler over HTTP that refuses poison until it is mended, and writes down what it did.
const HANDLER: &str = r#"
import json, os
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
log = os.open("handled.log", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_POST(self):
        event = json.loads(self.rfile.read(int(self.headers["content-length"] or 0)))
        document = event["fullDocument"]
        fine = document["kind"] != "poison" or os.path.exists("mended")
        if fine:
            os.write(log, f'{document["_id"]["$numberInt"]}\n'.encode())
        self.send_response(204 if fine else 422)
        self.send_header("content-length", "0")
        self.end_headers()
    def log_message(self, *arguments):
        pass
server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
with open("port.new", "w") as file:
    file.write(str(server.server_port))
os.rename("port.new", "port")
server.serve_forever()
"#;

/// A server, and a database of its own for each test.
pub(crate) struct Shop {
    pub(crate) uri: String,
    pub(crate) database: String,
    pub(crate) client: Client,
}

impl Shop {
    /// Without a server the test says that it did not run, and fails where everything must run.
    pub(crate) async fn open() -> Option<Self> {
        let Ok(uri) = std::env::var("LAZARET_TEST_MONGODB") else {
            let must = std::env::var("CI").is_ok_and(|value| value == "true");
            assert!(!must, "LAZARET_TEST_MONGODB is not set; `cargo xtask test` starts a server and sets it");
            println!(
                "not run: LAZARET_TEST_MONGODB is not set; `cargo xtask services` starts a server and prints it"
            );
            return None;
        };
        Some(Self::at(uri).await)
    }

    /// A database of this server.
    pub(crate) async fn at(uri: String) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let time = jiff::Timestamp::now().as_millisecond();
        let database = format!("daemon_{time}_{}_{number}", std::process::id());
        let client = Client::with_uri_str(&uri).await.unwrap();
        Self { uri, database, client }
    }

    /// The URI of a store of its own.
    pub(crate) fn store(&self) -> String {
        self.store_in(&format!("{}_store", self.database))
    }

    /// The URI of a store in this database.
    pub(crate) fn store_in(&self, database: &str) -> String {
        let (server, options) = self.uri.split_once('?').unwrap_or((&self.uri, ""));
        format!("{}/{database}?{options}", server.trim_end_matches('/'))
    }

    /// Only inserts: a small server also sends the drops of other databases.
    pub(crate) fn source(&self) -> String {
        format!(
            "{{ mongodb: {{ uri: '{}', database: {}, collection: orders, operation-types: [insert] }} }}",
            self.uri, self.database
        )
    }

    pub(crate) async fn insert(&self, orders: impl IntoIterator<Item = (i32, &str)>) {
        let orders = orders.into_iter().map(|(n, kind)| doc! { "_id": n, "kind": kind });
        self.client.database(&self.database).collection("orders").insert_many(orders).await.unwrap();
    }

    /// Number of letters whose ends are listed for a mirror.
    #[cfg(feature = "kafka")]
    pub(crate) async fn ends(&self) -> u64 {
        let ends = self
            .client
            .database(&format!("{}_store", self.database))
            .collection::<Document>("lazaret_letters_ends");
        ends.count_documents(doc! { "forgottenAt": { "$exists": false } }).await.unwrap()
    }

    pub(crate) async fn close(self) {
        for database in [self.database.clone(), format!("{}_store", self.database)] {
            self.client.database(&database).drop().await.unwrap();
        }
    }
}

/// A handler that runs.
pub(crate) struct Handler {
    child: Child,
    folder: Folder,
}

impl Handler {
    pub(crate) fn start() -> Self {
        let folder = Folder::new();
        folder.write("handler.py", HANDLER);
        let child = Command::new("python3")
            .arg("handler.py")
            .current_dir(folder.path("."))
            .stdin(Stdio::null())
            .spawn();
        let handler = Self { child: child.unwrap(), folder };
        wait_for("the handler", || handler.folder.path("port").exists().then_some(()));
        handler
    }

    fn handled(&self) -> Vec<i32> {
        self.folder.read("handled.log").lines().filter_map(|line| line.parse().ok()).collect()
    }

    pub(crate) fn waits_for(&self, orders: impl IntoIterator<Item = i32>) {
        let expected: BTreeSet<i32> = orders.into_iter().collect();
        wait_for("the orders", || {
            let handled: BTreeSet<i32> = self.handled().into_iter().collect();
            expected.is_subset(&handled).then_some(())
        });
    }
}

impl Drop for Handler {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) fn folder(store: &str, source: &str, handler: &Handler) -> Folder {
    let folder = Folder::new();
    let config = format!(
        "
listen: 127.0.0.1:0
store: '{store}'
consumers:
  shop:
    source: {source}
    handler: {{ http: {{ url: 'http://127.0.0.1:{}/' }} }}
    retry: {{ initial-delay: 5ms, max-delay: 20ms }}
    breaker: off
    advanced: {{ lease: 10s, refresh: 100ms, commit-interval: 50ms }}
",
        handler.folder.read("port")
    );
    folder.write("lazaret.yaml", &config);
    folder
}

/// A folder whose consumer reads a file, and keeps its letters in MongoDB.
fn folder_of_file(shop: &Shop) -> Folder {
    let folder = Folder::new();
    let config = format!(
        "
listen: 127.0.0.1:0
store: '{}'
consumers:
  shop:
    source: {{ file: {{ path: events.jsonl }} }}
    handler: {{ command: {{ program: [python3, handler.py], mode: lines, workers: 2 }} }}
    retry: {{ initial-delay: 5ms, max-delay: 20ms, hold: 10ms }}
",
        shop.store()
    );
    folder.write("lazaret.yaml", &config);
    folder.write("handler.py", WORKER);
    folder
}

/// Waits until the stream has a position that survives a crash: what is inserted from then on is read.
pub(crate) fn waits_for_position(daemon: &mut Daemon) -> String {
    let address = daemon.address();
    wait_for("the position of the stream", || {
        let (_, metrics) = get(&address, "/metrics");
        let age = metrics.lines().find_map(|line| {
            line.strip_prefix("lazaret_mongodb_token_age_seconds{consumer=\"shop\"} ").map(str::to_owned)
        });
        age.filter(|age| age != "NaN").map(|_| ())
    });
    address
}

pub(crate) fn waits_for_status(address: &str, words: &str) {
    wait_for(words, || get(address, "/v1/status").1.contains(words).then_some(()));
}

fn retry_all(address: &str) {
    let begin = "{\"action\": \"retry\", \"query\": \"\", \"all\": true, \"reason\": \"mended\"}";
    let (status, body) = ask(address, "POST", "/v1/operations", "content-type: application/json\r\n", begin);
    assert_eq!(status, 201, "{body}");
}

/// A change that fails becomes a letter, and its replay resolves it.
async fn story(shop: &Shop, store: &str) {
    let handler = Handler::start();
    let folder = folder(store, &shop.source(), &handler);
    // Nobody takes over here: a server that is slower than a short lease must not cause a second attempt.
    folder.write("lazaret.yaml", &folder.read("lazaret.yaml").replace("lease: 10s", "lease: 60s"));
    let mut daemon = folder.start(&["run"]);
    let address = waits_for_position(&mut daemon);
    shop.insert([(1, "fine"), (2, "poison"), (3, "fine")]).await;
    handler.waits_for([1, 3]);
    waits_for_status(&address, "\"dead\":1");
    handler.folder.write("mended", "");
    retry_all(&address);
    handler.waits_for([2]);
    waits_for_status(&address, "\"dead\":0");
    daemon.signal(Signal::TERM);
    assert_eq!(daemon.wait().code(), Some(0), "{}", folder.read("stderr.log"));
    let mut handled = handler.handled();
    handled.sort_unstable();
    assert_eq!(handled, [1, 2, 3], "each once");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_that_fails_becomes_a_letter_and_its_replay_resolves_it() {
    // I1
    let Some(shop) = Shop::open().await else { return };
    story(&shop, "sqlite:lazaret.db").await;
    shop.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changes_and_letters_may_be_in_one_server() {
    // I1
    let Some(shop) = Shop::open().await else { return };
    story(&shop, &shop.store()).await;
    shop.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_daemon_that_is_killed_resumes_where_it_was() {
    // I1
    let Some(shop) = Shop::open().await else { return };
    let handler = Handler::start();
    let folder = folder("sqlite:lazaret.db", &shop.source(), &handler);
    let mut daemon = folder.start(&["run"]);
    waits_for_position(&mut daemon);
    shop.insert((0..20).map(|n| (n, "fine"))).await;
    handler.waits_for([5]);
    daemon.kill();
    // While it is down.
    shop.insert((20..40).map(|n| (n, "fine"))).await;
    let mut daemon = folder.start(&["run"]);
    handler.waits_for(0..40);
    daemon.logs("listening", 2);
    let address = daemon.address();
    waits_for_status(&address, "\"in-flight\":0");
    assert!(get(&address, "/v1/status").1.contains("\"dead\":0"));
    daemon.signal(Signal::TERM);
    assert_eq!(daemon.wait().code(), Some(0), "{}", folder.read("stderr.log"));
    shop.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn letters_of_a_file_are_kept_in_mongodb() {
    // I1, I8
    let Some(shop) = Shop::open().await else { return };
    let folder = folder_of_file(&shop);
    let kinds = ["fine", "poison", "flaky", "fine"];
    let lines: String = kinds.iter().enumerate().map(|(n, kind)| event(n, &format!("k{n}"), kind)).collect();
    folder.write("events.jsonl", &lines);
    for _ in 0..2 {
        // A second run finds nothing to do, and the same letter.
        assert_eq!(folder.run(&["run", "--until-idle"]), 3, "{}", folder.read("stderr.log"));
    }
    let store = shop.client.database(&format!("{}_store", shop.database));
    let letters = store.collection::<Document>("lazaret_letters");
    let dead = letters.find_one(doc! { "stream": { "$exists": true }, "error.message": "never works" });
    assert!(dead.await.unwrap().is_some(), "the letter has the names of its fields");
    let done = folder.read("attempts.log");
    assert_eq!(done.lines().filter(|line| line.ends_with(" handled")).count(), 3, "{done}");
    shop.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_doctor_decrypts_the_data_keys_of_a_store_in_mongodb() {
    let Some(shop) = Shop::open().await else { return };
    let here = folder_of_file(&shop);
    here.write("events.jsonl", &event(0, "k", "fine"));
    examine_keys(&here);
    shop.close().await;
}

/// What the doctor says about the configuration in a folder.
pub(crate) fn examine(folder: &Folder) -> String {
    let doctor = Command::new(env!("CARGO_BIN_EXE_lazaret-daemon"))
        .arg("doctor")
        .current_dir(folder.path("."))
        .output();
    String::from_utf8(doctor.unwrap().stdout).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dead_letters_of_a_consumer_are_copied_into_a_collection_of_its_own() {
    let Some(shop) = Shop::open().await else { return };
    let folder = Folder::new();
    let config = format!(
        "
listen: 127.0.0.1:0
store: sqlite:lazaret.db
consumers:
  shop:
    source: {{ file: {{ path: events.jsonl }} }}
    handler: {{ command: {{ program: [python3, handler.py], mode: lines, workers: 2 }} }}
    retry: {{ initial-delay: 5ms, max-delay: 20ms, hold: 10ms }}
    dead-letter: {{ collection: shop_dlq, collection-uri: '{}' }}
",
        shop.store()
    );
    folder.write("lazaret.yaml", &config);
    folder.write("handler.py", WORKER);
    folder.write("events.jsonl", &(event(0, "k0", "fine") + &event(1, "k1", "poison")));
    assert_eq!(folder.run(&["run", "--until-idle"]), 3, "{}", folder.read("stderr.log"));
    let copies = shop.client.database(&format!("{}_store", shop.database)).collection::<Document>("shop_dlq");
    let copy = copies.find_one(doc! { "status": "PENDING", "error.message": "never works" }).await.unwrap();
    let copy = copy.expect("a run until idle waits for the copies");
    assert_eq!(copy.get_i32("attempts").unwrap(), 1, "the handler decided: {copy}");
    assert!(copy.get_datetime("expiresAt").unwrap() > copy.get_datetime("createdAt").unwrap());
    let said = examine(&folder);
    let place = format!("ok    shop dead letters: copies go to {}_store.shop_dlq at ", shop.database);
    assert!(said.contains(&place), "{said}");
    shop.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_of_two_daemons_reads_and_the_other_takes_over() {
    // I6
    let Some(shop) = Shop::open().await else { return };
    let handler = Handler::start();
    let folders = [0, 1].map(|_| folder(&shop.store(), &shop.source(), &handler));
    let mut first = folders[0].start(&["run"]);
    waits_for_position(&mut first);
    let mut second = folders[1].start(&["run"]);
    let standby = second.address();
    waits_for_status(&standby, "standing by: the instance ");
    shop.insert([(1, "fine")]).await;
    handler.waits_for([1]);
    assert!(get(&standby, "/v1/status").1.contains("standing by"));
    first.signal(Signal::TERM);
    assert_eq!(first.wait().code(), Some(0), "{}", folders[0].read("stderr.log"));
    shop.insert([(2, "fine")]).await;
    handler.waits_for([2]);
    wait_for("the end of the standby", || {
        (!get(&standby, "/v1/status").1.contains("standing by")).then_some(())
    });
    second.signal(Signal::TERM);
    assert_eq!(second.wait().code(), Some(0), "{}", folders[1].read("stderr.log"));
    assert_eq!(handler.handled(), [1, 2], "each once");
    shop.close().await;
}

#[test]
fn a_server_that_is_away_is_named_without_its_password() {
    let handler = Handler::start();
    let away = "mongodb://lazaret:hunter2@127.0.0.1:1/lazaret?serverSelectionTimeoutMS=300";
    let store = folder(away, "{ file: { path: events.jsonl } }", &handler);
    assert_eq!(store.run(&["run"]), 1);
    let said = store.read("stderr.log");
    assert!(said.contains("LZ0221: failed to open the store `mongodb at 127.0.0.1:1`"), "{said}");
    assert!(said.contains("start the server") && !said.contains("hunter2"), "{said}");
    // A source waits for its server, and other consumers run meanwhile.
    let source = format!("{{ mongodb: {{ uri: '{away}', database: shop, collection: orders }} }}");
    let source = folder("sqlite:lazaret.db", &source, &handler);
    let mut daemon = source.start(&["run"]);
    let address = daemon.address();
    waits_for_status(&address, "no connection to the server");
    let (_, status) = get(&address, "/v1/status");
    assert!(status.contains("Connection refused") && !status.contains("Topology"), "{status}");
    let (code, reasons) = get(&address, "/readyz");
    assert!(code == 503 && reasons.contains("shop is not ready"), "{code} {reasons}");
    assert!(status.contains("\"state\":\"running\"") && !status.contains("hunter2"), "{status}");
    daemon.signal(Signal::TERM);
    assert_eq!(daemon.wait().code(), Some(0), "{}", source.read("stderr.log"));
    assert!(!source.read("stderr.log").contains("hunter2"));
}

#[test]
fn what_the_store_in_mongodb_does_not_have_is_refused_before_the_start() {
    let handler = Handler::start();
    let store = "mongodb://127.0.0.1:1/lazaret";
    let inbox = folder(store, "{ inbox: {} }", &handler);
    assert_eq!(inbox.run(&["check"]), 1);
    let said = inbox.read("stderr.log");
    assert!(said.contains("does not support the source `inbox` with the store `mongodb`"), "{said}");
    let source = "{ mongodb: { uri: 'mongodb://127.0.0.1:1', pipeline: [{ $unset: _id }] } }";
    let pipeline = folder("sqlite:lazaret.db", source, &handler);
    assert_eq!(pipeline.run(&["check"]), 1);
    let said = pipeline.read("stderr.log");
    assert!(said.contains("LZ0146") && said.contains("resume token"), "{said}");
    let source = "{ mongodb: { uri: 'mongodb://a:hunter2@127.0.0.1:1/?readPreference=nearby' } }";
    let uris = folder("mongodb://127.0.0.1:1/lazaret?maxPoolSize=many", source, &handler);
    assert_eq!(uris.run(&["check"]), 1);
    let said = uris.read("stderr.log");
    assert!(said.contains("LZ0137") && said.contains("LZ0138") && !said.contains("hunter2"), "{said}");
}

#[test]
fn a_change_stream_has_no_end() {
    let handler = Handler::start();
    let source = "{ mongodb: { uri: 'mongodb://127.0.0.1:1', database: shop } }";
    let folder = folder("sqlite:lazaret.db", source, &handler);
    assert_eq!(folder.run(&["run", "--until-idle"]), 1);
    let said = folder.read("stderr.log");
    assert!(said.contains("the source `mongodb` has no end"), "{said}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_doctor_examines_the_server() {
    let Some(shop) = Shop::open().await else { return };
    let handler = Handler::start();
    let here = folder(&shop.store(), &shop.source(), &handler);
    let said = examine(&here);
    assert!(said.contains("orders does not exist yet"), "{said}");
    assert!(said.contains(&format!("store: the database {}_store at ", shop.database)), "{said}");
    shop.insert([(1, "fine")]).await;
    let said = examine(&here);
    assert!(said.contains(&format!("ok    shop source: {}.orders exists", shop.database)), "{said}");
    assert!(!said.contains("FAIL"), "{said}");
    // What cannot be checked is a warning; each has an advice.
    let warnings = said.lines().filter(|line| line.starts_with("warn")).count();
    let advices = said.lines().filter(|line| line.starts_with("      ")).count();
    assert!(said.contains("oplog") && advices >= warnings, "{said}");
    // What the store refuses at the start, the doctor refuses before.
    let letters = format!("{}_store", shop.database);
    let ttl = doc! {
        "createIndexes": "lazaret_letters",
        "indexes": [{ "key": { "failedAt": 1 }, "name": "old", "expireAfterSeconds": 60 }],
    };
    shop.client.database(&letters).run_command(ttl).await.unwrap();
    let said = examine(&here);
    assert!(said.contains("FAIL  store: collection") && said.contains("the TTL index old"), "{said}");
    assert_eq!(here.run(&["run"]), 1);
    assert!(here.read("stderr.log").contains("the TTL index old"), "{}", here.read("stderr.log"));
    let away = "mongodb://lazaret:hunter2@127.0.0.1:1/?serverSelectionTimeoutMS=300";
    let source = format!("{{ mongodb: {{ uri: '{away}', database: shop, collection: orders }} }}");
    let said = examine(&folder(away, &source, &handler));
    assert!(said.contains("FAIL  shop source: no response from the server 127.0.0.1:1"), "{said}");
    assert!(said.contains("FAIL  store: no response from the server 127.0.0.1:1"), "{said}");
    assert!(!said.contains("hunter2"), "{said}");
    shop.close().await;
}
