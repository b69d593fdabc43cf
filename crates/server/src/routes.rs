//! The route table. Every route declares its access rule.

use axum::Router;
use axum::handler::Handler;
use axum::http::Method;
use axum::middleware::{from_fn, from_fn_with_state};
use axum::routing::{MethodFilter, on};
use lazaret_api as api;
use lazaret_api::Scope;
use serde_json::Value;

use crate::api_error::Result;
use crate::app::App;
use crate::auth::{Access, Caller};
use crate::change::{bulk, import, letters as change, operations as operate, pauses, reveal};
use crate::inbox;
use crate::middleware;
use crate::ndjson::NDJSON;
use crate::openapi::{Document, RequestKind, Route};
use crate::read::{admin, audit, events, facets, groups, health, letters, operations, status};

const READ: Access = Access::Scope(Scope::Read);
const PAYLOAD: Access = Access::Scope(Scope::Payload);
const REVEAL: Access = Access::Scope(Scope::Reveal);
const ADMIN: Access = Access::Scope(Scope::Admin);
const TRIAGE: Access = Access::Scope(Scope::Triage);
const EVICT: Access = Access::Scope(Scope::Evict);
const EDIT: Access = Access::Scope(Scope::Edit);
const IMPORT: Access = Access::Scope(Scope::Import);
const PAUSE: Access = Access::Scope(Scope::Pause);
const APPROVE: Access = Access::Scope(Scope::Approve);
const INGEST: Access = Access::Scope(Scope::Ingest);
/// A token with `evict` may purge; one with `purge` may not evict.
const PURGE: Access = Access::AnyScope(&[Scope::Evict, Scope::Purge]);
const TRIAGE_OR_EVICT: Access = Access::AnyScope(&[Scope::Triage, Scope::Evict]);

/// The media types of an import.
const LINES: [&str; 2] = [NDJSON, "application/jsonl"];

/// Collects routes: for the router, or for the document.
trait Add {
    /// Adds a route with its handler.
    fn add<T: 'static>(&mut self, route: Route, handler: impl Handler<T, App>);
}

/// Collects routes for the document.
struct DocumentRoutes(Document);

impl Add for DocumentRoutes {
    fn add<T: 'static>(&mut self, route: Route, _handler: impl Handler<T, App>) {
        self.0.add(route);
    }
}

/// Collects routes for the router.
struct ServedRoutes {
    app: App,
    router: Router<App>,
}

impl Add for ServedRoutes {
    fn add<T: 'static>(&mut self, route: Route, handler: impl Handler<T, App>) {
        let Route { method, path, access, kind, .. } = route;
        let filter = match method {
            Method::POST => MethodFilter::POST,
            Method::PUT => MethodFilter::PUT,
            _ => MethodFilter::GET,
        };
        let mut methods = on(filter, handler);
        let limits = &self.app.options.limits;
        let body_limit = match kind {
            RequestKind::Read => None,
            RequestKind::Message => Some(limits.message_bytes),
            RequestKind::Change | RequestKind::Reveal => Some(limits.json_bytes),
            RequestKind::Batch => Some(limits.batch_bytes),
            RequestKind::Import => Some(limits.import_bytes),
        };
        let import = kind == RequestKind::Import;
        let time = if import { limits.import_timeout } else { limits.request_timeout };
        methods = methods.route_layer(from_fn(move |request, next| middleware::timeout(time, request, next)));
        if let Some(limit) = body_limit {
            let state = (self.app.clone(), limit);
            // The id of a message is its idempotency key. What was revealed is not kept for a repetition.
            if !matches!(kind, RequestKind::Message | RequestKind::Reveal) {
                methods = methods.route_layer(from_fn_with_state(state.clone(), middleware::idempotent));
            }
            methods = methods.route_layer(from_fn_with_state(state, middleware::receive_body));
        }
        let per_consumer = tells_consumers_apart(path);
        // The last layer sees a request first: authorization comes before any work.
        methods = methods.route_layer(from_fn(move |caller: Result<Caller>, request, next| {
            middleware::authorize(access, per_consumer, caller, request, next)
        }));
        self.router = std::mem::take(&mut self.router).route(path, methods);
    }
}

/// Returns `true` for routes that check or filter by the consumers of a token. All others are closed to a token that is limited
/// to some consumers.
fn tells_consumers_apart(path: &str) -> bool {
    match path {
        "/healthz" | "/readyz" | "/openapi.json" | "/v1/openapi.json" | "/v1/whoami" | "/v1/status"
        | "/v1/events" => true,
        "/v1/instances" | "/v1/activity" | "/v1/groups/{id}/facets" => true,
        "/v1/groups" | "/v1/groups/{id}" | "/v1/sequences" | "/v1/letters" | "/v1/letters/count"
        | "/v1/letters/export" => true,
        "/v1/operations" | "/v1/audit" => true,
        _ => {
            let under = |start: &str| path.strip_prefix(start).is_some();
            under("/v1/letters/{id}")
                || under("/v1/plans")
                || under("/v1/operations/{id}")
                || under("/v1/consumers/{name}")
                || under("/v1/inbox/{consumer}")
        }
    }
}

/// Builds the router with all middleware. Pages have the same as the API, except that their calls of the API are authorized, not
/// they themselves.
pub(crate) fn router(app: App, pages: Option<Router>) -> Router {
    let mut router = api(&app);
    if let Some(pages) = pages {
        let forms = from_fn_with_state(app.clone(), middleware::receive_form);
        router = router.merge(pages.layer(forms));
    }
    router
        .fallback(middleware::no_route)
        .layer(from_fn_with_state(app.clone(), middleware::admit))
        .layer(from_fn_with_state(app.clone(), middleware::authenticate))
        .layer(from_fn_with_state(app.clone(), middleware::check_origin))
        .layer(from_fn_with_state(app.clone(), middleware::refuse_stopping))
        .layer(from_fn_with_state(app, middleware::finish))
}

/// The routes of the API. Requests must carry the result of their authentication.
pub(crate) fn api(app: &App) -> Router {
    let mut served = ServedRoutes { app: app.clone(), router: Router::new() };
    add_all(&mut served);
    served.router.with_state(app.clone())
}

/// Builds the OpenAPI document.
pub(crate) fn document() -> Value {
    let mut routes = DocumentRoutes(Document::new());
    add_all(&mut routes);
    routes.0.finish()
}

fn add_all(routes: &mut impl Add) {
    add_overview(routes);
    add_letters(routes);
    add_changes(routes);
    add_operations(routes);
    add_consumers(routes);
    add_inboxes(routes);
}

fn add_overview(routes: &mut impl Add) {
    let route =
        Route::get("/healthz", Access::Public, "Liveness check, for supervisors").answers::<api::Health>(200);
    routes.add(route, health::alive);
    let summary = "Readiness check: the store responds and every consumer is running or paused; the reasons need the scope read";
    let route = Route::get("/readyz", Access::Public, summary).answers::<api::Readiness>(200);
    routes.add(route.answers::<api::Readiness>(503), health::ready);
    let route =
        Route::get("/metrics", READ, "Metrics in the Prometheus text format").answers_with(200, "text/plain");
    routes.add(route, health::metrics);
    let route = Route::get("/v1/openapi.json", Access::Authenticated, "This document");
    routes.add(route.answers_any_json(200), health::document);
    let route = Route::get("/openapi.json", Access::Authenticated, "Same as /v1/openapi.json");
    routes.add(route.answers_any_json(200), health::document);
    let route = Route::get("/v1/whoami", Access::Authenticated, "The caller's identity and scopes");
    routes.add(route.answers::<api::Identity>(200), health::who_am_i);
    let route = Route::get("/v1/status", READ, "The status of all consumers and operations")
        .answers::<api::Status>(200);
    routes.add(route, status::status);
    let summary = "The processes that share the store, with their partitions and last report";
    let route = Route::get("/v1/instances", READ, summary).answers::<api::InstanceList>(200);
    routes.add(route, status::instances);
    let summary = "What the consumers of this process handled and failed in the last hour";
    let route = Route::get("/v1/activity", READ, summary).answers::<api::Activity>(200);
    routes.add(route, status::activity);
    let summary = "The effective configuration, with the origin of each value; secrets are masked";
    let route = Route::get("/v1/config", ADMIN, summary).answers::<api::EffectiveConfig>(200);
    routes.add(route, admin::config);
    let summary = "The configured tokens, without secrets and hashes";
    let route = Route::get("/v1/tokens", ADMIN, summary).answers::<api::TokenList>(200);
    routes.add(route, admin::tokens);
    let route = Route::get("/v1/audit", READ, "The audit, oldest entry first").query_of(
        "order",
        "latest: the latest entry first, not as NDJSON",
        &["oldest", "latest"],
    );
    let about =
        "Only the latest entries about this, such as the id of a letter: the latest first, on one page";
    let route = route.query("subject", about).paged();
    routes.add(route.answers::<api::AuditPage>(200).or_ndjson(), audit::list);
    let route = Route::get("/v1/audit/verify", READ, "Verify the hash chain of the audit")
        .query(
            "number",
            "The number of an entry that was noted elsewhere: it is broken if cut off or replaced",
        )
        .query(
            "hash",
            "The hash of that entry; one without hmac-sha256: from an earlier version needs the scope reveal",
        )
        .answers::<api::AuditCheck>(200);
    routes.add(route, audit::verify);
    let route = Route::get("/v1/events", READ, "Server-sent events of the type Event")
        .query("consumer", "Only events of this consumer")
        .query("kind", "Only events of these kinds, separated by commas")
        .query("last-event-id", "Same as the header Last-Event-ID")
        .query_of(
            "latest",
            "true: only the latest event of each kind and consumer, at most twice a second, and more rarely the more such streams are open",
            &["true", "false"],
        )
        .answers_with(200, "text/event-stream")
        .item_schema::<api::Event>();
    routes.add(route, events::events);
}

fn add_letters(routes: &mut impl Add) {
    let route = Route::get(
        "/v1/groups",
        READ,
        "Groups of letters with the same cause, most open letters first",
    )
    .query(
        "q",
        "A query on queue, consumer, reason, error, group, state, age, enqueued, failed and free text",
    )
    .query_of("closed", "true: include groups without open letters", &["true", "false"]);
    routes.add(route.paged().answers::<api::GroupPage>(200), groups::list);
    let route =
        Route::get("/v1/groups/{id}", READ, "One group; a fingerprint alone suffices if it is unique");
    routes.add(route.answers::<api::Group>(200), groups::show);
    let summary = "What the letters of a group have in common; headers need the scope payload";
    let route = Route::get("/v1/groups/{id}/facets", READ, summary);
    routes.add(route.answers::<api::GroupFacets>(200), facets::facets);
    let summary = "Letters, most recently enqueued first; as NDJSON, every match";
    let route = Route::get("/v1/letters", READ, summary)
        .query("q", "A query; without a state it matches open letters")
        .query_of("view", "summary, or full for an export, as NDJSON only", &["summary", "full"]);
    routes.add(route.paged().answers::<api::LetterPage>(200).or_ndjson(), letters::list);
    let route = Route::get("/v1/letters/count", READ, "The number of matching letters").query("q", "A query");
    routes.add(route.answers::<api::LetterMatches>(200), letters::count);
    let summary = "One letter; payload and headers need the scope payload";
    let route = Route::get("/v1/letters/{id}", READ, summary).number(
        "payload-bytes",
        "Cut off the payload, and the previous payloads of edits, after so many bytes; `payload-bytes` in the response is the whole size",
    );
    routes.add(route.answers::<api::LetterDetail>(200), letters::show);
    let summary =
        "One letter with its redacted values; needs the scope payload, too, and leaves an entry in the audit";
    let route = Route::reveal::<api::ActRequest>("/v1/letters/{id}/reveal", REVEAL, summary)
        .number("payload-bytes", "As for GET /v1/letters/{id}");
    routes.add(route.answers::<api::LetterDetail>(200), reveal::reveal);
    let summary = "Export full letters with their redacted values; needs the scope payload, too, and leaves an entry in the audit";
    let route = Route::reveal::<api::ExportRequest>("/v1/letters/export", REVEAL, summary);
    routes.add(route.answers_with(200, NDJSON).item_schema::<api::LetterDetail>(), letters::export);
    let summary = "The payload bytes, without redacted values; a part of them with the header Range";
    let route = Route::get("/v1/letters/{id}/payload", PAYLOAD, summary);
    let route = route.answers_with(200, "application/octet-stream");
    routes.add(route.answers_with(206, "application/octet-stream"), letters::payload);
    let route = Route::get("/v1/sequences", READ, "The open letters of a sequence, head first")
        .required("queue", "The queue: consumer/component")
        .required("sequence", "The sequence");
    routes.add(route.paged().answers::<api::Sequence>(200), letters::sequence);
}

fn add_changes(routes: &mut impl Add) {
    fn act(path: &'static str, access: Access, summary: &'static str) -> Route {
        Route::change::<api::ActRequest>(Method::POST, path, access, summary).answers::<api::Letter>(200)
    }
    routes.add(act("/v1/letters/{id}/evict", EVICT, "Evict a letter; restore reopens it"), change::evict);
    routes.add(
        act("/v1/letters/{id}/resolve", TRIAGE, "Mark a letter as handled by other means"),
        change::resolve,
    );
    routes.add(act("/v1/letters/{id}/park", TRIAGE, "Hold a letter until it is released"), change::park);
    routes.add(act("/v1/letters/{id}/quarantine", EVICT, "Isolate a letter"), change::quarantine);
    let summary = "Schedule a retry now, with fresh attempts";
    routes.add(act("/v1/letters/{id}/release", TRIAGE, summary), change::release);
    routes.add(act("/v1/letters/{id}/restore", TRIAGE, "Reopen an evicted letter"), change::restore);
    let summary = "Delete a closed letter; its id stays known as a duplicate";
    let purge = Route::change::<api::ActRequest>(Method::POST, "/v1/letters/{id}/purge", PURGE, summary);
    routes.add(purge.answers_nothing(204), change::purge);
    let summary = "Replace the payload of a letter, or revert its edits; the previous one is kept";
    let edit = Route::change::<api::EditRequest>(Method::PUT, "/v1/letters/{id}/payload", EDIT, summary);
    routes.add(edit.answers::<api::Letter>(200), change::edit);
    let comment = Route::change::<api::CommentRequest>(
        Method::POST,
        "/v1/letters/{id}/comments",
        TRIAGE,
        "Comment on a letter",
    );
    routes.add(comment.answers::<api::Letter>(200), change::comment);
    let summary = "Assign a letter to a person";
    let assign =
        Route::change::<api::AssignRequest>(Method::PUT, "/v1/letters/{id}/assignee", TRIAGE, summary);
    routes.add(assign.answers::<api::Letter>(200), change::assign);
    let summary = "Set the team that owns a letter";
    let own = Route::change::<api::AssignRequest>(Method::PUT, "/v1/letters/{id}/owner", TRIAGE, summary);
    routes.add(own.answers::<api::Letter>(200), change::own);
    let summary = "Set the expiry of a letter";
    let expire = Route::change::<api::ExpiryRequest>(Method::PUT, "/v1/letters/{id}/expiry", EVICT, summary);
    routes.add(expire.answers::<api::Letter>(200), change::expire);
    let summary = "Reopen evicted letters, each by itself";
    let restore = Route::change::<api::BulkRequest>(Method::POST, "/v1/letters/restore", TRIAGE, summary);
    routes.add(restore.answers::<api::BulkAnswer>(200), bulk::restore);
    let summary = "Mark letters as handled by other means, each by itself";
    let resolve = Route::change::<api::BulkRequest>(Method::POST, "/v1/letters/resolve", TRIAGE, summary);
    routes.add(resolve.answers::<api::BulkAnswer>(200), bulk::resolve);
    let summary = "Isolate letters, each by itself";
    let quarantine =
        Route::change::<api::BulkRequest>(Method::POST, "/v1/letters/quarantine", EVICT, summary);
    routes.add(quarantine.answers::<api::BulkAnswer>(200), bulk::quarantine);
    let summary = "Assign letters to a person, each by itself";
    let assign = Route::change::<api::BulkAssignRequest>(Method::POST, "/v1/letters/assign", TRIAGE, summary);
    routes.add(assign.answers::<api::BulkAnswer>(200), bulk::assign);
    let summary = "Delete closed letters, each by itself";
    let purge = Route::change::<api::BulkRequest>(Method::POST, "/v1/letters/purge", PURGE, summary);
    routes.add(purge.answers::<api::BulkAnswer>(200), bulk::purge);
    let summary = "Erase the content of letters, open ones after they are evicted; without a state, the query selects open and closed letters";
    let erase = Route::change::<api::BulkRequest>(Method::POST, "/v1/letters/erase", ADMIN, summary);
    routes.add(erase.answers::<api::BulkAnswer>(200), bulk::erase);
    let summary = "Import exported letters; existing ones stay unchanged";
    let import = Route::post("/v1/letters/import", IMPORT, RequestKind::Import, summary).body(&LINES);
    let import = import.query("queue", "Import into another queue");
    let import = import.query("reason", "The reason for the audit; default: import");
    routes.add(import.answers::<api::ImportAnswer>(200), import::import);
}

fn add_operations(routes: &mut impl Add) {
    let summary = "Freeze a set of letters and an action; changes nothing";
    let freeze = Route::change::<api::PlanRequest>(Method::POST, "/v1/plans", TRIAGE_OR_EVICT, summary);
    routes.add(freeze.answers::<api::Plan>(201), operate::freeze);
    let summary = "Plans without an operation that have not expired, latest first";
    let route = Route::get("/v1/plans", READ, summary).paged();
    routes.add(route.answers::<api::PlanPage>(200), operations::list_plans);
    let route = Route::get("/v1/plans/{id}", READ, "A plan").answers::<api::Plan>(200);
    routes.add(route, operations::show_plan);
    let route = Route::get("/v1/plans/{id}/items", READ, "The letters of a plan, in execution order");
    routes.add(route.paged().answers::<api::ItemPage>(200), operations::plan_items);
    let summary = "Start an operation from a plan, or freeze and start in one call";
    let begin = Route::change::<api::BeginRequest>(Method::POST, "/v1/operations", TRIAGE_OR_EVICT, summary);
    routes.add(begin.answers::<api::Operation>(201), operate::begin);
    let route = Route::get("/v1/operations", READ, "Operations, latest first").paged();
    routes.add(route.answers::<api::OperationPage>(200), operations::list);
    let route = Route::get("/v1/operations/{id}", READ, "An operation").answers::<api::Operation>(200);
    routes.add(route, operations::show);
    let route =
        Route::get("/v1/operations/{id}/items", READ, "The letters of an operation and their outcomes");
    let outcomes: Vec<&str> = api::Outcome::ALL.iter().map(|outcome| outcome.as_str()).collect();
    let route = route.query_of("outcome", "Only letters with this outcome", &outcomes);
    routes.add(route.paged().answers::<api::ItemPage>(200).or_ndjson(), operations::items);
    fn command(path: &'static str, access: Access, summary: &'static str) -> Route {
        Route::change::<api::CommandRequest>(Method::POST, path, access, summary)
            .answers::<api::Operation>(200)
    }
    routes.add(command("/v1/operations/{id}/pause", TRIAGE_OR_EVICT, "Pause an operation"), operate::pause);
    routes
        .add(command("/v1/operations/{id}/resume", TRIAGE_OR_EVICT, "Resume an operation"), operate::resume);
    routes
        .add(command("/v1/operations/{id}/cancel", TRIAGE_OR_EVICT, "Cancel an operation"), operate::cancel);
    routes.add(
        command("/v1/operations/{id}/approve", APPROVE, "Approve an operation, as a second person"),
        operate::approve,
    );
    routes.add(
        command("/v1/operations/{id}/reject", APPROVE, "Reject an operation, as a second person"),
        operate::reject,
    );
}

fn add_consumers(routes: &mut impl Add) {
    let route =
        Route::get("/v1/consumers/{name}", READ, "The status of a consumer").answers::<api::Consumer>(200);
    routes.add(route, status::show);
    let summary = "Pause a consumer or a part of it";
    let pause =
        Route::change::<api::PauseRequest>(Method::POST, "/v1/consumers/{name}/pause", PAUSE, summary);
    routes.add(pause.answers::<api::Pause>(200), pauses::pause);
    let summary = "Resume a consumer or a part of it";
    let resume =
        Route::change::<api::PauseRequest>(Method::POST, "/v1/consumers/{name}/resume", PAUSE, summary);
    routes.add(resume.answers::<api::ResumeAnswer>(200), pauses::resume);
}

fn add_inboxes(routes: &mut impl Add) {
    let summary = "Post a message: 202 when it is durable, 200 when it is a duplicate";
    let post = Route::post("/v1/inbox/{consumer}", INGEST, RequestKind::Message, summary).body(&["*/*"]);
    routes.add(post.answers::<api::InboxAnswer>(202).answers::<api::InboxAnswer>(200), inbox::post);
    let summary = "Post many messages, one per line: 202 when all are durable, 200 when all are duplicates";
    let batch = Route::post("/v1/inbox/{consumer}/batch", INGEST, RequestKind::Batch, summary);
    let batch = batch.body(&[NDJSON, "application/jsonl", "*/*"]);
    routes.add(batch.answers::<api::BatchAnswer>(202).answers::<api::BatchAnswer>(200), inbox::batch);
    let route = Route::get("/v1/inbox/{consumer}", READ, "The backlog of an inbox");
    routes.add(route.answers::<api::InboxBacklog>(200), inbox::backlog);
}
