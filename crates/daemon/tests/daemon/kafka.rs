//! Kafka: topics read to their end, what failed in topics, and what the doctor says. Needs a real broker.

use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{FutureProducer, FutureRecord};
use rdkafka::{ClientConfig, Message};

use crate::support::{DEADLINE, Folder, WORKER, attempts, get, wait_for};

/// The broker. Without one the test says that it did not run, and fails where everything must run.
pub(crate) fn broker() -> Option<String> {
    let broker = std::env::var("LAZARET_TEST_KAFKA").ok();
    if broker.is_none() {
        let must = std::env::var("CI").is_ok_and(|value| value == "true");
        assert!(!must, "LAZARET_TEST_KAFKA is not set; `cargo xtask test` starts a broker and sets it");
        println!(
            "not run: LAZARET_TEST_KAFKA is not set; `cargo xtask services` starts a broker and prints it"
        );
    }
    broker
}

pub(crate) fn client(brokers: &str) -> ClientConfig {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", brokers).set("group.id", "test").set("auto.offset.reset", "earliest");
    config
}

/// A topic that nobody has used.
pub(crate) async fn topic(brokers: &str) -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    let name = format!("d-{}-{}-{number}", jiff::Timestamp::now().as_millisecond(), std::process::id());
    create(brokers, &name).await;
    name
}

pub(crate) async fn create(brokers: &str, name: &str) {
    let admin: AdminClient<DefaultClientContext> = client(brokers).create().unwrap();
    let topic = NewTopic::new(name, 2, TopicReplication::Fixed(1));
    let made = admin.create_topics([&topic], &AdminOptions::new().operation_timeout(Some(DEADLINE))).await;
    made.unwrap()[0].as_ref().unwrap();
}

/// Writes messages of these kinds, each with a key of its own.
pub(crate) async fn fill(brokers: &str, topic: &str, kinds: &[&str]) {
    let producer: FutureProducer = client(brokers).create().unwrap();
    for (n, kind) in kinds.iter().enumerate() {
        let (key, payload) = (format!("k{n}"), format!("{{\"n\": {n}, \"kind\": \"{kind}\"}}"));
        let json = Header { key: "content-type", value: Some("application/json") };
        let record =
            FutureRecord::to(topic).key(&key).payload(&payload).headers(OwnedHeaders::new().insert(json));
        producer.send(record, Duration::from_secs(30)).await.unwrap();
    }
}

pub(crate) fn folder(brokers: &str, topic: &str, keys: &str) -> Folder {
    let folder = Folder::new();
    let config = format!(
        "
listen: 127.0.0.1:0
store: sqlite:lazaret.db
consumers:
  shop:
    source: {{ kafka: {{ brokers: '{brokers}', topics: [{topic}], group: 'g-{topic}' }} }}
    handler: {{ command: {{ program: [python3, handler.py], mode: lines, workers: 1 }} }}
    breaker: off
{keys}"
    );
    folder.write("lazaret.yaml", &config);
    folder.write("handler.py", WORKER);
    folder
}

pub(crate) fn handled(folder: &Folder) -> Vec<usize> {
    let done = attempts(folder).into_iter().filter(|attempt| attempt.verdict == "handled");
    let mut done: Vec<_> = done.map(|attempt| attempt.n).collect();
    done.sort_unstable();
    done
}

#[tokio::test]
async fn topics_are_read_to_their_end_and_dead_letters_are_copied_to_a_topic() {
    let Some(brokers) = broker() else { return };
    let from = topic(&brokers).await;
    let copies = topic(&brokers).await;
    fill(&brokers, &from, &["fine", "poison", "flaky", "fine"]).await;
    let keys = format!(
        "    retry: {{ initial-delay: 5ms, max-delay: 20ms }}\n    dead-letter: {{ topic: {copies} }}\n"
    );
    let folder = folder(&brokers, &from, &keys);
    assert_eq!(folder.run(&["run", "--until-idle"]), 3, "{}", folder.read("stderr.log"));
    assert_eq!(handled(&folder), [0, 2, 3]);
    assert_eq!(folder.open_letters().len(), 1);
    // The copy is there when the run has ended.
    let reader: BaseConsumer = client(&brokers).create().unwrap();
    reader.subscribe(&[&copies]).unwrap();
    let copy = wait_for("the copy", || reader.poll(Duration::from_millis(100))).unwrap();
    assert_eq!(copy.key(), Some(&b"k1"[..]));
    // Nothing is read twice.
    assert_eq!(folder.run(&["run", "--until-idle"]), 3);
    assert_eq!(handled(&folder), [0, 2, 3]);
}

#[tokio::test]
async fn retry_topics_hold_what_failed() {
    let Some(brokers) = broker() else { return };
    let from = topic(&brokers).await;
    fill(&brokers, &from, &["fine", "flaky"]).await;
    let keys = "    retry: { strategy: topics, initial-delay: 100ms, topics: { delays: [100ms, 200ms], create: true } }\n";
    let folder = folder(&brokers, &from, keys);
    assert_eq!(folder.run(&["run", "--until-idle"]), 0, "{}", folder.read("stderr.log"));
    assert_eq!(handled(&folder), [0, 1]);
    let tries: Vec<_> = attempts(&folder)
        .into_iter()
        .filter(|attempt| attempt.n == 1)
        .map(|attempt| attempt.attempt)
        .collect();
    assert_eq!(tries, [1, 2, 3], "counted across the topics");
}

#[tokio::test]
async fn a_group_is_not_moved_to_another_store_by_accident() {
    // I2: the letters that later messages wait behind are in the other store.
    let Some(brokers) = broker() else { return };
    let from = topic(&brokers).await;
    fill(&brokers, &from, &["fine"]).await;
    let first = folder(&brokers, &from, "");
    assert_eq!(first.run(&["run", "--until-idle"]), 0, "{}", first.read("stderr.log"));
    fill(&brokers, &from, &["fine"]).await;
    let second = folder(&brokers, &from, "");
    assert_eq!(second.run(&["run", "--until-idle"]), 1, "{}", second.read("stderr.log"));
    let said = second.read("stderr.log");
    let (_, rest) = said.split_once("were committed with another store: ").expect("it says why");
    let id = rest.split(',').next().unwrap();
    assert!(said.contains(&format!("add {id} to `replaced-stores`")), "{said}");
    assert_eq!(handled(&second), [0; 0]);
    let config = second.read("lazaret.yaml");
    second.write("lazaret.yaml", &config.replace("group:", &format!("replaced-stores: [{id}], group:")));
    assert_eq!(second.run(&["run", "--until-idle"]), 0, "{}", second.read("stderr.log"));
    assert_eq!(handled(&second), [0], "from where the other one was");
}

#[tokio::test]
async fn the_status_says_that_a_topic_is_waited_for() {
    let Some(brokers) = broker() else { return };
    let from = topic(&brokers).await;
    let later = format!("{from}-later");
    for keys in ["", "    retry: { strategy: topics, topics: { delays: [1s], create: true } }\n"] {
        let later = format!("{later}{}", keys.len());
        let folder = folder(&brokers, &later, keys);
        let mut daemon = folder.start(&["run"]);
        let address = daemon.address();
        wait_for("the status says so", || {
            let (_, status) = get(&address, "/v1/status");
            status.contains(&format!("do not know the topic {later} yet")).then_some(())
        });
        create(&brokers, &later).await;
        fill(&brokers, &later, &["fine"]).await;
        wait_for("it is handled", || (handled(&folder) == [0]).then_some(()));
        assert!(!get(&address, "/v1/status").1.contains("do not know"));
    }
}

#[tokio::test]
async fn the_doctor_finds_topics_that_are_not_there_and_brokers_that_are_away() {
    let Some(brokers) = broker() else { return };
    let from = topic(&brokers).await;
    let examine = |folder: &Folder| {
        let doctor = Command::new(env!("CARGO_BIN_EXE_lazaret-daemon"))
            .arg("doctor")
            .current_dir(folder.path("."))
            .output();
        String::from_utf8(doctor.unwrap().stdout).unwrap()
    };
    let said = examine(&folder(&brokers, &from, ""));
    assert!(said.contains(&format!("ok    shop source: {from} has 2 partitions")), "{said}");
    assert!(said.contains("has no committed offset"), "{said}");
    let said = examine(&folder(&brokers, "no-such-topic", ""));
    assert!(said.contains("FAIL  shop source: no-such-topic does not exist\n      create it"), "{said}");
    let said = examine(&folder("127.0.0.1:1", &from, ""));
    assert!(said.contains("FAIL  shop source: no response from the brokers 127.0.0.1:1"), "{said}");
}
