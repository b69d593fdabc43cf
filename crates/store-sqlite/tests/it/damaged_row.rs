//! A damaged row fails the calls that execute or change its letter, and no other call of their group: neither one that ran before in the
//! same transaction, nor one of the same group. The letter is shown without what cannot be decoded, and can be removed.

use std::time::Duration;

use lazaret_core::letter::{AttemptKind, AttemptRecord};
use lazaret_core::query::Query;
use lazaret_core::store::{
    Act, Actor, Certainty, Change, ErrorKind, Group, GroupsRequest, HandOff, Lease, LetterStore, Limits,
    Placement, Result, Settled, Settlement, Triage,
};
use lazaret_core::{
    Failure, Letter, LetterId, LetterState, Message, MessageId, Position, QueueName, Reason, Timestamp,
};
use lazaret_store_sqlite::{Options, SqliteStore};
use rusqlite::Connection;
use tokio::task::JoinSet;

const LEASE: Duration = Duration::from_secs(60);
const LETTERS: u64 = 30;
/// The one whose row is damaged.
const DAMAGED: u64 = 20;

fn queue() -> QueueName {
    QueueName::of("orders", "orders")
}

fn name(number: u64) -> String {
    format!("order-{number}")
}

fn id_of(number: u64) -> LetterId {
    LetterId::of(&queue(), &MessageId::from(name(number)))
}

async fn put(store: &SqliteStore, number: u64) {
    put_in(store, number, LetterState::Dead).await;
}

async fn put_in(store: &SqliteStore, number: u64, state: LetterState) {
    let message = Message::new(name(number), "orders", Position::new(0, number)).with_payload("{}");
    let mut letter = Letter::new(queue(), name(number).as_str().into(), message.into(), Timestamp::now());
    letter.state = state;
    letter.due_at = (state == LetterState::Retrying).then_some(letter.enqueued_at);
    let item = HandOff { letter, placement: Placement::Open, grant: None };
    store.hand_off(&queue(), &Limits::NONE, vec![item]).await.unwrap().remove(0).unwrap();
}

async fn claim(store: &SqliteStore, number: u64) -> Lease {
    let sequence = name(number).as_str().into();
    store.claim(&queue(), &sequence, "worker", LEASE).await.unwrap().unwrap().lease
}

/// Resolves letters at once, so that the calls share groups. Returns the answer for each.
async fn resolve(store: &SqliteStore, leases: &[(u64, Lease)]) -> Vec<(u64, Result<Settled>)> {
    let mut calls = JoinSet::new();
    for (number, lease) in leases.iter().cloned() {
        let store = store.clone();
        // With an attempt for its history, which is in the damaged column.
        let took = Duration::from_millis(1);
        let attempt = AttemptRecord {
            attempt: 1,
            kind: AttemptKind::Replay,
            at: Timestamp::now(),
            took,
            failure: None,
        };
        calls.spawn(async move {
            let settlement = Settlement::Resolve(Some(attempt));
            (number, store.settle(&lease, id_of(number), settlement).await)
        });
    }
    calls.join_all().await
}

#[tokio::test]
async fn a_settlement_that_fails_after_it_has_written_is_undone_alone() {
    // I1, I6
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("lazaret.db");
    // Every group goes to the redo log, and the transaction stays open until a query ends it.
    let options = Options { redo_from: 0, redo_time: Duration::from_secs(600), ..Options::default() };
    let store = SqliteStore::open(&path, options).unwrap();
    let mut leases = Vec::new();
    for number in 0..LETTERS {
        put(&store, number).await;
        leases.push((number, claim(&store, number).await));
    }
    assert_eq!(store.counts(&queue()).await.unwrap().open(), LETTERS);
    let other = Connection::open(&path).unwrap();
    let damaged = other.execute("UPDATE letters SET body = x'00' WHERE sequence = ?1", [name(DAMAGED)]);
    assert_eq!(damaged.unwrap(), 1);

    let (before, with) = leases.split_at(DAMAGED as usize / 2);
    for (number, answer) in resolve(&store, before).await {
        assert!(matches!(answer, Ok(Settled::Closed)), "{number}: {answer:?}");
    }
    // The second time, the group begins with savepoints.
    for _ in 0..2 {
        let mut failed = 0;
        for (number, answer) in resolve(&store, with).await {
            match answer {
                Err(error) if number == DAMAGED => {
                    assert_eq!((error.kind(), error.certainty()), (ErrorKind::Corrupt, Certainty::NotDone));
                    failed += 1;
                }
                // It was settled the first time, and its sequence is closed.
                Err(error) => assert_eq!(error.kind(), ErrorKind::Fenced, "{number}: {error}"),
                Ok(settled) => assert!(matches!(settled, Settled::Closed), "{number}: {settled:?}"),
            }
        }
        assert_eq!(failed, 1, "damage is detected");
        let counts = store.counts(&queue()).await.unwrap();
        assert_eq!((counts.open(), counts.sequences), (1, 1), "only the damaged one is left");
    }
    drop(store);
    let store = SqliteStore::open(&path, Options::default()).unwrap();
    let counts = store.counts(&queue()).await.unwrap();
    assert_eq!((counts.open(), counts.sequences), (1, 1));
    assert_eq!(counts.of(LetterState::Resolved), LETTERS - 1);
}

#[tokio::test]
async fn a_damaged_letter_does_not_stop_the_other_due_ones() {
    // I3
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("lazaret.db");
    let store = SqliteStore::open(&path, Options::default()).unwrap();
    for number in 0..4 {
        put_in(&store, number, LetterState::Retrying).await;
    }
    assert_eq!(store.counts(&queue()).await.unwrap().open(), 4);
    let other = Connection::open(&path).unwrap();
    let damaged =
        other.execute("UPDATE letters SET body = x'00' WHERE sequence IN (?1, ?2)", [name(0), name(2)]);
    assert_eq!(damaged.unwrap(), 2);

    let claim = async |limit| store.claim_due(&queue(), "worker", LEASE, limit).await;
    let error = claim(1).await.unwrap_err();
    assert_eq!((error.kind(), error.certainty()), (ErrorKind::Corrupt, Certainty::MaybeDone));
    assert!(error.to_string().contains(&id_of(0).to_string()), "{error}");
    let claims = claim(10).await.unwrap();
    let claimed: Vec<_> = claims.iter().map(|claim| claim.lease.sequence.to_string()).collect();
    assert_eq!(claimed, [name(1), name(3)]);
    // They are leased, as the others are.
    assert!(claim(10).await.unwrap().is_empty());
}

fn ada() -> Actor {
    Actor::new("ada", "cli", "damaged")
}

/// Stores a dead letter with a header and a cause.
async fn put_failed(store: &SqliteStore, number: u64, sequence: &str) {
    let message = Message::new(name(number), "orders", Position::new(0, number)).with_payload("{}");
    let message = message.with_header("tenant", "acme");
    let mut letter = Letter::new(queue(), sequence.into(), message.into(), Timestamp::now());
    letter.state = LetterState::Dead;
    letter.cause = Some(Failure::new(Reason::TIMEOUT, "HttpError", "no answer"));
    letter.last_failed_at = Some(letter.enqueued_at);
    let item = HandOff { letter, placement: Placement::Open, grant: None };
    store.hand_off(&queue(), &Limits::NONE, vec![item]).await.unwrap().remove(0).unwrap();
}

async fn group(store: &SqliteStore) -> Group {
    let request = GroupsRequest { closed: true, limit: 9, ..GroupsRequest::default() };
    store.groups(&request).await.unwrap().groups.remove(0)
}

/// Three letters, of which the first two are damaged by this statement.
async fn damaged(statement: &str) -> (tempfile::TempDir, SqliteStore) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("lazaret.db");
    let store = SqliteStore::open(&path, Options::default()).unwrap();
    for number in 0..3 {
        put_failed(&store, number, &name(number)).await;
    }
    assert_eq!(store.counts(&queue()).await.unwrap().open(), 3);
    let changed = Connection::open(&path).unwrap().execute(statement, [name(0), name(1)]);
    assert_eq!(changed.unwrap(), 2);
    (folder, store)
}

/// One statement for each part of a letter that is decoded.
const DAMAGES: [&str; 2] = [
    "UPDATE payloads SET headers = substr(headers, 1, 9)
     WHERE lid IN (SELECT lid FROM letters WHERE sequence IN (?1, ?2))",
    "UPDATE letters SET body = substr(body, 1, 9) WHERE sequence IN (?1, ?2)",
];

#[tokio::test]
async fn damaged_letters_are_shown_and_hide_no_other() {
    for statement in DAMAGES {
        let (_folder, store) = damaged(statement).await;
        let page = store.find(&Query::everything(), None, 10).await.unwrap();
        let heads = store.heads(&queue(), None, 10).await.unwrap();
        for letters in [page.letters, heads.heads] {
            assert_eq!(letters.len(), 3, "{statement}");
            for letter in letters {
                let why = letter.message.undecodable.as_deref();
                assert_eq!(letter.id != id_of(2), why.is_some(), "{letter:?}");
                assert!(why.is_none_or(|why| why.starts_with("damaged in the store: ")), "{why:?}");
                assert_eq!(letter.message.payload.as_deref(), Some(b"{}".as_slice()));
            }
        }
        let shown = store.get(&queue(), id_of(0)).await.unwrap().unwrap();
        assert!(shown.message.undecodable.is_some(), "{shown:?}");
        // What is written anew from what was read would lose the rest.
        let refused =
            store.change(&queue(), id_of(0), &Change::Comment("hm".into()), &ada()).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Corrupt);
        assert!(refused.to_string().contains(&id_of(0).to_string()), "{refused}");
    }
}

#[tokio::test]
async fn damaged_letters_are_evicted_purged_and_erased_and_counted_as_before() {
    for statement in DAMAGES {
        let (_folder, store) = damaged(statement).await;
        for number in 0..2 {
            let evicted = store.act(&queue(), id_of(number), Act::Evict, &ada()).await.unwrap();
            assert_eq!(evicted.state, LetterState::Evicted, "{statement}");
        }
        let counts = group(&store).await.counts;
        assert_eq!((counts.open(), counts.of(LetterState::Evicted)), (1, 2), "{statement}");
        let erased = store.erase(&queue(), id_of(0), &ada()).await.unwrap();
        assert!(erased.erased.is_some() && erased.message.undecodable.is_none(), "{erased:?}");
        assert_eq!(store.get(&queue(), id_of(0)).await.unwrap().unwrap(), erased, "it is whole again");
        store.purge(&queue(), id_of(1), &ada()).await.unwrap();
        let counts = group(&store).await.counts;
        assert_eq!((counts.open(), counts.of(LetterState::Evicted)), (1, 1), "{statement}");
    }
}

#[tokio::test]
async fn a_settlement_before_a_damaged_letter_succeeds() {
    for statement in DAMAGES {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lazaret.db");
        let store = SqliteStore::open(&path, Options::default()).unwrap();
        put_failed(&store, 0, &name(0)).await;
        put_failed(&store, 1, &name(0)).await;
        let lease = claim(&store, 0).await;
        assert_eq!(store.counts(&queue()).await.unwrap().open(), 2);
        let only_the_second = format!("{statement} AND lid = (SELECT max(lid) FROM letters)");
        let changed = Connection::open(&path).unwrap().execute(&only_the_second, [name(0), name(0)]);
        assert_eq!(changed.unwrap(), 1);
        let settled = store.settle(&lease, id_of(0), Settlement::Resolve(None)).await.unwrap();
        assert!(matches!(settled, Settled::Blocked), "{settled:?}");
        let counts = store.counts(&queue()).await.unwrap();
        assert_eq!((counts.of(LetterState::Resolved), counts.open()), (1, 1));
    }
}
