//! The mirror of dead letters in a topic, with the letters in PostgreSQL. Needs a server and a real broker.

use std::collections::BTreeSet;
use std::time::Duration;

use rdkafka::Message;
use rdkafka::consumer::{BaseConsumer, Consumer};

use crate::kafka;
use crate::postgres::{Database, folder, stop};
use crate::support::wait_for;

#[tokio::test]
async fn dead_letters_in_postgresql_are_copied_to_a_topic_across_a_kill() {
    // I11
    let (Some(database), Some(brokers)) = (Database::open(), kafka::broker()) else { return };
    let (from, copies) = (kafka::topic(&brokers).await, kafka::topic(&brokers).await);
    kafka::fill(&brokers, &from, &["fine", "poison", "flaky", "poison"]).await;
    let source = format!("{{ kafka: {{ brokers: '{brokers}', topics: [{from}], group: 'g-{from}' }} }}");
    let keys = format!(
        "retry: {{ initial-delay: 5ms, max-delay: 20ms }}
    breaker: off
    dead-letter: {{ topic: {copies} }}"
    );
    let folder = folder(&database.store(), &source, &keys);
    let daemon = folder.start(&["run"]);
    // The ends are listed with the letters, whether they were copied before the kill or not.
    let dead = "SELECT message FROM letters WHERE state = 1";
    wait_for("the dead letters", || {
        database.try_query(dead).is_ok_and(|found| found.len() == 2).then_some(())
    });
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
    wait_for("nothing left to copy", || (database.query("SELECT count(*) FROM ends") == ["0"]).then_some(()));
    stop(daemon, &folder);
}
