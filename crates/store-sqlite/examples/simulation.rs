//! Runs the simulation of whole engines on this store, each seed on a file of its own.

use std::process::ExitCode;
use std::sync::Arc;

use lazaret_simulation::{Mutation, Report, Scale, command, run_on};
use lazaret_store_sqlite::{Durability, Options, SqliteStore};

fn main() -> ExitCode {
    command(run)
}

/// Nothing is synced to disk: only processes crash in the simulation, never the machine. With every
/// other seed all hand-offs and notes go through the redo log.
fn run(scale: Scale, seed: u64, mutation: Option<Mutation>) -> Report {
    let folder = tempfile::tempdir().expect("a temporary folder can be made");
    run_on(scale, seed, mutation, |clock| {
        let redo_from = if seed.is_multiple_of(2) { 0 } else { Options::default().redo_from };
        let options = Options { clock, durability: Durability::Normal, redo_from, ..Options::default() };
        let store = SqliteStore::open(folder.path().join("lazaret.db"), options);
        Arc::new(store.expect("a new file can be opened"))
    })
}
