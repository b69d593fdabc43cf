//! Letters: lists, exports, counts, single letters, payloads and sequences.

use std::ops::Range;

use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use lazaret_api::{Code, ExportRequest, Letter, LetterDetail, LetterMatches, LetterPage, Scope, Sequence};
use lazaret_core::{QueueName, SequenceId};
use serde::Deserialize;

use super::page::cut;
use super::query::parse_query;
use super::search::Search;
use crate::api_error::{ApiError, Result};
use crate::app::App;
use crate::auth::Caller;
use crate::change::reveal::note_reveal;
use crate::cursor;
use crate::extract::{Json, Name, Params};
use crate::ndjson::{self, Chunk, accepts_ndjson, export_permit, push_line, stream_permit};

/// The list of the cursors.
const LIST: &str = "letters";
/// The number of letters that a list reads at a time.
const LIST_STEP: usize = 100;
/// The page size of lists of lines.
const EXPORT_PAGE: usize = 100;
/// The page size of exports of full letters: a page is in memory, with payloads (I7).
const FULL_PAGE: usize = 8;

/// The letters to return, and their view.
#[derive(Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(crate) struct ListParams {
    q: Option<String>,
    after: Option<String>,
    limit: Option<usize>,
    #[serde(default)]
    view: View,
}

#[derive(Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum View {
    #[default]
    Summary,
    Full,
}

/// The query to count.
#[derive(Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(crate) struct CountParams {
    q: Option<String>,
}

/// The sequence to return.
#[derive(Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(crate) struct SequenceParams {
    queue: String,
    sequence: String,
    after: Option<String>,
    limit: Option<usize>,
}

pub(crate) async fn list(
    State(app): State<App>,
    caller: Caller,
    Params(params): Params<ListParams>,
    headers: HeaderMap,
) -> Result<Response> {
    let search = parse_query(&app, &caller, params.q.as_deref())?;
    let after = cursor::read(LIST, params.after.as_deref())?;
    if accepts_ndjson(&headers) {
        let show_payload = caller.identity.may(Scope::Payload);
        let view = Lines { search, view: params.view, show_payload, redact: true };
        return lines(app, &caller, view, after, params.limit).await;
    }
    if params.view == View::Full {
        let detail = "full letters need Accept: application/x-ndjson";
        return Err(ApiError::invalid("view", detail));
    }
    let _turn = app.scans.take(&caller).await?;
    let limit = app.page(params.limit);
    let (mut letters, mut at, rules) = (Vec::new(), after.clone(), &app.options.redaction);
    let next = loop {
        // In steps: the store returns letters with their payloads, which are not part of the list (I7).
        let page = search.find(&app, at.as_deref(), LIST_STEP.min(limit - letters.len())).await;
        let page = page.map_err(|error| cursor_error(error.into(), after.as_deref()))?;
        let is_step = page.letters.len() == LIST_STEP;
        letters.extend(page.letters.iter().map(|letter| Letter::redacted(letter, rules)));
        at = page.next;
        // A short page ends the list early: a search examines a bounded number of letters.
        if at.is_none() || !is_step || letters.len() >= limit {
            break at;
        }
    };
    let next = next.map(|next| cursor::write(LIST, &next));
    Ok(axum::Json(LetterPage { letters, next }).into_response())
}

/// Exports letters as they are, with what is redacted elsewhere: only such an export can be imported again.
pub(crate) async fn export(
    State(app): State<App>,
    caller: Caller,
    Json(request): Json<ExportRequest>,
) -> Result<Response> {
    caller.require(Scope::Payload)?;
    let search = parse_query(&app, &caller, request.query.as_deref())?;
    let subject = request.query.as_deref().filter(|query| !query.trim().is_empty());
    note_reveal(&app, &caller, subject.unwrap_or("all open letters"), request.reason.as_deref()).await?;
    let view = Lines { search, view: View::Full, show_payload: true, redact: false };
    lines(app, &caller, view, None, None).await
}

/// Maps the store's error on an invalid cursor.
fn cursor_error(mut error: ApiError, after: Option<&str>) -> ApiError {
    if after.is_some() && error.problem.code == Code::InvalidRequest {
        error.problem = Box::new(lazaret_api::Problem::new(Code::InvalidCursor).at("after"));
    }
    error
}

/// The contents of an export.
#[derive(Clone)]
struct Lines {
    search: Search,
    view: View,
    show_payload: bool,
    redact: bool,
}

/// Streams every match up to a limit, in bounded memory.
async fn lines(
    app: App,
    caller: &Caller,
    lines: Lines,
    after: Option<String>,
    limit: Option<usize>,
) -> Result<Response> {
    let permit = match lines.view {
        View::Summary => stream_permit(&app, caller)?,
        View::Full => export_permit(&app, caller)?,
    };
    let left = limit.unwrap_or(usize::MAX);
    let turn = app.scans.take(caller).await?;
    let first = line_page(app.clone(), lines.clone(), after, left).await?;
    drop(turn);
    let (pages, caller) = (app.clone(), caller.clone());
    Ok(ndjson::respond(&app, first, permit, move |(after, left)| {
        later_line_page(pages.clone(), caller.clone(), lines.clone(), after, left)
    }))
}

async fn later_line_page(
    app: App,
    caller: Caller,
    lines: Lines,
    after: String,
    left: usize,
) -> Result<Chunk<(String, usize)>> {
    let _turn = app.scans.take_later(&caller).await;
    line_page(app.clone(), lines, Some(after), left).await
}

async fn line_page(
    app: App,
    lines: Lines,
    after: Option<String>,
    left: usize,
) -> Result<Chunk<(String, usize)>> {
    let most = if lines.view == View::Full { FULL_PAGE } else { EXPORT_PAGE };
    let page = lines.search.find(&app, after.as_deref(), most.min(left)).await;
    let page = page.map_err(|error| cursor_error(error.into(), after.as_deref()))?;
    let mut text = Vec::new();
    let left = left.saturating_sub(page.letters.len());
    let (rules, shown) = (&app.options.redaction, lines.show_payload);
    for letter in page.letters {
        match lines.view {
            View::Summary => push_line(&mut text, &Letter::redacted(&letter, rules)),
            View::Full if lines.redact => {
                push_line(&mut text, &LetterDetail::redacted(letter, rules, shown, usize::MAX));
            }
            View::Full => push_line(&mut text, &LetterDetail::of(&letter, shown)),
        }
    }
    Ok(Chunk { lines: text, next: page.next.filter(|_| left > 0).map(|next| (next, left)) })
}

pub(crate) async fn count(
    State(app): State<App>,
    caller: Caller,
    Params(params): Params<CountParams>,
) -> Result<axum::Json<LetterMatches>> {
    let search = parse_query(&app, &caller, params.q.as_deref())?;
    let _turn = app.scans.take_for(&caller, search.query()).await?;
    Ok(axum::Json(search.count(&app).await?.into()))
}

pub(crate) async fn show(
    State(app): State<App>,
    caller: Caller,
    Name(id): Name,
    Params(params): Params<ShowParams>,
) -> Result<axum::Json<LetterDetail>> {
    let letter = app.letter(&caller, &id).await?;
    let most = params.payload_bytes.unwrap_or(usize::MAX);
    let shown = caller.identity.may(Scope::Payload);
    Ok(axum::Json(LetterDetail::redacted(letter, &app.options.redaction, shown, most)))
}

/// How much of a letter to return.
#[derive(Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(crate) struct ShowParams {
    pub(crate) payload_bytes: Option<usize>,
}

/// The payload bytes as a download: a browser must never render them.
pub(crate) async fn payload(
    State(app): State<App>,
    caller: Caller,
    Name(id): Name,
    headers: HeaderMap,
) -> Result<Response> {
    let mut letter = app.letter(&caller, &id).await?;
    app.options.redaction.apply(&mut letter);
    let Some(payload) = letter.message.payload.clone() else {
        let why = match letter.payload_left_out {
            false => "tombstone",
            true if letter.erased.is_some() => "it was erased",
            true if letter.message.undecodable.is_some() => "it is damaged, or was not stored",
            true => "it was not stored: the consumer has include-payload: false",
        };
        return Err(ApiError::new(Code::NotFound, format!("letter {id} has no payload: {why}")));
    };
    let part = byte_range(&headers, payload.len());
    let shown = part.clone().map_or_else(|| payload.clone(), |part| payload.slice(part));
    let mut response = shown.into_response();
    if let Some(part) = part {
        *response.status_mut() = StatusCode::PARTIAL_CONTENT;
        let range = format!("bytes {}-{}/{}", part.start, part.end - 1, payload.len());
        response
            .headers_mut()
            .extend(HeaderValue::from_str(&range).map(|range| (header::CONTENT_RANGE, range)));
    }
    let headers = response.headers_mut();
    headers.insert(header::ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
    let name = format!("attachment; filename=\"{}.bin\"", letter.id);
    if let Ok(name) = HeaderValue::from_str(&name) {
        headers.insert(header::CONTENT_DISPOSITION, name);
    }
    Ok(response)
}

/// The part of `Range: bytes=FIRST-LAST`, within a payload. Other ranges are ignored, as the standard allows.
fn byte_range(headers: &HeaderMap, length: usize) -> Option<Range<usize>> {
    let (first, last) = headers.get(header::RANGE)?.to_str().ok()?.strip_prefix("bytes=")?.split_once('-')?;
    let first: usize = first.parse().ok()?;
    let last: usize = if last.is_empty() { usize::MAX } else { last.parse().ok()? };
    (first <= last && first < length).then(|| first..last.saturating_add(1).min(length))
}

pub(crate) async fn sequence(
    State(app): State<App>,
    caller: Caller,
    Params(params): Params<SequenceParams>,
) -> Result<axum::Json<Sequence>> {
    let (queue, sequence) = (QueueName::from(params.queue), SequenceId::new(params.sequence));
    caller.require_consumer(queue.consumer())?;
    let from = cursor::read_number("sequence", params.after.as_deref())?.unwrap_or(0);
    let limit = app.page(params.limit);
    let _turn = app.scans.take(&caller).await?;
    let size = app.store.sequence_size(&queue, &sequence).await?;
    let mut letters = app.store.sequence(&queue, &sequence, from, limit + 1).await?;
    let next = cut(&mut letters, limit).map(|last| last.index + 1);
    Ok(axum::Json(Sequence {
        queue: queue.to_string(),
        sequence: sequence.to_string(),
        size,
        next: next.map(|next| cursor::write("sequence", &next.to_string())),
        letters: letters.iter().map(|letter| Letter::redacted(letter, &app.options.redaction)).collect(),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_range_of_bytes_is_understood() {
        let range = |text: &str, length| {
            let headers = [(header::RANGE, text.parse().unwrap())].into_iter().collect();
            byte_range(&headers, length)
        };
        assert_eq!(range("bytes=0-9", 100), Some(0..10));
        assert_eq!(range("bytes=90-999", 100), Some(90..100));
        assert_eq!(range("bytes=90-", 100), Some(90..100));
        for other in ["bytes=100-", "bytes=5-4", "bytes=-5", "bytes=0-1,3-4", "lines=0-1", "bytes=x-y", ""] {
            assert_eq!(range(other, 100), None, "{other}");
        }
    }
}
