//! The simulation and the conformance suite find known bugs. Only with the feature `mutations`.

#![allow(clippy::unwrap_used, reason = "a test that fails panics; that is its answer")]

mod races;
mod staged;

use std::sync::Arc;

use lazaret_memory::MemoryStore;
use lazaret_simulation::{Mutation, Scale, run, run_on};
use lazaret_store_sqlite::{Durability, Options, SqliteStore};
use lazaret_testkit::suite::letters::{self, Fixture};
use lazaret_testkit::suite::operations;

/// The number of seeds within which a mutation must be found.
const FOUND_WITHIN: u64 = 500;

/// The first violation that a mutation causes.
fn first_violation(mutation: Mutation) -> String {
    let found = (1..=FOUND_WITHIN).find_map(|seed| run(seed, Some(mutation)).violations.into_iter().next());
    found.unwrap_or_else(|| panic!("{mutation:?} was not found within {FOUND_WITHIN} seeds"))
}

#[test]
fn running_a_message_of_an_open_sequence_is_found() {
    is_found(Mutation::SkipBlockedCheck, "I2 at");
}

#[test]
fn settling_before_the_letter_is_durable_is_found() {
    first_violation(Mutation::CommitBeforeHandOff);
}

#[test]
fn a_store_that_forgets_its_fences_is_found() {
    first_violation(Mutation::ForgetFences);
}

#[test]
fn dropping_a_message_that_the_store_refuses_is_found() {
    first_violation(Mutation::DropOnEnqueueError);
}

#[test]
fn resetting_attempts_after_a_restart_is_found() {
    first_violation(Mutation::ResetAttemptsOnRestart);
}

/// The mutation is found, and by this text. Another check may see its consequences first.
fn is_found(mutation: Mutation, by: &str) {
    let found = (1..=FOUND_WITHIN).any(|seed| {
        let violations = run(seed, Some(mutation)).violations;
        violations.iter().any(|violation| violation.contains(by))
    });
    assert!(found, "{mutation:?} was not found by {by:?} within {FOUND_WITHIN} seeds");
}

#[test]
fn a_retry_before_its_time_by_the_clock_of_the_engine_is_found() {
    is_found(Mutation::TrustStoreClock, "was retried before it was due");
}

#[test]
fn a_stored_run_that_continues_while_the_breaker_is_open_is_found() {
    is_found(Mutation::IgnoreGateWithinRuns, "starts while the");
}

#[test]
fn skipping_what_failed_is_found() {
    is_found(Mutation::SkipFailedMessages, "is skipped without a reason");
}

#[test]
fn a_replay_during_a_pause_of_replays_is_found() {
    is_found(Mutation::IgnoreReplayPauses, "starts while the replay is paused");
}

#[test]
fn a_retry_during_a_pause_of_the_consumer_is_found() {
    // The mutation also ignores the breaker, so another check may see it first.
    first_violation(Mutation::IgnoreConsumerPauses);
}

#[test]
fn leaving_without_a_commit_is_found() {
    is_found(Mutation::LeaveWithoutCommit, "left without a commit");
}

#[test]
fn two_copies_in_flight_in_one_process_are_found() {
    // While the first one is handled, or right after it.
    is_found(Mutation::ShareClaims, "dedupe at");
}

#[test]
fn a_filter_that_forgets_is_found() {
    is_found(Mutation::ForgetMarks, "handled it");
}

#[test]
fn a_suspect_in_company_is_found() {
    is_found(Mutation::RunSuspectsInCompany, "does not run alone");
}

#[test]
fn a_letter_that_expires_early_is_found() {
    is_found(Mutation::ExpireEarly, "expired before its time");
}

#[test]
fn messages_behind_a_failed_one_that_fill_the_window_are_found() {
    is_found(Mutation::CountHeldInWindow, "healthy messages were handled");
}

#[test]
fn lanes_that_never_move_to_the_store_early_are_found() {
    is_found(Mutation::NeverMoveEarly, "healthy messages were handled");
}

#[test]
fn a_dead_letter_that_leaves_the_sequence_it_has_to_hold_is_found() {
    // A later message overtakes it, or its own replay starts.
    is_found(Mutation::LeaveUnasked, "I2 at");
}

#[test]
fn a_woken_process_that_trusts_its_ownership_is_found() {
    is_found(Mutation::TrustStaleOwnership, "which was stopped and has lost it");
}

/// The mutation is found as a loss. A later message of the key may start before that is seen, which breaks I2.
fn is_found_as_a_loss(mutation: Mutation) {
    is_found(mutation, "I1 at");
}

#[test]
fn new_messages_with_the_positions_of_deleted_ones_are_found() {
    // I1: they are taken for known.
    is_found_as_a_loss(Mutation::ForgetIncarnations);
}

#[test]
fn new_messages_with_the_ids_of_letters_of_deleted_ones_are_found() {
    // I1: the letter of the deleted one is taken for theirs.
    is_found_as_a_loss(Mutation::ShareLetterIds);
}

#[test]
fn counts_that_a_refused_command_takes_back_are_found() {
    // I11
    is_found(Mutation::LoseCountsOnRefusal, "as ok, failed again and skipped, but");
    is_found(Mutation::LoseCountsOnRefusal, "is changed by a refused");
}

#[test]
fn a_paused_operation_that_goes_on_is_found() {
    is_found(Mutation::IgnoreOperationPauses, "while it is paused");
}

#[test]
fn a_sequence_that_stays_reserved_for_an_operation_that_is_over_is_found() {
    is_found(Mutation::KeepReservations, "and is never due");
}

/// One seed on a SQLite file of its own. With every other seed all hand-offs and notes go through the redo log.
fn run_on_sqlite(seed: u64, mutation: Mutation) -> Vec<String> {
    let folder = tempfile::tempdir().unwrap();
    let report = run_on(Scale::Group, seed, Some(mutation), |clock| {
        let redo_from = if seed.is_multiple_of(2) { 0 } else { Options::default().redo_from };
        let options = Options { clock, durability: Durability::Normal, redo_from, ..Options::default() };
        Arc::new(SqliteStore::open(folder.path().join("lazaret.db"), options).unwrap())
    });
    report.violations
}

#[test]
fn a_bug_of_the_engine_is_found_on_sqlite_too() {
    let found = (1..=50).find(|seed| !run_on_sqlite(*seed, Mutation::SkipBlockedCheck).is_empty());
    assert!(found.is_some());
}

async fn store_without_fences() -> Fixture<MemoryStore> {
    let fixture = Fixture::new(|clock| async move { MemoryStore::new(clock) }).await;
    fixture.store.forget_fences();
    fixture
}

#[tokio::test(start_paused = true)]
#[should_panic = "the store should have refused"]
async fn the_suite_finds_a_store_that_takes_a_late_settlement() {
    letters::a_settlement_after_the_lease_ended_is_fenced(store_without_fences().await).await;
}

#[tokio::test(start_paused = true)]
#[should_panic = "the store should have refused"]
async fn the_suite_finds_a_store_that_lets_a_late_owner_take_the_next_letter() {
    operations::a_letter_that_a_settlement_took_is_offered_again(store_without_fences().await).await;
}

#[tokio::test(start_paused = true)]
#[should_panic = "the store should have refused"]
async fn the_suite_finds_a_store_that_takes_a_late_hand_off() {
    letters::an_old_grant_can_hand_off_nothing(store_without_fences().await).await;
}
