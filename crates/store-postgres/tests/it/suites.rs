//! The PostgreSQL store passes the conformance suites, and behaves like the model.

use std::sync::Arc;

use lazaret_core::Clock;
use lazaret_sealing::{EncryptionKey, SealedStore};
use lazaret_testkit::suite::letters::{self, Fixture};
use lazaret_testkit::suite::{WITHOUT_CONTENT, operations};
use lazaret_testkit::{
    checkpoints_test_suite, dedupe_test_suite, locks_test_suite, outbox_test_suite, store_test_suite,
};

use crate::support::{TestStore, server_is_there, store};

/// A store whose content is encrypted.
async fn sealed(clock: Arc<dyn Clock>) -> SealedStore<TestStore> {
    let inside = Arc::new(store(clock.clone()).await);
    SealedStore::open(inside, vec![EncryptionKey::new(&[7; 32])]).await.unwrap().with_clock(clock)
}

store_test_suite!(letters_of, io, super::store, if super::server_is_there);
store_test_suite!(sealed_letters, io, sealed, except WITHOUT_CONTENT, if server_is_there);
checkpoints_test_suite!(checkpoints, io, super::store, if super::server_is_there);
locks_test_suite!(locks, io, super::store, if super::server_is_there);
dedupe_test_suite!(dedupe, io, super::store, if super::server_is_there);
outbox_test_suite!(outbox, io, super::store, if super::server_is_there);

/// The races again, with callers on real threads.
mod on_threads {
    use super::*;

    async fn fixture() -> Option<Fixture<TestStore>> {
        if server_is_there() { Some(Fixture::new(store).await) } else { None }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn appending_and_closing_exclude_each_other() {
        let Some(fixture) = fixture().await else { return };
        letters::appending_and_closing_exclude_each_other(fixture).await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn many_workers_never_share_a_sequence() {
        let Some(fixture) = fixture().await else { return };
        letters::many_workers_never_share_a_sequence(fixture).await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn many_workers_never_share_a_letter() {
        let Some(fixture) = fixture().await else { return };
        operations::many_workers_never_share_a_letter(fixture).await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn many_workers_that_continue_never_share_a_letter() {
        let Some(fixture) = fixture().await else { return };
        operations::many_workers_that_continue_never_share_a_letter(fixture).await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn two_appends_to_one_new_sequence_are_both_stored() {
        for _ in 0..3 {
            let Some(fixture) = fixture().await else { return };
            letters::x14_two_appends_to_one_new_sequence_are_both_stored(fixture).await;
        }
    }
}

#[test]
fn the_store_behaves_like_the_model() {
    if server_is_there() {
        lazaret_testkit::model::check(12, store);
    }
}

#[test]
fn the_store_counts_operations_like_the_model() {
    // I11
    if server_is_there() {
        lazaret_testkit::model::check_operations(12, store);
    }
}
