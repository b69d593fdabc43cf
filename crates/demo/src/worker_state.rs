//! Reads the state of the worker for reports, and starts replays.

use std::time::Duration;

use lazaret::prelude::*;
use lazaret::query::Query;
use lazaret::sqlite::SqliteStore;
use lazaret::store::{
    Action, Command, GroupsRequest, OperationState, Operations, PlanRequest, Result, RolloutPolicy,
    Selection, Triage,
};
use lazaret::{FuseState, Handle};

use crate::protocol;
use crate::worker::queue;

/// The maximum number of blocked customers in a report.
const MAX_CUSTOMERS: usize = 16;
/// The maximum number of orders per customer in a report.
const MAX_ORDERS: usize = 12;
/// The maximum number of groups in a report.
const MAX_GROUPS: usize = 8;

/// The number of letters per second in a replay.
const REPLAY_RATE: f64 = 15.0;

/// The query for the letters of a replay: dead letters caused by the bank.
pub(crate) const REPLAY_QUERY: &str = "state:dead reason:DEPENDENCY_UNAVAILABLE";

/// Reads the current state.
pub(crate) async fn state(store: &SqliteStore, handle: &Handle) -> Result<protocol::State> {
    let queue = queue();
    let counts = store.counts(&queue).await?;
    let letters = LetterState::ALL.iter().map(|state| (state.as_str().to_owned(), counts.of(*state)));
    let groups = store
        .groups(&GroupsRequest { queue: Some(queue.clone()), limit: MAX_GROUPS, ..Default::default() })
        .await?;
    let latest = store.operations(None, 1).await?.operations.into_iter().next();
    let fuse = match handle.fuse() {
        Some(FuseState::Blown { why }) => Some(why),
        _ => None,
    };
    Ok(protocol::State {
        letters: letters.collect(),
        blocked: counts.sequences,
        customers: customers(store, &queue).await?,
        groups: groups.groups.into_iter().map(group).collect(),
        operation: latest.map(operation),
        in_flight: handle.in_flight(),
        fuse,
    })
}

async fn customers(store: &SqliteStore, queue: &QueueName) -> Result<Vec<protocol::Blocked>> {
    let now = Timestamp::now();
    let mut customers = Vec::new();
    for head in store.heads(queue, None, MAX_CUSTOMERS).await?.heads {
        let count = store.sequence_size(queue, &head.sequence).await?;
        let orders = store.sequence(queue, &head.sequence, 0, MAX_ORDERS).await?;
        let due = head.due_at.map(|due| due.duration_since(now).as_millis());
        customers.push(protocol::Blocked {
            customer: head.sequence.to_string(),
            state: head.state.as_str().to_owned(),
            reason: head.cause.map(|cause| cause.reason.to_string()).unwrap_or_default(),
            attempts: head.attempts,
            due_ms: due.map(|due| u64::try_from(due).unwrap_or(0)),
            orders: orders.iter().map(|letter| letter.message.id.to_string()).collect(),
            count,
        });
    }
    Ok(customers)
}

fn group(group: lazaret::store::Group) -> protocol::Group {
    protocol::Group {
        id: group.id.fingerprint.to_string(),
        reason: group.reason.to_string(),
        message: group.message,
        open: group.counts.open(),
        dead: group.counts.of(LetterState::Dead),
        behind: group.blocked_behind,
    }
}

fn operation(operation: lazaret::store::Operation) -> protocol::Operation {
    protocol::Operation {
        id: operation.id.to_string(),
        state: operation.state.as_str().to_owned(),
        letters: operation.letters,
        ok: operation.ok,
        failed_again: operation.failed_again,
        skipped: operation.skipped,
        note: operation.note,
    }
}

/// Replays the dead letters of the bank as `lazaret retry` does: one letter first, then more, pausing
/// when letters fail again. If a paused replay exists, resumes it instead. Returns a log message.
pub(crate) async fn replay(store: &SqliteStore, handle: &Handle) -> Result<String> {
    let by = Actor::new("demo", "library", "the bank is up again");
    let latest = store.operations(None, 1).await?.operations.into_iter().next();
    if let Some(latest) = latest.filter(|latest| !latest.state.is_over()) {
        let id = latest.id;
        if latest.state == OperationState::Paused {
            store.command(id, Command::Resume, &by).await?;
            handle.wake();
            return Ok(format!("replay {id} resumed"));
        }
        return Ok(format!("replay {id} is already {}", latest.state));
    }
    let query = Query::parse(REPLAY_QUERY).map_err(|error| {
        lazaret::store::StoreError::not_done(lazaret::store::ErrorKind::Invalid, "replay", error.to_string())
    })?;
    let request = PlanRequest {
        action: Action::Retry,
        selection: Selection::Query(query),
        valid_for: Duration::from_secs(60),
        max_letters: 100_000,
    };
    let plan = store.freeze(&request, &by).await?;
    if plan.letters == 0 {
        return Ok("nothing to replay: no dead letters caused by the bank".to_owned());
    }
    // Slow enough to watch.
    let rollout = RolloutPolicy { rate: Some(REPLAY_RATE), ..RolloutPolicy::default() };
    let operation = store.begin(plan.id, &rollout, &by).await?;
    handle.wake();
    Ok(format!(
        "replay {} started: {} dead letters, one first, then five, then the rest",
        operation.id, plan.letters
    ))
}
