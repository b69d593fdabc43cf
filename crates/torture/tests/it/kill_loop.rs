//! The short form of the kill loop.

use lazaret_torture::driver::Torture;
use lazaret_torture::plan::Plan;

#[test]
fn a_consumer_that_is_killed_repeatedly_loses_duplicates_and_reorders_nothing() {
    // I1, I2, I4, I6, I8, I11
    let folder = tempfile::tempdir().unwrap();
    let plan = Plan { seed: 11, messages: 10_000, keys: 1000 };
    let torture = Torture { program: env!("CARGO_BIN_EXE_torture").into(), plan, kills: 15, stalls: 0 };
    let report = torture.run(folder.path()).unwrap();
    assert!(report.is_clean(), "{report}");
    // The run had enough kills, failures and letters to check.
    assert!(report.kills >= 10, "{report}");
    assert!(report.findings.failed > 1000 && report.findings.letters.open() > 0, "{report}");
}

#[test]
fn a_consumer_that_stalls_for_longer_than_its_leases_repeats_only_what_it_lost() {
    // I1, I2, I6, I8
    let folder = tempfile::tempdir().unwrap();
    let plan = Plan { seed: 12, messages: 10_000, keys: 1000 };
    let torture = Torture { program: env!("CARGO_BIN_EXE_torture").into(), plan, kills: 0, stalls: 3 };
    let report = torture.run(folder.path()).unwrap();
    assert!(report.is_clean(), "{report}");
    // The stops came while sequences were being run.
    assert!(report.findings.lost > 0, "{report}");
}
