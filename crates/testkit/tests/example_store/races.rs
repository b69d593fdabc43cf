//! Another process that comes between any two reads of a call changes nothing about what is right.

use std::sync::Arc;

use lazaret_core::store::{
    Act, Action, HandOff, LetterStore, Limits, OperationState, Operations, Placement, Settlement, WorkItem,
};
use lazaret_core::{Letter, LetterState, Message, Position};
use lazaret_testkit::ManualClock;

use crate::DocumentStore;
use crate::crash::{LEASE, ada, begin, id, queue};
use crate::database::Database;

/// What the other process does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Interference {
    /// It evicts the head.
    Evicts,
    /// It settles the head, which it has claimed for the operation.
    Settles,
    /// It settles the head and dies after the decision.
    SettlesAndDies,
}

/// A store with an operation on three letters of one sequence.
async fn operating(db: &Arc<Database>, clock: &ManualClock) -> DocumentStore {
    let store = DocumentStore::new(db.clone(), Arc::new(clock.clone()));
    for (offset, name) in (0..).zip(["a1", "a2", "a3"]) {
        let message = Message::new(name, "orders", Position::new(0, offset)).with_payload("{}");
        let mut letter = Letter::new(queue(), "a".into(), message.into(), store.clock.now());
        letter.state = LetterState::Dead;
        let items = vec![HandOff { letter, placement: Placement::Open, grant: None }];
        store.hand_off(&queue(), &Limits::NONE, items).await.unwrap().remove(0).unwrap();
    }
    begin(&store, Action::Retry, &["a1", "a2", "a3"]).await.unwrap();
    store
}

async fn resolve(store: &DocumentStore, work: &WorkItem) {
    let claim = &work.claim;
    store.settle(&claim.lease, claim.head.id, Settlement::Resolve(None)).await.unwrap();
}

/// Polls while the other process interferes after this many reads. Returns `false` when the poll has fewer reads.
async fn poll_interrupted(reads: u64, interference: Interference) -> bool {
    let (db, clock) = (Arc::new(Database::default()), ManualClock::new());
    let store = operating(&db, &clock).await;
    let other = DocumentStore::new(db.clone(), Arc::new(clock.clone()));
    let held = match interference {
        Interference::Evicts => None,
        _ => Some(other.poll_work(&queue(), "other", LEASE, 1).await.unwrap().items.remove(0)),
    };
    let of_other = db.clone();
    db.connection.interrupt_after(reads, move || match held {
        None => drop(other.act_on(&queue(), id("a1"), Act::Evict, &ada()).ok()),
        Some(work) => {
            if interference == Interference::SettlesAndDies {
                of_other.connection.cut_after(1);
            }
            let settled =
                other.settle_head(&work.claim.lease, work.claim.head.id, &Settlement::Resolve(None), false);
            assert_eq!(settled.is_ok(), interference == Interference::Settles);
            of_other.connection.cut_after(u64::MAX);
        }
    });
    let polled = store.poll_work(&queue(), "w", LEASE, 10).await.unwrap();
    if db.connection.end_interruption() {
        return false;
    }
    let what = format!("{interference:?} after {reads} reads");
    // I6: nothing is leased that was not handed out.
    let free = store.claim(&queue(), &"a".into(), "person", LEASE).await.unwrap();
    assert_eq!(free.is_none(), !polled.items.is_empty(), "{what}: {polled:?}");
    if let Some(claim) = free {
        store.release(&claim.lease).await.unwrap();
    }
    for work in &polled.items {
        let in_work = store.sequence(&queue(), &"a".into(), 0, 1).await.unwrap().remove(0);
        // An eviction may come after the poll has claimed the head: then it was refused.
        assert_eq!(work.claim.head.id, in_work.id, "{what}: the head is handed out");
        resolve(&store, work).await;
    }
    loop {
        let work = store.poll_work(&queue(), "heir", LEASE, 10).await.unwrap();
        for work in &work.items {
            resolve(&store, work).await;
        }
        if work.items.is_empty() && work.settled == 0 {
            break;
        }
    }
    let operation = store.operations(None, 1).await.unwrap().operations.remove(0);
    let evicted = store.get(&queue(), id("a1")).await.unwrap().unwrap().state == LetterState::Evicted;
    let skipped = u64::from(evicted);
    assert_eq!(
        (operation.state, operation.ok, operation.skipped),
        (OperationState::Done, 3 - skipped, skipped),
        "{what}: every letter has the outcome that it had"
    );
    true
}

#[tokio::test]
async fn another_worker_may_come_between_any_two_reads_of_a_poll() {
    for interference in [Interference::Evicts, Interference::Settles, Interference::SettlesAndDies] {
        let mut reads = 0;
        while poll_interrupted(reads, interference).await {
            reads += 1;
        }
        assert!(reads > 10, "{interference:?}: a poll has more than {reads} reads");
    }
}
