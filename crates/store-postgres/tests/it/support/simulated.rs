//! A store for the simulation, whose runtime has a paused clock and no I/O: connections live on a runtime of their own.

use std::sync::Arc;

use lazaret_core::Clock;
use lazaret_core::store::{LetterStore, Store};
use lazaret_simulation::{Mutation, Report, Scale, run_on};
use lazaret_store_postgres::PostgresStore;
use tokio::runtime::{Handle, Runtime};
use tokio_util::context::TokioContext;

use crate::support::{TestSchema, server};

/// A store whose calls find the runtime of its connections.
struct Simulated {
    store: PostgresStore,
    runtime: Handle,
}

lazaret_core::forward_store! {
    impl LetterStore for Simulated {}
    impl Operations for Simulated {}
    impl Triage for Simulated {}
    impl Audit for Simulated {}

    inner: |this| &this.store;
    around: |this, _call, run| TokioContext::new(run, this.runtime.clone()).await;
}

/// Runs one seed on a schema of its own. The faults are those of the simulation: requests and answers that are lost or late, outages,
/// crashes at any call.
pub(crate) fn run(scale: Scale, seed: u64, mutation: Option<Mutation>) -> Report {
    let schema = TestSchema::new(server().expect("the simulation runs only with a server"));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let report = run_on(scale, seed, mutation, |clock| open(&schema, &runtime, clock));
    runtime.shutdown_background();
    report
}

fn open(schema: &TestSchema, runtime: &Runtime, clock: Arc<dyn Clock>) -> Arc<dyn Store> {
    let opening = async {
        let store = schema.open(Some(clock)).await;
        // Starts the connection for notifications here, and not at the first subscription.
        drop(store.changes(Vec::new()));
        store
    };
    // The thread of the simulation is inside of its own runtime.
    let store = std::thread::scope(|scope| scope.spawn(|| runtime.block_on(opening)).join().unwrap());
    Arc::new(Simulated { store, runtime: runtime.handle().clone() })
}
