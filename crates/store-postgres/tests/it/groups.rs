//! Groups of failures: calls with the same failure do not wait for each other, and what is read is exact at any time.

use std::sync::Arc;
use std::time::Duration;

use lazaret_core::letter::LetterId;
use lazaret_core::store::{
    Act, Actor, Group, GroupsRequest, HandOff, LetterStore, Limits, Placement, Triage,
};
use lazaret_core::{Clock, Failure, Letter, LetterState, Message, Position, QueueName, Reason, Timestamp};
use lazaret_store_postgres::PostgresStore;
use lazaret_testkit::ManualClock;

use crate::support::{TestSchema, add_notes, count, server};

const DEADLINE: Duration = Duration::from_secs(240);
/// More notes than a process leaves to others.
const CALLS: u64 = 300;

/// The hours of a trend depend on it.
fn clock() -> Arc<dyn Clock> {
    Arc::new(ManualClock::default())
}

fn queue() -> QueueName {
    QueueName::of("orders", "orders")
}

/// Stores a dead letter in a sequence of its own, with one of three failures.
async fn hand_off(store: &PostgresStore, number: u64) -> LetterId {
    let message = Message::new(format!("m-{number}"), "orders", Position::new(0, number));
    let now = Timestamp::UNIX_EPOCH;
    let mut letter = Letter::new(queue(), format!("key-{number}").as_str().into(), message.into(), now);
    letter.state = LetterState::Dead;
    letter.cause =
        Some(Failure::new(Reason::TIMEOUT, format!("Error{}", number % 3), format!("no answer to {number}")));
    (letter.attempts, letter.first_failed_at, letter.last_failed_at) = (1, Some(now), Some(now));
    let id = letter.id;
    let item = HandOff { letter, placement: Placement::Open, grant: None };
    store.hand_off(&queue(), &Limits::NONE, vec![item]).await.unwrap().pop().unwrap().unwrap();
    id
}

async fn groups(store: &PostgresStore) -> Vec<Group> {
    let request = GroupsRequest { queue: None, closed: true, after: None, limit: 100 };
    store.groups(&request).await.unwrap().groups
}

#[tokio::test]
async fn calls_with_the_same_failure_do_not_wait_for_each_other() {
    let Some(dsn) = server() else { return };
    let test = TestSchema::new(dsn);
    let (store, client) = (test.open(Some(clock())).await, test.client().await);
    let first = hand_off(&store, 0).await;
    add_notes(&store, &queue(), &client).await;
    // As long as another session holds the rows of all groups.
    client.batch_execute("BEGIN; SELECT 1 FROM failure_groups FOR UPDATE").await.unwrap();
    assert_eq!(count(&client, "failure_groups").await, 1);
    hand_off(&store, 3).await;
    store.act(&queue(), first, Act::Evict, &Actor::new("ada", "test", "not needed")).await.unwrap();
    let [group]: [Group; 1] = groups(&store).await.try_into().unwrap();
    assert_eq!((group.counts.of(LetterState::Dead), group.counts.of(LetterState::Evicted)), (1, 1));
    assert_eq!(group.message, "no answer to 3");
    client.batch_execute("ROLLBACK").await.unwrap();
}

#[tokio::test]
async fn what_is_read_is_the_same_before_and_after_notes_are_added() {
    let Some(dsn) = server() else { return };
    let test = TestSchema::new(dsn);
    let (store, client) = (test.open(Some(clock())).await, test.client().await);
    let mut ids = Vec::new();
    for number in 0..30 {
        ids.push(hand_off(&store, number).await);
    }
    let noted = groups(&store).await;
    assert_eq!((count(&client, "failure_groups").await, noted.len()), (0, 3), "all of it is in notes");
    add_notes(&store, &queue(), &client).await;
    assert_eq!((count(&client, "failure_groups").await, groups(&store).await), (3, noted.clone()));
    // Some of it is in rows, some in notes: the groups with the most open letters come first, a page at a time.
    let by = Actor::new("ada", "test", "not needed");
    for id in ids.iter().take(9).step_by(3) {
        store.act(&queue(), *id, Act::Evict, &by).await.unwrap();
    }
    hand_off(&store, 31).await;
    let mixed = groups(&store).await;
    assert_eq!(mixed.iter().map(|group| group.counts.open()).collect::<Vec<_>>(), [11, 10, 7]);
    let mut pages = Vec::new();
    let mut after = None;
    loop {
        let request = GroupsRequest { queue: Some(queue()), closed: false, after, limit: 1 };
        let page = store.groups(&request).await.unwrap();
        pages.extend(page.groups);
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    assert_eq!(pages, mixed);
    for group in &mixed {
        assert_eq!(store.group(&group.id).await.unwrap().as_ref(), Some(group));
    }
    add_notes(&store, &queue(), &client).await;
    assert_eq!(groups(&store).await, mixed);
}

#[tokio::test]
async fn a_group_ends_with_its_last_letter_and_begins_anew() {
    let Some(dsn) = server() else { return };
    let test = TestSchema::new(dsn);
    let (store, client) = (test.open(Some(clock())).await, test.client().await);
    let by = Actor::new("ada", "test", "not needed");
    for added in [false, true] {
        let id = hand_off(&store, u64::from(added) * 3).await;
        let [group]: [Group; 1] = groups(&store).await.try_into().unwrap();
        if added {
            add_notes(&store, &queue(), &client).await;
        }
        store.act(&queue(), id, Act::Evict, &by).await.unwrap();
        let purged = store.expire(&queue(), Some(Timestamp::MAX), 10).await.unwrap().purged;
        assert_eq!((purged, groups(&store).await), (1, Vec::new()), "added: {added}");
        assert_eq!(store.group(&group.id).await.unwrap(), None);
        add_notes(&store, &queue(), &client).await;
        assert_eq!((count(&client, "failure_groups").await, groups(&store).await), (0, Vec::new()));
    }
}

#[tokio::test]
async fn many_notes_are_added_without_being_asked() {
    let Some(dsn) = server() else { return };
    let test = TestSchema::new(dsn);
    let (store, client) = (test.open(Some(clock())).await, test.client().await);
    // Twice: whoever has added some adds the next ones, too.
    for round in 1..=2 {
        for call in 0..CALLS {
            hand_off(&store, round * CALLS + call).await;
        }
        let added = async {
            while count(&client, "group_notes").await >= CALLS.cast_signed() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(DEADLINE, added).await.expect("notes are added");
        let dead = groups(&store).await.iter().map(|group| group.counts.of(LetterState::Dead)).sum::<u64>();
        assert_eq!(dead, round * CALLS);
    }
}

#[tokio::test]
async fn a_backlog_is_added_in_batches_and_while_another_process_adds_nothing_is_lost() {
    let Some(dsn) = server() else { return };
    let test = TestSchema::new(dsn);
    let (store, client) = (test.open(Some(clock())).await, test.client().await);
    hand_off(&store, 0).await;
    // As if 4,500 more calls had stored a letter each. A batch ends in the middle of the group.
    let copy = "INSERT INTO group_notes (qid, fingerprint, at, open, changes)
        SELECT qid, fingerprint, at, open, changes FROM group_notes, generate_series(1, 4500)";
    client.batch_execute(copy).await.unwrap();
    let before = groups(&store).await;
    assert_eq!(before[0].counts.of(LetterState::Dead), 4501);
    // Whoever adds notes writes here; a process that finds it at work goes on without waiting.
    client.batch_execute("BEGIN; LOCK TABLE failure_groups IN SHARE MODE").await.unwrap();
    store.expire(&queue(), None, 1).await.unwrap();
    let other = test.open(Some(clock())).await;
    other.expire(&queue(), None, 1).await.unwrap();
    hand_off(&other, 3).await;
    assert_eq!(groups(&other).await[0].counts.of(LetterState::Dead), 4502);
    client.batch_execute("ROLLBACK").await.unwrap();
    add_notes(&store, &queue(), &client).await;
    assert_eq!(groups(&store).await[0].counts.of(LetterState::Dead), 4502);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_note_of_several_processes_is_added_twice() {
    let Some(dsn) = server() else { return };
    let test = TestSchema::new(dsn);
    let store = test.open(Some(clock())).await;
    let (client, by) = (test.client().await, Actor::new("ada", "test", "not needed"));
    let mut processes = Vec::new();
    for process in 0..3_u64 {
        let (store, by) = (test.open(Some(clock())).await, by.clone());
        processes.push(tokio::spawn(async move {
            for call in 0..CALLS {
                let id = hand_off(&store, process * CALLS + call).await;
                if call % 3 == 0 {
                    store.act(&queue(), id, Act::Evict, &by).await.unwrap();
                }
            }
        }));
    }
    for process in processes {
        process.await.unwrap();
    }
    let check = async |when: &str| {
        let groups = groups(&store).await;
        for (state, letters) in [(LetterState::Dead, CALLS * 2), (LetterState::Evicted, CALLS)] {
            assert_eq!(groups.iter().map(|group| group.counts.of(state)).sum::<u64>(), letters, "{when}");
        }
        assert_eq!(groups.iter().map(|group| group.counts.sequences).sum::<u64>(), CALLS * 2, "{when}");
        assert_eq!(groups.iter().flat_map(|group| group.trend).sum::<u64>(), CALLS * 3, "{when}");
    };
    check("with what is left in notes").await;
    add_notes(&store, &queue(), &client).await;
    check("with all notes added").await;
}
