//! The engine keeps every invariant on the memory store.

use std::collections::BTreeSet;

use lazaret_simulation::{Scale, run, run_at};

/// Seeds that once found a bug, in the order in which they did.
const PINNED: [u64; 41] = [
    9, 46, 57, 62, 65, 86, 148, 190, 193, 225, 238, 279, 293, 352, 776, 1134, 2669, 2977, 3820, 130, 219,
    419, 5297, 9469, 203, 1195, 3118, 4784, 14518, 16822, 38439, 55759, 80192, 80654, 115890, 57986, 60065,
    190354, 253_926, 397_747, 688_709,
];

fn passes(seed: u64) {
    let report = run(seed, None);
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
fn fleets_keep_every_invariant() {
    for seed in 1..=40 {
        let report = run_at(Scale::Fleet, seed, None);
        assert!(report.violations.is_empty(), "{report}");
    }
}

#[test]
fn streams_can_be_recreated_at_any_moment() {
    // I1: nothing of the new incarnation is taken for known.
    let mut recreated = 0;
    for seed in 201..=300 {
        let report = run(seed, None);
        recreated += usize::from(report.trace.iter().any(|line| line.contains("the stream was recreated")));
        assert!(report.violations.is_empty(), "{report}");
    }
    assert!(recreated >= 10, "{recreated} of 100 seeds recreate their stream");
}

#[test]
fn operators_command_operations_at_any_moment() {
    let (mut accepted, mut refused) = (BTreeSet::new(), 0);
    for seed in 301..=450 {
        let report = run(seed, None);
        assert!(report.violations.is_empty(), "{report}");
        let sent = report.trace.iter().filter_map(|line| line.split_once(" sends ")?.1.split_once(" to op_"));
        for (command, answer) in sent {
            match answer.contains(": refused") {
                true => refused += 1,
                false => _ = accepted.insert(command.to_owned()),
            }
        }
    }
    assert!(refused >= 50, "{refused} commands were refused");
    let accepted: Vec<&str> = accepted.iter().map(String::as_str).collect();
    assert_eq!(accepted, ["approve", "cancel", "pause", "reject", "resume"]);
}

#[test]
fn the_same_seed_gives_the_same_run() {
    for seed in [3, 1134, 2026] {
        for scale in [Scale::Group, Scale::Fleet] {
            let again = || run_at(scale, seed, None).trace;
            assert_eq!(again(), again(), "seed {seed}, {scale:?}");
        }
    }
}
