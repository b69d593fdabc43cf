//! The audit and its verification.

use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use lazaret_api::{AuditCheck, AuditPage, Code, Problem, Scope};
use lazaret_core::store::{AuditHead, DigestKey, audit_hash_text};
use serde::Deserialize;

use super::audit_view::AuditView;
use crate::api_error::{ApiError, Result};
use crate::app::App;
use crate::auth::Caller;
use crate::cursor;
use crate::extract::Params;
use crate::ndjson::{self, Chunk, accepts_ndjson, push_line, stream_permit};
use crate::redacted::audit_entry;

const LIST: &str = "audit";
/// The list of the cursors of the latest entries.
const LATEST: &str = "latest-audit";
/// The page size of streams.
const STREAM_PAGE: usize = 500;
/// The most entries that a page examines for a limited caller.
const SCAN_LIMIT: usize = 2000;

/// The entries to return.
#[derive(Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(crate) struct AuditParams {
    #[serde(default)]
    order: Order,
    /// Only entries about this.
    subject: Option<String>,
    after: Option<String>,
    limit: Option<usize>,
}

#[derive(Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Order {
    #[default]
    Oldest,
    Latest,
}

pub(crate) async fn list(
    State(app): State<App>,
    caller: Caller,
    Params(params): Params<AuditParams>,
    headers: HeaderMap,
) -> Result<Response> {
    let is_whole = params.subject.is_none() && params.order == Order::Oldest;
    if is_whole && accepts_ndjson(&headers) {
        let after = cursor::read_number(LIST, params.after.as_deref())?.unwrap_or(0);
        let permit = stream_permit(&app, &caller)?;
        let left = params.limit.unwrap_or(usize::MAX);
        let first = line_page(app.clone(), caller.clone(), after, left).await?;
        let pages = app.clone();
        return Ok(ndjson::respond(&app, first, permit, move |(after, left)| {
            line_page(pages.clone(), caller.clone(), after, left)
        }));
    }
    // For a limited caller, the letters of the entries are looked up.
    let is_limited = AuditView::new(&app, &caller).is_limited();
    let _turn = if is_limited { Some(app.scans.take(&caller).await?) } else { None };
    if let Some(subject) = &params.subject {
        return about(&app, &caller, subject, app.page(params.limit)).await;
    }
    if params.order == Order::Latest {
        return latest(&app, &caller, &params).await;
    }
    let after = cursor::read_number(LIST, params.after.as_deref())?.unwrap_or(0);
    Ok(axum::Json(oldest(&app, &caller, after, app.page(params.limit)).await?).into_response())
}

/// The entries after a number, the oldest first.
async fn oldest(app: &App, caller: &Caller, mut after: u64, limit: usize) -> Result<AuditPage> {
    let mut view = AuditView::new(app, caller);
    // One more than fit, to know the last page.
    let step = if view.is_limited() { STREAM_PAGE } else { limit + 1 };
    let (mut entries, mut scanned) = (Vec::new(), 0);
    let next = |after: u64| Some(cursor::write(LIST, &after.to_string()));
    loop {
        let read = app.store.audit(after, step).await?;
        scanned += read.len();
        for entry in &read {
            if view.shows(entry).await? {
                if entries.len() == limit {
                    return Ok(AuditPage { entries, next: next(after) });
                }
                entries.push(audit_entry(app, caller, entry));
            }
            after = entry.number;
        }
        if read.len() < step {
            return Ok(AuditPage { entries, next: None });
        }
        if scanned >= SCAN_LIMIT {
            return Ok(AuditPage { entries, next: next(after) });
        }
    }
}

/// The entries before a number, the latest first.
async fn latest(app: &App, caller: &Caller, params: &AuditParams) -> Result<Response> {
    let end = last_number(app).await?.saturating_add(1);
    // A cursor from beyond the end would lead through numbers that no entry has.
    let mut before = cursor::read_number(LATEST, params.after.as_deref())?.unwrap_or(end).min(end);
    let limit = app.page(params.limit);
    let mut view = AuditView::new(app, caller);
    let step = if view.is_limited() { STREAM_PAGE } else { limit };
    let (mut entries, mut scanned) = (Vec::new(), 0);
    while before > 1 && entries.len() < limit && scanned < SCAN_LIMIT {
        let after = (before - 1).saturating_sub(step as u64);
        let count = usize::try_from(before - 1 - after).unwrap_or(usize::MAX);
        let read = app.store.audit(after, count).await?;
        scanned += count;
        before = after + 1;
        for entry in read.iter().rev() {
            if view.shows(entry).await? {
                entries.push(audit_entry(app, caller, entry));
            }
            if entries.len() == limit {
                before = entry.number;
                break;
            }
        }
    }
    let next = (before > 1).then(|| cursor::write(LATEST, &before.to_string()));
    Ok(axum::Json(AuditPage { entries, next }).into_response())
}

/// The latest entries about a subject, the latest first, on one page. The subject is compared with what the caller is shown: an entry
/// whose subject is hidden would tell whether a guess of it is right.
async fn about(app: &App, caller: &Caller, subject: &str, limit: usize) -> Result<Response> {
    let mut view = AuditView::new(app, caller);
    let mut entries = Vec::new();
    for entry in app.store.audit_about(&[subject.to_owned()], limit).await? {
        if view.shows(&entry).await? {
            entries.push(audit_entry(app, caller, &entry));
        }
    }
    entries.retain(|entry| entry.subject == subject);
    Ok(axum::Json(AuditPage { entries, next: None }).into_response())
}

/// The number of the last entry; 0 without entries. A store without a hash chain is searched: numbers increase by one.
async fn last_number(app: &App) -> Result<u64> {
    if let Some(head) = app.store.audit_head(None).await? {
        return Ok(head.number);
    }
    let (mut known, mut step) = (0_u64, 1_u64);
    // Gallop forwards, then halve the step.
    while !app.store.audit(known + step - 1, 1).await?.is_empty() {
        known += step;
        step *= 2;
    }
    while step > 1 {
        step /= 2;
        if !app.store.audit(known + step - 1, 1).await?.is_empty() {
            known += step;
        }
    }
    Ok(known)
}

async fn line_page(app: App, caller: Caller, after: u64, mut left: usize) -> Result<Chunk<(u64, usize)>> {
    let mut view = AuditView::new(&app, &caller);
    let _turn = if view.is_limited() { app.scans.take_later(&caller).await } else { None };
    let limit = if view.is_limited() { STREAM_PAGE } else { STREAM_PAGE.min(left) };
    let entries = app.store.audit(after, limit).await?;
    let mut lines = Vec::new();
    for entry in &entries {
        if left == 0 {
            break;
        }
        if view.shows(entry).await? {
            push_line(&mut lines, &audit_entry(&app, &caller, entry));
            left -= 1;
        }
    }
    let last = entries.last().filter(|_| entries.len() == limit && left > 0);
    Ok(Chunk { lines, next: last.map(|last| (last.number, left)) })
}

/// An entry that was noted elsewhere, such as in the log of the daemon.
#[derive(Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(crate) struct VerifyParams {
    number: Option<u64>,
    hash: Option<String>,
}

pub(crate) async fn verify(
    State(app): State<App>,
    caller: Caller,
    Params(noted): Params<VerifyParams>,
) -> Result<axum::Json<AuditCheck>> {
    let unsupported = || ApiError::new(Code::Unsupported, "the audit of this store has no hash chain");
    if !app.store.capabilities().await?.audit_chain {
        return Err(unsupported());
    }
    let noted = match (noted.number, noted.hash) {
        (None, None) => None,
        (Some(number), Some(hash)) => Some((number, NotedHash::read(&caller, hash)?)),
        _ => return Err(ApiError::invalid("hash", "give a number and its hash, or neither")),
    };
    let key = app.store.digest_key().await?;
    let turn = app.scans.take(&caller).await?;
    let check = app.store.verify_audit().await?.ok_or_else(unsupported)?;
    drop(turn);
    let mut check = AuditCheck::sealed(&check, &key);
    if let Some((number, hash)) = noted {
        let found = app.store.audit_head(Some(number)).await?;
        // Cut off, or replaced by another history.
        if found.is_none_or(|found| !hash.is_of(&found, &key)) && check.broken.is_none() {
            (check.ok, check.broken) = (false, Some(number));
        }
    }
    Ok(axum::Json(check))
}

/// The hash of an entry that was noted elsewhere.
enum NotedHash {
    Sealed(String),
    /// Earlier versions showed hashes as they are.
    Plain(String),
}

impl NotedHash {
    /// Reads what the caller has noted. A plain hash is as good as a guess of what the entry hides.
    fn read(caller: &Caller, text: String) -> Result<Self> {
        let text = text.to_ascii_lowercase();
        if text.starts_with(DigestKey::SEALED) {
            return Ok(Self::Sealed(text));
        }
        if caller.identity.may(Scope::Reveal) {
            return Ok(Self::Plain(text));
        }
        let detail = "a hash that is not sealed, from an earlier version, is compared for callers with the scope reveal";
        Err(Problem::new(Code::Forbidden).with_detail(detail).at("hash").into())
    }

    fn is_of(&self, head: &AuditHead, key: &DigestKey) -> bool {
        match self {
            Self::Sealed(noted) => key.seal_audit_hash(&head.hash) == *noted,
            Self::Plain(noted) => audit_hash_text(&head.hash) == *noted,
        }
    }
}
