//! Many retries due within one second, in an SQLite file.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::disk::{Disk, remove};
use super::hand_off::in_flight;
use super::{BENCH, open};
use crate::Scale;
use crate::consumer::let_go;
use crate::due::Schedule;
use crate::letters::{open_with, put};
use crate::table::Row;

/// The time from the start of the hand-offs to the first due time: long enough for slow machines.
const AHEAD: Duration = Duration::from_secs(15);

pub(super) async fn run(scale: Scale, disk: &Disk) -> Vec<Row> {
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
    let rows = schedule.run(BENCH, &store, Some(handed_off)).await;
    let_go(store).await;
    remove(&file);
    rows
}
