//! Pauses of consumers: what is paused and why, and the forms that pause and resume.

use axum::extract::Path;
use axum::http::Method;
use axum::response::Response;
use jiff::Timestamp;
use lazaret_api::text::sanitize;
use lazaret_api::{Pause, PauseRequest, PauseScope, ResumeAnswer, Scope};
use maud::{Markup, html};

use crate::api::{Result, escape};
use crate::cli_line;
use crate::form::{Fields, LineForm, hidden};
use crate::icon::icon;
use crate::text::visible;
use crate::time::age;
use crate::visit::{Answer, Visit};

/// Renders what is paused, by whom, since when and why.
pub(crate) fn pause_line(consumer: &str, pause: &Pause, now: Timestamp) -> Markup {
    html! {
        (icon("pause")) " " strong { (visible(consumer)) } " " (scope(pause)) " paused by " strong { (visible(&pause.who)) }
        ", " (age(pause.since, now)) " ago: " (visible(&pause.why))
    }
}

/// Renders the part that is paused.
pub(crate) fn scope(pause: &Pause) -> Markup {
    let stream = pause.stream.as_deref().unwrap_or("?");
    html! {
        @match pause.scope {
            PauseScope::Consumer => "",
            PauseScope::Stream => { "stream " (visible(stream)) }
            PauseScope::Partition => { "partition " (visible(stream)) "/" (pause.partition.unwrap_or_default()) }
            PauseScope::Sequence => { "sequence " (visible(pause.sequence.as_deref().unwrap_or("?"))) }
            PauseScope::Replay => "replays",
        }
    }
}

/// Renders the form that ends a pause and returns to a page.
pub(crate) fn resume_form(visit: &Visit, consumer: &str, pause: &Pause, back: &str) -> Markup {
    let paused = html! {
        (hidden("back", back))
        @if let Some(stream) = &pause.stream { (hidden("stream", stream)) }
        @if let Some(partition) = pause.partition { (hidden("partition", &partition.to_string())) }
        @if let Some(sequence) = &pause.sequence { (hidden("sequence", sequence)) }
        @if pause.scope == PauseScope::Replay { (hidden("replay", "true")) }
    };
    let action = format!("/console/consumers/{}/resume", escape(consumer));
    let command = resume_command(consumer, pause);
    let form = LineForm::reason(action, Scope::Pause, "Reason to resume", command).with(paused);
    form.render(visit, &html! { (icon("play")) "Resume" })
}

/// Returns the command that ends a pause.
fn resume_command(consumer: &str, pause: &Pause) -> String {
    let partition = pause.partition.map(|partition| partition.to_string());
    let parts = [
        ("--stream", pause.stream.as_deref()),
        ("--partition", partition.as_deref()),
        ("--sequence", pause.sequence.as_deref()),
        ("--reason", Some("TEXT")),
    ];
    let options: Vec<(&str, &str)> =
        parts.into_iter().filter_map(|(name, value)| Some((name, value?))).collect();
    let verbs = if pause.scope == PauseScope::Replay { "resume --replay" } else { "resume" };
    cli_line::command(verbs, &options, &[consumer])
}

/// Renders the form that pauses a consumer and returns to a page.
pub(crate) fn pause_form(visit: &Visit, consumer: &str, back: &str) -> Markup {
    let label = format!("Reason to pause {}", sanitize(consumer));
    let more = html! {
        (hidden("back", back))
        label.check { input type="checkbox" name="replay" value="true"; " replays only" }
    };
    let action = format!("/console/consumers/{}/pause", escape(consumer));
    let command = cli_line::command("pause", &[("--reason", "TEXT")], &[consumer]);
    let form = LineForm::reason(action, Scope::Pause, "Reason to pause", command).label(&label).with(more);
    form.render(visit, &html! { (icon("pause")) "Pause" })
}

/// Returns the request that a form describes.
fn request(fields: &Fields) -> PauseRequest {
    let text = |name: &str| fields.get(name).map(str::to_owned);
    PauseRequest {
        stream: text("stream"),
        partition: text("partition"),
        sequence: text("sequence"),
        replay: fields.get("replay").is_some(),
        reason: text("reason"),
    }
}

/// Returns the page of the console to show after the change.
fn back(fields: &Fields) -> String {
    let back = fields.get("back").filter(|back| back.starts_with("/console/"));
    back.unwrap_or("/console/admin").to_owned()
}

pub(crate) async fn pause(Path(consumer): Path<String>, visit: Visit, fields: Fields) -> Response {
    let path = format!("/v1/consumers/{}/pause", escape(&consumer));
    let paused: Result<Pause> = visit.api.change(Method::POST, &path, &request(&fields)).await;
    visit.respond(paused.map(|_| Answer::SeeOther(back(&fields))))
}

pub(crate) async fn resume(Path(consumer): Path<String>, visit: Visit, fields: Fields) -> Response {
    let path = format!("/v1/consumers/{}/resume", escape(&consumer));
    let resumed: Result<ResumeAnswer> = visit.api.change(Method::POST, &path, &request(&fields)).await;
    visit.respond(resumed.map(|_| Answer::SeeOther(back(&fields))))
}
