//! The lane of a letter: the head that blocks it, and the letters that wait behind the head.

use axum::extract::Query;
use axum::response::Response;
use lazaret_api::numbers::{count, plural};
use lazaret_api::{Letter, Sequence};
use lazaret_core::query::TextField;
use maud::{Markup, html};
use serde::Deserialize;

use crate::api::{Result, with_query};
use crate::icon::icon;
use crate::layout::{Section, empty, page_head, region};
use crate::query::term;
use crate::text::{cut, visible};
use crate::time::age;
use crate::visit::{Page, Visit};
use crate::{badge, cli_line, letters, links, plan};

/// The number of letters of a lane shown on a letter's page, followed by the number on the lane's own page.
const SHOWN: &str = "10";
const PAGE: &str = "100";

/// Reads the first letters of a sequence.
pub(super) async fn read(visit: &Visit, queue: &str, sequence: &str) -> Result<Sequence> {
    let values = [("queue", Some(queue)), ("sequence", Some(sequence)), ("limit", Some(SHOWN))];
    visit.api.get(&with_query("/v1/sequences", &values)).await
}

/// Renders links to the previous and the next letter in the lane.
pub(super) fn neighbours(sequence: &Sequence, id: &str) -> Markup {
    let at = sequence.letters.iter().position(|letter| letter.id == id);
    let before = at.and_then(|at| sequence.letters.get(at.checked_sub(1)?));
    let after = at.and_then(|at| sequence.letters.get(at + 1));
    html! {
        span.neighbours {
            @if let Some(before) = before { a rel="prev" href=(links::letter(&before.id)) { (icon("back")) "before it in the lane" } }
            @if let Some(after) = after { a rel="next" href=(links::letter(&after.id)) { "behind it in the lane" (icon("next")) } }
        }
    }
}

/// Renders the place of a letter in its lane. Its stored index increases with gaps, and so does not show
/// its place.
pub(super) fn place(sequence: &Sequence, id: &str) -> Markup {
    let place = sequence.letters.iter().position(|letter| letter.id == id);
    html! {
        @match place {
            Some(0) => ", the head",
            Some(place) => { ", " (plural(place as u64, "letter")) " behind the head" },
            None => {},
        }
    }
}

/// Renders the lane, head first.
pub(super) fn panel(visit: &Visit, sequence: &Sequence, of: Option<&Letter>) -> Markup {
    let behind = sequence.size.saturating_sub(1);
    let left = of.and_then(|of| of.left_sequence.as_deref());
    let name = left.unwrap_or(&sequence.sequence);
    html! {
        section.panel {
            div.section-head {
                h2 { "Lane " a href=(links::sequence(&sequence.queue, name)) { (visible(&cut(name, 80))) } }
                p.muted {
                    @if left.is_some() { "not blocked by this letter: it left the lane when it died" }
                    @else if sequence.size == 0 { "not blocked" }
                    @else if behind == 0 { "blocked by its head, nothing waits behind it" }
                    @else { "blocked by its head, " (plural(behind, "letter")) " behind it" }
                }
            }
            @if sequence.letters.is_empty() {
                div.pad { p.muted { "No open letter of this sequence: new messages of it are handled at once." } }
            } @else {
                ol.lane {
                    @for (place, letter) in sequence.letters.iter().enumerate() {
                        li .head[place == 0] {
                            @if place > 0 { span.link aria-hidden="true" {} }
                            (stop(visit, place, letter, of.is_some_and(|of| of.id == letter.id)))
                        }
                    }
                    @let left = sequence.size.saturating_sub(sequence.letters.len() as u64);
                    @if left > 0 { li { span.link aria-hidden="true" {} a.more href=(links::sequence(&sequence.queue, &sequence.sequence)) { (count(left)) " more" } } }
                }
            }
        }
    }
}

fn stop(visit: &Visit, place: usize, letter: &Letter, is_current: bool) -> Markup {
    html! {
        a.stop href=(links::letter(&letter.id)) aria-current=[is_current.then_some("true")] {
            span.place { span { @if place == 0 { "Head" } @else { "+" (place) } } span { (age(letter.enqueued_at, visit.now)) } }
            span.name { (visible(&cut(letters::name(letter), 40))) }
            (badge::letter(letter.state))
        }
    }
}

/// The sequence to show.
#[derive(Deserialize)]
pub(crate) struct SequenceParams {
    #[serde(default)]
    queue: String,
    #[serde(default)]
    sequence: String,
    after: Option<String>,
}

pub(crate) async fn show(Query(params): Query<SequenceParams>, visit: Visit) -> Response {
    let page = page(&visit, &params).await;
    visit.respond(page)
}

async fn page(visit: &Visit, params: &SequenceParams) -> Result<Page> {
    let values = [
        ("queue", Some(params.queue.as_str())),
        ("sequence", Some(params.sequence.as_str())),
        ("after", params.after.as_deref()),
        ("limit", Some(PAGE)),
    ];
    let found: Sequence = visit.api.get(&with_query("/v1/sequences", &values)).await?;
    let query =
        format!("{} {}", term(TextField::Queue, &found.queue), term(TextField::Sequence, &found.sequence));
    let actions = if found.size > 0 {
        plan::query_buttons(visit, &query)
    } else {
        html! {}
    };
    let title = cut(&found.sequence, 120);
    let main = html! {
        div.crumbs {
            a href="/console/letters" { "Letters" } (icon("next"))
            a href=(links::letters(&term(TextField::Queue, &found.queue))) { (visible(&found.queue)) } (icon("next")) span { "Sequence" }
        }
        (page_head(&visible(&title), &html! { (plural(found.size, "open letter")) ", the head first" }, &actions))
        (region("sequence", &html! {
            (panel(visit, &found, None))
            @if found.letters.is_empty() {
                (empty("ok", "This sequence is not blocked", &html! { p { a href=(links::letters(&format!("{query} state:closed"))) { "Show its closed letters" } } }))
            } @else {
                div.section-head { h2 { "Letters" } }
                (letters::list(visit, &found.letters))
            }
            @if let Some(next) = &found.next {
                div.pager { a.button href=(with_query(&links::sequence(&found.queue, &found.sequence), &[("after", Some(next))])) { "Next page" } }
            }
        }))
        (cli_line::line("cli", &cli_line::command("seq", &[], &[&found.queue, &found.sequence])))
    };
    Ok(Page::new(title, Section::Letters, main))
}
