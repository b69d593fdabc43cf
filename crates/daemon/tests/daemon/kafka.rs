//! Kafka: topics read to their end, what failed in topics, and what the doctor says. Needs a real broker.

use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::message::{Header, Headers, OwnedHeaders};
use rdkafka::mocking::MockCluster;
use rdkafka::producer::{FutureProducer, FutureRecord};
use rdkafka::{ClientConfig, Message};
use rustix::process::Signal;
use serde_json::Value;

use crate::support::{DEADLINE, Daemon, Folder, WORKER, attempts, get, wait_for};
use crate::unknown_compression::push_unknown_compression;

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

/// The value of a header of a record.
fn header(record: &impl Message, name: &str) -> String {
    let headers = record.headers().unwrap();
    let value = headers.iter().find(|header| header.key == name).and_then(|header| header.value).unwrap();
    String::from_utf8(value.to_vec()).unwrap()
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
async fn a_mirrored_letter_says_how_often_it_failed_the_same_way() {
    let Some(brokers) = broker() else { return };
    let from = topic(&brokers).await;
    let copies = topic(&brokers).await;
    fill(&brokers, &from, &["transient"]).await;
    let keys = format!(
        "    retry: {{ max-attempts: 2, initial-delay: 5ms, max-delay: 20ms }}\n    dead-letter: {{ topic: {copies} }}\n"
    );
    let folder = folder(&brokers, &from, &keys);
    assert_eq!(folder.run(&["run", "--until-idle"]), 3, "{}", folder.read("stderr.log"));
    let reader: BaseConsumer = client(&brokers).create().unwrap();
    reader.subscribe(&[&copies]).unwrap();
    let copy = wait_for("the copy", || reader.poll(Duration::from_millis(100))).unwrap();
    assert_eq!(header(&copy, "x-attempt-count"), "2");
    assert_eq!(header(&copy, "x-same-failure-count"), "2");
}

#[tokio::test]
async fn retry_topics_hold_what_failed() {
    let Some(brokers) = broker() else { return };
    let from = topic(&brokers).await;
    fill(&brokers, &from, &["fine", "flaky"]).await;
    let keys = "    retry: { strategy: topics, topics: { delays: [100ms, 200ms], create: true } }\n";
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
    assert!(said.contains(&format!("{from} is empty")), "{said}");
    fill(&brokers, &from, &["fine", "fine", "fine", "fine"]).await;
    let said = examine(&folder(&brokers, &from, ""));
    assert!(said.contains("newest record can be read") && !said.contains("FAIL"), "{said}");
    let said = examine(&folder(&brokers, "no-such-topic", ""));
    assert!(said.contains("FAIL  shop source: no-such-topic does not exist\n      create it"), "{said}");
    let said = examine(&folder("127.0.0.1:1", &from, ""));
    assert!(said.contains("FAIL  shop source: no response from the brokers 127.0.0.1:1"), "{said}");
}

#[tokio::test]
async fn a_partition_that_cannot_be_read_is_found_by_the_doctor_and_makes_the_daemon_unready() {
    let cluster = MockCluster::new(1).unwrap();
    let brokers = cluster.bootstrap_servers();
    cluster.create_topic("orders", 2, 1).unwrap();
    push_unknown_compression(&brokers, "orders", 1);
    let folder = folder(&brokers, "orders", "");
    let doctor = Command::new(env!("CARGO_BIN_EXE_lazaret-daemon"))
        .arg("doctor")
        .current_dir(folder.path("."))
        .output();
    let said = String::from_utf8(doctor.unwrap().stdout).unwrap();
    assert!(
        said.contains("FAIL  shop source: the newest record of orders/1 cannot be read: Decompression"),
        "{said}"
    );
    let mut daemon = folder.start(&["run"]);
    let address = daemon.address();
    let reasons = wait_for("the reason", || {
        let (code, reasons) = get(&address, "/readyz");
        (code == 503 && reasons.contains("orders/1 cannot be read")).then_some(reasons)
    });
    assert!(reasons.contains("Decompression"), "{reasons}");
    let (_, status) = get(&address, "/v1/status");
    assert!(status.contains("orders/1 cannot be read"), "{status}");
    daemon.kill();
}

/// Longer than any test waits: the partitions of a dead member are not given to another one.
const LONG_SESSION: &str =
    "properties: { session.timeout.ms: 1800000, max.poll.interval.ms: 1800000 }, group:";

#[tokio::test]
async fn a_daemon_that_was_killed_comes_back_as_the_same_member() {
    // I6
    let Some(brokers) = broker() else { return };
    let from = topic(&brokers).await;
    fill(&brokers, &from, &["fine"]).await;
    let folder = folder(&brokers, &from, "");
    folder.write("lazaret.yaml", &folder.read("lazaret.yaml").replace("group:", LONG_SESSION));
    let mut first = folder.start(&["run"]);
    first.address();
    wait_for("the first message", || (attempts(&folder).len() == 1).then_some(()));
    first.kill();
    fill(&brokers, &from, &["fine", "fine"]).await;
    folder.write("stderr.log", "");
    let mut second = folder.start(&["run"]);
    let address = second.address();
    wait_for("messages of its former partitions", || (attempts(&folder).len() >= 3).then_some(()));
    wait_for("readiness", || (get(&address, "/readyz").0 == 200).then_some(()));
    second.kill();
}

#[tokio::test]
async fn a_second_daemon_on_one_store_is_another_member() {
    // I6: two members with one id would fence each other.
    let Some(brokers) = broker() else { return };
    let from = topic(&brokers).await;
    let folders = [folder(&brokers, &from, ""), folder(&brokers, &from, "")];
    let store = format!("sqlite:{}", folders[0].path("lazaret.db").display());
    for folder in &folders {
        folder.write("lazaret.yaml", &folder.read("lazaret.yaml").replace("sqlite:lazaret.db", &store));
    }
    let mut both = folders.each_ref().map(|folder| folder.start(&["run"]));
    let addresses = both.each_mut().map(|daemon| daemon.address());
    for address in &addresses {
        wait_for("readiness", || (get(address, "/readyz").0 == 200).then_some(()));
    }
    let group = format!("g-{from}");
    let reader: BaseConsumer = client(&brokers).create().unwrap();
    wait_for("two members", || {
        let groups = reader.fetch_group_list(Some(&group), DEADLINE).unwrap();
        (groups.groups()[0].members().len() == 2).then_some(())
    });
    fill(&brokers, &from, &["fine"; 8]).await;
    let handled = || folders.iter().map(|folder| attempts(folder).len()).sum::<usize>();
    wait_for("all messages", || (handled() >= 8).then_some(()));
    for address in &addresses {
        assert_eq!(get(address, "/readyz").0, 200);
    }
    both.into_iter().for_each(Daemon::kill);
}

#[tokio::test]
async fn daemons_of_one_machine_do_not_fence_each_other_in_transactions() {
    // I6: a fenced producer aborts the commits of its consumer, whose messages are then handled again.
    let Some(brokers) = broker() else { return };
    let from = topic(&brokers).await;
    let keys = "    retry: { strategy: topics, topics: { delays: [100ms, 200ms], create: true, transactional: true } }\n";
    let folders = [folder(&brokers, &from, keys), folder(&brokers, &from, keys)];
    let store = format!("sqlite:{}", folders[0].path("lazaret.db").display());
    for folder in &folders {
        folder.write("lazaret.yaml", &folder.read("lazaret.yaml").replace("sqlite:lazaret.db", &store));
    }
    let both = folders.each_ref().map(|folder| {
        let mut daemon = folder.start(&["run"]);
        let address = daemon.address();
        wait_for("readiness", || (get(&address, "/readyz").0 == 200).then_some(()));
        daemon
    });
    for _ in 0..5 {
        fill(&brokers, &from, &["fine", "flaky", "fine", "flaky"]).await;
    }
    let effects = || folders.iter().map(|folder| handled(folder).len()).sum::<usize>();
    wait_for("all messages", || (effects() >= 20).then_some(()));
    // Both stop in order, and commit what they have handled.
    for daemon in both {
        daemon.signal(Signal::TERM);
        assert_eq!(daemon.wait().code(), Some(0));
    }
    assert_eq!(effects(), 20, "each message has one effect");
    for folder in &folders {
        let said = folder.read("stderr.log");
        assert!(!said.to_lowercase().contains("fenced"), "{said}");
    }
}

#[tokio::test]
async fn a_daemon_says_that_it_waits_for_a_former_member() {
    let Some(brokers) = broker() else { return };
    let from = topic(&brokers).await;
    let folder = folder(&brokers, &from, "");
    let config = folder
        .read("lazaret.yaml")
        .replace("group:", LONG_SESSION)
        .replace("group:", "member: dynamic, group:");
    folder.write("lazaret.yaml", &config);
    let mut first = folder.start(&["run"]);
    let address = first.address();
    wait_for("readiness", || (get(&address, "/readyz").0 == 200).then_some(()));
    first.kill();
    folder.write("stderr.log", "");
    let mut second = folder.start(&["run"]);
    let address = second.address();
    second.logs("no partitions assigned yet, a former member's session may last up to its timeout", 1);
    let (code, reasons) = get(&address, "/readyz");
    assert!(
        code == 503 && reasons.contains("waiting for partitions") && reasons.contains("1800s"),
        "{reasons}"
    );
    second.kill();
}

#[tokio::test]
async fn the_nth_retry_waits_the_nth_delay_in_the_topic_of_its_name() {
    // I4, I12
    let Some(brokers) = broker() else { return };
    let from = topic(&brokers).await;
    fill(&brokers, &from, &["transient"]).await;
    let dead = topic(&brokers).await;
    let keys = format!(
        "    retry: {{ strategy: topics, topics: {{ delays: [200ms, 400ms, 600ms], create: true }} }}\n    dead-letter: {{ topic: {dead} }}\n"
    );
    let folder = folder(&brokers, &from, &keys);
    assert_eq!(folder.run(&["run", "--until-idle"]), 0, "{}", folder.read("stderr.log"));
    assert_eq!(attempts(&folder).len(), 4, "one more than there are delays");
    let reader: BaseConsumer = client(&brokers).create().unwrap();
    let in_topic = |name: &str| -> i64 {
        let ends = (0..2).map(|partition| reader.fetch_watermarks(name, partition, DEADLINE).unwrap());
        ends.map(|(low, high)| high - low).sum()
    };
    for delay in ["200ms", "400ms", "600ms"] {
        assert_eq!(in_topic(&format!("{from}.shop.retry.{delay}")), 1, "{delay}");
    }
    assert_eq!(in_topic(&dead), 1, "in the topic that the configuration names");
    folder.write("stderr.log", "");
    let mut daemon = folder.start(&["run"]);
    let address = daemon.address();
    let in_broker = wait_for("the count of the broker", || {
        let status: Value = serde_json::from_str(&get(&address, "/v1/status").1).unwrap();
        let counts = status["consumers"][0]["in-broker"].clone();
        (counts["dead"] == 1).then_some(counts)
    });
    daemon.kill();
    reader.subscribe(&[&dead]).unwrap();
    let copy = wait_for("the dead letter", || reader.poll(Duration::from_millis(100))).unwrap();
    let header = |name: &str| header(&copy, name);
    assert_eq!(header("x-attempt-count"), "4");
    assert_eq!(header("x-same-failure-count"), "4", "each attempt failed the same way");
    assert_eq!(in_broker["retrying"], 0, "{in_broker}");
    assert_eq!(in_broker["oldest-dead-at"], header("x-first-failure-at"), "{in_broker}");
    let at = |name: &str| header(name).parse::<jiff::Timestamp>().unwrap();
    let waited = at("x-last-failure-at").duration_since(at("x-first-failure-at"));
    assert!(waited >= jiff::SignedDuration::from_millis(1200), "never early: {waited}");
}
