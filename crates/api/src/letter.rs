//! Letters: a summary for lists, and the full letter.

use std::borrow::Cow;
use std::collections::BTreeMap;

use lazaret_core::failure::MESSAGE_LIMIT;
use lazaret_core::letter;
use lazaret_core::redaction::Redaction;
use lazaret_core::store::{Matches, PayloadDigest};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::bytes_text::split;
use crate::enums::{AttemptKind, Phase, State};
use crate::failure::{Failure, LetterError};

/// The summary of a letter, as in lists.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub struct Letter {
    /// The id.
    pub id: String,
    /// The queue: `consumer/component`.
    pub queue: String,
    /// The consumer part of the queue.
    pub consumer: String,
    /// The stream of the message.
    pub stream: String,
    /// The sequence.
    pub sequence: String,
    /// The sequence that the letter left when it died, because the consumer has `on-dead: continue`. Later messages did not wait
    /// for it, so a replay is out of order. Absent if the letter still blocks its sequence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub left_sequence: Option<String>,
    /// The index in the sequence: increasing, with gaps.
    pub index: u64,
    /// The state.
    pub state: State,
    /// The reason code of the cause; `null` for a waiting letter.
    pub reason: Option<String>,
    /// The phase in which the attempt failed.
    pub phase: Option<Phase>,
    /// The error of the cause.
    pub error: Option<LetterError>,
    /// Automatic attempts so far.
    pub attempts: u32,
    /// Attempts that ended with a process crash.
    pub crash_attempts: u32,
    /// Replay attempts.
    pub replay_attempts: u32,
    /// The summary of the message.
    pub message: LetterMessage,
    /// When it was enqueued.
    pub enqueued_at: jiff::Timestamp,
    /// When it first failed.
    pub first_failed_at: Option<jiff::Timestamp>,
    /// When it last failed.
    pub last_failed_at: Option<jiff::Timestamp>,
    /// When it last changed.
    pub last_touched_at: jiff::Timestamp,
    /// When the next retry is due.
    pub due_at: Option<jiff::Timestamp>,
    /// When it expires; `null` for never.
    pub expires_at: Option<jiff::Timestamp>,
    /// The team that owns it.
    pub owner: Option<String>,
    /// The assignee.
    pub assignee: Option<String>,
    /// Whether the message is poison: it failed the same way too often.
    pub poison: bool,
    /// The group: fingerprint and queue.
    pub group: Option<String>,
    /// Diagnostics from the enqueue policy and the handler.
    pub diagnostics: BTreeMap<String, String>,
}

/// The summary of a letter's message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub struct LetterMessage {
    /// The id.
    pub id: String,
    /// The key, if it is text. `null` without a key, `""` for an empty one.
    pub key: Option<String>,
    /// The key as base64, if it is not text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key_base64: Option<String>,
    /// The event type.
    #[serde(rename = "type")]
    pub event_type: Option<String>,
    /// The position in the stream: `partition:offset`.
    pub position: String,
}

/// A page of letters, the most recently enqueued first.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub struct LetterPage {
    /// The letters. A page may be short or empty without being the last: each scans a bounded number of letters.
    pub letters: Vec<Letter>,
    /// The `after` parameter of the next page; `null` on the last one.
    pub next: Option<String>,
}

/// The number of letters that match a query.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub struct LetterMatches {
    /// The number found.
    pub letters: u64,
    /// Whether the number is exact; otherwise it is a lower bound.
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
    /// The number of open letters; 0 when the sequence is not open.
    pub size: u64,
    /// The letters of this page, in order.
    pub letters: Vec<Letter>,
    /// The `after` parameter of the next page; `null` on the last one.
    pub next: Option<String>,
}

/// The full letter. `export` writes one per line, `import` reads them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub struct LetterDetail {
    /// The summary.
    #[serde(flatten)]
    pub letter: Letter,
    /// The rest of the message.
    pub content: MessageDetail,
    /// The full cause; `null` for a waiting letter.
    pub cause: Option<Failure>,
    /// The context of the failure: resume token, tracking data.
    pub context: BTreeMap<String, String>,
    /// The attempts, oldest first.
    pub history: Vec<Attempt>,
    /// The comments, oldest first.
    pub comments: Vec<Comment>,
    /// The edits, oldest first.
    pub edits: Vec<Edit>,
    /// Who erased the content, when and why; absent if it is not erased.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub erased: Option<Erasure>,
}

/// The record that the content of a letter was erased.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub struct Erasure {
    /// Who erased it.
    pub by: String,
    /// When it was erased.
    pub at: jiff::Timestamp,
    /// The reason.
    pub why: String,
}

/// The parts of a message that lists leave out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub struct MessageDetail {
    /// Whether the payload is included.
    pub payload_state: PayloadState,
    /// The size of the payload, in bytes.
    pub payload_bytes: u64,
    /// The SHA-256 of the payload, or `none` without one; absent if the caller may not see it. An edit can name it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub payload_digest: Option<String>,
    /// The unchanged payload, if it is text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub payload: Option<String>,
    /// The payload as base64, if it is not text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub payload_base64: Option<String>,
    /// The headers, in order. Hidden together with the payload.
    pub headers: Vec<Header>,
    /// The redacted parts of the letter, in the notation of queries: `header.authorization`, `payload./card/number`, or `payload` for the
    /// whole payload; `error`, `diagnostics.NAME`, `context.NAME` and `comments`. Size, digest and text describe the redacted payload.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub redacted: Vec<String>,
    /// The media type of the payload.
    pub content_type: Option<String>,
    /// The schema id in the registry.
    pub schema_id: Option<String>,
    /// The version of the event type.
    pub schema_version: Option<String>,
    /// The timestamp of the message.
    pub time: Option<jiff::Timestamp>,
    /// The correlation id.
    pub correlation: Option<String>,
    /// The change operation: `insert`, `update`, …
    pub operation: Option<String>,
    /// The decode error.
    pub undecodable: Option<String>,
    /// The resume token of the source, as base64.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub position_token_base64: Option<String>,
}

/// Whether a payload is included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum PayloadState {
    /// The payload is included.
    Shown,
    /// Payload and headers are hidden: the caller lacks the scope `payload`.
    Hidden,
    /// There is no payload: a tombstone.
    None,
    /// The payload is not there: it was not stored (`include-payload: false`), was erased, or is damaged.
    LeftOut,
}

/// A header. Without text and base64 its value is null, which is not empty.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub struct Header {
    /// The name. Names may repeat.
    pub name: String,
    /// The value, if it is text.
    pub value: Option<String>,
    /// The value as base64, if it is not text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value_base64: Option<String>,
}

/// One attempt in the history of a letter.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub struct Attempt {
    /// The attempt number, from 1.
    pub attempt: u32,
    /// The origin.
    pub kind: AttemptKind,
    /// When it ended.
    pub at: jiff::Timestamp,
    /// The duration.
    pub took_seconds: f64,
    /// The failure; `null` on success.
    pub failure: Option<Failure>,
}

/// A comment on a letter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub struct Comment {
    /// The author.
    pub by: String,
    /// The time.
    pub at: jiff::Timestamp,
    /// The text.
    pub text: String,
}

/// An edit of a letter's payload. The original is kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub struct Edit {
    /// The editor.
    pub by: String,
    /// The time.
    pub at: jiff::Timestamp,
    /// The reason.
    pub why: String,
    /// The size of the previous payload, in bytes, if there was one and the caller may see it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub original_bytes: Option<u64>,
    /// The previous payload, if it is text and the caller may see it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub original: Option<String>,
    /// The previous payload as base64, if it is not text and the caller may see it.
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
            left_sequence: l.sequence.origin().map(|origin| origin.to_string()),
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

impl Letter {
    /// Converts a letter of the core, with these rules applied to its texts.
    pub fn redacted(letter: &lazaret_core::Letter, rules: &Redaction) -> Self {
        let (mut shown, texts) = (Self::from(letter), rules.texts());
        if let Some(error) = &mut shown.error {
            texts.apply(&mut error.error_type);
            texts.apply_to_cut(&mut error.message, MESSAGE_LIMIT);
        }
        shown.diagnostics.values_mut().for_each(|text| {
            texts.apply(text);
        });
        shown
    }

    /// Returns the sequence for display. A letter that left its sequence shows the one it left, marked.
    pub fn shown_sequence(&self) -> Cow<'_, str> {
        match &self.left_sequence {
            Some(left) => Cow::Owned(format!("{left} (left)")),
            None => Cow::Borrowed(&self.sequence),
        }
    }
}

impl LetterDetail {
    /// Converts a letter of the core, with or without payload and headers.
    pub fn of(l: &lazaret_core::Letter, show_payload: bool) -> Self {
        Self::cut(l, show_payload, usize::MAX)
    }

    /// Converts a letter of the core with these rules applied, and otherwise like [`cut`](Self::cut).
    pub fn redacted(
        mut letter: lazaret_core::Letter,
        rules: &Redaction,
        show_payload: bool,
        payload_bytes: usize,
    ) -> Self {
        let redacted = rules.apply(&mut letter);
        let mut detail = Self::cut(&letter, show_payload, payload_bytes);
        if show_payload {
            detail.content.redacted = redacted;
        }
        detail
    }

    /// Converts a letter of the core. The payload, and each payload that an edit replaced, is cut to
    /// this many bytes. Text is cut between characters. A payload whose first part is text is shown as
    /// text, whatever follows.
    pub fn cut(l: &lazaret_core::Letter, show_payload: bool, payload_bytes: usize) -> Self {
        let edit = |edit: &letter::Edit| {
            let original = edit.original.as_ref().filter(|_| show_payload);
            let original_bytes = original.map(|original| original.len() as u64);
            let (original, original_base64) =
                split(original.map(|bytes| start_of(bytes, payload_bytes)).as_ref());
            let (by, at, why) = (edit.by.clone(), edit.at, edit.why.clone());
            Edit { by, at, why, original_bytes, original, original_base64 }
        };
        let comment =
            |c: &lazaret_core::store::Comment| Comment { by: c.by.clone(), at: c.at, text: c.text.clone() };
        let erasure = |erased: &letter::Erasure| Erasure {
            by: erased.by.clone(),
            at: erased.at,
            why: erased.why.clone(),
        };
        Self {
            letter: l.into(),
            content: MessageDetail::of(l, show_payload, payload_bytes),
            cause: l.cause.as_ref().map(Failure::from),
            context: l.context.clone(),
            history: l.history.iter().map(Attempt::from).collect(),
            comments: l.comments.iter().map(comment).collect(),
            edits: l.edits.iter().map(edit).collect(),
            erased: l.erased.as_deref().map(erasure),
        }
    }
}

impl MessageDetail {
    fn of(l: &lazaret_core::Letter, show_payload: bool, payload_bytes: usize) -> Self {
        let message = &l.message;
        let shown = message.payload.as_ref().filter(|_| show_payload);
        let (payload, payload_base64) = split(shown.map(|bytes| start_of(bytes, payload_bytes)).as_ref());
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
            payload_digest: show_payload.then(|| PayloadDigest::of(message.payload.as_deref()).to_string()),
            payload,
            payload_base64,
            headers: if show_payload {
                message.headers.iter_nullable().map(header).collect()
            } else {
                Vec::new()
            },
            redacted: Vec::new(),
            content_type: text(&message.content_type),
            schema_id: schema.and_then(|schema| text(&schema.id)),
            schema_version: schema.and_then(|schema| text(&schema.version)),
            time: message.timestamp,
            correlation: text(&message.correlation),
            operation: message.operation.map(operation_name),
            undecodable: text(&message.undecodable),
            position_token_base64: message.position.token.as_ref().map(encode),
        }
    }
}

/// Returns the first bytes of a payload, without an incomplete character at their end.
fn start_of(bytes: &bytes::Bytes, most: usize) -> bytes::Bytes {
    if bytes.len() <= most {
        return bytes.clone();
    }
    let start = &bytes[..most];
    // An error without a length is a character that was cut.
    let cut = std::str::from_utf8(start).err().filter(|error| error.error_len().is_none());
    bytes.slice(..cut.map_or(most, |error| error.valid_up_to()))
}

fn encode(bytes: &bytes::Bytes) -> String {
    use base64::Engine;
    base64::engine::general_purpose::STANDARD.encode(bytes)
}

/// Returns the name from the core's serialization, which defines the names.
fn operation_name(operation: lazaret_core::message::Operation) -> String {
    match serde_json::to_value(operation) {
        Ok(serde_json::Value::String(name)) => name,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_cut_between_characters_and_bytes_anywhere() {
        let cut = |text: &'static [u8], most| start_of(&bytes::Bytes::from_static(text), most);
        assert_eq!(&cut("aé€".as_bytes(), 2)[..], b"a");
        assert_eq!(&cut("aé€".as_bytes(), 3)[..], "aé".as_bytes());
        assert_eq!(&cut(b"a\xff\xff", 2)[..], b"a\xff");
        assert_eq!(&cut(b"ab", 2)[..], b"ab");
        assert_eq!(&cut("é".as_bytes(), 0)[..], b"");
    }
}
