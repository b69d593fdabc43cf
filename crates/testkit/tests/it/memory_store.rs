//! The memory store keeps the contract.

use lazaret_memory::MemoryStore;
use lazaret_testkit::suite::letters::{self, Fixture};
use lazaret_testkit::suite::operations;
use lazaret_testkit::{
    checkpoints_test_suite, dedupe_test_suite, locks_test_suite, outbox_test_suite, store_test_suite,
};

store_test_suite!(letters_of, |clock| async move { MemoryStore::new(clock) });
checkpoints_test_suite!(checkpoints, |clock| async move { MemoryStore::new(clock) });
locks_test_suite!(locks, |clock| async move { MemoryStore::new(clock) });
dedupe_test_suite!(dedupe, |clock| async move { MemoryStore::new(clock) });
outbox_test_suite!(outbox, |clock| async move { MemoryStore::new(clock) });

/// The races again, on real threads: in memory no call yields, so one thread alone would prove little.
mod on_threads {
    use super::*;

    async fn fixture() -> Fixture<MemoryStore> {
        Fixture::new(|clock| async move { MemoryStore::new(clock) }).await
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn appending_and_closing_exclude_each_other() {
        for _ in 0..20 {
            letters::appending_and_closing_exclude_each_other(fixture().await).await;
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn many_workers_never_share_a_sequence() {
        for _ in 0..20 {
            letters::many_workers_never_share_a_sequence(fixture().await).await;
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn many_workers_never_share_a_letter() {
        for _ in 0..20 {
            operations::many_workers_never_share_a_letter(fixture().await).await;
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn many_workers_that_continue_never_share_a_letter() {
        for _ in 0..20 {
            operations::many_workers_that_continue_never_share_a_letter(fixture().await).await;
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn two_appends_to_one_new_sequence_are_both_stored() {
        for _ in 0..100 {
            letters::x14_two_appends_to_one_new_sequence_are_both_stored(fixture().await).await;
        }
    }
}
