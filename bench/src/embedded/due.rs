//! Many retries due within one second, in an SQLite file.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::disk::{Disk, remove};
use super::hand_off::in_flight;
use super::{BENCH, open};
use crate::Scale;
use crate::consumer::let_go;
use crate::due::{Lateness, Schedule, rows};
use crate::letters::{open_with, put};
use crate::table::Row;

/// The time from the start of the hand-offs to the first due time: long enough for slow machines.
const AHEAD: Duration = Duration::from_secs(15);

/// The rounds: the disk of a shared machine varies more than what is measured.
const ROUNDS: usize = 5;

pub(super) async fn run(scale: Scale, disk: &Disk) -> Vec<Row> {
    let (mut runs, mut handed_off) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let (took, late) = round(scale, disk).await;
        handed_off.push(took.as_secs_f64() * 1e3);
        runs.push(late);
    }
    rows(BENCH, &runs, Some(&handed_off))
}

/// The time of the hand-offs, and the lateness of their letters.
async fn round(scale: Scale, disk: &Disk) -> (Duration, Lateness) {
    let file = disk.file();
    let store = open(&file);
    let schedule = Schedule::after(AHEAD, scale);
    let letters: Arc<Vec<_>> = Arc::new(schedule.letters().collect());
    let started = Instant::now();
    in_flight(letters.len(), {
        let (store, letters) = (store.clone(), letters.clone());
        move |number| {
            let (store, letter) = (store.clone(), letters[number].clone());
            async move { put(&*store, vec![open_with(letter)]).await }
        }
    })
    .await;
    let handed_off = started.elapsed();
    let late = schedule.run(&store).await;
    let_go(store).await;
    remove(&file);
    (handed_off, late)
}
