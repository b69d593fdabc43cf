//! The group `embedded`: what letters in an SQLite file cost, on a real disk.

mod consumer;
pub(crate) mod disk;
mod due;
mod growth;
mod hand_off;
mod letters;
mod listing;
mod million;
mod replay;
mod restart;

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use lazaret_core::handler::Handler;
use lazaret_engine::{Consumer, Options};
use lazaret_store_sqlite::{Durability, Options as StoreOptions, SqliteStore};

use crate::Scale;
use crate::source::{BenchSource, Plan};
use crate::table::Row;
use disk::Disk;
use million::Million;

const BENCH: &str = "embedded";
/// The consumer of all runs; its only queue has the same name twice.
const CONSUMER: &str = "bench";

/// The benchmarks of the group, in the order in which they run.
pub(crate) const NAMES: [&str; 7] = ["hand-off", "growth", "consumer", "replay", "due", "listing", "restart"];

/// Runs every benchmark of the group, or only the one of this name.
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

/// A store in this file whose answers are durable.
pub(crate) fn open(path: &Path) -> Arc<SqliteStore> {
    open_with(path, Durability::Full)
}

/// A store in this file.
fn open_with(path: &Path, durability: Durability) -> Arc<SqliteStore> {
    let options = StoreOptions { durability, ..StoreOptions::default() };
    Arc::new(SqliteStore::open(path, options).expect("the file of a benchmark can be opened"))
}

/// A consumer of this plan on this store.
fn consumer<A: 'static>(
    plan: &Arc<Plan>,
    store: &Arc<SqliteStore>,
    options: Options,
    handler: impl Handler<A>,
) -> Consumer {
    let builder = Consumer::builder(CONSUMER).source(BenchSource::new(plan.clone())).store(store.clone());
    builder.handler(handler).options(options).build().expect("the options of the benchmarks are valid")
}

/// Waits until the engine's tasks are gone, and with them the store's threads' work for it.
pub(crate) async fn let_go(store: Arc<SqliteStore>) {
    let started = Instant::now();
    while Arc::strong_count(&store) > 1 {
        assert!(started.elapsed() < Duration::from_secs(60), "the engine lets go of its store after the run");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// Of values in order, the one below which this share lies.
fn share_of(sorted: &[f64], share: f64) -> f64 {
    sorted[((sorted.len() - 1) as f64 * share) as usize]
}
