//! Groups that the redo log holds share a transaction of the database. It has an end, however busy the store is.

use std::path::Path;
use std::time::Duration;

use lazaret_core::store::{HandOff, LetterStore, Limits, Placement};
use lazaret_core::{Letter, LetterState, Message, Position, QueueName};
use lazaret_store_sqlite::{Options, SqliteStore};
use rusqlite::Connection;

/// How long a store waits for another one. Shorter than the time without calls after which one commits.
const DEADLINE: Duration = Duration::from_secs(240);

fn queue() -> QueueName {
    QueueName::of("orders", "orders")
}

/// A store that puts all in the redo log, and does not commit for hours by itself.
fn open(path: &Path) -> SqliteStore {
    let options = Options {
        redo_from: 0,
        redo_time: Duration::from_secs(24 * 3600),
        busy_timeout: DEADLINE,
        ..Options::default()
    };
    SqliteStore::open(path, options).unwrap()
}

/// Hands off these letters in one call.
async fn put(store: &SqliteStore, numbers: std::ops::Range<u64>) {
    let items = numbers.map(|number| {
        let message = Message::new(format!("m{number}"), "orders", Position::new(0, number));
        let sequence = format!("order-{number}").as_str().into();
        let mut letter = Letter::new(queue(), sequence, message.into(), lazaret_testkit::clock::test_epoch());
        letter.state = LetterState::Dead;
        HandOff { letter, placement: Placement::Open, grant: None }
    });
    store.hand_off(&queue(), &Limits::NONE, items.collect()).await.unwrap();
}

#[tokio::test]
async fn a_large_transaction_is_committed_without_a_pause_of_the_calls() {
    // I7
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("lazaret.db");
    let store = open(&path);
    let other = Connection::open(&path).unwrap();
    let committed =
        || other.query_row("SELECT count(*) FROM letters", [], |row| row.get::<_, i64>(0)).unwrap();
    put(&store, 0..100).await;
    assert_eq!(committed(), 0, "they are in the redo log");
    for call in 1..60 {
        put(&store, call * 100..(call + 1) * 100).await;
    }
    // The commit follows the answer that made it large, and comes before the next call.
    assert!(committed() >= 4000, "{} letters are committed", committed());
}

#[tokio::test]
async fn another_store_of_the_file_gets_its_turn() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("lazaret.db");
    let (first, second) = (open(&path), open(&path));
    put(&first, 0..1).await;
    // The first one goes on, and notices with its next call that the second one waits.
    let busy = tokio::spawn(async move {
        for number in 1.. {
            put(&first, number..number + 1).await;
        }
    });
    put(&second, 1_000_000..1_000_001).await;
    busy.abort();
}
