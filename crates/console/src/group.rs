//! The page of a group: why its letters belong together, what they have in common, who works on them,
//! and what to do with them.

mod activity;

use axum::extract::Path;
use axum::http::Method;
use axum::response::Response;
use jiff::Timestamp;
use lazaret_api::numbers::{count, plural};
use lazaret_api::{
    AssignRequest, BulkAnswer, BulkAssignRequest, Facet, Group, GroupFacets, LetterPage, Scope, Selection,
    Variant,
};
use lazaret_core::Traceback;
use lazaret_core::fingerprint::normalise;
use lazaret_core::query::TextField;
use maud::{Markup, html};

use activity::activity;

use crate::api::{Result, escape, with_query};
use crate::form::{Fields, assign_form, csrf_field, hidden};
use crate::icon::icon;
use crate::layout::{Section, page_head, region};
use crate::query::{group_term, term};
use crate::starts::Starts;
use crate::text::{block, cut, telling_type, visible};
use crate::time::{age, maybe_age};
use crate::visit::{Answer, Page, Visit};
use crate::{chart, cli_line, groups, letters, links, operations, plan, short_id};

/// The number of letters shown.
const LETTERS: &str = "10";
/// The maximum number of assignment calls per form. Each call assigns a bounded number of letters.
const ASSIGN_CALLS: usize = 5;

pub(crate) async fn show(Path(id): Path<String>, visit: Visit) -> Response {
    let answer = answer(&visit, &id).await;
    visit.respond(answer)
}

/// Returns the page of a group, or a redirect to its complete id, because a page has only one address.
async fn answer(visit: &Visit, id: &str) -> Result<Answer> {
    match visit.api.get::<Group>(&format!("/v1/groups/{}", escape(id))).await {
        Ok(group) if group.id == id => Ok(page(visit, &group).await?.into()),
        Ok(group) => Ok(Answer::SeeOther(links::group(&group.id))),
        Err(problem) => short_id::group(visit, id, problem).await,
    }
}

async fn page(visit: &Visit, group: &Group) -> Result<Page> {
    let facets: GroupFacets = visit.api.get(&format!("/v1/groups/{}/facets", escape(&group.id))).await?;
    let starts = Starts::read(visit).await?.of_queue(&group.queue);
    let query = group_term([group.id.as_str()]).unwrap_or_default();
    let listed = if group.letters > 0 { query.clone() } else { format!("{query} state:closed") };
    let path = with_query("/v1/letters", &[("q", Some(&listed)), ("limit", Some(LETTERS))]);
    let first: LetterPage = visit.api.get(&path).await?;
    let actions = if group.letters > 0 {
        plan::query_buttons(visit, &query)
    } else {
        html! {}
    };
    let about = html! {
        span.tag { (visible(&group.reason)) } @if let Some(kind) = telling_type(&group.error.error_type) { " " (visible(&kind)) } " in "
        a href=(links::letters(&term(TextField::Queue, &group.queue))) { (visible(&group.queue)) }
    };
    let main = html! {
        div.crumbs { a href="/console/groups" { "Groups" } (icon("next")) span.mono { (group.fingerprint) } }
        (page_head(&visible(&groups::title(group)), &about, &actions))
        (region("group-numbers", &numbers(visit, group, &starts)))
        @if group.error.message.trim() != groups::title(group) {
            div.panel.pad { div.error-text { (block(&cut(&group.error.message, 4000))) } }
        }
        div.split {
            div.stack {
                (region("group-letters", &html! {
                    div.section-head {
                        h2 { "Letters" }
                        a href=(links::letters(&listed)) { "All of these letters" }
                    }
                    (letters::list_of_one_cause(visit, &first.letters))
                }))
                (region("group-operations", &operated(visit, &facets)))
                (region("group-sequences", &sequences(visit, &facets)))
                (region("group-variants", &variants(&facets)))
            }
            div.stack {
                (assigned(visit, group, &facets))
                (why(group, &facets))
                (region("group-facets", &shares(&facets, &query)))
                (region("group-activity", &activity(visit, &facets)))
            }
        }
        (cli_line::line("cli", &cli_line::command("plan retry", &[], &[&query])))
    };
    Ok(Page::new(groups::title(group), Section::Groups, main))
}

fn numbers(visit: &Visit, group: &Group, starts: &[Timestamp]) -> Markup {
    let states = group.states.summary();
    // For a single state, its number is already shown above.
    let states = match states.split_once(' ') {
        Some((_, state)) if !states.contains(',') => format!("{state} letters"),
        Some(_) => states,
        None => "open letters".to_owned(),
    };
    html! {
        div.numbers {
            div { span.value { (count(group.letters)) } span.label { (states) } }
            div { span.value { (count(group.sequences)) } span.label { "blocked sequences" } }
            div { span.value.warn[group.blocked_behind > 0] { (count(group.blocked_behind)) } span.label { "waiting behind them" } }
            div { span.value { (maybe_age(group.oldest_at, visit.now)) } span.label { "oldest" } }
            @if let Some(at) = group.next_expiry_at {
                div { span.value.warn[group.expires_soon(visit.now).is_some()] { (age(at, visit.now)) } span.label { "next letter expires" } }
            }
            div { span.value { (age(group.first_seen_at, visit.now)) } span.label { "since first seen" } }
            div { span.value { (age(group.last_seen_at, visit.now)) } span.label { "since last seen" } }
            div { span.value { (chart::spark(&group.trend, group.trend_bucket_seconds, starts, visit.now)) } span.label { "new letters, 24\u{a0}h" } }
        }
        (chart::trend_table(&group.trend, group.trend_bucket_seconds, starts, visit.now))
    }
}

/// Renders who works on the letters of the group, and the forms to claim or assign them.
fn assigned(visit: &Visit, group: &Group, facets: &GroupFacets) -> Markup {
    let why = visit.missing(Scope::Triage);
    let facet = facets.facets.iter().find(|facet| facet.field == "assignee");
    let page = links::group(&group.id);
    let me = &visit.identity.person;
    let letters = group_term([group.id.as_str()]).unwrap_or_default();
    let each = cli_line::command("ls", &[("-o", "jsonl")], &[&letters]);
    let command = format!("{each} | jq -r .id | xargs -I ID lazaret assign ID NAME");
    html! {
        section.panel {
            div.section-head { h2 { "Assigned to" } p.muted { (examined(facets)) } }
            div.pad.stack {
                (region("group-assigned", &html! {
                    @if let Some(facet) = facet {
                        ul.plain { @for value in &facet.values { li { strong { (visible(&value.value)) } " " span.muted { (plural(value.letters, "letter")) } } } }
                    } @else { p.muted { "Nobody." } }
                }))
                @if group.letters > 0 {
                    (assign_form(visit, &page, None, command))
                    form method="post" action={ (page) "/assignee" } {
                        (csrf_field(visit)) (hidden("name", me))
                        button disabled[why.is_some()] title=[why] { (icon("person")) "Claim for " (visible(me)) }
                    }
                }
            }
        }
    }
}

/// Assigns the open letters of the group. Letters that join it later are not assigned.
pub(crate) async fn assign(Path(id): Path<String>, visit: Visit, fields: Fields) -> Response {
    let answer = assign_all(&visit, &id, fields.get("name")).await;
    visit.respond(answer)
}

async fn assign_all(visit: &Visit, id: &str, name: Option<&str>) -> Result<Answer> {
    let group: Group = visit.api.get(&format!("/v1/groups/{}", escape(id))).await?;
    let group_term = group_term([group.id.as_str()]).unwrap_or_default();
    // Letters that are already assigned are excluded, so each call continues where the last one ended.
    let left = match name {
        Some(name) => format!("{group_term} -{}", term(TextField::Assignee, name)),
        None => format!("{group_term} assignee:*"),
    };
    for _ in 0..ASSIGN_CALLS {
        let selection = Selection { query: Some(left.clone()), ..Selection::default() };
        let assignment = AssignRequest { name: name.map(str::to_owned), reason: None };
        let request = BulkAssignRequest { selection, assignment };
        let done: BulkAnswer = visit.api.change(Method::POST, "/v1/letters/assign", &request).await?;
        if !done.more || done.done == 0 {
            break;
        }
    }
    Ok(Answer::SeeOther(links::group(&group.id)))
}

/// Renders the operations that touched the group.
fn operated(visit: &Visit, facets: &GroupFacets) -> Markup {
    html! {
        @if !facets.operations.is_empty() {
            div.section-head { h2 { "Operations" } p.muted { "the latest that touched this group" } }
            div.panel.scroll { (operations::table(visit, &facets.operations)) }
        }
    }
}

/// Renders how the fingerprint is derived, with the parts that all letters of the group share.
fn why(group: &Group, facets: &GroupFacets) -> Markup {
    html! {
        section.panel {
            div.section-head { h2 { "Why grouped" } }
            div.pad {
                dl.facts {
                    dt { "Error type" } dd.mono { (visible(&group.error.error_type)) }
                    dt { "Message" } dd.mono { (visible(&cut(&normalised(&group.error.message), 500))) }
                    dt { "Fingerprint" } dd.mono { (group.fingerprint) }
                    dt { "Queue" } dd { (visible(&group.queue)) }
                }
                p.muted {
                    "Letters share a group when the type of the error, its message without what varies, the innermost cause and the top frames are the same. Grouping rules of the consumer can change what counts. "
                    @if facets.variants.len() > 1 { "This one has " (plural(facets.variants.len() as u64, "text")) ", below." }
                }
            }
        }
    }
}

/// Returns the message without its variable parts. In a stack trace, only the exception counts.
fn normalised(message: &str) -> String {
    normalise(Traceback::last(message).map_or(message, |trace| trace.exception))
}

fn shares(facets: &GroupFacets, group: &str) -> Markup {
    let telling = facets.facets.iter().filter(|facet| !facet.values.is_empty());
    html! {
        section.panel {
            div.section-head { h2 { "In common" } p.muted { (examined(facets)) } }
            div.pad {
                @if facets.facets.is_empty() { p.muted { "Nothing that can be counted." } }
                @for facet in telling { (share(facet, facets.examined, group)) }
            }
        }
    }
}

fn examined(facets: &GroupFacets) -> String {
    let letters = plural(facets.examined, "letter");
    if facets.exact { format!("of {letters}") } else { format!("of the latest {letters}") }
}

fn share(facet: &Facet, examined: u64, group: &str) -> Markup {
    let percent = |letters: u64| (letters * 100).checked_div(examined).unwrap_or_default();
    html! {
        h3.facet-name { (visible(&facet.field)) }
        @for value in &facet.values {
            div.facet {
                a href=(links::letters(&format!("{group} {}", value.query))) { (visible(&value.value)) }
                (chart::meter(&format!("{} %", percent(value.letters)), examined, &[("share", value.letters)], false))
                span.num { (percent(value.letters)) " %" }
            }
        }
        @if facet.others > 0 { div.facet { span.muted { "others" } span {} span.num { (percent(facet.others)) " %" } } }
    }
}

fn sequences(visit: &Visit, facets: &GroupFacets) -> Markup {
    html! {
        div.section-head { h2 { "Sequences" } p.muted { "with the most letters of this group, " (examined(facets)) } }
        div.panel.scroll { table {
            thead { tr { th { "Sequence" } th.num { "Letters" } th.num.in-narrow { "Oldest" } th { "Earliest letter" } } }
            tbody { @for of in &facets.sequences { tr {
                td { a.title-link href=(links::sequence(&of.queue, &of.sequence)) { (visible(&of.sequence)) } }
                td.num { (count(of.letters)) }
                td.num.in-narrow { (age(of.enqueued_at, visit.now)) }
                td { a.mono href=(links::letter(&of.letter)) { (letters::short(&of.letter)) } }
            } } }
        } }
    }
}

fn variants(facets: &GroupFacets) -> Markup {
    html! {
        @if facets.variants.len() > 1 {
            div.section-head { h2 { "Texts" } p.muted { "distinct error texts, " (examined(facets)) } }
            div.panel { ul.timeline { @for of in &facets.variants { (variant(of)) } } }
        }
    }
}

fn variant(of: &Variant) -> Markup {
    html! {
        li {
            div.line {
                strong { (count(of.letters)) " ×" } span.mono { (visible(&of.error_type)) }
                a href=(links::letter(&of.letter)) { "latest letter" }
            }
            div.error-text { (block(&cut(&of.message, 600))) }
        }
    }
}
