//! The history of a letter: its attempts, and its edits with the changes they made.

use lazaret_api::numbers::plural;
use lazaret_api::text::headline;
use lazaret_api::{Attempt, Edit, LetterDetail, Scope};
use maud::{Markup, html};

use super::{failure, is_open};
use crate::form::{LineForm, hidden};
use crate::text::{cut, visible};
use crate::time::exact_with_age;
use crate::visit::Visit;
use crate::{badge, cli_line, diff, letters, links};

/// Renders attempts and edits, latest first.
pub(super) fn panel(visit: &Visit, detail: &LetterDetail) -> Markup {
    html! {
        section.panel #history {
            div.section-head { h2 { "History" } p.muted { (plural(detail.history.len() as u64, "attempt")) ", " (plural(detail.edits.len() as u64, "edit")) } }
            ul.timeline {
                @for (number, edit) in detail.edits.iter().enumerate().rev() { (edited(visit, detail, number, edit)) }
                @for (number, attempt) in detail.history.iter().enumerate().rev() { (attempted(visit, number, attempt)) }
                li { div.line { span { "Enqueued" } span.muted { (exact_with_age(detail.letter.enqueued_at, visit.now)) } } }
            }
        }
    }
}

fn attempted(visit: &Visit, number: usize, attempt: &Attempt) -> Markup {
    html! {
        li {
            div.line {
                @match &attempt.failure { None => (badge::good("handled")), Some(failure) => (badge::bad(&failure.reason)) }
                span { "Attempt " (attempt.attempt) " by " (attempt.kind.as_str()) }
                span.muted { (exact_with_age(attempt.at, visit.now)) ", took " (took(attempt.took_seconds)) }
            }
            @if let Some(of) = &attempt.failure {
                details id={ "attempt-" (number) } {
                    summary { span.mono { (visible(&cut(headline(&of.error_type, &of.message), 120))) } }
                    (failure::failure(of, &format!("attempt-{number}")))
                }
            }
        }
    }
}

fn took(seconds: f64) -> String {
    if seconds < 1.0 { format!("{:.0} ms", seconds * 1000.0) } else { format!("{seconds:.1} s") }
}

/// Renders an edit and the difference that it made.
fn edited(visit: &Visit, detail: &LetterDetail, number: usize, edit: &Edit) -> Markup {
    let is_first = number == 0;
    let before = whole(edit.original.as_deref(), edit.original_bytes);
    let after = match detail.edits.get(number + 1) {
        Some(next) => whole(next.original.as_deref(), next.original_bytes),
        None => whole(detail.content.payload.as_deref(), Some(detail.content.payload_bytes)),
    };
    html! {
        li {
            div.line {
                (badge::quiet("letter", &format!("edit v{}", number + 2)))
                span { "by " strong { (visible(&edit.by)) } ": " (visible(&edit.why)) }
                span.muted { (exact_with_age(edit.at, visit.now)) }
            }
            details id={ "edit-" (number) } {
                summary { "What changed" }
                @match (before, after) {
                    (Some(before), Some(after)) => (diff::render(before, after)),
                    _ if !visit.may(Scope::Payload) => p.muted { "Payloads are hidden: they need the right payload." },
                    _ => p.muted { "One of the two payloads is no text, absent, or too long to be compared here." },
                }
                @if is_first && is_open(detail.letter.state) { (revert_form(visit, detail)) }
            }
        }
    }
}

/// Returns the text if it was not cut.
fn whole(text: Option<&str>, bytes: Option<u64>) -> Option<&str> {
    text.filter(|text| bytes.is_none_or(|bytes| text.len() as u64 == bytes))
}

fn revert_form(visit: &Visit, detail: &LetterDetail) -> Markup {
    let action = format!("{}/revert", links::letter(&detail.letter.id));
    let digest = detail.content.payload_digest.as_deref();
    let id = letters::short(&detail.letter.id);
    let command = cli_line::command("edit --revert", &[("--reason", "TEXT")], &[id]);
    LineForm::reason(action, Scope::Edit, "Reason to revert", command)
        .with(html! { @if let Some(digest) = digest { (hidden("expected-digest", digest)) } })
        .render(visit, &html! { "Revert to the first payload" })
}
