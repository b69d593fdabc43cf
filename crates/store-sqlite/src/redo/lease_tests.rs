//! Claims and settlements in the redo log: a crash leaves exactly the state that the callers know.

use std::collections::BTreeMap;
use std::time::Duration;

use lazaret_core::letter::{AttemptKind, AttemptRecord};
use lazaret_core::store::{
    Action, Claim, LeaseUse, LetterStore, OperationState, Operations, PlanRequest, Requeue, RolloutPolicy,
    Selection, Settled, Settlement,
};
use lazaret_core::{Failure, LetterId, LetterState, Reason};
use lazaret_testkit::clock::test_epoch;
use rusqlite::Connection;
use rusqlite::types::Value;

use super::tests::{Place, hand_off, operator, put, queue};
use crate::SqliteStore;
use crate::consistency::check;

const LEASE: Duration = Duration::from_secs(60);

/// All rows of all tables but that of the redo log's mark, which each opening changes.
fn rows(place: &Place) -> BTreeMap<String, Vec<Vec<Value>>> {
    let file = Connection::open(place.path()).unwrap();
    let tables = "SELECT name FROM sqlite_master WHERE type = 'table' AND name <> 'redo' ORDER BY name";
    let names: Vec<String> =
        file.prepare(tables).unwrap().query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect();
    let all = |name: &String| -> Vec<Vec<Value>> {
        let mut select = file.prepare(&format!("SELECT * FROM \"{name}\"")).unwrap();
        let columns = select.column_count();
        let read = |row: &rusqlite::Row<'_>| -> rusqlite::Result<Vec<Value>> {
            (0..columns).map(|column| row.get(column)).collect()
        };
        select.query_map([], read).unwrap().map(Result::unwrap).collect()
    };
    names.iter().map(|name| (name.clone(), all(name))).collect()
}

fn attempt(kind: AttemptKind, failure: Option<Failure>) -> AttemptRecord {
    AttemptRecord { attempt: 2, kind, at: test_epoch(), took: Duration::from_micros(1500), failure }
}

fn requeue(claim: &Claim) -> Settlement {
    let failure = Failure::new(Reason::TIMEOUT, "HttpError", "slow again");
    Settlement::Requeue(Box::new(Requeue {
        state: LetterState::Retrying,
        due_at: Some(test_epoch() + Duration::from_secs(3600)),
        cause: Some(failure.clone()),
        attempts: 2,
        attempt: Some(attempt(AttemptKind::Retry, Some(failure))),
        ..Requeue::of(&claim.head)
    }))
}

/// A store with sequences a (two letters), b and d, of which d is due, and an operation that replays c; all of it committed.
async fn filled(place: &Place) -> SqliteStore {
    let store = place.open();
    for (sequence, message, offset) in [("a", "a1", 0), ("b", "b1", 1), ("c", "c1", 2), ("a", "a2", 3)] {
        put(&store, sequence, message, offset).await;
    }
    let mut due = hand_off("d", "d1", 4);
    (due.letter.state, due.letter.due_at) = (LetterState::Retrying, Some(test_epoch()));
    store.hand_off(&queue(), &lazaret_core::store::Limits::NONE, vec![due]).await.unwrap();
    replay(&store, &["c1"]).await;
    store
}

/// Begins an operation that replays these letters.
async fn replay(store: &SqliteStore, messages: &[&str]) {
    let letter = |message: &&str| (queue(), LetterId::of(&queue(), &(*message).into()));
    let request = PlanRequest {
        action: Action::Retry,
        selection: Selection::Letters(messages.iter().map(letter).collect()),
        valid_for: LEASE,
        max_letters: 9,
    };
    let plan = store.freeze(&request, &operator()).await.unwrap();
    store.begin(plan.id, &RolloutPolicy::unlimited(), &operator()).await.unwrap();
}

#[tokio::test]
async fn acknowledged_claims_and_settlements_survive_a_crash() {
    // I1, I6
    let place = Place::new();
    let store = filled(&place).await;
    place.clock.advance(Duration::from_secs(1));

    let claim = store.claim_due(&queue(), "w", LEASE, 9).await.unwrap().remove(0);
    store.settle(&claim.lease, claim.head.id, requeue(&claim)).await.unwrap();
    assert!(store.claim_due(&queue(), "w", LEASE, 9).await.unwrap().is_empty());

    let claim = store.claim(&queue(), &"a".into(), "w", LEASE).await.unwrap().unwrap();
    place.clock.advance(Duration::from_secs(1));
    let lease = store.renew(&claim.lease, LEASE, LeaseUse::Wait).await.unwrap();
    let resolve = Settlement::Resolve(Some(attempt(AttemptKind::Replay, None)));
    let settled = store.settle(&lease, claim.head.id, resolve).await.unwrap();
    let Settled::Next(next) = settled else { panic!("{settled:?}") };
    let skipped = store.settle(&lease, next.id, Settlement::Skip("not needed".into())).await.unwrap();
    assert!(matches!(skipped, Settled::Closed), "{skipped:?}");
    assert!(store.settle(&lease, next.id, Settlement::Resolve(None)).await.is_err(), "the lease has ended");

    let claim = store.claim(&queue(), &"b".into(), "w", LEASE).await.unwrap().unwrap();
    store.release(&claim.lease).await.unwrap();
    let held = store.claim(&queue(), &"b".into(), "w", LEASE).await.unwrap().unwrap();

    let polled = store.poll_work(&queue(), "w", LEASE, 9).await.unwrap();
    let item = &polled.items[0];
    store.settle(&item.claim.lease, item.claim.head.id, Settlement::Resolve(None)).await.unwrap();

    // Twelve calls: the refused settlement changed nothing.
    assert_eq!(place.records().len(), 12);
    let left = place.left_behind();
    // Much later.
    place.clock.advance(Duration::from_secs(3600));
    let again = left.open();
    check(&Connection::open(left.path()).unwrap());
    // A query commits what the log holds.
    let operation = store.operation(item.operation).await.unwrap().unwrap();
    assert_eq!((operation.state, operation.ok), (OperationState::Done, 1));
    assert_eq!(rows(&left), rows(&place));
    assert_eq!(again.counts(&queue()).await.unwrap(), store.counts(&queue()).await.unwrap());
    let claim = again.claim(&queue(), &"b".into(), "v", LEASE).await.unwrap().unwrap();
    assert!(claim.lease.fence > held.lease.fence, "a fence that was given out is not given out again");
}

#[tokio::test]
async fn the_next_letter_of_an_operation_is_leased_in_the_record_of_the_settlement() {
    // I1, I6
    let place = Place::new();
    let store = place.open();
    put(&store, "a", "a1", 0).await;
    put(&store, "a", "a2", 1).await;
    replay(&store, &["a1", "a2"]).await;
    let item = store.poll_work(&queue(), "w", LEASE, 9).await.unwrap().items.remove(0);
    let (lease, first) = (&item.claim.lease, item.claim.head.id);
    let records = place.records().len();
    let settled = store.settle_and_continue(lease, first, Settlement::Resolve(None)).await.unwrap();
    let Settled::Next(next) = settled else { panic!("{settled:?}") };
    assert_eq!(place.records().len(), records + 1, "one record, and one sync");

    let left = place.left_behind();
    let again = left.open();
    check(&Connection::open(left.path()).unwrap());
    let operation = store.operation(item.operation).await.unwrap().unwrap();
    assert_eq!((operation.state, operation.ok), (OperationState::Running, 1));
    assert_eq!(rows(&left), rows(&place));
    assert!(again.poll_work(&queue(), "v", LEASE, 9).await.unwrap().items.is_empty(), "it is leased");
    let settled = again.settle_and_continue(lease, next.id, Settlement::Resolve(None)).await.unwrap();
    assert!(matches!(settled, Settled::Closed), "{settled:?}");
    let operation = again.operation(item.operation).await.unwrap().unwrap();
    assert_eq!((operation.state, operation.ok), (OperationState::Done, 2));
}

#[tokio::test]
async fn a_claim_that_follows_a_clock_that_was_set_back_is_repeated_as_it_was() {
    // The writer remembers the time of its last claim; the file does not.
    let place = Place::new();
    let store = filled(&place).await;
    place.clock.advance(Duration::from_secs(7200));
    let far = store.claim(&queue(), &"a".into(), "w", LEASE).await.unwrap().unwrap();
    assert_eq!(store.claim_due(&queue(), "w", LEASE, 9).await.unwrap().len(), 1);
    place.clock.set(test_epoch() + Duration::from_secs(10));
    store.claim_due(&queue(), "w", LEASE, 9).await.unwrap();
    let left = place.left_behind();
    left.open();
    let letters = store.sequence(&queue(), &"a".into(), 0, 9).await.unwrap();
    assert_eq!(letters.len(), 2);
    assert_eq!(rows(&left), rows(&place));
    let ends: i64 = Connection::open(place.path())
        .unwrap()
        .query_row("SELECT lease_until FROM sequences WHERE name = 'a'", [], |row| row.get(0))
        .unwrap();
    assert!(crate::rows::time(ends) < far.lease.until, "the lease was shortened");
}

#[tokio::test]
async fn what_is_due_is_told_from_the_redo_log_without_a_commit() {
    let place = Place::new();
    let store = place.open();
    put(&store, "a", "a1", 0).await;
    let mut due = hand_off("b", "b1", 1);
    (due.letter.state, due.letter.due_at) = (LetterState::Retrying, Some(test_epoch()));
    store.hand_off(&queue(), &lazaret_core::store::Limits::NONE, vec![due]).await.unwrap();
    let (records, mark) = (place.records(), place.mark());
    assert_eq!(records.len(), 2, "both are in the redo log");
    assert_eq!(store.next_due(&queue()).await.unwrap(), Some(test_epoch()));
    assert_eq!((place.records(), place.mark()), (records, mark), "nothing was committed or recorded");
    assert_eq!(store.next_due(&"no/queue".into()).await.unwrap(), None);
    assert_eq!(store.counts(&queue()).await.unwrap().sequences, 2);
    assert_ne!(place.mark(), mark, "another question needs a commit");
}
