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
use lazaret_api::{Code, Problem, Via};
use tokio::sync::OwnedSemaphorePermit;

use crate::api_error::{ApiError, Result};
use crate::app::App;
use crate::auth::{
    Access, Authentication, Caller, Client, SignIn, authority_of, client_address, is_loopback,
};
use crate::connections::Activity;
use crate::extract::{announced, read, read_anonymous_form, refuse_encoded};
use crate::idempotency::{self, Claim, StoredResponse, fingerprint};
use crate::listener::{Peer, Transport};
use crate::per_token::{Resource, Share};

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

/// Authenticates the caller and keeps the result with the request, for the access rule of its route, and with its connection.
pub(crate) async fn authenticate(State(app): State<App>, mut request: Request, next: Next) -> Response {
    let now = app.clock.now();
    let authentication = if is_page(request.uri().path()) {
        let (sign_in, authentication) = SignIn::of(&app, &request, now);
        request.extensions_mut().extend(sign_in.extensions());
        authentication
    } else {
        Authentication::of(&app.tokens(), request.headers(), now)
    };
    let activity = request.extensions().get::<Arc<Activity>>();
    if let (Authentication::Accepted(_), Some(activity)) = (&authentication, activity) {
        activity.authenticated();
    }
    request.extensions_mut().insert(authentication);
    next.run(request).await
}

/// Gives a request a place, or rejects it instead of queueing it: a known caller one of the main pool and of its token, anybody else one
/// of a small pool. The headers alone decide, so that those who are not known can neither take the places of callers nor make the
/// server read anything for nothing.
pub(crate) async fn admit(State(app): State<App>, mut request: Request, next: Next) -> Response {
    // Health checks must be answered above all under load.
    if is_health_check(request.uri().path()) {
        return next.run(request).await;
    }
    let held = match request.extensions().get::<Authentication>() {
        Some(Authentication::Accepted(caller)) => {
            place_of(&app, caller).map(|place| Held::add(&mut request, place))
        }
        Some(Authentication::Rejected(_)) | None => {
            let client = client_of(&app, &request);
            app.anonymous.take(client).map(|place| Held::add(&mut request, place))
        }
    };
    match held {
        Ok(_until_the_response_starts) => next.run(request).await,
        Err(error) => error.into_response(),
    }
}

/// The place of a known caller.
fn place_of(app: &App, caller: &Caller) -> Result<(Share, OwnedSemaphorePermit)> {
    let share = app.by_token.take(caller, Resource::Requests, 1)?;
    let permit = app.requests.clone().try_acquire_owned();
    let permit = permit.map_err(|_| ApiError::from(Problem::new(Code::Busy)).retry_after(1))?;
    Ok((share, permit))
}

/// The client that sent a request; behind a trusted proxy, the one that the proxy names.
fn client_of(app: &App, request: &Request) -> Client {
    let peer = request.extensions().get::<Peer>().copied().unwrap_or(Peer::UNKNOWN);
    Client::of(client_address(app.options.proxy.as_ref(), peer, request.headers()))
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
    let _held = reserve_body(&app, &caller, &mut request, limit)?;
    let (parts, body) = request.into_parts();
    let body = read(&app, &parts.headers, body, limit).await?;
    Ok(next.run(Request::from_parts(parts, Body::from(body))).await)
}

/// Reserves memory for the body of a request, in all and for its token.
fn reserve_body(
    app: &App,
    caller: &Caller,
    request: &mut Request,
    limit: usize,
) -> Result<Arc<dyn Any + Send + Sync>> {
    let bytes = announced(request.headers()).map_or(limit, |bytes| bytes.min(limit));
    let share = app.by_token.take(caller, Resource::BodyBytes, bytes)?;
    let permits = u32::try_from(bytes.min(app.options.limits.body_bytes)).unwrap_or(u32::MAX);
    let permit = app
        .body_bytes
        .clone()
        .try_acquire_many_owned(permits)
        .map_err(|_| ApiError::new(Code::Busy, "too many bytes of requests in memory").retry_after(1))?;
    Ok(Held::add(request, (share, permit)))
}

/// Returns `true` for pages. Sessions and proxies authenticate them, and nothing else.
fn is_page(path: &str) -> bool {
    path == "/" || path == "/console" || path.starts_with("/console/")
}

/// Receives the form of a page, with the limits of size and time of other bodies. The sender need not be known, since people sign in
/// by a form: then it is small, takes no share of the memory for bodies, and has to arrive soon.
pub(crate) async fn receive_form(
    State(app): State<App>,
    mut request: Request,
    next: Next,
) -> Result<Response> {
    if request.method().is_safe() {
        return Ok(next.run(request).await);
    }
    refuse_encoded(request.headers())?;
    // A form writes a byte as up to three.
    let limit = app.options.limits.json_bytes.saturating_mul(3);
    let caller = match request.extensions().get::<Authentication>() {
        Some(Authentication::Accepted(caller)) => Some(caller.clone()),
        Some(Authentication::Rejected(_)) | None => None,
    };
    let held = caller.map(|caller| reserve_body(&app, &caller, &mut request, limit)).transpose()?;
    let (parts, body) = request.into_parts();
    let body = match held {
        Some(_) => read(&app, &parts.headers, body, limit).await?,
        None => read_anonymous_form(&app, &parts.headers, body).await?,
    };
    let is_own = |sign_in: &SignIn| sign_in.sent_by_own_page(&parts.headers, &body);
    if !parts.extensions.get::<SignIn>().is_some_and(is_own) {
        let detail =
            "no current page of this server sent the form: open the page again, and repeat what you did";
        return Err(ApiError::new(Code::CrossSite, detail));
    }
    Ok(next.run(Request::from_parts(parts, Body::from(body))).await)
}

/// Turns a request of a page into one of the API: with the caller of the page, through the console. Nothing else of the page's request
/// is kept, such as the parameters of its path.
pub(crate) fn adopt_page_request(request: &mut Request) {
    let extensions = std::mem::take(request.extensions_mut());
    if let Some(held) = extensions.get::<Held>() {
        request.extensions_mut().insert(held.clone());
    }
    if let Some(authentication) = extensions.get::<Authentication>() {
        let mut authentication = authentication.clone();
        if let Authentication::Accepted(caller) = &mut authentication {
            caller.via = Via::Console;
        }
        request.extensions_mut().insert(authentication);
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

/// Rejects requests to a server that stops; it is alive until its end.
pub(crate) async fn refuse_stopping(State(app): State<App>, request: Request, next: Next) -> Response {
    if app.stopping.is_cancelled() && request.uri().path() != "/healthz" {
        return ApiError::from(Problem::new(Code::Stopping)).retry_after(1).into_response();
    }
    next.run(request).await
}

/// Adds the security headers, and turns panics and errors of the router into problems, or into pages for browsers.
pub(crate) async fn finish(State(app): State<App>, request: Request, next: Next) -> Response {
    let problem_page = app.problem_page.filter(|_| shows_page(&request));
    let strict_transport = strict_transport(&app, &request);
    // I10: a bug in one request fails that request only.
    let ran = AssertUnwindSafe(next.run(request)).catch_unwind().await;
    let mut response = ran.unwrap_or_else(|_| {
        tracing::error!("request handler panicked");
        ApiError::from(Problem::new(Code::Internal)).into_response()
    });
    if !is_own(&response) {
        response = to_problem(response);
    }
    if let (Some(render), Some(problem)) = (problem_page, response.extensions().get::<Box<Problem>>()) {
        response = with_page(&response, render(problem));
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
    if let Some(value) = strict_transport {
        headers.insert(header::STRICT_TRANSPORT_SECURITY, value);
    }
    response
}

/// The value of `Strict-Transport-Security`, if the server ends TLS for the request. Browsers apply it to all ports of a host, so names of
/// this machine get none.
fn strict_transport(app: &App, request: &Request) -> Option<HeaderValue> {
    let lasts = app.options.strict_transport?;
    let is_tls = request.extensions().get::<Peer>().is_some_and(|peer| peer.transport == Transport::Tls);
    let is_local = authority_of(request.uri(), request.headers()).is_none_or(is_loopback);
    (is_tls && !is_local).then(|| HeaderValue::from_str(&format!("max-age={}", lasts.as_secs())).ok())?
}

/// Returns `true` if a browser shows the response as a page: it asks a page, and not for a script.
fn shows_page(request: &Request) -> bool {
    let accept = request.headers().get(header::ACCEPT).and_then(|accept| accept.to_str().ok());
    is_page(request.uri().path()) && accept.is_some_and(|accept| accept.contains("text/html"))
}

/// Returns the page in place of a problem, with the headers of the problem, such as `Retry-After`.
fn with_page(problem: &Response, mut page: Response) -> Response {
    for (name, value) in problem.headers().iter().filter(|(name, _)| **name != header::CONTENT_TYPE) {
        page.headers_mut().entry(name).or_insert(value.clone());
    }
    page
}

/// Returns `true` for successful responses, and for errors that are problems or reports of this API, or pages.
fn is_own(response: &Response) -> bool {
    let status = response.status();
    let kind = response.headers().get(header::CONTENT_TYPE).map(|kind| kind.as_bytes());
    let own = [Problem::MEDIA_TYPE.as_bytes(), b"application/json", b"text/html; charset=utf-8"];
    !(status.is_client_error() || status.is_server_error()) || kind.is_some_and(|kind| own.contains(&kind))
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
    let path = request.uri().path();
    let problem = Problem::new(Code::NoRoute).with_detail(path);
    match with_encoded_group(path) {
        Some(encoded) => problem
            .with_hint(format!("the id of a group contains a slash, written %2F in a path: {encoded}"))
            .into(),
        None => problem.into(),
    }
}

/// Returns the path of a group with the slash of its id encoded, if the path has a bare one. The id is `FINGERPRINT@CONSUMER/COMPONENT`.
fn with_encoded_group(path: &str) -> Option<String> {
    let pages = ["/v1/groups/", "/console/groups/"];
    let (start, id) = pages.into_iter().find_map(|start| Some((start, path.strip_prefix(start)?)))?;
    let (before, after) = id.split_once('/')?;
    let is_id = before.contains('@') || before.contains("%40");
    (is_id && !after.is_empty()).then(|| format!("{start}{before}%2F{after}"))
}
