//! Files of every released format version can be read: their fixtures are in `tests/fixtures`.
//!
//! A fixture is created once, by the code that first writes its version, and never changed. A version without one fails its
//! test, which writes the file that is to be committed.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use lazaret_core::letter::{AttemptKind, AttemptRecord, Edit};
use lazaret_core::message::{Operation, Schema};
use lazaret_core::source::{Commit, Ingest, NewMessage, Source, SourceEvent};
use lazaret_core::store::{
    Act, Action, Actor, Anchor, AttemptNote, Audit, Checkpoint, Checkpoints, Command, Dedupe, DedupeClaim,
    Exclusion, GrantFence, GroupsRequest, HandOff, LetterStore, Limits, Locks, OperationState, Operations,
    Outbox, PauseScope, PayloadDigest, Placed, Placement, PlanRequest, RolloutPolicy, Selection, Triage,
    plan_hash,
};
use lazaret_core::{
    Failure, Letter, LetterState, Message, Partition, Position, QueueName, Reason, SequenceId, Timestamp,
};
use lazaret_store_sqlite::{FORMAT_VERSION, InboxOptions, Options, Posted, SqliteStore};
use lazaret_testkit::ManualClock;
use lazaret_testkit::clock::test_epoch;

fn fixture(version: u32) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/fixtures/v{version}.db"))
}

fn options() -> Options {
    Options { clock: Arc::new(ManualClock::new()), ..Options::default() }
}

fn queue() -> QueueName {
    QueueName::of("orders", "projection")
}

fn partition() -> Partition {
    Partition::new("orders", 3)
}

fn operator() -> Actor {
    Actor::new("ada", "cli", "the service is back")
}

const HOUR: Duration = Duration::from_secs(3600);

/// A letter in which every field is set.
fn full() -> Letter {
    let mut message = Message::new("evt-1", "orders", Position::new(3, 41))
        .with_key(vec![0, 255, b'k'])
        .with_type("OrderPlaced")
        .with_header("tenant", "acme")
        .with_payload(vec![0, 159, 146, 150]);
    message.headers.push("tenant", vec![7, 0, 7]);
    message.headers.push("empty", "");
    message.position.token = Some("8263".into());
    message.operation = Some(Operation::Update);
    message.content_type = Some("application/json".into());
    message.schema = Some(Box::new(Schema { id: Some("17".into()), version: Some("2".into()) }));
    message.timestamp = Some(test_epoch() - Duration::from_nanos(1_234_567_891));
    message.correlation = Some("corr-1".into());
    message.undecodable = Some("not JSON".into());
    let mut letter = Letter::new(queue(), "~x:00ff6b".into(), message.into(), test_epoch());
    letter.state = LetterState::Retrying;
    letter.cause = Some(Failure::new(Reason::TIMEOUT, "HttpError", "boom").with_backtrace("at main"));
    (letter.attempts, letter.crash_attempts, letter.replay_attempts) = (3, 1, 2);
    letter.poison = true;
    letter.first_failed_at = Some(test_epoch() - Duration::from_millis(999));
    letter.last_failed_at = Some(test_epoch() - Duration::from_nanos(1));
    letter.due_at = Some(test_epoch() + Duration::from_secs(60));
    letter.expires_at = Some(test_epoch() + 24 * HOUR);
    letter.diagnostics.insert("retries".into(), "3".into());
    letter.context.insert("resume-token".into(), "8263".into());
    letter.owner = Some("payments-team".into());
    letter.record(AttemptRecord {
        attempt: 1,
        kind: AttemptKind::Live,
        at: test_epoch() - Duration::from_millis(999),
        took: Duration::from_micros(7),
        failure: Some(Failure::new(Reason::PANICKED, "panic", "first")),
    });
    letter.edits.push(Edit {
        by: "ada".into(),
        at: test_epoch(),
        why: "typo".into(),
        original: Some(vec![0, 1, 254].into()),
    });
    letter
}

/// A letter with only the required fields.
fn bare() -> Letter {
    let message = Message::new("evt-2", "orders", Position::new(3, 42));
    Letter::new(queue(), "~x:00ff6b".into(), message.into(), test_epoch())
}

/// An evicted letter.
fn closed() -> Letter {
    let message = Message::new("evt-3", "orders", Position::new(3, 43)).with_key("").with_payload("");
    let mut letter = Letter::new(queue(), "~empty".into(), message.into(), test_epoch());
    letter.state = LetterState::Dead;
    letter
}

fn note() -> AttemptNote {
    AttemptNote {
        message: "evt-9".into(),
        partition: partition(),
        offset: 49,
        attempts: 2,
        first_failed_at: test_epoch(),
        failure: Failure::new(Reason::TIMEOUT, "HttpError", "slow"),
        same_failure: 2,
        due_at: test_epoch() + HOUR,
    }
}

fn checkpoint() -> Checkpoint {
    Checkpoint {
        processed: Some(Anchor { token: vec![0, 200].into(), at: test_epoch() }),
        seen: Some(Anchor { token: "seen".into(), at: test_epoch() + HOUR }),
        heartbeat: Some(test_epoch() + HOUR),
        instance: Some("pod-1".into()),
        metadata: [("k".to_owned(), "v".to_owned())].into(),
    }
}

/// Fills a store with something of everything.
async fn fill(store: &SqliteStore) {
    let fence = store.assign(&queue(), &[partition()]).await.unwrap().remove(0).fence;
    let grant = Some(GrantFence { partition: partition(), fence, turn: 5 });
    let items = [full(), bare(), closed()].map(|letter| HandOff {
        letter,
        placement: Placement::Open,
        grant: grant.clone(),
    });
    let placed = store.hand_off(&queue(), &Limits::default(), items.into()).await.unwrap();
    assert!(placed.iter().all(Result::is_ok));
    store.act(&queue(), closed().id, Act::Evict, &operator()).await.unwrap();
    store.note_attempts(&queue(), vec![note()]).await.unwrap();
    store.pause(&"orders".into(), PauseScope::Sequence("paused".into()), &operator()).await.unwrap();
    store.save("orders", checkpoint()).await.unwrap();
    store.acquire("leader", "pod-1", HOUR).await.unwrap().unwrap();
    Dedupe::done(store, &queue(), &"evt-0".into(), "pod-1", HOUR).await.unwrap();
    LetterStore::claim(store, &queue(), &"~x:00ff6b".into(), "worker", HOUR).await.unwrap().unwrap();
    fill_inbox(store).await;
}

fn posts() -> Vec<NewMessage> {
    let headers = [("tenant", "acme"), ("empty", "")].into_iter().collect();
    let full = NewMessage {
        id: Some("post-1".into()),
        key: Some(vec![0, 255].into()),
        event_type: Some("OrderPlaced".into()),
        headers,
        payload: Some(vec![0, 159, 146, 150].into()),
        content_type: Some("application/json".into()),
        timestamp: Some(test_epoch() - Duration::from_nanos(1)),
        correlation: Some("corr-1".into()),
        undecodable: Some("not JSON".into()),
    };
    let consumed = NewMessage { id: Some("post-0".into()), ..NewMessage::default() };
    let bare = NewMessage { timestamp: Some(test_epoch()), ..NewMessage::default() };
    vec![consumed, full, bare]
}

/// Posts messages; the first is consumed and the last is settled. Since version 2.
async fn fill_inbox(store: &SqliteStore) {
    let inbox = store.inbox_log("orders", InboxOptions::default());
    inbox.post(posts()).await.unwrap();
    let mut source = inbox.source();
    source.next().await.unwrap();
    let position = Some(Position::new(0, 0));
    let commit = Commit { partition: source.partition(), position, settled_beyond: vec![2..=2] };
    source.commit(vec![commit]).await.unwrap();
}

async fn check_inbox(store: &SqliteStore) {
    let inbox = store.inbox_log("orders", InboxOptions::default());
    let mut source = inbox.source();
    let SourceEvent::Assigned(assigned) = source.next().await.unwrap() else { panic!("assigned first") };
    assert_eq!(assigned[0].settled, [2..=2]);
    let SourceEvent::Messages(messages) = source.next().await.unwrap() else { panic!("then messages") };
    let place = |offset: u64, new: NewMessage| new.at("orders".into(), Position::new(0, offset));
    let expected: Vec<Message> = (0..).zip(posts()).skip(1).map(|(offset, new)| place(offset, new)).collect();
    assert_eq!(messages, expected);
    let posted = inbox.post(posts()).await.unwrap();
    assert!(matches!(&posted[0], Posted::Known { position, .. } if position.offset == 0));
    assert!(matches!(&posted[2], Posted::Taken { position, .. } if position.offset == 3));
}

/// The additions of version 2.
async fn fill_operations(store: &SqliteStore) {
    let request = PlanRequest {
        action: Action::Evict,
        selection: Selection::Letters(vec![(queue(), bare().id), (queue(), closed().id)]),
        valid_for: HOUR,
        max_letters: 10,
    };
    let plan = store.freeze(&request, &operator()).await.unwrap();
    let id = store.begin(plan.id, &rollout(), &operator()).await.unwrap().id;
    store.command(id, Command::Approve, &Actor::new("bob", "api", "looks right")).await.unwrap();
}

fn rollout() -> RolloutPolicy {
    RolloutPolicy { start_at: Some(test_epoch() + HOUR), needs_approval: true, ..RolloutPolicy::default() }
}

async fn check_operations(store: &SqliteStore) {
    let operation = store.operations(None, 10).await.unwrap().operations.remove(0);
    assert_eq!((operation.action, operation.state), (Action::Evict, OperationState::Scheduled));
    assert_eq!((operation.rollout, operation.by, operation.letters), (rollout(), operator(), 1));
    assert_eq!(operation.approved_by, Some(Actor::new("bob", "api", "looks right")));
    assert_eq!((operation.created_at, operation.ended_at), (test_epoch(), None));
    let plan = store.plan(operation.plan).await.unwrap().unwrap();
    assert_eq!((plan.letters, plan.expires_at), (1, test_epoch() + HOUR));
    assert_eq!(plan.excluded, [(Exclusion::Closed, 1)]);
    let item = store.items(operation.id, 0, 10).await.unwrap().remove(0);
    let digest = PayloadDigest::of(bare().message.payload.as_deref());
    match item.digest {
        Some(frozen) => {
            assert_eq!((frozen, plan.hash), (digest, plan_hash(Action::Evict, [(bare().id, digest)])));
        }
        // Before version 5, plans had no digests.
        None => assert_eq!(plan.hash.len(), 64),
    }
    assert_eq!((item.queue, item.letter, item.outcome), (queue(), bare().id, None));
    let taken = store.poll_work(&queue(), "worker", HOUR, 10).await.unwrap();
    assert_eq!(taken.again_at, Some(test_epoch() + HOUR));
    assert_eq!(store.command(operation.id, Command::Cancel, &operator()).await.unwrap().skipped, 1);
}

/// The additions of version 3.
async fn fill_outbox(store: &SqliteStore) {
    let queue = QueueName::of("told", "told");
    store.watch_ends(&queue).await.unwrap();
    for id in ["forgotten", "listed"] {
        let message = Message::new(id, "orders", Position::new(1, 0));
        let mut letter = Letter::new(queue.clone(), id.into(), message.into(), test_epoch());
        (letter.state, letter.attempts) = (LetterState::Parked, 3);
        let item = HandOff { letter, placement: Placement::Open, grant: None };
        store.hand_off(&queue, &Limits::NONE, vec![item]).await.unwrap().remove(0).unwrap();
    }
    store.forget_ends(&queue, 1).await.unwrap();
}

async fn check_outbox(store: &SqliteStore) {
    let queue = QueueName::of("told", "told");
    let page = store.ends(&queue, 0, 10).await.unwrap();
    let [end] = &page.ends[..] else { panic!("one end is listed: {page:?}") };
    assert_eq!((end.number, end.state, end.attempts), (2, LetterState::Parked, 3));
    assert_eq!(end.letter.as_ref().unwrap().message.id.as_str(), "listed");
}

/// Checks that everything of [`fill`] is there, and that the store can work with it.
async fn check(store: &SqliteStore) {
    let letters = store.sequence(&queue(), &"~x:00ff6b".into(), 0, 10).await.unwrap();
    let expected = [full(), bare()];
    assert_eq!(letters.len(), expected.len());
    for (stored, expected) in letters.iter().zip(expected) {
        assert_eq!(*stored, Letter { index: stored.index, ..expected });
    }
    let evicted = store.get(&queue(), closed().id).await.unwrap().unwrap();
    assert_eq!(evicted, Letter { index: evicted.index, state: LetterState::Evicted, ..closed() });
    let counts = store.counts(&queue()).await.unwrap();
    assert_eq!((counts.open(), counts.sequences, counts.of(LetterState::Evicted)), (2, 1, 1));
    let request = GroupsRequest { closed: true, limit: 10, ..GroupsRequest::default() };
    let groups = store.groups(&request).await.unwrap().groups;
    let group = groups.iter().find(|group| group.message == "boom").unwrap();
    assert_eq!((group.counts.of(LetterState::Retrying), group.blocked_behind, groups.len()), (1, 1, 1));
    assert_eq!((group.oldest, group.trend[23]), (Some(test_epoch()), 1));
    assert_eq!(store.attempt_notes(&queue(), &[partition()]).await.unwrap(), [note()]);
    let pauses = store.pauses(&"orders".into()).await.unwrap();
    assert_eq!((pauses[0].by.clone(), pauses[0].since, pauses.len()), (operator(), test_epoch(), 1));
    assert_eq!(store.load("orders").await.unwrap(), Some(checkpoint()));
    let lock = Locks::state(store, "leader").await.unwrap().unwrap();
    assert_eq!((lock.owner.as_str(), lock.expires_at), ("pod-1", test_epoch() + HOUR));
    let claim = Dedupe::claim(store, &queue(), &"evt-0".into(), "pod-2", HOUR).await.unwrap();
    assert_eq!(claim, DedupeClaim::Done);
    let audit: Vec<String> =
        store.audit(0, 10).await.unwrap().into_iter().map(|entry| entry.action).collect();
    assert_eq!(audit[..2], ["evict", "pause"]);
    let verified = store.verify_audit().await.unwrap().unwrap();
    assert_eq!((verified.intact, verified.broken), (audit.len() as u64, None));
    let due: Option<Timestamp> = store.next_due(&queue()).await.unwrap();
    assert_eq!(due, Some(test_epoch() + HOUR), "it is leased until then");
    let opened = store.opened_since(&queue(), 0, 10).await.unwrap();
    assert_eq!(opened.sequences, [SequenceId::from("~x:00ff6b")]);
    let grant = store.assign(&queue(), &[partition()]).await.unwrap().remove(0);
    assert_eq!((grant.fence, grant.horizon), (2, Some(43)));
    let item = HandOff { letter: closed(), placement: Placement::Open, grant: None };
    let placed = store.hand_off(&queue(), &Limits::default(), vec![item]).await.unwrap().remove(0);
    assert_eq!(placed.unwrap(), Placed::Held(LetterState::Evicted));
    let restored = store.act(&queue(), closed().id, Act::Restore, &operator()).await.unwrap();
    assert_eq!(restored.index, evicted.index);
}

#[tokio::test]
async fn the_current_version_reads_its_own_files() {
    let folder = tempfile::tempdir().unwrap();
    let store = SqliteStore::open(folder.path().join("new.db"), options()).unwrap();
    fill(&store).await;
    fill_operations(&store).await;
    fill_outbox(&store).await;
    check_outbox(&store).await;
    check_operations(&store).await;
    check(&store).await;
    check_inbox(&store).await;
}

#[tokio::test]
async fn the_files_of_every_version_are_read() {
    for version in 1..=FORMAT_VERSION {
        let folder = tempfile::tempdir().unwrap();
        let copy = folder.path().join("old.db");
        std::fs::write(&copy, std::fs::read(fixture(version)).unwrap()).unwrap();
        let store = SqliteStore::open(&copy, options()).unwrap();
        if version >= 2 {
            check_operations(&store).await;
        }
        if version >= 3 {
            check_outbox(&store).await;
        }
        check(&store).await;
        if version < 2 {
            fill_inbox(&store).await;
        }
        check_inbox(&store).await;
    }
}

#[tokio::test]
async fn the_current_version_has_a_fixture() {
    let target = fixture(FORMAT_VERSION);
    if !target.exists() {
        write_fixture(&target).await;
        panic!(
            "version {FORMAT_VERSION} had no fixture; {} is new and has to be committed",
            target.display()
        );
    }
}

/// Writes the fixture of the current version, as one small file without a log.
async fn write_fixture(target: &Path) {
    let folder = tempfile::tempdir().unwrap();
    let store = SqliteStore::open(folder.path().join("new.db"), options()).unwrap();
    fill(&store).await;
    fill_operations(&store).await;
    fill_outbox(&store).await;
    let file = rusqlite::Connection::open(store.path()).unwrap();
    file.execute("VACUUM INTO ?1", [target.to_str().unwrap()]).unwrap();
    let small = rusqlite::Connection::open(target).unwrap();
    small.execute_batch("PRAGMA page_size = 512; VACUUM").unwrap();
}
