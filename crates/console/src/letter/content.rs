//! The payload of a letter as a tree, text or bytes, and its headers.

use axum::body::Body;
use axum::extract::{Path, Query};
use axum::http::{HeaderValue, Method, header};
use axum::response::Response;
use http_body_util::BodyExt;
use lazaret_api::{Header, Letter, LetterDetail, PayloadState, Scope};
use maud::{Markup, html};
use serde::Deserialize;

use super::{Shown, is_open, reveal};
use crate::api::{Result, escape, with_query};
use crate::icon::icon;
use crate::layout::{Section, page_head};
use crate::payload::{INLINE_BYTES, Payload, View, hex, size, tree};
use crate::text::{block, visible};
use crate::time::exact_with_age;
use crate::visit::{Page, Visit};
use crate::{letters, links};

/// The number of bytes in a hex dump on one page.
const HEX_BYTES: usize = 4096;

/// Renders the payload and headers of a letter.
pub(super) fn panel(visit: &Visit, detail: &LetterDetail, shown: Shown<'_>) -> Markup {
    html! {
        section.panel #payload {
            div.section-head {
                h2 { "Payload" }
                p.muted { (size(detail.content.payload_bytes)) }
            }
            div.pad {
                (reveal::panel(visit, detail, shown))
                @match (detail.content.payload_state, Payload::of(&detail.content)) {
                    (_, Some(payload)) => (content(visit, &detail.letter, &payload, shown)),
                    (PayloadState::Hidden, _) => p.muted { "Payload and headers are hidden: they need the right payload." },
                    (PayloadState::LeftOut, _) => (left_out(visit, detail)),
                    _ => p.muted { "No payload: the message is a tombstone." },
                }
            }
        }
        (headers(&detail.content.headers))
    }
}

/// Renders the reason why a payload is not shown.
fn left_out(visit: &Visit, detail: &LetterDetail) -> Markup {
    match (&detail.erased, &detail.content.undecodable) {
        (Some(erased), _) => html! {
            p.muted { "Erased by " (visible(&erased.by)) " " (exact_with_age(erased.at, visit.now)) ": " (visible(&erased.why)) }
        },
        (None, Some(why)) => html! {
            p.muted { "The payload is not there: it is damaged, or was not stored. The letter cannot be retried." }
            p.muted { (visible(why)) }
        },
        (None, None) => html! {
            p.muted { "The payload was not stored: the consumer has " code { "include-payload: false" } ". The letter cannot be retried." }
        },
    }
}

fn content(visit: &Visit, letter: &Letter, payload: &Payload, shown: Shown<'_>) -> Markup {
    let id = &letter.id;
    let views = payload.views();
    let Shown::Redacted(view) = shown else { return revealed(payload, views[0]) };
    let chosen = views.iter().copied().find(|known| Some(known.as_str()) == view).unwrap_or(views[0]);
    let link = |view: View| with_query(&links::letter(id), &[("view", Some(view.as_str()))]) + "#payload";
    let closed = || (!is_open(letter.state)).then(|| "the letter is closed".to_owned());
    let edit = visit.missing(Scope::Edit).or_else(closed);
    html! {
        div.payload-bar {
            div.tabs { @for view in View::ALL { @if views.contains(&view) {
                a href=(link(view)) aria-current=[(view == chosen).then_some("true")] { (view.as_str()) }
            } } }
            div.actions {
                @if let Some(why) = edit { button disabled title=(why) { "Edit" } } @else { a.button href={ (links::letter(id)) "/edit" } { "Edit" } }
                a.button href={ (links::letter(id)) "/download" } { (icon("download")) "Download" }
            }
        }
        (view_of(payload, chosen))
        @let window = if chosen == View::Hex { HEX_BYTES } else { INLINE_BYTES };
        @if payload.size > window as u64 {
            p {
                "The first " (size(window as u64)) " of " (size(payload.size)) ". "
                a href=(with_query(&format!("{}/payload", links::letter(id)), &[("offset", Some(&window.to_string()))])) { "Show more" }
            }
        }
    }
}

/// Renders a payload with its redacted values. Other pages do not show these, so there are no links to
/// views, parts and the download.
fn revealed(payload: &Payload, view: View) -> Markup {
    html! {
        (view_of(payload, view))
        @if !payload.is_whole() { p { "The beginning of " (size(payload.size)) ". The command line prints all of it: " code { "--payload" } "." } }
    }
}

fn view_of(payload: &Payload, view: View) -> Markup {
    html! {
        @match view {
            View::Tree => (payload.text().and_then(tree::render).unwrap_or_default()),
            View::Text => pre.error-text { (block(payload.text().unwrap_or_default())) },
            View::Hex => (hex::render(&payload.bytes[..payload.bytes.len().min(HEX_BYTES)], 0)),
        }
    }
}

fn headers(headers: &[Header]) -> Markup {
    html! {
        @if !headers.is_empty() {
            section.panel {
                div.section-head { h2 { "Headers" } p.muted { (headers.len()) } }
                div.scroll { table {
                    thead { tr { th { "Name" } th { "Value" } } }
                    tbody { @for of in headers { tr {
                        td.mono { (visible(&of.name)) }
                        td.mono.value {
                            @if let Some(value) = &of.value { (visible(value)) }
                            @else if let Some(value) = &of.value_base64 { span.muted { "base64 " } (value) }
                            @else { span.muted { "null" } }
                        }
                    } } }
                } }
            }
        }
    }
}

/// The offset at which a part of a payload begins.
#[derive(Deserialize)]
pub(crate) struct PartParams {
    #[serde(default)]
    offset: u64,
}

/// Shows a part of a payload as bytes.
pub(crate) async fn part(Path(id): Path<String>, Query(params): Query<PartParams>, visit: Visit) -> Response {
    let page = part_page(&visit, &id, params.offset).await;
    visit.respond(page)
}

async fn part_page(visit: &Visit, id: &str, offset: u64) -> Result<Page> {
    let offset = offset - offset % 16;
    let end = offset.saturating_add(HEX_BYTES as u64 - 1);
    let range = HeaderValue::from_str(&format!("bytes={offset}-{end}")).ok();
    let range: Vec<_> = range.into_iter().map(|range| (header::RANGE, range)).collect();
    let response = visit.api.send(Method::GET, &payload_path(id), Body::empty(), &range).await?;
    let of = response.headers().get(header::CONTENT_RANGE).and_then(|range| range.to_str().ok());
    let whole = of.and_then(|range| range.rsplit_once('/')?.1.parse().ok());
    // A range beyond the end is answered with the whole payload. None of it is shown.
    let bytes = match whole {
        Some(_) => response.into_body().collect().await.map(|body| body.to_bytes()).unwrap_or_default(),
        None => Default::default(),
    };
    let whole: u64 = whole.unwrap_or(offset);
    let at = |offset: u64| {
        with_query(&format!("{}/payload", links::letter(id)), &[("offset", Some(&offset.to_string()))])
    };
    let main = html! {
        div.crumbs {
            a href="/console/letters" { "Letters" } (icon("next"))
            a.mono href=(links::letter(id)) { (letters::short(id)) } (icon("next")) span { "Payload" }
        }
        (page_head(&html! { "Payload" }, &html! { "bytes " (offset) " to " (offset + bytes.len() as u64) " of " (whole) }, &html! {
            a.button href={ (links::letter(id)) "/download" } { (icon("download")) "Download" }
        }))
        div.panel.pad { (hex::render(&bytes, offset)) }
        div.pager {
            @if offset > 0 { a.button rel="prev" href=(at(offset.saturating_sub(HEX_BYTES as u64))) { "Before" } }
            @if offset + (bytes.len() as u64) < whole { a.button rel="next" href=(at(offset + HEX_BYTES as u64)) { "After" } }
        }
    };
    Ok(Page::new("Payload", Section::Letters, main))
}

fn payload_path(id: &str) -> String {
    format!("/v1/letters/{}/payload", escape(id))
}

/// Serves the payload as a download. The API makes it an attachment, which no browser renders.
pub(crate) async fn download(Path(id): Path<String>, visit: Visit) -> Response {
    match visit.api.send(Method::GET, &payload_path(&id), Body::empty(), &[]).await {
        Ok(response) => response,
        Err(problem) => visit.respond::<Page>(Err(problem)),
    }
}
