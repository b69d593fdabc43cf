//! Replay of all letters of a store, by a durable operation on a running consumer.

use std::sync::Arc;
use std::time::{Duration, Instant};

use lazaret_core::query::Query;
use lazaret_core::store::{Action, Actor, PlanRequest, RolloutPolicy, Selection};
use lazaret_core::{HandlerError, Store};
use lazaret_engine::Options;
use tokio_util::sync::CancellationToken;

use crate::consumer::consumer;
use crate::core::options;
use crate::source::Plan;

/// The poll interval of the operation. Each look makes the store commit what its redo log holds.
const LOOK: Duration = Duration::from_millis(100);
/// The number of attempts at once.
pub(crate) const CONCURRENCY: usize = 256;

/// The times of a replay.
pub(crate) struct Replayed {
    /// To freeze the plan.
    pub(crate) frozen: Duration,
    /// From the begin of the operation to its end.
    pub(crate) took: Duration,
}

/// Freezes a plan of all letters, and carries it out with a no-op handler.
pub(crate) async fn replay<S: Store + 'static>(store: &Arc<S>, letters: usize) -> Replayed {
    let run = Options { until_idle: false, concurrency: CONCURRENCY, ..options() };
    let consumer = consumer(&Plan::uniform(0, 1), store, run, nothing);
    let by = Actor::new("bench", "library", "measuring");
    let started = Instant::now();
    let request = PlanRequest {
        action: Action::Retry,
        selection: Selection::Query(Query::everything()),
        valid_for: Duration::from_secs(600),
        max_letters: u64::MAX,
    };
    let plan = store.freeze(&request, &by).await.expect("the plan is frozen");
    let frozen = started.elapsed();
    let started = Instant::now();
    let operation =
        store.begin(plan.id, &RolloutPolicy::unlimited(), &by).await.expect("the operation begins");
    let drain = CancellationToken::new();
    let running = tokio::spawn(consumer.run(drain.clone()));
    let done = loop {
        let now = store.operation(operation.id).await.expect("the store answers").expect("it was begun");
        if now.state.is_over() {
            break now;
        }
        tokio::time::sleep(LOOK).await;
    };
    // Not the time of the last look.
    let took = match done.ended_at {
        Some(ended) => Duration::try_from(ended.duration_since(operation.created_at)).unwrap_or_default(),
        None => started.elapsed(),
    };
    assert_eq!(
        (done.ok, done.failed_again, done.skipped),
        (letters as u64, 0, 0),
        "every letter was handled"
    );
    drain.cancel();
    running.await.expect("the engine does not panic").expect("the engine ends without an error");
    Replayed { frozen, took }
}

/// A handler that succeeds.
pub(crate) async fn nothing() -> Result<(), HandlerError> {
    Ok(())
}
