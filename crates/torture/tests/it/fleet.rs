//! The short form of the torture of fleets: two processes with Kafka and five with the inbox, on one PostgreSQL each.
//! `cargo xtask torture fleet` runs more.

use std::path::PathBuf;

use lazaret_torture::fleet::{Fleet, Plant, Report};
use lazaret_torture::plan::Plan;
use tempfile::TempDir;

/// Every kind of fault twice: a kill, a stop for longer than the leases, a crash and a restart of the server, cut connections.
const FAULTS: u32 = 10;
/// Stops that bring a planted fault out. One would do.
const STOPS: u32 = 2;

/// Runs a fleet. `None` where the programs of PostgreSQL are not installed.
fn run(fleet: impl FnOnce(PathBuf) -> Fleet) -> Option<(Report, TempDir)> {
    if !Fleet::has_server() {
        let must = std::env::var("CI").is_ok_and(|value| value == "true");
        assert!(!must, "the programs of PostgreSQL are not installed");
        println!("not run: the programs of PostgreSQL are not installed");
        return None;
    }
    let folder = tempfile::tempdir().unwrap();
    let fleet = fleet(env!("CARGO_BIN_EXE_torture").into());
    let report = fleet.run(folder.path());
    Some((report.unwrap_or_else(|error| panic!("{error}\nseed {}", fleet.plan.seed)), folder))
}

fn survives(seed: u64, processes: u32, brokers: Option<String>) {
    let plan = Plan { seed, messages: 2000, keys: 60 };
    let fleet = |program| Fleet { program, plan, processes, brokers, faults: FAULTS, plant: None };
    let Some((report, folder)) = run(fleet) else { return };
    if !report.is_clean() {
        panic!("{report}the files are kept in {}", folder.keep().display());
    }
    println!("{report}");
    // The run had enough failures, letters and faults to check.
    assert!(report.processes >= processes + 2, "some were killed: {report}");
    assert!(report.cuts > 0, "{report}");
    assert!(report.findings.failed > 100 && report.findings.audit > 0, "{report}");
    assert!(report.findings.writes > 100, "the triggers noted who wrote: {report}");
}

// I1, I2, I4, I5, I6, I8, I9, I11, I12

#[test]
fn two_processes_with_kafka_lose_repeat_and_reorder_nothing() {
    let Some(broker) = lazaret_kafka_testkit::broker() else { return };
    survives(21, 2, Some(broker));
}

#[test]
fn five_processes_with_the_inbox_lose_repeat_and_reorder_nothing() {
    survives(52, 5, None);
}

#[test]
fn a_woken_process_whose_grant_nobody_checks_is_found() {
    // I6
    let plan = Plan { seed: 33, messages: 600, keys: 60 };
    let plant = Some(Plant::IgnoredGrants);
    let fleet = |program| Fleet { program, plan, processes: 2, brokers: None, faults: STOPS, plant };
    let Some((report, _folder)) = run(fleet) else { return };
    let is_late_letter =
        |found: &String| found.starts_with("I6: process") && found.contains("wrote the letter of");
    assert!(report.findings.violations.iter().any(is_late_letter), "{report}");
}
