//! Comments, the assignee, and the restoration of an evicted letter.

use axum::extract::Path;
use axum::http::Method;
use axum::response::Response;
use lazaret_api::{ActRequest, AssignRequest, CommentRequest, Letter, LetterDetail, Scope};
use maud::{Markup, html};
use serde::Serialize;

use crate::api::{Result, escape};
use crate::form::{Fields, LineForm, assign_form};
use crate::icon::icon;
use crate::layout::region;
use crate::text::{block, visible};
use crate::time::age;
use crate::visit::{Answer, Visit};
use crate::{cli_line, letters, links};

/// Renders the assignee and the comments of a letter with their forms.
pub(super) fn panel(visit: &Visit, detail: &LetterDetail) -> Markup {
    let id = &detail.letter.id;
    html! {
        section.panel {
            div.section-head { h2 { "Triage" } }
            (region("letter-comments", &html! {
                @if detail.comments.is_empty() { div.pad { p.muted { "No comment yet. Comments survive every retry." } } }
                ul.timeline { @for of in &detail.comments { li {
                    div.line { strong { (visible(&of.by)) } span.muted { (age(of.at, visit.now)) " ago" } }
                    div.error-text { (block(&of.text)) }
                } } }
            }))
            div.pad.stack {
                @if detail.erased.is_none() { (comment_form(visit, id)) }
                @let command = cli_line::command("assign", &[], &[letters::short(id), "NAME"]);
                (assign_form(visit, &links::letter(id), detail.letter.assignee.as_deref(), command))
            }
        }
    }
}

fn comment_form(visit: &Visit, id: &str) -> Markup {
    let action = format!("{}/comments", links::letter(id));
    let command = cli_line::command("comment", &[], &[letters::short(id), "TEXT"]);
    LineForm::new(action, Scope::Triage, "text", 4096, "Comment", command)
        .required()
        .render(visit, &html! { "Comment" })
}

/// Renders the form that reopens an evicted letter.
pub(super) fn restore_form(visit: &Visit, id: &str) -> Markup {
    let action = format!("{}/restore", links::letter(id));
    let command = cli_line::command("restore", &[("--ids", letters::short(id)), ("--reason", "TEXT")], &[]);
    let form = LineForm::reason(action, Scope::Triage, "Reason to restore", command);
    form.render(visit, &html! { (icon("retry")) "Restore" })
}

pub(crate) async fn comment(Path(id): Path<String>, visit: Visit, fields: Fields) -> Response {
    let request = CommentRequest { text: fields.get("text").unwrap_or_default().to_owned(), reason: None };
    let answer = change(&visit, Method::POST, &id, "comments", &request).await;
    visit.respond(answer)
}

pub(crate) async fn assign(Path(id): Path<String>, visit: Visit, fields: Fields) -> Response {
    let request = AssignRequest { name: fields.get("name").map(str::to_owned), reason: None };
    let answer = change(&visit, Method::PUT, &id, "assignee", &request).await;
    visit.respond(answer)
}

pub(crate) async fn restore(Path(id): Path<String>, visit: Visit, fields: Fields) -> Response {
    let request = ActRequest { reason: fields.get("reason").map(str::to_owned) };
    let answer = change(&visit, Method::POST, &id, "restore", &request).await;
    visit.respond(answer)
}

async fn change(
    visit: &Visit,
    method: Method,
    id: &str,
    what: &str,
    request: &impl Serialize,
) -> Result<Answer> {
    let path = format!("/v1/letters/{}/{what}", escape(id));
    let _: Letter = visit.api.change(method, &path, request).await?;
    Ok(Answer::SeeOther(links::letter(id)))
}
