//! The store contract, kept through the HTTP API.
//!
//! The conformance suite asks a store. Here that store is the API: whatever people can ask over HTTP goes over HTTP, with
//! tokens, cursors, problems and idempotency keys, and comes back as the core's own types. Every answer is held against the
//! OpenAPI document, and against what the store itself holds. What only the engine asks goes to the store directly.

mod beyond;
mod client;
mod contract;
mod letters;
mod operations;
mod pages;
mod store;
mod triage;
mod words;

use std::sync::Arc;

use lazaret_core::Clock;
use lazaret_memory::MemoryStore;
use lazaret_store_sqlite::{Durability, Options, SqliteStore};
use lazaret_testkit::store_test_suite;
use lazaret_testkit::suite::Exception;

use store::ThroughApi;

/// What the API has no words for, by design. These cases are run as well, and have to fail.
const EXCEPTIONS: &[Exception] = &[
    Exception {
        case: "letters_that_are_not_there_are_left_out",
        why: "letters are named by their ids alone, so that nobody can name one in a queue where it is not",
    },
    Exception {
        case: "an_impossible_rollout_is_refused",
        why: "a rate of 0 is how one says as fast as it goes, so that it does make sense",
    },
];

/// The store in memory, over real sockets.
async fn memory(clock: Arc<dyn Clock>) -> ThroughApi<MemoryStore> {
    ThroughApi::by_socket(MemoryStore::new(clock.clone()), clock).await
}

/// The embedded store in a file of its own, straight through the router. The folder is removed at once: the store holds its
/// files open.
async fn sqlite(clock: Arc<dyn Clock>) -> ThroughApi<SqliteStore> {
    let folder = tempfile::tempdir().unwrap();
    let options = Options { clock: clock.clone(), durability: Durability::Normal, ..Options::default() };
    let store = SqliteStore::open(folder.path().join("lazaret.db"), options).unwrap();
    ThroughApi::in_process(store, clock)
}

store_test_suite!(memory_by_socket, io, super::memory, except super::EXCEPTIONS);
store_test_suite!(sqlite_by_router, io, super::sqlite, except super::EXCEPTIONS);

/// Random calls, as every store has to bear them.
#[test]
fn the_api_behaves_like_the_model() {
    lazaret_testkit::model::check(8, |clock| async {
        ThroughApi::in_process(MemoryStore::new(clock.clone()), clock)
    });
}

#[test]
fn nothing_is_left_out_but_what_is_named() {
    assert_eq!(EXCEPTIONS.len(), 2);
    assert_eq!(memory_by_socket::CASES, sqlite_by_router::CASES);
    for exception in EXCEPTIONS {
        let named = memory_by_socket::CASES.iter().filter(|case| **case == exception.case).count();
        assert_eq!(named, 1, "{} is the name of a case: {}", exception.case, exception.why);
    }
    assert!(
        memory_by_socket::CASES.len() > 300,
        "{} cases: is that the whole suite?",
        memory_by_socket::CASES.len()
    );
}
