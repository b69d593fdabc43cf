//! Plans, which are the only way to change many letters. A plan freezes them and shows what would
//! happen. A reason starts it.

use axum::extract::Path;
use axum::http::Method;
use axum::response::Response;
use lazaret_api::numbers::{count, plural, span};
use lazaret_api::values::{self, Ramp};
use lazaret_api::{
    Action, BeginRequest, Code, Excluded, Exclusion, ItemPage, Operation, Plan, PlanRequest, Problem, Scope,
    Selection,
};
use maud::{Markup, html};

use crate::api::{Result, escape};
use crate::form::{Fields, csrf_field, hidden};
use crate::icon::icon;
use crate::layout::{Section, empty, page_head};
use crate::query::group_term;
use crate::text::visible;
use crate::time::{age, exact_with_age};
use crate::visit::{Answer, Page, Visit};
use crate::{cli_line, letters, links, problem};

/// The number of letters of a plan that are shown.
const SAMPLE: usize = 20;

/// Returns the right that an action needs.
const fn right(action: Action) -> Scope {
    match action {
        Action::Retry | Action::Park | Action::Release => Scope::Triage,
        Action::Evict => Scope::Evict,
    }
}

pub(crate) const fn verb(action: Action) -> &'static str {
    match action {
        Action::Retry => "Retry",
        Action::Evict => "Evict",
        Action::Park => "Park",
        Action::Release => "Release",
    }
}

fn symbol(action: Action) -> &'static str {
    match action {
        Action::Retry | Action::Release => "retry",
        Action::Evict => "evict",
        Action::Park => "park",
    }
}

/// Renders the buttons of a form that plans each action. A button that the caller may not use names the
/// missing right.
fn buttons(visit: &Visit, prefix: &str) -> Markup {
    html! {
        @for action in [Action::Retry, Action::Evict, Action::Park, Action::Release] {
            @let why = visit.missing(right(action));
            @let key = match action { Action::Retry => Some("R"), Action::Evict => Some("E"), _ => None };
            button .primary[action == Action::Retry && prefix.is_empty()] name="action" value=(action.as_str()) disabled[why.is_some()]
                title=[why]
                data-key=[key.filter(|_| prefix.is_empty())] data-marked-key=[key.filter(|_| !prefix.is_empty())] {
                (icon(symbol(action)))
                @if prefix.is_empty() { "Plan " (action.as_str()) } @else { (verb(action)) }
            }
        }
    }
}

/// Renders the buttons that plan an action for all letters of a query.
pub(crate) fn query_buttons(visit: &Visit, query: &str) -> Markup {
    html! {
        form method="post" action="/console/plans" { (csrf_field(visit)) (hidden("query", query)) (buttons(visit, "")) }
    }
}

/// Renders the buttons that plan an action for one letter.
pub(crate) fn letter_buttons(visit: &Visit, id: &str) -> Markup {
    html! {
        form method="post" action="/console/plans" { (csrf_field(visit)) (hidden("id", id)) (buttons(visit, "")) }
    }
}

/// Renders the button that plans a retry of these letters, with this text.
pub(crate) fn retry_button(visit: &Visit, ids: &[&str], text: &str) -> Markup {
    let why = visit.missing(right(Action::Retry));
    html! {
        form method="post" action="/console/plans" {
            (csrf_field(visit))
            @for id in ids { (hidden("id", id)) }
            button.primary name="action" value=(Action::Retry.as_str()) disabled[why.is_some()] title=[why] { (icon("retry")) (text) }
        }
    }
}

/// Renders the buttons above a selectable list, within its form.
pub(crate) fn bulk_bar(visit: &Visit, what: &str) -> Markup {
    html! {
        div.bulk {
            (csrf_field(visit))
            span.muted { "Plan for the marked " (what) ":" }
            (buttons(visit, "marked "))
        }
    }
}

/// Freezes a plan and goes to its preview.
pub(crate) async fn freeze(visit: Visit, fields: Fields) -> Response {
    let answer = frozen(&visit, &fields).await;
    visit.respond(answer)
}

async fn frozen(visit: &Visit, fields: &Fields) -> Result<Answer> {
    let invalid = |detail: &str| Box::new(Problem::new(Code::InvalidRequest).with_detail(detail));
    let action = fields.get("action").and_then(|action| action.parse().ok());
    let action: Action = action.ok_or_else(|| invalid("choose an action"))?;
    let (ids, groups) = (fields.all("id"), fields.all("group"));
    let selection = match (fields.get("query"), ids.is_empty(), groups.is_empty()) {
        (Some(query), true, true) => Selection { query: Some(query.to_owned()), ..Selection::default() },
        (None, false, true) => Selection { ids: Some(ids), ..Selection::default() },
        (None, true, false) => {
            let query = group_term(groups.iter().map(String::as_str));
            Selection { query: Some(query.ok_or_else(|| invalid("no such group"))?), ..Selection::default() }
        }
        _ => return Err(invalid("nothing is marked: mark rows first, then choose an action")),
    };
    let request = PlanRequest { action, selection, valid_for_seconds: None, reason: None };
    let plan: Plan = visit.api.change(Method::POST, "/v1/plans", &request).await?;
    Ok(Answer::SeeOther(links::plan(&plan.id)))
}

pub(crate) async fn show(Path(id): Path<String>, visit: Visit) -> Response {
    let page = page(&visit, &id, &Fields::default(), None).await;
    visit.respond(page)
}

/// Starts the operation. A problem is shown above the form, which keeps its input.
pub(crate) async fn start(Path(id): Path<String>, visit: Visit, fields: Fields) -> Response {
    let answer = match begin(&visit, &id, &fields).await {
        Ok(operation) => Ok(Answer::SeeOther(links::operation(&operation.id))),
        Err(problem) => page(&visit, &id, &fields, Some(&problem)).await.map(Answer::from),
    };
    visit.respond(answer)
}

async fn begin(visit: &Visit, id: &str, fields: &Fields) -> Result<Operation> {
    let request = request(id, fields)?;
    visit.api.change(Method::POST, "/v1/operations", &request).await
}

/// Returns the request that the form describes. Values have the syntax of the command line.
fn request(id: &str, fields: &Fields) -> Result<BeginRequest> {
    let wrong = |field: &str, error: &dyn std::fmt::Display| {
        Box::new(Problem::new(Code::InvalidRequest).with_detail(format!("{field}: {error}")))
    };
    let rate = fields.get("rate").map(values::rate).transpose().map_err(|error| wrong("rate", &error))?;
    let ramp = fields.get("ramp").map(values::ramp).transpose().map_err(|error| wrong("ramp", &error))?;
    let stop_at =
        fields.get("stop-at").map(values::share).transpose().map_err(|error| wrong("stop at", &error))?;
    let at = fields.get("at").map(values::time).transpose().map_err(|error| wrong("start at", &error))?;
    Ok(BeginRequest {
        plan: Some(id.to_owned()),
        rate,
        ramp: ramp.map(|Ramp(stages)| stages),
        stop_at,
        at,
        needs_approval: fields.get("needs-approval").is_some(),
        reason: fields.get("reason").map(str::to_owned),
        ..BeginRequest::default()
    })
}

async fn page(visit: &Visit, id: &str, fields: &Fields, problem: Option<&Problem>) -> Result<Page> {
    let path = format!("/v1/plans/{}", escape(id));
    let plan: Plan = visit.api.get(&path).await?;
    let items: ItemPage = visit.api.get(&format!("{path}/items?limit={SAMPLE}")).await?;
    let title = format!(
        "{} {} of {}",
        verb(plan.action),
        plural(plan.letters, "letter"),
        plural(plan.sequences, "sequence")
    );
    let about = html! {
        "Plan " span.mono { (plan.id) } ", frozen " (age(plan.frozen_at, visit.now)) " ago by " (visible(&plan.by.who))
        ". Letters that arrive later are not part of it."
    };
    let is_expired = plan.expires_at <= visit.now;
    let main = html! {
        div.crumbs { a href="/console/operations" { "Operations" } (icon("next")) span { "Plan" } (icon("next")) span.mono { (plan.id) } }
        (page_head(&html! { (title) }, &about, &html! {}))
        @if let Some(problem) = problem { (problem::banner(problem)) }
        @if is_expired {
            div.banner.warn { "This plan has expired. " @if let Some(query) = &plan.query { a href=(links::letters(query)) { "Search its letters" } " and plan again." } @else { "Plan again." } }
        }
        div.split {
            div.stack {
                @if plan.letters == 0 { (nothing(&plan)) }
                @else if !is_expired { (start_form(visit, &plan, fields)) }
                (sample(&plan, &items))
            }
            (preview(visit, &plan))
        }
    };
    let page = Page::new(title, Section::Operations, main);
    Ok(if let Some(problem) = problem { page.status(problem.status) } else { page })
}

fn nothing(plan: &Plan) -> Markup {
    empty(
        "search",
        "Nothing to do",
        &html! {
            @if plan.excluded.is_empty() { p { "No letters match." } }
            @else { p { "Every selected letter is excluded; the reasons are listed beside." } }
            @if let Some(query) = &plan.query { p { a href=(links::letters(query)) { "Search these letters" } } }
        },
    )
}

/// Renders what would happen.
fn preview(visit: &Visit, plan: &Plan) -> Markup {
    html! {
        section.panel {
            div.section-head { h2 { "Preview" } }
            div.pad { dl.facts {
                dt { "Letters" } dd { strong { (count(plan.letters)) } }
                dt { "Sequences" } dd { (count(plan.sequences)) }
                dt { "Behind them" }
                dd { @if plan.followers > 0 { (plural(plan.followers, "letter")) ", which may run after them" } @else { "nothing waits" } }
                @if plan.out_of_order > 0 {
                    dt { "Order" }
                    dd {
                        strong { (plural(plan.out_of_order, "letter")) " out of order" } ", having left "
                        @if plan.out_of_order == 1 { "its sequence" } @else { "their sequences" } " when dead (on-dead: continue)"
                    }
                }
                dt { "Takes" }
                dd data-duration=(plan.letters.saturating_add(plan.followers)) {
                    @if let Some(seconds) = plan.takes_seconds { (span(seconds as f64)) " at least" } @else { "as fast as the handlers" }
                }
                dt { "Approval" }
                dd { @if plan.needs_approval { "required from a second person" } @else { "not required" } }
                @if let Some(query) = &plan.query {
                    dt { "Query" }
                    dd { @if query.is_empty() { "every open letter" } @else { code { (visible(query)) } } }
                }
                dt { "Valid until" } dd { (exact_with_age(plan.expires_at, visit.now)) }
                dt { "Hash" } dd.mono { (plan.hash) }
            } }
            @if !plan.excluded.is_empty() {
                div.section-head { h2 { "Excluded" } }
                div.pad { dl.facts {
                    @for of in &plan.excluded { dt.num { (count(of.letters)) } dd { (exclusion(of.reason)) } }
                } }
            }
        }
    }
}

/// Formats the excluded letters by reason, on one line.
pub(crate) fn exclusions(excluded: &[Excluded]) -> String {
    let parts = excluded.iter().map(|of| format!("{} {}", count(of.letters), exclusion(of.reason)));
    parts.collect::<Vec<_>>().join(", ")
}

const fn exclusion(reason: Exclusion) -> &'static str {
    match reason {
        Exclusion::NotFound => "not found",
        Exclusion::Closed => "closed already",
        Exclusion::Already => "already in that state",
        Exclusion::InOperation => "held by another operation",
        Exclusion::Quarantined => "quarantined, and not selected by state",
        Exclusion::NoPayload => "without a payload: nothing to run",
        Exclusion::Behind => "behind a letter that is not in the plan",
    }
}

fn start_form(visit: &Visit, plan: &Plan, fields: &Fields) -> Markup {
    let why = visit.missing(right(plan.action));
    let runs = matches!(plan.action, Action::Retry);
    let value = |name: &str| fields.get(name).unwrap_or_default().to_owned();
    let begin = if plan.needs_approval { "Ask for approval" } else { "Start" };
    let start = cli_line::command(plan.action.as_str(), &[("--plan", &plan.id)], &[]);
    html! {
        form.panel method="post" action={ (links::plan(&plan.id)) "/start" } data-cli="cli-start" {
            div.pad {
                (csrf_field(visit))
                div.fields {
                    div.field.full {
                        label for="reason" { "Reason" }
                        input #reason type="text" name="reason" value=(value("reason")) required maxlength="1024" autofocus
                            placeholder="fixed in 2.8.2, OPS-1421" data-option="--reason" data-absent="TEXT" disabled[why.is_some()];
                        span.help { "It is recorded in the audit, with your name." }
                    }
                    (field("rate", "Rate", &value("rate"), "50/s", "default: that of the consumer"))
                    @if runs {
                        (field("ramp", "Canary stages", &value("ramp"), "1,5,25,100", "then the rest; none for a single stage"))
                        (field("stop-at", "Stop at", &value("stop-at"), "5%", "share that fails again; never to go on"))
                    }
                    (field("at", "Start at", &value("at"), "+90m", "default: now; a time such as 2026-01-31T22:00:00Z"))
                }
                @if !plan.needs_approval {
                    p { label.check { input type="checkbox" name="needs-approval" value="true"; " Ask a second person to approve" } }
                }
                p.actions {
                    button.primary disabled[why.is_some()] title=[why] {
                        (icon(symbol(plan.action))) (begin)
                    }
                    @if runs { span.muted { "One letter first, then 5, 25, 100 and the rest; it pauses by itself when more than 5\u{a0}% fail again." } }
                }
                (cli_line::following("cli-start", &start, &cli_line::command(plan.action.as_str(), &[("--plan", &plan.id), ("--reason", "TEXT")], &[])))
            }
        }
    }
}

fn field(name: &str, label: &str, value: &str, placeholder: &str, help: &str) -> Markup {
    html! {
        div.field {
            label for=(name) { (label) }
            input id=(name) type="text" name=(name) value=(value) placeholder=(placeholder) autocomplete="off" data-option={ "--" (name) }
                aria-describedby={ (name) "-help" };
            span.help id={ (name) "-help" } { (help) }
        }
    }
}

fn sample(plan: &Plan, items: &ItemPage) -> Markup {
    html! {
        @if !items.items.is_empty() {
            div.section-head { h2 { "Letters" } p.muted { "the first " (items.items.len()) " of " (count(plan.letters)) ", in the order of execution" } }
            div.panel.scroll { table {
                thead { tr { th.num { "#" } th { "Letter" } th { "Sequence" } th { "Queue" } } }
                tbody data-rows { @for item in &items.items { tr data-row {
                    td.num { (item.ordinal + 1) }
                    td { a.mono data-open href=(links::letter(&item.letter)) { (letters::short(&item.letter)) } }
                    td { a href=(links::sequence(&item.queue, &item.sequence)) { (visible(&item.sequence)) } }
                    td { (visible(&item.queue)) }
                } } }
            } }
        }
    }
}
