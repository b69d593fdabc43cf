//! Rules on trial: the values of a letter that a redaction rule would hide, and the group that grouping
//! rules would give it. Nothing is changed, because rules are part of the configuration.

use axum::extract::Query;
use axum::response::Response;
use bytes::Bytes;
use lazaret_api::{Code, LetterDetail, Problem, Scope};
use lazaret_core::redaction::{PayloadPath, Redaction};
use lazaret_core::{Letter, Message, Position, QueueName};
use maud::{Markup, html};
use serde::Deserialize;

use super::grouping;
use crate::api::Result;
use crate::icon::icon;
use crate::layout::{Section, page_head};
use crate::payload::INLINE_BYTES;
use crate::text::{block, visible};
use crate::visit::{Page, Visit};
use crate::{cli_line, letter, letters, links, problem, short_id};

pub(crate) const PATH: &str = "/console/admin/rules";

/// The rules on trial and the letter.
#[derive(Default, Deserialize)]
pub(crate) struct RuleParams {
    #[serde(default)]
    letter: String,
    #[serde(default)]
    headers: String,
    #[serde(default)]
    payload: String,
    #[serde(default)]
    by: String,
    /// The patterns, one per line.
    #[serde(default)]
    replace: String,
}

pub(crate) async fn show(Query(params): Query<RuleParams>, visit: Visit) -> Response {
    let page = page(&visit, &params).await;
    visit.respond(Ok::<_, Box<Problem>>(page))
}

/// Renders the link to this page, for the section of the configuration.
pub(super) fn link(visit: &Visit) -> Markup {
    html! { @if visit.may(Scope::Payload) { a.button href=(PATH) { (icon("eye")) "Try rules on a letter" } } }
}

async fn page(visit: &Visit, params: &RuleParams) -> Page {
    let tried = match params.letter.trim() {
        "" => None,
        id => Some(trial(visit, id, params).await),
    };
    let status = tried.as_ref().and_then(|tried| tried.as_ref().err()).map(|problem| problem.status);
    let main = html! {
        div.crumbs { a href="/console/admin" { "Admin" } (icon("next")) span { "Rules" } }
        (page_head(&html! { "Try rules on a letter" }, &html! { "What a redaction rule would hide, and which group grouping rules would put a letter in. Nothing is changed." }, &html! {}))
        (form(params))
        @match &tried {
            Some(Ok(shown)) => (shown),
            Some(Err(problem)) => (problem::banner(problem)),
            None => p.muted { "Open a letter and copy its id, or a unique beginning of it." },
        }
        (cli_line::line("cli", &cli_line::command("check", &[], &[])))
    };
    let page = Page::new("Rules", Section::Admin, main);
    if let Some(status) = status { page.status(status) } else { page }
}

fn form(params: &RuleParams) -> Markup {
    let field = |name: &str, label: &str, value: &str, placeholder: &str, help: &str| {
        html! {
            div.field {
                label for=(name) { (label) }
                input id=(name) type="text" name=(name) value=(value) placeholder=(placeholder) autocomplete="off" spellcheck="false"
                    maxlength="4096" aria-describedby={ (name) "-help" };
                span.help id={ (name) "-help" } { (help) }
            }
        }
    };
    html! {
        form.panel method="get" action=(PATH) { div.pad {
            div.fields {
                (field("letter", "Letter", &params.letter, "f3a1c0de", "its id, or the beginning of it"))
                (field("headers", "Headers", &params.headers, "authorization, cookie", "names, separated by commas"))
                (field("payload", "Payload", &params.payload, "/card/number, /items/*/iban", "JSON pointers; * for every name and index"))
                (field("by", "Group by", &params.by, "error-type, message, cause, backtrace", "parts that count; event-type splits a group"))
                div.field.full {
                    label for="replace" { "Replace in errors" }
                    textarea.short id="replace" name="replace" rows="2" placeholder="tenant ([a-z]+)" spellcheck="false" autocomplete="off"
                        maxlength="9000" aria-describedby="replace-help" { "\n" (params.replace) }
                    span.help id="replace-help" { "regular expressions for what varies, one a line; with groups in parentheses, only what these match" }
                }
            }
            p.actions { button.primary { "Try" } }
        } }
    }
}

/// Renders the letter under the rules on trial.
async fn trial(visit: &Visit, id: &str, params: &RuleParams) -> Result<Markup> {
    let rules = rules(params)?;
    let on_trial = grouping::on_trial(&params.by, &params.replace)?;
    let detail = read(visit, id).await?;
    let grouped = grouping::trial(visit, &detail, on_trial).await?;
    Ok(html! {
        (redacted(&detail, &rules))
        (grouped)
    })
}

/// Reads a letter by its id or by a unique prefix of it.
async fn read(visit: &Visit, id: &str) -> Result<LetterDetail> {
    match letter::read(visit, id, INLINE_BYTES).await {
        Ok(detail) => Ok(detail),
        Err(problem) => {
            let id = short_id::find_letter(visit, id, problem).await?;
            letter::read(visit, &id, INLINE_BYTES).await
        }
    }
}

fn rules(params: &RuleParams) -> Result<Redaction> {
    let words = |text: &str| -> Vec<String> {
        text.split(',').map(str::trim).filter(|word| !word.is_empty()).map(str::to_owned).collect()
    };
    let path = |text: String| match text.parse::<PayloadPath>() {
        Ok(path) => Ok(path),
        Err(error) => {
            Err(Box::new(Problem::new(Code::InvalidRequest).with_detail(format!("{text} {error}"))))
        }
    };
    let paths: Vec<PayloadPath> = words(&params.payload).into_iter().map(path).collect::<Result<_>>()?;
    Ok(Redaction::new(words(&params.headers), paths))
}

/// Renders what a server with these rules would redact in the letter, in addition to what is already
/// redacted.
fn redacted(detail: &LetterDetail, rules: &Redaction) -> Markup {
    let (found, shown) = apply(detail, rules);
    let is_whole =
        detail.content.payload.as_ref().is_none_or(|text| text.len() as u64 == detail.content.payload_bytes);
    html! {
        section.panel {
            div.section-head { h2 { "Redaction" } a href=(links::letter(&detail.letter.id)) { "Letter " (letters::short(&detail.letter.id)) } }
            div.pad.stack {
                @if rules.is_empty() { p.muted { "No rule on trial: this is the letter under the rules of the server." } }
                @else if found.is_empty() { div.banner.warn { "These rules hide nothing of this letter." } }
                @else { div.banner.good { "Hidden: " @for (number, of) in found.iter().enumerate() { @if number > 0 { ", " } code { (visible(of)) } } } }
                @if !is_whole { p.muted { "The payload is long: only its beginning is tried, and a part of JSON is hidden whole." } }
                dl.facts {
                    @for (name, value) in shown.message.headers.iter() { dt.mono { (visible(name)) } dd.mono { (visible(&String::from_utf8_lossy(value))) } }
                }
                @if let Some(payload) = &shown.message.payload { pre.error-text { (block(&String::from_utf8_lossy(payload))) } }
                @else { p.muted { "The payload is no text, or there is none." } }
            }
        }
    }
}

/// Applies rules to a copy of the letter. Returns the parts that they hide, and the remaining letter.
fn apply(detail: &LetterDetail, rules: &Redaction) -> (Vec<String>, Letter) {
    let mut message = Message::new("m", "s", Position::new(0, 0));
    message.payload = detail.content.payload.clone().map(Bytes::from);
    for header in &detail.content.headers {
        if let Some(value) = &header.value {
            message.headers.push(header.name.as_str(), value.clone());
        }
    }
    let mut letter =
        Letter::new(QueueName::of("c", "c"), "k".into(), message.into(), jiff::Timestamp::UNIX_EPOCH);
    let found = rules.apply(&mut letter);
    (found, letter)
}
