//! Freezing plans, carrying them out, and telling operations what to do.

use std::time::Duration;

use axum::extract::State;
use axum::http::StatusCode;
use lazaret_api::{BeginRequest, Code, CommandRequest, Operation, Plan, PlanRequest, Scope, Selection};
use lazaret_core::QueueName;
use lazaret_core::store::{self, Action, Actor, Command, ErrorKind};

use super::letters::reason_or;
use super::{Meant, meant};
use crate::app::App;
use crate::auth::Caller;
use crate::events;
use crate::extract::{Json, Name};
use crate::fault::{Fault, Result};
use crate::read::operations::{needs_approval, operation, plan, usual_rate};

/// How long a plan can be carried out unless somebody says otherwise.
const VALID_FOR: Duration = Duration::from_secs(15 * 60);
/// How long it can be carried out at most.
const VALID_AT_MOST: Duration = Duration::from_secs(24 * 3600);

/// What it takes to do this to letters.
const fn scope_of(action: Action) -> Scope {
    match action {
        Action::Retry | Action::Park | Action::Release => Scope::Triage,
        Action::Evict => Scope::Evict,
    }
}

/// A plan changes nothing, so it needs no reason; who froze it is kept, and why, if they say it.
pub(crate) async fn freeze(
    State(app): State<App>,
    caller: Caller,
    Json(request): Json<PlanRequest>,
) -> Result<(StatusCode, axum::Json<Plan>)> {
    let action = Action::from(request.action);
    caller.require(scope_of(action))?;
    let by = caller.actor(reason_or(request.reason.as_deref(), "plan"))?;
    let valid_for = request.valid_for_seconds.map_or(VALID_FOR, Duration::from_secs);
    let frozen = frozen(&app, &caller, action, &request.selection, valid_for.min(VALID_AT_MOST), &by).await?;
    let needs_approval = needs_approval(&app, &frozen).await?;
    Ok((StatusCode::CREATED, axum::Json(Plan::of(&frozen, needs_approval))))
}

async fn frozen(
    app: &App,
    caller: &Caller,
    action: Action,
    selection: &Selection,
    valid_for: Duration,
    by: &Actor,
) -> Result<store::Plan> {
    let selection = match meant(app, caller, selection)? {
        Meant::Query(query) => store::Selection::Query(query),
        Meant::Ids(ids) => {
            let mut letters = Vec::with_capacity(ids.len());
            for id in ids {
                // One that is not there is told as such by the plan: no queue has it.
                let queue = app.find_letter(id).await?.map_or_else(nowhere, |letter| letter.queue);
                letters.push((queue, id));
            }
            store::Selection::Letters(letters)
        }
    };
    let max_letters = app.options.limits.plan_letters;
    let request = store::PlanRequest { action, selection, valid_for, max_letters };
    Ok(app.store.freeze(&request, by).await?)
}

/// A queue that cannot be: consumers and components have names.
fn nowhere() -> QueueName {
    QueueName::of("", "")
}

/// Carries out a plan, or freezes and carries out in one call.
pub(crate) async fn begin(
    State(app): State<App>,
    caller: Caller,
    Json(request): Json<BeginRequest>,
) -> Result<(StatusCode, axum::Json<Operation>)> {
    let by = caller.actor(request.reason.as_deref())?;
    let given = request.selection != Selection::default();
    let plan = match (&request.plan, request.action) {
        (Some(_), Some(_)) => return Err(Fault::invalid("/plan", "give a plan or an action, not both")),
        (Some(_), None) if given => {
            return Err(Fault::invalid("/plan", "a plan knows its letters: give no query and no ids"));
        }
        (None, None) => return Err(Fault::invalid("/plan", "give a plan, or an action and a query or ids")),
        (Some(id), None) => {
            let plan = plan(&app, id).await?;
            caller.require(scope_of(plan.action))?;
            plan
        }
        (None, Some(action)) => {
            let action = Action::from(action);
            caller.require(scope_of(action))?;
            // What is wrong with how it shall be done is told before anything is frozen.
            request.rollout().check().map_err(|why| Fault::invalid("/", why))?;
            frozen(&app, &caller, action, &request.selection, VALID_FOR, &by).await?
        }
    };
    let mut rollout = request.rollout();
    rollout.needs_approval |= needs_approval(&app, &plan).await?;
    if request.rate.is_none()
        && let Some(usual) = usual_rate(&app, &plan).await?
    {
        rollout.rate = usual;
    }
    let begun = app.store.begin(plan.id, &rollout, &by).await.map_err(|error| match error.kind() {
        ErrorKind::Conflict => Fault::new(Code::PlanStale, error.context()),
        _ => error.into(),
    })?;
    Ok((StatusCode::CREATED, axum::Json(moved_on(&app, &begun))))
}

/// Lets consumers see at once what was said, and tells those who listen.
fn moved_on(app: &App, operation: &store::Operation) -> Operation {
    for entry in app.registry.all().into_values() {
        if let Some(handle) = entry.handle {
            handle.wake();
        }
    }
    let wire = Operation::from(operation);
    events::tell(app, wire.clone());
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
    let known = operation(&app, &id).await?;
    if !matches!(command, Command::Approve | Command::Reject) {
        // Who may not do it to letters may not let others do it either.
        caller.require(scope_of(known.action))?;
    }
    let told = app.store.command(known.id, command, &by).await?;
    Ok(axum::Json(moved_on(&app, &told)))
}

/// One handler per command: each has a route, and a permission, of its own.
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
