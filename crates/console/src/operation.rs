//! The page of an operation: its state, its stages, its outcomes, and its commands.

use axum::body::Body;
use axum::extract::{Path, Query};
use axum::http::{HeaderValue, Method, header};
use axum::response::Response;
use lazaret_api::numbers::{count, plural, span};
use lazaret_api::{
    Action, Code, Command, CommandRequest, ItemPage, Operation, OperationState, Outcome, Plan, Problem, Scope,
};
use lazaret_core::person::may_be_same_person;
use maud::{Markup, html};
use serde::Deserialize;

use crate::api::{Result, escape, with_query};
use crate::form::{Fields, csrf_field};
use crate::icon::icon;
use crate::layout::{Section, page_head, region};
use crate::text::visible;
use crate::time::{age, exact_with_age};
use crate::visit::{Answer, Page, Visit};
use crate::{badge, cli_line, letters, links, operations, plan, problem};

/// The number of letters on a page.
const PAGE: &str = "50";
/// The maximum number of letters that failed again in one new plan.
const MAX_FAILED: &str = "500";

/// The letters to show.
#[derive(Default, Deserialize)]
pub(crate) struct ItemParams {
    outcome: Option<String>,
    after: Option<String>,
}

pub(crate) async fn show(Path(id): Path<String>, Query(params): Query<ItemParams>, visit: Visit) -> Response {
    let page = page(&visit, &id, &params, None).await;
    visit.respond(page)
}

/// Serves the outcome of each letter as a download, one JSON object per line.
pub(crate) async fn download(
    Path(id): Path<String>,
    Query(params): Query<ItemParams>,
    visit: Visit,
) -> Response {
    match result(&visit, &id, &params).await {
        Ok(response) => response,
        Err(problem) => visit.respond::<Page>(Err(problem)),
    }
}

async fn result(visit: &Visit, id: &str, params: &ItemParams) -> Result<Response> {
    let of: Operation = visit.api.get(&format!("/v1/operations/{}", escape(id))).await?;
    let path = format!("/v1/operations/{}/items", escape(&of.id));
    let path = with_query(&path, &[("outcome", params.outcome.as_deref())]);
    let lines = (header::ACCEPT, HeaderValue::from_static("application/x-ndjson"));
    let mut response = visit.api.send(Method::GET, &path, Body::empty(), &[lines]).await?;
    // Sent as an attachment, which no browser renders. The id comes from the API, and has letters,
    // digits and an underscore.
    if let Ok(name) = HeaderValue::try_from(format!("attachment; filename=\"{}.jsonl\"", of.id)) {
        response.headers_mut().insert(header::CONTENT_DISPOSITION, name);
    }
    Ok(response)
}

/// Sends a command. A problem is shown above the operation.
pub(crate) async fn command(
    Path((id, command)): Path<(String, String)>,
    visit: Visit,
    fields: Fields,
) -> Response {
    let answer = match send(&visit, &id, &command, &fields).await {
        Ok(()) => Ok(Answer::SeeOther(links::operation(&id))),
        Err(problem) => page(&visit, &id, &ItemParams::default(), Some(&problem)).await.map(Answer::from),
    };
    visit.respond(answer)
}

async fn send(visit: &Visit, id: &str, command: &str, fields: &Fields) -> Result<()> {
    let command: Command = command.parse().map_err(|_| Box::new(Problem::new(Code::NoRoute)))?;
    let path = format!("/v1/operations/{}/{command}", escape(id));
    let request = CommandRequest { reason: fields.get("reason").map(str::to_owned) };
    visit.api.change::<Operation>(Method::POST, &path, &request).await.map(|_| ())
}

async fn page(visit: &Visit, id: &str, params: &ItemParams, problem: Option<&Problem>) -> Result<Page> {
    let path = format!("/v1/operations/{}", escape(id));
    let of: Operation = visit.api.get(&path).await?;
    // The plan may be deleted before its operation.
    let plan: Option<Plan> = visit.api.get(&format!("/v1/plans/{}", escape(&of.plan))).await.ok();
    let outcome = params.outcome.as_deref().filter(|outcome| outcome.parse::<Outcome>().is_ok());
    let list = with_query(
        &format!("{path}/items"),
        &[("outcome", outcome), ("after", params.after.as_deref()), ("limit", Some(PAGE))],
    );
    let items: ItemPage = visit.api.get(&list).await?;
    let failed = failed_letters(visit, &of).await?;
    let title = format!("{} {}", plan::verb(of.action), of.id);
    let about = html! { (visible(&of.by.why)) };
    let main = html! {
        div.crumbs { a href="/console/operations" { "Operations" } (icon("next")) span.mono { (of.id) } }
        (page_head(&html! { (title) }, &about, &html! {}))
        @if let Some(problem) = problem { (problem::banner(problem)) }
        (region("operation-state", &html! { (steps(&of)) (note(&of)) (retry_failed(visit, &failed)) (outcomes(visit, &of)) }))
        div.split {
            div.stack {
                (region("operation-items", &letters_of(visit, &of, outcome, &items)))
            }
            div.stack {
                (region("operation-commands", &commands(visit, &of)))
                (region("operation-facts", &facts(visit, &of, plan.as_ref())))
            }
        }
        (region("operation-cli", &cli_line::line("cli", &cli_line::command(if of.state.is_over() { "op show" } else { "op watch" }, &[], &[&of.id]))))
    };
    let page = Page::new(title, Section::Operations, main);
    Ok(if let Some(problem) = problem { page.status(problem.status) } else { page })
}

/// Renders the progress of the operation through its states.
fn steps(of: &Operation) -> Markup {
    let mut way = vec![(OperationState::Running, "play", "Running")];
    if of.start_at.is_some() || of.state == OperationState::Scheduled {
        way.insert(0, (OperationState::Scheduled, "wait", "Scheduled"));
    }
    if of.needs_approval {
        way.insert(0, (OperationState::AwaitingApproval, "person", "Needs approval"));
    }
    let end = match of.state {
        OperationState::Cancelled => (of.state, "cross", "Cancelled"),
        OperationState::Rejected => (of.state, "cross", "Rejected"),
        _ => (OperationState::Done, "ok", "Done"),
    };
    let at = if of.state == OperationState::Paused { OperationState::Running } else { of.state };
    html! {
        div.panel.pad {
            ol.steps {
                li { (icon("ok")) "Planned" }
                @for (state, symbol, name) in way.into_iter().chain([end]) {
                    li aria-current=[(state == at).then_some("step")] {
                        @if state == at && of.state == OperationState::Paused { (icon("pause")) "Paused" } @else { (icon(symbol)) (name) }
                    }
                }
            }
            @if of.action == Action::Retry && !of.ramp.is_empty() { (stages(of)) }
        }
    }
}

/// Renders the stages of the canary, with the number of letters in each stage and in the rest.
fn stages(of: &Operation) -> Markup {
    let rest = of.letters.saturating_sub(of.ramp.iter().sum());
    let stages = of.ramp.iter().scan(of.letters, |left, stage| {
        let size = (*stage).min(*left);
        *left -= size;
        (size > 0).then_some(size)
    });
    let stages: Vec<u64> = stages.chain((rest > 0).then_some(rest)).collect();
    let is_done = |index: usize| of.state == OperationState::Done || (index as u64) < of.stage;
    html! {
        ol.stages aria-label="Canary stages" {
            li.legend aria-hidden="true" { "Letters per stage" }
            @for (index, letters) in stages.iter().enumerate() {
                @let is_current = index as u64 == of.stage && !of.state.is_over();
                li aria-current=[is_current.then_some("step")] data-state=[(is_done(index) && !is_current).then_some("done")] {
                    @if is_done(index) && !is_current { (icon("ok")) " " }
                    (count(*letters))
                }
            }
        }
    }
}

fn note(of: &Operation) -> Markup {
    html! {
        @if let Some(note) = &of.note {
            div.banner.warn {
                (icon("warn")) " " (visible(note))
                @if of.state == OperationState::Paused && of.failed_again > 0 {
                    p { a href=(failed_again(of)) { "See which failed again" } ", find out why, and repair it. Then resume: the letters that are left are sent." }
                }
            }
        }
    }
}

/// Returns the letters that failed again in a finished retry, up to one page.
async fn failed_letters(visit: &Visit, of: &Operation) -> Result<ItemPage> {
    if of.failed_again == 0 || of.action != Action::Retry || !of.state.is_over() {
        return Ok(ItemPage { items: Vec::new(), next: None });
    }
    let values = [("outcome", Some(Outcome::FailedAgain.as_str())), ("limit", Some(MAX_FAILED))];
    visit.api.get(&with_query(&format!("/v1/operations/{}/items", escape(&of.id)), &values)).await
}

/// Renders what to do with letters that failed again.
fn retry_failed(visit: &Visit, failed: &ItemPage) -> Markup {
    let ids: Vec<&str> = failed.items.iter().map(|item| item.letter.as_str()).collect();
    html! {
        @if !ids.is_empty() {
            div.banner.warn {
                (icon("warn")) " " (plural(ids.len() as u64, "letter")) @if failed.next.is_some() { " and more" } " failed again. Once the cause is repaired:"
                (plan::retry_button(visit, &ids, "Plan retry of those that failed again"))
            }
        }
    }
}

/// Returns the link to the letters of an operation that failed again.
fn failed_again(of: &Operation) -> String {
    with_query(&links::operation(&of.id), &[("outcome", Some(Outcome::FailedAgain.as_str()))])
}

fn outcomes(visit: &Visit, of: &Operation) -> Markup {
    let left = of.letters.saturating_sub(of.ok + of.failed_again + of.skipped);
    let failed = failed_again(of);
    html! {
        div.section-head { h2 { (badge::operation(of.state)) } p.muted { "changed " (age(of.updated_at, visit.now)) " ago" } }
        (operations::progress(of, true))
        div.numbers {
            div { span.value { (count(of.letters)) } span.label { "letters" } }
            div { span.value { (count(of.sent)) } span.label { "sent" } }
            div { span.value { (count(of.ok)) } span.label { span.swatch.ok {} "ok" } }
            a href=(failed) { span.value.bad[of.failed_again > 0] { (count(of.failed_again)) } span.label { span.swatch.failed {} "failed again: which?" } }
            div { span.value { (count(of.skipped)) } span.label { span.swatch.skipped {} "skipped" } }
            div { span.value { (count(left)) } span.label { span.swatch.left {} "left" } }
            @if !of.state.is_over() {
                div {
                    span.value { (of.rate.filter(|rate| *rate > 0.0).map_or_else(|| "–".to_owned(), |rate| span((left as f64 / rate).ceil()))) }
                    span.label { "left at the rate, at least" }
                }
            }
        }
    }
}

/// Renders the commands that the state allows, each with its right.
fn commands(visit: &Visit, of: &Operation) -> Markup {
    let right = if of.action == Action::Evict { Scope::Evict } else { Scope::Triage };
    let possible: &[(Command, Scope, &str, &str)] = match of.state {
        OperationState::AwaitingApproval => &[
            (Command::Approve, Scope::Approve, "ok", "Approve"),
            (Command::Reject, Scope::Approve, "cross", "Reject"),
            (Command::Cancel, right, "cross", "Cancel"),
        ],
        OperationState::Running | OperationState::Scheduled => {
            &[(Command::Pause, right, "pause", "Pause"), (Command::Cancel, right, "cross", "Cancel")]
        }
        OperationState::Paused => {
            &[(Command::Resume, right, "play", "Resume"), (Command::Cancel, right, "cross", "Cancel")]
        }
        _ => &[],
    };
    let is_own = may_be_same_person(&of.by.who, &visit.identity.person);
    let may_approve = of.state == OperationState::AwaitingApproval && !is_own && visit.may(Scope::Approve);
    html! {
        @if !possible.is_empty() {
            form.panel method="post" action={ (links::operation(&of.id)) "/" (possible[0].0.as_str()) } {
                div.pad {
                    (csrf_field(visit))
                    div.field {
                        label for="reason" { "Reason" }
                        input #reason type="text" name="reason" required maxlength="1024" data-key=[may_approve.then_some("A")];
                    }
                    p.actions {
                        @for (command, right, symbol, name) in possible {
                            @let own = is_own && *right == Scope::Approve;
                            @let why = if own { Some("another person must decide: you started it".to_owned()) } else { visit.missing(*right) };
                            button .primary[matches!(command, Command::Approve | Command::Resume)] .danger[matches!(command, Command::Cancel | Command::Reject)]
                                formaction={ (links::operation(&of.id)) "/" (command.as_str()) } disabled[why.is_some()] title=[why] { (icon(symbol)) (name) }
                        }
                    }
                    @if of.state == OperationState::AwaitingApproval && is_own { p.muted { "You started it, so another person must approve it." } }
                    @else { p.muted { "Cancelling does not undo: letters that were sent stay sent." } }
                    @for (command, ..) in possible {
                        (cli_line::line(&format!("cli-{command}"), &cli_line::command(&format!("op {command}"), &[("--reason", "TEXT")], &[&of.id])))
                    }
                }
            }
        }
    }
}

fn facts(visit: &Visit, of: &Operation, plan: Option<&Plan>) -> Markup {
    html! {
        section.panel { div.pad { dl.facts {
            dt { "Started by" } dd { (visible(&of.by.who)) " via " (visible(&of.by.via)) }
            @if let Some(by) = &of.approved_by {
                dt { @if of.state == OperationState::Rejected { "Rejected by" } @else { "Approved by" } }
                dd { (visible(&by.who)) ": " (visible(&by.why)) }
            }
            dt { "Rate" } dd { @if let Some(rate) = of.rate { (rate) "/s" } @else { "unlimited" } }
            // Only a retry has a canary.
            @if of.action == Action::Retry {
                dt { "Stages" }
                dd { @if of.ramp.is_empty() { "one" } @else { (of.ramp.iter().map(|stage| count(*stage)).collect::<Vec<_>>().join(", ")) ", then the rest" } }
                dt { "Stop at" } dd { @if let Some(share) = of.stop_at { (format!("{:.0} %", share * 100.0)) " failed again" } @else { "never" } }
            }
            @if let Some(at) = of.start_at { dt { "Start at" } dd { (exact_with_age(at, visit.now)) } }
            dt { "Created" } dd { (exact_with_age(of.created_at, visit.now)) }
            @if let Some(at) = of.ended_at { dt { "Ended" } dd { (exact_with_age(at, visit.now)) } }
            dt { "Plan" } dd { a.mono href=(links::plan(&of.plan)) { (of.plan) } }
            @if let Some(plan) = plan {
                @if let Some(query) = plan.query.as_deref().filter(|query| !query.is_empty()) { dt { "Query" } dd { a href=(links::letters(query)) { code { (visible(query)) } } } }
                dt { "Frozen set" } dd.mono { (plan.hash) }
                @for excluded in &plan.excluded { dt { "Excluded" } dd { (count(excluded.letters)) " " (excluded.reason.as_str()) } }
            }
        } } }
    }
}

fn letters_of(visit: &Visit, of: &Operation, outcome: Option<&str>, items: &ItemPage) -> Markup {
    let path = |outcome: Option<&str>, after: Option<&str>| {
        with_query(&links::operation(&of.id), &[("outcome", outcome), ("after", after)])
    };
    html! {
        div.section-head {
            h2 { "Letters" }
            a.button href=(with_query(&format!("{}/result", links::operation(&of.id)), &[("outcome", outcome)])) { (icon("download")) "Download outcomes" }
        }
        div.chips {
            a.chip href=(path(None, None)) aria-current=[outcome.is_none().then_some("true")] { "All" }
            @for one in Outcome::ALL {
                a.chip href=(path(Some(one.as_str()), None)) aria-current=[(outcome == Some(one.as_str())).then_some("true")] { (one.as_str()) }
            }
        }
        @if items.items.is_empty() { p.muted { "No letter with this outcome." } } @else {
            form.panel method="post" action="/console/plans" {
                (plan::bulk_bar(visit, "letters"))
                div.scroll { table.tight {
                thead { tr {
                    th.check { input type="checkbox" data-mark-all aria-label="Mark all letters"; }
                    th.num.in-narrow { "#" } th { "Letter" } th { "Sequence" } th.in-medium { "Queue" } th { "Outcome" }
                } }
                tbody data-rows { @for item in &items.items { tr data-row {
                    td.check { input type="checkbox" name="id" value=(item.letter) aria-label={ "Mark letter " (letters::short(&item.letter)) }; }
                    td.num.in-narrow { (item.ordinal + 1) }
                    td { a.mono data-open href=(links::letter(&item.letter)) { (letters::short(&item.letter)) } }
                    td.sequence { a href=(links::sequence(&item.queue, &item.sequence)) { (visible(&item.sequence)) } }
                    td.in-medium { (visible(&item.queue)) }
                    td { (badge::outcome(item.outcome)) }
                } } }
                } }
            }
        }
        @if let Some(next) = &items.next { div.pager { a.button href=(path(outcome, Some(next))) { "Next page" } } }
    }
}
