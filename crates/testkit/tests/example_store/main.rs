//! The store of the guide `docs/writing-a-store.md`: the whole contract on a database that changes one document at a time.
//!
//! [`documents`] is the database. [`database`] says what the documents hold, [`commit`] how a call decides by one
//! compare-and-set, [`effects`] what it does afterwards. [`intake`], [`leases`], [`acts`], [`operations`] and [`polling`] load
//! views and ask the rules; [`listing`] reads. The decisions are those of [`lazaret_core::store::rules`].

#![allow(clippy::unwrap_used, reason = "a test that fails panics; that is its answer")]

mod acts;
mod commit;
mod crash;
mod database;
mod documents;
mod effects;
mod intake;
mod leases;
mod letters;
mod listing;
mod operations;
mod polling;
mod races;
mod small;

use std::sync::Arc;

use lazaret_core::Clock;
use lazaret_core::store::ExpiryClock;
use lazaret_testkit::{checkpoints_test_suite, dedupe_test_suite, locks_test_suite, model, store_test_suite};

use database::Database;

/// A store on documents. Several of them can share a database, as several processes would.
pub(crate) struct DocumentStore {
    db: Arc<Database>,
    clock: Arc<dyn Clock>,
    expiry: ExpiryClock,
    /// A planted bug, which the crash test has to find: what is left to do is not part of the decision.
    forgetful: bool,
}

impl DocumentStore {
    pub(crate) fn new(db: Arc<Database>, clock: Arc<dyn Clock>) -> Self {
        Self { db, expiry: ExpiryClock::new(clock.clone()), clock, forgetful: false }
    }
}

store_test_suite!(letters_of, |clock| async move { DocumentStore::new(Arc::default(), clock) });
checkpoints_test_suite!(checkpoints, |clock| async move { DocumentStore::new(Arc::default(), clock) });
locks_test_suite!(locks, |clock| async move { DocumentStore::new(Arc::default(), clock) });
dedupe_test_suite!(dedupe, |clock| async move { DocumentStore::new(Arc::default(), clock) });

#[test]
fn the_example_store_behaves_like_the_model() {
    model::check(64, |clock| async move { DocumentStore::new(Arc::default(), clock) });
}

#[test]
fn the_example_store_counts_operations_like_the_model() {
    // I11
    model::check_operations(64, |clock| async move { DocumentStore::new(Arc::default(), clock) });
}
