//! Plans, operations and their letters.

use std::collections::BTreeSet;

use axum::extract::State;
use lazaret_api::{Item, ItemPage, Operation, OperationPage, Plan};
use lazaret_core::store::{self, Action, OperationId, PlanId};

use super::page::{PageParams, cut};
use crate::api_error::{ApiError, Result};
use crate::app::App;
use crate::auth::Caller;
use crate::cursor;
use crate::extract::{Name, Params};

/// The number of plan items per store call.
const STEP: usize = 1000;

pub(crate) async fn list(
    State(app): State<App>,
    Params(params): Params<PageParams>,
) -> Result<axum::Json<OperationPage>> {
    let before = cursor::read_number("operations", params.after.as_deref())?.map(OperationId);
    let page = app.store.operations(before, app.page(params.limit)).await?;
    Ok(axum::Json(OperationPage {
        operations: page.operations.iter().map(Operation::from).collect(),
        next: page.next.map(|next| cursor::write("operations", &next.0.to_string())),
    }))
}

pub(crate) async fn show(
    State(app): State<App>,
    caller: Caller,
    Name(id): Name,
) -> Result<axum::Json<Operation>> {
    Ok(axum::Json((&operation(&app, &caller, &id).await?).into()))
}

/// The operation of this name, if the caller may use the consumers of its letters.
pub(crate) async fn operation(app: &App, caller: &Caller, id: &str) -> Result<store::Operation> {
    let missing = || ApiError::not_found("operation", id);
    let id: OperationId = id.parse().map_err(|_| missing())?;
    let operation = app.store.operation(id).await?.ok_or_else(missing)?;
    may_use_plan(app, caller, operation.plan).await?.then_some(operation).ok_or_else(missing)
}

async fn may_use_plan(app: &App, caller: &Caller, plan: PlanId) -> Result<bool> {
    if caller.identity.consumers.is_empty() {
        return Ok(true);
    }
    Ok(consumers(app, plan).await?.iter().all(|consumer| caller.may_use(consumer)))
}

pub(crate) async fn items(
    State(app): State<App>,
    caller: Caller,
    Name(id): Name,
    Params(params): Params<PageParams>,
) -> Result<axum::Json<ItemPage>> {
    let id = operation(&app, &caller, &id).await?.id;
    let (from, limit) = (cursor::read_number("items", params.after.as_deref())?, app.page(params.limit));
    let items = app.store.items(id, from.unwrap_or(0), limit + 1).await?;
    Ok(axum::Json(page(items, limit)))
}

pub(crate) async fn show_plan(
    State(app): State<App>,
    caller: Caller,
    Name(id): Name,
) -> Result<axum::Json<Plan>> {
    let plan = plan(&app, &caller, &id).await?;
    Ok(axum::Json(shown(&app, &plan).await?))
}

/// A plan with what its consumers decide: approval, and the rate.
pub(crate) async fn shown(app: &App, plan: &store::Plan) -> Result<Plan> {
    let rate = default_rate(app, plan).await?.unwrap_or(store::RolloutPolicy::default().rate);
    Ok(Plan::of(plan, needs_approval(app, plan).await?, rate))
}

/// Reads a plan, if the caller may use the consumers of its letters.
pub(crate) async fn plan(app: &App, caller: &Caller, id: &str) -> Result<store::Plan> {
    let missing = || ApiError::not_found("plan", id);
    let id: PlanId = id.parse().map_err(|_| missing())?;
    let plan = app.store.plan(id).await?.ok_or_else(missing)?;
    may_use_plan(app, caller, id).await?.then_some(plan).ok_or_else(missing)
}

pub(crate) async fn plan_items(
    State(app): State<App>,
    caller: Caller,
    Name(id): Name,
    Params(params): Params<PageParams>,
) -> Result<axum::Json<ItemPage>> {
    let id = plan(&app, &caller, &id).await?.id;
    let (from, limit) = (cursor::read_number("items", params.after.as_deref())?, app.page(params.limit));
    let items = app.store.plan_items(id, from.unwrap_or(0), limit + 1).await?;
    Ok(axum::Json(page(items, limit)))
}

/// Cuts a page of items that was read with one item more.
fn page(mut items: Vec<store::Item>, limit: usize) -> ItemPage {
    let next = cut(&mut items, limit).map(|last| cursor::write("items", &(last.ordinal + 1).to_string()));
    ItemPage { items: items.iter().map(Item::from).collect(), next }
}

/// Returns `true` if the operation needs approval: it runs handlers, and a consumer of its letters requires a second person.
pub(crate) async fn needs_approval(app: &App, plan: &store::Plan) -> Result<bool> {
    if !runs_handlers(plan.action) || !app.registry.any_needs_approval() {
        return Ok(false);
    }
    Ok(consumers(app, plan.id).await?.iter().any(|consumer| app.registry.needs_approval(consumer)))
}

/// The default rate: that of the slowest consumer of its letters; `None` if unknown.
pub(crate) async fn default_rate(app: &App, plan: &store::Plan) -> Result<Option<Option<f64>>> {
    if !runs_handlers(plan.action) {
        return Ok(None);
    }
    let consumers = consumers(app, plan.id).await?;
    Ok(app.registry.slowest(consumers.iter().map(String::as_str)))
}

const fn runs_handlers(action: Action) -> bool {
    matches!(action, Action::Retry | Action::Release)
}

/// The consumers of a plan's letters.
async fn consumers(app: &App, plan: PlanId) -> Result<BTreeSet<String>> {
    let (mut found, mut from) = (BTreeSet::new(), 0);
    loop {
        let items = app.store.plan_items(plan, from, STEP).await?;
        for item in &items {
            if !found.contains(item.queue.consumer()) {
                found.insert(item.queue.consumer().to_owned());
            }
        }
        match items.last() {
            Some(last) if items.len() == STEP => from = last.ordinal + 1,
            _ => return Ok(found),
        }
    }
}
