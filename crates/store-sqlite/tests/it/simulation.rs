//! The simulation of whole engines, on this store.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use lazaret_simulation::{Report, Scale, run_on};
use lazaret_store_sqlite::{Durability, Options, SqliteStore};

const SEEDS: u64 = 100;

/// One seed on a new file. Nothing is synced to disk: only processes crash in the simulation, never the machine. With every
/// other seed all hand-offs and notes go through the redo log.
fn run(seed: u64) -> Report {
    let folder = tempfile::tempdir().unwrap();
    run_on(Scale::Group, seed, None, |clock| {
        let redo_from = if seed.is_multiple_of(2) { 0 } else { Options::default().redo_from };
        let options = Options { clock, durability: Durability::Normal, redo_from, ..Options::default() };
        Arc::new(SqliteStore::open(folder.path().join("lazaret.db"), options).unwrap())
    })
}

#[test]
fn every_invariant_holds_over_the_first_seeds() {
    let next = AtomicU64::new(1);
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed > SEEDS {
                        return;
                    }
                    let report = run(seed);
                    assert!(report.violations.is_empty(), "{report}");
                }
            });
        }
    });
}

#[test]
fn the_same_seed_gives_the_same_run() {
    for seed in [3, 57, 58] {
        assert_eq!(run(seed).trace, run(seed).trace, "seed {seed}");
    }
}
