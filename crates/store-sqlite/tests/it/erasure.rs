//! What was erased is in none of the files.

use std::path::Path;
use std::time::Duration;

use lazaret_core::letter::{AttemptKind, AttemptRecord};
use lazaret_core::store::{
    Act, Actor, Audit, Change, HandOff, LetterStore, Limits, Placement, Requeue, Scrubbed, Settlement, Triage,
};
use lazaret_core::{
    Failure, Letter, LetterId, LetterState, Message, MessageId, Position, QueueName, Reason, Timestamp,
};
use lazaret_store_sqlite::{Options, SqliteStore};

const SECRET: &str = "PAN-4111-1111";

fn queue() -> QueueName {
    QueueName::of("orders", "orders")
}

fn id_of(message: &str) -> LetterId {
    LetterId::of(&queue(), &MessageId::from(message))
}

fn ada() -> Actor {
    Actor::new("ada", "cli", "request of the person")
}

fn failure(text: &str) -> Failure {
    Failure::new(Reason::TIMEOUT, "HttpError", text).with_backtrace(format!("at pay({text})"))
}

/// A letter whose content is larger than a page, all of it made of this text.
fn letter(message: &str, offset: u64, text: &str) -> Letter {
    let message = Message::new(message, "orders", Position::new(0, offset))
        .with_payload(text.repeat(2000))
        .with_header("card", text.repeat(10));
    let sequence = message.id.as_str().into();
    let mut letter = Letter::new(queue(), sequence, message.into(), Timestamp::now());
    letter.state = LetterState::Dead;
    letter.cause = Some(failure(text));
    letter.last_failed_at = Some(letter.enqueued_at);
    letter.diagnostics.insert("card".into(), text.into());
    letter
}

/// Stores a letter, and lets it fail again often, so that its row moves through the file.
async fn store_and_retry(store: &SqliteStore, letter: Letter, text: &str) {
    let (id, sequence) = (letter.id, letter.sequence.clone());
    let item = HandOff { letter, placement: Placement::Open, grant: None };
    store.hand_off(&queue(), &Limits::NONE, vec![item]).await.unwrap().remove(0).unwrap();
    for attempt in 1..40 {
        let lease = Duration::from_secs(60);
        let claim = store.claim(&queue(), &sequence, "worker", lease).await.unwrap().unwrap();
        let record = AttemptRecord {
            attempt,
            kind: AttemptKind::Replay,
            at: Timestamp::now(),
            took: Duration::from_millis(1),
            failure: Some(failure(text)),
        };
        let cause = Some(failure(text));
        let requeue = Requeue { cause, attempt: Some(record), ..Requeue::of(&claim.head) };
        store.settle(&claim.lease, id, Settlement::Requeue(Box::new(requeue))).await.unwrap();
    }
    let edit = Change::Payload(Some(text.repeat(500).into()));
    store.change(&queue(), id, &edit, &ada()).await.unwrap();
}

/// The files that hold the secret.
fn leaks(folder: &Path) -> Vec<String> {
    let holds = |path: &Path| {
        let bytes = std::fs::read(path).unwrap();
        bytes.windows(SECRET.len()).any(|part| part == SECRET.as_bytes())
    };
    let files = std::fs::read_dir(folder).unwrap().map(|file| file.unwrap().path());
    files.filter(|path| holds(path)).map(|path| path.display().to_string()).collect()
}

#[tokio::test]
async fn what_was_erased_is_in_none_of_the_files() {
    let folder = tempfile::tempdir().unwrap();
    // With a redo log that holds all of it, too.
    let hour = Duration::from_secs(3600);
    let options = Options { redo_from: 0, redo_time: hour, rewrite_after: hour, ..Options::default() };
    let store = SqliteStore::open(folder.path().join("lazaret.db"), options).unwrap();
    for n in 0..30 {
        let (message, text) = (format!("evt-{n}"), if n % 2 == 0 { SECRET } else { "public" });
        store_and_retry(&store, letter(&message, n, text), text).await;
    }
    assert!(!leaks(folder.path()).is_empty(), "the files have the secret");
    for n in (0..30).step_by(2) {
        let id = id_of(&format!("evt-{n}"));
        store.act(&queue(), id, Act::Evict, &ada()).await.unwrap();
        store.erase(&queue(), id, &ada()).await.unwrap();
    }
    // The rewrite is due later, and is not forgotten until then.
    assert_eq!(store.scrubbed().await.unwrap(), Scrubbed::UnderWay);
    assert_eq!(store.scrub().await.unwrap(), Scrubbed::Done);
    assert_eq!(store.scrubbed().await.unwrap(), Scrubbed::Done);
    assert_eq!(leaks(folder.path()), [""; 0], "while the store is open");
    // All else is there, and the store goes on.
    let other = store.get(&queue(), id_of("evt-1")).await.unwrap().unwrap();
    assert_eq!(other.message.payload.as_deref(), Some("public".repeat(500).as_bytes()));
    assert_eq!(store.counts(&queue()).await.unwrap().open(), 15);
    store_and_retry(&store, letter("evt-99", 99, "public"), "public").await;
    assert_eq!(store.verify_audit().await.unwrap().unwrap().broken, None);
    store.close().await.unwrap();
    assert_eq!(leaks(folder.path()), [""; 0], "after it was closed");
    let store = SqliteStore::open(folder.path().join("lazaret.db"), Options::default()).unwrap();
    let erased = store.get(&queue(), id_of("evt-0")).await.unwrap().unwrap();
    assert_eq!(erased.erased.unwrap().why, "request of the person");
    assert_eq!((erased.state, erased.message.id.as_str()), (LetterState::Evicted, "evt-0"));
    assert_eq!(store.counts(&queue()).await.unwrap().open(), 16);
}

/// Waits until the store has rewritten its file by itself.
async fn rewritten(store: &SqliteStore) {
    let rewritten = async {
        while store.scrubbed().await.unwrap() != Scrubbed::Done {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), rewritten).await.expect("the file was not rewritten");
}

async fn store_and_erase(store: &SqliteStore, message: &str, offset: u64) {
    store_and_retry(store, letter(message, offset, SECRET), SECRET).await;
    store.act(&queue(), id_of(message), Act::Evict, &ada()).await.unwrap();
    store.erase(&queue(), id_of(message), &ada()).await.unwrap();
}

#[tokio::test]
async fn the_store_rewrites_its_file_by_itself_after_erasures() {
    let folder = tempfile::tempdir().unwrap();
    let options = Options { rewrite_after: Duration::ZERO, ..Options::default() };
    let store = SqliteStore::open(folder.path().join("lazaret.db"), options).unwrap();
    assert_eq!(store.scrubbed().await.unwrap(), Scrubbed::Done, "nothing was erased");
    for n in 0..3 {
        store_and_erase(&store, &format!("evt-{n}"), n).await;
    }
    rewritten(&store).await;
    assert_eq!(leaks(folder.path()), [""; 0]);
    assert!(store.get(&queue(), id_of("evt-2")).await.unwrap().unwrap().erased.is_some());
}

#[tokio::test]
async fn a_rewrite_that_the_end_of_the_process_cut_off_is_made_up_for() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("lazaret.db");
    let later = Options { rewrite_after: Duration::from_secs(3600), ..Options::default() };
    let store = SqliteStore::open(&path, later).unwrap();
    store_and_erase(&store, "evt-0", 0).await;
    store.close().await.unwrap();
    let at_once = Options { rewrite_after: Duration::ZERO, ..Options::default() };
    let store = SqliteStore::open(&path, at_once).unwrap();
    rewritten(&store).await;
    assert_eq!(leaks(folder.path()), [""; 0]);
}

#[tokio::test]
async fn a_rewrite_that_fails_is_not_called_done() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("lazaret.db");
    let hour = Duration::from_secs(3600);
    let options =
        Options { busy_timeout: Duration::from_millis(50), rewrite_after: hour, ..Options::default() };
    let store = SqliteStore::open(&path, options).unwrap();
    store_and_erase(&store, "evt-0", 0).await;
    // Another program reads an old state, so the log cannot be emptied.
    let other = rusqlite::Connection::open(&path).unwrap();
    other.execute_batch("BEGIN; SELECT count(*) FROM letters").unwrap();
    store.scrub().await.unwrap_err();
    let state = store.scrubbed().await.unwrap();
    assert!(matches!(&state, Scrubbed::Failed(why) if !why.is_empty()), "{state:?}");
    // The store goes on.
    store_and_retry(&store, letter("evt-1", 1, "public"), "public").await;
    other.execute_batch("COMMIT").unwrap();
    store.scrub().await.unwrap();
    assert_eq!(store.scrubbed().await.unwrap(), Scrubbed::Done);
    assert_eq!(leaks(folder.path()), [""; 0]);
}
