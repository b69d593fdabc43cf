//! Whether the store stays as fast as it grows: append behind, pick the oldest due, advance.

use std::path::Path;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use lazaret_core::store::{HandOff, LetterStore, Placement, Settled, Settlement};
use lazaret_store_sqlite::{Durability, SqliteStore};

use super::disk::{Disk, remove};
use super::letters::{Mould, put, queue};
use super::million::{DEPTH, Million, fill_sequences, follower};
use super::{BENCH, open_with};
use crate::Scale;
use crate::table::{Bar, Compared, Row};
use crate::zipf::Random;

const SMALL: usize = 1000;
const ROUNDS: usize = 15;
/// How often a round appends, claims and settles. Few, so that the small store stays small.
const STEPS: usize = 12;
/// How many letters are appended, and how many sequences claimed, in a step.
const BATCH: usize = 32;
const LEASE: Duration = Duration::from_secs(60);
const SEED: u64 = 0x9_2047;
const NAMES: [&str; 3] = ["append behind", "pick oldest due", "advance"];

pub(super) async fn run(scale: Scale, disk: &Disk, million: &Million) -> Vec<Row> {
    let (path, mut random) = (million.path().await, Random::new(SEED));
    // Nothing is forced to the disk here: that costs the same at every size and would hide what grows.
    let large = open_with(path, Durability::Normal);
    let mut next = million.letters();
    let mut costs = [(); 3].map(|()| (Vec::new(), Vec::new()));
    // The first round warms the caches of the large store and does not count.
    for round in 0..=ROUNDS {
        let file = disk.file();
        let small = small_store(&file).await;
        let of_small = measure(&small, SMALL / DEPTH, &mut next, &mut random).await;
        drop(small);
        remove(&file);
        let of_large = measure(&large, million.letters() / DEPTH, &mut next, &mut random).await;
        if round > 0 {
            for ((large, small), (of_large, of_small)) in costs.iter_mut().zip(of_large.iter().zip(of_small))
            {
                large.push(of_large.as_secs_f64() * 1e6);
                small.push(of_small.as_secs_f64() * 1e6);
            }
        }
    }
    let size = if scale.divisor == 1 { "1 M" } else { "many" };
    let rows = NAMES.iter().zip(&costs).map(|(name, (large, small))| {
        let name = format!("growth/{name}, at {size} letters beside 1 k");
        Row::compared(BENCH, name, "us", &Compared::new(large, small)).with_bar(Bar::RatioAtMost(1.5))
    });
    rows.collect()
}

async fn small_store(path: &Path) -> std::sync::Arc<SqliteStore> {
    fill_sequences(path, SMALL).await;
    open_with(path, Durability::Normal)
}

/// What one letter or sequence costs in each of the three.
async fn measure(
    store: &SqliteStore,
    sequences: usize,
    next: &mut usize,
    random: &mut Random,
) -> [Duration; 3] {
    let (mould, queue) = (Mould::new(128), queue());
    let mut took = [Duration::ZERO; 3];
    // The first step prepares statements and does not count.
    for step in 0..=STEPS {
        if step == 1 {
            took = [Duration::ZERO; 3];
        }
        let followers = (0..BATCH).map(|_| {
            *next += 1;
            let letter = follower(&mould, *next, random.below(sequences as u32) as usize);
            HandOff { letter, placement: Placement::Behind, grant: None }
        });
        let followers: Vec<HandOff> = followers.collect();
        let started = Instant::now();
        put(store, followers).await;
        took[0] += started.elapsed();

        let started = Instant::now();
        let claims = store.claim_due(&queue, "bench", LEASE, BATCH).await.expect("the store gives leases");
        took[1] += started.elapsed();
        assert_eq!(claims.len(), BATCH, "enough sequences are due");

        let mut going = Vec::new();
        let started = Instant::now();
        let settlements = claims.into_iter().map(|claim| async move {
            let settled = store.settle(&claim.lease, claim.head.id, Settlement::Resolve(None)).await;
            (claim.lease, settled.expect("the lease is current"))
        });
        // All at once, as many workers would.
        for (lease, settled) in join_all(settlements).await {
            if let Settled::Next(_) = settled {
                going.push(lease);
            }
        }
        took[2] += started.elapsed();
        for lease in going {
            store.release(&lease).await.expect("a lease can be given back");
        }
    }
    took.map(|took| took / (STEPS * BATCH) as u32)
}
