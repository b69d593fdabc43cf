//! Partitions that are added or recreated while several members run are all read, and only one member
//! rejoins for them.

#![allow(clippy::unwrap_used, reason = "a test that fails panics; that is its answer")]

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lazaret_core::store::LetterStore;
use lazaret_core::{HandlerError, LetterState, Message, QueueName, Reason};
use lazaret_engine::{Consumer, Event, Options, Stats};
use lazaret_kafka_testkit::{LONG, Topic, broker};
use lazaret_memory::MemoryStore;
use lazaret_source_kafka::KafkaSource;
use rdkafka::producer::FutureRecord;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tracing::field::{Field, Visit};
use tracing::span;

const MEMBERS: u32 = 3;
/// The number of messages per partition at each step. One of them fails.
const MESSAGES: u32 = 10;
/// After this time, members that saw a gap look again, and may join anew.
const SECOND_LOOK: Duration = Duration::from_secs(5);

/// The number of times that members of each group rejoined, from the log.
static JOINS: Mutex<BTreeMap<String, usize>> = Mutex::new(BTreeMap::new());

/// A subscriber that reads the log.
struct Log;

impl tracing::Subscriber for Log {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        *metadata.level() <= tracing::Level::WARN
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        let mut line = Line::default();
        event.record(&mut line);
        if line.message.ends_with("joining anew") {
            *JOINS.lock().unwrap().entry(line.group).or_default() += 1;
        }
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

/// The fields of a log line.
#[derive(Default)]
struct Line {
    message: String,
    group: String,
}

impl Visit for Line {
    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() == "group" {
            value.clone_into(&mut self.group);
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if field.name() == "message" {
            self.message = format!("{value:?}");
        }
    }
}

/// The observed actions of the members.
#[derive(Default)]
struct Seen {
    handled: watch::Sender<BTreeSet<String>>,
    /// The partitions of each member.
    held: watch::Sender<BTreeMap<u32, BTreeSet<u32>>>,
}

impl Seen {
    /// Waits until this many messages were handled.
    async fn until_handled(&self, count: usize) {
        let mut handled = self.handled.subscribe();
        let all =
            tokio::time::timeout(LONG, handled.wait_for(|handled| handled.len() == count)).await.is_ok();
        assert!(all, "{} of {count} messages were handled", self.handled.borrow().len());
    }

    /// Waits until the partitions are shared like this.
    async fn until_shared(&self, is_so: impl Fn(&BTreeMap<u32, BTreeSet<u32>>) -> bool) {
        let mut held = self.held.subscribe();
        let shared = tokio::time::timeout(LONG, held.wait_for(|held| is_so(held))).await.is_ok();
        assert!(shared, "{:?}", self.held.borrow());
    }
}

/// Sends messages to each partition, of which the first one fails. Returns their number.
async fn send(topic: &Topic, step: &str, partitions: u32) -> usize {
    for partition in 0..partitions {
        for number in 0..MESSAGES {
            let what = if number == 0 { "bad" } else { "good" };
            let payload = format!("{step}-{what}-{partition}-{number}");
            let record = FutureRecord::to(&topic.name).key(&*payload).payload(&*payload);
            topic.send(record.partition(partition as i32)).await;
        }
    }
    (partitions * MESSAGES) as usize
}

/// How often members joined anew, once each of them had the time to do so a second time.
async fn joins(topic: &Topic) -> usize {
    tokio::time::sleep(SECOND_LOOK + Duration::from_secs(2)).await;
    JOINS.lock().unwrap().get(&topic.group).copied().unwrap_or_default()
}

fn start(
    number: u32,
    is_static: bool,
    topic: &Topic,
    store: &Arc<MemoryStore>,
    seen: &Arc<Seen>,
) -> (CancellationToken, JoinHandle<Stats>) {
    let (handling, observing) = (seen.clone(), seen.clone());
    let handler = move |message: Message| {
        let seen = handling.clone();
        async move {
            let payload = String::from_utf8(message.payload.unwrap().into()).unwrap();
            let fails = payload.contains("bad");
            seen.handled.send_modify(|handled| _ = handled.insert(payload));
            if fails { Err(HandlerError::msg("no").reason(Reason::DOMAIN_INVALID)) } else { Ok(()) }
        }
    };
    let options = topic.options();
    let options = if is_static { options.with_member(format!("orders-{number}")) } else { options };
    let consumer = Consumer::builder("orders")
        .source(KafkaSource::open(options).unwrap())
        .store(store.clone())
        .options(Options {
            commit_interval: Duration::from_millis(50),
            instance: format!("member-{number}"),
            ..Options::default()
        })
        .observer(move |event: &Event<'_>| {
            observing.held.send_modify(|held| {
                let held = held.entry(number).or_default();
                match event {
                    Event::Assigned { partition } => _ = held.insert(partition.index),
                    Event::Revoked { partition, .. } => _ = held.remove(&partition.index),
                    _ => {}
                }
            });
        })
        .handler(handler)
        .fuse(None)
        .build()
        .unwrap();
    let drain = CancellationToken::new();
    let stop = drain.clone();
    (stop, tokio::spawn(async move { consumer.run(drain).await.unwrap() }))
}

#[tokio::test(flavor = "multi_thread")]
async fn partitions_that_are_added_while_three_static_members_run_are_read_and_one_member_joins_anew() {
    // I1
    let Some(broker) = broker() else { return };
    // The other test may have set it.
    let _ = tracing::subscriber::set_global_default(Log);
    let mut topic = Topic::new(broker, 6).await;
    let (store, seen) = (Arc::new(MemoryStore::default()), Arc::new(Seen::default()));
    let members: Vec<_> = (0..MEMBERS).map(|number| start(number, true, &topic, &store, &seen)).collect();
    seen.until_shared(|held| held.len() == MEMBERS as usize && held.values().all(|held| held.len() == 2))
        .await;
    let mut sent = 0;
    for (step, partitions) in [(1, 9), (2, 12)] {
        topic.grow(partitions).await;
        sent += send(&topic, &step.to_string(), partitions as u32).await;
        seen.until_handled(sent).await;
        // The group may have noticed it by itself.
        let joins = joins(&topic).await;
        assert!(joins <= step, "{joins} members joined anew for {step} additions");
    }
    for (stop, run) in members {
        stop.cancel();
        run.await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_topic_that_is_recreated_with_fewer_partitions_while_a_mixed_group_reads_it_loses_nothing() {
    // I1
    let Some(broker) = broker() else { return };
    // The other test may have set it.
    let _ = tracing::subscriber::set_global_default(Log);
    let topic = Topic::new(broker, 4).await;
    let (store, seen) = (Arc::new(MemoryStore::default()), Arc::new(Seen::default()));
    let members: Vec<_> =
        (0..MEMBERS).map(|number| start(number, number > 0, &topic, &store, &seen)).collect();
    let partitions =
        |held: &BTreeMap<u32, BTreeSet<u32>>| -> Vec<u32> { held.values().flatten().copied().collect() };
    seen.until_shared(|held| {
        held.len() == MEMBERS as usize
            && held.values().all(|held| !held.is_empty())
            && partitions(held).len() == 4
    })
    .await;
    let old = send(&topic, "old", 4).await;
    seen.until_handled(old).await;
    topic.recreate(2).await;
    let new = send(&topic, "new", 2).await;
    seen.until_handled(old + new).await;
    let joins = joins(&topic).await;
    assert!(joins <= 1, "{joins} members joined anew for one gap");
    seen.until_shared(|held| {
        let mut held = partitions(held);
        held.sort_unstable();
        held == [0, 1]
    })
    .await;
    for (stop, run) in members {
        stop.cancel();
        run.await.unwrap();
    }
    let queue = QueueName::of("orders", "orders");
    let mut dead: Vec<String> = Vec::new();
    for head in store.heads(&queue, None, 100).await.unwrap().heads {
        assert_eq!(head.state, LetterState::Dead);
        dead.push(String::from_utf8(head.message.payload.clone().unwrap().into()).unwrap());
    }
    dead.sort();
    let bad = |step: &str, partitions| (0..partitions).map(move |of| format!("{step}-bad-{of}-0")).collect();
    let expected: [Vec<String>; 2] = [bad("new", 2), bad("old", 4)];
    assert_eq!(dead, expected.concat());
}
