//! Drains of many letters with a no-op handler, beside the hand-off of the same letters.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use lazaret_engine::Options;
use lazaret_store_sqlite::SqliteStore;

use super::disk::{Disk, remove};
use super::hand_off::fill;
use super::{BENCH, open};
use crate::Scale;
use crate::consumer::{CONSUMER, consumer, let_go};
use crate::core::{options, rate};
use crate::operation::{CONCURRENCY, nothing, replay};
use crate::source::Plan;
use crate::table::{Bar, Compared, Row};

const LETTERS: usize = 10_000;
/// Many short rounds, so that other load on the machine affects all rows alike.
const ROUNDS: usize = 9;
/// The letters of the one long sequence.
const LONG: usize = 3_000;
/// The bytes of an append: what a settlement has in the redo log, roughly.
const APPEND_BYTES: usize = 512;

pub(super) async fn run(scale: Scale, disk: &Disk) -> Vec<Row> {
    let (letters, long) = (scale.count(LETTERS), scale.count(LONG));
    let each = |number: usize| format!("order-{number}");
    let one = |_: usize| "order".to_owned();
    let [mut handed_off, mut operation, mut by_code]: [Vec<f64>; 3] = Default::default();
    let [mut syncs, mut long_operation, mut long_by_code]: [Vec<f64>; 3] = Default::default();
    for _ in 0..ROUNDS {
        let filled = Filled::new(disk, letters, each).await;
        handed_off.push(filled.hand_off_rate);
        operation.push(filled.by_operation().await);
        by_code.push(Filled::new(disk, letters, each).await.by_code().await);
        syncs.push(synced_appends(&disk.file(), long));
        long_operation.push(Filled::new(disk, long, one).await.by_operation().await);
        long_by_code.push(Filled::new(disk, long, one).await.by_code().await);
    }
    let row = |name, subject: &[f64], baseline: &[f64]| {
        Row::compared(BENCH, name, "letters/s", &Compared::new(subject, baseline))
    };
    vec![
        row("drain/10 k sequences, as an operation, beside their hand-off", &operation, &handed_off)
            .with_bar(Bar::RatioAtLeast(0.4)),
        row("drain/the same by process_all, beside the operation", &by_code, &operation)
            .with_bar(Bar::RatioAtLeast(0.8)),
        row("drain/one sequence by process_all, beside an append with fdatasync a letter", &long_by_code, &syncs)
            .with_note(
                "a letter is settled durably before the next attempt begins, and the next claim rides with the settlement: one sync a \
                 letter is the limit",
            ),
        row("drain/one sequence as an operation, beside the same", &long_operation, &syncs),
    ]
}

/// A store with dead letters.
struct Filled {
    file: PathBuf,
    store: Arc<SqliteStore>,
    letters: usize,
    sequences: u64,
    hand_off_rate: f64,
}

impl Filled {
    /// Hands off letters, durably and one by one, and measures until all are in the tables.
    async fn new(disk: &Disk, letters: usize, sequence_of: fn(usize) -> String) -> Self {
        let file = disk.file();
        let store = open(&file);
        let (counts, hand_off_rate) = fill(&store, letters, sequence_of).await;
        Self { file, store, letters, sequences: counts.sequences, hand_off_rate }
    }

    /// Drains with a durable operation on a running consumer. Returns letters per second.
    async fn by_operation(self) -> f64 {
        let took = replay(&self.store, self.letters).await.took;
        self.end(took).await
    }

    /// Drains with `process_all`. The consumer does not run: its source and scheduler are idle.
    async fn by_code(self) -> f64 {
        let run = Options { concurrency: CONCURRENCY, ..options() };
        let consumer = consumer(&Plan::uniform(0, 1), &self.store, run, nothing);
        let handle = consumer.handle();
        let replayer = handle.replayer(CONSUMER).expect("the consumer has a component of its name");
        let started = Instant::now();
        let report = replayer.process_all("bench").await.expect("the replay goes through");
        let took = started.elapsed();
        assert_eq!(
            (report.closed, report.held),
            (self.sequences, 0),
            "every sequence was handled to its end"
        );
        assert_eq!(handle.stats().resolved, self.letters as u64, "every letter was handled");
        drop((handle, replayer, consumer));
        self.end(took).await
    }

    /// Removes the store. Returns letters per second.
    async fn end(self, took: Duration) -> f64 {
        let_go(self.store).await;
        remove(&self.file);
        rate(self.letters, took)
    }
}

/// Measures small appends per second, each followed by fdatasync.
fn synced_appends(path: &Path, count: usize) -> f64 {
    let bytes = [b'x'; APPEND_BYTES];
    let mut file = File::create(path).expect("a file can be made");
    let started = Instant::now();
    for _ in 0..count {
        file.write_all(&bytes).expect("the disk takes an append");
        file.sync_data().expect("the disk keeps an append");
    }
    let took = started.elapsed();
    std::fs::remove_file(path).expect("the file can be removed");
    rate(count, took)
}
