//! The middleware of every request: admission, authentication, authorization, timeout, idempotency, response headers.

use std::any::Any;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

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
use crate::extract::{announced, read, refuse_encoded};
use crate::idempotency::{self, Claim, StoredResponse, fingerprint};
use crate::per_token::Resource;

/// The shares of bounded resources that a request holds, in its extensions. A layer holds its own until the response starts; a
/// change that goes on after its client has disconnected holds all of them until its end (I7).
#[derive(Clone, Default)]
struct Held(Vec<Arc<dyn Any + Send + Sync>>);

impl Held {
    /// Adds a share to a request. The caller holds it as well, for as long as it keeps the returned value.
    fn add(request: &mut Request, share: impl Any + Send + Sync) -> Arc<dyn Any + Send + Sync> {
        let share: Arc<dyn Any + Send + Sync> = Arc::new(share);
        request.extensions_mut().get_or_insert_default::<Self>().0.push(share.clone());
        share
    }
}

/// Authenticates the caller and keeps the result with the request, for the access rule of its route.
pub(crate) async fn authenticate(State(app): State<App>, mut request: Request, next: Next) -> Response {
    let authentication = Authentication::of(&app.tokens(), request.headers(), app.clock.now());
    let share = match &authentication {
        Authentication::Accepted(caller) if !is_health_check(request.uri().path()) => {
            app.by_token.take(caller, Resource::Requests, 1).map(Some)
        }
        _ => Ok(None),
    };
    // Held until the response starts.
    let _share = match share {
        Ok(share) => share.map(|share| Held::add(&mut request, share)),
        Err(error) => return error.into_response(),
    };
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
    per_consumer: bool,
    caller: Result<Caller>,
    request: Request,
    next: Next,
) -> Response {
    // A route that does not tell consumers apart is closed to a token that is limited to some.
    let limited =
        caller.as_ref().ok().filter(|caller| !caller.identity.consumers.is_empty() && !per_consumer);
    if let Some(caller) = limited {
        return caller.limited().into_response();
    }
    match access.check(caller) {
        Ok(()) => next.run(request).await,
        Err(error) => error.into_response(),
    }
}

/// Limits the time from the end of the request's body until the response starts. It is the innermost layer, so that it also ends
/// changes whose clients have disconnected.
pub(crate) async fn timeout(limit: std::time::Duration, request: Request, next: Next) -> Response {
    match tokio::time::timeout(limit, next.run(request)).await {
        Ok(response) => response,
        Err(_) => {
            ApiError::new(Code::TimedOut, format!("more than {} s", limit.as_secs_f64())).into_response()
        }
    }
}

/// Receives the body of a request: reserves memory for it, in all and for its token, and reads it. Rejects compressed bodies:
/// their size is not known.
pub(crate) async fn receive_body(
    State((app, limit)): State<(App, usize)>,
    caller: Caller,
    mut request: Request,
    next: Next,
) -> Result<Response> {
    refuse_encoded(request.headers())?;
    let bytes = announced(request.headers()).map_or(limit, |bytes| bytes.min(limit));
    let share = app.by_token.take(&caller, Resource::BodyBytes, bytes)?;
    let permits = u32::try_from(bytes.min(app.options.limits.body_bytes)).unwrap_or(u32::MAX);
    let permit = app
        .body_bytes
        .clone()
        .try_acquire_many_owned(permits)
        .map_err(|_| ApiError::new(Code::Busy, "too many bytes of requests in memory").retry_after(1))?;
    let _held = Held::add(&mut request, (share, permit));
    let (parts, body) = request.into_parts();
    let body = read(&app, &parts.headers, body, limit).await?;
    Ok(next.run(Request::from_parts(parts, Body::from(body))).await)
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
    let body = read(&app, &parts.headers, body, body_limit).await?;
    let fingerprint = fingerprint(&parts, &body);
    match app.idempotency.claim(&(caller.identity.name, key), fingerprint)? {
        Claim::Completed(response) => Ok(response.replayed()),
        Claim::New(pending) => {
            let held = parts.extensions.get::<Held>().cloned();
            let request = Request::from_parts(parts, Body::from(body));
            // In its own task: a client that disconnects must not leave a change half made, or its response unknown.
            let work = tokio::spawn(async move {
                let _held = held;
                let (response, stored) = StoredResponse::read(next.run(request).await).await?;
                if let Some(lasting) = stored.filter(StoredResponse::is_lasting) {
                    pending.complete(lasting);
                }
                Some(response)
            });
            work.await.ok().flatten().ok_or_else(|| ApiError::from(Problem::new(Code::Internal)))
        }
    }
}

/// Returns `true` for the routes that supervisors probe.
pub(crate) fn is_health_check(path: &str) -> bool {
    matches!(path, "/healthz" | "/readyz")
}

/// Rejects requests beyond the concurrency limit instead of queueing them.
pub(crate) async fn admit(State(app): State<App>, mut request: Request, next: Next) -> Response {
    // Health checks must be answered above all under load.
    let is_health_check = is_health_check(request.uri().path());
    if request.uri().path() == "/healthz" {
        return next.run(request).await;
    }
    if app.stopping.is_cancelled() {
        return ApiError::from(Problem::new(Code::Stopping)).retry_after(1).into_response();
    }
    if is_health_check {
        return next.run(request).await;
    }
    match app.requests.clone().try_acquire_owned() {
        Ok(permit) => {
            let _held = Held::add(&mut request, permit);
            next.run(request).await
        }
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
