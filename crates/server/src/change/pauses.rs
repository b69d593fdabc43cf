//! Pausing and resuming consumers.

use axum::extract::State;
use lazaret_api::{Pause, PauseRequest, ResumeAnswer};
use lazaret_core::ConsumerName;
use lazaret_core::store::PauseScope;

use crate::api_error::{ApiError, Result};
use crate::app::App;
use crate::auth::Caller;
use crate::extract::{Json, Name};

pub(crate) async fn pause(
    State(app): State<App>,
    caller: Caller,
    Name(name): Name,
    Json(request): Json<PauseRequest>,
) -> Result<axum::Json<Pause>> {
    let by = caller.actor(request.reason.as_deref())?;
    caller.require_consumer(&name)?;
    let (consumer, scope) = (known(&app, &name).await?, scope(&request)?);
    match app.registry.handle(&name) {
        Some(handle) => handle.pause(scope.clone(), &by).await?,
        // A process that runs it elsewhere reads it at its next store refresh.
        None => app.store.pause(&consumer, scope.clone(), &by).await?,
    }
    let pauses = app.store.pauses(&consumer).await?;
    let pause = pauses.iter().find(|pause| pause.scope == scope).map(Pause::from);
    pause.map(axum::Json).ok_or_else(|| {
        ApiError::new(lazaret_api::Code::Conflict, format!("{scope} was resumed in the meantime"))
    })
}

pub(crate) async fn resume(
    State(app): State<App>,
    caller: Caller,
    Name(name): Name,
    Json(request): Json<PauseRequest>,
) -> Result<axum::Json<ResumeAnswer>> {
    let by = caller.actor(request.reason.as_deref())?;
    caller.require_consumer(&name)?;
    let (consumer, scope) = (known(&app, &name).await?, scope(&request)?);
    let resumed = match app.registry.handle(&name) {
        Some(handle) => handle.resume(&scope, &by).await?,
        None => app.store.resume(&consumer, &scope, &by).await?,
    };
    Ok(axum::Json(ResumeAnswer { resumed }))
}

fn scope(request: &PauseRequest) -> Result<PauseScope> {
    request.scope().map_err(|error| ApiError::invalid("/", error.to_string()))
}

/// Requires that the consumer runs here, has letters, or is paused: a typo must not create a pause.
async fn known(app: &App, name: &str) -> Result<ConsumerName> {
    let consumer = ConsumerName::from(name);
    if app.registry.entry(name).is_some()
        || app.store.queues().await?.iter().any(|summary| summary.queue.consumer() == name)
        || !app.store.pauses(&consumer).await?.is_empty()
    {
        return Ok(consumer);
    }
    Err(ApiError::not_found("consumer", name))
}
