//! A real broker that starts late, is killed with SIGKILL in the middle of everything, and restarts on
//! its data.

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use lazaret_core::Message;
use lazaret_engine::{Consumer, Options};
use lazaret_memory::MemoryStore;
use lazaret_source_kafka::{KafkaSource, KafkaState};
use rdkafka::producer::{FutureProducer, FutureRecord};
use tempfile::TempDir;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::support::{self, Topic, broker, client};

/// The maximum wait for a broker, which is slow on a busy machine.
const LONG: Duration = Duration::from_secs(240);

/// A broker that only this test uses.
struct OwnBroker {
    folder: TempDir,
    starter: String,
    pid: u32,
    address: String,
}

impl OwnBroker {
    /// Starts the broker. Returns `None` if the brokers were provided from outside, because those must
    /// not be killed.
    fn start() -> Option<Self> {
        broker()?;
        let Ok(starter) = std::env::var("LAZARET_TEST_KAFKA_STARTER") else {
            println!("not run: LAZARET_TEST_KAFKA_STARTER is not set; `cargo xtask services` prints it");
            return None;
        };
        let folder = tempfile::tempdir().unwrap();
        let mut broker = Self { folder, starter, pid: 0, address: String::new() };
        broker.start_again();
        Some(broker)
    }

    /// Starts the broker again on its data.
    fn start_again(&mut self) {
        let mut command = Command::new(&self.starter);
        let output = command.args(["services", "another-kafka"]).arg(self.folder.path()).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let answer = String::from_utf8(output.stdout).unwrap();
        let (pid, address) = answer.trim().split_once(' ').unwrap();
        assert!(self.address.is_empty() || self.address == address, "it comes back where it was");
        (self.pid, self.address) = (pid.parse().unwrap(), address.to_owned());
    }

    /// Kills the broker and waits until it has ended.
    fn kill(&self) {
        let pid = self.pid;
        Command::new("sh").args(["-c", &format!("kill -KILL {pid}")]).status().unwrap();
        let started = Instant::now();
        // A process that has ended and was not waited for has an empty command line.
        while fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| !line.is_empty()) {
            assert!(started.elapsed() < LONG, "the broker does not die");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for OwnBroker {
    fn drop(&mut self) {
        if self.pid != 0 {
            self.kill();
        }
    }
}

async fn until<T>(what: &str, mut watched: watch::Receiver<T>, holds: impl Fn(&T) -> bool) {
    let held = tokio::time::timeout(LONG, watched.wait_for(|value| holds(value))).await;
    assert!(held.is_ok(), "timed out waiting until {what}");
}

/// Writes these numbers. Waits after each one until the broker has confirmed it.
async fn write(brokers: String, topic: String, numbers: std::ops::Range<u32>) {
    let mut settings = client(&brokers);
    settings.set("enable.idempotence", "true").set("linger.ms", "0").set("reconnect.backoff.max.ms", "500");
    let producer: FutureProducer = settings.create().unwrap();
    for number in numbers {
        let (payload, key) = (number.to_string(), (number % 30).to_string());
        let record = FutureRecord::to(&topic).partition((number % 3) as i32).key(&key).payload(&payload);
        producer.send(record, LONG).await.map_err(|(error, _)| error).unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_consumer_outlives_its_broker() {
    // I1: the consumer is opened before its broker starts, and recovers when the broker is killed and
    // restarted.
    let Some(mut broker) = OwnBroker::start() else { return };
    let topic = Topic::new(broker.address.clone(), 3).await;
    write(broker.address.clone(), topic.name.clone(), 0..300).await;
    broker.kill();

    let source = KafkaSource::open(topic.options()).unwrap();
    let (state, handled) = (source.state(), watch::Sender::new(BTreeSet::new()));
    let diary = handled.clone();
    let handler = move |message: Message| {
        let number: u32 = std::str::from_utf8(message.payload.as_deref().unwrap()).unwrap().parse().unwrap();
        diary.send_modify(|handled| {
            handled.insert(number);
        });
        std::future::ready(())
    };
    let consumer = Consumer::builder("orders")
        .source(source)
        .store(Arc::new(MemoryStore::default()))
        .handler(handler)
        .options(Options { commit_interval: Duration::from_millis(50), ..Options::default() })
        .build()
        .unwrap();
    let drain = CancellationToken::new();
    let run = tokio::spawn(consumer.run(drain.clone()));
    let has_error = |state: &KafkaState| matches!(state, KafkaState::Error(_));
    until("the missing broker is noticed", state.clone(), has_error).await;
    assert!(handled.borrow().is_empty());

    broker.start_again();
    until("what lay there is handled", handled.subscribe(), |handled| handled.len() == 300).await;

    let writing = tokio::spawn(write(broker.address.clone(), topic.name.clone(), 300..1500));
    until("more is handled", handled.subscribe(), |handled| handled.len() > 600).await;
    broker.kill();
    until("the crash of the broker is noticed", state.clone(), has_error).await;
    broker.start_again();
    writing.await.unwrap();
    until("all is handled", handled.subscribe(), |handled| handled.len() == 1500).await;
    until("it is reading again", state, |state| *state == KafkaState::Reading(3)).await;
    for partition in 0..3 {
        topic
            .until_committed(partition, |offset, metadata| offset == 500 && support::has_no_ranges(metadata));
    }
    drain.cancel();
    let stats = run.await.unwrap().unwrap();
    assert_eq!(stats.handed_off, 0, "nothing failed: {stats:?}");
}
