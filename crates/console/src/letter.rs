//! The page of a letter: its lane on top, why it failed, its content, its history, and what to do with it.

mod annotate;
mod audit;
mod content;
mod edit;
mod failure;
mod history;
mod lane;
mod reveal;
mod trace;

use axum::extract::{Path, Query};
use axum::response::Response;
use lazaret_api::numbers::plural;
use lazaret_api::{AuditPage, Letter, LetterDetail, Sequence, State};
use lazaret_core::query::TextField;
use maud::{Markup, html};
use serde::Deserialize;

pub(crate) use annotate::{assign, comment, restore};
pub(crate) use content::{download, part};
pub(crate) use edit::{edit, revert, show as show_edit};
pub(crate) use lane::show as show_sequence;
pub(crate) use reveal::reveal;

use crate::api::{Result, escape, with_query};
use crate::icon::icon;
use crate::layout::{Section, page_head, region};
use crate::payload::INLINE_BYTES;
use crate::query::term;
use crate::text::visible;
use crate::time::exact_with_age;
use crate::visit::{Answer, Page, Visit};
use crate::{badge, cli_line, letters, links, plan, short_id};

/// The view of the payload.
#[derive(Default, Deserialize)]
pub(crate) struct LetterParams {
    view: Option<String>,
}

pub(crate) async fn show(
    Path(id): Path<String>,
    Query(params): Query<LetterParams>,
    visit: Visit,
) -> Response {
    let answer = answer(&visit, &id, &params).await;
    visit.respond(answer)
}

/// The way in which a letter is shown.
#[derive(Clone, Copy)]
enum Shown<'a> {
    /// Without its redacted values, with its payload in this view.
    Redacted(Option<&'a str>),
    /// With its redacted values.
    Revealed,
}

/// Reads a letter with the beginning of its payload.
pub(crate) async fn read(visit: &Visit, id: &str, payload_bytes: usize) -> Result<LetterDetail> {
    let most = payload_bytes.to_string();
    visit
        .api
        .get(&with_query(&format!("/v1/letters/{}", escape(id)), &[("payload-bytes", Some(&most))]))
        .await
}

/// Returns the page of a letter, or a redirect to its complete id.
async fn answer(visit: &Visit, id: &str, params: &LetterParams) -> Result<Answer> {
    match read(visit, id, INLINE_BYTES).await {
        Ok(detail) => Ok(page_of(visit, &detail, Shown::Redacted(params.view.as_deref())).await?.into()),
        Err(problem) => short_id::letter(visit, id, problem).await,
    }
}

async fn page_of(visit: &Visit, detail: &LetterDetail, shown: Shown<'_>) -> Result<Page> {
    let letter = &detail.letter;
    let sequence = lane::read(visit, &letter.queue, &letter.sequence).await?;
    let audit = audit::read(visit, &letter.id).await?;
    let title = letters::name(letter);
    let main = html! {
        div.crumbs {
            a href="/console/letters" { "Letters" } (icon("next"))
            a href=(links::letters(&term(TextField::Queue, &letter.queue))) { (visible(&letter.queue)) } (icon("next"))
            span.mono { (letters::short(&letter.id)) }
            (lane::neighbours(&sequence, &letter.id))
        }
        (page_head(&visible(title), &badges(letter), &actions(visit, letter)))
        (region("letter-state", &html! { (closed(visit, detail, &audit)) (lane::panel(visit, &sequence, Some(letter))) }))
        div.split {
            div.stack {
                (region("letter-failure", &failure::panel(detail)))
                (content::panel(visit, detail, shown))
                (region("letter-history", &history::panel(visit, detail)))
            }
            div.stack {
                (region("letter-facts", &facts(visit, detail, &sequence)))
                (annotate::panel(visit, detail))
                (region("letter-audit", &audit::panel(visit, &audit)))
                (related(letter, &sequence))
            }
        }
        (cli_line::line("cli", &command(shown, &letter.id)))
    };
    Ok(Page::new(title, Section::Letters, main))
}

fn command(shown: Shown<'_>, id: &str) -> String {
    match shown {
        Shown::Redacted(_) => cli_line::command("show", &[], &[letters::short(id)]),
        Shown::Revealed => cli_line::command("show --reveal", &[("--reason", "TEXT")], &[letters::short(id)]),
    }
}

fn badges(letter: &Letter) -> Markup {
    html! {
        (badge::letter(letter.state)) " "
        @if letter.poison { (badge::bad("poison")) " " }
        @if letter.replay_attempts > 0 { (badge::quiet("retry", &plural(u64::from(letter.replay_attempts), "replay"))) " " }
        @if letter.crash_attempts > 0 { (badge::bad(&plural(u64::from(letter.crash_attempts), "crash"))) " " }
        span.mono { (letter.id) }
    }
}

fn actions(visit: &Visit, letter: &Letter) -> Markup {
    html! {
        @if is_open(letter.state) { (plan::letter_buttons(visit, &letter.id)) }
        @if letter.state == State::Evicted { (annotate::restore_form(visit, &letter.id)) }
    }
}

fn is_open(state: State) -> bool {
    lazaret_core::LetterState::from(state).is_open()
}

/// Renders what closed a letter, and when.
fn closed(visit: &Visit, detail: &LetterDetail, audit: &AuditPage) -> Markup {
    let letter = &detail.letter;
    let how = match letter.state {
        State::Resolved => "It was handled, or resolved by other means.",
        State::Evicted => "It was evicted without being handled. It can be restored until it is purged.",
        State::Skipped => "It was skipped on purpose.",
        State::Expired => "It expired.",
        _ => return html! {},
    };
    html! {
        div.banner.info {
            strong { "Closed: " (letter.state.as_str()) } " " (exact_with_age(letter.last_touched_at, visit.now)) ". " (how)
            @if let Some(last) = detail.history.last().filter(|last| last.failure.is_none()) { " Its last attempt, by " (last.kind.as_str()) ", succeeded." }
            (audit::cause_of_state(audit, letter))
        }
    }
}

fn facts(visit: &Visit, detail: &LetterDetail, sequence: &Sequence) -> Markup {
    let (letter, content) = (&detail.letter, &detail.content);
    let time = |name: &str, at: Option<jiff::Timestamp>| {
        html! { @if let Some(at) = at { dt { (name) } dd { (exact_with_age(at, visit.now)) } } }
    };
    let text = |name: &str, value: Option<&str>| html! { @if let Some(value) = value { dt { (name) } dd { (visible(value)) } } };
    html! {
        section.panel { div.section-head { h2 { "Facts" } } div.pad { dl.facts {
            dt { "Message" } dd.mono { (visible(&letter.message.id)) }
            dt { "Key" } dd.mono { @if let Some(key) = &letter.message.key { (visible(key)) } @else if let Some(key) = &letter.message.key_base64 { "base64 " (key) } @else { span.muted { "none" } } }
            dt { "Stream" } dd { (visible(&letter.stream)) " at " span.mono { (visible(&letter.message.position)) } }
            dt { "Sequence" } dd {
                @if let Some(left) = &letter.left_sequence {
                    a href=(links::sequence(&letter.queue, left)) { (visible(left)) }
                    ", left when the letter died. Later messages went on: a replay is out of order."
                } @else {
                    a href=(links::sequence(&letter.queue, &letter.sequence)) { (visible(&letter.sequence)) } (lane::place(sequence, &letter.id))
                }
            }
            dt { "Attempts" } dd { (letter.attempts) @if letter.replay_attempts > 0 { ", " (letter.replay_attempts) " by replay" } @if letter.crash_attempts > 0 { ", " (letter.crash_attempts) " crashed" } }
            (text("Owner", letter.owner.as_deref()))
            (time("Enqueued", Some(letter.enqueued_at)))
            (time("First failed", letter.first_failed_at))
            (time("Last failed", letter.last_failed_at))
            (time("Due", letter.due_at))
            (time("Expires", letter.expires_at))
            (time("Message time", content.time))
            (text("Content type", content.content_type.as_deref()))
            (text("Schema", content.schema_id.as_deref()))
            (text("Schema version", content.schema_version.as_deref()))
            (text("Change", content.operation.as_deref()))
            (text("Correlation", content.correlation.as_deref()))
            (trace::fact(&content.headers, visit.trace_url.as_deref()))
            (text("Not decodable", content.undecodable.as_deref()))
            @for (name, value) in letter.diagnostics.iter().chain(&detail.context) { dt { (visible(name)) } dd { (visible(value)) } }
        } } }
    }
}

/// Renders links to related pages.
fn related(letter: &Letter, sequence: &Sequence) -> Markup {
    let kind = letter.message.event_type.as_deref();
    html! {
        section.panel { div.section-head { h2 { "Related" } } div.pad {
            @if let Some(group) = &letter.group { p { a href=(links::group(group)) { "Letters with the same cause" } } }
            p { a href=(links::sequence(&letter.queue, &letter.sequence)) { "Its sequence, " (plural(sequence.size, "open letter")) } }
            @if let Some(kind) = kind { p { a href=(links::letters(&term(TextField::Type, kind))) { "Letters of the type " (visible(kind)) } } }
            p { a href=(links::letters(&term(TextField::Consumer, &letter.consumer))) { "Letters of " (visible(&letter.consumer)) } }
        } }
    }
}
