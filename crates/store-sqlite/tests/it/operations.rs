//! Properties of operations in a file: they continue after a crash at any point, and
//! plans can be large.

use std::sync::Arc;
use std::time::Duration;

use lazaret_core::query::Query;
use lazaret_core::store::{
    Action, Actor, Audit, Command, HandOff, Item, LetterStore, Limits, Operation, OperationId,
    OperationState, Operations, Placement, PlanRequest, Requeue, RolloutPolicy, Selection, Settlement,
    WorkItem,
};
use lazaret_core::{Letter, LetterState, Message, Position, QueueName};
use lazaret_store_sqlite::{Durability, Options, SqliteStore};
use lazaret_testkit::ManualClock;
use tempfile::TempDir;

const LEASE: Duration = Duration::from_secs(30);

fn queue() -> QueueName {
    QueueName::of("orders", "orders")
}

fn ada() -> Actor {
    Actor::new("ada", "cli", "the service is back")
}

fn bob() -> Actor {
    Actor::new("bob", "cli", "looks right")
}

fn request(action: Action) -> PlanRequest {
    PlanRequest {
        action,
        selection: Selection::Query(Query::everything()),
        valid_for: Duration::from_secs(3600),
        max_letters: 1_000_000,
    }
}

/// A store that is closed and reopened before the given step, as after a crash there. Leases are lost with
/// their owners.
struct Scenario {
    folder: TempDir,
    clock: ManualClock,
    store: Option<SqliteStore>,
    step: usize,
    crashes_at: Option<usize>,
    /// The letters in flight; lost in a crash.
    items: Vec<WorkItem>,
}

impl Scenario {
    fn new(crashes_at: Option<usize>) -> Self {
        let (folder, clock) = (tempfile::tempdir().unwrap(), ManualClock::new());
        let mut scenario = Self { folder, clock, store: None, step: 0, crashes_at, items: Vec::new() };
        scenario.open();
        scenario
    }

    fn open(&mut self) {
        let options = Options {
            clock: Arc::new(self.clock.clone()),
            durability: Durability::Normal,
            ..Options::default()
        };
        self.store = Some(SqliteStore::open(self.folder.path().join("lazaret.db"), options).unwrap());
    }

    /// The store, for the next step.
    fn next(&mut self) -> &SqliteStore {
        self.step += 1;
        if self.crashes_at == Some(self.step) {
            self.store = None;
            self.items.clear();
            self.clock.advance(LEASE);
            self.open();
        }
        self.store.as_ref().unwrap()
    }

    async fn fill(&self) {
        for n in 0..40_u64 {
            let sequence = format!("s{}", n % 25);
            let message = Message::new(format!("m{n}"), "orders", Position::new(0, n));
            let now = lazaret_testkit::clock::test_epoch();
            let mut letter = Letter::new(queue(), sequence.as_str().into(), message.into(), now);
            letter.state = LetterState::Dead;
            let item = HandOff { letter, placement: Placement::Open, grant: None };
            let store = self.store.as_ref().unwrap();
            store.hand_off(&queue(), &Limits::NONE, vec![item]).await.unwrap().remove(0).unwrap();
        }
    }

    async fn operation(&self, id: OperationId) -> Operation {
        self.store.as_ref().unwrap().operation(id).await.unwrap().unwrap()
    }

    /// Polls letters and settles them one by one until the operation cannot continue by itself. `m3` and `m20` fail.
    async fn run(&mut self, id: OperationId) {
        loop {
            self.items = self.next().poll_work(&queue(), "worker", LEASE, 4).await.unwrap().items;
            while !self.items.is_empty() {
                let turn = self.items.remove(0);
                let (lease, head) = (turn.claim.lease, turn.claim.head);
                let before = self.step;
                let store = self.next().clone();
                if self.crashes_at == Some(before + 1) {
                    // It crashed with this letter in flight.
                    continue;
                }
                let fails = ["m3", "m20"].contains(&head.message.id.as_str());
                let settlement = if fails { failed(&head) } else { Settlement::Resolve(None) };
                store.settle(&lease, head.id, settlement).await.unwrap();
            }
            match self.operation(id).await.state {
                OperationState::Running | OperationState::Scheduled => {
                    self.clock.advance(Duration::from_secs(1));
                }
                _ => return,
            }
        }
    }
}

fn failed(letter: &Letter) -> Settlement {
    Settlement::Requeue(Box::new(Requeue {
        state: LetterState::Dead,
        due_at: None,
        replay_attempts: letter.replay_attempts + 1,
        ..Requeue::of(letter)
    }))
}

/// The end of a scenario: the counts, every letter with its outcome and its state, and the audit.
type End = (OperationState, [u64; 3], Vec<(Item, LetterState)>, Vec<String>);

async fn end(scenario: &Scenario, id: OperationId) -> End {
    let store = scenario.store.as_ref().unwrap();
    let operation = scenario.operation(id).await;
    let mut letters = Vec::new();
    for item in store.items(id, 0, 1000).await.unwrap() {
        let state = store.get(&queue(), item.letter).await.unwrap().unwrap().state;
        letters.push((item, state));
    }
    let audit = store.audit(0, 1000).await.unwrap();
    // After a crash, letters are resolved in another order.
    let (mut resolved, mut lines): (Vec<_>, Vec<_>) =
        audit.into_iter().partition(|line| line.action == "resolve");
    resolved.sort_by(|one, other| one.subject.cmp(&other.subject));
    lines.append(&mut resolved);
    let audit = lines.into_iter().map(|line| format!("{} {} {}", line.by.who, line.action, line.subject));
    let counts = [operation.ok, operation.failed_again, operation.skipped];
    assert_eq!(store.verify_audit().await.unwrap().unwrap().broken, None);
    (operation.state, counts, letters, audit.collect())
}

/// A replay with everything: approval, schedule, stages, rate, a stop, a resume.
async fn replay(crashes_at: Option<usize>) -> (End, usize) {
    let mut scenario = Scenario::new(crashes_at);
    scenario.fill().await;
    let plan = scenario.next().freeze(&request(Action::Retry), &ada()).await.unwrap();
    let rollout = RolloutPolicy {
        rate: Some(20.0),
        ramp: vec![1, 5, 9],
        stop_at: Some(0.05),
        start_at: Some(lazaret_testkit::clock::test_epoch() + Duration::from_secs(60)),
        needs_approval: true,
    };
    let id = scenario.next().begin(plan.id, &rollout, &ada()).await.unwrap().id;
    scenario.next().command(id, Command::Approve, &bob()).await.unwrap();
    loop {
        scenario.run(id).await;
        if scenario.operation(id).await.state != OperationState::Paused {
            break;
        }
        scenario.next().command(id, Command::Resume, &ada()).await.unwrap();
    }
    (end(&scenario, id).await, scenario.step)
}

#[tokio::test]
async fn an_operation_ends_the_same_wherever_the_process_crashes() {
    let (whole, steps) = replay(None).await;
    assert_eq!((whole.0, whole.1), (OperationState::Done, [37, 2, 1]));
    assert!(steps > 50, "{steps} steps");
    for crashes_at in 1..=steps {
        let (end, _) = replay(Some(crashes_at)).await;
        assert_eq!(end, whole, "the process crashed at step {crashes_at}");
    }
}

/// Acts, cancelled in the middle.
async fn acts(crashes_at: Option<usize>) -> (End, usize) {
    let mut scenario = Scenario::new(crashes_at);
    scenario.fill().await;
    let plan = scenario.next().freeze(&request(Action::Park), &ada()).await.unwrap();
    let id = scenario.next().begin(plan.id, &RolloutPolicy::unlimited(), &ada()).await.unwrap().id;
    for _ in 0..8 {
        scenario.next().poll_work(&queue(), "worker", LEASE, 4).await.unwrap();
    }
    scenario.next().command(id, Command::Cancel, &bob()).await.unwrap();
    scenario.next().poll_work(&queue(), "worker", LEASE, 4).await.unwrap();
    (end(&scenario, id).await, scenario.step)
}

#[tokio::test]
async fn acts_end_the_same_wherever_the_process_crashes() {
    let (whole, steps) = acts(None).await;
    assert_eq!((whole.0, whole.1), (OperationState::Cancelled, [32, 0, 8]));
    for crashes_at in 1..=steps {
        assert_eq!(acts(Some(crashes_at)).await.0, whole, "the process crashed at step {crashes_at}");
    }
}

/// Inserts many letters directly into the file: ten in each sequence.
fn fill_file(path: &std::path::Path, letters: i64) {
    let file = rusqlite::Connection::open(path).unwrap();
    let sql = "
        INSERT INTO queues (qid, name, consumer, idx, sequences) VALUES (1, 'orders/orders', 'orders', ?1 * 1048576, ?1 / 10);
        INSERT INTO counts (qid, state, n) VALUES (1, 1, ?1);
        WITH RECURSIVE n (n) AS (VALUES (0) UNION ALL SELECT n + 1 FROM n WHERE n + 1 < ?1 / 10)
        INSERT INTO sequences (sid, qid, name, count, head_idx, touched, revision)
        SELECT n + 1, 1, 's' || n, 10, n, 0, n + 1 FROM n;
        WITH RECURSIVE n (n) AS (VALUES (0) UNION ALL SELECT n + 1 FROM n WHERE n + 1 < ?1)
        INSERT INTO letters (lid, id, qid, sid, idx, state, attempts, crash_attempts, replay_attempts, poison,
            enqueued_at, touched_at, partition, position, stream, sequence, message, body)
        SELECT n + 1, randomblob(16), 1, 1 + n % (?1 / 10), n, 1, 0, 0, 0, 0, n, n, 0, n, 'orders',
            's' || (n % (?1 / 10)), 'm' || n, CAST(x'01' || '{\"diagnostics\":{\"a\":\"b\"}}' AS BLOB) FROM n;
        INSERT INTO payloads (lid, payload) SELECT lid, x'7b7d' FROM letters;";
    for statement in sql.split_inclusive(';') {
        file.execute(&statement.replace("?1", &letters.to_string()), []).unwrap();
    }
}

#[tokio::test]
async fn a_hundred_thousand_letters_are_frozen_polled_and_cancelled() {
    // I7
    const LETTERS: u64 = 100_000;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("lazaret.db");
    let options = || Options { durability: Durability::Normal, ..Options::default() };
    drop(SqliteStore::open(&path, options()).unwrap());
    fill_file(&path, LETTERS as i64);
    let store = SqliteStore::open(&path, options()).unwrap();
    let plan = store.freeze(&request(Action::Retry), &ada()).await.unwrap();
    assert_eq!((plan.letters, plan.sequences, plan.excluded.len()), (LETTERS, LETTERS / 10, 0));
    let page = store.plan_items(plan.id, 9, 2).await.unwrap();
    assert_eq!(page.iter().map(|item| item.sequence.as_str()).collect::<Vec<_>>(), ["s0", "s1"]);
    let id = store.begin(plan.id, &RolloutPolicy::unlimited(), &ada()).await.unwrap().id;
    let items = store.poll_work(&queue(), "worker", LEASE, 64).await.unwrap().items;
    assert_eq!(items.len(), 64);
    let again = store.poll_work(&queue(), "worker", LEASE, 64).await.unwrap().items;
    assert_eq!(again[0].claim.head.sequence.as_str(), "s64");
    let operation = store.command(id, Command::Cancel, &ada()).await.unwrap();
    assert_eq!(operation.skipped, LETTERS - 128);
}
