//! Adopted letters are replayed to their consumer alone: in order, with the ids that they had, before live messages of their key.

#![allow(clippy::unwrap_used, reason = "a test that fails panics; that is its answer")]

use std::sync::Arc;
use std::time::Duration;

use lazaret_adopt::kafka::Adoption;
use lazaret_core::query::Query;
use lazaret_core::store::{
    Action, Actor, LetterStore, Limits, Operations, PlanRequest, RolloutPolicy, Selection,
};
use lazaret_core::{LetterState, Message, QueueName};
use lazaret_engine::{Consumer, Options};
use lazaret_kafka_testkit::{LONG, Topic, broker, quick};
use lazaret_memory::MemoryStore;
use lazaret_source_kafka::{KafkaOptions, KafkaSource};
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::FutureRecord;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

type Handled = watch::Sender<Vec<(String, String)>>;

/// A consumer that writes down id and payload of what it handles.
fn consume(name: &str, topic: &Topic, store: Arc<MemoryStore>, handled: &Handled) -> CancellationToken {
    let handled = handled.clone();
    let handler = move |message: Message| {
        let handled = handled.clone();
        async move {
            let payload = String::from_utf8(message.payload.unwrap_or_default().into()).unwrap();
            handled.send_modify(|all| all.push((message.id.to_string(), payload)));
        }
    };
    let options = quick(KafkaOptions::new(&topic.brokers, name, [&topic.name]));
    let consumer = Consumer::builder(name)
        .source(KafkaSource::open(options).unwrap())
        .store(store)
        .handler(handler)
        .options(Options { commit_interval: Duration::from_millis(50), ..Options::default() })
        .build()
        .unwrap();
    let stop = CancellationToken::new();
    let drain = stop.clone();
    tokio::spawn(async move { consumer.run(drain).await.unwrap() });
    stop
}

async fn until(handled: &Handled, what: &str, holds: impl Fn(&[(String, String)]) -> bool) {
    let mut watched = handled.subscribe();
    let held = tokio::time::timeout(LONG, watched.wait_for(|all| holds(all))).await;
    assert!(held.is_ok(), "timed out waiting until {what}: {:?}", handled.borrow());
}

async fn send(topic: &Topic, key: &str, payload: &str) {
    topic.send(FutureRecord::to(&topic.name).partition(0).key(key).payload(payload)).await;
}

/// What Spring writes to its dead-letter topic for the message at this offset.
async fn dead_letter(dlt: &Topic, orders: &Topic, key: &str, payload: &str, offset: i64) {
    let (partition, offset) = (0_i32.to_be_bytes(), offset.to_be_bytes());
    let headers = OwnedHeaders::new()
        .insert(Header { key: "kafka_dlt-exception-fqcn", value: Some(&b"com.shop.Bad"[..]) })
        .insert(Header { key: "kafka_dlt-original-topic", value: Some(orders.name.as_bytes()) })
        .insert(Header { key: "kafka_dlt-original-partition", value: Some(&partition[..]) })
        .insert(Header { key: "kafka_dlt-original-offset", value: Some(&offset[..]) });
    dlt.send(FutureRecord::to(&dlt.name).partition(0).key(key).payload(payload).headers(headers)).await;
}

async fn replay_everything(store: &MemoryStore, queue: &QueueName) {
    let request = PlanRequest {
        action: Action::Retry,
        selection: Selection::Query(Query::parse(&format!("queue:{queue} state:dead")).unwrap()),
        valid_for: Duration::from_secs(60),
        max_letters: 100,
    };
    let by = Actor::new("ada", "cli", "the card service is back");
    let plan = store.freeze(&request, &by).await.unwrap();
    assert_eq!((plan.letters, plan.sequences, plan.excluded.len()), (3, 2, 0));
    store.begin(plan.id, &RolloutPolicy::unlimited(), &by).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn adopted_letters_are_replayed_to_their_consumer_in_order_and_live_messages_wait_behind_them() {
    // I2, I5, I8
    let Some(broker) = broker() else { return };
    let orders = Topic::new(broker.clone(), 1).await;
    let dlt = Topic::new(broker, 1).await;
    let (billing, shipping) = (format!("billing-{}", orders.name), format!("shipping-{}", orders.name));
    for (key, payload) in [("c", "c:0"), ("a", "a:1"), ("b", "b:2"), ("a", "a:3")] {
        send(&orders, key, payload).await;
    }
    // The consumer of before went past all of them; three are dead, and its retry topics have mixed them.
    for (key, payload, offset) in [("a", "a:3", 3), ("b", "b:2", 2), ("a", "a:1", 1)] {
        dead_letter(&dlt, &orders, key, payload, offset).await;
    }
    for group in [&billing, &shipping] {
        Topic { group: group.clone(), ..Topic::existing(orders.brokers.clone(), &orders.name) }
            .set_committed(0, 4, "");
    }
    let store = Arc::new(MemoryStore::default());
    let queue = QueueName::of(&billing, &billing);
    let options = quick(KafkaOptions::new(&orders.brokers, &billing, [&orders.name]));
    let adoption = Adoption::of(&options, &dlt.name).into_queue(queue.clone()).with_limits(Limits::NONE);
    assert_eq!(adoption.run(&*store).await.unwrap().run.adopted, 3);

    let (ours, theirs) = (Handled::default(), Handled::default());
    let stops = [
        consume(&billing, &orders, store.clone(), &ours),
        consume(&shipping, &orders, store.clone(), &theirs),
    ];
    send(&orders, "a", "a:4").await;
    send(&orders, "c", "c:5").await;
    until(&ours, "the other key has flowed", |all| all.iter().any(|(_, payload)| payload == "c:5")).await;
    let open = || async { store.counts(&queue).await.unwrap() };
    // The message of the dead key is stored asynchronously.
    let started = std::time::Instant::now();
    while open().await.of(LetterState::Waiting) == 0 {
        assert!(started.elapsed() < LONG, "the live message does not wait behind the letters");
        tokio::task::yield_now().await;
    }
    assert_eq!((open().await.of(LetterState::Dead), open().await.of(LetterState::Waiting)), (3, 1));

    replay_everything(&store, &queue).await;
    until(&ours, "all are handled", |all| all.len() == 5).await;
    let id = |offset: u32| format!("{}/0/{offset}", orders.name);
    let of_key = |key: &str| -> Vec<(String, String)> {
        ours.borrow().iter().filter(|(_, payload)| payload.starts_with(key)).cloned().collect()
    };
    let expected: Vec<_> = [1, 3, 4].map(|offset| (id(offset), format!("a:{offset}"))).into();
    assert_eq!(of_key("a"), expected, "in order, under their own ids, the live one last");
    assert_eq!(of_key("b"), [(id(2), "b:2".to_owned())]);
    // Nobody else got what was replayed.
    until(&theirs, "the live ones are handled", |all| all.len() == 2).await;
    let live: Vec<_> = [(id(4), "a:4".to_owned()), (id(5), "c:5".to_owned())].into();
    let mut got = theirs.borrow().clone();
    got.sort();
    assert_eq!(got, live);
    // What was resolved is known when it is adopted again.
    let again = adoption.from_the_beginning().run(&*store).await.unwrap();
    assert_eq!((again.run.adopted, again.run.already_there), (0, 3));
    assert_eq!(open().await.open(), 0);
    stops.iter().for_each(CancellationToken::cancel);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_whose_adopted_letter_was_resolved_is_a_duplicate_when_its_topic_delivers_it() {
    // I8: the letter was adopted before the message arrived, and is found.
    let Some(broker) = broker() else { return };
    let orders = Topic::new(broker.clone(), 1).await;
    let dlt = Topic::new(broker, 1).await;
    for (key, payload) in [("a", "a:0"), ("b", "b:1"), ("c", "c:2")] {
        send(&orders, key, payload).await;
    }
    dead_letter(&dlt, &orders, "b", "b:1", 1).await;
    let store = Arc::new(MemoryStore::default());
    let name = format!("billing-{}", orders.name);
    let queue = QueueName::of(&name, &name);
    let options = quick(KafkaOptions::new(&orders.brokers, &name, [&orders.name]));
    Adoption::of(&options, &dlt.name).into_queue(queue.clone()).run(&*store).await.unwrap();
    let letter = store.heads(&queue, None, 1).await.unwrap().heads.remove(0);
    let by = Actor::new("ada", "cli", "done by hand");
    store.act(&queue, letter.id, lazaret_core::store::Act::Resolve, &by).await.unwrap();
    // The group is new: it reads everything.
    let handled = Handled::default();
    let stop = consume(&name, &orders, store, &handled);
    until(&handled, "the last one is handled", |all| all.iter().any(|(_, payload)| payload == "c:2")).await;
    send(&orders, "b", "b:3").await;
    until(&handled, "the next of the key is handled", |all| all.iter().any(|(_, p)| p == "b:3")).await;
    let payloads: Vec<_> = handled.borrow().iter().map(|(_, payload)| payload.clone()).collect();
    assert!(!payloads.contains(&"b:1".to_owned()), "{payloads:?}");
    stop.cancel();
}
