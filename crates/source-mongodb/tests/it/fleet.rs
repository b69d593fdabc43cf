//! Four processes on one replica set, which has the watched collection and the store: processes and primaries are killed, and nothing is
//! lost, reordered or run by two at once.
//!
//! The test starts the servers: `LAZARET_TEST_MONGOD` names the program. Each process is this program once more, as `member`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bson::{Document as BsonDocument, doc};
use lazaret_core::handler::Attempt;
use lazaret_core::policy::{PoisonPolicy, RetryPolicy, Strategy};
use lazaret_core::query::Query;
use lazaret_core::store::{Audit, LetterStore, Triage};
use lazaret_core::{HandlerError, Letter, LetterState, QueueName};
use lazaret_engine::{Consumer, Options};
use lazaret_mongodb_testkit::ReplicaSet;
use lazaret_source_mongodb::{Document, LeaseOptions, MongoSource, MongoSourceOptions, Start};
use lazaret_store_mongodb::{MongoStore, MongoStoreOptions};
use mongodb::Collection;
use mongodb::options::WriteConcern;
use serde::Deserialize;
use tempfile::TempDir;
use tokio_util::sync::CancellationToken;

use crate::support::disturbed::until;
use crate::support::{LONG, Shop};

/// Says to a process of this test that it is a member of the fleet, and all that it needs: `process uri database began folder`.
const MEMBER: &str = "LAZARET_MONGODB_FLEET_MEMBER";
const PROCESSES: usize = 4;
const KEYS: i64 = 12;
/// The messages of each key before a fault.
const PER_FAULT: i64 = 5;
/// Every kind of fault twice.
const FAULTS: usize = 6;
/// How long leases last: longer than an election takes, and not much longer, as nobody works on what a killed process has leased.
const LEASE: Duration = Duration::from_secs(12);
/// How long a handler works, so that two of them would be seen.
const WORK: Duration = Duration::from_millis(3);

#[derive(Clone, Copy, Deserialize)]
struct Order {
    number: i64,
}

impl Order {
    fn key(self) -> i64 {
        self.number % KEYS
    }

    /// How often its handler fails first.
    fn failures(self) -> u32 {
        (self.number / KEYS % 3) as u32
    }
}

fn queue() -> QueueName {
    QueueName::of("orders", "orders")
}

/// What a line of the journal tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    Begin,
    Handled,
    Failed,
    /// An attempt was given up, as when its lease was lost.
    Dropped,
    /// The process is dead.
    Killed,
}

const WORDS: [(What, &str); 5] = [
    (What::Begin, "begin"),
    (What::Handled, "handled"),
    (What::Failed, "failed"),
    (What::Dropped, "dropped"),
    (What::Killed, "killed"),
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Line {
    process: u32,
    what: What,
    number: i64,
}

/// The journal, which all processes share. Each line is appended by one write, so the order of lines is that of time.
struct Journal(File);

impl Journal {
    fn open(folder: &Path) -> Self {
        Self(OpenOptions::new().append(true).create(true).open(folder.join("journal")).unwrap())
    }

    fn note(&self, line: Line) {
        let (_, word) = WORDS.iter().find(|(what, _)| *what == line.what).unwrap();
        (&self.0).write_all(format!("{} {word} {}\n", line.process, line.number).as_bytes()).unwrap();
    }

    fn read(folder: &Path) -> Vec<Line> {
        let line = |text: &str| {
            let [process, word, number] = text.split(' ').collect::<Vec<_>>().try_into().unwrap();
            let (what, _) = WORDS.iter().find(|(_, known)| *known == word).unwrap();
            Line { process: process.parse().unwrap(), what: *what, number: number.parse().unwrap() }
        };
        let text = std::fs::read_to_string(folder.join("journal")).unwrap_or_default();
        // Somebody may be writing the last one.
        text.split_inclusive('\n').filter_map(|text| text.strip_suffix('\n')).map(line).collect()
    }
}

/// What is wrong with a journal: two processes work on a key at once (I6), or a message overtakes one of its key (I2).
fn violations(journal: &[Line]) -> Vec<String> {
    let mut running: BTreeMap<i64, Vec<Line>> = BTreeMap::new();
    let (mut handled, mut wrong) = (BTreeSet::new(), Vec::new());
    for line in journal {
        let order = Order { number: line.number };
        let of_key = running.entry(order.key()).or_default();
        match line.what {
            What::Begin => {
                if !of_key.is_empty() {
                    wrong.push(format!("{line:?} begins beside {of_key:?}"));
                }
                let mut earlier = (order.key()..line.number).step_by(KEYS as usize);
                if let Some(earlier) = earlier.find(|earlier| !handled.contains(earlier)) {
                    wrong.push(format!("{line:?} begins before {earlier} is handled"));
                }
                of_key.push(*line);
                continue;
            }
            What::Handled => drop(handled.insert(line.number)),
            What::Failed | What::Dropped => {}
            What::Killed => {
                running.values_mut().for_each(|of_key| of_key.retain(|begun| begun.process != line.process));
                continue;
            }
        }
        of_key.retain(|begun| (begun.process, begun.number) != (line.process, line.number));
    }
    wrong
}

/// An attempt under way.
struct Run {
    journal: Arc<Journal>,
    line: Line,
}

impl Run {
    fn begin(journal: Arc<Journal>, process: u32, order: Order) -> Self {
        journal.note(Line { process, what: What::Begin, number: order.number });
        let line = Line { process, what: What::Dropped, number: order.number };
        Self { journal, line }
    }

    fn end(mut self, is_handled: bool) {
        self.line.what = if is_handled { What::Handled } else { What::Failed };
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        self.journal.note(self.line);
    }
}

fn source_options(shop: &Shop, began: u32) -> MongoSourceOptions {
    let (renew, margin) = (Duration::from_secs(1), Duration::from_secs(2));
    MongoSourceOptions {
        start: Start::At(bson::Timestamp { time: began, increment: 0 }),
        lease: LeaseOptions { ttl: LEASE, renew, margin, standby: Duration::from_millis(200) },
        ..shop.options("orders")
    }
}

fn consumer_options(process: u32) -> Options {
    let retry = RetryPolicy {
        strategy: Strategy::Ordered,
        // What fails goes to the store, where each process may find it.
        hold: Duration::ZERO,
        max_attempts: 100,
        max_crashes: 0,
        initial_delay: Duration::from_millis(20),
        max_delay: Duration::from_millis(100),
        ..RetryPolicy::default()
    };
    Options {
        retry,
        breaker: None,
        fuse: None,
        poison: PoisonPolicy { same_failure: None },
        commit_interval: Duration::from_millis(50),
        lease: LEASE,
        refresh: Duration::from_millis(250),
        instance: format!("process-{process}"),
        ..Options::default()
    }
}

/// The store of the fleet. A set that elects a primary has none for a while.
async fn open_store(uri: &str, database: &str) -> MongoStore {
    let name = format!("{database}_letters");
    until("a store", || async {
        let options = MongoStoreOptions { database: Some(name.clone()), ..MongoStoreOptions::default() };
        MongoStore::connect(uri, options).await.ok()
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "run by the test below as a process"]
async fn member() {
    let arguments = std::env::var(MEMBER).expect("run by the test");
    let [process, uri, database, began, folder] =
        arguments.split(' ').collect::<Vec<_>>().try_into().unwrap();
    let process = process.parse().unwrap();
    let store = Arc::new(open_store(uri, database).await);
    let shop = Shop::existing(uri.to_owned(), database.to_owned()).await;
    let journal = Arc::new(Journal::open(Path::new(folder)));
    let handler = move |Document(order): Document<Order>, Attempt(attempt): Attempt| {
        let run = Run::begin(journal.clone(), process, order);
        async move {
            tokio::time::sleep(WORK).await;
            let is_handled = attempt > order.failures();
            run.end(is_handled);
            if is_handled { Ok(()) } else { Err(HandlerError::msg("not yet")) }
        }
    };
    let source = MongoSource::open(source_options(&shop, began.parse().unwrap()), store.clone()).unwrap();
    let consumer = Consumer::builder("orders").source(source).store(store).handler(handler);
    let consumer = consumer.options(consumer_options(process)).build().unwrap();
    let drain = CancellationToken::new();
    let ends = drain.clone();
    // The test closes the input when the process is to end.
    std::thread::spawn(move || {
        std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
        ends.cancel();
    });
    Box::pin(consumer.run(drain)).await.unwrap();
}

/// The processes.
struct Fleet {
    shop: Shop,
    folder: TempDir,
    journal: Journal,
    processes: Vec<(u32, Child)>,
    started: u32,
}

impl Fleet {
    fn start(shop: Shop) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let journal = Journal::open(folder.path());
        let mut fleet = Self { shop, folder, journal, processes: Vec::new(), started: 0 };
        (0..PROCESSES).for_each(|_| fleet.launch());
        fleet
    }

    fn launch(&mut self) {
        self.started += 1;
        let Shop { uri, database, began, .. } = &self.shop;
        let arguments =
            format!("{} {uri} {database} {} {}", self.started, began.time, self.folder.path().display());
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["fleet::member", "--exact", "--ignored", "--nocapture"]).env(MEMBER, arguments);
        let child = command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        self.processes.push((self.started, child));
    }

    fn lines(&self) -> Vec<Line> {
        Journal::read(self.folder.path())
    }

    /// Kills the process that began the last attempt, or another one, and starts one in its place.
    fn kill(&mut self, is_active: bool) {
        let lines = self.lines();
        let last = lines.iter().rfind(|line| line.what == What::Begin).unwrap().process;
        let place = self.processes.iter().position(|(process, _)| (*process == last) == is_active).unwrap();
        let (process, mut child) = self.processes.remove(place);
        child.kill().unwrap();
        assert!(!child.wait().unwrap().success(), "process {process} ran until then");
        self.journal.note(Line { process, what: What::Killed, number: 0 });
        self.launch();
    }

    /// Waits until so many messages are handled.
    async fn until_handled(&mut self, count: usize) {
        let started = Instant::now();
        loop {
            let lines = self.lines();
            let handled = lines.iter().filter(|line| line.what == What::Handled).map(|line| line.number);
            let handled: BTreeSet<i64> = handled.collect();
            if handled.len() >= count {
                return;
            }
            assert!(started.elapsed() < LONG, "{} of {count} messages are handled", handled.len());
            for (process, child) in &mut self.processes {
                assert!(child.try_wait().unwrap().is_none(), "process {process} ended by itself");
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Lets all processes end in good order.
    fn end(&mut self) {
        self.processes.iter_mut().for_each(|(_, child)| drop(child.stdin.take()));
        for (process, child) in &mut self.processes {
            assert!(child.wait().unwrap().success(), "process {process}");
        }
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        for (_, child) in &mut self.processes {
            // It may have ended already.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Writes the next messages of all keys, one after the other. A repeated one changes nothing, and is no event.
async fn write(orders: &Collection<BsonDocument>, numbers: std::ops::Range<i64>) {
    for number in numbers {
        let key = format!("k{}", Order { number }.key());
        until("a primary that keeps a document", || async {
            let document = doc! { "_id": &key, "number": number };
            let written = orders.replace_one(doc! { "_id": &key }, document).upsert(true);
            written.write_concern(WriteConcern::majority()).await.ok()
        })
        .await;
    }
}

/// Waits until no letter is open. Returns all that are closed.
async fn closed_letters(store: &MongoStore, at_most: usize) -> Vec<Letter> {
    until("the end of all letters", || async {
        let counts = store.counts(&queue()).await.ok()?;
        (counts.open() == 0).then_some(())
    })
    .await;
    store.find(&Query::parse("state:closed").unwrap(), None, at_most).await.unwrap().letters
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fleet_whose_processes_and_primaries_are_killed_loses_reorders_and_doubles_nothing() {
    // I1, I2, I6, I8, I11
    let Some(mut set) = ReplicaSet::for_test("a fleet of four processes", 3, &[]).await else { return };
    let mut fleet = Fleet::start(Shop::new(set.uri()).await);
    let orders = fleet.shop.collection("orders");
    let (each, mut sent) = (KEYS * PER_FAULT, 0);
    for fault in 0..FAULTS {
        write(&orders, sent..sent + each).await;
        // Some of them are handled, and some are not.
        fleet.until_handled((sent + each / 3) as usize).await;
        sent += each;
        match fault % 3 {
            0 => fleet.kill(true),
            1 => kill_primary(&mut set, &orders, &mut sent).await,
            _ => {
                fleet.kill(false);
                kill_primary(&mut set, &orders, &mut sent).await;
            }
        }
    }
    write(&orders, sent..sent + each).await;
    sent += each;
    fleet.until_handled(sent as usize).await;
    let store = open_store(&fleet.shop.uri, &fleet.shop.database).await;
    let letters = closed_letters(&store, 2 * sent as usize).await;
    fleet.end();
    let wrong = violations(&fleet.lines());
    assert!(wrong.is_empty(), "{} violations: {:?}", wrong.len(), &wrong[..wrong.len().min(5)]);
    assert_letters(&store, &letters, sent).await;
}

/// Kills the primary, writes to the next one, and starts the killed one again.
async fn kill_primary(set: &mut ReplicaSet, orders: &Collection<BsonDocument>, sent: &mut i64) {
    let primary = set.primary().await;
    set.kill(primary);
    write(orders, *sent..*sent + KEYS).await;
    *sent += KEYS;
    set.restart(primary).await;
    set.until_caught_up(primary).await;
}

/// Each message that failed has one letter, which is resolved, and the counters and the audit are right.
async fn assert_letters(store: &MongoStore, letters: &[Letter], sent: i64) {
    let number = |letter: &Letter| -> i64 {
        let payload: serde_json::Value =
            serde_json::from_slice(letter.message.payload.as_deref().unwrap()).unwrap();
        let text = payload["fullDocument"]["number"]["$numberLong"].as_str().unwrap();
        text.parse().unwrap()
    };
    let numbers: BTreeSet<i64> = letters.iter().map(number).collect();
    assert_eq!(numbers.len(), letters.len(), "no message has two letters");
    let failed = (0..sent).filter(|number| Order { number: *number }.failures() > 0);
    let without: Vec<i64> = failed.filter(|number| !numbers.contains(number)).collect();
    assert!(without.is_empty(), "no letter: {without:?}");
    let counts = store.counts(&queue()).await.unwrap();
    assert_eq!((counts.open(), counts.of(LetterState::Resolved)), (0, letters.len() as u64));
    let audit = store.verify_audit().await.unwrap().unwrap_or_default();
    assert_eq!(audit.broken, None);
    println!("{sent} messages, {} letters, {} entries of the audit", letters.len(), audit.intact);
}

fn line(process: u32, what: What, number: i64) -> Line {
    Line { process, what, number }
}

#[test]
fn a_second_executor_of_a_key_is_found() {
    let begun = [line(1, What::Begin, 0), line(2, What::Begin, 0)];
    assert_eq!(violations(&begun).len(), 1);
    for end in [line(1, What::Dropped, 0), line(1, What::Failed, 0), line(1, What::Killed, 7)] {
        assert_eq!(violations(&[begun[0], end, begun[1]]), [] as [String; 0]);
    }
    assert_eq!(violations(&[begun[0], line(2, What::Killed, 0), begun[1]]).len(), 1, "another one is dead");
    assert_eq!(violations(&[begun[0], line(2, What::Begin, 1)]), [] as [String; 0], "another key");
}

#[test]
fn a_message_that_overtakes_one_of_its_key_is_found() {
    let (begin, failed) = (line(1, What::Begin, 0), line(1, What::Failed, 0));
    let behind = line(1, What::Begin, KEYS);
    assert_eq!(violations(&[begin, failed, behind]).len(), 1);
    assert_eq!(violations(&[behind]).len(), 1);
    let handled = line(1, What::Handled, 0);
    assert_eq!(violations(&[begin, handled, behind]), [] as [String; 0]);
    // After a crash it comes again, behind what was handled.
    let again = [begin, handled, behind, line(1, What::Killed, 0), line(2, What::Begin, 0)];
    assert_eq!(violations(&again), [] as [String; 0]);
}
