//! Crash tests: a copy of the files at any moment is what a crash leaves behind.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use lazaret_core::source::{Commit, Ingest, NewMessage, Source, SourceEvent};
use lazaret_core::store::{
    Act, Actor, AttemptNote, Certainty, ErrorKind, GrantFence, HandOff, LeaseUse, LetterStore, Limits,
    Placed, Placement, Settlement,
};
use lazaret_core::{
    Failure, Headers, Letter, LetterId, LetterState, Message, MessageId, Partition, Position, QueueName,
    Reason,
};
use lazaret_testkit::ManualClock;
use lazaret_testkit::clock::test_epoch;
use rusqlite::Connection;
use tempfile::TempDir;

use super::record::{HEADER_BYTES, Header};
use super::{End, Mark, RedoLog, path_of};
use crate::consistency::check;
use crate::{Durability, InboxLog, InboxOptions, Options, Posted, SqliteStore};

/// A folder with a store, whose letters stay in the redo log until the next query.
pub(super) struct Place {
    folder: TempDir,
    pub(super) clock: ManualClock,
}

impl Place {
    pub(super) fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap(), clock: ManualClock::new() }
    }

    pub(super) fn path(&self) -> PathBuf {
        self.folder.path().join("lazaret.db")
    }

    fn log(&self) -> PathBuf {
        path_of(&self.path())
    }

    fn options(&self) -> Options {
        Options {
            clock: Arc::new(self.clock.clone()),
            redo_from: 0,
            redo_time: Duration::from_secs(3600),
            ..Options::default()
        }
    }

    pub(super) fn open(&self) -> SqliteStore {
        SqliteStore::open(self.path(), self.options()).unwrap()
    }

    /// A copy of the files, as after a crash now.
    pub(super) fn left_behind(&self) -> Self {
        let copy = Self { folder: tempfile::tempdir().unwrap(), clock: self.clock.clone() };
        for file in fs::read_dir(self.folder.path()).unwrap() {
            let file = file.unwrap();
            // SQLite recreates this one, as it does after a power cut.
            if !file.file_name().to_str().unwrap().ends_with("-shm") {
                fs::copy(file.path(), copy.folder.path().join(file.file_name())).unwrap();
            }
        }
        copy
    }

    /// The lengths of the records in the log, with their headers.
    pub(super) fn records(&self) -> Vec<usize> {
        let bytes = fs::read(self.log()).unwrap();
        let (mut rest, mut lengths, mut mark) = (&bytes[..], Vec::new(), None);
        while let Some(header) = rest.first_chunk::<HEADER_BYTES>().and_then(Header::parse) {
            if *mark.get_or_insert(header.mark) != header.mark {
                break;
            }
            lengths.push(HEADER_BYTES + header.length as usize);
            rest = &rest[HEADER_BYTES + header.length as usize..];
        }
        lengths
    }

    fn redo(&self) -> RedoLog {
        RedoLog::open(&self.path(), Durability::Normal).unwrap()
    }

    pub(super) fn mark(&self) -> Mark {
        Mark::read(&Connection::open(self.path()).unwrap()).unwrap()
    }
}

pub(super) fn queue() -> QueueName {
    QueueName::of("orders", "orders")
}

pub(super) fn operator() -> Actor {
    Actor::new("ada", "cli", "the service is back")
}

pub(super) fn hand_off(sequence: &str, message: &str, offset: u64) -> HandOff {
    let message = Message::new(message, "orders", Position::new(0, offset))
        .with_key(sequence.to_owned())
        .with_header("tenant", "acme")
        .with_payload(vec![0, 159, 146, 150]);
    let mut letter = Letter::new(queue(), sequence.into(), message.into(), test_epoch());
    letter.state = LetterState::Dead;
    letter.cause = Some(Failure::new(Reason::TIMEOUT, "HttpError", "boom"));
    HandOff { letter, placement: Placement::Open, grant: None }
}

pub(super) async fn put(store: &SqliteStore, sequence: &str, message: &str, offset: u64) -> Placed {
    let items = vec![hand_off(sequence, message, offset)];
    store.hand_off(&queue(), &Limits::NONE, items).await.unwrap().remove(0).unwrap()
}

async fn messages(store: &SqliteStore, sequence: &str) -> Vec<String> {
    let letters = store.sequence(&queue(), &sequence.into(), 0, 1000).await.unwrap();
    letters.iter().map(|letter| letter.message.id.to_string()).collect()
}

fn in_database(path: &Path) -> i64 {
    Connection::open(path).unwrap().query_row("SELECT count(*) FROM letters", [], |row| row.get(0)).unwrap()
}

/// Three letters in three records: two of one sequence, one of another.
async fn three(place: &Place) -> SqliteStore {
    let store = place.open();
    put(&store, "a", "m0", 0).await;
    place.clock.advance(Duration::from_secs(7));
    put(&store, "b", "m1", 1).await;
    place.clock.advance(Duration::from_secs(7));
    put(&store, "a", "m2", 2).await;
    assert_eq!(place.records().len(), 3);
    assert_eq!(in_database(&place.path()), 0, "no commit yet");
    store
}

#[tokio::test]
async fn acknowledged_letters_survive_a_crash() {
    // I1, I5, I8
    let place = Place::new();
    let store = three(&place).await;
    store.note_attempts(&queue(), vec![note()]).await.unwrap();
    let left = place.left_behind();
    // Much later.
    place.clock.advance(Duration::from_secs(3600));
    let again = left.open();
    check(&Connection::open(left.path()).unwrap());
    assert_eq!(in_database(&left.path()), 3);
    assert!(left.mark().generation > place.mark().generation);
    assert_ne!(left.mark().id, place.mark().id, "each opening has an id of its own");
    for id in ["m0", "m1", "m2"] {
        let id = LetterId::of(&queue(), &MessageId::from(id));
        let (there, here) = (again.get(&queue(), id).await.unwrap(), store.get(&queue(), id).await.unwrap());
        assert_eq!(there, here, "the same letter, with its place and its times");
        assert!(here.is_some());
    }
    let notes = again.attempt_notes(&queue(), &[Partition::new("orders", 0)]).await.unwrap();
    assert_eq!(notes, [note()]);
    let opened = again.opened_since(&queue(), 0, 9).await.unwrap();
    assert_eq!(opened, store.opened_since(&queue(), 0, 9).await.unwrap());
    assert_eq!(put(&again, "a", "m2", 2).await, Placed::Held(LetterState::Dead));
    put(&again, "a", "m3", 3).await;
    assert_eq!(messages(&again, "a").await, ["m0", "m2", "m3"]);
}

#[tokio::test]
async fn a_torn_record_ends_the_log_wherever_it_was_torn() {
    // I1
    let place = Place::new();
    let _store = three(&place).await;
    let left = place.left_behind();
    let (mark, records, whole) = (left.mark(), left.records(), fs::read(left.log()).unwrap());
    let log = RedoLog::open(&left.path(), Durability::Full).unwrap();
    assert_eq!(log.records(&mark).unwrap().len(), 3);
    let last = records[0] + records[1];
    assert_eq!(last + records[2], whole.len());
    for cut in last..whole.len() {
        // Bytes that were not written: missing, zeros, or the previous content.
        let zeros = vec![0; whole.len() - cut];
        let before: Vec<u8> = whole.iter().copied().cycle().skip(7).take(zeros.len()).collect();
        for rest in [&[][..], &zeros, &before] {
            if rest == &whole[cut..] {
                continue;
            }
            fs::write(left.log(), [&whole[..cut], rest].concat()).unwrap();
            assert_eq!(log.records(&mark).unwrap().len(), 2, "torn at {cut}");
        }
    }
    for cut in [last, last + 1, last + HEADER_BYTES, whole.len() - 1] {
        let torn = left.left_behind();
        fs::write(torn.log(), &whole[..cut]).unwrap();
        let store = torn.open();
        assert_eq!(messages(&store, "a").await, ["m0"], "torn at {cut}");
        assert_eq!(messages(&store, "b").await, ["m1"]);
        assert_eq!(put(&store, "a", "m2", 2).await, Placed::Appended, "it comes again");
    }
}

#[tokio::test]
async fn a_torn_first_record_is_ignored() {
    // I1
    let place = Place::new();
    let store = place.open();
    put(&store, "a", "m0", 0).await;
    let left = place.left_behind();
    let whole = fs::read(left.log()).unwrap();
    for cut in [1, HEADER_BYTES - 1, HEADER_BYTES, HEADER_BYTES + 1, whole.len() - 1] {
        let torn = left.left_behind();
        fs::write(torn.log(), &whole[..cut]).unwrap();
        let store = torn.open();
        assert_eq!(store.counts(&queue()).await.unwrap().open(), 0, "torn at {cut}");
        put(&store, "a", "m1", 1).await;
        assert_eq!(messages(&store.clone(), "a").await, ["m1"]);
        let again = torn.left_behind().open();
        assert_eq!(messages(&again, "a").await, ["m1"]);
    }
}

#[tokio::test]
async fn a_crash_after_the_commit_repeats_nothing() {
    // I8
    let place = Place::new();
    let store = three(&place).await;
    let first = place.mark();
    // Another kind of call commits.
    store.act(&queue(), LetterId::of(&queue(), &"m0".into()), Act::Evict, &operator()).await.unwrap();
    assert_eq!((place.records().len(), place.mark().generation), (3, first.generation + 1));
    let left = place.left_behind();
    let again = left.open();
    assert_eq!(messages(&again, "a").await, ["m2"]);
    assert_ne!(left.mark().id, place.mark().id);
    // The next transaction overwrites them: a shorter record, with the end of a longer one behind it.
    put(&store, "b", "m4", 4).await;
    let again = place.left_behind().open();
    assert_eq!(messages(&again, "b").await, ["m1", "m4"]);
    assert_eq!(messages(&again, "a").await, ["m2"]);
}

#[tokio::test]
async fn queries_see_all_acknowledged_writes() {
    // I1: in this process, and in another one that has the file open.
    let place = Place::new();
    let (store, other) = (place.open(), {
        let options = Options { redo_time: Duration::from_millis(20), ..place.options() };
        SqliteStore::open(place.path(), options).unwrap()
    });
    for n in 0..10 {
        put(&other, "a", &format!("m{n}"), n).await;
        assert_eq!(other.sequence_size(&queue(), &"a".into()).await.unwrap(), n + 1);
        assert_eq!(store.sequence_size(&queue(), &"a".into()).await.unwrap(), n + 1);
        put(&other, "b", &format!("n{n}"), n).await;
        // No query since, and the other's transaction is open.
        assert_eq!(store.sequence_size(&queue(), &"b".into()).await.unwrap(), n + 1);
        assert_eq!(put(&store, "b", &format!("n{n}"), n).await, Placed::Held(LetterState::Dead));
        assert_eq!(store.counts(&queue()).await.unwrap().open(), 2 * (n + 1));
    }
}

#[tokio::test]
async fn a_running_process_sees_what_a_crashed_one_left() {
    // I1, I2: it has the file open, and cached.
    let place = Place::new();
    let store = three(&place).await;
    let left = place.left_behind();
    let log = fs::read(left.log()).unwrap();
    let mut at = 0;
    let records: Vec<Vec<u8>> = left
        .records()
        .into_iter()
        .map(|length| {
            at += length;
            log[at - length..at].to_vec()
        })
        .collect();
    fs::write(left.log(), b"").unwrap();
    for asks_first in [true, false] {
        let left = left.left_behind();
        let alive = left.open();
        assert_eq!(alive.counts(&queue()).await.unwrap().open(), 0);
        // Another process starts, hands off, gets its response, and crashes.
        let (redo, mut end) = (left.redo(), End::start(left.mark()));
        for record in &records {
            redo.append(&mut end, &mut record.clone()).unwrap();
        }
        if asks_first {
            assert_eq!(alive.counts(&queue()).await.unwrap().open(), 3);
        }
        assert_eq!(put(&alive, "a", "m2", 2).await, Placed::Held(LetterState::Dead));
        assert_eq!(put(&alive, "a", "m3", 3).await, Placed::Appended);
        assert_eq!(messages(&alive, "a").await, ["m0", "m2", "m3"]);
    }
    drop(store);
}

#[tokio::test]
async fn a_closed_store_leaves_one_complete_file() {
    // I1
    let place = Place::new();
    let store = three(&place).await;
    drop(store);
    let started = std::time::Instant::now();
    while fs::metadata(place.log()).unwrap().len() > 0 {
        assert!(started.elapsed() < Duration::from_secs(60), "the log is empty after the end");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let alone = Place::new();
    fs::copy(place.path(), alone.path()).unwrap();
    let log = place.path().with_extension("db-wal");
    if log.exists() {
        fs::copy(log, alone.path().with_extension("db-wal")).unwrap();
    }
    assert_eq!(messages(&alone.open(), "a").await, ["m0", "m2"]);
}

#[tokio::test]
async fn the_log_of_another_database_is_ignored() {
    let (place, other) = (Place::new(), Place::new());
    let (_store, theirs) = (three(&place).await, other.open());
    put(&theirs, "a", "x0", 0).await;
    let left = other.left_behind();
    fs::copy(place.log(), left.log()).unwrap();
    let store = left.open();
    assert_eq!(store.counts(&queue()).await.unwrap().open(), 0);
    put(&store, "a", "y0", 0).await;
    let again = left.left_behind().open();
    assert_eq!(messages(&again, "a").await, ["y0"]);
}

#[tokio::test]
async fn records_of_a_newer_log_are_not_ignored() {
    let place = Place::new();
    let store = three(&place).await;
    let left = place.left_behind();
    let mut bytes = fs::read(left.log()).unwrap();
    bytes[8] += 1;
    fs::write(left.log(), &bytes).unwrap();
    let error = SqliteStore::open(left.path(), left.options()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    let newer = format!("lazaret.db-redo holds records of version {}", super::record::VERSION + 1);
    assert!(error.to_string().contains(&newer), "{error}");
    assert_eq!(fs::read(left.log()).unwrap(), bytes, "it is left unchanged");
    // Records that are no longer valid do not matter.
    assert_eq!(store.counts(&queue()).await.unwrap().open(), 3);
    let passed = place.left_behind();
    fs::write(passed.log(), &bytes).unwrap();
    assert_eq!(messages(&passed.open(), "a").await, ["m0", "m2"]);
}

#[tokio::test]
async fn a_log_that_does_not_belong_to_its_database_is_an_error() {
    let place = Place::new();
    let store = place.open();
    put(&store, "a", "m0", 0).await;
    assert_eq!(store.sequence_size(&queue(), &"a".into()).await.unwrap(), 1);
    assert_eq!(put(&store, "a", "m1", 1).await, Placed::Appended);
    let left = place.left_behind();
    let emptied = "DELETE FROM letters; DELETE FROM payloads; DELETE FROM sequences";
    Connection::open(left.path()).unwrap().execute_batch(emptied).unwrap();
    let error = SqliteStore::open(left.path(), left.options()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert!(error.to_string().contains("differs"), "{error}");
}

/// A letter in which every field that the log holds is set, under a grant.
fn full(fence: u64) -> HandOff {
    let mut item = hand_off("~x:00ff6b", "full", 41);
    let mut message = (*item.letter.message).clone().with_key(vec![0, 255, b'k']).with_type("OrderPlaced");
    message.headers.push_null("null");
    message.position.token = Some("8263".into());
    item.letter.message = message.into();
    item.letter.state = LetterState::Retrying;
    let letter = &mut item.letter;
    (letter.attempts, letter.crash_attempts, letter.replay_attempts) = (3, 1, 2);
    letter.poison = true;
    letter.first_failed_at = Some(test_epoch() - Duration::from_millis(999));
    letter.last_failed_at = Some(test_epoch() - Duration::from_nanos(1));
    letter.due_at = Some(test_epoch() + Duration::from_secs(60));
    letter.expires_at = Some(test_epoch() + Duration::from_secs(3600));
    item.grant = Some(GrantFence { partition: Partition::new("orders", 0), fence, turn: 5 });
    item
}

fn note() -> AttemptNote {
    AttemptNote {
        message: "m9".into(),
        partition: Partition::new("orders", 0),
        offset: 9,
        attempts: 2,
        first_failed_at: test_epoch(),
        failure: Failure::new(Reason::TIMEOUT, "HttpError", "slow"),
        same_failure: 1,
        due_at: test_epoch(),
    }
}

/// A message in which every field is set, and one in which none is.
fn posts() -> Vec<NewMessage> {
    let mut headers = Headers::new();
    headers.push("tenant", vec![0, 255]);
    headers.push_null("null");
    let full = NewMessage {
        id: Some("evt-1".into()),
        key: Some("".into()),
        event_type: Some("OrderPlaced".into()),
        headers,
        payload: Some(vec![0, 159, 146].into()),
        content_type: Some("text/x".into()),
        timestamp: Some(test_epoch() + Duration::from_nanos(1)),
        correlation: Some("c".into()),
        undecodable: Some("no".into()),
    };
    vec![full, NewMessage::default()]
}

fn inbox(store: &SqliteStore) -> InboxLog {
    store.inbox_log("orders", InboxOptions::default())
}

/// The messages that an inbox delivers.
async fn delivered(inbox: &InboxLog) -> Vec<Message> {
    let mut source = inbox.source();
    assert!(matches!(source.next().await.unwrap(), SourceEvent::Assigned(_)));
    match source.next().await.unwrap() {
        SourceEvent::Messages(messages) => messages,
        other => panic!("{other:?}"),
    }
}

fn posts_in_database(path: &Path) -> i64 {
    Connection::open(path).unwrap().query_row("SELECT count(*) FROM posts", [], |row| row.get(0)).unwrap()
}

#[tokio::test]
async fn acknowledged_posts_survive_a_crash() {
    // I1, I5, I8
    let place = Place::new();
    let store = place.open();
    let first = inbox(&store).post(posts()).await.unwrap();
    place.clock.advance(Duration::from_secs(7));
    let named = NewMessage { id: Some("evt-2".into()), ..NewMessage::default() };
    let small = InboxOptions { max_messages: 3, ..InboxOptions::default() };
    // A duplicate, a new one, and one above the limits; limits are those of the call.
    let second = vec![posts().remove(0), named, NewMessage::default()];
    let second = store.inbox_log("orders", small).post(second).await.unwrap();
    assert_eq!((place.records().len(), posts_in_database(&place.path())), (2, 0), "no commit yet");
    let left = place.left_behind();
    place.clock.advance(Duration::from_secs(3600));
    let again = left.open();
    assert_eq!(posts_in_database(&left.path()), 3);
    assert_eq!(delivered(&inbox(&again)).await, delivered(&inbox(&store)).await, "with their times, too");
    assert_eq!(inbox(&again).backlog().await.unwrap(), inbox(&store).backlog().await.unwrap());
    let position = |offset| Position::new(0, offset);
    let taken = |id: &str, offset| Posted::Taken { id: id.into(), position: position(offset) };
    assert_eq!(first, [taken("evt-1", 0), taken("0:1", 1)]);
    let known = Posted::Known { id: "evt-1".into(), position: position(0) };
    assert_eq!(second, [known.clone(), taken("evt-2", 2), Posted::Full]);
    // A client without a response posts again.
    let posted = inbox(&again).post(posts()).await.unwrap();
    assert_eq!(posted, [known, taken("0:3", 3)]);
}

#[tokio::test]
async fn a_post_is_delivered_at_once_and_its_numbers_stay_right_over_commits() {
    // I1: delivery and commits go through the database, posts through the log.
    let place = Place::new();
    let store = place.open();
    let inbox = inbox(&store);
    let mut source = inbox.source();
    source.next().await.unwrap();
    for round in 0..5_u64 {
        inbox.post(vec![NewMessage::default(), NewMessage::default()]).await.unwrap();
        let SourceEvent::Messages(messages) = source.next().await.unwrap() else { panic!("messages") };
        assert_eq!(messages.len(), 2, "round {round}");
        inbox.post(vec![NewMessage::default()]).await.unwrap();
        let commit = Commit {
            partition: source.partition(),
            position: Some(Position::new(0, 3 * round + 1)),
            settled_beyond: vec![],
        };
        source.commit(vec![commit]).await.unwrap();
        assert_eq!(inbox.backlog().await.unwrap().messages, 1);
        let SourceEvent::Messages(messages) = source.next().await.unwrap() else { panic!("messages") };
        assert_eq!(messages[0].position.offset, 3 * round + 2);
        let left = place.left_behind().open();
        assert_eq!(left.inbox_log("orders", InboxOptions::default()).backlog().await.unwrap().messages, 1);
    }
}

/// The database of a fixture: the files after a crash, with a log of this version.
fn fixture(version: u32) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/fixtures/redo{version}.db"))
}

/// Writes one of each: whole letters, a closed one, a duplicate, a refused one, a note, posts, and the leases of a letter that is settled.
async fn write_fixture(target: &Path) {
    let place = Place::new();
    let store = place.open();
    let fence = store.assign(&queue(), &[Partition::new("orders", 0)]).await.unwrap()[0].fence;
    put(&store, "a", "m0", 0).await;
    assert_eq!(store.counts(&queue()).await.unwrap().open(), 1);
    let mut closed = hand_off("b", "closed", 2);
    (closed.letter.state, closed.placement) = (LetterState::Skipped, Placement::Closed);
    let mut behind = hand_off("nobody", "behind", 3);
    (behind.letter.state, behind.placement) = (LetterState::Waiting, Placement::Behind);
    let late = full(fence + 1);
    let items = vec![full(fence), late, hand_off("a", "m0", 0), hand_off("a", "m1", 1), closed, behind];
    let limits = Limits { max_sequences: Some(7), max_sequence_size: None };
    store.hand_off(&queue(), &limits, items).await.unwrap();
    store.note_attempts(&queue(), vec![note()]).await.unwrap();
    inbox(&store).post(posts()).await.unwrap();
    put(&store, "settled", "settled", 4).await;
    let lease = Duration::from_secs(60);
    assert!(store.claim_due(&queue(), "w", lease, 9).await.unwrap().is_empty());
    let claim = store.claim(&queue(), &"settled".into(), "w", lease).await.unwrap().unwrap();
    store.release(&claim.lease).await.unwrap();
    let claim = store.claim(&queue(), &"settled".into(), "w", lease).await.unwrap().unwrap();
    store.renew(&claim.lease, lease, LeaseUse::Attempt).await.unwrap();
    store.settle(&claim.lease, claim.head.id, Settlement::Skip("not needed".into())).await.unwrap();
    let left = place.left_behind();
    fs::copy(left.log(), path_of(target)).unwrap();
    let file = Connection::open(left.path()).unwrap();
    file.execute("VACUUM INTO ?1", [target.to_str().unwrap()]).unwrap();
    Connection::open(target).unwrap().execute_batch("PRAGMA page_size = 512; VACUUM").unwrap();
}

#[tokio::test]
async fn the_logs_of_every_version_are_read() {
    // I1, I5
    let newest = fixture(super::record::VERSION);
    if !newest.exists() {
        write_fixture(&newest).await;
        panic!(
            "this version had no fixture; {} and its log are new and have to be committed",
            newest.display()
        );
    }
    for version in 1..=super::record::VERSION {
        let place = Place::new();
        fs::copy(fixture(version), place.path()).unwrap();
        fs::copy(path_of(&fixture(version)), place.log()).unwrap();
        assert_eq!(in_database(&place.path()), 1);
        let store = place.open();
        assert_eq!(messages(&store, "a").await, ["m0", "m1"]);
        let stored = store.sequence(&queue(), &"~x:00ff6b".into(), 0, 9).await.unwrap().remove(0);
        let expected = Letter { index: stored.index, ..full(1).letter };
        assert_eq!(stored, expected);
        let closed = store.get(&queue(), LetterId::of(&queue(), &"closed".into())).await.unwrap();
        assert_eq!(closed.unwrap().state, LetterState::Skipped);
        assert_eq!(store.counts(&queue()).await.unwrap().open(), 3);
        let partitions = [Partition::new("orders", 0)];
        assert_eq!(store.attempt_notes(&queue(), &partitions).await.unwrap(), [note()]);
        let grant = store.assign(&queue(), &partitions).await.unwrap().remove(0);
        assert_eq!((grant.fence, grant.horizon), (2, Some(41)));
        if version >= 2 {
            let at = |new: NewMessage, offset| new.at("orders".into(), Position::new(0, offset));
            let [full, mut bare] = posts().try_into().unwrap();
            bare.timestamp = Some(test_epoch());
            assert_eq!(delivered(&inbox(&store)).await, [at(full, 0), at(bare, 1)]);
        }
        if version >= 4 {
            let settled = store.get(&queue(), LetterId::of(&queue(), &"settled".into())).await.unwrap();
            assert_eq!(settled.unwrap().state, LetterState::Skipped);
        }
        check(&Connection::open(place.path()).unwrap());
    }
}

/// Hands off large letters in one transaction until the file is full, and returns the number of acknowledged ones.
async fn filled(store: &SqliteStore) -> u64 {
    for stored in 0..1000 {
        let mut item = hand_off(&format!("s{stored}"), &format!("m{stored}"), stored);
        let message = (*item.letter.message).clone().with_payload(vec![b'x'; 10_000]);
        item.letter.message = message.into();
        if let Err(error) = store.hand_off(&queue(), &Limits::NONE, vec![item]).await {
            assert_eq!((error.kind(), error.certainty()), (ErrorKind::Full, Certainty::NotDone));
            assert!(stored > 3, "{stored} were acknowledged");
            return stored;
        }
    }
    panic!("the file is not limited");
}

#[tokio::test]
async fn a_lost_transaction_is_recovered_with_all_acknowledged_letters() {
    // I1, I9: the file is full, and the letters before are in the same transaction.
    let place = Place::new();
    let options = Options { max_pages: Some(150), ..place.options() };
    let store = SqliteStore::open(place.path(), options).unwrap();
    let stored = filled(&store).await;
    assert_eq!(in_database(&place.path()), 0, "one transaction, and it is lost");
    let left = place.left_behind();
    for store in [&store, &left.open()] {
        let counts = store.counts(&queue()).await.unwrap();
        assert_eq!((counts.open(), counts.sequences), (stored, stored));
    }
    check(&Connection::open(place.path()).unwrap());
    check(&Connection::open(left.path()).unwrap());
    // The store keeps working.
    store.act(&queue(), LetterId::of(&queue(), &"m0".into()), Act::Resolve, &operator()).await.unwrap();
}

#[tokio::test]
async fn a_lost_transaction_is_recovered_without_further_calls() {
    let place = Place::new();
    let redo_time = Duration::from_millis(20);
    let options = Options { max_pages: Some(150), redo_time, ..place.options() };
    let store = SqliteStore::open(place.path(), options).unwrap();
    let stored = i64::try_from(filled(&store).await).unwrap();
    let started = std::time::Instant::now();
    while in_database(&place.path()) < stored {
        assert!(started.elapsed() < Duration::from_secs(60), "all are in the database");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    check(&Connection::open(place.path()).unwrap());
}

/// A store whose redo log is another file.
#[cfg(target_os = "linux")]
async fn with_log(log: &str) {
    let place = Place::new();
    std::os::unix::fs::symlink(log, place.log()).unwrap();
    let store = place.open();
    for n in 0..5 {
        assert!(matches!(put(&store, "a", &format!("m{n}"), n).await, Placed::Opened | Placed::Appended));
        assert_eq!(in_database(&place.path()), i64::try_from(n).unwrap() + 1, "by the commit, then");
    }
    let left = Place::new();
    fs::copy(place.path(), left.path()).unwrap();
    fs::copy(place.path().with_extension("db-wal"), left.path().with_extension("db-wal")).unwrap();
    assert_eq!(messages(&left.open(), "a").await, ["m0", "m1", "m2", "m3", "m4"]);
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn the_store_works_without_a_writable_log() {
    // I1, I9
    with_log("/dev/full").await;
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn the_store_works_without_a_log_that_can_be_synced() {
    // I1: writes succeed, and syncs fail.
    with_log("/dev/null").await;
}
