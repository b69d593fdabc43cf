//! The memory store behaves like the model.

use lazaret_memory::MemoryStore;
use lazaret_testkit::model;

#[test]
fn the_memory_store_behaves_like_the_model() {
    model::check(256, |clock| async move { MemoryStore::new(clock) });
}

#[test]
fn the_memory_store_counts_operations_like_the_model() {
    // I11
    model::check_operations(256, |clock| async move { MemoryStore::new(clock) });
}
