//! The simulation itself: it passes on the engine as it is, and finds the bugs that are put in on purpose.

use lazaret_testkit::sim::{self, Mutation};

/// How many seeds a mutation may survive.
const CAUGHT_WITHIN: u64 = 500;

/// Seeds that once found a bug, in the order in which they did. Each must pass for ever.
const PINNED: [u64; 19] =
    [9, 46, 57, 62, 65, 86, 148, 190, 193, 225, 238, 279, 293, 352, 776, 1134, 2669, 2977, 3820];

fn passes(seed: u64) {
    let report = sim::run(seed, None);
    assert!(report.violations.is_empty(), "{report}");
}

#[test]
fn every_invariant_holds_over_the_first_seeds() {
    (1..=200).for_each(passes);
}

#[test]
fn seeds_that_found_a_bug_once_pass() {
    PINNED.into_iter().for_each(passes);
}

#[test]
fn the_same_seed_gives_the_same_run() {
    for seed in [3, 1134, 2026] {
        assert_eq!(sim::run(seed, None).trace, sim::run(seed, None).trace, "seed {seed}");
    }
}

/// The invariant that gives a mutation away first.
fn caught(mutation: Mutation) -> String {
    let found =
        (1..=CAUGHT_WITHIN).find_map(|seed| sim::run(seed, Some(mutation)).violations.into_iter().next());
    found.unwrap_or_else(|| panic!("{mutation:?} survived {CAUGHT_WITHIN} seeds"))
}

#[test]
fn running_a_message_of_an_open_sequence_is_caught() {
    let violation = caught(Mutation::SkipBlockedCheck);
    assert!(violation.starts_with("I2"), "{violation}");
}

#[test]
fn settling_before_the_letter_is_durable_is_caught() {
    caught(Mutation::CommitBeforeHandOff);
}

#[test]
fn a_store_that_forgets_its_fences_is_caught() {
    caught(Mutation::ForgetFences);
}

#[test]
fn dropping_a_message_that_the_store_refuses_is_caught() {
    caught(Mutation::DropOnEnqueueError);
}

#[test]
fn giving_new_attempts_after_a_restart_is_caught() {
    caught(Mutation::ResetAttemptsOnRestart);
}
