//! Plans that are written in pages, beside other calls.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::Poll;

use lazaret_core::query::Query;
use lazaret_core::store::{
    Action, Actor, HandOff, LetterStore, Limits, Operations, Placement, PlanRequest, RolloutPolicy,
    Selection, plan_hash,
};
use lazaret_core::{Letter, LetterState, Message, Position, QueueName, Timestamp};
use lazaret_testkit::ManualClock;
use tempfile::TempDir;

use super::*;
use crate::operations::freezing::Decision;
use crate::{Durability, Options};

/// Three pages.
const LETTERS: usize = 2 * PAGE + 10;
const VALID_FOR: Duration = Duration::from_secs(3600);

fn queue() -> QueueName {
    QueueName::of("orders", "orders")
}

fn ada() -> Actor {
    Actor::new("ada", "cli", "the service is back")
}

fn request() -> PlanRequest {
    let selection = Selection::Query(Query::everything());
    PlanRequest { action: Action::Retry, selection, valid_for: VALID_FOR, max_letters: 1_000_000 }
}

fn open(folder: &TempDir, clock: &ManualClock) -> SqliteStore {
    let options =
        Options { clock: Arc::new(clock.clone()), durability: Durability::Normal, ..Options::default() };
    SqliteStore::open(folder.path().join("lazaret.db"), options).unwrap()
}

async fn add(store: &SqliteStore, messages: impl Iterator<Item = String>) {
    let items: Vec<HandOff> = messages
        .map(|message| {
            let message = Message::new(message, "orders", Position::new(0, 0)).with_payload("{}".to_owned());
            let sequence = message.id.as_str().into();
            let mut letter = Letter::new(queue(), sequence, message.into(), Timestamp::UNIX_EPOCH);
            letter.state = LetterState::Dead;
            HandOff { letter, placement: Placement::Open, grant: None }
        })
        .collect();
    for placed in store.hand_off(&queue(), &Limits::NONE, items).await.unwrap() {
        placed.unwrap();
    }
}

async fn add_one(store: &SqliteStore, message: &str) {
    add(store, std::iter::once(message.to_owned())).await;
}

/// A store with three pages of letters.
async fn filled() -> (TempDir, ManualClock, SqliteStore) {
    let (folder, clock) = (tempfile::tempdir().unwrap(), ManualClock::new());
    let store = open(&folder, &clock);
    let mut letters = (0..LETTERS).map(|number| format!("m{number}"));
    loop {
        let some: Vec<String> = letters.by_ref().take(500).collect();
        if some.is_empty() {
            return (folder, clock, store);
        }
        add(&store, some.into_iter()).await;
    }
}

async fn draft(store: &SqliteStore) -> Draft {
    let selected = store.select(&request()).await.unwrap();
    match store.decide(&request(), &ada(), selected, 0).await.unwrap() {
        Decision::Frozen(frozen) => Draft::new(frozen),
        Decision::Changed(..) => panic!("nothing has changed"),
    }
}

/// The number of plans and of their letters in the file, visible or not.
async fn rows(store: &SqliteStore) -> (usize, usize) {
    let question = |view: &crate::readers::View<'_>| -> Work<(i64, i64)> {
        let sql = "SELECT (SELECT count(*) FROM plans), (SELECT count(*) FROM items)";
        Ok(view.connection.query_row(sql, [], |row| Ok((row.get::<_, i64>(0)?, row.get::<_, i64>(1)?)))?)
    };
    let (plans, items) = store.ask("count", question).await.unwrap();
    (usize::try_from(plans).unwrap(), usize::try_from(items).unwrap())
}

#[tokio::test]
async fn other_writes_are_served_between_the_pages_of_a_plan() {
    let (_folder, _clock, store) = filled().await;
    let mut draft = draft(&store).await;
    for page in 1..=2 {
        assert_eq!(draft.write_page(&store).await.unwrap(), None);
        assert_eq!(rows(&store).await, (1, page * PAGE), "one step writes one page");
        // What others do now neither waits for the plan nor sees it.
        add_one(&store, &format!("late-{page}")).await;
        let id = draft.id.unwrap();
        assert_eq!(store.plan(id).await.unwrap(), None);
        assert!(store.drafts(None, 10).await.unwrap().is_empty());
        assert!(store.outcomes(id, 0, 10).await.unwrap().is_empty());
        let begun = store.begin(id, &RolloutPolicy::unlimited(), &ada()).await.unwrap_err();
        assert_eq!(begun.kind(), ErrorKind::NotFound);
    }
    let plan = draft.write_page(&store).await.unwrap().expect("it was the last page");
    assert_eq!(plan.letters, LETTERS as u64, "as the letters were when it was decided");
    assert_eq!(store.plan(plan.id).await.unwrap(), Some(plan.clone()));
    assert_eq!(store.drafts(None, 10).await.unwrap(), std::slice::from_ref(&plan));
    let items = store.plan_items(plan.id, 0, 2 * LETTERS).await.unwrap();
    let ordinals: Vec<u64> = items.iter().map(|item| item.ordinal).collect();
    assert_eq!(ordinals, (0..LETTERS as u64).collect::<Vec<_>>());
    let hash = plan_hash(plan.action, items.iter().map(|item| (item.letter, item.digest.unwrap())));
    assert_eq!(plan.hash, hash);
}

#[tokio::test]
async fn a_freeze_gives_way_to_other_writes() {
    let (_folder, _clock, store) = filled().await;
    let (request, by) = (request(), ada());
    let mut freeze = store.freeze(&request, &by);
    let mut partly_written = 0;
    for late in 0.. {
        let polled = poll_fn(|context| Poll::Ready(Pin::new(&mut freeze).poll(context))).await;
        if let Poll::Ready(plan) = polled {
            let plan = plan.unwrap();
            assert!(plan.letters >= LETTERS as u64);
            break;
        }
        add_one(&store, &format!("late-{late}")).await;
        let (_, items) = rows(&store).await;
        partly_written += usize::from(items > 0 && items < LETTERS);
    }
    assert!(partly_written > 0, "no write was served before the plan was complete");
}

#[tokio::test]
async fn a_crash_in_the_middle_of_a_plan_leaves_nothing() {
    let (folder, clock, store) = filled().await;
    let mut unfinished = draft(&store).await;
    assert_eq!(unfinished.write_page(&store).await.unwrap(), None);
    let id = unfinished.id.unwrap();
    drop(unfinished);
    store.close().await.unwrap();
    let store = open(&folder, &clock);
    assert_eq!(rows(&store).await, (1, PAGE), "what the crash left");
    assert_eq!(store.plan(id).await.unwrap(), None);
    assert!(store.drafts(None, 10).await.unwrap().is_empty());
    clock.advance(ABANDONED - Duration::from_secs(1));
    delete_old(&store).await.unwrap();
    assert_eq!(rows(&store).await.0, 1, "its author may still be at work");
    clock.advance(Duration::from_secs(1));
    let next = store.freeze(&request(), &ada()).await.unwrap();
    assert_eq!(rows(&store).await, (1, LETTERS), "only the new plan is left");
    assert!(next.id > id);
}

#[tokio::test]
async fn a_plan_that_was_given_up_is_not_completed_later() {
    let (_folder, clock, store) = filled().await;
    let mut slow = draft(&store).await;
    assert_eq!(slow.write_page(&store).await.unwrap(), None);
    clock.advance(ABANDONED);
    delete_old(&store).await.unwrap();
    assert_eq!(rows(&store).await, (0, 0));
    let refused = slow.write_page(&store).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unavailable);
    assert_eq!(rows(&store).await, (0, 0), "the page was rolled back");
}

#[tokio::test]
async fn an_old_plan_is_deleted_in_pages() {
    let (_folder, clock, store) = filled().await;
    let plan = store.freeze(&request(), &ada()).await.unwrap();
    clock.advance(VALID_FOR + Plan::RETENTION);
    let mut old = store.ask(FREEZE, |view| old_plans(view.connection, view.now)).await.unwrap();
    for left in [LETTERS - PAGE, LETTERS - 2 * PAGE] {
        old = store.write(FREEZE, move |step| delete_page(step.connection, old, step.now)).await.unwrap();
        assert_eq!((rows(&store).await, old.len()), ((1, left), 1));
        add_one(&store, &format!("late-{left}")).await;
        assert_eq!(store.plan(plan.id).await.unwrap(), None, "nobody sees a part of it");
        assert!(store.outcomes(plan.id, 0, 10).await.unwrap().is_empty());
    }
    // A crash in between: the next freeze goes on.
    delete_old(&store).await.unwrap();
    assert_eq!(rows(&store).await, (0, 0));
}
