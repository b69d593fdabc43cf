//! The status of consumers.

use std::collections::BTreeMap;

use axum::extract::State;
use jiff::Timestamp;
use lazaret_api::{
    Activity, Breaker, BreakerCause, Consumer, ConsumerState, Fuse, Instance, InstanceList, LetterError,
    OnDead, Pause, PauseScope, QueueStatus, Status, StoreCapabilities, StreamIncarnation,
};
use lazaret_core::ConsumerName;
use lazaret_core::policy::BreakerState;
use lazaret_core::store::{Counts, Instances, QueueSummary};
use lazaret_engine::{FuseState, Handle};
use serde::Deserialize;

use super::operations::{add_excluded, visible};
use crate::activity;
use crate::api_error::{ApiError, Result};
use crate::app::App;
use crate::auth::Caller;
use crate::erasure;
use crate::extract::{Name, Params};
use crate::registry::Entry;

/// The maximum number of operations.
const OPERATIONS: usize = 200;
/// The maximum number of operations whose plans are read for the letters that they exclude.
const PLANS: usize = 20;

pub(crate) async fn status(State(app): State<App>, caller: Caller) -> Result<axum::Json<Status>> {
    let mut queues = queues(&app).await?;
    queues.retain(|consumer, _| caller.may_use(consumer));
    let mut consumers = Vec::new();
    for (name, entry) in app.registry.all().into_iter().filter(|(name, _)| caller.may_use(name)) {
        let own = queues.remove(&name).unwrap_or_default();
        consumers.push(consumer(&app, &name, Some(entry), own).await?);
    }
    for (name, own) in queues {
        consumers.push(consumer(&app, &name, None, own).await?);
    }
    consumers.sort_by(|a, b| a.name.cmp(&b.name));
    let mut operations = visible(&app, &caller, &app.store.under_way(OPERATIONS).await?).await?;
    let latest = operations.len().min(PLANS);
    add_excluded(&app, &mut operations[..latest]).await?;
    let store = StoreCapabilities::from(&app.store.capabilities().await?);
    let instances = visible_instances(&app, &caller).await?;
    let erasure = erasure::in_progress(&app.store.scrubbed().await?);
    Ok(axum::Json(Status { consumers, operations, store, instances, erasure }))
}

/// The processes that share the store.
pub(crate) async fn instances(State(app): State<App>, caller: Caller) -> Result<axum::Json<InstanceList>> {
    Ok(axum::Json(InstanceList { instances: visible_instances(&app, &caller).await? }))
}

/// The instances, with the consumers that the caller may use.
async fn visible_instances(app: &App, caller: &Caller) -> Result<Vec<Instance>> {
    let Some(store) = &app.instances else { return Ok(Vec::new()) };
    let mut instances: Vec<Instance> = store.instances().await?.iter().map(Instance::from).collect();
    if !caller.identity.consumers.is_empty() {
        for instance in &mut instances {
            instance.consumers.retain(|consumer| caller.may_use(consumer));
            instance.partitions.retain(|partition| caller.may_use(&partition.consumer));
        }
        instances.retain(|instance| !instance.consumers.is_empty());
    }
    Ok(instances)
}

/// The throughput of the consumers of this process.
pub(crate) async fn activity(
    State(app): State<App>,
    caller: Caller,
    Params(NoParams {}): Params<NoParams>,
) -> axum::Json<Activity> {
    activity::sample(&app);
    let at = app.clock.now();
    let mut consumers = app.activity.at(at);
    consumers.retain(|consumer| caller.may_use(&consumer.name));
    axum::Json(Activity { bucket_seconds: activity::BUCKET_SECONDS.unsigned_abs(), at, consumers })
}

/// No parameters.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct NoParams {}

pub(crate) async fn show(
    State(app): State<App>,
    caller: Caller,
    Name(name): Name,
) -> Result<axum::Json<Consumer>> {
    caller.require_consumer(&name)?;
    let own = queues(&app).await?.remove(&name).unwrap_or_default();
    let entry = app.registry.entry(&name);
    let is_known = entry.is_some() || !own.is_empty();
    let shown = consumer(&app, &name, entry, own).await?;
    // A consumer that runs elsewhere and has no letters may be known by its pauses alone.
    if !is_known && shown.pauses.is_empty() {
        return Err(ApiError::not_found("consumer", name));
    }
    Ok(axum::Json(shown))
}

/// Reads the queues by consumer.
async fn queues(app: &App) -> Result<BTreeMap<String, Vec<QueueSummary>>> {
    let mut by_consumer: BTreeMap<String, Vec<QueueSummary>> = BTreeMap::new();
    for summary in app.store.queues().await? {
        by_consumer.entry(summary.queue.consumer().to_owned()).or_default().push(summary);
    }
    Ok(by_consumer)
}

/// Assembles the status of a consumer from its handle and the store.
async fn consumer(
    app: &App,
    name: &str,
    entry: Option<Entry>,
    mut queues: Vec<QueueSummary>,
) -> Result<Consumer> {
    let handle = entry.as_ref().and_then(|entry| entry.handle.as_ref());
    for queue in handle.iter().flat_map(|handle| handle.queues()) {
        if !queues.iter().any(|known| known.queue == *queue) {
            queues.push(QueueSummary {
                queue: queue.clone(),
                counts: Counts::default(),
                oldest: None,
                next_expiry: None,
            });
        }
    }
    let pauses = match handle {
        Some(handle) => handle.pauses(),
        None => app.store.pauses(&ConsumerName::from(name)).await?,
    };
    let pauses: Vec<Pause> = pauses.iter().map(Pause::from).collect();
    let paused = pauses.iter().find(|pause| pause.scope == PauseScope::Consumer).cloned();
    let state = match entry.as_ref().map_or(ConsumerState::Elsewhere, |entry| entry.state) {
        ConsumerState::Running if paused.is_some() => ConsumerState::Paused,
        state => state,
    };
    let stats = handle.map(Handle::stats);
    let states = |pick: fn(&lazaret_api::StateCounts) -> u64| {
        queues.iter().map(|queue| pick(&(&queue.counts).into())).sum()
    };
    // The handle of an earlier run stays.
    let running = handle.filter(|_| matches!(state, ConsumerState::Running | ConsumerState::Paused));
    let in_memory = |queue: &QueueSummary| running.and_then(|handle| handle.failing_since(&queue.queue));
    let oldest = queues.iter().flat_map(|queue| [queue.oldest, in_memory(queue)]).flatten().min();
    Ok(Consumer {
        name: name.to_owned(),
        state,
        error: entry
            .as_ref()
            .and_then(|entry| entry.error.clone())
            .or_else(|| source_error(running, || app.registry.notice_of(name)))
            .or_else(|| app.registry.store_notice_of(name).map(|notice| notice.why))
            .map(|error| app.options.redaction.texts().redact(&error).into_owned()),
        paused,
        pauses,
        lag: handle.and_then(Handle::lag),
        in_flight: handle.map(Handle::in_flight),
        handled: stats.map(|stats| stats.handled),
        failed: stats.map(|stats| stats.failed),
        retrying: states(|counts| counts.retrying),
        dead: states(|counts| counts.dead),
        parked: states(|counts| counts.parked),
        quarantined: states(|counts| counts.quarantined),
        waiting: states(|counts| counts.waiting),
        oldest_age_seconds: oldest.map(|oldest| age(oldest, app.clock.now())),
        attempt_age_seconds: running.and_then(Handle::attempt_age).map(|age| age.as_secs_f64()),
        fuse: fuse(handle),
        breaker: breaker(handle),
        fuse_why: match handle.and_then(Handle::fuse) {
            Some(FuseState::Blown { why }) => Some(why),
            _ => None,
        },
        breaker_cause: handle.and_then(|handle| breaker_cause(app, handle)),
        handler: app.registry.handler_address(name),
        on_dead: handle.and_then(Handle::on_dead).map(OnDead::from),
        store_trouble: handle.is_some_and(Handle::is_store_failing),
        incarnations: StreamIncarnation::recreated(&app.store.incarnations(&ConsumerName::from(name)).await?),
        in_broker: app.registry.count_in_broker(name),
        held_by: running.and_then(Handle::held_by).map(str::to_owned),
        queues: queues.iter().map(queue_status).collect(),
    })
}

/// Why the source of a running consumer reads nothing: what it says itself, the temporary error that it met, what is full, or what the
/// store says.
fn source_error(running: Option<&Handle>, notice: impl FnOnce() -> Option<String>) -> Option<String> {
    let handle = running?;
    notice().or_else(|| handle.source_error()).or_else(|| handle.held_back())
}

/// The age in seconds; zero when the local clock is behind the store's.
fn age(since: Timestamp, now: Timestamp) -> f64 {
    now.duration_since(since).as_secs_f64().max(0.0)
}

fn queue_status(summary: &QueueSummary) -> QueueStatus {
    QueueStatus {
        queue: summary.queue.to_string(),
        sequences: summary.counts.sequences,
        states: (&summary.counts).into(),
        oldest_at: summary.oldest,
        next_expiry_at: summary.next_expiry,
    }
}

fn fuse(handle: Option<&Handle>) -> Fuse {
    match handle.and_then(Handle::fuse) {
        None => Fuse::None,
        Some(FuseState::Intact) => Fuse::Intact,
        Some(FuseState::Blown { .. }) => Fuse::Blown,
    }
}

fn breaker_cause(app: &App, handle: &Handle) -> Option<BreakerCause> {
    let lazaret_engine::BreakerCause { reason, mut error_type, mut message, at, .. } =
        handle.breaker_cause()?;
    let texts = app.options.redaction.texts();
    texts.apply(&mut error_type);
    texts.apply_to_cut(&mut message, lazaret_engine::BreakerCause::MESSAGE_BYTES);
    Some(BreakerCause {
        reason: reason.to_string(),
        error: LetterError { error_type, message },
        opened_at: at,
        next_probe_at: match handle.breaker() {
            Some(BreakerState::Open { until }) => Some(until),
            _ => None,
        },
    })
}

fn breaker(handle: Option<&Handle>) -> Breaker {
    match handle.and_then(Handle::breaker) {
        None => Breaker::None,
        Some(BreakerState::Closed) => Breaker::Closed,
        Some(BreakerState::Open { .. }) => Breaker::Open,
        Some(BreakerState::HalfOpen) => Breaker::HalfOpen,
    }
}
