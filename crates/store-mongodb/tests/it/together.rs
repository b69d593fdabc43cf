//! Two processes work on the letters of one operation at the same time, each on many at once.

use std::collections::BTreeSet;
use std::time::Duration;

use futures_util::future;
use lazaret_core::query::Query;
use lazaret_core::store::{
    Action, Actor, Audit, Claim, GroupsRequest, HandOff, LetterStore, Limits, OperationState, Operations,
    Placement, PlanRequest, RolloutPolicy, Selection, Settled, Settlement, Triage,
};
use lazaret_core::{Failure, Letter, LetterId, LetterState, Message, Position, QueueName, Reason, Timestamp};
use lazaret_store_mongodb::MongoStore;

use crate::support::{TestDatabase, server};

const LEASE: Duration = Duration::from_secs(300);
const SEQUENCES: u64 = 24;
const LETTERS: u64 = 3 * SEQUENCES;

fn queue() -> QueueName {
    QueueName::of("orders", "orders")
}

async fn hand_off(store: &MongoStore, state: LetterState) {
    let item = |number: u64| {
        let message = Message::new(format!("m-{number}"), "orders", Position::new(0, number));
        let sequence = format!("k-{}", number % SEQUENCES);
        let mut letter = Letter::new(queue(), sequence.as_str().into(), message.into(), Timestamp::now());
        (letter.state, letter.due_at) =
            (state, (state == LetterState::Retrying).then_some(Timestamp::UNIX_EPOCH));
        letter.cause = Some(Failure::new(Reason::TIMEOUT, "HttpError", "the ledger gave no answer"));
        HandOff { letter, placement: Placement::Open, grant: None }
    };
    for placed in store.hand_off(&queue(), &Limits::NONE, (0..LETTERS).map(item).collect()).await.unwrap() {
        placed.unwrap();
    }
}

/// Settles letters at the same time, and the letters behind them as long as the leases go on. Returns all that it has settled.
async fn settle(store: &MongoStore, claims: Vec<Claim>) -> Vec<LetterId> {
    let run = |claim: Claim| async move {
        let (mut settled, mut next) = (Vec::new(), claim.head.id);
        loop {
            let answer = store.settle_and_continue(&claim.lease, next, Settlement::Resolve(None)).await;
            settled.push(next);
            match answer.unwrap() {
                Settled::Next(letter) => next = letter.id,
                _ => return settled,
            }
        }
    };
    future::join_all(claims.into_iter().map(run)).await.into_iter().flatten().collect()
}

/// I1, I6, I11: each letter was settled once, and everything counts it once.
async fn check(store: &MongoStore, settled: Vec<LetterId>) {
    let once: BTreeSet<LetterId> = settled.iter().copied().collect();
    assert_eq!((settled.len() as u64, once.len() as u64), (LETTERS, LETTERS));
    let counts = store.counts(&queue()).await.unwrap();
    assert_eq!((counts.open(), counts.of(LetterState::Resolved)), (0, LETTERS));
    let request = GroupsRequest { closed: true, limit: 10, ..GroupsRequest::default() };
    let groups = store.groups(&request).await.unwrap().groups;
    assert_eq!((groups.len(), groups[0].counts), (1, counts));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn two_processes_replay_each_letter_of_an_operation_once() {
    let Some(uri) = server() else { return };
    let test = TestDatabase::new(uri);
    let (one, other) = (test.open(None).await, test.open(None).await);
    hand_off(&one, LetterState::Dead).await;
    let ada = Actor::new("ada", "cli", "the service is back");
    let selection = Selection::Query(Query::parse("state:dead").unwrap());
    let request = PlanRequest { action: Action::Retry, selection, valid_for: LEASE, max_letters: LETTERS };
    let plan = one.freeze(&request, &ada).await.unwrap();
    one.begin(plan.id, &RolloutPolicy::unlimited(), &ada).await.unwrap();
    let work = async |store: &MongoStore, owner: &str| {
        let mut settled = Vec::new();
        while store.operations(None, 1).await.unwrap().operations[0].state == OperationState::Running {
            let polled = store.poll_work(&queue(), owner, LEASE, 4).await.unwrap();
            settled.extend(settle(store, polled.items.into_iter().map(|item| item.claim).collect()).await);
        }
        settled
    };
    let (mut settled, more) = tokio::join!(work(&one, "one"), work(&other, "other"));
    settled.extend(more);
    check(&one, settled).await;
    let operation = one.operations(None, 1).await.unwrap().operations.remove(0);
    assert_eq!((operation.state, operation.ok), (OperationState::Done, LETTERS));
    assert_eq!(one.verify_audit().await.unwrap().unwrap().broken, None);
    let lines = one.audit(0, 1000).await.unwrap();
    let resolved: BTreeSet<&str> =
        lines.iter().filter(|line| line.action == "resolve").map(|line| line.subject.as_str()).collect();
    assert_eq!(resolved.len() as u64, LETTERS, "each has its line");
    assert_eq!(lines.iter().filter(|line| line.action == "resolve").count(), resolved.len(), "and one only");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn two_processes_retry_each_due_letter_once() {
    let Some(uri) = server() else { return };
    let test = TestDatabase::new(uri);
    let (one, other) = (test.open(None).await, test.open(None).await);
    hand_off(&one, LetterState::Retrying).await;
    let work = async |store: &MongoStore, owner: &str| {
        let mut settled = Vec::new();
        while store.counts(&queue()).await.unwrap().open() > 0 {
            let claims = store.claim_due(&queue(), owner, LEASE, 4).await.unwrap();
            settled.extend(settle(store, claims).await);
        }
        settled
    };
    let (mut settled, more) = tokio::join!(work(&one, "one"), work(&other, "other"));
    settled.extend(more);
    check(&one, settled).await;
}
