//! Commands that end large operations, beside other calls.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use lazaret_core::query::Query;
use lazaret_core::store::{
    Action, ErrorKind, HandOff, LetterStore, Limits, OperationState, Operations, Placement, PlanRequest,
    Selection,
};
use lazaret_core::{Letter, LetterState, Message, Position, QueueName, Timestamp};
use lazaret_testkit::ManualClock;
use tempfile::TempDir;

use super::*;
use crate::{Durability, Options};

/// Three pages.
const LETTERS: usize = 2 * PAGE + 10;

fn queue() -> QueueName {
    QueueName::of("orders", "orders")
}

fn ada() -> Actor {
    Actor::new("ada", "cli", "the service is back")
}

fn bob() -> Actor {
    Actor::new("bob", "cli", "not now")
}

fn open(folder: &TempDir, clock: &ManualClock) -> SqliteStore {
    let options =
        Options { clock: Arc::new(clock.clone()), durability: Durability::Normal, ..Options::default() };
    SqliteStore::open(folder.path().join("lazaret.db"), options).unwrap()
}

async fn add(store: &SqliteStore, messages: Vec<String>) {
    let item = |message: String| {
        let message = Message::new(message, "orders", Position::new(0, 0)).with_payload("{}".to_owned());
        let sequence = message.id.as_str().into();
        let mut letter = Letter::new(queue(), sequence, message.into(), Timestamp::UNIX_EPOCH);
        letter.state = LetterState::Dead;
        HandOff { letter, placement: Placement::Open, grant: None }
    };
    let items = messages.into_iter().map(item).collect();
    for placed in store.hand_off(&queue(), &Limits::NONE, items).await.unwrap() {
        placed.unwrap();
    }
}

/// A store with an operation of three pages, all of whose sequences are reserved for it.
async fn started(needs_approval: bool) -> (TempDir, ManualClock, SqliteStore, OperationId) {
    let (folder, clock) = (tempfile::tempdir().unwrap(), ManualClock::new());
    let store = open(&folder, &clock);
    for first in (0..LETTERS).step_by(500) {
        let last = LETTERS.min(first + 500);
        add(&store, (first..last).map(|number| format!("m{number}")).collect()).await;
    }
    let request = PlanRequest {
        action: Action::Retry,
        selection: Selection::Query(Query::everything()),
        valid_for: Duration::from_secs(3600),
        max_letters: 1_000_000,
    };
    let plan = store.freeze(&request, &ada()).await.unwrap();
    let rollout = RolloutPolicy { needs_approval, ..RolloutPolicy::unlimited() };
    let id = store.begin(plan.id, &rollout, &ada()).await.unwrap().id;
    let reserve = move |step: &mut Step<'_>| -> Work<()> {
        step.connection.execute("UPDATE sequences SET reserved = ?1", [bound(id.0)])?;
        Ok(())
    };
    store.write("test", reserve).await.unwrap();
    (folder, clock, store, id)
}

/// The number of letters with an outcome, and of reserved sequences.
async fn rows(store: &SqliteStore) -> (usize, usize) {
    let question = |view: &crate::readers::View<'_>| -> Work<(i64, i64)> {
        let sql = "SELECT (SELECT count(*) FROM items WHERE outcome IS NOT NULL),
                          (SELECT count(*) FROM sequences WHERE reserved IS NOT NULL)";
        Ok(view.connection.query_row(sql, [], |row| Ok((row.get(0)?, row.get(1)?)))?)
    };
    let (outcomes, reserved) = store.ask("count", question).await.unwrap();
    (usize::try_from(outcomes).unwrap(), usize::try_from(reserved).unwrap())
}

#[tokio::test]
async fn a_cancellation_gives_way_to_other_writes() {
    let (_folder, _clock, store, id) = started(false).await;
    let by = bob();
    let mut cancel = store.command(id, Command::Cancel, &by);
    let (mut partly_free, mut partly_skipped) = (0, 0);
    for late in 0.. {
        let polled = poll_fn(|context| Poll::Ready(Pin::new(&mut cancel).poll(context))).await;
        if let Poll::Ready(cancelled) = polled {
            let cancelled = cancelled.unwrap();
            assert_eq!((cancelled.state, cancelled.skipped), (OperationState::Cancelled, LETTERS as u64));
            break;
        }
        add(&store, vec![format!("late-{late}")]).await;
        let (skipped, reserved) = rows(&store).await;
        partly_free += usize::from(reserved > 0 && reserved < LETTERS);
        partly_skipped += usize::from(skipped > 0 && skipped < LETTERS);
    }
    assert!(partly_free > 0 && partly_skipped > 0, "no write was served before all of it was done");
    assert_eq!(rows(&store).await, (LETTERS, 0));
}

#[tokio::test]
async fn a_step_of_an_end_is_one_page() {
    let (_folder, _clock, store, id) = started(false).await;
    let by = bob();
    store.write(COMMAND, move |step| apply(step, id, Command::Cancel, &by)).await.unwrap();
    let pages = [
        (0, LETTERS - PAGE, false),
        (0, LETTERS - 2 * PAGE, false),
        (PAGE, 0, false),
        (2 * PAGE, 0, false),
        (LETTERS, 0, true),
    ];
    for (skipped, reserved, is_last) in pages {
        let (operation, ended) = store.write(COMMAND, move |step| finish_page(step, id)).await.unwrap();
        assert_eq!((rows(&store).await, ended), ((skipped, reserved), is_last));
        assert_eq!((operation.state, operation.skipped), (OperationState::Cancelled, skipped as u64));
        let again = store.command(id, Command::Cancel, &ada()).await.unwrap_err();
        assert_eq!(again.kind(), ErrorKind::Conflict, "it is over for everybody");
    }
}

#[tokio::test]
async fn after_a_crash_the_polls_go_on_with_an_end() {
    for (command, state) in
        [(Command::Cancel, OperationState::Cancelled), (Command::Reject, OperationState::Rejected)]
    {
        let (folder, clock, store, id) = started(command == Command::Reject).await;
        let by = bob();
        store.write(COMMAND, move |step| apply(step, id, command, &by)).await.unwrap();
        store.close().await.unwrap();
        let store = open(&folder, &clock);
        assert_eq!(store.operation(id).await.unwrap().unwrap().state, state);
        assert_eq!(rows(&store).await, (0, LETTERS), "what the crash left");
        let mut before = (0, LETTERS);
        loop {
            let work = store.poll_work(&queue(), "worker", Duration::from_secs(60), 10).await.unwrap();
            assert!(work.items.is_empty(), "no letter is taken");
            let after = rows(&store).await;
            assert!(
                after.0 - before.0 <= PAGE && before.1 - after.1 <= PAGE,
                "a poll is one step: {after:?}"
            );
            before = after;
            if work.again_at.is_none() {
                break;
            }
        }
        assert_eq!(before, (LETTERS, 0));
        let ended = store.operation(id).await.unwrap().unwrap();
        assert_eq!((ended.state, ended.skipped), (state, LETTERS as u64));
        assert_eq!(store.command(id, command, &bob()).await.unwrap_err().kind(), ErrorKind::Conflict);
    }
}
