//! The set of open sequences: memory, lookup time and correctness.

use std::collections::HashSet;
use std::hint::black_box;
use std::time::Instant;

use lazaret_engine::{BlockedSet, SequenceHash, SequenceHasher};

use super::BENCH;
use crate::Scale;
use crate::alloc::{Meter, Reading};
use crate::table::{Bar, Compared, ROUNDS, Row};

const SEQUENCES: usize = 10_000_000;
const ABSENT: usize = 2_000_000;
const SECRET: u64 = 0x05ec_2e70;
const MIB: f64 = (1 << 20) as f64;

pub(super) fn run(scale: Scale) -> Vec<Row> {
    let count = scale.count(SEQUENCES);
    let hasher = SequenceHasher::new(SECRET);
    // The engine has the hash of a message at hand when it queries the set. Hashes are uniform: any order visits the table at
    // random.
    let hashes = |range: std::ops::Range<usize>| -> Vec<SequenceHash> {
        range.map(|n| hasher.hash(&format!("order-{n}"))).collect()
    };
    let present = hashes(0..count);
    let absent = hashes(count..count + scale.count(ABSENT));

    let (set, ours) = metered(|| {
        let mut set = BlockedSet::new(count);
        for hash in &present {
            set.insert(*hash);
        }
        set
    });
    let (std_set, theirs) = metered(|| {
        let mut set = HashSet::new();
        for hash in &present {
            set.insert(*hash);
        }
        set
    });
    assert_eq!(set.len(), Some(present.len()), "the set is still exact");

    let wrong = present.iter().filter(|hash| !set.maybe(**hash)).count();
    let absent_row =
        lookups("blocked set/lookup, absent", &absent, |h| set.maybe(h), |h| std_set.contains(&h));
    let present_row =
        lookups("blocked set/lookup, present", &present, |h| set.maybe(h), |h| std_set.contains(&h));
    vec![
        memory("blocked set/memory, peak while growing", ours.peak_bytes, theirs.peak_bytes)
            .with_bar(Bar::ValueAtMost(400.0)),
        memory("blocked set/memory, at rest", ours.live_bytes, theirs.live_bytes),
        absent_row.with_bar(Bar::ValueAtMost(100.0)),
        present_row.with_bar(Bar::ValueAtMost(100.0)),
        Row::new(BENCH, "blocked set/wrong absents", "sequences", wrong as f64).with_bar(Bar::ValueIs(0.0)),
    ]
}

fn metered<T>(make: impl FnOnce() -> T) -> (T, Reading) {
    let meter = Meter::start();
    let made = make();
    (made, meter.read())
}

fn memory(name: &str, ours: u64, theirs: u64) -> Row {
    Row::compared(BENCH, name, "MiB", &Compared::new(&[ours as f64 / MIB], &[theirs as f64 / MIB]))
}

/// Measures one lookup against the standard library's set.
fn lookups(
    name: &str,
    hashes: &[SequenceHash],
    ours: impl Fn(SequenceHash) -> bool,
    theirs: impl Fn(SequenceHash) -> bool,
) -> Row {
    let (mut subject, mut baseline) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        baseline.push(nanos_each(hashes, &theirs));
        subject.push(nanos_each(hashes, &ours));
    }
    Row::compared(BENCH, name, "ns", &Compared::new(&subject, &baseline))
}

fn nanos_each(hashes: &[SequenceHash], contains: impl Fn(SequenceHash) -> bool) -> f64 {
    let started = Instant::now();
    for hash in hashes {
        black_box(contains(*hash));
    }
    started.elapsed().as_nanos() as f64 / hashes.len() as f64
}
