//! What every request goes through: room, rights, time, and an answer in our own form whatever happens.

use std::panic::AssertUnwindSafe;

use axum::extract::{Request, State};
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use futures_util::FutureExt;
use lazaret_api::{Code, Problem, Scope};

use crate::app::App;
use crate::auth::Caller;
use crate::fault::{Fault, Result};

/// What it takes to use a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Need {
    /// Nothing: anybody may.
    Open,
    /// To be known, whatever the scopes.
    Known,
    /// This scope.
    Scope(Scope),
    /// One of these; the handler looks closer when it knows what is asked.
    OneOf(&'static [Scope]),
}

impl Need {
    fn check(self, caller: Result<Caller>) -> Result<()> {
        match self {
            Self::Open => Ok(()),
            Self::Known => caller.map(|_| ()),
            Self::Scope(scope) => caller?.require(scope),
            Self::OneOf(scopes) => {
                let caller = caller?;
                match scopes.iter().any(|scope| caller.identity.may(*scope)) {
                    true => Ok(()),
                    false => scopes.iter().try_for_each(|scope| caller.require(*scope)),
                }
            }
        }
    }
}

/// Lets only those through who may.
pub(crate) async fn permit(need: Need, caller: Result<Caller>, request: Request, next: Next) -> Response {
    match need.check(caller) {
        Ok(()) => next.run(request).await,
        Err(fault) => fault.into_response(),
    }
}

/// Gives up on what takes too long.
pub(crate) async fn in_time(limit: std::time::Duration, request: Request, next: Next) -> Response {
    match tokio::time::timeout(limit, next.run(request)).await {
        Ok(response) => response,
        Err(_) => Fault::new(Code::TimedOut, format!("more than {} s", limit.as_secs_f64())).into_response(),
    }
}

/// Turns requests away while too many are worked on, instead of letting all of them wait.
pub(crate) async fn with_room(State(app): State<App>, request: Request, next: Next) -> Response {
    // Probes must be answered above all when there is much to do.
    if request.uri().path() == "/healthz" {
        return next.run(request).await;
    }
    if app.stopping.is_cancelled() {
        return Fault::from(Problem::new(Code::Stopping)).retry_after(1).into_response();
    }
    match app.requests.try_acquire() {
        Ok(_permit) => next.run(request).await,
        Err(_) => Fault::from(Problem::new(Code::Busy)).retry_after(1).into_response(),
    }
}

/// Gives every answer its headers, and makes a problem of what is none: a panic, a method that a route does not have.
pub(crate) async fn finish(request: Request, next: Next) -> Response {
    // I10: a mistake in one request is that request's trouble.
    let ran = AssertUnwindSafe(next.run(request)).catch_unwind().await;
    let mut response = ran.unwrap_or_else(|_| {
        tracing::error!("a request panicked");
        Fault::from(Problem::new(Code::Internal)).into_response()
    });
    if !is_ours(&response) {
        response = shaped(response);
    }
    let headers = response.headers_mut();
    for (name, value) in [
        (header::CACHE_CONTROL, "no-store"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::X_FRAME_OPTIONS, "DENY"),
        (header::CONTENT_SECURITY_POLICY, "default-src 'none'; frame-ancestors 'none'"),
        (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    ] {
        // Whoever has said something more fitting is believed.
        headers.entry(name).or_insert(HeaderValue::from_static(value));
    }
    response
}

/// Whether an answer is no error, or one of our own problems or reports.
fn is_ours(response: &Response) -> bool {
    let status = response.status();
    let kind = response.headers().get(header::CONTENT_TYPE).map(|kind| kind.as_bytes());
    !(status.is_client_error() || status.is_server_error())
        || kind.is_some_and(|kind| kind == Problem::MEDIA_TYPE.as_bytes() || kind == b"application/json")
}

fn shaped(response: Response) -> Response {
    let code = match response.status() {
        StatusCode::METHOD_NOT_ALLOWED => Code::MethodNotAllowed,
        StatusCode::PAYLOAD_TOO_LARGE => Code::TooLarge,
        StatusCode::UNSUPPORTED_MEDIA_TYPE => Code::UnsupportedMediaType,
        StatusCode::NOT_FOUND => Code::NoRoute,
        status if status.is_client_error() => Code::InvalidRequest,
        _ => Code::Internal,
    };
    let allow = response.headers().get(header::ALLOW).cloned();
    let mut shaped = Fault::from(Problem::new(code)).into_response();
    if let Some(allow) = allow {
        shaped.headers_mut().insert(header::ALLOW, allow);
    }
    shaped
}

/// What is answered where there is no route.
pub(crate) async fn no_route(request: Request) -> Fault {
    Fault::new(Code::NoRoute, request.uri().path())
}
