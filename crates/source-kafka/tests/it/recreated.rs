//! A topic is deleted and recreated. Every message of the new topic is handled or becomes a letter.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use lazaret_core::incarnation::{Beginning, IncarnationRegistry, Incarnations};
use lazaret_core::source::Source;
use lazaret_core::store::{LetterStore, Result as StoreResult, Triage};
use lazaret_core::{ConsumerName, HandlerError, LetterState, Message, QueueName, Reason, Timestamp};
use lazaret_engine::{Consumer, DedupeOptions, Options, Stats};
use lazaret_memory::MemoryStore;
use lazaret_source_kafka::{KafkaOptions, KafkaSource};
use rdkafka::producer::FutureRecord;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::support::{LONG, Reading, Topic, broker, numbers, quick};

/// How the topic is recreated, and how the positions are changed.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Variant {
    WhileDown,
    WhileRunning,
    /// An operator commits the old positions, which are beyond the end of the new topic.
    OldPositions,
    /// An operator commits a position that exists in the new topic.
    SmallerPosition,
    Dedupe,
    /// A static member returns, and the group gives it the partitions of the old topic.
    StaticMember,
    /// The same, with a topic that is recreated while the member runs.
    StaticWhileRunning,
}

/// A consumer whose handler fails for payloads that contain `bad`.
struct Bench {
    topic: Topic,
    store: Arc<MemoryStore>,
    handled: watch::Sender<BTreeSet<String>>,
    dedupe: bool,
    member: Option<&'static str>,
}

impl Bench {
    async fn new(broker: String, dedupe: bool, member: Option<&'static str>) -> Self {
        let (topic, store) = (Topic::new(broker, 4).await, Arc::new(MemoryStore::default()));
        Self { topic, store, handled: watch::Sender::default(), dedupe, member }
    }

    fn start(&self) -> (CancellationToken, JoinHandle<Stats>) {
        let handled = self.handled.clone();
        let handler = move |message: Message| {
            let handled = handled.clone();
            async move {
                let payload = String::from_utf8(message.payload.unwrap().into()).unwrap();
                let fails = payload.contains("bad");
                handled.send_modify(|handled| _ = handled.insert(payload));
                if fails { Err(HandlerError::msg("no").reason(Reason::DOMAIN_INVALID)) } else { Ok(()) }
            }
        };
        let filter: Arc<MemoryStore> = self.store.clone();
        let window = Duration::from_secs(3600);
        let options = Options {
            commit_interval: Duration::from_millis(50),
            dedupe: self.dedupe.then(|| DedupeOptions { filter, window }),
            ..Options::default()
        };
        let kafka = self.topic.options();
        let kafka = self.member.map_or(kafka.clone(), |member| kafka.with_member(member));
        let consumer = Consumer::builder("orders")
            .source(KafkaSource::open(kafka).unwrap())
            .store(self.store.clone())
            .handler(handler)
            .options(options)
            .fuse(None)
            .breaker(None)
            .build()
            .unwrap();
        let drain = CancellationToken::new();
        let stop = drain.clone();
        (stop, tokio::spawn(async move { consumer.run(drain).await.unwrap() }))
    }

    async fn send(&self, life: &str, count: u32, partitions: u32) {
        for number in 0..count {
            let what = if number % 10 == 0 { "bad" } else { "good" };
            let payload = format!("{life}-{what}-{number}");
            let record = FutureRecord::to(&self.topic.name).key(&*payload).payload(&*payload);
            self.topic.send(record.partition((number % partitions) as i32)).await;
        }
    }

    /// Waits until each message of this life was tried.
    async fn until_tried(&self, life: &str, count: usize) {
        let mut handled = self.handled.subscribe();
        let of_life = |handled: &BTreeSet<String>| handled.iter().filter(|p| p.starts_with(life)).count();
        let tried = tokio::time::timeout(LONG, handled.wait_for(|handled| of_life(handled) == count)).await;
        let found = of_life(&self.handled.borrow());
        assert!(tried.is_ok(), "{found} of {count} messages of the {life} topic were tried");
    }

    /// Returns the payloads of the dead letters of this life.
    async fn dead(&self, life: &str) -> BTreeSet<String> {
        let queue = QueueName::of("orders", "orders");
        let mut dead = BTreeSet::new();
        for head in self.store.heads(&queue, None, 10_000).await.unwrap().heads {
            assert_eq!(head.state, LetterState::Dead);
            dead.insert(String::from_utf8(head.message.payload.clone().unwrap().into()).unwrap());
        }
        dead.into_iter().filter(|payload| payload.starts_with(life)).collect()
    }
}

async fn recreate(variant: Variant) {
    let Some(broker) = broker() else { return };
    let is_static = matches!(variant, Variant::StaticMember | Variant::StaticWhileRunning);
    let bench = Bench::new(broker, variant == Variant::Dedupe, is_static.then_some("orders-1")).await;
    bench.send("old", 400, 4).await;
    let (stop, run) = bench.start();
    bench.until_tried("old", 400).await;
    (0..4).for_each(|partition| bench.topic.until_committed(partition, |offset, _| offset == 100));
    let running = match variant {
        Variant::WhileRunning | Variant::StaticWhileRunning => Some((stop, run)),
        _ => {
            stop.cancel();
            run.await.unwrap();
            None
        }
    };
    bench.topic.recreate(2).await;
    bench.send("new", 200, 2).await;
    match variant {
        Variant::OldPositions => (0..2).for_each(|partition| bench.topic.set_committed(partition, 101, "")),
        Variant::SmallerPosition => (0..2).for_each(|partition| bench.topic.set_committed(partition, 50, "")),
        _ => {}
    }
    let (stop, run) = running.unwrap_or_else(|| bench.start());
    // I1: each message is tried, although messages with the same positions were handled or marked, or
    // are letters.
    bench.until_tried("new", 200).await;
    (0..2).for_each(|partition| bench.topic.until_committed(partition, |offset, _| offset == 100));
    stop.cancel();
    run.await.unwrap();
    assert_eq!((bench.dead("old").await.len(), bench.dead("new").await.len()), (40, 20), "{variant:?}");
    let seen = bench.store.incarnations(&ConsumerName::from("orders")).await.unwrap();
    let stream = &seen.0[&bench.topic.name.as_str().into()];
    assert_eq!((stream.stream.number, stream.stream.id.is_some()), (1, true), "{variant:?}");
    // Known messages are not repeated, because the positions belong to the new topic.
    let before = bench.handled.send_replace(BTreeSet::new());
    assert_eq!(before.len(), 600);
    bench.send("more", 10, 1).await;
    let (stop, run) = bench.start();
    bench.until_tried("more", 10).await;
    stop.cancel();
    run.await.unwrap();
    assert_eq!(bench.handled.borrow().len(), 10, "{variant:?}");
    assert_eq!(bench.store.queues().await.unwrap().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_topic_that_was_recreated_while_the_consumer_was_down_loses_nothing() {
    recreate(Variant::WhileDown).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_topic_that_is_recreated_while_it_is_read_loses_nothing() {
    recreate(Variant::WhileRunning).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn positions_of_the_deleted_topic_that_are_put_back_skip_nothing() {
    recreate(Variant::OldPositions).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_smaller_position_that_is_put_back_skips_nothing() {
    recreate(Variant::SmallerPosition).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_duplicate_filter_takes_no_message_of_a_new_topic_for_one_of_the_old() {
    recreate(Variant::Dedupe).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_static_member_that_comes_back_to_a_recreated_topic_loses_nothing() {
    recreate(Variant::StaticMember).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_topic_that_is_recreated_while_a_static_member_reads_it_loses_nothing() {
    recreate(Variant::StaticWhileRunning).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_static_member_that_comes_back_reads_partitions_that_were_added() {
    // The group gives the member its former partitions. Nobody reads the others until the group rebalances.
    let Some(broker) = broker() else { return };
    let mut bench = Bench::new(broker, false, Some("orders-1")).await;
    bench.send("old", 40, 4).await;
    let (stop, run) = bench.start();
    bench.until_tried("old", 40).await;
    stop.cancel();
    run.await.unwrap();
    bench.topic.grow(6).await;
    bench.send("new", 60, 6).await;
    let (stop, run) = bench.start();
    bench.until_tried("new", 60).await;
    stop.cancel();
    run.await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_static_member_that_comes_back_reads_the_topics_that_it_subscribes_to_now() {
    let Some(broker) = broker() else { return };
    let (kept, left) = (Topic::new(broker.clone(), 1).await, Topic::new(broker.clone(), 3).await);
    let added = Topic::new(broker.clone(), 2).await;
    let open = |topics: [&Topic; 2]| {
        let options = KafkaOptions::new(&broker, &kept.group, topics.map(|topic| topic.name.as_str()));
        Reading::new(KafkaSource::open(quick(options).with_member("orders-1")).unwrap())
    };
    let mut first = open([&kept, &left]);
    first.until("all partitions are assigned", |r| r.held.len() == 3).await;
    first.source.close().await.unwrap();
    let mut second = open([&kept, &added]);
    second.until("it gives its former partitions back", |r| r.revoking.len() == 4).await;
    second.release().await;
    second.until("those of its topics are assigned", |r| r.held.keys().eq(&[0, 1])).await;
    second.source.close().await.unwrap();
}

/// Incarnations that were all recorded long ago.
#[derive(Default)]
struct SeenLongAgo(Mutex<Incarnations>);

#[async_trait]
impl IncarnationRegistry for SeenLongAgo {
    async fn incarnations(&self) -> StoreResult<Incarnations> {
        Ok(self.0.lock().unwrap().clone())
    }

    async fn begin(&self, beginning: &Beginning) -> StoreResult<Incarnations> {
        let mut seen = self.0.lock().unwrap();
        seen.begin(beginning, Timestamp::UNIX_EPOCH);
        Ok(seen.clone())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_topic_of_which_nothing_was_committed_is_read_from_its_beginning_at_any_later_time() {
    // I1: another member has recorded the topic, and its messages were sent before this member gets the
    // partition.
    let Some(broker) = broker() else { return };
    let topic = Topic::new(broker, 1).await;
    topic.fill(0, 0..3).await;
    let seen = Arc::new(SeenLongAgo::default());
    let open = |options: KafkaOptions| {
        let mut source = KafkaSource::open(options.with_property("auto.offset.reset", "latest")).unwrap();
        source.attach(seen.clone());
        Reading::new(source)
    };
    let mut first = open(topic.options());
    first.until("it is assigned", |r| r.held.len() == 1).await;
    assert_eq!(topic.committed(0).unwrap().0, 3, "the first topic is read from its end");
    first.source.close().await.unwrap();
    topic.recreate(1).await;
    topic.fill(0, 10..13).await;
    // This source records the new topic, and commits for a different group.
    let mut other =
        open(quick(KafkaOptions::new(&topic.brokers, format!("{}-other", topic.group), [&topic.name])));
    other.until("it is assigned", |r| r.held.len() == 1).await;
    other.source.close().await.unwrap();
    let recorded = seen.0.lock().unwrap().0[&topic.name.as_str().into()].stream.number;
    assert_eq!(recorded, 1);
    let mut second = open(topic.options());
    second.until("all messages of the new topic have come", |r| r.count() == 3).await;
    assert_eq!(second.payloads(0), numbers(10..13));
    assert!(second.got[&0].iter().all(|message| message.position.incarnation == 1));
}
