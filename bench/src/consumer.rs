//! Consumers on a durable store.

use std::sync::Arc;
use std::time::{Duration, Instant};

use lazaret_core::Store;
use lazaret_core::handler::Handler;
use lazaret_engine::{Consumer, Options};

use crate::source::{BenchSource, Plan};

/// The consumer of all runs; its only component has the same name.
pub(crate) const CONSUMER: &str = "bench";

/// Creates a consumer of this plan on this store.
pub(crate) fn consumer<S: Store + 'static, A: 'static>(
    plan: &Arc<Plan>,
    store: &Arc<S>,
    options: Options,
    handler: impl Handler<A>,
) -> Consumer {
    let builder = Consumer::builder(CONSUMER).source(BenchSource::new(plan.clone())).store(store.clone());
    builder.handler(handler).options(options).build().expect("the options of the benchmarks are valid")
}

/// Waits until the engine's tasks have ended and released the store.
pub(crate) async fn let_go<S>(store: Arc<S>) {
    let started = Instant::now();
    while Arc::strong_count(&store) > 1 {
        assert!(started.elapsed() < Duration::from_secs(60), "the engine lets go of its store after the run");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}
