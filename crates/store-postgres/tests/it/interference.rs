//! Transactions of others: a wait for a lock that is too long is cancelled and changes nothing, after a deadlock or a serialization
//! failure the call is made again, searches and lists of groups that wait leave connections to other calls, and values are read in any case.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use lazaret_core::query::Query;
use lazaret_core::store::{
    Action, Actor, Certainty, ErrorKind, GroupsRequest, HandOff, LetterStore, Limits, Operations, Placed,
    Placement, Plan, PlanRequest, Result, Selection, Triage,
};
use lazaret_core::{Clock, ConsumerName, Letter, LetterState, Message, Position, QueueName, Timestamp};
use lazaret_store_postgres::driver::Client;
use lazaret_store_postgres::{PostgresStore, PostgresStoreOptions};
use lazaret_testkit::ManualClock;

use crate::support::{TestSchema, server};

const DEADLINE: Duration = Duration::from_secs(240);

fn queue() -> QueueName {
    QueueName::of("orders", "orders")
}

/// A letter of each sequence.
fn letters(offset: u64) -> Vec<HandOff> {
    let letter = |sequence: &str| {
        let message = Message::new(format!("{sequence}-{offset}"), "orders", Position::new(0, offset));
        let mut letter = Letter::new(queue(), sequence.into(), message.into(), Timestamp::now());
        letter.state = LetterState::Dead;
        HandOff { letter, placement: Placement::Open, grant: None }
    };
    vec![letter("a"), letter("b")]
}

async fn hand_off(store: &PostgresStore, offset: u64) -> Result<Vec<Placed>> {
    store.hand_off(&queue(), &Limits::NONE, letters(offset)).await?.into_iter().collect()
}

/// The DSN with a name for its sessions, and this name.
fn named(test: &TestSchema) -> (String, String) {
    let (name, between) = (format!("{}_caller", test.name), if test.dsn.contains('?') { '&' } else { '?' });
    (format!("{}{between}application_name={name}", test.dsn), name)
}

/// Waits until a session of this name waits for a lock.
async fn waits_for_a_lock(observer: &Client, name: &str) {
    let waits = "SELECT 1 FROM pg_stat_activity WHERE application_name = $1 AND wait_event_type = 'Lock'";
    let waiting = async {
        while observer.query(waits, &[&name]).await.unwrap().is_empty() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(DEADLINE, waiting).await.expect("the call waits for the other session");
}

/// A clock that counts how often it is read. A call reads it once in each transaction.
#[derive(Default)]
struct CountingClock {
    clock: ManualClock,
    reads: AtomicU64,
}

impl Clock for CountingClock {
    fn now(&self) -> Timestamp {
        self.reads.fetch_add(1, Ordering::SeqCst);
        self.clock.now()
    }
}

#[tokio::test]
async fn a_statement_that_waits_for_too_long_is_cancelled_and_changes_nothing() {
    // I1
    let Some(dsn) = server() else { return };
    let test = TestSchema::new(dsn);
    drop(test.open(None).await);
    let options = PostgresStoreOptions { statement_timeout: Duration::from_secs(1), ..test.options(None) };
    let store = PostgresStore::connect(&test.dsn, options).await.unwrap();
    hand_off(&store, 0).await.unwrap();
    let client = test.client().await;
    client.batch_execute("BEGIN; LOCK TABLE letters IN ACCESS EXCLUSIVE MODE").await.unwrap();
    let cancelled = hand_off(&store, 1).await.unwrap_err();
    assert_eq!((cancelled.kind(), cancelled.certainty()), (ErrorKind::Unavailable, Certainty::NotDone));
    assert!(cancelled.context().contains("statement_timeout"), "{cancelled}");
    client.batch_execute("ROLLBACK").await.unwrap();
    assert_eq!(store.counts(&queue()).await.unwrap().open(), 2);
    assert_eq!(hand_off(&store, 1).await.unwrap(), [Placed::Appended; 2]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_in_a_deadlock_is_rolled_back_and_made_again() {
    // I1, I8
    let Some(dsn) = server() else { return };
    let test = TestSchema::new(dsn);
    // The store notices it, some time after the other session has begun to wait, and that one does not.
    let (named, name) = named(&test);
    let named = format!("{named}&options=-c%20deadlock_timeout%3D5s");
    let store = PostgresStore::connect(&named, test.options(None)).await.unwrap();
    hand_off(&store, 0).await.unwrap();
    let (client, observer) = (test.client().await, test.client().await);
    client.batch_execute("SET deadlock_timeout = '10min'").await.unwrap();
    let rows = client.query("SELECT sid FROM sequences ORDER BY hash", &[]).await.unwrap();
    let [first, last]: [i64; 2] = [rows[0].get(0), rows[1].get(0)];
    let lock = "SELECT 1 FROM sequences WHERE sid = $1 FOR UPDATE";
    client.batch_execute("BEGIN").await.unwrap();
    client.query(lock, &[&last]).await.unwrap();

    let of_task = store.clone();
    let calling = tokio::spawn(async move { hand_off(&of_task, 1).await });
    waits_for_a_lock(&observer, &name).await;
    // The call holds the first row: this one is given only when it is rolled back.
    let locked = tokio::time::timeout(DEADLINE, client.query(lock, &[&first])).await;
    locked.expect("the call gives way").unwrap();
    assert!(!calling.is_finished(), "it is made again");
    client.batch_execute("COMMIT").await.unwrap();
    let placed = tokio::time::timeout(DEADLINE, calling).await.expect("the call ends").unwrap();
    assert_eq!(placed.unwrap(), [Placed::Appended; 2]);
    assert_eq!(store.counts(&queue()).await.unwrap().open(), 4);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_that_cannot_be_serialized_is_rolled_back_and_made_again() {
    // I11
    let Some(dsn) = server() else { return };
    let test = TestSchema::new(dsn);
    let (named, name) = named(&test);
    let clock = Arc::new(CountingClock::default());
    let store = PostgresStore::connect(&named, test.options(Some(clock.clone()))).await.unwrap();
    hand_off(&store, 0).await.unwrap();
    let valid_for = Duration::from_secs(600);
    let request = PlanRequest {
        action: Action::Evict,
        selection: Selection::Letters(letters(0).into_iter().map(|item| (queue(), item.letter.id)).collect()),
        valid_for,
        max_letters: 10,
    };
    let by = Actor::new("ada", "test", "why");
    let old = store.freeze(&request, &by).await.unwrap();
    // The next freeze deletes it.
    clock.clock.advance(valid_for + Plan::RETENTION);

    let (client, observer) = (test.client().await, test.client().await);
    client.batch_execute("BEGIN; LOCK TABLE plans IN ACCESS EXCLUSIVE MODE").await.unwrap();
    let before = clock.reads.load(Ordering::SeqCst);
    let of_task = store.clone();
    let calling = tokio::spawn(async move { of_task.freeze(&request, &by).await });
    // Its transaction has its snapshot before it asks for the lock. What another one then deletes, it still sees, and may not delete.
    waits_for_a_lock(&observer, &name).await;
    assert_eq!(clock.reads.load(Ordering::SeqCst) - before, 1);
    client.batch_execute("DELETE FROM plans; COMMIT").await.unwrap();
    let plan = tokio::time::timeout(DEADLINE, calling).await.expect("the call ends").unwrap().unwrap();
    assert_eq!(clock.reads.load(Ordering::SeqCst) - before, 2, "the first transaction failed");
    assert_eq!(plan.letters, 2);
    let kept = client.query("SELECT plan FROM plans", &[]).await.unwrap();
    let kept: Vec<i64> = kept.iter().map(|row| row.get(0)).collect();
    assert_eq!(kept, [i64::try_from(plan.id.0).unwrap()]);
    assert_ne!(plan.id, old.id);
}

#[tokio::test]
async fn searches_that_wait_leave_connections_to_other_calls() {
    let Some(dsn) = server() else { return };
    let test = TestSchema::new(dsn);
    let (named, name) = named(&test);
    let store = PostgresStore::connect(&named, test.options(None)).await.unwrap();
    hand_off(&store, 0).await.unwrap();
    let (client, observer) = (test.client().await, test.client().await);
    client.batch_execute("BEGIN; LOCK TABLE payloads IN ACCESS EXCLUSIVE MODE").await.unwrap();
    // Twice as many as there are connections, all asked before the question below.
    let searches: Vec<_> = (0..8)
        .map(|_| {
            let store = store.clone();
            tokio::spawn(async move {
                let query = Query::parse("payload./a:1").unwrap();
                store.find(&query, None, 10).await
            })
        })
        .collect();
    waits_for_a_lock(&observer, &name).await;
    assert_eq!(store.queues().await.unwrap().len(), 1, "a connection is free");
    assert!(searches.iter().all(|search| !search.is_finished()), "all of them wait");
    client.batch_execute("ROLLBACK").await.unwrap();
    for search in searches {
        let found = tokio::time::timeout(DEADLINE, search).await.expect("it ends").unwrap();
        assert!(found.unwrap().letters.is_empty());
    }
}

#[tokio::test]
async fn lists_of_groups_that_wait_leave_connections_to_other_calls() {
    let Some(dsn) = server() else { return };
    let test = TestSchema::new(dsn);
    let (named, name) = named(&test);
    let store = PostgresStore::connect(&named, test.options(None)).await.unwrap();
    hand_off(&store, 0).await.unwrap();
    let (client, observer) = (test.client().await, test.client().await);
    client.batch_execute("BEGIN; LOCK TABLE failure_groups IN ACCESS EXCLUSIVE MODE").await.unwrap();
    // Twice as many as there are connections, all asked before the question below.
    let lists: Vec<_> = (0..8)
        .map(|_| {
            let store = store.clone();
            tokio::spawn(async move { store.groups(&GroupsRequest::default()).await })
        })
        .collect();
    waits_for_a_lock(&observer, &name).await;
    assert_eq!(store.queues().await.unwrap().len(), 1, "a connection is free");
    assert!(lists.iter().all(|list| !list.is_finished()), "all of them wait");
    client.batch_execute("ROLLBACK").await.unwrap();
    for list in lists {
        tokio::time::timeout(DEADLINE, list).await.expect("it ends").unwrap().unwrap();
    }
}

#[tokio::test]
async fn values_are_read_while_other_calls_use_all_connections() {
    let Some(dsn) = server() else { return };
    let test = TestSchema::new(dsn);
    let (named, name) = named(&test);
    let options = test.options(None);
    let most = options.max_connections;
    let store = PostgresStore::connect(&named, options).await.unwrap();
    hand_off(&store, 0).await.unwrap();
    let (client, observer) = (test.client().await, test.client().await);
    client.batch_execute("BEGIN; LOCK TABLE counts IN ACCESS EXCLUSIVE MODE").await.unwrap();
    let calls: Vec<_> = (0..2 * most)
        .map(|_| {
            let store = store.clone();
            tokio::spawn(async move { store.counts(&queue()).await })
        })
        .collect();
    let sessions = "SELECT count(*), count(*) FILTER (WHERE wait_event_type = 'Lock') FROM pg_stat_activity
        WHERE application_name = $1";
    let sessions = async || {
        let row = observer.query_one(sessions, &[&name]).await.unwrap();
        (row.get::<_, i64>(0), row.get::<_, i64>(1))
    };
    let most = i64::try_from(most).unwrap();
    let held = async {
        while sessions().await.1 != most {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(DEADLINE, held).await.expect("all connections are in use");
    let (before, _) = sessions().await;
    for _ in 0..3 {
        // What the readiness check of a server asks for.
        assert!(store.incarnations(&ConsumerName::from("")).await.unwrap().0.is_empty());
    }
    assert!(calls.iter().all(|call| !call.is_finished()), "all of them wait");
    assert_eq!(sessions().await.0, before + 1, "one connection is kept for values");
    client.batch_execute("ROLLBACK").await.unwrap();
    for call in calls {
        let counts = tokio::time::timeout(DEADLINE, call).await.expect("it ends").unwrap().unwrap();
        assert_eq!(counts.open(), 2);
    }
}
