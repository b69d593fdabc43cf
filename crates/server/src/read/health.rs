//! Whether the process lives, whether it does its work, and its metrics.

use std::time::Duration;

use axum::extract::State;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use lazaret_api::{Code, ConsumerState, Health, Identity, Readiness, Scope};

use crate::app::App;
use crate::auth::Caller;
use crate::fault::{Fault, Result};

/// How long the store may take to show that it is there.
const PATIENCE: Duration = Duration::from_secs(2);

pub(crate) async fn alive() -> axum::Json<Health> {
    axum::Json(Health { status: "ok".to_owned(), version: env!("CARGO_PKG_VERSION").to_owned() })
}

/// Ready when the store answers and every consumer runs, or is paused: by a person, or by its fuse, which is what a fuse
/// is for. Why not is told to those who may read.
pub(crate) async fn ready(State(app): State<App>, caller: Result<Caller>) -> Response {
    let mut reasons = Vec::new();
    match tokio::time::timeout(PATIENCE, app.store.queues()).await {
        Ok(Ok(_)) => {}
        Ok(Err(error)) => reasons.push(format!("the store: {error}")),
        Err(_) => reasons.push("the store does not answer".to_owned()),
    }
    for (name, entry) in app.registry.all() {
        match entry.state {
            ConsumerState::Starting => reasons.push(format!("{name} is starting")),
            ConsumerState::Stopped => reasons.push(format!("{name} has stopped")),
            ConsumerState::Failed => {
                let why = entry.error.as_deref().unwrap_or("no reason given");
                reasons.push(format!("{name} has failed: {why}"));
            }
            ConsumerState::Running | ConsumerState::Paused | ConsumerState::Elsewhere => {
                if entry.handle.is_some_and(|handle| handle.has_store_trouble()) {
                    reasons.push(format!("{name} waits for the store"));
                }
            }
        }
    }
    if app.stopping.is_cancelled() {
        reasons.push("the server is stopping".to_owned());
    }
    let ready = reasons.is_empty();
    let may_know = |identity: &Identity| identity.may(Scope::Read);
    if !caller.is_ok_and(|caller| may_know(&caller.identity)) {
        reasons.clear();
    }
    let status = if ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (status, axum::Json(Readiness { ready, reasons })).into_response()
}

pub(crate) async fn metrics(State(app): State<App>) -> Result<Response> {
    let Some(render) = &app.metrics else {
        return Err(Fault::new(Code::Unsupported, "no metrics are collected here"));
    };
    let mut response = render().into_response();
    let text = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    response.headers_mut().insert(header::CONTENT_TYPE, text);
    Ok(response)
}

pub(crate) async fn who_am_i(caller: Caller) -> axum::Json<Identity> {
    axum::Json(caller.identity)
}

pub(crate) async fn document(State(app): State<App>) -> Response {
    let mut response = app.document.clone().into_response();
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}
