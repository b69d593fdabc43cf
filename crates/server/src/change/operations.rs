//! Freezes plans, starts operations and commands them.

use std::time::Duration;

use axum::extract::State;
use axum::http::StatusCode;
use lazaret_api::{BeginRequest, Code, CommandRequest, Operation, Plan, PlanRequest, Scope, Selection};
use lazaret_core::QueueName;
use lazaret_core::store::{self, Action, Actor, Command, ErrorKind};

use super::reason::reason_or;
use super::selection::{Selected, select};
use crate::api_error::{ApiError, Result};
use crate::app::App;
use crate::auth::Caller;
use crate::extract::{Json, Name};
use crate::operation_watch;
use crate::read::operations::{default_rate, needs_approval, operation, plan, shown};

/// The default validity of a plan.
const VALID_FOR: Duration = Duration::from_secs(15 * 60);
/// The maximum validity of a plan.
const MAX_VALID_FOR: Duration = Duration::from_secs(24 * 3600);

/// The scope that an action needs.
pub(crate) const fn scope_of(action: Action) -> Scope {
    match action {
        Action::Retry | Action::Park | Action::Release => Scope::Triage,
        Action::Evict => Scope::Evict,
    }
}

/// Freezes a plan. It changes nothing and needs no reason; the caller is recorded.
pub(crate) async fn freeze(
    State(app): State<App>,
    caller: Caller,
    Json(request): Json<PlanRequest>,
) -> Result<(StatusCode, axum::Json<Plan>)> {
    let action = Action::from(request.action);
    caller.require(scope_of(action))?;
    let by = caller.actor(reason_or(request.reason.as_deref(), "plan"))?;
    let valid_for = request.valid_for_seconds.map_or(VALID_FOR, Duration::from_secs);
    let frozen = frozen(&app, &caller, action, &request.selection, valid_for.min(MAX_VALID_FOR), &by).await?;
    let key = app.store.digest_key().await?;
    Ok((StatusCode::CREATED, axum::Json(shown(&app, &caller, &key, &frozen).await?)))
}

async fn frozen(
    app: &App,
    caller: &Caller,
    action: Action,
    selection: &Selection,
    valid_for: Duration,
    by: &Actor,
) -> Result<store::Plan> {
    let selected = select(app, caller, selection)?;
    let _turn = app.scans.take(caller).await?;
    let selection = match selected {
        Selected::Query(search) => search.selection(app, action).await?,
        Selected::Ids(ids) => {
            let mut letters = Vec::with_capacity(ids.len());
            for id in ids {
                // A missing letter is reported by the plan as `not-found`: no queue has it.
                let queue = app.find_letter(caller, id).await?.map_or_else(no_queue, |letter| letter.queue);
                letters.push((queue, id));
            }
            store::Selection::Letters(letters)
        }
    };
    let limits = &app.options.limits;
    let request = store::PlanRequest { action, selection, valid_for, max_letters: limits.plan_letters };
    // Held until the plan is written, or the caller has gone.
    let _place = app.drafts.admit(&*app.store, &limits.drafts, &by.who, &request).await?;
    Ok(app.store.freeze(&request, by).await?)
}

/// A queue that cannot exist: consumers and components have names.
fn no_queue() -> QueueName {
    QueueName::of("", "")
}

/// Starts an operation from a plan, or freezes and starts in one call.
pub(crate) async fn begin(
    State(app): State<App>,
    caller: Caller,
    Json(request): Json<BeginRequest>,
) -> Result<(StatusCode, axum::Json<Operation>)> {
    let by = match request.at {
        Some(_) => caller.actor_of_schedule(request.reason.as_deref())?,
        None => caller.actor(request.reason.as_deref())?,
    };
    let given = request.selection != Selection::default();
    let plan = match (&request.plan, request.action) {
        (Some(_), Some(_)) => return Err(ApiError::invalid("/plan", "give a plan or an action, not both")),
        (Some(_), None) if given => {
            return Err(ApiError::invalid("/plan", "a plan has its own letters: give no query and no ids"));
        }
        (None, None) => {
            return Err(ApiError::invalid("/plan", "give a plan, or an action and a query or ids"));
        }
        (Some(id), None) => {
            let plan = plan(&app, &caller, id).await?;
            caller.require(scope_of(plan.action))?;
            plan
        }
        (None, Some(action)) => {
            let action = Action::from(action);
            caller.require(scope_of(action))?;
            // An invalid rollout policy is rejected before anything is frozen.
            request.rollout().check().map_err(|error| ApiError::invalid("/", error.to_string()))?;
            frozen(&app, &caller, action, &request.selection, VALID_FOR, &by).await?
        }
    };
    let mut rollout = request.rollout();
    rollout.needs_approval |= needs_approval(&app, &plan).await?;
    if request.rate.is_none()
        && let Some(rate) = default_rate(&app, &plan).await?
    {
        rollout.rate = rate;
    }
    let begun = app.store.begin(plan.id, &rollout, &by).await.map_err(|error| match error.kind() {
        ErrorKind::Conflict => ApiError::new(Code::PlanStale, error.context()),
        _ => error.into(),
    })?;
    Ok((StatusCode::CREATED, axum::Json(changed(&app, &begun).with_excluded(&plan))))
}

/// Wakes the consumers, and publishes the operation.
fn changed(app: &App, operation: &store::Operation) -> Operation {
    for entry in app.registry.all().into_values() {
        if let Some(handle) = entry.handle {
            handle.wake();
        }
    }
    let wire = Operation::from(operation);
    operation_watch::publish(app, wire.clone());
    wire
}

async fn command(
    app: App,
    caller: Caller,
    id: String,
    command: Command,
    request: CommandRequest,
) -> Result<axum::Json<Operation>> {
    let by = caller.actor(request.reason.as_deref())?;
    let known = operation(&app, &caller, &id).await?;
    if !matches!(command, Command::Approve | Command::Reject) {
        // A command needs the same scope as the action itself.
        caller.require(scope_of(known.action))?;
    }
    let operation = app.store.command(known.id, command, &by).await?;
    Ok(axum::Json(changed(&app, &operation)))
}

/// One handler per command: each has its own route and scope.
macro_rules! commands {
    ($($name:ident = $command:ident),+ $(,)?) => {
        $(pub(crate) async fn $name(
            State(app): State<App>,
            caller: Caller,
            Name(id): Name,
            Json(request): Json<CommandRequest>,
        ) -> Result<axum::Json<Operation>> {
            command(app, caller, id, Command::$command, request).await
        })+
    };
}

commands!(pause = Pause, resume = Resume, cancel = Cancel, approve = Approve, reject = Reject);
