//! Partitions that are added while several static members run are all read, and only one member rejoins
//! for them.

#![allow(clippy::unwrap_used, reason = "a test that fails panics; that is its answer")]

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lazaret_core::{HandlerError, Message};
use lazaret_engine::{Consumer, Event, Options, Stats};
use lazaret_memory::MemoryStore;
use lazaret_source_kafka::KafkaSource;
use rdkafka::producer::FutureRecord;
use support::{LONG, Topic, broker};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tracing::field::{Field, Visit};
use tracing::span;

const MEMBERS: u32 = 3;
/// The number of messages per partition at each step.
const MESSAGES: u32 = 10;

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
}

fn start(
    number: u32,
    topic: &Topic,
    store: &Arc<MemoryStore>,
    seen: &Arc<Seen>,
) -> (CancellationToken, JoinHandle<Stats>) {
    let (handling, observing) = (seen.clone(), seen.clone());
    let handler = move |message: Message| {
        let seen = handling.clone();
        async move {
            let payload = String::from_utf8(message.payload.unwrap().into()).unwrap();
            seen.handled.send_modify(|handled| _ = handled.insert(payload));
            Ok::<_, HandlerError>(())
        }
    };
    let consumer = Consumer::builder("orders")
        .source(KafkaSource::open(topic.options().with_member(format!("orders-{number}"))).unwrap())
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
    tracing::subscriber::set_global_default(Log).unwrap();
    let mut topic = Topic::new(broker, 6).await;
    let (store, seen) = (Arc::new(MemoryStore::default()), Arc::new(Seen::default()));
    let members: Vec<_> = (0..MEMBERS).map(|number| start(number, &topic, &store, &seen)).collect();
    let mut held = seen.held.subscribe();
    let is_shared = |held: &BTreeMap<u32, BTreeSet<u32>>| {
        held.len() == MEMBERS as usize && held.values().all(|held| held.len() == 2)
    };
    let shared = tokio::time::timeout(LONG, held.wait_for(is_shared)).await.is_ok();
    assert!(shared, "{:?}", seen.held.borrow());
    let mut sent = 0;
    for (step, partitions) in [(1, 9), (2, 12)] {
        topic.grow(partitions).await;
        for partition in 0..partitions as i32 {
            for number in 0..MESSAGES {
                let payload = format!("{step}-{partition}-{number}");
                let record = FutureRecord::to(&topic.name).key(&*payload).payload(&*payload);
                topic.send(record.partition(partition)).await;
                sent += 1;
            }
        }
        seen.until_handled(sent).await;
        // The group may have noticed the new partitions by itself.
        let joins = JOINS.lock().unwrap().get(&topic.group).copied().unwrap_or_default();
        assert!(joins <= step, "{joins} members joined anew for {step} additions");
    }
    for (stop, run) in members {
        stop.cancel();
        run.await.unwrap();
    }
}
