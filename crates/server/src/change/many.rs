//! Changes to many letters at once that are no operation: bringing back, and removing for good.

use axum::extract::State;
use lazaret_api::{BulkAnswer, BulkFailure, BulkRequest, Code};
use lazaret_core::store::{Act, Actor};
use lazaret_core::{Letter, LetterId};

use super::letters::act_on;
use super::{Meant, meant, told};
use crate::app::App;
use crate::auth::Caller;
use crate::extract::Json;
use crate::fault::{Fault, Result};

pub(crate) async fn restore(
    State(app): State<App>,
    caller: Caller,
    Json(request): Json<BulkRequest>,
) -> Result<axum::Json<BulkAnswer>> {
    each(app, caller, request, Doing::Restore).await
}

pub(crate) async fn purge(
    State(app): State<App>,
    caller: Caller,
    Json(request): Json<BulkRequest>,
) -> Result<axum::Json<BulkAnswer>> {
    each(app, caller, request, Doing::Purge).await
}

#[derive(Clone, Copy)]
enum Doing {
    Restore,
    Purge,
}

/// Changes each letter on its own; one that cannot be changed does not keep the others. Sequences are restored from their
/// later letters on, as they come from the store; the store puts each in its old place.
async fn each(
    app: App,
    caller: Caller,
    request: BulkRequest,
    doing: Doing,
) -> Result<axum::Json<BulkAnswer>> {
    let by = caller.actor(request.reason.as_deref())?;
    let most = app.options.limits.bulk_letters;
    let (letters, more, missing) = match meant(&app, &caller, &request.selection)? {
        Meant::Ids(ids) if ids.len() > most => {
            return Err(Fault::invalid("/ids", format!("{} ids are more than {most}", ids.len())));
        }
        Meant::Ids(ids) => {
            let (found, missing) = by_id(&app, ids).await?;
            (found, false, missing)
        }
        Meant::Query(query) => {
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
        let detail = format!("there is no letter {id}");
        answer.failed.push(BulkFailure { id: id.to_string(), code: Code::NotFound, detail });
    }
    for letter in letters {
        match one(&app, &letter, doing, &by).await {
            Ok(()) => answer.done += 1,
            Err(fault) => answer.failed.push(BulkFailure {
                id: letter.id.to_string(),
                code: fault.problem.code,
                detail: fault.problem.detail.unwrap_or(fault.problem.title),
            }),
        }
    }
    Ok(axum::Json(answer))
}

async fn by_id(app: &App, ids: Vec<LetterId>) -> Result<(Vec<Letter>, Vec<LetterId>)> {
    let (mut found, mut missing) = (Vec::new(), Vec::new());
    for id in ids {
        match app.find_letter(id).await? {
            Some(letter) => found.push(letter),
            None => missing.push(id),
        }
    }
    Ok((found, missing))
}

async fn one(app: &App, letter: &Letter, doing: Doing, by: &Actor) -> Result<()> {
    match doing {
        Doing::Restore => act_on(app, &letter.queue, letter.id, Act::Restore, by).await.map(|_| ()),
        Doing::Purge => {
            app.store.purge(&letter.queue, letter.id, by).await?;
            told(app, letter, "purge", by);
            Ok(())
        }
    }
}
