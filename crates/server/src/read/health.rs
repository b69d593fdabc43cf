//! Liveness, readiness, metrics, identity and the OpenAPI document.

use std::time::Duration;

use axum::extract::State;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use lazaret_api::{Code, ConsumerState, Health, Identity, Readiness, Scope};
use lazaret_core::ConsumerName;
use lazaret_engine::Handle;
use tokio::time::Instant;

use crate::api_error::{ApiError, Result};
use crate::app::App;
use crate::auth::Caller;
use crate::registry::Entry;

/// The timeout of the store check.
const STORE_TIMEOUT: Duration = Duration::from_secs(2);

pub(crate) async fn alive() -> axum::Json<Health> {
    axum::Json(Health { status: "ok".to_owned(), version: env!("CARGO_PKG_VERSION").to_owned() })
}

/// Ready when the store responds and this process has its keys, every source has answered once, and every consumer is running, or paused by
/// a person or by its fuse.
/// The reasons need the scope `read`, and those of a consumer that the caller may use it.
pub(crate) async fn ready(State(app): State<App>, caller: Result<Caller>) -> Response {
    let caller = caller.ok().filter(|caller| caller.identity.may(Scope::Read));
    let mut reasons = Vec::from_iter(store_error(&app).await);
    if app.stopping.is_cancelled() {
        reasons.push("server is stopping".to_owned());
    }
    let mut ready = reasons.is_empty();
    for (name, entry) in app.registry.all() {
        let Some(reason) = not_ready(&app, &name, entry) else { continue };
        ready = false;
        if caller.as_ref().is_some_and(|caller| caller.may_use(&name)) {
            reasons.push(reason);
        }
    }
    // A consumer may have failed at a message, and says so in the words of its handler.
    let texts = app.options.redaction.texts();
    reasons.iter_mut().for_each(|reason| {
        texts.apply(reason);
    });
    if caller.is_none() {
        reasons.clear();
    }
    let status = if ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (status, axum::Json(Readiness { ready, reasons })).into_response()
}

/// Why a consumer is not ready, if so.
fn not_ready(app: &App, name: &str, entry: Entry) -> Option<String> {
    match entry.state {
        ConsumerState::Starting => Some(format!("{name} is starting")),
        ConsumerState::Waiting => {
            let why = entry.error.as_deref().unwrap_or("its source is not there yet");
            Some(format!("{name} is waiting: {why}"))
        }
        ConsumerState::Stopped => Some(format!("{name} has stopped")),
        ConsumerState::Failed => {
            let why = entry.error.as_deref().unwrap_or("no reason given");
            Some(format!("{name} has failed: {why}"))
        }
        ConsumerState::Running | ConsumerState::Paused | ConsumerState::Elsewhere => {
            if let Some(handle) = entry.handle.filter(Handle::is_store_failing) {
                let why = handle.held_back().unwrap_or_else(|| "store writes fail".to_owned());
                return Some(format!("{name} is held: {why}"));
            }
            if let Some(notice) = app.registry.store_notice_of(name).filter(|notice| !notice.is_ready) {
                return Some(format!("{name} is held: {}", notice.why));
            }
            if app.registry.is_source_ready(name) {
                return None;
            }
            let why = app.registry.notice_of(name);
            let why = why.unwrap_or_else(|| "its source has not answered yet".to_owned());
            Some(format!("{name} is not ready: {why}"))
        }
    }
}

/// Checks the store: reads one value by its name. The cost does not grow with the letters, as that of a count does in some stores, and a
/// store with connections of their own for values answers while letters keep the others busy. Checks that arrive while one runs share the
/// next one, so that many probes cost no more than one.
async fn store_error(app: &App) -> Option<String> {
    let arrived = Instant::now();
    let mut last = app.readiness.lock().await;
    if let Some((began, error)) = &*last
        && *began > arrived
    {
        return error.clone();
    }
    let began = Instant::now();
    // The answer does not matter: no consumer has this name.
    let nobody = ConsumerName::from("");
    let error = match tokio::time::timeout(STORE_TIMEOUT, app.store.incarnations(&nobody)).await {
        Ok(Ok(_)) => None,
        Ok(Err(error)) => Some(format!("store: {error}")),
        Err(_) => Some("store does not respond".to_owned()),
    };
    *last = Some((began, error.clone()));
    error
}

pub(crate) async fn metrics(State(app): State<App>) -> Result<Response> {
    let Some(render) = &app.metrics else {
        return Err(ApiError::new(Code::Unsupported, "no metrics are configured"));
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
