//! Many retries due within one second, in an SQLite file.

use std::time::Duration;

use lazaret_store_sqlite::Durability;

use super::disk::{Disk, remove};
use super::{BENCH, open, open_with};
use crate::Scale;
use crate::consumer::let_go;
use crate::due::Schedule;
use crate::letters::fill;
use crate::table::Row;

/// The time from the start of filling to the first due time: long enough for slow machines.
const AHEAD: Duration = Duration::from_secs(15);

pub(super) async fn run(scale: Scale, disk: &Disk) -> Vec<Row> {
    let file = disk.file();
    let schedule = Schedule::after(AHEAD, scale);
    fill(&*open_with(&file, Durability::Normal), schedule.letters()).await;
    let store = open(&file);
    let rows = schedule.run(BENCH, &store).await;
    let_go(store).await;
    remove(&file);
    rows
}
