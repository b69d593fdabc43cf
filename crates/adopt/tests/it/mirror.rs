//! Dead letters are mirrored to a topic. All of them arrive unchanged, exactly once if there are no
//! errors, and without delaying the consumer.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use lazaret_adopt::kafka::Adoption;
use lazaret_adopt::mirror::{Mirror, MirrorState};
use lazaret_core::letter::{AttemptKind, AttemptRecord};
use lazaret_core::store::{Act, Actor, HandOff, LetterStore, Limits, Locks, Outbox, Placement};
use lazaret_core::{
    Failure, Letter, LetterId, LetterState, Message, Phase, Position, QueueName, Reason, Timestamp,
};
use lazaret_kafka_testkit::{LONG, Reading, Topic, broker, quick, unique};
use lazaret_memory::MemoryStore;
use lazaret_source_kafka::{KafkaSource, headers};
use lazaret_testkit::{Profile, Unreliable};
use rdkafka::mocking::MockCluster;
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;

fn queue() -> QueueName {
    QueueName::of("billing", "billing")
}

fn letter(number: u64, state: LetterState) -> Letter {
    let mut message = Message::new(format!("evt-{number}"), "orders", Position::new(0, number))
        .with_key(format!("k{}", number % 5))
        .with_payload(format!("p{number}"));
    message.timestamp = Some(Timestamp::from_millisecond(1_700_000_000_123).unwrap());
    message.headers.push("tenant", "acme");
    message.headers.push_null("none");
    let mut letter =
        Letter::new(queue(), format!("k{}", number % 5).as_str().into(), Arc::new(message), Timestamp::now());
    letter.state = state;
    letter.attempts = 3;
    let text = format!("order {number} was refused");
    letter.cause = Some(Failure::new(Reason::DOMAIN_INVALID, "Refused", text).in_phase(Phase::Validate));
    letter.last_failed_at = Some(Timestamp::from_second(1_700_000_001).unwrap());
    letter
}

async fn put(store: &impl LetterStore, letter: Letter) {
    let item = HandOff { letter, placement: Placement::Open, grant: None };
    store.hand_off(&queue(), &Limits::NONE, vec![item]).await.unwrap().remove(0).unwrap();
}

async fn put_dead(store: &impl LetterStore, numbers: std::ops::Range<u64>) {
    for number in numbers {
        put(store, letter(number, LetterState::Dead)).await;
    }
}

fn mirror(topic: &Topic) -> Mirror {
    Mirror::of(&topic.options(), queue(), &topic.name)
}

/// A mirror that runs concurrently with the test.
struct Running {
    state: watch::Receiver<MirrorState>,
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

fn start<S: Outbox + Locks>(mirror: Mirror, store: Arc<S>) -> Running {
    let state = mirror.state();
    let (stop, stopped) = oneshot::channel::<()>();
    let task = tokio::spawn(async move {
        let stopped = async {
            let _ = stopped.await;
        };
        mirror.run(&*store, stopped).await.unwrap();
    });
    Running { state, stop, task }
}

impl Running {
    async fn until(&mut self, what: &str, holds: impl FnMut(&MirrorState) -> bool) -> MirrorState {
        let held =
            tokio::time::timeout(LONG, self.state.wait_for(holds)).await.map(|state| state.unwrap().clone());
        held.unwrap_or_else(|_| panic!("timed out waiting until {what}: {:?}", self.state.borrow()))
    }

    async fn end(self) {
        self.stop.send(()).unwrap();
        tokio::time::timeout(LONG, self.task).await.unwrap().unwrap();
    }
}

/// Returns all messages of a topic.
async fn read(topic: &Topic) -> Vec<Message> {
    let options = topic.options().reading_to_end();
    let mut reading = Reading::new(KafkaSource::open(options).unwrap());
    reading.until("it ends", |r| r.ends == 1).await;
    std::mem::take(&mut reading.got).into_values().flatten().collect()
}

fn ids(messages: &[Message]) -> Vec<String> {
    messages.iter().map(|message| headers::read(&message.headers).unwrap().id.to_string()).collect()
}

/// Returns the id of the letter that a claim check names.
fn claim_of(message: &Message) -> Option<LetterId> {
    headers::read(&message.headers).unwrap().claim
}

fn expected(numbers: std::ops::Range<u64>) -> Vec<String> {
    numbers.map(|number| format!("evt-{number}")).collect()
}

#[tokio::test]
async fn dead_letters_are_mirrored_once_with_their_bytes_and_why_they_failed() {
    // I5
    let Some(broker) = broker() else { return };
    let topic = Topic::new(broker, 1).await;
    let store = Arc::new(MemoryStore::default());
    // This letter exists before the mirror starts.
    put_dead(&*store, 0..1).await;
    let mut running = start(mirror(&topic).with_spring_headers(), store.clone());
    running.until("the first is there", |state| state.mirrored == 1).await;
    put_dead(&*store, 1..4).await;
    put(&*store, letter(10, LetterState::Parked)).await;
    put(&*store, letter(11, LetterState::Quarantined)).await;
    put(&*store, letter(12, LetterState::Waiting)).await;
    let mut adopted = letter(13, LetterState::Dead);
    adopted.diagnostics.insert("adopted-from".into(), "orders-dlt/0/0".into());
    put(&*store, adopted).await;
    let mut tombstone = letter(14, LetterState::Dead);
    let mut message = (*tombstone.message).clone();
    (message.key, message.payload) = (None, None);
    tombstone.message = Arc::new(message);
    put(&*store, tombstone).await;
    let state = running.until("all are there", |state| state.mirrored == 5 && state.lag == 0).await;
    assert_eq!((state.skipped, state.standby, state.error), (0, false, None));
    // Changes by operators and replays that fail again are not ends.
    let id = LetterId::of(&queue(), &"evt-1".into());
    store.act(&queue(), id, Act::Park, &Actor::engine("test")).await.unwrap();
    running.end().await;
    let mut running = start(mirror(&topic).with_spring_headers(), store.clone());
    put_dead(&*store, 20..21).await;
    running.until("the last is there", |state| state.mirrored == 1).await;
    running.end().await;

    let messages = read(&topic).await;
    let mut all = expected(0..4);
    all.extend(["evt-14".to_owned(), "evt-20".to_owned()]);
    assert_eq!(ids(&messages), all);
    let first = headers::read(&messages[0].headers).unwrap();
    let before = letter(0, LetterState::Dead);
    assert_eq!(first.headers, before.message.headers);
    assert_eq!(
        (messages[0].key.clone(), messages[0].payload.clone()),
        (before.message.key.clone(), before.message.payload.clone())
    );
    assert_eq!((first.stream.as_str(), first.partition, first.offset), ("orders", 0, 0));
    assert_eq!((first.state, first.attempts, first.queue), (Some(LetterState::Dead), 3, queue()));
    let (failure, cause) = (first.failure.unwrap(), before.cause.unwrap());
    assert_eq!((failure.reason, failure.fingerprint), (cause.reason, cause.fingerprint));
    assert_eq!(messages[0].headers.get("kafka_dlt-original-offset").unwrap().as_ref(), [0; 8]);
    assert_eq!((&messages[4].key, &messages[4].payload), (&None, &None), "a tombstone is one");
}

#[tokio::test]
async fn parked_letters_are_mirrored_on_request() {
    let Some(broker) = broker() else { return };
    let topic = Topic::new(broker, 1).await;
    let store = Arc::new(MemoryStore::default());
    put(&*store, letter(1, LetterState::Parked)).await;
    put(&*store, letter(2, LetterState::Quarantined)).await;
    put(&*store, letter(3, LetterState::Dead)).await;
    let mut running = start(mirror(&topic).with_parked(), store);
    running.until("both are there", |state| state.mirrored == 2).await;
    running.end().await;
    assert_eq!(ids(&read(&topic).await), ["evt-1", "evt-3"]);
}

#[tokio::test]
async fn a_mirrored_letter_can_be_adopted_as_it_was() {
    // I5: the round trip.
    let Some(broker) = broker() else { return };
    let topic = Topic::new(broker, 1).await;
    let store = Arc::new(MemoryStore::default());
    put_dead(&*store, 0..20).await;
    let mut running = start(mirror(&topic), store.clone());
    running.until("all are there", |state| state.mirrored == 20).await;
    running.end().await;
    let other = MemoryStore::default();
    let report = Adoption::of(&topic.options(), &topic.name).into_queue(queue()).run(&other).await.unwrap();
    assert_eq!((report.run.adopted, report.run.damaged), (20, 0));
    for number in 0..20 {
        let id = format!("evt-{number}").into();
        let (own, adopted) = (LetterId::of(&queue(), &id), LetterId::of_import(&queue(), &id));
        let (here, there) = (
            store.get(&queue(), own).await.unwrap().unwrap(),
            other.get(&queue(), adopted).await.unwrap().unwrap(),
        );
        assert_eq!(
            (here.message, here.attempts, here.sequence),
            (there.message, there.attempts, there.sequence)
        );
    }
    // I8: in the queue that they came from, the records are copies of its own letters.
    let again = Adoption::of(&topic.options(), &topic.name).into_queue(queue()).run(&*store).await.unwrap();
    assert_eq!((again.run.adopted, again.run.already_there), (0, 20));
}

#[tokio::test]
async fn a_mirrored_letter_counts_its_equal_failures_in_a_row() {
    let cluster = MockCluster::new(1).unwrap();
    let name = unique("m-");
    cluster.create_topic(&name, 1, 1).unwrap();
    let topic = Topic::existing(cluster.bootstrap_servers(), &name);
    let store = Arc::new(MemoryStore::default());
    let refused = || Failure::new(Reason::DOMAIN_INVALID, "Refused", "the order was refused");
    let timeout = || Failure::new(Reason::TIMEOUT, "Timeout", "no answer");
    let failures = [
        vec![refused()],
        vec![refused(), refused()],
        vec![refused(), timeout(), refused(), refused(), refused()],
    ];
    for (number, failures) in (0..).zip(failures) {
        let mut failed = letter(number, LetterState::Dead);
        failed.attempts = 0;
        for failure in failures {
            failed.attempts += 1;
            failed.cause = Some(failure.clone());
            failed.record(AttemptRecord {
                attempt: failed.attempts,
                kind: AttemptKind::Live,
                at: Timestamp::now(),
                took: Duration::ZERO,
                failure: Some(failure),
            });
        }
        put(&*store, failed).await;
    }
    let mut running = start(mirror(&topic), store);
    running.until("all are there", |state| state.mirrored == 3).await;
    running.end().await;
    let records = read(&topic).await;
    let counted: Vec<_> =
        records.iter().map(|record| record.headers.get_str("x-same-failure-count").unwrap()).collect();
    assert_eq!((ids(&records), counted), (expected(0..3), vec!["1", "2", "3"]));
}

#[tokio::test]
async fn unreachable_brokers_delay_only_the_mirror_and_show_in_its_state() {
    // I9
    let cluster = MockCluster::new(1).unwrap();
    let name = unique("m-");
    cluster.create_topic(&name, 1, 1).unwrap();
    let topic = Topic::existing(cluster.bootstrap_servers(), &name);
    let store = Arc::new(MemoryStore::default());
    let mut running = start(mirror(&topic), store.clone());
    put_dead(&*store, 0..3).await;
    running.until("the first are there", |state| state.mirrored == 3).await;
    cluster.broker_down(1).unwrap();
    // The store still accepts letters.
    put_dead(&*store, 3..10).await;
    let state = running.until("it complains", |state| state.error.is_some()).await;
    assert!(state.lag == 7 && state.mirrored == 3, "{state:?}");
    cluster.broker_up(1).unwrap();
    let state = running.until("all are there", |state| state.mirrored >= 10 && state.lag == 0).await;
    assert_eq!(state.error, None);
    running.end().await;
    let mut got = ids(&read(&topic).await);
    got.dedup();
    assert_eq!(got, expected(0..10));
}

#[tokio::test]
async fn a_mirror_that_crashes_repeats_at_most_its_last_letters_with_the_same_ids() {
    // I1, I8
    let Some(broker) = broker() else { return };
    let topic = Topic::new(broker, 3).await;
    // Calls are slow, so that a crash hits between writing and removing.
    let store = Arc::new(Unreliable::new(MemoryStore::default(), 3));
    put_dead(store.inner(), 0..500).await;
    store.set_profile(Profile { latency: Duration::from_millis(4), ..Profile::default() });
    for crash in 1..5 {
        let mut running = start(mirror(&topic), store.clone());
        running.until("some are there", |state| state.mirrored >= crash * 20).await;
        running.task.abort();
        let _ = running.task.await;
        // The crashed mirror's lock would expire. It is released here instead.
        free(store.inner(), &format!("mirror/billing/billing/{}", topic.name)).await;
    }
    let mut running = start(mirror(&topic), store.clone());
    running.until("nothing waits", |state| state.mirrored > 0 && state.lag == 0 && !state.standby).await;
    running.end().await;
    let messages = read(&topic).await;
    let mut copies: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for message in &messages {
        let id = headers::read(&message.headers).unwrap().id.to_string();
        copies.entry(id).or_default().push(message.headers.get_str("x-handoff-id").unwrap().to_owned());
    }
    assert_eq!(copies.len(), 500, "none is lost");
    assert!(messages.len() <= 500 + 4 * 100, "{} records", messages.len());
    for (id, handoffs) in copies {
        assert!(handoffs.iter().all(|handoff| *handoff == handoffs[0]), "{id}: {handoffs:?}");
    }
}

/// Releases the lock of a crashed mirror.
async fn free(store: &MemoryStore, lock: &str) {
    if let Some(held) = Locks::state(store, lock).await.unwrap() {
        Locks::release(store, lock, &held.owner).await.unwrap();
    }
}

#[tokio::test]
async fn a_store_that_fails_delays_the_mirror_and_loses_nothing() {
    // I1
    let Some(broker) = broker() else { return };
    for seed in 0..3 {
        let topic = Topic::new(broker.clone(), 1).await;
        let store = Arc::new(Unreliable::new(MemoryStore::default(), seed));
        put_dead(store.inner(), 0..250).await;
        store.set_profile(Profile { error: 0.1, error_after: 0.1, ..Profile::default() });
        let mut running = start(mirror(&topic), store.clone());
        running.until("all are there", |state| state.mirrored >= 250).await;
        store.set_profile(Profile::default());
        running.until("nothing waits", |state| state.lag == 0 && state.error.is_none()).await;
        running.end().await;
        let mut got = ids(&read(&topic).await);
        got.sort();
        got.dedup();
        assert_eq!(got.len(), 250, "seed {seed}");
    }
}

#[tokio::test]
async fn of_two_mirrors_one_works_and_the_other_takes_over() {
    // I6
    let Some(broker) = broker() else { return };
    let topic = Topic::new(broker, 1).await;
    let store = Arc::new(MemoryStore::default());
    let mut first = start(mirror(&topic), store.clone());
    put_dead(&*store, 0..5).await;
    first.until("they are there", |state| state.mirrored == 5).await;
    let mut second = start(mirror(&topic), store.clone());
    second.until("it is on standby", |state| state.standby).await;
    put_dead(&*store, 5..10).await;
    first.until("the first continues", |state| state.mirrored == 10).await;
    first.end().await;
    put_dead(&*store, 10..15).await;
    second.until("the second took over", |state| state.mirrored == 5 && !state.standby).await;
    second.end().await;
    assert_eq!(ids(&read(&topic).await), expected(0..15), "each once");
}

#[tokio::test]
async fn oversized_letters_get_a_claim_check_and_the_others_are_mirrored() {
    // I7
    let Some(broker) = broker() else { return };
    let topic = Topic::with_config(broker, &unique("small-"), 1, &[("max.message.bytes", "2000")]).await;
    let store = Arc::new(MemoryStore::default());
    let with_payload = |number: u64, size: usize| {
        let mut letter = letter(number, LetterState::Dead);
        letter.message =
            Arc::new(Message { payload: Some("x".repeat(size).into()), ..(*letter.message).clone() });
        letter.cause = Some(Failure::new(Reason::TIMEOUT, "E", "why ".repeat(500)));
        letter
    };
    put(&*store, with_payload(0, 100)).await;
    put(&*store, with_payload(1, 5_000)).await;
    // This letter fits only with the minimal headers.
    put(&*store, with_payload(2, 1_200)).await;
    put(&*store, with_payload(3, 100)).await;
    let mut running = start(mirror(&topic), store);
    let state = running.until("all had their turn", |state| state.mirrored + state.claimed == 4).await;
    assert_eq!((state.mirrored, state.claimed, state.skipped, &state.error), (3, 1, 0, &None));
    running.end().await;
    let records = read(&topic).await;
    let mut got = ids(&records);
    got.sort();
    assert_eq!(got, expected(0..4));
    let claims: Vec<_> = records.iter().filter(|record| claim_of(record).is_some()).collect();
    assert_eq!(claims.len(), 1);
    assert_eq!(claim_of(claims[0]), Some(LetterId::of(&queue(), &"evt-1".into())));
}

#[tokio::test]
async fn a_topic_that_does_not_exist_is_named() {
    let Some(broker) = broker() else { return };
    let topic = Topic::existing(broker, &unique("missing-"));
    let impatient = topic.options().with_topic_timeout(Duration::from_millis(500));
    let mirror = Mirror::of(&impatient, queue(), &topic.name);
    let error = mirror.run(&MemoryStore::default(), std::future::pending()).await.unwrap_err();
    let text = error.to_string();
    assert!(!error.is_temporary() && text.contains(&topic.name) && text.contains("does not exist"), "{text}");
}

#[tokio::test]
async fn a_topic_that_is_denied_is_said_to_be_denied() {
    let Some(broker) = broker() else { return };
    let closed = Topic::new(broker.clone(), 1).await;
    let Some(options) = lazaret_kafka_testkit::with_password(&closed.name, "open-group", None) else {
        return;
    };
    let store = Arc::new(MemoryStore::default());
    let error =
        Mirror::of(&options, queue(), &closed.name).run(&*store, std::future::pending()).await.unwrap_err();
    assert!(error.to_string().contains("denied") && error.to_string().contains("grant"), "{error}");
    // The topic may be read but not written. The letters wait, and the state holds the error.
    let open = Topic::with_config(broker, &unique("open-"), 1, &[]).await;
    put_dead(&*store, 0..2).await;
    let mut running = start(Mirror::of(&quick(options), queue(), &open.name), store);
    let state = running.until("it complains", |state| state.error.is_some()).await;
    assert!(state.error.as_ref().unwrap().contains("denied"), "{state:?}");
    assert_eq!((state.mirrored, state.lag), (0, 2));
    running.end().await;
}
