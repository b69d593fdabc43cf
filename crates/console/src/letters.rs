//! The letters page: a search with the query language, and lists of letters.

use axum::extract::Query;
use axum::response::Response;
use lazaret_api::numbers::{count, plural};
use lazaret_api::text::headline;
use lazaret_api::{Letter, LetterMatches, LetterPage, State};
use lazaret_core::query::TextField;
use maud::{Markup, html};
use serde::Deserialize;

use crate::api::{Result, with_query};
use crate::layout::{Section, empty, page_head, region};
use crate::query::{invalid_query, search_box, term};
use crate::text::{cut, telling_type, visible};
use crate::time::age;
use crate::visit::{Page, Visit};
use crate::{badge, cli_line, links, plan};

/// The number of letters on a page.
const PAGE: &str = "50";
const EXAMPLE: &str =
    "state:dead type:Charge* reason:TIMEOUT attempts:>=3 payload./customer/id:42 header.tenant:acme";

/// The letters to show.
#[derive(Deserialize)]
pub(crate) struct LetterParams {
    #[serde(default)]
    q: String,
    after: Option<String>,
}

pub(crate) async fn show(Query(params): Query<LetterParams>, visit: Visit) -> Response {
    let page = page(&visit, &params).await;
    visit.respond(page)
}

async fn page(visit: &Visit, params: &LetterParams) -> Result<Page> {
    let query = params.q.trim();
    let path = with_query(
        "/v1/letters",
        &[("q", Some(query)), ("after", params.after.as_deref()), ("limit", Some(PAGE))],
    );
    let (found, error) = match visit.api.get::<LetterPage>(&path).await {
        Ok(found) => (Some(found), None),
        Err(problem) => (None, Some(invalid_query(problem)?)),
    };
    let matches: Option<LetterMatches> = match &found {
        Some(_) => Some(visit.api.get(&with_query("/v1/letters/count", &[("q", Some(query))])).await?),
        None => None,
    };
    let about = html! {
        @if let Some(matches) = matches {
            @if !matches.exact { "at least " } (plural(matches.letters, "letter"))
            @if query.is_empty() { ", open" } @else { " match" }
        }
    };
    let is_any = matches.is_some_and(|matches| matches.letters > 0);
    let actions = if is_any && !query.is_empty() {
        plan::query_buttons(visit, query)
    } else {
        html! {}
    };
    let main = html! {
        (page_head(&html! { "Letters" }, &about, &actions))
        (search_box("/console/letters", &params.q, EXAMPLE, error.as_deref()))
        (chips(visit, query))
        @if let Some(found) = &found { (region("letters", &results(visit, params, found))) }
        (cli_line::line("cli", &if query.is_empty() { cli_line::command("ls", &[], &[]) } else { cli_line::command("ls", &[], &[query]) }))
    };
    let page = Page::new("Letters", Section::Letters, main);
    Ok(if let Some(problem) = error { page.status(problem.status) } else { page })
}

fn chips(visit: &Visit, query: &str) -> Markup {
    let mine = term(TextField::Assignee, &visit.identity.person);
    html! {
        div.chips role="group" aria-label="Filters" {
            a.chip href="/console/letters" aria-current=[query.is_empty().then_some("true")] { "Open" }
            @for state in State::ALL {
                @let of = format!("state:{state}");
                a.chip href=(links::letters(&of)) aria-current=[(query == of).then_some("true")] { (state.as_str()) }
            }
            a.chip href=(links::letters(&mine)) aria-current=[(query == mine).then_some("true")] { "Assigned to me" }
        }
    }
}

fn results(visit: &Visit, params: &LetterParams, found: &LetterPage) -> Markup {
    let path = |after: Option<&str>| {
        with_query(
            "/console/letters",
            &[("q", Some(params.q.as_str()).filter(|q| !q.is_empty())), ("after", after)],
        )
    };
    html! {
        @if !found.letters.is_empty() { (list(visit, &found.letters)) }
        @else if found.next.is_some() {
            (empty("search", "No letter so far", &html! { p { "The search examined a part of the letters. The next page goes on." } }))
        } @else if params.q.trim().is_empty() {
            (empty("ok", "No open letters", &html! {
                p { "A message that fails for good becomes a letter: with its payload, its cause and its history. Later messages of its sequence wait behind it." }
                p { a href=(links::letters("state:closed")) { "Show closed letters" } }
            }))
        } @else {
            (empty("search", "No letter matches", &html! {
                p { "A query without a state finds open letters only. Try " code { "state:open,closed" } ", or remove a condition." }
                p { a href=(links::letters(&format!("({}) state:open,closed", params.q))) { "Search closed letters, too" } }
            }))
        }
        @if params.after.is_some() || found.next.is_some() {
            div.pager {
                @if params.after.is_some() { a.button href=(path(None)) { "First page" } }
                @if let Some(next) = &found.next { a.button href=(path(Some(next))) { "Next page" } }
            }
        }
    }
}

/// Renders a list of letters that can be selected and planned.
pub(crate) fn list(visit: &Visit, letters: &[Letter]) -> Markup {
    listed(visit, letters, true)
}

/// Renders a list of letters with the same cause, which the page states once.
pub(crate) fn list_of_one_cause(visit: &Visit, letters: &[Letter]) -> Markup {
    listed(visit, letters, false)
}

fn listed(visit: &Visit, letters: &[Letter], with_cause: bool) -> Markup {
    html! {
        form method="post" action="/console/plans" {
            div.panel {
                (plan::bulk_bar(visit, "letters"))
                div.scroll { table {
                    thead { tr {
                        th.check { input type="checkbox" data-mark-all aria-label="Mark all letters"; }
                        th { "Letter" } th.in-narrow { "State" } th.optional.in-medium[with_cause] { "Sequence" } @if with_cause { th { "Cause" } } th.num.optional.spare.in-wide { "Attempts" } th.num.optional.in-medium[with_cause] { "Age" }
                    } }
                    tbody data-rows { @for letter in letters { (row(visit, letter, with_cause)) } }
                } }
            }
        }
    }
}

fn row(visit: &Visit, letter: &Letter, with_cause: bool) -> Markup {
    html! {
        tr data-row {
            td.check { input type="checkbox" name="id" value=(letter.id) aria-label={ "Mark letter " (short(&letter.id)) }; }
            td.name {
                a.title-link data-open href=(links::letter(&letter.id)) { (visible(name(letter))) }
                span.sub.mono { (short(&letter.id)) }
                span.only-narrow { (state(letter)) }
            }
            td.in-narrow { (state(letter)) }
            td.sequence.optional.in-medium[with_cause] {
                a href=(links::sequence(&letter.queue, &letter.sequence)) { (visible(&cut(&letter.shown_sequence(), 60))) }
                span.sub.spare.nowrap { (visible(&letter.queue)) }
            }
            @if with_cause { td.cause {
                @if let Some(error) = &letter.error {
                    span.clip { (visible(&cut(headline(&error.error_type, &error.message), 160))) }
                    span.sub { span.tag { (visible(letter.reason.as_deref().unwrap_or_default())) } @if let Some(kind) = telling_type(&error.error_type) { " " (visible(&kind)) } }
                } @else { span.muted { "waits behind the head of its sequence" } }
            } }
            td.num.optional.spare.in-wide { (count(u64::from(letter.attempts))) }
            td.num.optional.in-medium[with_cause] { (age(letter.enqueued_at, visit.now)) }
        }
    }
}

fn state(letter: &Letter) -> Markup {
    html! { (badge::letter(letter.state)) @if letter.poison { " " (badge::bad("poison")) } }
}

/// Returns the name of a letter: the type of its message, or the id of the message.
pub(crate) fn name(letter: &Letter) -> &str {
    letter.message.event_type.as_deref().filter(|kind| !kind.trim().is_empty()).unwrap_or(&letter.message.id)
}

/// Returns the first part of an id, which the command line also accepts.
pub(crate) fn short(id: &str) -> &str {
    id.get(..8).unwrap_or(id)
}
