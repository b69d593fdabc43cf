//! Bulk changes outside of operations: restore, resolve, quarantine, purge and assign.

use axum::extract::State;
use lazaret_api::{BulkAnswer, BulkAssignRequest, BulkFailure, BulkRequest, Code};
use lazaret_core::store::{Act, Actor, Change};
use lazaret_core::{Letter, LetterId};

use super::letters::{act_on, check_name};
use super::publish::letter_changed;
use super::reason::{ASSIGNMENT, reason_or};
use super::selection::{Selected, select};
use crate::api_error::{ApiError, Result};
use crate::app::App;
use crate::auth::Caller;
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

enum BulkAction {
    Act(Act),
    Change(Change),
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
        Selected::Query(query) => {
            let mut found = Vec::new();
            let mut after = None;
            loop {
                let page = app.store.find(&query, after.as_deref(), most - found.len()).await?;
                found.extend(page.letters);
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
        BulkAction::Purge => {
            app.store.purge(&letter.queue, letter.id, by).await?;
            letter_changed(app, letter, "purge", by);
            Ok(())
        }
    }
}
