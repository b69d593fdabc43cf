//! The mirror of dead letters in a topic, with the letters in MongoDB. Needs a server and a real broker.

use std::collections::BTreeSet;
use std::time::Duration;

use rdkafka::Message;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rustix::process::Signal;

use crate::kafka;
use crate::mongodb::{Shop, waits_for_status};
use crate::support::{DEADLINE, wait_for};

#[tokio::test]
async fn dead_letters_in_mongodb_are_copied_to_a_topic_across_a_kill() {
    // I11
    let (Some(shop), Some(brokers)) = (Shop::open().await, kafka::broker()) else { return };
    let (from, copies) = (kafka::topic(&brokers).await, kafka::topic(&brokers).await);
    kafka::fill(&brokers, &from, &["fine", "poison", "flaky", "poison"]).await;
    let keys = format!(
        "    retry: {{ initial-delay: 5ms, max-delay: 20ms }}
    dead-letter: {{ topic: {copies} }}
"
    );
    let folder = kafka::folder(&brokers, &from, &keys);
    let config = folder.read("lazaret.yaml").replace("sqlite:lazaret.db", &format!("'{}'", shop.store()));
    folder.write("lazaret.yaml", &config);
    let mut daemon = folder.start(&["run"]);
    // The ends are listed with the letters, whether they were copied before the kill or not.
    waits_for_status(&daemon.address(), "\"dead\":2");
    drop(daemon);
    let daemon = folder.start(&["run"]);
    let reader: BaseConsumer = kafka::client(&brokers).create().unwrap();
    reader.subscribe(&[&copies]).unwrap();
    let mut keys = BTreeSet::new();
    while keys.len() < 2 {
        let copy = wait_for("the copies", || reader.poll(Duration::from_millis(100))).unwrap();
        keys.insert(String::from_utf8(copy.key().unwrap().to_vec()).unwrap());
    }
    assert_eq!(keys.into_iter().collect::<Vec<_>>(), ["k1", "k3"]);
    let copied = async {
        while shop.ends().await > 0 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(DEADLINE, copied).await.expect("nothing is left to copy");
    daemon.signal(Signal::TERM);
    assert_eq!(daemon.wait().code(), Some(0), "{}", folder.read("stderr.log"));
    shop.close().await;
}
