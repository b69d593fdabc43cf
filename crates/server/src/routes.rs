//! Every route, in one place. A route cannot be added without saying what it takes to use it.

use axum::Router;
use axum::handler::Handler;
use axum::http::Method;
use axum::middleware::{from_fn, from_fn_with_state};
use axum::routing::{MethodFilter, on};
use lazaret_api as api;
use lazaret_api::Scope;
use utoipa::openapi::OpenApi;

use crate::app::App;
use crate::auth::{Caller, check_origin, identify};
use crate::change::{import, letters as change, many, operations as operate, pauses};
use crate::document::{Document, Pace, Route};
use crate::fault::Result;
use crate::guard::{self, Need};
use crate::idempotency::once;
use crate::read::{audit, groups, health, letters, operations, status};
use crate::stream::NDJSON;
use crate::{events, inbox};

const READ: Need = Need::Scope(Scope::Read);
const PAYLOAD: Need = Need::Scope(Scope::Payload);
const TRIAGE: Need = Need::Scope(Scope::Triage);
const EVICT: Need = Need::Scope(Scope::Evict);
const PAUSE: Need = Need::Scope(Scope::Pause);
const APPROVE: Need = Need::Scope(Scope::Approve);
const INGEST: Need = Need::Scope(Scope::Ingest);
const CARE: Need = Need::OneOf(&[Scope::Triage, Scope::Evict]);

/// The lines that an import takes.
const LINES: [&str; 2] = [NDJSON, "application/jsonl"];

/// Adds routes to the router and to the document at once.
trait Add {
    /// Adds a route. What it takes to use it is part of the [`Route`].
    fn add<T: 'static>(&mut self, route: Route, handler: impl Handler<T, App>);
}

/// Only the document, for those who want to read it.
struct Described(Document);

impl Add for Described {
    fn add<T: 'static>(&mut self, route: Route, _handler: impl Handler<T, App>) {
        self.0.add(route);
    }
}

/// The routes that serve.
struct Served {
    app: App,
    router: Router<App>,
}

impl Add for Served {
    fn add<T: 'static>(&mut self, route: Route, handler: impl Handler<T, App>) {
        let Route { method, path, need, pace, .. } = route;
        let filter = match method {
            Method::POST => MethodFilter::POST,
            Method::PUT => MethodFilter::PUT,
            _ => MethodFilter::GET,
        };
        let mut methods = on(filter, handler);
        let limits = &self.app.options.limits;
        let kept_body = match pace {
            Pace::Read | Pace::Take => None,
            Pace::Change => Some(limits.json_bytes),
            Pace::Batch => Some(limits.batch_bytes),
            Pace::Import => Some(limits.import_bytes),
        };
        if let Some(most) = kept_body {
            methods = methods.route_layer(from_fn_with_state((self.app.clone(), most), once));
        }
        let limit = if pace == Pace::Import { limits.import_timeout } else { limits.request_timeout };
        methods = methods.route_layer(from_fn(move |request, next| guard::in_time(limit, request, next)));
        // The last layer is the first to see a request: nothing is done for those who may not.
        methods = methods.route_layer(from_fn(move |caller: Result<Caller>, request, next| {
            guard::permit(need, caller, request, next)
        }));
        self.router = std::mem::take(&mut self.router).route(path, methods);
    }
}

/// The router, with everything that a request goes through.
pub(crate) fn router(app: App) -> Router {
    let mut served = Served { app: app.clone(), router: Router::new() };
    add_all(&mut served);
    served
        .router
        .fallback(guard::no_route)
        .layer(from_fn_with_state(app.clone(), identify))
        .layer(from_fn_with_state(app.clone(), check_origin))
        .layer(from_fn_with_state(app.clone(), guard::with_room))
        .layer(from_fn(guard::finish))
        .with_state(app)
}

/// The OpenAPI document.
pub(crate) fn document() -> OpenApi {
    let mut described = Described(Document::new());
    add_all(&mut described);
    described.0.finish()
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
    let route = Route::get("/healthz", Need::Open, "Whether the process lives").answers::<api::Health>(200);
    routes.add(route, health::alive);
    let about = "Whether the store answers and every consumer runs or is paused; the reasons are for those who may read";
    let route = Route::get("/readyz", Need::Open, about).answers::<api::Readiness>(200);
    routes.add(route.answers::<api::Readiness>(503), health::ready);
    let route = Route::get("/metrics", READ, "The metrics, for Prometheus").answers_with(200, "text/plain");
    routes.add(route, health::metrics);
    let route = Route::get("/v1/openapi.json", Need::Known, "This document");
    routes.add(route.answers_any_json(200), health::document);
    let route = Route::get("/v1/whoami", Need::Known, "Who asks, and what they may do");
    routes.add(route.answers::<api::Identity>(200), health::who_am_i);
    let route = Route::get("/v1/status", READ, "How everything stands").answers::<api::Status>(200);
    routes.add(route, status::status);
    let route = Route::get("/v1/audit", READ, "Who did what, when and why, oldest first").paged();
    routes.add(route.answers::<api::AuditPage>(200).or_lines(), audit::list);
    let route =
        Route::get("/v1/audit/verify", READ, "Whether the audit is whole").answers::<api::AuditCheck>(200);
    routes.add(route, audit::verify);
    let route = Route::get("/v1/events", READ, "What happens, as server-sent events of the type Event")
        .query("consumer", "Only events of this consumer")
        .query("kind", "Only events of these kinds, separated by commas")
        .query("last-event-id", "As the header Last-Event-ID")
        .answers_with(200, "text/event-stream")
        .made_of::<api::Event>();
    routes.add(route, events::events);
}

fn add_letters(routes: &mut impl Add) {
    let route =
        Route::get("/v1/groups", READ, "Letters with one cause, those with the most open letters first")
            .query(
                "q",
                "A query: queue, consumer, reason, error, group, state, age, enqueued, failed and words",
            )
            .query("closed", "true: groups without open letters, too");
    routes.add(route.paged().answers::<api::GroupPage>(200), groups::list);
    let route = Route::get("/v1/groups/{id}", READ, "One group; a fingerprint alone where one queue has it");
    routes.add(route.answers::<api::Group>(200), groups::show);
    let about = "Letters, the latest taken in first; as lines, every match";
    let route = Route::get("/v1/letters", READ, about)
        .query("q", "A query; without a state it finds open letters")
        .query("view", "summary, or full for whole letters, as lines only: an export");
    routes.add(route.paged().answers::<api::LetterPage>(200).or_lines(), letters::list);
    let route = Route::get("/v1/letters/count", READ, "How many letters match").query("q", "A query");
    routes.add(route.answers::<api::LetterMatches>(200), letters::count);
    let about = "One letter, whole; payload and headers for those who may see them";
    let route = Route::get("/v1/letters/{id}", READ, about).answers::<api::LetterDetail>(200);
    routes.add(route, letters::show);
    let route = Route::get("/v1/letters/{id}/payload", PAYLOAD, "The bytes of the payload");
    routes.add(route.answers_with(200, "application/octet-stream"), letters::payload);
    let route = Route::get("/v1/sequences", READ, "The open letters of a sequence, its head first")
        .required("queue", "The queue: consumer/component")
        .required("sequence", "The sequence");
    routes.add(route.paged().answers::<api::Sequence>(200), letters::sequence);
}

fn add_changes(routes: &mut impl Add) {
    fn act(path: &'static str, need: Need, about: &'static str) -> Route {
        Route::change::<api::ActRequest>(Method::POST, path, need, about).answers::<api::Letter>(200)
    }
    routes.add(
        act("/v1/letters/{id}/evict", EVICT, "Take a letter out; restore brings it back"),
        change::evict,
    );
    routes.add(
        act("/v1/letters/{id}/resolve", TRIAGE, "Say that it was handled by other means"),
        change::resolve,
    );
    routes.add(act("/v1/letters/{id}/park", TRIAGE, "Hold a letter until it is released"), change::park);
    routes.add(act("/v1/letters/{id}/quarantine", EVICT, "Hold a letter apart"), change::quarantine);
    let about = "Let the scheduler try a letter again now, with fresh attempts";
    routes.add(act("/v1/letters/{id}/release", TRIAGE, about), change::release);
    routes.add(act("/v1/letters/{id}/restore", TRIAGE, "Bring an evicted letter back"), change::restore);
    let about = "Remove a closed letter for good; that it was there stays known";
    let purge = Route::change::<api::ActRequest>(Method::POST, "/v1/letters/{id}/purge", EVICT, about);
    routes.add(purge.answers_nothing(204), change::purge);
    let about = "Give a letter another payload; the one before it is kept";
    let edit = Route::change::<api::EditRequest>(Method::PUT, "/v1/letters/{id}/payload", EVICT, about);
    routes.add(edit.answers::<api::Letter>(200), change::edit);
    let comment = Route::change::<api::CommentRequest>(
        Method::POST,
        "/v1/letters/{id}/comments",
        TRIAGE,
        "Say something about a letter",
    );
    routes.add(comment.answers::<api::Letter>(200), change::comment);
    let about = "Say who looks after a letter";
    let assign = Route::change::<api::AssignRequest>(Method::PUT, "/v1/letters/{id}/assignee", TRIAGE, about);
    routes.add(assign.answers::<api::Letter>(200), change::assign);
    let about = "Say which team owns a letter";
    let own = Route::change::<api::AssignRequest>(Method::PUT, "/v1/letters/{id}/owner", TRIAGE, about);
    routes.add(own.answers::<api::Letter>(200), change::own);
    let about = "Say when a letter leaves by itself";
    let expire = Route::change::<api::ExpiryRequest>(Method::PUT, "/v1/letters/{id}/expiry", EVICT, about);
    routes.add(expire.answers::<api::Letter>(200), change::expire);
    let about = "Bring evicted letters back, each on its own";
    let restore = Route::change::<api::BulkRequest>(Method::POST, "/v1/letters/restore", TRIAGE, about);
    routes.add(restore.answers::<api::BulkAnswer>(200), many::restore);
    let about = "Remove closed letters for good, each on its own";
    let purge = Route::change::<api::BulkRequest>(Method::POST, "/v1/letters/purge", EVICT, about);
    routes.add(purge.answers::<api::BulkAnswer>(200), many::purge);
    let about = "Take in letters that were exported; a letter that is there already stays as it is";
    let import = Route::take("/v1/letters/import", EVICT, Pace::Import, about).body(&LINES);
    let import = import.query("queue", "Another queue than the one they came from");
    let import = import.query("reason", "Why; it stands in the audit. Without it: import");
    routes.add(import.answers::<api::ImportAnswer>(200), import::import);
}

fn add_operations(routes: &mut impl Add) {
    let about = "Freeze a set of letters and what is to be done with them; changes nothing";
    let freeze = Route::change::<api::PlanRequest>(Method::POST, "/v1/plans", CARE, about);
    routes.add(freeze.answers::<api::Plan>(201), operate::freeze);
    let route = Route::get("/v1/plans/{id}", READ, "A plan").answers::<api::Plan>(200);
    routes.add(route, operations::show_plan);
    let route =
        Route::get("/v1/plans/{id}/items", READ, "The letters of a plan, in the order of their turns");
    routes.add(route.paged().answers::<api::ItemPage>(200), operations::plan_items);
    let about = "Carry out a plan, or freeze and carry out in one call";
    let begin = Route::change::<api::BeginRequest>(Method::POST, "/v1/operations", CARE, about);
    routes.add(begin.answers::<api::Operation>(201), operate::begin);
    let route = Route::get("/v1/operations", READ, "Operations, the latest first").paged();
    routes.add(route.answers::<api::OperationPage>(200), operations::list);
    let route = Route::get("/v1/operations/{id}", READ, "An operation").answers::<api::Operation>(200);
    routes.add(route, operations::show);
    let route =
        Route::get("/v1/operations/{id}/items", READ, "The letters of an operation and their outcomes");
    routes.add(route.paged().answers::<api::ItemPage>(200), operations::items);
    fn tell(path: &'static str, need: Need, about: &'static str) -> Route {
        Route::change::<api::CommandRequest>(Method::POST, path, need, about).answers::<api::Operation>(200)
    }
    routes.add(tell("/v1/operations/{id}/pause", CARE, "Hold an operation"), operate::pause);
    routes.add(tell("/v1/operations/{id}/resume", CARE, "Let an operation go on"), operate::resume);
    routes.add(tell("/v1/operations/{id}/cancel", CARE, "End an operation"), operate::cancel);
    routes.add(tell("/v1/operations/{id}/approve", APPROVE, "Say yes, as a second person"), operate::approve);
    routes.add(tell("/v1/operations/{id}/reject", APPROVE, "Say no, as a second person"), operate::reject);
}

fn add_consumers(routes: &mut impl Add) {
    let route =
        Route::get("/v1/consumers/{name}", READ, "How a consumer stands").answers::<api::Consumer>(200);
    routes.add(route, status::show);
    let about = "Pause a consumer or a part of it";
    let pause = Route::change::<api::PauseRequest>(Method::POST, "/v1/consumers/{name}/pause", PAUSE, about);
    routes.add(pause.answers::<api::Pause>(200), pauses::pause);
    let about = "End a pause";
    let resume =
        Route::change::<api::PauseRequest>(Method::POST, "/v1/consumers/{name}/resume", PAUSE, about);
    routes.add(resume.answers::<api::ResumeAnswer>(200), pauses::resume);
}

fn add_inboxes(routes: &mut impl Add) {
    let about = "Post a message: 202 when it is durable, 200 when its id is known";
    let post = Route::take("/v1/inbox/{consumer}", INGEST, Pace::Take, about).body(&["*/*"]);
    routes.add(post.answers::<api::InboxAnswer>(202).answers::<api::InboxAnswer>(200), inbox::post);
    let about = "Post many messages, one a line: 202 when all are durable, 200 when all are known";
    let batch = Route::take("/v1/inbox/{consumer}/batch", INGEST, Pace::Batch, about);
    let batch = batch.body(&[NDJSON, "application/jsonl", "*/*"]);
    routes.add(batch.answers::<api::BatchAnswer>(202).answers::<api::BatchAnswer>(200), inbox::batch);
    let route = Route::get("/v1/inbox/{consumer}", READ, "How much waits in an inbox");
    routes.add(route.answers::<api::InboxBacklog>(200), inbox::backlog);
}
