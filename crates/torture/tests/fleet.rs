//! The short form of the torture of fleets: two processes with Kafka and five with the inbox, on one PostgreSQL each.
//! `cargo xtask torture fleet` runs more.

#![allow(clippy::unwrap_used, reason = "a test that fails panics; that is its answer")]

use lazaret_torture::fleet::Fleet;
use lazaret_torture::plan::Plan;

/// Every kind of fault twice: a kill, a stop for longer than the leases, a crash of the server, cut connections.
const FAULTS: u32 = 8;

fn survives(seed: u64, processes: u32, brokers: Option<String>) {
    if !Fleet::has_server() {
        let must = std::env::var("CI").is_ok_and(|value| value == "true");
        assert!(!must, "the programs of PostgreSQL are not installed");
        println!("not run: the programs of PostgreSQL are not installed");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let plan = Plan { seed, messages: 2000, keys: 60 };
    let program = env!("CARGO_BIN_EXE_torture").into();
    let report = Fleet { program, plan, processes, brokers, faults: FAULTS }.run(folder.path());
    let report = report.unwrap_or_else(|error| panic!("{error}\nseed {seed}"));
    if !report.is_clean() {
        panic!("{report}the files are kept in {}", folder.keep().display());
    }
    println!("{report}");
    // The run had enough failures, letters and faults to check.
    assert!(report.processes >= processes + 2, "some were killed: {report}");
    assert!(report.cuts > 0, "{report}");
    assert!(report.findings.failed > 100 && report.findings.audit > 0, "{report}");
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
