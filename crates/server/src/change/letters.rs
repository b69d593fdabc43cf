//! Changes to one letter.

use axum::extract::State;
use axum::http::StatusCode;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use lazaret_api::{
    ActRequest, AssignRequest, Code, CommentRequest, EditRequest, ExpiryRequest, Letter, Problem, Scope,
};
use lazaret_core::store::{Act, Actor, Change, EDITS_BYTES, InvalidDigest, PayloadDigest};
use lazaret_core::{LetterId, QueueName, Timestamp};

use super::publish::letter_changed;
use super::reason::{ASSIGNMENT, reason_or};
use crate::api_error::{ApiError, Result};
use crate::app::App;
use crate::auth::Caller;
use crate::extract::{Json, Name};

/// Changes a letter, through its consumer if that runs here, so that the consumer reacts at once.
pub(crate) async fn act_on(
    app: &App,
    queue: &QueueName,
    id: LetterId,
    act: Act,
    by: &Actor,
) -> Result<lazaret_core::Letter> {
    if act == Act::Release && app.registry.needs_approval(queue.consumer()) {
        let detail = format!("{} requires a second person: start an operation", queue.consumer());
        return Err(Problem::new(Code::Denied).with_detail(detail).with_hint("POST /v1/operations").into());
    }
    let replayer =
        app.registry.handle(queue.consumer()).and_then(|handle| handle.replayer(queue.component()));
    let letter = match replayer {
        Some(replayer) => replayer.act(id, act, by).await?,
        None => app.store.act(queue, id, act, by).await?,
    };
    letter_changed(app, &letter, act.as_str(), by);
    Ok(letter)
}

/// A changed letter, as everybody sees it.
fn shown(app: &App, letter: &lazaret_core::Letter) -> axum::Json<Letter> {
    axum::Json(Letter::redacted(letter, &app.options.redaction))
}

async fn act(
    app: App,
    caller: Caller,
    id: String,
    act: Act,
    request: ActRequest,
) -> Result<axum::Json<Letter>> {
    let by = caller.actor(request.reason.as_deref())?;
    let missing = || ApiError::not_found("letter", &id);
    let named: LetterId = id.parse().map_err(|_| missing())?;
    if let Some(letter) = app.find_letter(&caller, named).await? {
        return Ok(shown(&app, &act_on(&app, &letter.queue, named, act, &by).await?));
    }
    // A purged letter is not found, but its queue still knows the id and reports it (I11).
    let queues = app.store.queues().await?;
    for summary in queues.iter().filter(|summary| caller.may_use(summary.queue.consumer())) {
        match act_on(&app, &summary.queue, named, act, &by).await {
            // Another queue, or one that requires a second person.
            Err(error) if matches!(error.problem.code, Code::NotFound | Code::Denied) => {}
            known => return Ok(shown(&app, &known?)),
        }
    }
    Err(missing())
}

/// One handler per act: each has its own route and scope.
macro_rules! acts {
    ($($name:ident = $act:ident),+ $(,)?) => {
        $(pub(crate) async fn $name(
            State(app): State<App>,
            caller: Caller,
            Name(id): Name,
            Json(request): Json<ActRequest>,
        ) -> Result<axum::Json<Letter>> {
            act(app, caller, id, Act::$act, request).await
        })+
    };
}

acts!(
    evict = Evict,
    resolve = Resolve,
    park = Park,
    quarantine = Quarantine,
    release = Release,
    restore = Restore,
);

pub(crate) async fn purge(
    State(app): State<App>,
    caller: Caller,
    Name(id): Name,
    Json(request): Json<ActRequest>,
) -> Result<StatusCode> {
    let by = caller.actor(request.reason.as_deref())?;
    let letter = app.letter(&caller, &id).await?;
    app.store.purge(&letter.queue, letter.id, &by).await?;
    letter_changed(&app, &letter, "purge", &by);
    Ok(StatusCode::NO_CONTENT)
}

async fn change(
    app: &App,
    caller: &Caller,
    id: &str,
    mut change: Change,
    by: &Actor,
) -> Result<axum::Json<Letter>> {
    let letter = app.letter(caller, id).await?;
    if let Change::Payload(payload) = &change
        && app.registry.needs_approval(letter.queue.consumer())
    {
        // A letter that runs by itself would carry the new payload past the second person.
        change = Change::HeldPayload(payload.clone());
    }
    let letter = app.store.change(&letter.queue, letter.id, &change, by).await?;
    app.wake(&letter.queue);
    letter_changed(app, &letter, change.as_str(), by);
    Ok(shown(app, &letter))
}

/// Comments need no reason.
pub(crate) async fn comment(
    State(app): State<App>,
    caller: Caller,
    Name(id): Name,
    Json(request): Json<CommentRequest>,
) -> Result<axum::Json<Letter>> {
    if request.text.trim().is_empty() {
        return Err(ApiError::invalid("/text", "the comment is empty"));
    }
    let by = caller.actor(reason_or(request.reason.as_deref(), "comment"))?;
    let mut text = request.text;
    app.options.redaction.stored_texts().apply(&mut text);
    change(&app, &caller, &id, Change::Comment(text), &by).await
}

/// The longest name of an assignee or owner, in characters.
pub(crate) const MAX_NAME_CHARS: usize = 200;

pub(super) fn check_name(name: Option<&str>) -> Result<()> {
    let fits = |name: &str| {
        let is_short = name.chars().count() <= MAX_NAME_CHARS;
        is_short && !name.trim().is_empty() && !name.chars().any(char::is_control)
    };
    if name.is_none_or(fits) {
        return Ok(());
    }
    let detail = format!("the name must have 1 to {MAX_NAME_CHARS} printable characters, or be null");
    Err(ApiError::invalid("/name", detail))
}

pub(crate) async fn assign(
    State(app): State<App>,
    caller: Caller,
    Name(id): Name,
    Json(request): Json<AssignRequest>,
) -> Result<axum::Json<Letter>> {
    check_name(request.name.as_deref())?;
    let by = caller.actor(reason_or(request.reason.as_deref(), ASSIGNMENT))?;
    change(&app, &caller, &id, Change::Assignee(request.name), &by).await
}

pub(crate) async fn own(
    State(app): State<App>,
    caller: Caller,
    Name(id): Name,
    Json(request): Json<AssignRequest>,
) -> Result<axum::Json<Letter>> {
    check_name(request.name.as_deref())?;
    let by = caller.actor(reason_or(request.reason.as_deref(), "ownership"))?;
    change(&app, &caller, &id, Change::Owner(request.name), &by).await
}

/// The latest expiry, 2200-01-01: stores keep times as nanoseconds in 64 bits, and a later one would be changed silently.
const LATEST_EXPIRY: Timestamp = Timestamp::constant(7_258_118_400, 0);
/// The pattern of times before it, in any time zone.
pub(crate) const EXPIRY_YEARS: &str = "^([01][0-9]{3}|20[0-9]{2}|21[0-9]{2})-";

pub(crate) async fn expire(
    State(app): State<App>,
    caller: Caller,
    Name(id): Name,
    Json(request): Json<ExpiryRequest>,
) -> Result<axum::Json<Letter>> {
    let by = caller.actor(request.reason.as_deref())?;
    if request.expires_at.is_some_and(|at| at > LATEST_EXPIRY) {
        let detail = format!("{LATEST_EXPIRY} is the latest time; use null for letters that never expire");
        return Err(ApiError::invalid("/expires-at", detail));
    }
    change(&app, &caller, &id, Change::ExpiresAt(request.expires_at), &by).await
}

pub(crate) async fn edit(
    State(app): State<App>,
    caller: Caller,
    Name(id): Name,
    Json(request): Json<EditRequest>,
) -> Result<axum::Json<Letter>> {
    let by = caller.actor(request.reason.as_deref())?;
    if request.expected_digest.is_some() {
        // Only a caller who is shown the payload knows its digest. From others it is a guess, and a conflict leaves no trace in the audit.
        caller.require(Scope::Payload)?;
    }
    let force = request.force;
    let payload = match (request.payload, request.payload_base64, request.tombstone, request.revert) {
        (Some(text), None, false, false) => Some(Bytes::from(text)),
        (None, Some(base64), false, false) => {
            let bytes = STANDARD.decode(base64.as_bytes());
            Some(bytes.map_err(|error| ApiError::invalid("/payload-base64", error.to_string()))?.into())
        }
        (None, None, true, false) => None,
        (None, None, false, true) => original(&app.letter(&caller, &id).await?)?,
        _ => {
            let detail = "give exactly one of payload, payload-base64, tombstone and revert";
            return Err(ApiError::invalid("/payload", detail));
        }
    };
    let digest = |error: InvalidDigest| ApiError::invalid("/expected-digest", error.to_string());
    let expected: Option<PayloadDigest> =
        request.expected_digest.map(|text| text.parse()).transpose().map_err(digest)?;
    // Edits of two people through this server cannot both pass the comparison, or keep redacted values of an earlier payload.
    let _alone = app.edits.lock().await;
    let letter = app.letter(&caller, &id).await?;
    if !request.revert && !app.shows_derived(&caller) {
        check_room_for_original(&letter)?;
    }
    let payload = match payload {
        Some(written) if !request.revert => {
            let payload = with_redacted_values(&app, &letter, written)?;
            if !force {
                check_still_json(&letter, &payload)?;
            }
            Some(payload)
        }
        other => other,
    };
    let Some(expected) = expected else {
        return change(&app, &caller, &id, Change::Payload(payload), &by).await;
    };
    if !is_payload(&app, &caller, letter, expected) {
        let detail = format!("the payload of letter {id} was changed in the meantime");
        return Err(Problem::new(Code::Conflict).with_detail(detail).at("/expected-digest").into());
    }
    change(&app, &caller, &id, Change::Payload(payload), &by).await
}

/// Puts the stored values in the place of redacted ones, so that somebody who does not see them can edit the rest.
fn with_redacted_values(app: &App, letter: &lazaret_core::Letter, written: Bytes) -> Result<Bytes> {
    let restored = app.options.redaction.restore(written, letter.message.payload.as_ref());
    restored.map_err(|error| {
        let problem = Problem::new(Code::Conflict).with_detail(error.to_string()).at("/payload");
        problem.with_hint("write a value, or leave the redacted one where it was").into()
    })
}

/// Returns `true` if the payload has this digest, as the caller was shown it: without its redacted values, or as it is stored by those
/// who may reveal. A comparison with the stored payload would tell everybody else whether a guess is right.
fn is_payload(app: &App, caller: &Caller, mut letter: lazaret_core::Letter, expected: PayloadDigest) -> bool {
    let is = |letter: &lazaret_core::Letter| PayloadDigest::of(letter.message.payload.as_deref()) == expected;
    (app.shows_derived(caller) && is(&letter)) || {
        app.options.redaction.apply(&mut letter);
        is(&letter)
    }
}

/// Refuses an edit of a letter whose edits keep as many bytes as they may. The store accepts one then that puts the first payload back:
/// whether it does would tell a caller whether a guess of that payload is right.
fn check_room_for_original(letter: &lazaret_core::Letter) -> Result<()> {
    let bytes = |payload: Option<&Bytes>| payload.map_or(0, Bytes::len);
    let kept: usize = letter.edits.iter().map(|edit| bytes(edit.original.as_ref())).sum();
    if kept == 0 || kept + bytes(letter.message.payload.as_ref()) <= EDITS_BYTES {
        return Ok(());
    }
    let detail = format!("the edits of letter {} keep as much as they may: {EDITS_BYTES} bytes", letter.id);
    Err(Problem::new(Code::Conflict).with_detail(detail).with_hint("revert the edits").into())
}

/// The payload before all edits.
fn original(letter: &lazaret_core::Letter) -> Result<Option<Bytes>> {
    let Some(first) = letter.edits.first() else {
        return Err(ApiError::new(Code::Conflict, format!("letter {} has no edits to revert", letter.id)));
    };
    Ok(first.original.clone())
}

/// Refuses a payload that is not JSON for a letter whose payload is: its handler would fail on it, and the edit would look like a fix.
fn check_still_json(letter: &lazaret_core::Letter, payload: &[u8]) -> Result<()> {
    let parse = |bytes: &[u8]| serde_json::from_slice::<serde::de::IgnoredAny>(bytes);
    let is_json = match letter.message.content_type.as_deref() {
        Some(content_type) => content_type.to_ascii_lowercase().contains("json"),
        // A number or a word of a text format could be JSON by accident.
        None => letter.message.payload.as_deref().is_some_and(|before| {
            before.trim_ascii_start().starts_with(b"{") || before.trim_ascii_start().starts_with(b"[")
        }),
    };
    let was_valid = letter.message.payload.as_deref().is_none_or(|before| parse(before).is_ok());
    match parse(payload) {
        Err(error) if is_json && was_valid => {
            let detail = format!("the payload of this letter is JSON, and the new one is not: {error}");
            let problem = Problem::new(Code::Conflict).with_detail(detail);
            Err(problem.with_hint("set \"force\": true to store it as it is").into())
        }
        _ => Ok(()),
    }
}
