//! A process that dies between two writes leaves a state from which the next one goes on.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use lazaret_core::query::Query;
use lazaret_core::store::{
    Act, Action, Actor, Audit, AuditEntry, Counts, GrantFence, GroupsRequest, HandOff, LetterStore, Limits,
    OperationState, Operations, Placement, PlanRequest, Requeue, Result, RolloutPolicy, Selection, Settled,
    Settlement, Triage,
};
use lazaret_core::{
    Failure, Fingerprint, Letter, LetterId, LetterState, Message, MessageId, Partition, Position, QueueName,
    Reason, SequenceId,
};
use lazaret_testkit::ManualClock;

use crate::DocumentStore;
use crate::database::Database;

pub(crate) const LEASE: Duration = Duration::from_secs(30);
const MESSAGES: [(&str, LetterState, Placement); 8] = [
    ("a1", LetterState::Dead, Placement::Open),
    ("a2", LetterState::Waiting, Placement::Behind),
    ("b1", LetterState::Retrying, Placement::Open),
    ("a3", LetterState::Waiting, Placement::Behind),
    ("b2", LetterState::Waiting, Placement::Behind),
    ("c1", LetterState::Dead, Placement::Open),
    ("d1", LetterState::Skipped, Placement::Closed),
    ("b3", LetterState::Waiting, Placement::Behind),
];

pub(crate) fn queue() -> QueueName {
    QueueName::of("orders", "orders")
}

pub(crate) fn id(message: &str) -> LetterId {
    LetterId::of(&queue(), &message.into())
}

pub(crate) fn ada() -> Actor {
    Actor::new("ada", "cli", "the service is back")
}

/// Every sequence of the story: the last one is that of a letter that leaves its own.
fn sequences() -> [SequenceId; 5] {
    let detached = SequenceId::from("b").detached(id("b2"));
    ["a".into(), "b".into(), "c".into(), "d".into(), detached]
}

fn failed(letter: &Letter, message: &str) -> Settlement {
    Settlement::Requeue(Box::new(requeue(letter, message)))
}

/// It dies and leaves its sequence.
fn left(letter: &Letter, message: &str) -> Settlement {
    Settlement::Requeue(Box::new(Requeue { detach: true, ..requeue(letter, message) }))
}

fn requeue(letter: &Letter, message: &str) -> Requeue {
    Requeue {
        state: LetterState::Dead,
        due_at: None,
        cause: Some(Failure::new(Reason::TIMEOUT, "HttpError", message)),
        attempts: letter.attempts + 1,
        ..Requeue::of(letter)
    }
}

async fn hand_off(store: &DocumentStore, fence: u64, number: usize) -> Result<()> {
    let (name, state, placement) = MESSAGES[number];
    let message = Message::new(name, "orders", Position::new(0, number as u64)).with_payload("{}");
    let mut letter = Letter::new(queue(), name[..1].into(), message.into(), store.clock.now());
    letter.state = state;
    if matches!(state, LetterState::Dead | LetterState::Retrying) {
        (letter.cause, letter.due_at) = (Some(Failure::new(Reason::TIMEOUT, "HttpError", "boom")), None);
    }
    let grant = Some(GrantFence { partition: Partition::new("orders", 0), fence, turn: number as u64 });
    let items = vec![HandOff { letter, placement, grant }];
    store.hand_off(&queue(), &Limits::default(), items).await?.remove(0).map(drop)
}

pub(crate) async fn begin(store: &DocumentStore, action: Action, letters: &[&str]) -> Result<()> {
    let letters = letters.iter().map(|message| (queue(), id(message))).collect();
    let selection = Selection::Letters(letters);
    let request = PlanRequest { action, selection, valid_for: LEASE * 100, max_letters: 100 };
    let plan = store.freeze(&request, &ada()).await?;
    store.begin(plan.id, &RolloutPolicy::unlimited(), &ada()).await.map(drop)
}

/// Hand-off, claim, settle, act and operation, one call after the other. `stored` names the messages that were answered.
async fn story(store: &DocumentStore, stored: &mut Vec<MessageId>) -> Result<()> {
    let queue = queue();
    let fence = store.assign(&queue, &[Partition::new("orders", 0)]).await?[0].fence;
    for (number, (message, ..)) in MESSAGES.iter().enumerate() {
        hand_off(store, fence, number).await?;
        stored.push((*message).into());
    }
    for claim in store.claim_due(&queue, "w", LEASE, 10).await? {
        store.settle(&claim.lease, claim.head.id, Settlement::Resolve(None)).await?;
        let next = store.get(&queue, id("b2")).await?.unwrap();
        store.settle(&claim.lease, next.id, left(&next, "no route")).await?;
        let last = store.get(&queue, id("b3")).await?.unwrap();
        store.settle(&claim.lease, last.id, failed(&last, "boom")).await?;
    }
    for act in [Act::Park, Act::Release, Act::Evict, Act::Restore] {
        store.act(&queue, id("c1"), act, &ada()).await?;
    }
    begin(store, Action::Retry, &["a1", "a2", "a3"]).await?;
    for fails in [false, true] {
        for work in store.poll_work(&queue, "w", LEASE, 1).await?.items {
            let head = work.claim.head;
            let settlement = if fails { failed(&head, "boom") } else { Settlement::Resolve(None) };
            let settled = store.settle_and_continue(&work.claim.lease, head.id, settlement).await?;
            if let Settled::Next(_) = settled {
                store.release(&work.claim.lease).await?;
            }
        }
    }
    begin(store, Action::Park, &["b2", "c1"]).await?;
    store.poll_work(&queue, "w", LEASE, 10).await.map(drop)
}

/// What the audit says, without its times.
async fn audit(store: &DocumentStore) -> Vec<String> {
    let line = |AuditEntry { number, action, subject, before, after, .. }| {
        format!("{number} {action} {subject} {before:?} {after:?}")
    };
    store.audit(0, 1000).await.unwrap().into_iter().map(line).collect()
}

/// No letter is lost or stands twice, the order is kept, every counter is that of the letters.
async fn check(store: &DocumentStore, stored: &[MessageId]) {
    let queue = queue();
    assert!(!store.lookup(&queue, stored).await.unwrap().contains(&None), "an answered letter is lost");
    let (mut counts, mut groups) = (Counts::default(), BTreeMap::<Fingerprint, (Counts, u64)>::new());
    let mut open = BTreeSet::new();
    for sequence in sequences() {
        let letters = store.sequence(&queue, &sequence, 0, 100).await.unwrap();
        assert!(letters.is_sorted_by_key(|letter| letter.message.position.offset), "the order is lost");
        assert!(letters.iter().all(|letter| open.insert(letter.id)), "a letter stands twice");
        counts.sequences += u64::from(!letters.is_empty());
        if let Some(cause) = letters.first().and_then(|head| head.cause.as_ref()) {
            let (group, behind) = groups.entry(cause.fingerprint).or_default();
            (group.sequences, *behind) = (group.sequences + 1, *behind + letters.len() as u64 - 1);
        }
    }
    for (message, ..) in MESSAGES {
        let Some(letter) = store.get(&queue, id(message)).await.unwrap() else { continue };
        assert_eq!(letter.state.is_open(), open.contains(&letter.id), "{message} is stranded");
        counts.by_state[letter.state as usize] += 1;
        if let Some(cause) = letter.cause {
            groups.entry(cause.fingerprint).or_default().0.by_state[letter.state as usize] += 1;
        }
    }
    assert_eq!(store.counts(&queue).await.unwrap(), counts, "the counters are not those of the letters");
    let request = GroupsRequest { closed: true, limit: 100, ..GroupsRequest::default() };
    let shown = store.groups(&request).await.unwrap().groups.into_iter();
    let shown: BTreeMap<_, _> =
        shown.map(|group| (group.id.fingerprint, (group.counts, group.blocked_behind))).collect();
    assert_eq!(shown, groups);
    let all = Query::parse("state:open or state:closed").unwrap();
    let found = store.find(&all, None, 100).await.unwrap().letters;
    assert_eq!(found.len() as u64, counts.by_state.iter().sum::<u64>(), "each letter is found once");
}

/// Every letter comes to an end, once and in order, and so does every operation.
async fn after(store: &DocumentStore, clock: &ManualClock) {
    let queue = queue();
    clock.advance(LEASE * 2);
    loop {
        let work = store.poll_work(&queue, "heir", LEASE, 10).await.unwrap();
        for work in &work.items {
            store.settle(&work.claim.lease, work.claim.head.id, Settlement::Resolve(None)).await.unwrap();
        }
        if work.items.is_empty() && work.settled == 0 {
            break;
        }
    }
    for operation in store.operations(None, 10).await.unwrap().operations {
        assert_eq!(operation.state, OperationState::Done, "{operation:?}");
        assert_eq!(operation.letters, operation.ok + operation.failed_again + operation.skipped);
    }
    for sequence in sequences() {
        let mut last = None;
        while let Some(claim) = store.claim(&queue, &sequence, "heir", LEASE).await.unwrap() {
            let offset = Some(claim.head.message.position.offset);
            assert!(offset > last, "{sequence} goes back");
            last = offset;
            store.settle(&claim.lease, claim.head.id, Settlement::Resolve(None)).await.unwrap();
            store.release(&claim.lease).await.unwrap();
        }
    }
    assert_eq!(store.counts(&queue).await.unwrap().open(), 0);
}

/// Cuts a store off after each write of the story, and checks what the next process finds.
async fn cut_off_after_every_write(make: impl Fn(Arc<Database>, &ManualClock) -> DocumentStore) {
    const ENOUGH: u64 = 1_000_000;
    let (db, clock) = (Arc::new(Database::default()), ManualClock::new());
    db.connection.cut_after(ENOUGH);
    let store = make(db.clone(), &clock);
    story(&store, &mut Vec::new()).await.unwrap();
    let whole = audit(&store).await;
    check(&store, &MESSAGES.map(|(message, ..)| message.into())).await;
    let writes = ENOUGH - db.connection.writes_left();
    assert!(writes > 100, "the story has {writes} writes");

    for cut in 0..writes {
        let (db, clock, mut stored) = (Arc::new(Database::default()), ManualClock::new(), Vec::new());
        db.connection.cut_after(cut);
        let store = make(db.clone(), &clock);
        assert!(story(&store, &mut stored).await.is_err(), "write {cut} of {writes} was made");
        db.connection.cut_after(u64::MAX);
        let heir = make(db, &clock);
        check(&heir, &stored).await;
        let audited = audit(&heir).await;
        assert_eq!(audited, whole[..audited.len()], "cut after {cut} writes");
        after(&heir, &clock).await;
        check(&heir, &stored).await;
    }
}

#[tokio::test]
async fn a_store_that_is_cut_off_after_any_write_goes_on() {
    cut_off_after_every_write(|db, clock| DocumentStore::new(db, Arc::new(clock.clone()))).await;
}

#[tokio::test]
#[should_panic(expected = "the counters are not those of the letters")]
async fn a_store_that_keeps_what_is_left_to_do_in_memory_is_found() {
    cut_off_after_every_write(|db, clock| DocumentStore {
        forgetful: true,
        ..DocumentStore::new(db, Arc::new(clock.clone()))
    })
    .await;
}
