//! The table of all pages.

use std::sync::Arc;

use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::middleware::from_fn;
use axum::routing::{MethodRouter, get, post};
use lazaret_api::Scope;

use crate::login::{InvalidOidc, Oidc, OidcOptions};
use crate::visit::see_other;
use crate::{
    admin, assets, events, group, groups, headers, letter, letters, login, operation, operations, overview,
    pause, plan,
};

/// The options of the console.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The provider to sign in with, in addition to tokens.
    pub oidc: Option<OidcOptions>,
    /// The `http` or `https` URL of a trace in the system that shows traces. `{trace-id}` is replaced by
    /// the id of the trace. Without it, the id is added at the end.
    pub trace_url: Option<String>,
}

/// The state that all pages share: the API that they call, the provider to sign in with, and the URL of
/// traces.
#[derive(Clone)]
pub(crate) struct Console {
    pub(crate) api: Router,
    pub(crate) oidc: Option<Arc<Oidc>>,
    pub(crate) trace_url: Option<Arc<str>>,
}

/// A page or a form of the console.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageRoute {
    /// The path, with its parameters in braces.
    pub path: &'static str,
    /// The kind of the route.
    pub kind: Kind,
    /// The rights, one of which is required. If empty, every signed-in caller has access. The API makes
    /// further checks, depending on the request.
    pub scopes: &'static [Scope],
}

/// The kind of a route of the console.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Serves files of the program, and redirects. Public.
    Public,
    /// Shows something, with `GET`.
    Read,
    /// Changes something, with `POST`.
    Change,
}

type Table = Vec<(PageRoute, MethodRouter<Console>)>;

const READ: &[Scope] = &[Scope::Read];
const PAYLOAD: &[Scope] = &[Scope::Payload];
const REVEAL: &[Scope] = &[Scope::Reveal];
const TRIAGE: &[Scope] = &[Scope::Triage];
const EDIT: &[Scope] = &[Scope::Edit];
const PAUSE: &[Scope] = &[Scope::Pause];
const PLAN: &[Scope] = &[Scope::Triage, Scope::Evict];
const COMMAND: &[Scope] = &[Scope::Triage, Scope::Evict, Scope::Approve];

fn table() -> Table {
    use Kind::{Change, Public, Read};
    let route = |kind, path, handler, scopes| (PageRoute { path, kind, scopes }, handler);
    vec![
        route(Public, "/", get(|| async { see_other("/console/") }), &[]),
        route(Public, "/console", get(|| async { see_other("/console/") }), &[]),
        route(Public, "/console/", get(|| async { see_other("/console/overview") }), &[]),
        route(Public, "/console/assets/{file}", get(assets::serve), &[]),
        route(Public, login::PATH, get(login::show).post(login::with_token), &[]),
        route(Public, login::OIDC_PATH, get(login::begin), &[]),
        route(Public, login::CALLBACK_PATH, get(login::complete), &[]),
        route(Public, login::LOGOUT_PATH, post(login::sign_out), &[]),
        route(Read, "/console/overview", get(overview::show), READ),
        route(Read, "/console/groups", get(groups::show), READ),
        route(Read, "/console/groups/{id}", get(group::show), READ),
        route(Change, "/console/groups/{id}/assignee", post(group::assign), TRIAGE),
        route(Read, "/console/letters", get(letters::show), READ),
        route(Read, "/console/letters/{id}", get(letter::show), READ),
        route(Read, "/console/letters/{id}/payload", get(letter::part), PAYLOAD),
        route(Read, "/console/letters/{id}/download", get(letter::download), PAYLOAD),
        // Live updates of a revealed letter read its page without the revealed values.
        route(Read, "/console/letters/{id}/reveal", get(letter::show), READ),
        route(Change, "/console/letters/{id}/reveal", post(letter::reveal), REVEAL),
        route(Read, "/console/letters/{id}/edit", get(letter::show_edit), EDIT),
        route(Change, "/console/letters/{id}/edit", post(letter::edit), EDIT),
        route(Change, "/console/letters/{id}/revert", post(letter::revert), EDIT),
        route(Change, "/console/letters/{id}/comments", post(letter::comment), TRIAGE),
        route(Change, "/console/letters/{id}/assignee", post(letter::assign), TRIAGE),
        route(Change, "/console/letters/{id}/restore", post(letter::restore), TRIAGE),
        route(Read, "/console/sequences", get(letter::show_sequence), READ),
        route(Change, "/console/plans", post(plan::freeze), PLAN),
        route(Read, "/console/plans/{id}", get(plan::show), READ),
        route(Change, "/console/plans/{id}/start", post(plan::start), PLAN),
        route(Read, "/console/operations", get(operations::show), READ),
        route(Read, "/console/operations/{id}", get(operation::show), READ),
        route(Read, "/console/operations/{id}/result", get(operation::download), READ),
        route(Change, "/console/operations/{id}/{command}", post(operation::command), COMMAND),
        route(Change, "/console/consumers/{name}/pause", post(pause::pause), PAUSE),
        route(Change, "/console/consumers/{name}/resume", post(pause::resume), PAUSE),
        route(Read, "/console/admin", get(admin::show), READ),
        route(Read, admin::RULES_PATH, get(admin::show_rules), PAYLOAD),
        route(Read, "/console/events", get(events::stream), READ),
        route(Read, "/console/{*path}", get(admin::not_found), READ),
    ]
}

/// Returns all routes of the console.
pub fn routes() -> Vec<PageRoute> {
    table().into_iter().map(|(route, _)| route).collect()
}

/// Creates the pages from an API, for `Builder::pages` of the server.
///
/// # Errors
/// When the options of the provider are invalid.
pub fn pages(options: Options) -> Result<impl FnOnce(Router) -> Router + Send + 'static, InvalidOidc> {
    let oidc = options.oidc.map(Oidc::new).transpose()?.map(Arc::new);
    let trace_url = options.trace_url.map(Arc::from);
    Ok(move |api| with_state(Console { api, oidc, trace_url }))
}

/// Creates the pages for this API, with the default options. A request to the API must carry the
/// extensions of the page's request. See `Builder::pages` of the server.
pub fn router(api: Router) -> Router {
    with_state(Console { api, oidc: None, trace_url: None })
}

fn with_state(console: Console) -> Router {
    let mut router = Router::new();
    for (route, mut handler) in table() {
        if route.kind != Kind::Public {
            let scopes = route.scopes;
            handler =
                handler.route_layer(from_fn(move |request, next| login::require(scopes, request, next)));
        }
        router = router.route(route.path, handler);
    }
    // The server limits forms before they reach a page.
    router.with_state(console).layer(DefaultBodyLimit::disable()).layer(from_fn(headers::secure))
}
