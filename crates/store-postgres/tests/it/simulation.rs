//! The simulation of whole engines, on this store. `cargo xtask sim --store postgres` runs more seeds.

use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicU64, Ordering};

use lazaret_simulation::Scale;

use crate::support::server_is_there;
use crate::support::simulated::run;

/// Runs seeds on all cores.
fn holds(scale: Scale, seeds: RangeInclusive<u64>) {
    if !server_is_there() {
        return;
    }
    let next = AtomicU64::new(*seeds.start());
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed > *seeds.end() {
                        return;
                    }
                    let report = run(scale, seed, None);
                    assert!(report.violations.is_empty(), "{report}");
                }
            });
        }
    });
}

#[test]
fn every_invariant_holds_over_the_first_seeds() {
    holds(Scale::Group, 1..=24);
}

#[test]
fn fleets_keep_every_invariant() {
    holds(Scale::Fleet, 1..=4);
}
