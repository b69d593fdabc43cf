//! Plans, operations and their letters.

use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use lazaret_api::{ItemPage, Operation, OperationPage, Outcome, Plan, PlanPage};
use lazaret_core::store::{self, Action, DigestKey, OperationId, PlanId};
use serde::Deserialize;

use super::page::{PageParams, cut};
use super::plan_contents::{contents, may_see_plan};
use crate::api_error::{ApiError, Result};
use crate::app::App;
use crate::auth::Caller;
use crate::cursor;
use crate::extract::{Name, Params};
use crate::ndjson::{self, Chunk, accepts_ndjson, push_line, stream_permit};
use crate::redacted::{self, item};

/// The number of plan items per store call.
const STEP: usize = 1000;
/// The most items that a page with an outcome examines.
const SCAN_LIMIT: usize = 100_000;
/// The most operations or plans that a page for a limited caller examines.
const LIST_SCAN_LIMIT: usize = 1000;

pub(crate) async fn list(
    State(app): State<App>,
    caller: Caller,
    Params(params): Params<PageParams>,
) -> Result<axum::Json<OperationPage>> {
    let mut before = cursor::read_number("operations", params.after.as_deref())?.map(OperationId);
    let limit = app.page(params.limit);
    let (mut operations, mut scanned) = (Vec::new(), 0);
    loop {
        // Never more than fit: the cursor must point behind the last operation returned.
        let page = app.store.operations(before, limit - operations.len()).await?;
        scanned += page.operations.len();
        before = page.next;
        operations.extend(visible(&app, &caller, &page.operations).await?);
        if before.is_none() || operations.len() >= limit || scanned >= LIST_SCAN_LIMIT {
            break;
        }
    }
    let next = before.map(|next| cursor::write("operations", &next.0.to_string()));
    Ok(axum::Json(OperationPage { operations, next }))
}

/// Those of these operations that the caller may see.
pub(super) async fn visible(
    app: &App,
    caller: &Caller,
    operations: &[store::Operation],
) -> Result<Vec<Operation>> {
    let mut visible = Vec::with_capacity(operations.len());
    for operation in operations {
        if may_see_plan(app, caller, operation.plan, operation.letters, &operation.by.who).await? {
            visible.push(Operation::from(operation));
        }
    }
    Ok(visible)
}

/// Adds the letters that the plans of these operations exclude.
pub(super) async fn add_excluded(app: &App, operations: &mut [Operation]) -> Result<()> {
    for operation in operations {
        let Ok(id) = operation.plan.parse::<PlanId>() else { continue };
        if let Some(plan) = app.store.plan(id).await? {
            *operation = operation.clone().with_excluded(&plan);
        }
    }
    Ok(())
}

pub(crate) async fn show(
    State(app): State<App>,
    caller: Caller,
    Name(id): Name,
) -> Result<axum::Json<Operation>> {
    let operation = operation(&app, &caller, &id).await?;
    let plan = app.store.plan(operation.plan).await?;
    let shown = Operation::from(&operation);
    Ok(axum::Json(match plan {
        Some(plan) => shown.with_excluded(&plan),
        None => shown,
    }))
}

/// The operation of this name, if the caller may use the consumers of its letters.
pub(crate) async fn operation(app: &App, caller: &Caller, id: &str) -> Result<store::Operation> {
    let missing = || ApiError::not_found("operation", id);
    let id: OperationId = id.parse().map_err(|_| missing())?;
    let operation = app.store.operation(id).await?.ok_or_else(missing)?;
    let is_visible = may_see_plan(app, caller, operation.plan, operation.letters, &operation.by.who).await?;
    is_visible.then_some(operation).ok_or_else(missing)
}

pub(crate) async fn items(
    State(app): State<App>,
    caller: Caller,
    Name(id): Name,
    Params(params): Params<ItemParams>,
    headers: HeaderMap,
) -> Result<Response> {
    let id = operation(&app, &caller, &id).await?.id;
    let from = cursor::read_number("items", params.after.as_deref())?.unwrap_or(0);
    if accepts_ndjson(&headers) {
        let permit = stream_permit(&app, &caller)?;
        let key = app.store.digest_key().await?;
        let lines = ItemLines { app: app.clone(), caller, key, operation: id, outcome: params.outcome };
        let first = lines.clone().page(from, params.limit.unwrap_or(usize::MAX)).await?;
        let next_page = move |(from, left)| lines.clone().page(from, left);
        return Ok(ndjson::respond(&app, first, permit, next_page));
    }
    Ok(axum::Json(item_page(&app, &caller, id, from, &params).await?).into_response())
}

/// The letters of an operation from this one on, with the wanted outcome.
async fn item_page(
    app: &App,
    caller: &Caller,
    id: OperationId,
    mut from: u64,
    params: &ItemParams,
) -> Result<ItemPage> {
    let limit = app.page(params.limit);
    let key = app.store.digest_key().await?;
    let Some(outcome) = params.outcome else {
        let items = app.store.items(id, from, limit + 1).await?;
        return Ok(page(app, caller, &key, items, limit));
    };
    let _turn = app.scans.take(caller).await?;
    let (mut found, mut scanned) = (Vec::new(), 0);
    loop {
        let items = app.store.items(id, from, STEP).await?;
        scanned += items.len();
        let is_last = items.len() < STEP;
        from = items.last().map_or(from, |last| last.ordinal + 1);
        found.extend(items.into_iter().filter(|item| item.outcome.map(Outcome::from) == Some(outcome)));
        if found.len() > limit || is_last {
            return Ok(page(app, caller, &key, found, limit));
        }
        if scanned >= SCAN_LIMIT {
            let next = Some(cursor::write("items", &from.to_string()));
            let items = found.iter().map(|found| item(app, caller, &key, found)).collect();
            return Ok(ItemPage { items, next });
        }
    }
}

/// The letters of an operation, one per line: its result, once it is over.
#[derive(Clone)]
struct ItemLines {
    app: App,
    caller: Caller,
    key: DigestKey,
    operation: OperationId,
    outcome: Option<Outcome>,
}

impl ItemLines {
    /// At most so many of the letters from this one on.
    async fn page(self, from: u64, left: usize) -> Result<Chunk<(u64, usize)>> {
        let mut items = self.app.store.items(self.operation, from, STEP).await?;
        let next = items.last().filter(|_| items.len() == STEP).map(|last| last.ordinal + 1);
        if let Some(outcome) = self.outcome {
            items.retain(|item| item.outcome.map(Outcome::from) == Some(outcome));
        }
        items.truncate(left);
        let mut lines = Vec::new();
        let shown = |found: &store::Item| item(&self.app, &self.caller, &self.key, found);
        items.iter().for_each(|found| push_line(&mut lines, &shown(found)));
        let left = left - items.len();
        Ok(Chunk { lines, next: next.filter(|_| left > 0).map(|next| (next, left)) })
    }
}

/// The letters of an operation to return.
#[derive(Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(crate) struct ItemParams {
    outcome: Option<Outcome>,
    after: Option<String>,
    limit: Option<usize>,
}

/// The plans from which an operation can be started.
pub(crate) async fn list_plans(
    State(app): State<App>,
    caller: Caller,
    Params(params): Params<PageParams>,
) -> Result<axum::Json<PlanPage>> {
    let mut before = cursor::read_number("plans", params.after.as_deref())?.map(PlanId);
    let limit = app.page(params.limit);
    let key = app.store.digest_key().await?;
    // One more than fit, to know the last page.
    let step = limit + 1;
    let (mut plans, mut scanned) = (Vec::new(), 0);
    loop {
        let read = app.store.drafts(before, step).await?;
        scanned += read.len();
        for plan in &read {
            if may_see_plan(&app, &caller, plan.id, plan.letters, &plan.by.who).await? {
                if plans.len() == limit {
                    return Ok(plan_page(plans, before));
                }
                plans.push(shown(&app, &caller, &key, plan).await?);
            }
            before = Some(plan.id);
        }
        if read.len() < step {
            return Ok(plan_page(plans, None));
        }
        if scanned >= LIST_SCAN_LIMIT {
            return Ok(plan_page(plans, before));
        }
    }
}

fn plan_page(plans: Vec<Plan>, next: Option<PlanId>) -> axum::Json<PlanPage> {
    let next = next.map(|next| cursor::write("plans", &next.0.to_string()));
    axum::Json(PlanPage { plans, next })
}

pub(crate) async fn show_plan(
    State(app): State<App>,
    caller: Caller,
    Name(id): Name,
) -> Result<axum::Json<Plan>> {
    let plan = plan(&app, &caller, &id).await?;
    let key = app.store.digest_key().await?;
    Ok(axum::Json(shown(&app, &caller, &key, &plan).await?))
}

/// A plan with what its consumers decide, approval and the rate, and with the number of letters that would run out of order.
pub(crate) async fn shown(app: &App, caller: &Caller, key: &DigestKey, plan: &store::Plan) -> Result<Plan> {
    let default_rate = store::RolloutPolicy::default().rate;
    if !runs_handlers(plan.action) {
        return Ok(redacted::plan(app, caller, key, Plan::of(plan, false, default_rate, 0)));
    }
    let contents = contents(app, plan.id).await?;
    let consumers = &contents.consumers;
    let needs_approval = consumers.iter().any(|consumer| app.registry.needs_approval(consumer));
    let rate = app.registry.slowest(consumers.iter().map(String::as_str)).unwrap_or(default_rate);
    Ok(redacted::plan(app, caller, key, Plan::of(plan, needs_approval, rate, contents.out_of_order)))
}

/// Reads a plan, if the caller may use the consumers of its letters.
pub(crate) async fn plan(app: &App, caller: &Caller, id: &str) -> Result<store::Plan> {
    let missing = || ApiError::not_found("plan", id);
    let id: PlanId = id.parse().map_err(|_| missing())?;
    let plan = app.store.plan(id).await?.ok_or_else(missing)?;
    let is_visible = may_see_plan(app, caller, id, plan.letters, &plan.by.who).await?;
    is_visible.then_some(plan).ok_or_else(missing)
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
    let key = app.store.digest_key().await?;
    Ok(axum::Json(page(&app, &caller, &key, items, limit)))
}

/// Cuts a page of items that was read with one item more.
fn page(app: &App, caller: &Caller, key: &DigestKey, mut items: Vec<store::Item>, limit: usize) -> ItemPage {
    let next = cut(&mut items, limit).map(|last| cursor::write("items", &(last.ordinal + 1).to_string()));
    ItemPage { items: items.iter().map(|found| item(app, caller, key, found)).collect(), next }
}

/// Returns `true` if the operation needs approval: it runs handlers, and a consumer of its letters requires a second person.
pub(crate) async fn needs_approval(app: &App, plan: &store::Plan) -> Result<bool> {
    if !runs_handlers(plan.action) || !app.registry.any_needs_approval() {
        return Ok(false);
    }
    let contents = contents(app, plan.id).await?;
    Ok(contents.consumers.iter().any(|consumer| app.registry.needs_approval(consumer)))
}

/// The default rate: that of the slowest consumer of its letters; `None` if unknown.
pub(crate) async fn default_rate(app: &App, plan: &store::Plan) -> Result<Option<Option<f64>>> {
    if !runs_handlers(plan.action) {
        return Ok(None);
    }
    let contents = contents(app, plan.id).await?;
    Ok(app.registry.slowest(contents.consumers.iter().map(String::as_str)))
}

const fn runs_handlers(action: Action) -> bool {
    matches!(action, Action::Retry | Action::Release)
}
