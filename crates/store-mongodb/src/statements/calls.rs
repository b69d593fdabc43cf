//! A store with many letters, and every call that finds something there.

use std::time::Duration;

use bson::doc;
use lazaret_core::query::Query;
use lazaret_core::store::{
    Act, Action, Actor, AttemptNote, Audit, Change, Claim, Command, Dedupe, GroupsRequest, HandOff, LeaseUse,
    LetterStore, Limits, Operations, Outbox, Outcome, PauseScope, Placement, PlanRequest, Requeue,
    RolloutPolicy, Selection, Settlement, Triage,
};
use lazaret_core::{
    Failure, Letter, LetterId, LetterState, Message, MessageId, Partition, Position, QueueName, Reason,
    SequenceId, Timestamp,
};

use crate::MongoStore;

const LEASE: Duration = Duration::from_secs(600);
/// Number of groups of failures.
const GROUPS: usize = 20;

/// Queries that go along each index, and some about which the server decides nothing.
const QUERIES: [&str; 17] = [
    "",
    "state:open or state:closed",
    "queue:orders",
    "state:dead",
    "state:resolved or state:skipped",
    "queue:orders state:dead state:open",
    "seq:hot",
    "seq:hot state:waiting",
    "seq:k1*",
    "type:t1",
    "attempts:>=1 -stream:other*",
    "enqueued:<1h reason:TIMEOUT",
    "error:boom owner:nobody",
    "payload./n:17",
    "id:00000000-0000-0000-0000-000000000000",
    "message:m17 queue:orders",
    "-state:dead poison:true",
];

fn queue() -> QueueName {
    QueueName::of("orders", "orders")
}

fn other_queue() -> QueueName {
    QueueName::of("other", "other")
}

fn ada() -> Actor {
    Actor::new("ada", "cli", "a test")
}

fn id(number: usize) -> LetterId {
    LetterId::of(&queue(), &MessageId::from(format!("m{number}")))
}

fn failure(number: usize) -> Failure {
    Failure::new(Reason::TIMEOUT, format!("HttpError{}", number % GROUPS), "boom")
}

/// One letter in ten belongs to one sequence, the others to one each. Half of them are due, an eighth is closed.
fn item(queue: QueueName, number: usize, now: Timestamp) -> HandOff {
    let is_hot = number.is_multiple_of(10);
    let sequence = if is_hot { SequenceId::from("hot") } else { SequenceId::new(format!("k{number}")) };
    let payload = format!(r#"{{"n":{number},"text":"{}"}}"#, "x".repeat(400));
    let message =
        Message::new(format!("m{number}"), "orders", Position::new(number as u32 % 3, number as u64))
            .with_payload(payload)
            .with_key(sequence.to_string())
            .with_type(format!("t{}", number % 5));
    let mut letter = Letter::new(queue, sequence, message.into(), now);
    let (state, placement) = match number % 8 {
        _ if is_hot && number > 0 => (LetterState::Waiting, Placement::Behind),
        _ if is_hot => (LetterState::Dead, Placement::Open),
        0..4 => (LetterState::Retrying, Placement::Open),
        4 | 5 => (LetterState::Dead, Placement::Open),
        6 => (LetterState::Parked, Placement::Open),
        _ => (LetterState::Skipped, Placement::Closed),
    };
    letter.state = state;
    if state != LetterState::Waiting {
        (letter.cause, letter.last_failed_at, letter.attempts) = (Some(failure(number)), Some(now), 2);
    }
    if state == LetterState::Retrying {
        letter.due_at = Some(now);
    }
    if number % 8 == 5 {
        letter.expires_at = Some(now);
    }
    HandOff { letter, placement, grant: None }
}

/// Fills a store with letters.
pub(super) async fn fill(store: &MongoStore, letters: usize) {
    let now = Timestamp::now();
    for (queue, letters) in [(queue(), letters), (other_queue(), 50)] {
        let items: Vec<HandOff> = (0..letters).map(|number| item(queue.clone(), number, now)).collect();
        for items in items.chunks(1000) {
            for placed in store.hand_off(&queue, &Limits::NONE, items.to_vec()).await.unwrap() {
                placed.unwrap();
            }
        }
    }
}

/// Makes every kind of call.
pub(super) async fn make(store: &MongoStore) {
    Box::pin(consume(store)).await;
    Box::pin(read(store)).await;
    Box::pin(search(store)).await;
    Box::pin(triage(store)).await;
    Box::pin(operate(store)).await;
    Box::pin(announce(store)).await;
    Box::pin(audit(store)).await;
    store.clear(&other_queue(), &ada()).await.unwrap();
}

/// Stores letters that are due, each in a sequence of its own.
pub(super) async fn hand_off_apart(store: &MongoStore) {
    let (queue, now) = (queue(), Timestamp::now() - Duration::from_secs(1));
    let is_due = |number: &usize| !number.is_multiple_of(10) && number % 8 < 4;
    let items = (1..100).filter(is_due).map(|number| item(queue.clone(), number, now)).collect();
    for placed in store.hand_off(&queue, &Limits::NONE, items).await.unwrap() {
        placed.unwrap();
    }
}

/// Claims some letters that are due.
pub(super) async fn claim(store: &MongoStore) -> Vec<Claim> {
    let claims = store.claim_due(&queue(), "w", LEASE, 8).await.unwrap();
    assert_eq!(claims.len(), 8);
    claims
}

pub(super) async fn renew(store: &MongoStore, claims: &[Claim]) {
    for claim in claims {
        store.renew(&claim.lease, LEASE, LeaseUse::Attempt).await.unwrap();
    }
}

/// Resolves some, and requeues the others.
pub(super) async fn settle(store: &MongoStore, claims: &[Claim]) {
    for (number, claim) in claims.iter().enumerate() {
        let dead =
            Requeue { state: LetterState::Dead, cause: Some(failure(number)), ..Requeue::of(&claim.head) };
        let settlement = match number % 2 {
            0 => Settlement::Resolve(None),
            _ => Settlement::Requeue(Box::new(dead)),
        };
        store.settle(&claim.lease, claim.head.id, settlement).await.unwrap();
    }
}

pub(super) async fn get(store: &MongoStore, claims: &[Claim]) {
    for claim in claims {
        store.get(&queue(), claim.head.id).await.unwrap().unwrap();
    }
}

/// Notes an attempt.
pub(super) async fn note(store: &MongoStore) {
    let now = Timestamp::now();
    let note = AttemptNote {
        message: "m".into(),
        partition: Partition::new("orders", 0),
        offset: 3,
        attempts: 1,
        first_failed_at: now,
        failure: failure(1),
        same_failure: 1,
        due_at: now,
    };
    store.note_attempts(&queue(), vec![note]).await.unwrap();
}

/// What a consumer does.
async fn consume(store: &MongoStore) {
    let (queue, now) = (queue(), Timestamp::now());
    let partitions = [Partition::new("orders", 0), Partition::new("orders", 1)];
    store.assign(&queue, &partitions).await.unwrap();
    store.horizons(&queue, &partitions).await.unwrap();
    store.opened_since(&queue, 0, 10).await.unwrap();
    store.lookup(&queue, &["m1".into(), "none".into()]).await.unwrap();
    let again = vec![item(queue.clone(), 1, now), item(queue.clone(), 1_000_000, now)];
    store.hand_off(&queue, &Limits { max_sequences: Some(1_000_000), ..Limits::NONE }, again).await.unwrap();
    note(store).await;
    store.attempt_notes(&queue, &partitions).await.unwrap();
    store.forget_attempts(&queue, &partitions[0], 3).await.unwrap();
    let claims = store.claim_due(&queue, "w", LEASE, 6).await.unwrap();
    for (number, claim) in claims.into_iter().enumerate() {
        let requeue =
            Requeue { state: LetterState::Dead, cause: Some(failure(number)), ..Requeue::of(&claim.head) };
        let settlement = match number {
            0 => {
                let lease = store.renew(&claim.lease, LEASE, LeaseUse::Attempt).await.unwrap();
                store.release(&lease).await.unwrap();
                continue;
            }
            1 => Settlement::Requeue(Box::new(requeue)),
            2 => Settlement::Requeue(Box::new(Requeue { detach: true, ..requeue })),
            _ => Settlement::Resolve(None),
        };
        store.settle(&claim.lease, claim.head.id, settlement).await.unwrap();
    }
    store.next_due(&queue).await.unwrap();
    let first = store.free_sequences(&queue, i64::MAX, None, 5).await.unwrap();
    store.free_sequences(&queue, i64::MAX, first.last(), 5).await.unwrap();
    LetterStore::claim(store, &queue, &"hot".into(), "w", LEASE).await.unwrap();
    let window = Duration::from_secs(60);
    for number in 0..20 {
        let message = MessageId::from(format!("d{number}"));
        Dedupe::done(store, &queue, &message, "w", window).await.unwrap();
    }
    store.set_pause(&"orders".into(), &PauseScope::Sequence("k1".into()), true, &ada()).await.unwrap();
    store.pauses(&"orders".into()).await.unwrap();
}

/// Lists and counts.
async fn read(store: &MongoStore) {
    let queue = queue();
    let heads = store.heads(&queue, None, 20).await.unwrap();
    store.heads(&queue, heads.next.as_deref(), 20).await.unwrap();
    store.sequence(&queue, &"hot".into(), 0, 20).await.unwrap();
    store.sequence_size(&queue, &"hot".into()).await.unwrap();
    store.get(&queue, id(1)).await.unwrap().unwrap();
    store.counts(&queue).await.unwrap();
    store.queues().await.unwrap();
    for closed in [false, true] {
        for of in [None, Some(queue.clone())] {
            let mut request = GroupsRequest { queue: of, closed, after: None, limit: 5 };
            let groups = store.groups(&request).await.unwrap();
            store.group(&groups.groups[0].id).await.unwrap().unwrap();
            request.after = groups.next;
            store.groups(&request).await.unwrap();
        }
    }
}

async fn search(store: &MongoStore) {
    let groups = store.groups(&GroupsRequest { limit: 1, ..GroupsRequest::default() }).await.unwrap();
    let group = format!("group:{}", groups.groups[0].id);
    for text in QUERIES.into_iter().chain([group.as_str()]) {
        let query = Query::parse(text).unwrap();
        let page = store.find(&query, None, 10).await.unwrap();
        if page.next.is_some() {
            store.find(&query, page.next.as_deref(), 10).await.unwrap();
        }
        store.count(&query).await.unwrap();
    }
}

/// What people do to letters.
async fn triage(store: &MongoStore) {
    let queue = queue();
    for act in [Act::Park, Act::Release, Act::Evict, Act::Restore, Act::Evict] {
        store.act(&queue, id(12), act, &ada()).await.unwrap();
    }
    store.change(&queue, id(13), &Change::Comment("a word".into()), &ada()).await.unwrap();
    store.erase(&queue, id(12), &ada()).await.unwrap();
    store.purge(&queue, id(12), &ada()).await.unwrap();
    store.expire(&queue, Some(Timestamp::now()), 5).await.unwrap();
    store.expire(&queue, Some(Timestamp::now()), 50).await.unwrap();
}

async fn operate(store: &MongoStore) {
    let queue = queue();
    let freeze = async |action, selection| {
        let request = PlanRequest { action, selection, valid_for: LEASE, max_letters: 1_000_000 };
        store.freeze(&request, &ada()).await.unwrap()
    };
    let dead = || Selection::Query(Query::parse("queue:orders state:dead -seq:hot").unwrap());
    let some = Selection::Letters(vec![(queue.clone(), id(14)), (queue.clone(), id(22))]);
    freeze(Action::Park, some.clone()).await;
    let drafts = store.drafts(None, 5).await.unwrap();
    store.drafts(drafts.first().map(|draft| draft.id), 5).await.unwrap();
    for action in [Action::Retry, Action::Park] {
        let plan = freeze(action, dead()).await;
        let operation = store.begin(plan.id, &RolloutPolicy::unlimited(), &ada()).await.unwrap();
        // Most of its letters are done.
        let done = doc! { "plan": plan.id.0 as i64, "ordinal": { "$lt": plan.letters as i64 * 3 / 4 } };
        let outcome = doc! { "$set": { "outcome": Outcome::Ok.as_str() } };
        store.db().update(&store.db().items, done, outcome).await.unwrap();
        for work in store.poll_work(&queue, "w", LEASE, 3).await.unwrap().items {
            let (lease, head) = (&work.claim.lease, work.claim.head.id);
            store.settle_and_continue(lease, head, Settlement::Resolve(None)).await.unwrap();
        }
        store.plan(plan.id).await.unwrap();
        store.outcomes(plan.id, 3, 5).await.unwrap();
        for command in [Command::Pause, Command::Resume, Command::Cancel] {
            store.command(operation.id, command, &ada()).await.unwrap();
        }
        store.poll_work(&queue, "w", LEASE, 3).await.unwrap();
    }
    let operations = store.operations(None, 1).await.unwrap();
    store.operations(operations.next, 1).await.unwrap();
    Operations::under_way(store, 5).await.unwrap();
    freeze(Action::Park, some).await;
}

/// What is mirrored to a topic.
async fn announce(store: &MongoStore) {
    let queue = queue();
    store.watch_ends(&queue).await.unwrap();
    let page = store.ends(&queue, 0, 5).await.unwrap();
    let last = page.ends.last().map_or(0, |end| end.number);
    store.forget_ends(&queue, last).await.unwrap();
    store.ends(&queue, last, 5).await.unwrap();
    store.unwatch_ends(&queue).await.unwrap();
}

async fn audit(store: &MongoStore) {
    store.audit(3, 5).await.unwrap();
    store.audit_about(&[id(12).to_string(), "orders".to_owned()], 5).await.unwrap();
    store.audit_head(None).await.unwrap();
    store.audit_head(Some(1)).await.unwrap();
    store.verify_audit().await.unwrap();
}
