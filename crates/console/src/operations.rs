//! The list of operations: all retries, evictions, parkings and releases, latest first, and the plans
//! that were not started.

use axum::extract::Query;
use axum::response::Response;
use lazaret_api::numbers::count;
use lazaret_api::{Operation, OperationPage, OperationState, Plan, PlanPage};
use maud::{Markup, html};
use serde::Deserialize;

use crate::api::{Result, with_query};
use crate::layout::{Section, empty, page_head, region};
use crate::text::{cut, visible};
use crate::time::age;
use crate::visit::{Page, Visit};
use crate::{badge, chart, cli_line, links, plan};

/// The number of operations on a page.
const PAGE: &str = "50";

#[derive(Deserialize)]
pub(crate) struct OperationParams {
    after: Option<String>,
}

pub(crate) async fn show(Query(params): Query<OperationParams>, visit: Visit) -> Response {
    let page = page(&visit, &params).await;
    visit.respond(page)
}

async fn page(visit: &Visit, params: &OperationParams) -> Result<Page> {
    let path = with_query("/v1/operations", &[("after", params.after.as_deref()), ("limit", Some(PAGE))]);
    let found: OperationPage = visit.api.get(&path).await?;
    // Plans that were not started are shown only on the first page.
    let drafts: Option<PlanPage> = match params.after {
        None => Some(visit.api.get(&with_query("/v1/plans", &[("limit", Some(PAGE))])).await?),
        Some(_) => None,
    };
    let waiting = found.operations.iter().filter(|of| of.state == OperationState::AwaitingApproval).count();
    let about = html! { @if waiting > 0 { (waiting) " of them need approval" } @else { "Retries, evictions, parkings and releases of many letters" } };
    let main = html! {
        (page_head(&html! { "Operations" }, &about, &html! {}))
        (region("operations-drafts", &html! { @if let Some(page) = &drafts { (drafts_table(visit, page)) } }))
        (region("operations", &html! {
            @if found.operations.is_empty() { (nothing()) } @else { div.panel.scroll { (table(visit, &found.operations)) } }
            @if params.after.is_some() || found.next.is_some() {
                div.pager {
                    @if params.after.is_some() { a.button href="/console/operations" { "First page" } }
                    @if let Some(next) = &found.next { a.button href=(with_query("/console/operations", &[("after", Some(next))])) { "Next page" } }
                }
            }
        }))
        (cli_line::line("cli", &cli_line::command("op ls", &[], &[])))
    };
    Ok(Page::new("Operations", Section::Operations, main))
}

fn nothing() -> Markup {
    empty(
        "operation",
        "No operation yet",
        &html! {
            p { "An operation retries, evicts, parks or releases a frozen set of letters: in stages, at a rate, and it stops by itself when too many fail again. It goes on when you close this page, and after a restart." }
            p { "Plan one from a " a href="/console/groups" { "group" } ", a " a href="/console/letters" { "search" } ", or a letter." }
        },
    )
}

/// Renders the plans that were not started. Plans without letters have nothing to start.
fn drafts_table(visit: &Visit, page: &PlanPage) -> Markup {
    let plans: Vec<&Plan> = page.plans.iter().filter(|of| of.letters > 0).collect();
    html! {
        @if !plans.is_empty() {
            div.section-head #drafts {
                h2 { "Drafts" }
                p.muted { "plans that nobody has started" @if page.next.is_some() { ", the latest" } ". They change nothing, and expire by themselves." }
            }
            div.panel.scroll { table {
                thead { tr {
                    th { "Plan" } th.num { "Letters" } th.num.in-medium { "Sequences" } th.in-medium { "By" } th.num.in-wide { "Frozen" } th.num { "Expires" } th.in-narrow { "Next" }
                } }
                tbody data-rows { @for of in plans { tr data-row {
                    td.wide {
                        a.title-link data-open href=(links::plan(&of.id)) { (plan::verb(of.action)) " " span.mono { (of.id) } }
                        @if let Some(query) = of.query.as_deref().filter(|query| !query.is_empty()) { span.sub.mono.wraps { (visible(&cut(query, 120))) } }
                    }
                    td.num { (count(of.letters)) }
                    td.num.in-medium { (count(of.sequences)) }
                    td.in-medium { (visible(&of.by.who)) }
                    td.num.in-wide { (age(of.frozen_at, visit.now)) " ago" }
                    td.num { (age(of.expires_at, visit.now)) }
                    td.in-narrow { a.button href=(links::plan(&of.id)) { @if of.needs_approval { "Ask for approval" } @else { "Review and start" } } }
                } } }
            } }
            div.section-head { h2 { "Operations" } }
        }
    }
}

/// Renders a table of operations.
pub(crate) fn table(visit: &Visit, operations: &[Operation]) -> Markup {
    html! {
        table {
            thead { tr {
                th { "Operation" } th { "State" } th.in-narrow { "Progress" } th.num { "Letters" } th.num.in-medium { "Ok" } th.num.wraps.in-narrow { "Failed again" }
                th.num.in-wide { "Skipped" } th.in-wide { "By" } th.num.in-wide { "Created" }
            } }
            tbody data-rows { @for of in operations { tr data-row {
                td.wide {
                    a.title-link data-open href=(links::operation(&of.id)) { (plan::verb(of.action)) " " span.mono { (of.id) } }
                    span.sub { (visible(&cut(&of.by.why, 120))) }
                    @if let Some(note) = &of.note { span.sub.note { (visible(note)) } }
                    @if !of.excluded.is_empty() { span.sub.note { "excluded: " (plan::exclusions(&of.excluded)) } }
                }
                td { (badge::operation(of.state)) }
                td.progress.in-narrow { (progress(of, false)) }
                td.num { (count(of.letters)) }
                td.num.in-medium.zero[of.ok == 0] { (count(of.ok)) }
                td.num.in-narrow.zero[of.failed_again == 0] { (count(of.failed_again)) }
                td.num.in-wide.zero[of.skipped == 0] { (count(of.skipped)) }
                td.in-wide { (visible(&of.by.who)) }
                td.num.in-wide { (age(of.created_at, visit.now)) " ago" }
            } } }
        }
    }
}

/// Renders the outcomes so far as a bar.
pub(crate) fn progress(of: &Operation, tall: bool) -> Markup {
    let label = format!(
        "{} ok, {} failed again, {} skipped, of {}",
        count(of.ok),
        count(of.failed_again),
        count(of.skipped),
        count(of.letters)
    );
    chart::meter(
        &label,
        of.letters,
        &[("ok", of.ok), ("failed", of.failed_again), ("skipped", of.skipped)],
        tall,
    )
}
