//! The speed of the store as it grows: append behind a head, pick the oldest due, advance.

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use lazaret_core::store::{HandOff, LetterStore, Placement, Settled, Settlement};
use lazaret_store_sqlite::{Durability, SqliteStore};

use super::disk::{Disk, remove};
use super::million::{DEPTH, Million, fill_sequences, follower};
use super::{BENCH, open_with};
use crate::Scale;
use crate::letters::{Mould, put, queue};
use crate::table::{Bar, Compared, Row};

const SMALL: usize = 1000;
const ROUNDS: usize = 15;
const LEASE: Duration = Duration::from_secs(60);
/// The stride between followers' sequences: a prime, so that all are visited, and large, so that consecutive ones are far apart
/// in the file.
const STRIDE: usize = 7919;
const NAMES: [&str; 3] = ["append behind", "pick oldest due", "advance"];

/// A way to make the calls.
struct Way {
    name: &'static str,
    durability: Durability,
    /// The letters appended and sequences claimed per step.
    batch: usize,
    /// The steps of a round. Few, so that the small file stays small.
    steps: usize,
    bar: Option<Bar>,
    note: Option<&'static str>,
}

/// One durable call after the other: the latency of a caller.
const ALONE: Way = Way {
    name: "one durable call",
    durability: Durability::Full,
    batch: 1,
    steps: 100,
    bar: Some(Bar::RatioAtMost(1.5)),
    note: None,
};

/// Many calls at once without fsync: the cost of the work itself, which grows with the pages it touches.
const TOGETHER: Way = Way {
    name: "32 in one commit, not forced",
    durability: Durability::Normal,
    batch: 32,
    steps: 12,
    bar: None,
    note: Some(
        "a thousand letters lie on a few pages, which all share; of a million each touches its own, and each page is read, \
         written to the log and copied into the file",
    ),
};

pub(super) async fn run(scale: Scale, disk: &Disk, million: &Million) -> Vec<Row> {
    let mut next = million.letters();
    let mut rows = Vec::new();
    for way in [ALONE, TOGETHER] {
        rows.extend(compare(&way, scale, disk, million, &mut next).await);
    }
    rows
}

/// Measures the three costs in a large store against a small one.
async fn compare(way: &Way, scale: Scale, disk: &Disk, million: &Million, next: &mut usize) -> Vec<Row> {
    let file = disk.file();
    fill_sequences(&file, SMALL).await;
    // Both files are used for all rounds: a new file would pay for the growth of its log. Appended letters are handled, so the
    // number of open letters stays the same.
    let (large, small) = (open_with(million.path().await, way.durability), open_with(&file, way.durability));
    let mut costs = [(); 3].map(|()| (Vec::new(), Vec::new()));
    // The first round warms the caches and does not count.
    for round in 0..=ROUNDS {
        let of_small = measure(way, &small, SMALL / DEPTH, next).await;
        let of_large = measure(way, &large, million.letters() / DEPTH, next).await;
        if round > 0 {
            for ((large, small), (of_large, of_small)) in costs.iter_mut().zip(of_large.iter().zip(of_small))
            {
                large.push(of_large.as_secs_f64() * 1e6);
                small.push(of_small.as_secs_f64() * 1e6);
            }
        }
    }
    drop(small);
    remove(&file);
    let size = if scale.divisor == 1 { "1 M" } else { "many" };
    let mut note = way.note;
    let rows = NAMES.iter().zip(&costs).map(|(name, (large, small))| {
        let name = format!("growth/{name} at {size} letters beside 1 k, {}", way.name);
        let row = Row::compared(BENCH, name, "us", &Compared::new(large, small));
        let row = if let Some(bar) = way.bar { row.with_bar(bar) } else { row };
        if let Some(note) = note.take() { row.with_note(note) } else { row }
    });
    rows.collect()
}

/// Measures the cost of one letter or sequence for each of the three.
async fn measure(way: &Way, store: &SqliteStore, sequences: usize, next: &mut usize) -> [Duration; 3] {
    let (mould, queue) = (Mould::new(128), queue());
    let mut took = [Duration::ZERO; 3];
    // The first step prepares statements and does not count.
    for step in 0..=way.steps {
        if step == 1 {
            took = [Duration::ZERO; 3];
        }
        let followers = (0..way.batch).map(|_| {
            *next += 1;
            let letter = follower(&mould, *next, due_sequence(*next, sequences));
            HandOff { letter, placement: Placement::Behind, grant: None }
        });
        let followers: Vec<HandOff> = followers.collect();
        let started = Instant::now();
        put(store, followers).await;
        took[0] += started.elapsed();

        let started = Instant::now();
        let claims =
            store.claim_due(&queue, "bench", LEASE, way.batch).await.expect("the store gives leases");
        took[1] += started.elapsed();
        assert_eq!(claims.len(), way.batch, "enough sequences are due");

        let started = Instant::now();
        let settlements = claims.into_iter().map(|claim| async move {
            let settled = store.settle(&claim.lease, claim.head.id, Settlement::Resolve(None)).await;
            (claim.lease, settled.expect("the lease is current"))
        });
        // All at once, as with many workers.
        let settled = join_all(settlements).await;
        took[2] += started.elapsed();
        for (lease, settled) in settled {
            if let Settled::Next(_) = settled {
                store.release(&lease).await.expect("a lease can be given back");
            }
        }
    }
    took.map(|took| took / (way.steps * way.batch) as u32)
}

/// Returns the sequence of a follower, one of those that are due: they get as many letters as are removed from them.
fn due_sequence(number: usize, sequences: usize) -> usize {
    number.wrapping_mul(STRIDE) % (sequences / 2) * 2
}
