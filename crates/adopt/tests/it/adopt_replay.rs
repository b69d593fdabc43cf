//! Adopted letters are replayed only to their consumer, in order and with their original ids, before
//! live messages of their key.

use std::sync::Arc;
use std::time::Duration;

use lazaret_adopt::kafka::Adoption;
use lazaret_core::query::Query;
use lazaret_core::store::{
    Act, Action, Actor, LetterStore, Limits, Operations, PlanRequest, RolloutPolicy, Selection,
};
use lazaret_core::{HandlerError, LetterId, LetterState, Message, QueueName, Verdict};
use lazaret_engine::{Consumer, DedupeOptions, Options};
use lazaret_kafka_testkit::{LONG, Topic, broker, quick};
use lazaret_memory::MemoryStore;
use lazaret_source_kafka::{KafkaOptions, KafkaSource};
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::FutureRecord;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

type Handled = watch::Sender<Vec<(String, String)>>;

/// Starts a consumer that records id and payload of the messages that it handles.
fn consume(name: &str, topic: &Topic, store: Arc<MemoryStore>, handled: &Handled) -> CancellationToken {
    consume_with(name, topic, store, handled, Options::default())
}

/// Starts a consumer that records id and payload of the messages that it handles. It fails on payloads
/// that begin with `bad`.
fn consume_with(
    name: &str,
    topic: &Topic,
    store: Arc<MemoryStore>,
    handled: &Handled,
    options: Options,
) -> CancellationToken {
    let handled = handled.clone();
    let handler = move |message: Message| {
        let handled = handled.clone();
        async move {
            let payload = String::from_utf8(message.payload.unwrap_or_default().into()).unwrap();
            if payload.starts_with("bad") {
                return Err(HandlerError::msg("no").verdict(Verdict::DeadLetter));
            }
            handled.send_modify(|all| all.push((message.id.to_string(), payload)));
            Ok(())
        }
    };
    let source = quick(KafkaOptions::new(&topic.brokers, name, [&topic.name]));
    let consumer = Consumer::builder(name)
        .source(KafkaSource::open(source).unwrap())
        .store(store)
        .handler(handler)
        .options(Options { commit_interval: Duration::from_millis(50), ..options })
        .build()
        .unwrap();
    let stop = CancellationToken::new();
    let drain = stop.clone();
    tokio::spawn(async move { consumer.run(drain).await.unwrap() });
    stop
}

/// Waits until the store holds this many letters in this state.
async fn until_stored(store: &MemoryStore, queue: &QueueName, state: LetterState, count: u64) {
    let started = std::time::Instant::now();
    while store.counts(queue).await.unwrap().of(state) != count {
        assert!(started.elapsed() < LONG, "timed out waiting for {count} letters that are {state}");
        tokio::task::yield_now().await;
    }
}

async fn until(handled: &Handled, what: &str, holds: impl Fn(&[(String, String)]) -> bool) {
    let mut watched = handled.subscribe();
    let held = tokio::time::timeout(LONG, watched.wait_for(|all| holds(all))).await;
    assert!(held.is_ok(), "timed out waiting until {what}: {:?}", handled.borrow());
}

async fn send(topic: &Topic, key: &str, payload: &str) {
    topic.send(FutureRecord::to(&topic.name).partition(0).key(key).payload(payload)).await;
}

/// Sends the record that Spring writes to its dead-letter topic for the message at this offset.
async fn dead_letter(dlt: &Topic, orders: &Topic, key: &str, payload: &str, offset: i64) {
    let (partition, offset) = (0_i32.to_be_bytes(), offset.to_be_bytes());
    let headers = OwnedHeaders::new()
        .insert(Header { key: "kafka_dlt-exception-fqcn", value: Some(&b"com.shop.Bad"[..]) })
        .insert(Header { key: "kafka_dlt-original-topic", value: Some(orders.name.as_bytes()) })
        .insert(Header { key: "kafka_dlt-original-partition", value: Some(&partition[..]) })
        .insert(Header { key: "kafka_dlt-original-offset", value: Some(&offset[..]) });
    dlt.send(FutureRecord::to(&dlt.name).partition(0).key(key).payload(payload).headers(headers)).await;
}

async fn replay_everything(store: &MemoryStore, queue: &QueueName, letters: u64, sequences: u64) {
    let request = PlanRequest {
        action: Action::Retry,
        selection: Selection::Query(Query::parse(&format!("queue:{queue} state:dead")).unwrap()),
        valid_for: Duration::from_secs(60),
        max_letters: 100,
    };
    let by = Actor::new("ada", "cli", "the card service is back");
    let plan = store.freeze(&request, &by).await.unwrap();
    assert_eq!((plan.letters, plan.sequences, plan.excluded.len()), (letters, sequences, 0));
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
    // The previous consumer read past all of them. Three are dead, and its retry topics have changed
    // their order.
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
    until_stored(&store, &queue, LetterState::Waiting, 1).await;
    assert_eq!((open().await.of(LetterState::Dead), open().await.of(LetterState::Waiting)), (3, 1));

    replay_everything(&store, &queue, 3, 2).await;
    until(&ours, "all are handled", |all| all.len() == 5).await;
    let id = |offset: u32| format!("{}/0/{offset}", orders.name);
    let of_key = |key: &str| -> Vec<(String, String)> {
        ours.borrow().iter().filter(|(_, payload)| payload.starts_with(key)).cloned().collect()
    };
    let expected: Vec<_> = [1, 3, 4].map(|offset| (id(offset), format!("a:{offset}"))).into();
    assert_eq!(of_key("a"), expected, "in order, under their own ids, the live one last");
    assert_eq!(of_key("b"), [(id(2), "b:2".to_owned())]);
    // No other consumer received the replayed messages.
    until(&theirs, "the live ones are handled", |all| all.len() == 2).await;
    let live: Vec<_> = [(id(4), "a:4".to_owned()), (id(5), "c:5".to_owned())].into();
    let mut got = theirs.borrow().clone();
    got.sort();
    assert_eq!(got, live);
    // Another adoption recognises the resolved letters.
    let again = adoption.from_the_beginning().run(&*store).await.unwrap();
    assert_eq!((again.run.adopted, again.run.already_there), (0, 3));
    assert_eq!(open().await.open(), 0);
    stops.iter().for_each(CancellationToken::cancel);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_is_handled_whatever_became_of_an_adopted_letter_with_its_id() {
    // I1: the writer of the record chose the message id, and this queue has not seen the message.
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
    store.act(&queue, letter.id, Act::Resolve, &by).await.unwrap();
    // The group is new and reads everything.
    let handled = Handled::default();
    let stop = consume(&name, &orders, store, &handled);
    until(&handled, "all are handled", |all| all.len() == 3).await;
    let mut payloads: Vec<_> = handled.borrow().iter().map(|(_, payload)| payload.clone()).collect();
    payloads.sort();
    assert_eq!(payloads, ["a:0", "b:1", "c:2"]);
    stop.cancel();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_whose_offset_a_forged_record_named_has_its_own_letter_when_it_fails() {
    // I1, I2
    let Some(broker) = broker() else { return };
    let orders = Topic::new(broker.clone(), 1).await;
    let dlt = Topic::new(broker, 1).await;
    dead_letter(&dlt, &orders, "a", "forged", 0).await;
    let store = Arc::new(MemoryStore::default());
    let name = format!("billing-{}", orders.name);
    let queue = QueueName::of(&name, &name);
    let options = quick(KafkaOptions::new(&orders.brokers, &name, [&orders.name]));
    let adoption = Adoption::of(&options, &dlt.name).into_queue(queue.clone());
    assert_eq!(adoption.run(&*store).await.unwrap().run.adopted, 1);
    let handled = Handled::default();
    let stop = consume(&name, &orders, store.clone(), &handled);
    for payload in ["bad:0", "a:1"] {
        send(&orders, "a", payload).await;
    }
    until_stored(&store, &queue, LetterState::Waiting, 2).await;
    let forged = store.heads(&queue, None, 1).await.unwrap().heads.remove(0);
    let by = Actor::new("ada", "cli", "nobody knows this message");
    store.act(&queue, forged.id, Act::Evict, &by).await.unwrap();
    // The message runs, fails, and stays ahead of the next message of its key.
    until_stored(&store, &queue, LetterState::Dead, 1).await;
    let own = LetterId::of(&queue, &format!("{}/0/0", orders.name).into());
    let letter = store.get(&queue, own).await.unwrap().unwrap();
    assert_eq!((letter.state, letter.message.payload.as_deref()), (LetterState::Dead, Some(&b"bad:0"[..])));
    assert_eq!(store.counts(&queue).await.unwrap().of(LetterState::Waiting), 1);
    assert!(handled.borrow().is_empty(), "{:?}", handled.borrow());
    stop.cancel();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_replay_of_a_forged_record_marks_no_message_as_handled() {
    // I1: the duplicate filter remembers ids.
    let Some(broker) = broker() else { return };
    let orders = Topic::new(broker.clone(), 1).await;
    let dlt = Topic::new(broker, 1).await;
    dead_letter(&dlt, &orders, "a", "forged", 0).await;
    let store = Arc::new(MemoryStore::default());
    let name = format!("billing-{}", orders.name);
    let queue = QueueName::of(&name, &name);
    let options = quick(KafkaOptions::new(&orders.brokers, &name, [&orders.name]));
    Adoption::of(&options, &dlt.name).into_queue(queue.clone()).run(&*store).await.unwrap();
    let handled = Handled::default();
    let dedupe = Some(DedupeOptions { filter: store.clone(), window: Duration::from_secs(3600) });
    let stop =
        consume_with(&name, &orders, store.clone(), &handled, Options { dedupe, ..Options::default() });
    replay_everything(&store, &queue, 1, 1).await;
    until(&handled, "the record was replayed", |all| all.len() == 1).await;
    send(&orders, "a", "a:0").await;
    until(&handled, "the message is handled", |all| all.len() == 2).await;
    let id = format!("{}/0/0", orders.name);
    assert_eq!(*handled.borrow(), [(id.clone(), "forged".to_owned()), (id, "a:0".to_owned())]);
    stop.cancel();
}
