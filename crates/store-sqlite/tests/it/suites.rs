//! The SQLite store passes the conformance suites, and behaves like the model.

use std::sync::Arc;
use std::time::Duration;

use lazaret_core::Clock;
use lazaret_store_sqlite::{Durability, Options, SqliteStore};
use lazaret_testkit::suite::letters::{self, Fixture};
use lazaret_testkit::suite::operations;
use lazaret_testkit::{
    checkpoints_test_suite, dedupe_test_suite, locks_test_suite, outbox_test_suite, store_test_suite,
};

/// A store in a file of its own. The folder is removed at once: the store keeps its files open, and nothing is left
/// behind.
async fn store(clock: Arc<dyn Clock>) -> SqliteStore {
    open(Options { clock, ..Options::default() })
}

/// A store that writes every hand-off to the redo log first, and keeps it there until the next query.
async fn recording(clock: Arc<dyn Clock>) -> SqliteStore {
    open(Options { clock, redo_from: 0, redo_time: Duration::from_secs(3600), ..Options::default() })
}

fn open(options: Options) -> SqliteStore {
    let folder = tempfile::tempdir().unwrap();
    let options = Options { durability: Durability::Normal, ..options };
    SqliteStore::open(folder.path().join("lazaret.db"), options).unwrap()
}

store_test_suite!(letters_of, io, super::store);
store_test_suite!(letters_by_redo_log, io, super::recording);
checkpoints_test_suite!(checkpoints, io, super::store);
locks_test_suite!(locks, io, super::store);
dedupe_test_suite!(dedupe, io, super::store);
outbox_test_suite!(outbox, io, super::store);

/// The races again, with callers on real threads.
mod on_threads {
    use super::*;

    async fn fixture() -> Fixture<SqliteStore> {
        Fixture::new(store).await
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn appending_and_closing_exclude_each_other() {
        letters::appending_and_closing_exclude_each_other(fixture().await).await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn appending_to_the_redo_log_and_closing_exclude_each_other() {
        letters::appending_and_closing_exclude_each_other(Fixture::new(recording).await).await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn many_workers_never_share_a_sequence() {
        letters::many_workers_never_share_a_sequence(fixture().await).await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn many_workers_never_share_a_letter() {
        operations::many_workers_never_share_a_letter(fixture().await).await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn many_workers_that_continue_never_share_a_letter() {
        operations::many_workers_that_continue_never_share_a_letter(fixture().await).await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn two_appends_to_one_new_sequence_are_both_stored() {
        for _ in 0..10 {
            letters::x14_two_appends_to_one_new_sequence_are_both_stored(fixture().await).await;
        }
    }
}

#[test]
fn the_store_behaves_like_the_model() {
    lazaret_testkit::model::check(48, store);
}

#[test]
fn the_store_with_a_redo_log_behaves_like_the_model() {
    lazaret_testkit::model::check(48, recording);
}

#[test]
fn the_store_counts_operations_like_the_model() {
    // I11
    lazaret_testkit::model::check_operations(48, store);
}

#[test]
fn the_store_with_a_redo_log_counts_operations_like_the_model() {
    // I11
    lazaret_testkit::model::check_operations(48, recording);
}
