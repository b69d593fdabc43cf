//! Three members of a group run as processes. They are killed with SIGKILL, stopped with SIGTERM and
//! added every few seconds.
//!
//! The scenario is the same as in `chaos.rs`. The test runs itself again as the members. Nothing is
//! lost, no committed position ever passes a message that is not settled, and in the end the lag is
//! zero. The members share one file as their store. With the strategy `ordered`, order by key holds.
//! With the strategy `topics`, the broker holds failed messages, the store holds only what the broker
//! does not accept, and no order is promised.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use lazaret_core::Message;
use lazaret_core::handler::Attempt;
use lazaret_core::policy::Strategy;
use lazaret_engine::{Consumer, Options};
use lazaret_source_kafka::{KafkaRelay, KafkaSource, RetryTopics};
use lazaret_store_sqlite::{Options as StoreOptions, SqliteStore};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Mutex;
use tokio_util::sync::CancellationToken;

use crate::support::chaos::letters::{InTopics, Stored};
use crate::support::chaos::{CONSUMER, Chaos, Herd, PARTITIONS, Work, options, seed};
use crate::support::{LONG, Topic, broker};

/// The environment variable that makes a process of this test a member. It holds all that the member
/// needs: `strategy number seed brokers topic folder`.
const MEMBER: &str = "LAZARET_CHAOS_MEMBER";

/// Allows one herd at a time. A member that gets no processor for long is expelled from its group.
static TURN: Mutex<()> = Mutex::const_new(());

/// Runs members as processes.
struct Processes<'a> {
    topic: &'a Topic,
    folder: &'a Path,
    seed: u64,
    strategy: Strategy,
}

/// A process that does not outlive the test.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        // The process may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Herd for Processes<'_> {
    type Member = Process;

    fn start(&mut self, number: u32) -> Process {
        let Topic { brokers, name, .. } = self.topic;
        let (strategy, seed, folder) = (self.strategy, self.seed, self.folder.display());
        let arguments = format!("{strategy} {number} {seed} {brokers} {name} {folder}");
        let mut member = Command::new(std::env::current_exe().unwrap());
        member
            .args(["--ignored", "--exact", "chaos_processes::member", "--nocapture"])
            .env(MEMBER, arguments);
        Process(member.stdout(Stdio::null()).spawn().unwrap())
    }

    async fn kill(&mut self, mut member: Process) {
        member.0.kill().unwrap();
        assert!(!member.0.wait().unwrap().success(), "it ran until then");
    }

    async fn close(&mut self, mut member: Process) {
        Command::new("sh").args(["-c", &format!("kill -TERM {}", member.0.id())]).status().unwrap();
        let started = Instant::now();
        let status = loop {
            if let Some(status) = member.0.try_wait().unwrap() {
                break status;
            }
            assert!(started.elapsed() < LONG, "a member does not end");
            tokio::time::sleep(Duration::from_millis(10)).await;
        };
        assert!(status.success(), "a member ends in order: {status}");
    }
}

/// Runs a member. This is not a separate test.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "started by the other tests, in its own process"]
async fn member() {
    let mut terminate = signal(SignalKind::terminate()).unwrap();
    let arguments = std::env::var(MEMBER).expect("the test that starts it sets its arguments");
    let [strategy, number, seed, brokers, topic, folder] = arguments.splitn(6, ' ').collect::<Vec<_>>()[..]
    else {
        panic!("{arguments:?}")
    };
    let (number, seed, folder) = (number.parse().unwrap(), seed.parse().unwrap(), PathBuf::from(folder));
    let topic = Topic::existing(brokers.to_owned(), topic);
    let work = Arc::new(Work::new(&folder.join("journal"), seed, number));
    let handler = move |message: Message, attempt: Attempt| {
        let work = work.clone();
        async move { work.handle(message, attempt).await }
    };
    // The group detects a crash only by the session timeout.
    let source = topic.options().with_property("session.timeout.ms", "3000");
    let builder = Consumer::builder(CONSUMER).handler(handler);
    let builder = if strategy == Strategy::Topics.as_str() {
        let options = options(number, Strategy::Topics);
        let topics = RetryTopics::for_policy(CONSUMER, &options.retry).creating_topics();
        let relay = KafkaRelay::open(&source, topics).await.unwrap();
        let source = KafkaSource::open_with(source, &relay).unwrap();
        builder.source(source).options(Options { relay: Some(Arc::new(relay)), ..options })
    } else {
        builder.source(KafkaSource::open(source).unwrap()).options(options(number, Strategy::Ordered))
    };
    let store = SqliteStore::open(folder.join("lazaret.db"), StoreOptions::default()).unwrap();
    let consumer = builder.store(Arc::new(store)).build().unwrap();
    let drain = CancellationToken::new();
    let stop = drain.clone();
    tokio::spawn(async move {
        terminate.recv().await;
        stop.cancel();
    });
    consumer.run(drain).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn processes_that_are_killed_and_added_lose_nothing_and_keep_the_order() {
    // I1, I2, I6, I8
    let Some(broker) = broker() else { return };
    let _turn = TURN.lock().await;
    let (seed, folder) = (seed(), tempfile::tempdir().unwrap());
    let topic = Topic::new(broker, PARTITIONS as i32).await;
    let store = SqliteStore::open(folder.path().join("lazaret.db"), StoreOptions::default()).unwrap();
    let mut herd = Processes { topic: &topic, folder: folder.path(), seed, strategy: Strategy::Ordered };
    let mut letters = Stored::new(Arc::new(store), &topic);
    let journal = folder.path().join("journal");
    let chaos = Chaos { topic: &topic, journal, seed, lasts: Duration::from_secs(45), ordered: true };
    chaos.run(&mut herd, &mut letters).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn processes_that_are_killed_and_added_lose_nothing_in_retry_topics() {
    // I1, I5, I8
    let Some(broker) = broker() else { return };
    let _turn = TURN.lock().await;
    let (seed, folder) = (seed(), tempfile::tempdir().unwrap());
    let topic = Topic::new(broker, PARTITIONS as i32).await;
    let options = options(0, Strategy::Topics);
    let topics = RetryTopics::for_policy(CONSUMER, &options.retry).creating_topics();
    KafkaRelay::open(&topic.options(), topics.clone()).await.unwrap();
    let store = SqliteStore::open(folder.path().join("lazaret.db"), StoreOptions::default()).unwrap();
    let mut letters = InTopics::new(Arc::new(store), &topic, &topics);
    let mut herd = Processes { topic: &topic, folder: folder.path(), seed, strategy: Strategy::Topics };
    let journal = folder.path().join("journal");
    let chaos = Chaos { topic: &topic, journal, seed, lasts: Duration::from_secs(45), ordered: false };
    chaos.run(&mut herd, &mut letters).await;
}
