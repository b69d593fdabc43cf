//! Letters over the wire: in short for lists, whole for one, and as they are exported and imported.

mod import;

use std::collections::BTreeMap;

use lazaret_core::letter;
use lazaret_core::store::Matches;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::bytes_text::split;
use crate::failure::{Failure, LetterError};
use crate::words::{AttemptKind, Phase, State};

pub use import::{ImportAnswer, ImportFailure, InvalidLetter};

/// A letter as lists show it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub struct Letter {
    /// Its identity.
    pub id: String,
    /// Whose letter it is: `consumer/component`.
    pub queue: String,
    /// The consumer part of the queue.
    pub consumer: String,
    /// The stream that the message came on.
    pub stream: String,
    /// The sequence that it belongs to.
    pub sequence: String,
    /// Its place in the sequence. Later letters have larger ones; gaps mean nothing.
    pub index: u64,
    /// Where it stands.
    pub state: State,
    /// The reason code of its cause; `null` when it only waits.
    pub reason: Option<String>,
    /// How far the attempt had come that failed.
    pub phase: Option<Phase>,
    /// The error of its cause.
    pub error: Option<LetterError>,
    /// Automatic attempts so far.
    pub attempts: u32,
    /// Attempts that ended with the death of the process.
    pub crash_attempts: u32,
    /// Attempts that somebody asked for.
    pub replay_attempts: u32,
    /// The message, in short.
    pub message: LetterMessage,
    /// When it was taken into the store.
    pub enqueued_at: jiff::Timestamp,
    /// When it first failed.
    pub first_failed_at: Option<jiff::Timestamp>,
    /// When it last failed.
    pub last_failed_at: Option<jiff::Timestamp>,
    /// When anything about it last changed.
    pub last_touched_at: jiff::Timestamp,
    /// When it may be tried again.
    pub due_at: Option<jiff::Timestamp>,
    /// When it leaves by itself; `null` means never.
    pub expires_at: Option<jiff::Timestamp>,
    /// The team that owns it.
    pub owner: Option<String>,
    /// The person who looks after it.
    pub assignee: Option<String>,
    /// Whether the same failure came back too often.
    pub poison: bool,
    /// The group of its cause: failures with one fingerprint in one queue.
    pub group: Option<String>,
    /// What the enqueue policy and the handler want to remember.
    pub diagnostics: BTreeMap<String, String>,
}

/// The message of a letter, in short.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub struct LetterMessage {
    /// Its identity.
    pub id: String,
    /// Its key, where that is text. No key is `null`, an empty key is `""`.
    pub key: Option<String>,
    /// Its key, where that is not text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key_base64: Option<String>,
    /// The type of the event.
    #[serde(rename = "type")]
    pub event_type: Option<String>,
    /// Where it stood in its stream: `partition:offset`.
    pub position: String,
}

/// A page of letters, the latest taken in first.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub struct LetterPage {
    /// The letters. There may be few or none on a page that is not the last: one page looks at a bounded number of letters.
    pub letters: Vec<Letter>,
    /// What to pass as `after` to get the next page; `null` at the end.
    pub next: Option<String>,
}

/// How many letters match a query.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub struct LetterMatches {
    /// How many were found.
    pub letters: u64,
    /// Whether that is all of them.
    pub exact: bool,
}

/// The open letters of one sequence, the head first.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub struct Sequence {
    /// The queue.
    pub queue: String,
    /// The sequence.
    pub sequence: String,
    /// How many open letters it holds; 0 when it is not open.
    pub size: u64,
    /// The letters of this page, in order.
    pub letters: Vec<Letter>,
    /// What to pass as `after` to get the next page; `null` at the end.
    pub next: Option<String>,
}

/// A letter, whole. This is also what `export` writes, one a line, and `import` reads.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub struct LetterDetail {
    /// What lists show of it.
    #[serde(flatten)]
    pub letter: Letter,
    /// The rest of its message.
    pub content: MessageDetail,
    /// Why it is here, whole; `null` when it only waits.
    pub cause: Option<Failure>,
    /// What was known when it failed: resume token, tracking data.
    pub context: BTreeMap<String, String>,
    /// Its attempts, oldest first.
    pub history: Vec<Attempt>,
    /// What people said about it, oldest first.
    pub comments: Vec<Comment>,
    /// What people changed in it, oldest first.
    pub edits: Vec<Edit>,
}

/// What lists do not show of a message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub struct MessageDetail {
    /// Whether the payload is shown, and if not, why.
    pub payload_state: PayloadState,
    /// How many bytes the payload has.
    pub payload_bytes: u64,
    /// The payload exactly as it came, where that is text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub payload: Option<String>,
    /// The payload, where that is not text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub payload_base64: Option<String>,
    /// The headers in their order. Hidden with the payload.
    pub headers: Vec<Header>,
    /// The media type of the payload.
    pub content_type: Option<String>,
    /// The registry's id of the schema.
    pub schema_id: Option<String>,
    /// The version of the event type.
    pub schema_version: Option<String>,
    /// When it happened, or when the source took it.
    pub time: Option<jiff::Timestamp>,
    /// The correlation id that ties it to other messages.
    pub correlation: Option<String>,
    /// What kind of change it describes, if it does: `insert`, `update`, …
    pub operation: Option<String>,
    /// Why the source could not make sense of the bytes.
    pub undecodable: Option<String>,
    /// What the source needs besides the position to come back there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub position_token_base64: Option<String>,
}

/// Whether a payload is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum PayloadState {
    /// It is.
    Shown,
    /// It is there; the reader may not see it, nor the headers.
    Hidden,
    /// There is none: a tombstone.
    None,
    /// It was left out when the letter ended, because its consumer keeps none.
    LeftOut,
}

/// A header. A value that is neither text nor base64 is null, which is not empty.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub struct Header {
    /// Its name. Names may repeat.
    pub name: String,
    /// Its value, where that is text.
    pub value: Option<String>,
    /// Its value, where that is not text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value_base64: Option<String>,
}

/// One attempt, as the letter's history remembers it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub struct Attempt {
    /// Which attempt it was, from 1.
    pub attempt: u32,
    /// Who ran it.
    pub kind: AttemptKind,
    /// When it ended.
    pub at: jiff::Timestamp,
    /// How long it ran.
    pub took_seconds: f64,
    /// How it failed; `null` when it succeeded.
    pub failure: Option<Failure>,
}

/// A remark somebody made on a letter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub struct Comment {
    /// Who made it.
    pub by: String,
    /// When.
    pub at: jiff::Timestamp,
    /// What it says.
    pub text: String,
}

/// A change that somebody made to the payload of a letter. The one before it is kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub struct Edit {
    /// Who changed it.
    pub by: String,
    /// When.
    pub at: jiff::Timestamp,
    /// Why.
    pub why: String,
    /// The payload before the change, where that is text and may be seen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub original: Option<String>,
    /// The payload before the change, where that is not text and may be seen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub original_base64: Option<String>,
}

impl From<&lazaret_core::Letter> for Letter {
    fn from(l: &lazaret_core::Letter) -> Self {
        let cause = l.cause.as_ref();
        let (key, key_base64) = split(l.message.key.as_ref());
        Self {
            id: l.id.to_string(),
            queue: l.queue.to_string(),
            consumer: l.queue.consumer().to_owned(),
            stream: l.message.stream.to_string(),
            sequence: l.sequence.to_string(),
            index: l.index,
            state: l.state.into(),
            reason: cause.map(|cause| cause.reason.to_string()),
            phase: cause.map(|cause| cause.phase.into()),
            error: cause.map(LetterError::from),
            attempts: l.attempts,
            crash_attempts: l.crash_attempts,
            replay_attempts: l.replay_attempts,
            message: LetterMessage {
                id: l.message.id.to_string(),
                key,
                key_base64,
                event_type: l.message.event_type.as_deref().map(str::to_owned),
                position: l.message.position.to_string(),
            },
            enqueued_at: l.enqueued_at,
            first_failed_at: l.first_failed_at,
            last_failed_at: l.last_failed_at,
            last_touched_at: l.last_touched_at,
            due_at: l.due_at,
            expires_at: l.expires_at,
            owner: l.owner.as_deref().map(str::to_owned),
            assignee: l.assignee.as_deref().map(str::to_owned),
            poison: l.poison,
            group: cause.map(|cause| format!("{}@{}", cause.fingerprint, l.queue)),
            diagnostics: l.diagnostics.clone(),
        }
    }
}

impl LetterDetail {
    /// A letter as somebody may see it who may, or may not, see payloads and headers.
    pub fn of(l: &lazaret_core::Letter, show_payload: bool) -> Self {
        let edit = |edit: &letter::Edit| {
            let original = edit.original.as_ref().filter(|_| show_payload);
            let (original, original_base64) = split(original);
            Edit { by: edit.by.clone(), at: edit.at, why: edit.why.clone(), original, original_base64 }
        };
        let comment =
            |c: &lazaret_core::store::Comment| Comment { by: c.by.clone(), at: c.at, text: c.text.clone() };
        Self {
            letter: l.into(),
            content: MessageDetail::of(l, show_payload),
            cause: l.cause.as_ref().map(Failure::from),
            context: l.context.clone(),
            history: l.history.iter().map(Attempt::from).collect(),
            comments: l.comments.iter().map(comment).collect(),
            edits: l.edits.iter().map(edit).collect(),
        }
    }
}

impl MessageDetail {
    fn of(l: &lazaret_core::Letter, show_payload: bool) -> Self {
        let message = &l.message;
        let shown = message.payload.as_ref().filter(|_| show_payload);
        let (payload, payload_base64) = split(shown);
        let header = |(name, value): (&str, Option<&bytes::Bytes>)| {
            let (value, value_base64) = split(value);
            Header { name: name.to_owned(), value, value_base64 }
        };
        let text = |text: &Option<std::sync::Arc<str>>| text.as_deref().map(str::to_owned);
        let schema = message.schema.as_ref();
        Self {
            payload_state: match (&message.payload, show_payload) {
                (None, _) if l.payload_left_out => PayloadState::LeftOut,
                (None, true) => PayloadState::None,
                (Some(_), true) => PayloadState::Shown,
                (_, false) => PayloadState::Hidden,
            },
            payload_bytes: message.payload_len() as u64,
            payload,
            payload_base64,
            headers: if show_payload {
                message.headers.iter_nullable().map(header).collect()
            } else {
                Vec::new()
            },
            content_type: text(&message.content_type),
            schema_id: schema.and_then(|schema| text(&schema.id)),
            schema_version: schema.and_then(|schema| text(&schema.version)),
            time: message.timestamp,
            correlation: text(&message.correlation),
            operation: message.operation.map(operation_word),
            undecodable: text(&message.undecodable),
            position_token_base64: message.position.token.as_ref().map(encode),
        }
    }
}

fn encode(bytes: &bytes::Bytes) -> String {
    use base64::Engine;
    base64::engine::general_purpose::STANDARD.encode(bytes)
}

/// The word of the core's own serialisation: one place knows them.
fn operation_word(operation: lazaret_core::message::Operation) -> String {
    match serde_json::to_value(operation) {
        Ok(serde_json::Value::String(word)) => word,
        _ => String::new(),
    }
}

impl From<&letter::AttemptRecord> for Attempt {
    fn from(record: &letter::AttemptRecord) -> Self {
        Self {
            attempt: record.attempt,
            kind: record.kind.into(),
            at: record.at,
            took_seconds: record.took.as_secs_f64(),
            failure: record.failure.as_ref().map(Failure::from),
        }
    }
}

impl From<Matches> for LetterMatches {
    fn from(matches: Matches) -> Self {
        Self { letters: matches.letters, exact: matches.exact }
    }
}
