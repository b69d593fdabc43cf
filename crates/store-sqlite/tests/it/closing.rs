//! A closed store is one file: it holds all acknowledged writes, and the logs beside it are empty.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use lazaret_core::store::{
    Act, Actor, Anchor, Audit, Certainty, Checkpoints, ErrorKind, HandOff, LetterStore, Limits, Placement,
};
use lazaret_core::{Letter, LetterId, LetterState, Message, MessageId, Position, QueueName};
use lazaret_store_sqlite::{Options, SqliteStore};
use rusqlite::Connection;
use tempfile::TempDir;

fn queue() -> QueueName {
    QueueName::of("orders", "orders")
}

fn path_in(folder: &TempDir) -> PathBuf {
    folder.path().join("lazaret.db")
}

fn dead(message: &str, offset: u64) -> HandOff {
    let message =
        Message::new(message, "orders", Position::new(0, offset)).with_key(format!("key {message}"));
    let sequence = message.id.as_str().into();
    let mut letter = Letter::new(queue(), sequence, message.into(), lazaret_testkit::clock::test_epoch());
    letter.state = LetterState::Dead;
    HandOff { letter, placement: Placement::Open, grant: None }
}

/// A store on a copy of the single file.
fn copy_of(path: &Path, folder: &TempDir) -> SqliteStore {
    let copy = path_in(folder);
    fs::copy(path, &copy).unwrap();
    SqliteStore::open(copy, Options::default()).unwrap()
}

fn length(path: &Path, of: &str) -> u64 {
    let beside = path.with_extension(format!("db-{of}"));
    fs::metadata(beside).map_or(0, |file| file.len())
}

#[tokio::test]
async fn the_single_file_of_a_closed_store_is_complete() {
    // I1
    let (folder, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let path = path_in(&folder);
    // The first store commits each call, the second one has everything in the redo log when it is closed.
    for (redo_from, redo_time) in [(usize::MAX, Duration::ZERO), (0, Duration::from_secs(3600))] {
        let options = Options { redo_from, redo_time, ..Options::default() };
        let store = SqliteStore::open(&path, options).unwrap();
        let anchor = Anchor { token: "t".into(), at: lazaret_testkit::clock::test_epoch() };
        store.save_processed("stream", anchor.clone(), None).await.unwrap();
        let items = (0..50).map(|n| dead(&format!("{redo_from} {n}"), n)).collect();
        store.hand_off(&queue(), &Limits::NONE, items).await.unwrap();
        let first = LetterId::of(&queue(), &MessageId::from(format!("{redo_from} 0")));
        store.act(&queue(), first, Act::Evict, &Actor::new("ada", "cli", "not needed")).await.unwrap();
        let items = (50..100).map(|n| dead(&format!("{redo_from} {n}"), n)).collect();
        store.hand_off(&queue(), &Limits::NONE, items).await.unwrap();
        store.close().await.unwrap();

        assert_eq!((length(&path, "wal"), length(&path, "redo")), (0, 0));
        let copy = copy_of(&path, &elsewhere);
        let asked: Vec<_> = (1..100).map(|n| MessageId::from(format!("{redo_from} {n}"))).collect();
        let states = copy.lookup(&queue(), &asked).await.unwrap();
        assert!(states.iter().all(|state| *state == Some(LetterState::Dead)), "{states:?}");
        assert_eq!(copy.load("stream").await.unwrap().unwrap().processed, Some(anchor));
        assert_eq!(copy.audit(0, 10).await.unwrap().last().unwrap().subject, first.to_string());
        copy.close().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_closed_during_hand_offs_keeps_acknowledged_ones_and_refuses_the_rest() {
    // I1
    for round in 0..8_usize {
        let (folder, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let path = path_in(&folder);
        // With a short queue some are refused before they are queued.
        let options = Options { redo_from: round % 2, waiting: 4 + 60 * (round / 4), ..Options::default() };
        let store = SqliteStore::open(&path, options).unwrap();
        let answers = Arc::new(AtomicUsize::new(0));
        let tasks: Vec<_> = (0..32_u64)
            .map(|task| {
                let (store, answers) = (store.clone(), answers.clone());
                tokio::spawn(async move {
                    let mut taken = Vec::new();
                    for n in 0.. {
                        let message = format!("{task}-{n}");
                        let placed = store.hand_off(&queue(), &Limits::NONE, vec![dead(&message, n)]).await;
                        match placed {
                            Ok(_) => taken.push(MessageId::from(message)),
                            Err(error) => return (taken, MessageId::from(message), error),
                        }
                        answers.fetch_add(1, Ordering::Relaxed);
                    }
                    unreachable!("the store is closed before the numbers end")
                })
            })
            .collect();
        while answers.load(Ordering::Relaxed) < 100 {
            tokio::task::yield_now().await;
        }
        // Concurrently, and again.
        let (one, two) = tokio::join!(store.close(), store.close());
        one.and(two).unwrap();
        store.close().await.unwrap();
        assert_eq!((length(&path, "wal"), length(&path, "redo")), (0, 0));
        let copy = copy_of(&path, &elsewhere);
        for task in tasks {
            let (taken, refused, error) = task.await.unwrap();
            assert_eq!((error.kind(), error.certainty()), (ErrorKind::Unavailable, Certainty::NotDone));
            let states = copy.lookup(&queue(), &taken).await.unwrap();
            assert!(states.iter().all(|state| *state == Some(LetterState::Dead)), "{states:?}");
            assert_eq!(copy.lookup(&queue(), &[refused]).await.unwrap(), [None]);
        }
    }
}

#[tokio::test]
async fn a_closed_store_refuses_calls_and_the_file_can_be_reopened() {
    let folder = tempfile::tempdir().unwrap();
    let path = path_in(&folder);
    let store = SqliteStore::open(&path, Options::default()).unwrap();
    store.hand_off(&queue(), &Limits::NONE, vec![dead("1", 1)]).await.unwrap();
    store.close().await.unwrap();
    let error = store.counts(&queue()).await.unwrap_err();
    assert_eq!((error.kind(), error.certainty()), (ErrorKind::Unavailable, Certainty::NotDone));
    let again = SqliteStore::open(&path, Options::default()).unwrap();
    assert_eq!(again.counts(&queue()).await.unwrap().open(), 1);
    // The first one has closed the file: closing it again does not affect the second.
    store.close().await.unwrap();
    again.hand_off(&queue(), &Limits::NONE, vec![dead("2", 2)]).await.unwrap();
    assert_eq!(again.counts(&queue()).await.unwrap().open(), 2);
}

#[tokio::test]
async fn closing_fails_while_another_connection_keeps_the_log_in_use() {
    // I1
    let folder = tempfile::tempdir().unwrap();
    let path = path_in(&folder);
    let options = Options { busy_timeout: Duration::from_millis(50), ..Options::default() };
    let store = SqliteStore::open(&path, options).unwrap();
    store.hand_off(&queue(), &Limits::NONE, vec![dead("1", 1)]).await.unwrap();
    let other = Connection::open(&path).unwrap();
    other.execute_batch("BEGIN; SELECT count(*) FROM letters").unwrap();
    store.hand_off(&queue(), &Limits::NONE, vec![dead("2", 2)]).await.unwrap();
    let error = store.close().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.to_string().contains("in use by another connection"), "{error}");
    assert_eq!(store.close().await.unwrap_err().to_string(), error.to_string());
    drop(other);
    let again = SqliteStore::open(&path, Options::default()).unwrap();
    assert_eq!(again.counts(&queue()).await.unwrap().open(), 2);
}

#[tokio::test]
async fn closing_leaves_the_redo_log_that_another_store_needs() {
    // I1
    let (folder, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let path = path_in(&folder);
    // A store that waits for the lock also requests it, and the owner may then commit and yield.
    let options = Options { busy_timeout: Duration::ZERO, ..Options::default() };
    let leaving = SqliteStore::open(&path, options).unwrap();
    // What this one answers is in the redo log alone: its transaction stays open.
    let options = Options { redo_from: 0, redo_time: Duration::from_secs(3600), ..Options::default() };
    let writing = SqliteStore::open(&path, options).unwrap();
    let items = (0..20).map(|n| dead(&n.to_string(), n)).collect();
    writing.hand_off(&queue(), &Limits::NONE, items).await.unwrap();
    let needed = fs::read(path.with_extension("db-redo")).unwrap();
    assert!(!needed.is_empty());

    let error = leaving.close().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert_eq!(fs::read(path.with_extension("db-redo")).unwrap(), needed);

    // The files as they are if the writing process dies now.
    for file in ["lazaret.db", "lazaret.db-wal", "lazaret.db-redo"] {
        fs::copy(folder.path().join(file), elsewhere.path().join(file)).unwrap();
    }
    let after = SqliteStore::open(path_in(&elsewhere), Options::default()).unwrap();
    let asked: Vec<_> = (0..20).map(|n| MessageId::from(n.to_string())).collect();
    let states = after.lookup(&queue(), &asked).await.unwrap();
    assert!(states.iter().all(|state| *state == Some(LetterState::Dead)), "{states:?}");
    writing.close().await.unwrap();
}
