//! Edits of a payload: a form with the text, the resulting change, and a reason. The earlier payload is kept.

use axum::extract::Path;
use axum::http::Method;
use axum::response::Response;
use lazaret_api::{Code, EditRequest, Letter, LetterDetail, Problem, Scope};
use lazaret_core::redaction::REDACTED;
use maud::{Markup, html};

use super::{is_open, read};
use crate::api::{Result, escape};
use crate::form::{Fields, csrf_field, hidden};
use crate::icon::icon;
use crate::layout::{Section, page_head};
use crate::payload::{Payload, json};
use crate::text::visible;
use crate::visit::{Answer, Page, Visit};
use crate::{cli_line, diff, letters, links, problem};

/// The maximum size of a payload in a form.
const MAX_BYTES: usize = 512 * 1024;

pub(crate) async fn show(Path(id): Path<String>, visit: Visit) -> Response {
    let page = page(&visit, &id, &Fields::default(), None).await;
    visit.respond(page)
}

/// Shows the difference, or saves the edit. A problem is shown above the form, which keeps its input.
pub(crate) async fn edit(Path(id): Path<String>, visit: Visit, fields: Fields) -> Response {
    if fields.get("step") == Some("review") {
        let page = page(&visit, &id, &fields, None).await;
        return visit.respond(page);
    }
    let answer = match save(&visit, &id, &fields).await {
        Ok(()) => Ok(Answer::SeeOther(format!("{}#history", links::letter(&id)))),
        Err(problem) => page(&visit, &id, &fields, Some(&problem)).await.map(Answer::from),
    };
    visit.respond(answer)
}

async fn save(visit: &Visit, id: &str, fields: &Fields) -> Result<()> {
    let detail = read(visit, id, MAX_BYTES).await?;
    let before = editable(&detail).map_err(|why| Box::new(Problem::new(Code::Conflict).with_detail(why)))?;
    let after = written(fields, &before);
    if json::parse(&before).is_some() && json::parse(&after).is_none() && fields.get("any").is_none() {
        let wrong =
            Problem::new(Code::InvalidRequest).with_detail("the payload was JSON, and the new text is not");
        return Err(Box::new(wrong.with_hint("correct it, or confirm that it need not be JSON")));
    }
    let request = EditRequest {
        payload: Some(after),
        expected_digest: fields.get("expected-digest").map(str::to_owned),
        reason: fields.get("reason").map(str::to_owned),
        ..EditRequest::default()
    };
    put(visit, id, &request).await
}

async fn put(visit: &Visit, id: &str, request: &EditRequest) -> Result<()> {
    let path = format!("/v1/letters/{}/payload", escape(id));
    visit.api.change::<Letter>(Method::PUT, &path, request).await.map(|_| ())
}

/// Restores the payload as it arrived.
pub(crate) async fn revert(Path(id): Path<String>, visit: Visit, fields: Fields) -> Response {
    let answer = reverted(&visit, &id, &fields).await;
    visit.respond(answer)
}

async fn reverted(visit: &Visit, id: &str, fields: &Fields) -> Result<Answer> {
    let request = EditRequest {
        revert: true,
        expected_digest: fields.get("expected-digest").map(str::to_owned),
        reason: fields.get("reason").map(str::to_owned),
        ..EditRequest::default()
    };
    put(visit, id, &request).await?;
    Ok(Answer::SeeOther(format!("{}#history", links::letter(id))))
}

/// Returns the text of a payload if a form can hold it without changing it. Otherwise returns the reason
/// why not.
fn editable(detail: &LetterDetail) -> std::result::Result<String, &'static str> {
    let payload = Payload::of(&detail.content).ok_or("it has no payload that you may see")?;
    if !payload.is_whole() {
        return Err("it is too large for a form");
    }
    let text = payload.text().ok_or("it is not text")?;
    let breaks = text.matches("\r\n").count();
    let is_even = breaks == text.matches('\n').count() || breaks == 0;
    if !is_even
        || text.matches('\r').count() != breaks
        || text.chars().any(|c| c.is_control() && !"\r\n\t".contains(c))
    {
        return Err("a form would change its line breaks or control characters");
    }
    Ok(text.to_owned())
}

/// Returns the submitted text with the line breaks of the payload, because browsers send their own.
fn written(fields: &Fields, before: &str) -> String {
    let text = fields.raw("payload").unwrap_or_default();
    if before.contains("\r\n") { text.to_owned() } else { text.replace("\r\n", "\n") }
}

async fn page(visit: &Visit, id: &str, fields: &Fields, problem: Option<&Problem>) -> Result<Page> {
    let detail = read(visit, id, MAX_BYTES).await?;
    let name = letters::name(&detail.letter);
    let command = cli_line::command("edit", &[("--reason", "TEXT")], &[letters::short(id)]);
    let main = html! {
        div.crumbs {
            a href="/console/letters" { "Letters" } (icon("next"))
            a href=(links::letter(id)) { (visible(name)) } (icon("next")) span { "Edit" }
        }
        (page_head(&html! { "Edit the payload" }, &html! { "The earlier payload is kept, and can be put back. Nothing is sent: plan a retry afterwards." }, &html! {}))
        @if let Some(problem) = problem { (problem::banner(problem)) }
        @match editable(&detail) {
            _ if !is_open(detail.letter.state) => div.banner.warn { "The letter is closed: its payload stays as it is." },
            Ok(before) => (form(visit, &detail, &before, fields)),
            Err(why) => div.banner.warn { "This payload cannot be edited here: " (why) ". Use the command line, or a file: " code { "--payload FILE" } "." },
        }
        (cli_line::line("cli", &command))
    };
    let page = Page::new(format!("Edit {name}"), Section::Letters, main);
    Ok(if let Some(problem) = problem { page.status(problem.status) } else { page })
}

fn form(visit: &Visit, detail: &LetterDetail, before: &str, fields: &Fields) -> Markup {
    let why = visit.missing(Scope::Edit);
    let after = fields.raw("payload").map(|_| written(fields, before));
    let digest =
        fields.get("expected-digest").or(detail.content.payload_digest.as_deref()).unwrap_or_default();
    html! {
        form.panel method="post" action={ (links::letter(&detail.letter.id)) "/edit" } {
            div.pad.stack {
                (csrf_field(visit))
                (hidden("expected-digest", digest))
                @if !detail.content.redacted.is_empty() {
                    p.muted { "Leave " code { (REDACTED) } " where it is: the stored value is kept in its place." }
                }
                @if let Some(after) = &after { div { h2 { "Changes" } (diff::render(before, after)) } }
                div.field {
                    label for="payload-text" { "Payload" }
                    // Browsers drop the first line break of a text area.
                    textarea #payload-text name="payload" rows="18" spellcheck="false" disabled[why.is_some()] { "\n" (after.as_deref().unwrap_or(before)) }
                }
                div.field {
                    label for="reason" { "Reason" }
                    input #reason type="text" name="reason" value=(fields.get("reason").unwrap_or_default()) maxlength="1024" required disabled[why.is_some()];
                }
                label.check { input type="checkbox" name="any" value="true" checked[fields.get("any").is_some()]; " It need not be JSON" }
                div.actions {
                    button name="step" value="review" formnovalidate disabled[why.is_some()] { "Show the changes" }
                    button.primary name="step" value="save" disabled[why.is_some()] title=[why] { "Save" }
                    a.button href=(links::letter(&detail.letter.id)) { "Cancel" }
                }
            }
        }
    }
}
