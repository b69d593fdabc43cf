//! A process that dies between any two writes leaves a state from which the next one goes on.
//!
//! The store is cut off after the first write, the second, and so on; of a command with many statements, between any two of them.

mod batches;
mod settlements;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use bson::{Bson, Document};
use futures_util::{StreamExt, future, stream};
use lazaret_core::query::Query;
use lazaret_core::store::{
    Act, Action, Actor, Audit, AuditEntry, Change, Counts, GrantFence, GroupsRequest, HandOff, LetterStore,
    Limits, OperationState, Operations, Outbox, Placement, Plan, PlanRequest, Requeue, Result, RolloutPolicy,
    Selection, Settled, Settlement, Triage,
};
use lazaret_core::{
    Clock, Failure, Fingerprint, Letter, LetterId, LetterState, Message, MessageId, Partition, Position,
    QueueName, Reason, SequenceId,
};
use lazaret_testkit::ManualClock;
use mongodb::Client;

use crate::database::{get, project};
use crate::documents::plan::{ItemDoc, PlanDoc};
use crate::operations::WRITTEN_WITHIN;
use crate::{MongoStore, MongoStoreOptions};

const LEASE: Duration = Duration::from_secs(30);
/// More writes than any story has.
const ENOUGH: usize = 1_000_000;
/// How many stories run at once, each in collections of its own.
const AT_ONCE: usize = 6;
/// The payload of one message is kept in chunks.
const LARGE: usize = 2 << 20;
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

fn queue() -> QueueName {
    QueueName::of("orders", "orders")
}

fn id(message: &str) -> LetterId {
    LetterId::of(&queue(), &message.into())
}

fn ada() -> Actor {
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

fn item(fence: u64, turn: u64, number: usize) -> HandOff {
    let (name, state, placement) = MESSAGES[number];
    let payload = if name == "c1" { vec![b' '; LARGE] } else { b"{}".to_vec() };
    let message = Message::new(name, "orders", Position::new(0, number as u64)).with_payload(payload);
    let now = ManualClock::new().now();
    let mut letter = Letter::new(queue(), name[..1].into(), message.into(), now);
    letter.state = state;
    if matches!(state, LetterState::Dead | LetterState::Retrying) {
        (letter.cause, letter.due_at) = (Some(Failure::new(Reason::TIMEOUT, "HttpError", "boom")), None);
    }
    let grant = Some(GrantFence { partition: Partition::new("orders", 0), fence, turn });
    HandOff { letter, placement, grant }
}

async fn begin(store: &MongoStore, action: Action, letters: &[&str]) -> Result<()> {
    let letters = letters.iter().map(|message| (queue(), id(message))).collect();
    let selection = Selection::Letters(letters);
    let request = PlanRequest { action, selection, valid_for: LEASE * 100, max_letters: 100 };
    let plan = store.freeze(&request, &ada()).await?;
    store.begin(plan.id, &RolloutPolicy::unlimited(), &ada()).await.map(drop)
}

/// Hand-off in a batch and alone, claim, settle, act and operation, one call after the other. `stored` names the messages that
/// were answered.
async fn story(store: &MongoStore, stored: &mut Vec<MessageId>) -> Result<()> {
    let queue = queue();
    store.watch_ends(&queue).await?;
    let fence = store.assign(&queue, &[Partition::new("orders", 0)]).await?[0].fence;
    for (turn, batch) in [0..6, 6..7, 7..8].into_iter().enumerate() {
        let items = batch.clone().map(|number| item(fence, turn as u64, number)).collect();
        for (number, placed) in batch.zip(store.hand_off(&queue, &Limits::default(), items).await?) {
            placed?;
            stored.push(MESSAGES[number].0.into());
        }
    }
    for claim in store.claim_due(&queue, "w", LEASE, 10).await? {
        store.settle(&claim.lease, claim.head.id, Settlement::Resolve(None)).await?;
        let next = store.get(&queue, id("b2")).await?.unwrap();
        store.settle(&claim.lease, next.id, left(&next, "no route")).await?;
        let last = store.get(&queue, id("b3")).await?.unwrap();
        store.settle(&claim.lease, last.id, failed(&last, "boom")).await?;
    }
    store.ends(&queue, 0, 100).await?;
    for act in [Act::Park, Act::Release, Act::Evict, Act::Restore] {
        store.act(&queue, id("c1"), act, &ada()).await?;
    }
    store.change(&queue, id("c1"), &Change::Payload(Some("{}".into())), &ada()).await?;
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
    store.purge(&queue, id("a1"), &ada()).await?;
    begin(store, Action::Park, &["b2", "c1"]).await?;
    store.poll_work(&queue, "w", LEASE, 10).await.map(drop)
}

/// What the audit says, without its times, and without digests: each store has a key of its own for them.
async fn audit(store: &MongoStore) -> Vec<String> {
    let size = |text: Option<String>| text.map(|text| text.split(", hmac").next().map(str::to_owned));
    let line = |AuditEntry { number, action, subject, before, after, .. }| {
        format!("{number} {action} {subject} {:?} {:?}", size(before), size(after))
    };
    let check = store.verify_audit().await.unwrap().unwrap();
    assert_eq!(check.broken, None);
    store.audit(0, 1000).await.unwrap().into_iter().map(line).collect()
}

/// I1, I2, I8: no letter is lost or stands twice, the order is kept, every counter is that of the letters.
async fn check(store: &MongoStore, stored: &[MessageId]) {
    let queue = queue();
    assert!(!store.lookup(&queue, stored).await.unwrap().contains(&None), "an answered letter is lost");
    let (mut counts, mut groups) = (Counts::default(), BTreeMap::<Fingerprint, (Counts, u64)>::new());
    let mut open = BTreeSet::new();
    for sequence in sequences() {
        let letters = store.sequence(&queue, &sequence, 0, 100).await.unwrap();
        assert!(letters.is_sorted_by_key(|letter| letter.message.position.offset), "the order is lost");
        assert!(letters.iter().all(|letter| open.insert(letter.id)), "a letter stands twice");
        let size = store.sequence_size(&queue, &sequence).await.unwrap();
        assert_eq!(size, letters.len() as u64, "the row counts its letters");
        counts.sequences += u64::from(!letters.is_empty());
        if let Some(cause) = letters.first().and_then(|head| head.cause.as_ref()) {
            let (group, behind) = groups.entry(cause.fingerprint).or_default();
            (group.sequences, *behind) = (group.sequences + 1, *behind + letters.len() as u64 - 1);
        }
    }
    for (message, ..) in MESSAGES {
        let Some(letter) = store.get(&queue, id(message)).await.unwrap() else { continue };
        assert_eq!(letter.state.is_open(), open.contains(&letter.id), "{message} is stranded");
        let size = letter.message.payload_len();
        assert!(size == 2 || (message == "c1" && size == LARGE), "{message} has lost its payload");
        counts.by_state[letter.state as usize] += 1;
        if let Some(cause) = letter.cause {
            groups.entry(cause.fingerprint).or_default().0.by_state[letter.state as usize] += 1;
        }
    }
    assert_eq!(store.counts(&queue).await.unwrap(), counts);
    let request = GroupsRequest { closed: true, limit: 100, ..GroupsRequest::default() };
    let shown = store.groups(&request).await.unwrap().groups.into_iter();
    let shown: BTreeMap<_, _> =
        shown.map(|group| (group.id.fingerprint, (group.counts, group.blocked_behind))).collect();
    assert_eq!(shown, groups);
    let all = Query::parse("state:open or state:closed").unwrap();
    let found = store.find(&all, None, 100).await.unwrap().letters;
    assert_eq!(found.len() as u64, counts.by_state.iter().sum::<u64>(), "each letter is found once");
    check_ends(store).await;
}

/// I11: an end is listed if and only if its letter is there, once.
async fn check_ends(store: &MongoStore) {
    let page = store.ends(&queue(), 0, 100).await.unwrap();
    let listed: BTreeSet<_> = page.ends.iter().map(|end| (end.id, end.state as usize)).collect();
    assert_eq!((listed.len(), page.left), (page.ends.len(), 0), "an end is listed twice");
    assert!(page.ends.is_sorted_by(|one, next| one.number < next.number));
    // They were handed off dead.
    for message in ["a1", "c1"] {
        let known = store.lookup(&queue(), &[message.into()]).await.unwrap();
        assert_eq!(
            listed.contains(&(id(message), LetterState::Dead as usize)),
            known[0].is_some(),
            "{message}"
        );
    }
    // They failed again, and waited before.
    for message in ["b2", "b3", "a2"] {
        let letter = store.get(&queue(), id(message)).await.unwrap();
        let is_dead = letter.is_some_and(|letter| letter.state == LetterState::Dead);
        let is_listed = listed.contains(&(id(message), LetterState::Dead as usize));
        assert!(is_listed || !is_dead, "the end of {message} is not listed");
    }
}

/// Every letter comes to an end, once and in order, and so does every operation.
async fn after(store: &MongoStore, clock: &ManualClock) {
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

/// I7: the letters of plans that were not written completely are not kept for ever.
async fn check_plans(store: &MongoStore, clock: &ManualClock) {
    clock.advance(WRITTEN_WITHIN + LEASE * 100 + Plan::RETENTION);
    let none = Selection::Letters(Vec::new());
    let request =
        PlanRequest { action: Action::Park, selection: none, valid_for: LEASE * 100, max_letters: 100 };
    // The story has two plans, and each freeze deletes as many.
    store.freeze(&request, &ada()).await.unwrap();
    let db = store.db();
    let items: Vec<ItemDoc> =
        project(&db.items, Document::new(), Document::new(), Document::new()).await.unwrap();
    for item in items {
        let plan: Option<PlanDoc> = get(&db.plans, Bson::Int64(item.plan)).await.unwrap();
        assert!(plan.is_some_and(|plan| plan.operation.is_some()), "letters of plan {} are left", item.plan);
    }
}

/// A store in a collection of its own. All share a database, and a client.
async fn open(client: &Client, database: &str, name: usize, clock: &ManualClock) -> MongoStore {
    let collection = format!("c{name}");
    let clock: Option<Arc<dyn Clock>> = Some(Arc::new(clock.clone()));
    let options = MongoStoreOptions { collection, clock, ..MongoStoreOptions::default() };
    MongoStore::without_indexes(client, database, options).await.unwrap()
}

/// Deletes what a store has written. The small server of the tests keeps everything in memory.
async fn forget(store: &MongoStore) {
    let db = store.db();
    for collection in [
        &db.sequences,
        &db.batches,
        &db.letters,
        &db.chunks,
        &db.groups,
        &db.grants,
        &db.plans,
        &db.items,
        &db.pauses,
        &db.watches,
        &db.ends,
        &db.values,
        &db.audit,
        &db.meta,
        &db.notes,
    ] {
        // One that was never written is not there.
        collection.collection().drop().await.ok();
    }
    if std::env::var("LAZARET_TEST_MONGODB_KIND").is_ok_and(|kind| kind == "wire-server") {
        let oplog = db.meta.collection().client().database("local").collection::<Document>("oplog.rs");
        let own = bson::doc! { "ns": { "$regex": format!("^{}\\.", db.meta.namespace().db) } };
        oplog.delete_many(own).await.ok();
    }
}

/// Cuts the store off after this many writes, and goes on with another.
async fn cut_off(client: &Client, database: &str, cut: usize, whole: &[String]) {
    let (clock, mut stored) = (ManualClock::new(), Vec::new());
    let store = open(client, database, cut, &clock).await;
    store.db().cut_after(cut);
    assert!(story(&store, &mut stored).await.is_err(), "write {cut} was made");
    let heir = open(client, database, cut, &clock).await;
    check(&heir, &stored).await;
    let audited = audit(&heir).await;
    assert_eq!(audited, whole[..audited.len()], "cut after {cut} writes");
    after(&heir, &clock).await;
    check(&heir, &stored).await;
    check_plans(&heir, &clock).await;
    forget(&heir).await;
}

/// A client of the server. Without one the test prints that it did not run, and fails when `CI=true`.
async fn client() -> Option<Client> {
    let Ok(uri) = std::env::var("LAZARET_TEST_MONGODB") else {
        let must = std::env::var("CI").is_ok_and(|value| value == "true");
        assert!(!must, "LAZARET_TEST_MONGODB is not set; `cargo xtask test` starts a server and sets it");
        println!(
            "not run: LAZARET_TEST_MONGODB is not set; `cargo xtask services` starts a server and prints it"
        );
        return None;
    };
    Some(Client::with_uri_str(uri).await.unwrap())
}

#[tokio::test]
async fn a_store_that_is_cut_off_after_any_write_goes_on() {
    let Some(client) = client().await else { return };
    let database = format!("lzs_crash_{}", uuid::Uuid::new_v4().simple());
    let clock = ManualClock::new();
    let store = open(&client, &database, ENOUGH, &clock).await;
    store.db().cut_after(ENOUGH);
    story(&store, &mut Vec::new()).await.unwrap();
    let writes = ENOUGH - store.db().writes_left();
    let whole = audit(&store).await;
    check(&store, &MESSAGES.map(|(message, ..)| message.into())).await;
    assert!(writes > 100, "the story has {writes} writes");
    forget(&store).await;

    let cuts = (0..writes).map(|cut| cut_off(&client, &database, cut, &whole));
    stream::iter(cuts).buffer_unordered(AT_ONCE).for_each(|()| future::ready(())).await;
    client.database(&database).drop().await.unwrap();
    println!("cut off after each of {writes} writes");
}
