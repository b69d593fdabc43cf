//! Pausing and resuming consumers.

use axum::extract::State;
use lazaret_api::{Pause, PauseRequest, ResumeAnswer};
use lazaret_core::ConsumerName;
use lazaret_core::store::PauseScope;

use crate::app::App;
use crate::auth::Caller;
use crate::extract::{Json, Name};
use crate::fault::{Fault, Result};

pub(crate) async fn pause(
    State(app): State<App>,
    caller: Caller,
    Name(name): Name,
    Json(request): Json<PauseRequest>,
) -> Result<axum::Json<Pause>> {
    let by = caller.actor(request.reason.as_deref())?;
    let (consumer, scope) = (known(&app, &name).await?, scope(&request)?);
    match app.registry.handle(&name) {
        Some(handle) => handle.pause(scope.clone(), &by).await?,
        // Who runs it elsewhere sees it at the next look into the store.
        None => app.store.pause(&consumer, scope.clone(), &by).await?,
    }
    let pauses = app.store.pauses(&consumer).await?;
    let pause = pauses.iter().find(|pause| pause.scope == scope).map(Pause::from);
    pause.map(axum::Json).ok_or_else(|| {
        Fault::new(lazaret_api::Code::Conflict, format!("somebody has resumed {scope} meanwhile"))
    })
}

pub(crate) async fn resume(
    State(app): State<App>,
    caller: Caller,
    Name(name): Name,
    Json(request): Json<PauseRequest>,
) -> Result<axum::Json<ResumeAnswer>> {
    let by = caller.actor(request.reason.as_deref())?;
    let (consumer, scope) = (known(&app, &name).await?, scope(&request)?);
    let resumed = match app.registry.handle(&name) {
        Some(handle) => handle.resume(&scope, &by).await?,
        None => app.store.resume(&consumer, &scope, &by).await?,
    };
    Ok(axum::Json(ResumeAnswer { resumed }))
}

fn scope(request: &PauseRequest) -> Result<PauseScope> {
    request.scope().map_err(|why| Fault::invalid("/", why))
}

/// A consumer that runs here, has letters, or is paused: a typing mistake pauses nobody.
async fn known(app: &App, name: &str) -> Result<ConsumerName> {
    let consumer = ConsumerName::from(name);
    if app.registry.entry(name).is_some()
        || app.store.queues().await?.iter().any(|summary| summary.queue.consumer() == name)
        || !app.store.pauses(&consumer).await?.is_empty()
    {
        return Ok(consumer);
    }
    Err(Fault::not_found("consumer", name))
}
