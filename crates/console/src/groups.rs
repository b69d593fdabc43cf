//! The list of groups, which is the inbox of failures, with one row per cause.

use axum::extract::Query;
use axum::response::Response;
use lazaret_api::numbers::{count, plural};
use lazaret_api::text::{headline, sanitize};
use lazaret_api::{Group, GroupPage};
use maud::{Markup, html};
use serde::Deserialize;

use crate::api::{Result, with_query};
use crate::layout::{Section, empty, page_head, region};
use crate::query::{invalid_query, search_box};
use crate::starts::Starts;
use crate::text::{cut, telling_type, visible};
use crate::time::{age, maybe_age};
use crate::visit::{Page, Visit};
use crate::{chart, cli_line, links, plan};

/// The number of groups on a page.
const PAGE: &str = "50";
const EXAMPLE: &str = "queue:payments reason:TIMEOUT error:\"connection reset\" age:>1h";

/// The groups to show.
#[derive(Deserialize)]
pub(crate) struct GroupParams {
    #[serde(default)]
    q: String,
    #[serde(default)]
    closed: bool,
    after: Option<String>,
}

pub(crate) async fn show(Query(params): Query<GroupParams>, visit: Visit) -> Response {
    let page = page(&visit, &params).await;
    visit.respond(page)
}

async fn page(visit: &Visit, params: &GroupParams) -> Result<Page> {
    let path = with_query(
        "/v1/groups",
        &[
            ("q", Some(&params.q)),
            ("closed", params.closed.then_some("true")),
            ("after", params.after.as_deref()),
            ("limit", Some(PAGE)),
        ],
    );
    let (found, error) = match visit.api.get::<GroupPage>(&path).await {
        Ok(found) => (Some(found), None),
        Err(problem) => (None, Some(invalid_query(problem)?)),
    };
    let starts = Starts::read(visit).await?;
    let letters: u64 = found.iter().flat_map(|found| &found.groups).map(|group| group.letters).sum();
    let about = html! {
        @if let Some(found) = &found {
            (plural(found.groups.len() as u64, "group")) @if found.next.is_some() { " and more" }
            ", " (plural(letters, "open letter"))
        } @else { "Failures with the same cause" }
    };
    let main = html! {
        (page_head(&html! { "Groups" }, &about, &html! {}))
        (search_box("/console/groups", &params.q, EXAMPLE, error.as_deref()))
        (chips(params))
        @if let Some(found) = &found { (region("groups", &inbox(visit, params, found, &starts))) }
        (cli_line::line("cli", &command(&params.q)))
    };
    let page = Page::new("Groups", Section::Groups, main);
    Ok(if let Some(problem) = error { page.status(problem.status) } else { page })
}

fn command(query: &str) -> String {
    if query.trim().is_empty() {
        cli_line::command("groups", &[], &[])
    } else {
        cli_line::command("groups", &[], &[query])
    }
}

/// Renders common filters as links.
fn chips(params: &GroupParams) -> Markup {
    let chips = [
        ("Open", "", false),
        ("New today", "enqueued:<24h", false),
        ("Older than 1 h", "age:>1h", false),
        ("Dead", "state:dead", false),
        ("Parked", "state:parked", false),
        ("Quarantined", "state:quarantined", false),
        ("All, with closed", "", true),
    ];
    html! {
        div.chips role="group" aria-label="Filters" {
            @for (name, query, closed) in chips {
                @let path = with_query("/console/groups", &[("q", Some(query).filter(|q| !q.is_empty())), ("closed", closed.then_some("true"))]);
                a.chip href=(path) aria-current=[(params.q == query && params.closed == closed).then_some("true")] { (name) }
            }
        }
    }
}

fn inbox(visit: &Visit, params: &GroupParams, found: &GroupPage, starts: &Starts) -> Markup {
    if found.groups.is_empty() {
        return nothing(params, found.next.as_deref());
    }
    html! {
        form method="post" action="/console/plans" {
            div.panel {
                (plan::bulk_bar(visit, "groups"))
                div.scroll { (table(visit, &found.groups, starts, true)) }
            }
        }
        (trends(&found.groups))
        (pager(params, found.next.as_deref()))
    }
}

fn pager(params: &GroupParams, next: Option<&str>) -> Markup {
    let path = |after: Option<&str>| {
        let query = Some(params.q.as_str()).filter(|query| !query.is_empty());
        with_query(
            "/console/groups",
            &[("q", query), ("closed", params.closed.then_some("true")), ("after", after)],
        )
    };
    html! {
        @if params.after.is_some() || next.is_some() {
            div.pager {
                @if params.after.is_some() { a.button href=(path(None)) { "First page" } }
                @if let Some(next) = next { a.button href=(path(Some(next))) { "Next page" } }
            }
        }
    }
}

fn nothing(params: &GroupParams, next: Option<&str>) -> Markup {
    html! {
        @if next.is_some() {
            (empty("groups", "No group so far", &html! { p { "The search examined a part of the groups." } }))
            (pager(params, next))
        } @else if params.q.is_empty() {
            (empty("ok", "No open failures", &html! {
                p { "Failed messages with the same cause become one group here, with their trend, the sequences they block, and one button to plan a retry." }
                p { a href="/console/groups?closed=true" { "Show groups without open letters" } }
            }))
        } @else {
            (empty("search", "No group matches", &html! {
                p { "Remove a condition, or search the letters: they have more fields, such as type, seq, payload and header." }
                p { a href="/console/groups" { "All groups" } " · " a href=(links::letters(&params.q)) { "Search letters" } }
            }))
        }
    }
}

/// Renders the table for the trends of groups.
pub(crate) fn trends(groups: &[Group]) -> Markup {
    let name = |group: &Group| html! { a href=(links::group(&group.id)) { (visible(&title(group))) } };
    let rows: Vec<(Markup, &[u64])> =
        groups.iter().map(|group| (name(group), group.trend.as_slice())).collect();
    let bucket_seconds = groups.first().map_or(0, |group| group.trend_bucket_seconds);
    chart::trends_table(&rows, bucket_seconds)
}

/// Renders a table of groups.
pub(crate) fn table(visit: &Visit, groups: &[Group], starts: &Starts, selectable: bool) -> Markup {
    html! {
        table {
            thead { tr {
                @if selectable { th.check { input type="checkbox" data-mark-all aria-label="Mark all groups"; } }
                th { "Cause" } th.in-medium title="New letters per hour. A mark is a start of an instance of the consumer." { "Trend, 24 h" } th.num { "Letters" } th.num title="Sequences that are blocked by a letter of the group" { "Blocked" } th.num.in-medium title="Letters that wait behind them" { "Behind" }
                th.num.in-wide { "Oldest" } th.num.in-wide { "First seen" } th.num.optional { "Last seen" }
            } }
            tbody data-rows { @for group in groups { (row(visit, group, starts, selectable)) } }
        }
    }
}

fn row(visit: &Visit, group: &Group, starts: &Starts, selectable: bool) -> Markup {
    html! {
        tr data-row {
            @if selectable {
                td.check { input type="checkbox" name="group" value=(group.id) aria-label={ "Mark " (sanitize(&title(group))) } disabled[group.letters == 0]; }
            }
            td.wide {
                a.title-link data-open href=(links::group(&group.id)) { (visible(&title(group))) }
                span.sub { span.tag { (visible(&group.reason)) } @if let Some(kind) = telling_type(&group.error.error_type) { " " (visible(&kind)) } " in " (visible(&group.queue)) @if let Some(owner) = &group.owner { ", owned by " span.owner { (visible(owner)) } } @if let Some(at) = group.expires_soon(visit.now) { ", " span.warn { "next letter expires " (age(at, visit.now)) } } }
            }
            td.in-medium { (chart::spark(&group.trend, group.trend_bucket_seconds, &starts.of_queue(&group.queue), visit.now)) }
            td.num { (count(group.letters)) }
            td.num.zero[group.sequences == 0] { (count(group.sequences)) }
            td.num.in-medium.zero[group.blocked_behind == 0] { (count(group.blocked_behind)) }
            td.num.in-wide { (maybe_age(group.oldest_at, visit.now)) }
            td.num.in-wide { (age(group.first_seen_at, visit.now)) }
            td.num.optional { (age(group.last_seen_at, visit.now)) }
        }
    }
}

/// Returns the name of a group: the most informative line of its latest error, or its reason.
pub(crate) fn title(group: &Group) -> String {
    let headline = headline(&group.error.error_type, &group.error.message).trim();
    cut(if headline.is_empty() { &group.reason } else { headline }, 160)
}
