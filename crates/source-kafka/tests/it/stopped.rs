//! A group member that is stopped for longer than its session, as a separate process: `SIGSTOP` and
//! `SIGCONT`.
//!
//! The test runs itself again as the members. A member that continues has messages in its lanes that
//! another member has handled in the meantime. It learns this from the group, and must not call a
//! handler before.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use lazaret_core::Message;
use lazaret_engine::{Consumer, Event, Options};
use lazaret_source_kafka::KafkaSource;
use lazaret_store_sqlite::{Options as StoreOptions, SqliteStore};
use lazaret_testkit::{Instance, Journal};
use rdkafka::producer::FutureRecord;
use tokio_util::sync::CancellationToken;

use crate::support::{Topic, broker};

const PARTITIONS: i32 = 4;
/// The number of messages per partition before the stop, each with its own key.
const MESSAGES: u32 = 30;
/// The number of concurrent attempts of a member.
const CONCURRENCY: usize = 4;

/// Starts a member in a separate process.
fn start(number: u32, topic: &Topic, folder: &Path) -> Instance {
    let (number, folder) = (number.to_string(), folder.display().to_string());
    Instance::start("stopped::member", &[&number, &topic.brokers, &topic.name, &folder])
}

/// Runs a member. Each call of its handler lasts until the test allows `go-NUMBER`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "started by the other test, in its own process"]
async fn member() {
    let [number, brokers, topic, folder] = Instance::arguments();
    let (topic, journal) = (Topic::existing(brokers, &topic), Journal::new(&folder));
    let (noted, by) = (journal.clone(), number.clone());
    let handler = move |message: Message| {
        let (noted, by) = (noted.clone(), by.clone());
        async move {
            let place = format!("{}/{}", message.position.partition, message.position.offset);
            noted.call(&by, place).await;
            Ok::<_, lazaret_core::HandlerError>(())
        }
    };
    let options = Options {
        concurrency: CONCURRENCY,
        commit_interval: Duration::from_millis(50),
        instance: format!("member-{number}"),
        ..Options::default()
    };
    let store = SqliteStore::open(Path::new(&folder).join("lazaret.db"), StoreOptions::default()).unwrap();
    let consumer = Consumer::builder("stopped")
        .source(KafkaSource::open(topic.options()).unwrap())
        .store(Arc::new(store))
        .options(options)
        .observer(move |event: &Event<'_>| match event {
            Event::Assigned { partition } => journal.write(&format!("{number} gets {}", partition.index)),
            Event::Revoked { partition, lost: true } => {
                journal.write(&format!("{number} loses {}", partition.index));
            }
            _ => {}
        })
        .handler(handler)
        .build()
        .unwrap();
    consumer.run(CancellationToken::new()).await.unwrap();
}

async fn fill(topic: &Topic, numbers: std::ops::Range<u32>) {
    for partition in 0..PARTITIONS {
        for number in numbers.clone() {
            let key = format!("{partition}-{number}");
            topic.send(FutureRecord::to(&topic.name).partition(partition).payload("").key(&key)).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_that_was_stopped_for_longer_than_its_session_starts_nothing_that_others_have_handled() {
    // I6
    let Some(broker) = broker() else { return };
    let folder = tempfile::tempdir().unwrap();
    let topic = Topic::new(broker, PARTITIONS).await;
    fill(&topic, 0..MESSAGES).await;
    let all = MESSAGES as usize * PARTITIONS as usize;
    let journal = Journal::new(folder.path());
    let first = start(1, &topic, folder.path());
    journal.until("the first calls", |journal| journal.of("1 begins ", 0).len() == CONCURRENCY).await;
    let begun = journal.of("1 begins ", 0);
    // All of its calls wait. It is therefore stopped within calls, with the other messages in its lanes.
    first.signal("STOP");
    journal.allow("go-2");
    let _second = start(2, &topic, folder.path());
    journal.until("the other member to handle all", |journal| journal.of("2 ends ", 0).len() == all).await;
    // Its calls can return as soon as it continues.
    journal.allow("go-1");
    let woken = journal.lines().len();
    first.signal("CONT");
    let partitions = PARTITIONS as usize;
    journal.until("its losses", |journal| journal.of("1 loses ", woken).len() == partitions).await;
    journal.until("its new partitions", |journal| !journal.of("1 gets ", woken).is_empty()).await;
    fill(&topic, MESSAGES..MESSAGES + 5).await;
    let old = |place: &&String| place.split_once('/').unwrap().1.parse::<u32>().unwrap() < MESSAGES;
    let is_handled = |journal: &Journal| {
        let ended = [journal.of("1 ends ", woken), journal.of("2 ends ", woken)].concat();
        ended.iter().filter(|place| !old(place)).count() >= 5 * partitions
    };
    journal.until("both to go on", is_handled).await;
    let again: Vec<String> = journal.of("1 begins ", woken).iter().filter(old).cloned().collect();
    assert_eq!(again, [""; 0], "the other one has handled them; begun before the stop: {begun:?}");
    assert!(!journal.of("1 ends ", woken).iter().all(|place| old(&place)), "it takes part again");
}
