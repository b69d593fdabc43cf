//! What a store holds after a power cut, compared with what was answered before it.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use lazaret_core::source::{Ingest, Source, SourceEvent};
use lazaret_core::store::{Audit, KeyValue, LetterStore, Operations};
use rusqlite::Connection;

use super::life::{Life, VALUE, description, id, inbox_options, partition, queue};
use crate::{SqliteStore, consistency};

/// Checks all objects of an open store, and that no fence is given out twice.
pub(super) async fn check(life: &Life, cut: usize, store: &SqliteStore) {
    let mut found = letters(life, store).await;
    found.extend(posts(store).await);
    for note in store.attempt_notes(&queue(), &[partition()]).await.unwrap() {
        found.insert(format!("note {}", note.message), note.attempts.to_string());
    }
    for pause in store.pauses(&"orders".into()).await.unwrap() {
        assert_eq!(pause.by.who, "ada");
        found.insert("pause".into(), "paused".into());
    }
    if let Some(value) = store.read(VALUE.0, VALUE.1).await.unwrap().found {
        found.insert("value".into(), String::from_utf8(value.value.to_vec()).unwrap());
    }
    for operation in store.operations(None, 10).await.unwrap().operations {
        let is_over = operation.state.is_over();
        let state = if is_over { format!("over ok={}", operation.ok) } else { "under way".into() };
        found.insert(format!("operation {}", operation.id.0), state);
    }
    // A file beside it, which is checked on its own.
    found.extend(life.history().value_at("backup", cut).map(|value| ("backup".to_owned(), value)));
    life.history().check(cut, &found);
    let audit = store.verify_audit().await.unwrap().unwrap();
    assert_eq!(audit.broken, None);
    check_fences(life, cut, store).await;
}

async fn letters(life: &Life, store: &SqliteStore) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    let objects: Vec<String> = life.history().objects().map(str::to_owned).collect();
    for object in objects {
        let Some(number) = object.strip_prefix("letter m") else { continue };
        if let Some(letter) = store.get(&queue(), id(number.parse().unwrap())).await.unwrap() {
            found.insert(object, description(&letter));
        }
    }
    let count = "SELECT count(*) FROM letters";
    let file = Connection::open(store.path()).unwrap();
    let all: isize = file.query_row(count, [], |row| row.get(0)).unwrap();
    assert_eq!(all.unsigned_abs(), found.len(), "letters that nobody has handed off");
    found
}

/// The messages that the inbox delivers.
async fn posts(store: &SqliteStore) -> BTreeMap<String, String> {
    let inbox = store.inbox_log("orders", inbox_options());
    let backlog = inbox.backlog().await.unwrap().messages;
    let mut found = BTreeMap::new();
    let mut source = inbox.source();
    source.next().await.unwrap();
    while (found.len() as u64) < backlog {
        let SourceEvent::Messages(messages) = source.next().await.unwrap() else { panic!("no messages") };
        for message in messages {
            let double = found.insert(format!("post {}", message.id), "there".into());
            assert_eq!(double, None, "a message is delivered twice");
        }
    }
    found
}

/// I6: a fence that was given out before the cut is older than the next one.
async fn check_fences(life: &Life, cut: usize, store: &SqliteStore) {
    for known in life.fences(cut) {
        let next = match &known.sequence {
            None => Some(store.assign(&queue(), &[partition()]).await.unwrap().remove(0).fence),
            Some(sequence) => {
                let lease = Duration::from_nanos(1);
                let claim = store.claim(&queue(), sequence, "another", lease).await.unwrap();
                if let Some(claim) = &claim {
                    store.release(&claim.lease).await.unwrap();
                }
                claim.map(|claim| claim.lease.fence)
            }
        };
        assert!(next.is_none_or(|next| next > known.fence), "{next:?} after {}", known.fence);
    }
}

/// Checks the closed file: its pages, and its counters.
pub(super) fn check_file(path: &Path) {
    let file = Connection::open(path).unwrap();
    let found: String = file.query_row("PRAGMA integrity_check", [], |row| row.get(0)).unwrap();
    assert_eq!(found, "ok");
    consistency::check(&file);
}
