//! Plans, operations and their letters.

use std::collections::BTreeSet;

use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use lazaret_api::{Item, ItemPage, Operation, OperationPage, Outcome, Plan, Scope};
use lazaret_core::store::{self, Action, OperationId, PlanId};
use serde::Deserialize;

use super::page::{PageParams, cut};
use crate::api_error::{ApiError, Result};
use crate::app::App;
use crate::auth::Caller;
use crate::cursor;
use crate::extract::{Name, Params};
use crate::ndjson::{self, Chunk, accepts_ndjson, push_line, stream_permit};

/// The number of plan items per store call.
const STEP: usize = 1000;
/// The most items that a page with an outcome examines.
const SCAN_LIMIT: usize = 100_000;

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

pub(super) async fn may_use_plan(app: &App, caller: &Caller, plan: PlanId) -> Result<bool> {
    if caller.identity.consumers.is_empty() {
        return Ok(true);
    }
    Ok(contents(app, plan).await?.consumers.iter().all(|consumer| caller.may_use(consumer)))
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
        let lines = ItemLines { app: app.clone(), caller, operation: id, outcome: params.outcome };
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
    let Some(outcome) = params.outcome else {
        let items = app.store.items(id, from, limit + 1).await?;
        return Ok(page(app, caller, items, limit));
    };
    let (mut found, mut scanned) = (Vec::new(), 0);
    loop {
        let items = app.store.items(id, from, STEP).await?;
        scanned += items.len();
        let is_last = items.len() < STEP;
        from = items.last().map_or(from, |last| last.ordinal + 1);
        found.extend(items.into_iter().filter(|item| item.outcome.map(Outcome::from) == Some(outcome)));
        if found.len() > limit || is_last {
            return Ok(page(app, caller, found, limit));
        }
        if scanned >= SCAN_LIMIT {
            let next = Some(cursor::write("items", &from.to_string()));
            let items = found.iter().map(|found| item(app, caller, found)).collect();
            return Ok(ItemPage { items, next });
        }
    }
}

/// The letters of an operation, one per line: its result, once it is over.
#[derive(Clone)]
struct ItemLines {
    app: App,
    caller: Caller,
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
        items.iter().for_each(|found| push_line(&mut lines, &item(&self.app, &self.caller, found)));
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

pub(crate) async fn show_plan(
    State(app): State<App>,
    caller: Caller,
    Name(id): Name,
) -> Result<axum::Json<Plan>> {
    let plan = plan(&app, &caller, &id).await?;
    Ok(axum::Json(shown(&app, &plan).await?))
}

/// A plan with what its consumers decide, approval and the rate, and with the number of letters that would run out of order.
pub(crate) async fn shown(app: &App, plan: &store::Plan) -> Result<Plan> {
    let default_rate = store::RolloutPolicy::default().rate;
    if !runs_handlers(plan.action) {
        return Ok(Plan::of(plan, false, default_rate, 0));
    }
    let Contents { consumers, out_of_order } = contents(app, plan.id).await?;
    let needs_approval = consumers.iter().any(|consumer| app.registry.needs_approval(consumer));
    let rate = app.registry.slowest(consumers.iter().map(String::as_str)).unwrap_or(default_rate);
    Ok(Plan::of(plan, needs_approval, rate, out_of_order))
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
    Ok(axum::Json(page(&app, &caller, items, limit)))
}

/// Cuts a page of items that was read with one item more.
fn page(app: &App, caller: &Caller, mut items: Vec<store::Item>, limit: usize) -> ItemPage {
    let next = cut(&mut items, limit).map(|last| cursor::write("items", &(last.ordinal + 1).to_string()));
    ItemPage { items: items.iter().map(|found| item(app, caller, found)).collect(), next }
}

/// A letter of a plan. The digest of the exact payload would let redacted values be guessed.
fn item(app: &App, caller: &Caller, item: &store::Item) -> Item {
    let mut item = Item::from(item);
    if app.options.redaction.covers_payloads() && !caller.identity.may(Scope::Reveal) {
        item.digest = None;
    }
    item
}

/// Returns `true` if the operation needs approval: it runs handlers, and a consumer of its letters requires a second person.
pub(crate) async fn needs_approval(app: &App, plan: &store::Plan) -> Result<bool> {
    if !runs_handlers(plan.action) || !app.registry.any_needs_approval() {
        return Ok(false);
    }
    let consumers = contents(app, plan.id).await?.consumers;
    Ok(consumers.iter().any(|consumer| app.registry.needs_approval(consumer)))
}

/// The default rate: that of the slowest consumer of its letters; `None` if unknown.
pub(crate) async fn default_rate(app: &App, plan: &store::Plan) -> Result<Option<Option<f64>>> {
    if !runs_handlers(plan.action) {
        return Ok(None);
    }
    let consumers = contents(app, plan.id).await?.consumers;
    Ok(app.registry.slowest(consumers.iter().map(String::as_str)))
}

const fn runs_handlers(action: Action) -> bool {
    matches!(action, Action::Retry | Action::Release)
}

/// What the letters of a plan tell about it.
#[derive(Default)]
struct Contents {
    /// Their consumers.
    consumers: BTreeSet<String>,
    /// How many of them left their sequences when they died.
    out_of_order: u64,
}

/// Reads the letters of a plan.
async fn contents(app: &App, plan: PlanId) -> Result<Contents> {
    let (mut found, mut from) = (Contents::default(), 0);
    loop {
        let items = app.store.plan_items(plan, from, STEP).await?;
        for item in &items {
            if !found.consumers.contains(item.queue.consumer()) {
                found.consumers.insert(item.queue.consumer().to_owned());
            }
            found.out_of_order += u64::from(item.sequence.origin().is_some());
        }
        match items.last() {
            Some(last) if items.len() == STEP => from = last.ordinal + 1,
            _ => return Ok(found),
        }
    }
}
