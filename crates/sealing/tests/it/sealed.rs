//! Content is encrypted in every file of a store, and is only read with the right key at the right place.

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use lazaret_core::failure::CauseLink;
use lazaret_core::letter::{AttemptKind, AttemptRecord};
use lazaret_core::query::Query;
use lazaret_core::source::{Backlog, Commit, Ingest, NewMessage, Posted, Source, SourceEvent};
use lazaret_core::store::{
    Act, Action, Actor, AttemptNote, Audit, Change, ErrorKind, GroupsRequest, HandOff, LetterStore, Limits,
    Operations, Outbox, Placement, PlanRequest, Requeue, Result, Selection, Settled, Settlement, Store,
    Triage,
};
use lazaret_core::{
    Failure, Letter, LetterId, LetterState, Message, MessageId, Partition, Position, QueueName, Reason,
    Timestamp,
};
use lazaret_memory::MemoryStore;
use lazaret_sealing::{EncryptionKey, KeyError, KeyRing, PlainStore, SealedInbox, SealedSource, SealedStore};
use lazaret_store_sqlite::{InboxOptions, Options, SqliteStore};

/// It is in all content that the tests store.
const SECRET: &str = "PAN-4111-1111";
const FILE: &str = "lazaret.db";

fn key(byte: u8) -> EncryptionKey {
    EncryptionKey::new(&[byte; 32])
}

fn queue() -> QueueName {
    QueueName::of("orders", "orders")
}

fn id_of(message: &str) -> LetterId {
    LetterId::of(&queue(), &MessageId::from(message))
}

fn ada() -> Actor {
    Actor::new("ada", "cli", "known bug")
}

fn failure() -> Failure {
    let mut failure = Failure::new(Reason::TIMEOUT, "HttpError", format!("no answer for {SECRET}"))
        .with_backtrace(format!("at pay({SECRET})"));
    failure.chain.push(CauseLink { error_type: None, message: format!("read {SECRET}") });
    failure
}

fn attempt() -> AttemptRecord {
    let (at, took) = (Timestamp::now(), Duration::from_millis(5));
    AttemptRecord { attempt: 1, kind: AttemptKind::Replay, at, took, failure: Some(failure()) }
}

fn letter(message: &str, offset: u64) -> Letter {
    let message = Message::new(message, "orders", Position::new(0, offset))
        .with_payload(format!("{{\"card\":\"{SECRET}\"}}"))
        .with_header("card", SECRET);
    let sequence = message.id.as_str().into();
    let mut letter = Letter::new(queue(), sequence, message.into(), Timestamp::now());
    letter.state = LetterState::Dead;
    letter.cause = Some(failure());
    letter.history.push(attempt());
    letter.diagnostics.insert("card".into(), SECRET.into());
    letter.context.insert("card".into(), SECRET.into());
    letter
}

async fn put(store: &impl LetterStore, letter: Letter) {
    let item = HandOff { letter, placement: Placement::Open, grant: None };
    store.hand_off(&queue(), &Limits::NONE, vec![item]).await.unwrap().remove(0).unwrap();
}

async fn get(store: &impl LetterStore, message: &str) -> Letter {
    store.get(&queue(), id_of(message)).await.unwrap().unwrap()
}

/// A store that keeps what it can in its redo log, too.
fn file(folder: &Path) -> SqliteStore {
    let options = Options { redo_from: 0, redo_time: Duration::from_secs(3600), ..Options::default() };
    SqliteStore::open(folder.join(FILE), options).unwrap()
}

async fn sealed(store: &SqliteStore, keys: &[u8]) -> SealedStore<SqliteStore> {
    let keys = keys.iter().map(|byte| key(*byte)).collect();
    SealedStore::open(Arc::new(store.clone()), keys).await.unwrap()
}

/// The files of a folder that hold the secret.
fn leaks(folder: &Path) -> Vec<String> {
    let holds = |path: &Path| {
        let bytes = std::fs::read(path).unwrap();
        bytes.windows(SECRET.len()).any(|part| part == SECRET.as_bytes())
    };
    let files = std::fs::read_dir(folder).unwrap().map(|file| file.unwrap().path());
    let mut names: Vec<_> = files
        .filter(|path| holds(path))
        .map(|path| path.file_name().unwrap().display().to_string())
        .collect();
    names.sort();
    names
}

/// Everything that writes content.
async fn write_all(store: &impl Store) {
    put(store, letter("evt-1", 1)).await;
    put(store, letter("evt-2", 2)).await;
    let note = AttemptNote {
        message: "evt-3".into(),
        partition: Partition::new("orders", 0),
        offset: 3,
        attempts: 1,
        first_failed_at: Timestamp::now(),
        failure: failure(),
        same_failure: 1,
        due_at: Timestamp::now(),
    };
    store.note_attempts(&queue(), vec![note]).await.unwrap();
    let edited = Change::Payload(Some(format!("[\"{SECRET}\"]").into()));
    store.change(&queue(), id_of("evt-2"), &edited, &ada()).await.unwrap();
    let lease = Duration::from_secs(60);
    let claim = store.claim(&queue(), &"evt-1".into(), "worker", lease).await.unwrap().unwrap();
    let requeue = Requeue { cause: Some(failure()), attempt: Some(attempt()), ..Requeue::of(&claim.head) };
    let settlement = Settlement::Requeue(Box::new(requeue));
    store.settle(&claim.lease, claim.head.id, settlement).await.unwrap();
}

#[tokio::test]
async fn no_file_of_a_store_shows_content() {
    let folder = tempfile::tempdir().unwrap();
    let inside = file(folder.path());
    let store = sealed(&inside, &[1]).await;
    write_all(&store).await;
    let found = get(&store, "evt-2").await;
    assert_eq!(found.message.payload.as_deref(), Some(format!("[\"{SECRET}\"]").as_bytes()));
    assert_eq!(found.edits[0].original, letter("evt-2", 2).message.payload);
    assert_eq!(get(&store, "evt-1").await.history.len(), 2);
    let notes = store.attempt_notes(&queue(), &[Partition::new("orders", 0)]).await.unwrap();
    assert_eq!(notes[0].failure, failure());
    let groups = store.groups(&GroupsRequest { limit: 9, ..GroupsRequest::default() }).await.unwrap().groups;
    assert_eq!(groups[0].message, failure().message);
    for entry in store.audit(0, 100).await.unwrap() {
        assert!(!format!("{entry:?}").contains(SECRET), "{entry:?}");
    }
    assert_eq!(leaks(folder.path()), [""; 0], "while it is open");
    inside.close().await.unwrap();
    assert_eq!(leaks(folder.path()), [""; 0], "after it was closed");
}

#[tokio::test]
async fn without_a_key_content_is_in_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let store = file(folder.path());
    write_all(&store).await;
    store.close().await.unwrap();
    assert_eq!(leaks(folder.path()), [FILE], "the test above can find it");
}

#[tokio::test]
async fn letters_from_before_encryption_stay_readable() {
    let folder = tempfile::tempdir().unwrap();
    let inside = file(folder.path());
    write_all(&inside).await;
    let before = [get(&inside, "evt-1").await, get(&inside, "evt-2").await];
    let store = sealed(&inside, &[1]).await;
    assert_eq!([get(&store, "evt-1").await, get(&store, "evt-2").await], before);
    put(&store, letter("evt-4", 4)).await;
    assert_ne!(get(&inside, "evt-4").await.message, get(&store, "evt-4").await.message);
}

#[tokio::test]
async fn a_store_with_encrypted_values_needs_its_key() {
    let store = Arc::new(MemoryStore::default());
    KeyRing::require_none(&*store).await.unwrap();
    let first = SealedStore::open(store.clone(), vec![key(1)]).await.unwrap();
    put(&first, letter("evt-1", 1)).await;
    let (right, wrong) = (key(1).id().clone(), key(2).id().clone());
    let error = KeyRing::require_none(&*store).await.unwrap_err();
    assert!(matches!(&error, KeyError::NoKey { wrapped_by } if *wrapped_by == [right.clone()]), "{error}");
    let error = SealedStore::open(store.clone(), vec![key(2)]).await.unwrap_err();
    let text = error.to_string();
    assert!(text.contains(right.as_str()) && text.contains(wrong.as_str()), "{text}");
    assert!(matches!(error, KeyError::WrongKey { .. }));
    let opened = SealedStore::open(store, vec![key(1)]).await.unwrap();
    assert_eq!(get(&opened, "evt-1").await.cause, Some(failure()));
}

#[tokio::test]
async fn a_key_is_replaced_without_a_change_of_the_letters() {
    let folder = tempfile::tempdir().unwrap();
    let inside = file(folder.path());
    put(&sealed(&inside, &[1]).await, letter("evt-1", 1)).await;
    let stored = get(&inside, "evt-1").await;
    let both = sealed(&inside, &[2, 1]).await;
    put(&both, letter("evt-2", 2)).await;
    assert_eq!(get(&inside, "evt-1").await, stored, "the letter was not touched");
    // The earlier key is not needed any more, and does not suffice.
    let new = sealed(&inside, &[2]).await;
    for message in ["evt-1", "evt-2"] {
        assert_eq!(get(&new, message).await.cause, Some(failure()));
    }
    let keys = KeyRing::stored(&inside).await.unwrap();
    let wrapped_by: Vec<_> = keys.iter().map(|key| key.wrapped_by.clone()).collect();
    assert_eq!(
        wrapped_by,
        [key(2).id().clone(), key(2).id().clone()],
        "a data key of its own for new values"
    );
    let old = SealedStore::open(Arc::new(inside), vec![key(1)]).await.unwrap_err();
    assert!(matches!(old, KeyError::WrongKey { .. }), "{old}");
}

#[tokio::test]
async fn an_instance_learns_of_the_data_keys_of_another() {
    let inside = Arc::new(MemoryStore::default());
    let running = SealedStore::open(inside.clone(), vec![key(1), key(2)]).await.unwrap();
    let started_later = SealedStore::open(inside.clone(), vec![key(2), key(1)]).await.unwrap();
    put(&started_later, letter("evt-1", 1)).await;
    assert_eq!(get(&running, "evt-1").await.cause, Some(failure()));
    // One that lacks the new key says so, and shows no encrypted value as if it were content.
    let lacking = SealedStore::open(inside.clone(), vec![key(2), key(1)]).await.unwrap();
    SealedStore::open(inside, vec![key(3), key(2), key(1)]).await.map(drop).unwrap();
    let newest = SealedStore::open(running.inner().clone(), vec![key(3)]).await.unwrap();
    put(&newest, letter("evt-2", 2)).await;
    let shown = get(&lacking, "evt-2").await;
    let why = shown.message.undecodable.as_deref().unwrap();
    assert!(why.contains(key(3).id().as_str()) && shown.message.payload.is_none(), "{why}");
    assert!(lacking.keys().missing().unwrap().to_string().contains(key(3).id().as_str()));
    assert_eq!(get(&lacking, "evt-1").await.cause, Some(failure()), "it keeps the data keys that it has");
}

/// A letter that is due for a retry.
fn due(message: &str, offset: u64) -> Letter {
    let mut letter = letter(message, offset);
    letter.state = LetterState::Retrying;
    letter.due_at = Some(letter.enqueued_at);
    letter
}

/// Stores a letter whose encrypted payload is that of another one.
async fn put_damaged(inside: &MemoryStore, mut letter: Letter, payload_of: &str) {
    let payload = get(inside, payload_of).await.message.payload.clone();
    Arc::make_mut(&mut letter.message).payload = payload;
    put(inside, letter).await;
}

const LEASE: Duration = Duration::from_secs(60);

#[tokio::test]
async fn a_damaged_letter_is_shown_without_its_payload_and_stops_no_other() {
    let inside = Arc::new(MemoryStore::default());
    let store = SealedStore::open(inside.clone(), vec![key(1)]).await.unwrap();
    put(&store, due("evt-2", 2)).await;
    for (message, offset) in [("evt-1", 1), ("evt-3", 3)] {
        put_damaged(&inside, due(message, offset), "evt-2").await;
    }
    let found = store.find(&Query::parse("").unwrap(), None, 10).await.unwrap().letters;
    let heads = store.heads(&queue(), None, 10).await.unwrap().heads;
    for letters in [found, heads] {
        let mut shown: Vec<_> = letters
            .iter()
            .map(|letter| (letter.message.id.as_str(), letter.message.undecodable.is_some()))
            .collect();
        shown.sort_unstable();
        assert_eq!(shown, [("evt-1", true), ("evt-2", false), ("evt-3", true)]);
    }
    let letters = store.sequence(&queue(), &"evt-1".into(), 0, 10).await.unwrap();
    assert_eq!((&letters[0].message.payload, letters[0].payload_left_out), (&None, true));
    // Nobody knows what the others hold.
    let page = store.find(&Query::parse("-payload./card:other").unwrap(), None, 10).await.unwrap();
    assert_eq!(page.letters.len(), 1);

    let mut claimed = Vec::new();
    for _ in 0..4 {
        let claims = store.claim_due(&queue(), "worker", LEASE, 1).await.unwrap();
        claimed.extend(claims.into_iter().map(|claim| claim.head.id));
    }
    assert_eq!(claimed, [id_of("evt-2")], "no claim fails, and damaged letters are in none");
    let told = store.keys().withheld("orders").unwrap();
    assert!(told.starts_with("2 letters are not executed"), "{told}");
    assert_eq!(store.keys().withheld("other"), None);
}

#[tokio::test]
async fn a_damaged_letter_is_evicted_and_erased() {
    let inside = Arc::new(MemoryStore::default());
    let store = SealedStore::open(inside.clone(), vec![key(1)]).await.unwrap();
    put(&store, letter("evt-2", 2)).await;
    put_damaged(&inside, letter("evt-1", 1), "evt-2").await;
    store.act(&queue(), id_of("evt-1"), Act::Evict, &ada()).await.unwrap();
    let erased = store.erase(&queue(), id_of("evt-1"), &ada()).await.unwrap();
    assert!(erased.erased.is_some() && erased.message.undecodable.is_none());
    store.purge(&queue(), id_of("evt-1"), &ada()).await.unwrap();
}

#[tokio::test]
async fn a_settlement_before_a_damaged_letter_succeeds() {
    let inside = Arc::new(MemoryStore::default());
    let store = SealedStore::open(inside.clone(), vec![key(1)]).await.unwrap();
    let in_one = |letter: Letter| Letter { sequence: "k".into(), ..letter };
    put(&store, in_one(letter("evt-1", 1))).await;
    put_damaged(&inside, in_one(letter("evt-2", 2)), "evt-1").await;
    let claim = store.claim(&queue(), &"k".into(), "worker", LEASE).await.unwrap().unwrap();
    let settled = store.settle(&claim.lease, claim.head.id, Settlement::Resolve(None)).await.unwrap();
    assert!(matches!(settled, Settled::Blocked), "{settled:?}");
    assert_eq!(get(&store, "evt-1").await.state, LetterState::Resolved);
}

#[tokio::test]
async fn a_damaged_letter_is_not_among_the_copies_of_dead_letters() {
    let inside = Arc::new(MemoryStore::default());
    let store = SealedStore::open(inside.clone(), vec![key(1)]).await.unwrap();
    put(&store, letter("evt-2", 2)).await;
    put_damaged(&inside, letter("evt-1", 1), "evt-2").await;
    store.watch_ends(&queue()).await.unwrap();
    let ends = store.ends(&queue(), 0, 10).await.unwrap().ends;
    let copied: Vec<_> = ends.iter().map(|end| (end.id, end.letter.is_some())).collect();
    assert_eq!(copied.len(), 2);
    assert!(copied.contains(&(id_of("evt-2"), true)) && copied.contains(&(id_of("evt-1"), false)));
}

#[tokio::test]
async fn an_instance_without_keys_executes_and_stores_nothing_beside_encrypted_letters() {
    let inside = Arc::new(MemoryStore::default());
    let plain = PlainStore::new(inside.clone());
    put(&plain, due("evt-1", 1)).await;
    let sealed = SealedStore::open(inside, vec![key(1)]).await.unwrap();
    put(&sealed, due("evt-2", 2)).await;
    // It has just seen that there are no keys: the letter itself shows them.
    let claims = plain.claim_due(&queue(), "worker", LEASE, 10).await.unwrap();
    let heads: Vec<_> = claims.iter().map(|claim| claim.head.id).collect();
    assert_eq!(heads, [id_of("evt-1")]);
    let shown = get(&plain, "evt-2").await;
    let why = shown.message.undecodable.as_deref().unwrap();
    assert!(why.contains(key(1).id().as_str()) && shown.message.payload.is_none(), "{why}");
    assert!(!format!("{shown:?}").contains("lz1~"), "{shown:?}");
    assert!(matches!(plain.keys().missing(), Some(KeyError::NoKey { .. })));

    let item = HandOff { letter: letter("evt-3", 3), placement: Placement::Open, grant: None };
    let handed_off = plain.hand_off(&queue(), &Limits::NONE, vec![item]).await.unwrap_err();
    let claimed = plain.claim(&queue(), &"evt-2".into(), "worker", LEASE).await.unwrap_err();
    let polled = plain.poll_work(&queue(), "worker", LEASE, 10).await.unwrap_err();
    for error in [handed_off, claimed, polled] {
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert!(error.to_string().contains(key(1).id().as_str()), "{error}");
    }
    // What it has begun, it settles.
    let claim = &claims[0];
    plain.settle(&claim.lease, claim.head.id, Settlement::Resolve(None)).await.unwrap();
}

#[tokio::test]
async fn an_inbox_is_neither_read_nor_filled_without_its_keys() {
    let folder = tempfile::tempdir().unwrap();
    let inside = file(folder.path());
    let log = || inside.inbox_log("orders", InboxOptions::default());
    let keyless = || Arc::new(KeyRing::without_keys(Arc::new(inside.clone())));
    let mut source = SealedSource::new(log().source(), "orders", keyless());
    let plain = SealedInbox::new(log(), "orders", keyless());
    let keys = sealed(&inside, &[1]).await.keys().clone();
    let refused = plain.post(vec![posted(Some("evt-1"), SECRET)]).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unavailable);
    SealedInbox::new(log(), "orders", keys).post(vec![posted(Some("evt-1"), SECRET)]).await.unwrap();
    assert!(matches!(source.next().await.unwrap(), SourceEvent::Assigned(_)));
    for _ in 0..2 {
        let error = source.next().await.unwrap_err();
        assert!(error.is_temporary() && error.to_string().contains(key(1).id().as_str()), "{error}");
    }
    assert_eq!(plain.backlog().await.unwrap().messages, 1);
}

#[tokio::test]
async fn values_that_were_swapped_in_the_file_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let inside = file(folder.path());
    let store = sealed(&inside, &[1]).await;
    put(&store, letter("evt-1", 1)).await;
    put(&store, letter("evt-2", 2)).await;
    // A query commits what is in the redo log.
    assert_eq!(store.counts(&queue()).await.unwrap().open(), 2);
    let other = rusqlite::Connection::open(folder.path().join(FILE)).unwrap();
    let changed = other.execute(
        "UPDATE payloads SET payload = (SELECT payload FROM payloads WHERE lid <> (SELECT min(lid) FROM payloads))
         WHERE lid = (SELECT min(lid) FROM payloads)",
        [],
    );
    assert_eq!(changed.unwrap(), 1);
    let shown = get(&store, "evt-1").await;
    assert_eq!((&shown.message.payload, &shown.cause), (&None, &Some(failure())));
    let text = shown.message.undecodable.as_deref().unwrap();
    assert!(text.contains("payload") && text.contains(&id_of("evt-1").to_string()), "{text}");
    assert_eq!(get(&store, "evt-2").await.cause, Some(failure()), "the other one is as it was");
}

#[tokio::test]
async fn queries_read_encrypted_content() {
    let store = SealedStore::open(Arc::new(MemoryStore::default()), vec![key(1)]).await.unwrap();
    for (n, text) in ["first", "second", "third"].into_iter().enumerate() {
        let mut letter = letter(text, n as u64);
        let message = Message::clone(&letter.message).with_payload(format!("{{\"n\":{n}}}"));
        letter.message = message.with_header("tenant", text).into();
        letter.cause = Some(Failure::new(Reason::TIMEOUT, "HttpError", format!("boom {text}")));
        put(&store, letter).await;
    }
    let cases = [
        ("payload./n:>=1", vec!["third", "second"]),
        ("payload./n:1 or header.tenant:first", vec!["second", "first"]),
        ("-header.tenant:third", vec!["second", "first"]),
        ("error:\"boom second\"", vec!["second"]),
        ("BOOM type:none", vec![]),
        ("state:closed boom", vec![]),
    ];
    for (text, expected) in cases {
        let query = Query::parse(text).unwrap();
        let page = store.find(&query, None, 10).await.unwrap();
        let found: Vec<_> = page.letters.iter().map(|letter| letter.message.id.as_str()).collect();
        assert_eq!(found, expected, "{text}");
        let counted = store.count(&query).await.unwrap();
        assert_eq!((counted.letters, counted.exact), (expected.len() as u64, true), "{text}");
        let request = PlanRequest {
            action: Action::Evict,
            selection: Selection::Query(query),
            valid_for: Duration::from_secs(60),
            max_letters: 100,
        };
        let plan = store.freeze(&request, &ada()).await.unwrap();
        assert_eq!(plan.letters, expected.len() as u64, "{text}");
        let bounded = PlanRequest { max_letters: 0, ..request };
        assert_eq!(store.freeze(&bounded, &ada()).await.is_err(), !expected.is_empty(), "{text}");
    }
}

fn posted(id: Option<&str>, payload: &str) -> NewMessage {
    let mut message = NewMessage {
        id: id.map(MessageId::from),
        payload: Some(payload.to_owned().into()),
        ..NewMessage::default()
    };
    message.headers.push("card", SECRET);
    message
}

#[tokio::test]
async fn an_inbox_shows_no_content_and_recognizes_what_it_has() {
    let folder = tempfile::tempdir().unwrap();
    let inside = file(folder.path());
    let log = || inside.inbox_log("orders", InboxOptions::default());
    let ring = async |keys: &[u8]| sealed(&inside, keys).await.keys().clone();
    let keys = ring(&[1]).await;
    let inbox = SealedInbox::new(log(), "orders", keys.clone());
    let messages = vec![posted(Some("evt-1"), SECRET), posted(None, SECRET), posted(Some("0:7"), SECRET)];
    let answers = inbox.post(messages.clone()).await.unwrap();
    assert!(answers.iter().all(|answer| matches!(answer, Posted::Taken { .. })), "{answers:?}");
    let again =
        inbox.post(vec![posted(Some("evt-1"), SECRET), posted(Some("evt-1"), "other")]).await.unwrap();
    assert!(matches!(again[..], [Posted::Known { .. }, Posted::Conflict { .. }]), "{again:?}");
    // Under another data key, too.
    let renewed = SealedInbox::new(log(), "orders", ring(&[2, 1]).await);
    let again =
        renewed.post(vec![posted(Some("evt-1"), SECRET), posted(Some("evt-1"), "other")]).await.unwrap();
    assert!(matches!(again[..], [Posted::Known { .. }, Posted::Conflict { .. }]), "{again:?}");
    renewed.post(vec![posted(Some("evt-2"), SECRET)]).await.unwrap();
    assert_eq!(leaks(folder.path()), [""; 0]);

    let mut source = SealedSource::new(log().source(), "orders", ring(&[2, 1]).await);
    assert!(matches!(source.next().await.unwrap(), SourceEvent::Assigned(_)));
    let SourceEvent::Messages(read) = source.next().await.unwrap() else { panic!("messages are there") };
    assert_eq!(read.len(), 4);
    for message in &read {
        assert_eq!(message.payload.as_deref(), Some(SECRET.as_bytes()), "{}", message.id);
        assert_eq!((message.headers.get_str("card"), &message.undecodable), (Some(SECRET), &None));
    }
    let commit = Commit {
        partition: read[0].partition(),
        position: Some(read[3].position.clone()),
        settled_beyond: Vec::new(),
    };
    source.commit(vec![commit]).await.unwrap();
    assert_eq!(inbox.backlog().await.unwrap().messages, 0);
}

/// An inbox that records how many messages each call has.
struct Counted<I> {
    inner: I,
    calls: Arc<Mutex<Vec<usize>>>,
}

#[async_trait]
impl<I: Ingest> Ingest for Counted<I> {
    async fn post(&self, messages: Vec<NewMessage>) -> Result<Vec<Posted>> {
        self.calls.lock().unwrap().push(messages.len());
        self.inner.post(messages).await
    }

    async fn backlog(&self) -> Result<Backlog> {
        self.inner.backlog().await
    }
}

#[tokio::test]
async fn right_and_wrong_guesses_of_a_payload_cost_the_same_calls() {
    let folder = tempfile::tempdir().unwrap();
    let inside = file(folder.path());
    let log = || inside.inbox_log("orders", InboxOptions::default());
    let ring = async |keys: &[u8]| sealed(&inside, keys).await.keys().clone();
    // A message under each of three data keys, of which the last one encrypts.
    for (id, keys) in [("evt-1", &[1][..]), ("evt-2", &[2, 1][..]), ("evt-3", &[3, 2, 1][..])] {
        let inbox = SealedInbox::new(log(), "orders", ring(keys).await);
        inbox.post(vec![posted(Some(id), SECRET)]).await.unwrap();
    }
    let calls = Arc::<Mutex<Vec<usize>>>::default();
    let counted = Counted { inner: log(), calls: calls.clone() };
    let inbox = SealedInbox::new(counted, "orders", ring(&[3, 2, 1]).await);
    for (guesses, known) in
        [([SECRET; 3], [true; 3]), (["no"; 3], [false; 3]), (["no", SECRET, "no"], [false, true, false])]
    {
        let ids = ["evt-1", "evt-2", "evt-3"];
        let messages = ids.iter().zip(guesses).map(|(id, guess)| posted(Some(*id), guess)).collect();
        let answers = inbox.post(messages).await.unwrap();
        let is_known = |answer: &Posted| matches!(answer, Posted::Known { .. });
        assert_eq!(answers.iter().map(is_known).collect::<Vec<_>>(), known, "{answers:?}");
        assert_eq!(std::mem::take(&mut *calls.lock().unwrap()), [3, 3, 3], "one call for each key");
    }
    // New messages are posted once.
    inbox.post(vec![posted(Some("evt-4"), SECRET), posted(None, SECRET)]).await.unwrap();
    assert_eq!(*calls.lock().unwrap(), [2]);
}

#[tokio::test]
async fn a_message_that_was_changed_in_the_inbox_is_delivered_as_undecodable() {
    let folder = tempfile::tempdir().unwrap();
    let inside = file(folder.path());
    let keys = sealed(&inside, &[1]).await.keys().clone();
    let log = inside.inbox_log("orders", InboxOptions::default());
    let inbox = SealedInbox::new(log.clone(), "orders", keys.clone());
    inbox.post(vec![posted(Some("evt-1"), "one"), posted(Some("evt-2"), "two")]).await.unwrap();
    assert_eq!(inbox.backlog().await.unwrap().messages, 2);
    let other = rusqlite::Connection::open(folder.path().join(FILE)).unwrap();
    let sql = "UPDATE posts SET payload = (SELECT payload FROM posts WHERE message = 'evt-2') WHERE message = 'evt-1'";
    assert_eq!(other.execute(sql, []).unwrap(), 1);
    let mut source = SealedSource::new(log.source(), "orders", keys);
    assert!(matches!(source.next().await.unwrap(), SourceEvent::Assigned(_)));
    let SourceEvent::Messages(read) = source.next().await.unwrap() else { panic!("messages are there") };
    let undecodable: Vec<_> = read.iter().map(|message| message.undecodable.is_some()).collect();
    assert_eq!(undecodable, [true, false]);
    assert_eq!(read[1].payload.as_deref(), Some(&b"two"[..]));
}

#[tokio::test]
async fn a_message_whose_payload_was_replaced_by_a_plain_one_is_delivered_as_undecodable() {
    let folder = tempfile::tempdir().unwrap();
    let inside = file(folder.path());
    let keys = sealed(&inside, &[1]).await.keys().clone();
    let log = inside.inbox_log("orders", InboxOptions::default());
    let inbox = SealedInbox::new(log.clone(), "orders", keys.clone());
    inbox.post(["evt-1", "evt-2", "evt-3"].map(|id| posted(Some(id), "one")).into()).await.unwrap();
    assert_eq!(inbox.backlog().await.unwrap().messages, 3);
    let other = rusqlite::Connection::open(folder.path().join(FILE)).unwrap();
    for sql in [
        "UPDATE posts SET payload = CAST('{}' AS BLOB) WHERE message = 'evt-1'",
        "UPDATE posts SET payload = substr(payload, 1, 20) WHERE message = 'evt-2'",
    ] {
        assert_eq!(other.execute(sql, []).unwrap(), 1);
    }
    let mut source = SealedSource::new(log.source(), "orders", keys);
    assert!(matches!(source.next().await.unwrap(), SourceEvent::Assigned(_)));
    let SourceEvent::Messages(read) = source.next().await.unwrap() else { panic!("messages are there") };
    let undecodable: Vec<_> = read.iter().map(|message| message.undecodable.is_some()).collect();
    assert_eq!(undecodable, [true, true, false]);
}
