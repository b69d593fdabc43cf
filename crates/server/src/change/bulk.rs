//! Bulk changes outside of operations: restore, resolve, quarantine, purge, erase and assign.

use axum::extract::State;
use lazaret_api::{BulkAnswer, BulkAssignRequest, BulkFailure, BulkRequest, Code, Selection};
use lazaret_core::query::Query;
use lazaret_core::store::{Act, Actor, Change, Scrubbed};
use lazaret_core::{Letter, LetterId};

use super::letters::{act_on, check_name};
use super::publish::letter_changed;
use super::reason::{ASSIGNMENT, reason_or};
use super::selection::{Selected, select};
use crate::api_error::{ApiError, Result};
use crate::app::App;
use crate::auth::Caller;
use crate::erasure;
use crate::extract::Json;

pub(crate) async fn restore(
    State(app): State<App>,
    caller: Caller,
    Json(request): Json<BulkRequest>,
) -> Result<axum::Json<BulkAnswer>> {
    each(app, caller, request, &BulkAction::Act(Act::Restore)).await
}

pub(crate) async fn resolve(
    State(app): State<App>,
    caller: Caller,
    Json(request): Json<BulkRequest>,
) -> Result<axum::Json<BulkAnswer>> {
    each(app, caller, request, &BulkAction::Act(Act::Resolve)).await
}

pub(crate) async fn quarantine(
    State(app): State<App>,
    caller: Caller,
    Json(request): Json<BulkRequest>,
) -> Result<axum::Json<BulkAnswer>> {
    each(app, caller, request, &BulkAction::Act(Act::Quarantine)).await
}

pub(crate) async fn purge(
    State(app): State<App>,
    caller: Caller,
    Json(request): Json<BulkRequest>,
) -> Result<axum::Json<BulkAnswer>> {
    each(app, caller, request, &BulkAction::Purge).await
}

pub(crate) async fn assign(
    State(app): State<App>,
    caller: Caller,
    Json(request): Json<BulkAssignRequest>,
) -> Result<axum::Json<BulkAnswer>> {
    let BulkAssignRequest { selection, assignment } = request;
    check_name(assignment.name.as_deref())?;
    let reason = reason_or(assignment.reason.as_deref(), ASSIGNMENT).map(str::to_owned);
    let action = BulkAction::Change(Change::Assignee(assignment.name));
    each(app, caller, BulkRequest { selection, reason }, &action).await
}

/// Erases content. Without a state, the query selects open and closed letters.
pub(crate) async fn erase(
    State(app): State<App>,
    caller: Caller,
    Json(mut request): Json<BulkRequest>,
) -> Result<axum::Json<BulkAnswer>> {
    const STATES: &str = "state:open,closed";
    let Selection { query, all, .. } = &mut request.selection;
    if let Some(text) = query
        && Query::parse(text).is_ok_and(|query| !query.names_state())
        && (*all || !text.trim().is_empty())
    {
        *text = if text.trim().is_empty() { STATES.to_owned() } else { format!("({text}) {STATES}") };
    }
    each(app, caller, request, &BulkAction::Erase).await
}

enum BulkAction {
    Act(Act),
    Change(Change),
    Erase,
    Purge,
}

/// Changes each letter by itself; a failure does not stop the others. Sequences are changed from their later letters on, in
/// the order of the store: each restored letter gets its old position, and a resolved head releases no letter that is resolved next.
async fn each(
    app: App,
    caller: Caller,
    request: BulkRequest,
    action: &BulkAction,
) -> Result<axum::Json<BulkAnswer>> {
    let by = caller.actor(request.reason.as_deref())?;
    let most = app.options.limits.bulk_letters;
    let (letters, more, missing) = match select(&app, &caller, &request.selection)? {
        Selected::Ids(ids) if ids.len() > most => {
            return Err(ApiError::invalid("/ids", format!("{} ids exceed the limit of {most}", ids.len())));
        }
        Selected::Ids(ids) => {
            let (found, missing) = by_id(&app, &caller, ids).await?;
            (found, false, missing)
        }
        Selected::Query(search) => {
            let _turn = app.scans.take(&caller).await?;
            let mut found = Vec::new();
            let mut after = None;
            loop {
                let page = search.find(&app, after.as_deref(), most - found.len()).await?;
                // Those that were erased before still match.
                let is_left =
                    |letter: &Letter| !matches!(action, BulkAction::Erase) || letter.erased.is_none();
                found.extend(page.letters.into_iter().filter(is_left));
                after = page.next;
                if after.is_none() || found.len() >= most {
                    break;
                }
            }
            (found, after.is_some(), Vec::new())
        }
    };
    let mut answer = BulkAnswer { more, ..BulkAnswer::default() };
    for id in missing {
        let detail = format!("no letter {id}");
        answer.failed.push(BulkFailure { id: id.to_string(), code: Code::NotFound, detail, hint: None });
    }
    for letter in letters {
        match one(&app, &letter, action, &by).await {
            Ok(()) => answer.done += 1,
            Err(error) => answer.failed.push(BulkFailure {
                id: letter.id.to_string(),
                code: error.problem.code,
                detail: error.problem.detail.unwrap_or(error.problem.title),
                hint: error.problem.hint,
            }),
        }
    }
    if matches!(action, BulkAction::Erase) {
        (answer.remains, answer.unfinished) = match app.store.scrubbed().await {
            Ok(scrubbed) => (erasure::remains(&scrubbed), matches!(scrubbed, Scrubbed::Failed(_))),
            Err(error) => {
                let what = "it is unknown whether the store's files still hold what was erased";
                (Some(format!("{what}: {error}")), true)
            }
        };
    }
    Ok(axum::Json(answer))
}

async fn by_id(app: &App, caller: &Caller, ids: Vec<LetterId>) -> Result<(Vec<Letter>, Vec<LetterId>)> {
    let (mut found, mut missing) = (Vec::new(), Vec::new());
    for id in ids {
        match app.find_letter(caller, id).await? {
            Some(letter) => found.push(letter),
            None => missing.push(id),
        }
    }
    Ok((found, missing))
}

async fn one(app: &App, letter: &Letter, action: &BulkAction, by: &Actor) -> Result<()> {
    match action {
        BulkAction::Act(act) => act_on(app, &letter.queue, letter.id, *act, by).await.map(|_| ()),
        BulkAction::Change(change) => {
            let changed = app.store.change(&letter.queue, letter.id, change, by).await?;
            letter_changed(app, &changed, change.as_str(), by);
            Ok(())
        }
        BulkAction::Erase => {
            // Nobody can run its message any more, so those behind it do not wait for it.
            if letter.state.is_open() {
                act_on(app, &letter.queue, letter.id, Act::Evict, by).await?;
            }
            let erased = app.store.erase(&letter.queue, letter.id, by).await?;
            letter_changed(app, &erased, "erase", by);
            Ok(())
        }
        BulkAction::Purge => {
            app.store.purge(&letter.queue, letter.id, by).await?;
            letter_changed(app, letter, "purge", by);
            Ok(())
        }
    }
}
