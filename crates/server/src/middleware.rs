//! The middleware of every request: admission, authentication, authorization, timeout, idempotency, response headers.

use std::panic::AssertUnwindSafe;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use futures_util::FutureExt;
use lazaret_api::{Code, Problem};

use crate::api_error::{ApiError, Result};
use crate::app::App;
use crate::auth::{Access, Authentication, Caller};
use crate::extract::read;
use crate::idempotency::{self, Claim, StoredResponse, fingerprint};

/// Authenticates the caller and keeps the result with the request, for the access rule of its route.
pub(crate) async fn authenticate(State(app): State<App>, mut request: Request, next: Next) -> Response {
    let authentication = Authentication::of(&app.tokens, request.headers(), app.clock.now());
    request.extensions_mut().insert(authentication);
    next.run(request).await
}

/// Rejects requests for another host (DNS rebinding), and changes that a page of another site sends.
pub(crate) async fn check_origin(State(app): State<App>, request: Request, next: Next) -> Response {
    match app.hosts.check(request.method(), request.uri(), request.headers()) {
        Ok(()) => next.run(request).await,
        Err(error) => error.into_response(),
    }
}

/// Enforces the access rule of a route.
pub(crate) async fn authorize(
    access: Access,
    caller: Result<Caller>,
    request: Request,
    next: Next,
) -> Response {
    match access.check(caller) {
        Ok(()) => next.run(request).await,
        Err(error) => error.into_response(),
    }
}

/// Limits the time until the response starts.
pub(crate) async fn timeout(limit: std::time::Duration, request: Request, next: Next) -> Response {
    match tokio::time::timeout(limit, next.run(request)).await {
        Ok(response) => response,
        Err(_) => {
            ApiError::new(Code::TimedOut, format!("more than {} s", limit.as_secs_f64())).into_response()
        }
    }
}

/// Executes a change once per idempotency key. Without a key it is executed each time.
pub(crate) async fn idempotent(
    State((app, body_limit)): State<(App, usize)>,
    caller: Caller,
    request: Request,
    next: Next,
) -> Result<Response> {
    let Some(key) = idempotency::key(request.headers())? else { return Ok(next.run(request).await) };
    let (parts, body) = request.into_parts();
    let body = read(&parts.headers, body, body_limit).await?;
    let fingerprint = fingerprint(&parts, &body);
    match app.idempotency.claim(&(caller.identity.name, key), fingerprint)? {
        Claim::Completed(response) => Ok(response.replayed()),
        Claim::New(pending) => {
            // In its own task: a client that disconnects must not leave a change half made, or its response unknown.
            let request = Request::from_parts(parts, Body::from(body));
            let work = tokio::spawn(async move {
                let response = StoredResponse::read(next.run(request).await).await;
                if let Some(lasting) = response.as_ref().filter(|response| response.is_lasting()) {
                    pending.complete(lasting.clone());
                }
                response
            });
            let response = work.await.ok().flatten();
            response
                .map(IntoResponse::into_response)
                .ok_or_else(|| ApiError::from(Problem::new(Code::Internal)))
        }
    }
}

/// Rejects requests beyond the concurrency limit instead of queueing them.
pub(crate) async fn admit(State(app): State<App>, request: Request, next: Next) -> Response {
    // Liveness must be answered above all under load.
    if request.uri().path() == "/healthz" {
        return next.run(request).await;
    }
    if app.stopping.is_cancelled() {
        return ApiError::from(Problem::new(Code::Stopping)).retry_after(1).into_response();
    }
    match app.requests.try_acquire() {
        Ok(_permit) => next.run(request).await,
        Err(_) => ApiError::from(Problem::new(Code::Busy)).retry_after(1).into_response(),
    }
}

/// Adds the security headers, and turns panics and errors of the router into problems.
pub(crate) async fn finish(request: Request, next: Next) -> Response {
    // I10: a bug in one request fails that request only.
    let ran = AssertUnwindSafe(next.run(request)).catch_unwind().await;
    let mut response = ran.unwrap_or_else(|_| {
        tracing::error!("request handler panicked");
        ApiError::from(Problem::new(Code::Internal)).into_response()
    });
    if !is_own(&response) {
        response = to_problem(response);
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
        // A header that the handler has set takes precedence.
        headers.entry(name).or_insert(HeaderValue::from_static(value));
    }
    response
}

/// Returns `true` for successful responses, and for errors that are problems or reports of this API.
fn is_own(response: &Response) -> bool {
    let status = response.status();
    let kind = response.headers().get(header::CONTENT_TYPE).map(|kind| kind.as_bytes());
    !(status.is_client_error() || status.is_server_error())
        || kind.is_some_and(|kind| kind == Problem::MEDIA_TYPE.as_bytes() || kind == b"application/json")
}

fn to_problem(response: Response) -> Response {
    let code = match response.status() {
        StatusCode::METHOD_NOT_ALLOWED => Code::MethodNotAllowed,
        StatusCode::PAYLOAD_TOO_LARGE => Code::TooLarge,
        StatusCode::UNSUPPORTED_MEDIA_TYPE => Code::UnsupportedMediaType,
        StatusCode::NOT_FOUND => Code::NoRoute,
        status if status.is_client_error() => Code::InvalidRequest,
        _ => Code::Internal,
    };
    let allow = response.headers().get(header::ALLOW).cloned();
    let mut problem = ApiError::from(Problem::new(code)).into_response();
    if let Some(allow) = allow {
        problem.headers_mut().insert(header::ALLOW, allow);
    }
    problem
}

/// The fallback handler.
pub(crate) async fn no_route(request: Request) -> ApiError {
    ApiError::new(Code::NoRoute, request.uri().path())
}
