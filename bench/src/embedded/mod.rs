//! The group `embedded`: the cost of letters in an SQLite file on a real disk.

mod consumer;
pub(crate) mod disk;
mod drain;
mod due;
mod growth;
mod hand_off;
mod listing;
mod million;
mod replay;
mod restart;

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use lazaret_store_sqlite::{Durability, Options as StoreOptions, SqliteStore};

use crate::Scale;
use crate::table::Row;
use disk::Disk;
use million::Million;

const BENCH: &str = "embedded";

/// The benchmarks of the group, in order.
pub(crate) const NAMES: [&str; 8] =
    ["hand-off", "growth", "consumer", "drain", "replay", "due", "listing", "restart"];

/// Runs every benchmark of the group, or only the given one.
pub(crate) async fn run(scale: Scale, only: Option<&str>) -> Result<Vec<Row>, String> {
    let disk = Disk::find()?;
    let million = Million::new(&disk, scale);
    let mut rows = Vec::new();
    for name in NAMES.into_iter().filter(|name| only.is_none_or(|only| only == *name)) {
        eprintln!("running {name}");
        let started = Instant::now();
        rows.extend(match name {
            "hand-off" => hand_off::run(scale, &disk).await,
            "growth" => growth::run(scale, &disk, &million).await,
            "consumer" => consumer::run(scale, &disk).await,
            "drain" => drain::run(scale, &disk).await,
            "replay" => replay::run(scale, &disk).await,
            "due" => due::run(scale, &disk).await,
            "listing" => listing::run(&million).await,
            "restart" => restart::run(&million).await,
            _ => unreachable!("every name has its benchmark"),
        });
        eprintln!("{name} took {:.0} s", started.elapsed().as_secs_f64());
    }
    Ok(rows)
}

/// Opens a durable store in this file.
pub(crate) fn open(path: &Path) -> Arc<SqliteStore> {
    open_with(path, Durability::Full)
}

/// Opens a store in this file.
fn open_with(path: &Path, durability: Durability) -> Arc<SqliteStore> {
    let options = StoreOptions { durability, ..StoreOptions::default() };
    Arc::new(SqliteStore::open(path, options).expect("the file of a benchmark can be opened"))
}
