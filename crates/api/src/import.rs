//! Converts an exported letter back to a letter that a store accepts.

use std::sync::Arc;

use bytes::Bytes;
use lazaret_core::letter::{AttemptRecord, Edit as CoreEdit, Erasure as CoreErasure};
use lazaret_core::message::{Message, Position, Schema};
use lazaret_core::store::Comment as CoreComment;
use lazaret_core::{Headers, QueueName, SequenceId};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::bytes_text::join;
use crate::duration::from_seconds;
use crate::invalid_letter::InvalidLetter;
use crate::letter::{Attempt, Comment, Edit, Erasure, Header, LetterDetail, MessageDetail, PayloadState};

/// The result of an import.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub struct ImportAnswer {
    /// The number of imported letters.
    pub taken: u64,
    /// The number of letters that exist in that queue already; they are unchanged.
    pub known: u64,
    /// The first hundred lines that failed.
    pub failed: Vec<ImportFailure>,
    /// The total number of lines that failed.
    pub failures: u64,
}

/// A line that failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub struct ImportFailure {
    /// The line number, from 1.
    pub line: u64,
    /// The error.
    pub why: String,
}

impl LetterDetail {
    /// Converts to a letter for this queue, or for the queue it was exported from. The id is derived
    /// from queue and message, whatever the line contains. It differs from the id that the message's own
    /// letter would have (see [`of_import`](lazaret_core::LetterId::of_import)).
    ///
    /// # Errors
    /// When a field is invalid, or the payload is hidden or redacted.
    pub fn into_letter(self, queue: Option<&QueueName>) -> Result<lazaret_core::Letter, InvalidLetter> {
        let Self { letter, content, cause, context, history, comments, edits, erased } = self;
        if content.payload_state == PayloadState::Hidden {
            let why = "the payload is hidden: export with a token that has the scope payload";
            return Err(InvalidLetter::of("content.payload-state", why));
        }
        if !content.redacted.is_empty() {
            let why = format!("{} redacted: export with the scope reveal", content.redacted.join(", "));
            return Err(InvalidLetter::of("content.redacted", why));
        }
        let queue = queue.cloned().unwrap_or_else(|| QueueName::from(letter.queue.as_str()));
        if queue.consumer().is_empty() || queue.component().is_empty() || !queue.as_str().contains('/') {
            return Err(InvalidLetter::of(
                "queue",
                format!("{:?} is not consumer/component", queue.as_str()),
            ));
        }
        let payload_left_out = content.payload_state == PayloadState::LeftOut;
        let mut position = parse_position(&letter.message.position)?;
        position.token = token(content.position_token_base64.clone())?;
        let mut message = Message::new(letter.message.id, letter.stream, position);
        if message.id.as_str().is_empty() {
            return Err(InvalidLetter::of("message.id", "empty"));
        }
        message.key =
            join(letter.message.key, letter.message.key_base64, "message.key-base64").map_err(invalid)?;
        message.event_type = letter.message.event_type.map(Arc::from);
        fill(&mut message, content)?;
        let sequence = SequenceId::new(letter.sequence);
        let mut core = lazaret_core::Letter::new(queue, sequence, message.into(), letter.enqueued_at);
        core.index = letter.index;
        core.state = letter.state.into();
        core.id = lazaret_core::LetterId::of_import(&core.queue, &core.message.id);
        core.cause = cause.map(TryInto::try_into).transpose()?;
        core.attempts = letter.attempts;
        core.crash_attempts = letter.crash_attempts;
        core.replay_attempts = letter.replay_attempts;
        core.poison = letter.poison;
        core.first_failed_at = letter.first_failed_at;
        core.last_failed_at = letter.last_failed_at;
        core.last_touched_at = letter.last_touched_at;
        core.due_at = letter.due_at;
        core.expires_at = letter.expires_at;
        core.diagnostics = letter.diagnostics;
        core.context = context;
        core.owner = letter.owner.map(Arc::from);
        core.assignee = letter.assignee.map(Arc::from);
        core.comments = comments.into_iter().map(CoreComment::from).collect();
        core.payload_left_out = payload_left_out;
        core.edits = edits.into_iter().map(CoreEdit::try_from).collect::<Result<_, _>>()?;
        for attempt in history {
            // `record` enforces the limit on attempts (I7).
            core.record(attempt.try_into()?);
        }
        // Only closed letters are erased. Content that the line still holds is dropped: no later erasure
        // would find it.
        if let Some(erased) = erased.filter(|_| !core.state.is_open()) {
            core.erase(erased.into());
        }
        Ok(core)
    }
}

fn invalid(error: crate::bytes_text::InvalidBase64) -> InvalidLetter {
    InvalidLetter { field: error.field, why: error.why }
}

fn token(base64: Option<String>) -> Result<Option<Bytes>, InvalidLetter> {
    join(None, base64, "content.position-token-base64").map_err(invalid)
}

fn parse_position(text: &str) -> Result<Position, InvalidLetter> {
    text.parse()
        .map_err(|_| InvalidLetter::of("message.position", format!("{text:?} is not partition:offset")))
}

fn fill(message: &mut Message, content: MessageDetail) -> Result<(), InvalidLetter> {
    message.payload =
        join(content.payload, content.payload_base64, "content.payload-base64").map_err(invalid)?;
    message.headers = headers(content.headers)?;
    message.content_type = content.content_type.map(Arc::from);
    if content.schema_id.is_some() || content.schema_version.is_some() {
        let (id, version) = (content.schema_id.map(Arc::from), content.schema_version.map(Arc::from));
        message.schema = Some(Box::new(Schema { id, version }));
    }
    message.timestamp = content.time;
    message.correlation = content.correlation.map(Arc::from);
    message.undecodable = content.undecodable.map(Arc::from);
    let operation = content.operation.map(|name| serde_json::from_value(serde_json::Value::String(name)));
    message.operation =
        operation.transpose().map_err(|error| InvalidLetter::of("content.operation", error))?;
    Ok(())
}

fn headers(pairs: Vec<Header>) -> Result<Headers, InvalidLetter> {
    let mut headers = Headers::new();
    for Header { name, value, value_base64 } in pairs {
        match join(value, value_base64, "content.headers.value-base64").map_err(invalid)? {
            Some(value) => headers.push(name, value),
            None => headers.push_null(name),
        }
    }
    Ok(headers)
}

impl From<Comment> for CoreComment {
    fn from(comment: Comment) -> Self {
        Self { by: comment.by, at: comment.at, text: comment.text }
    }
}

impl From<Erasure> for CoreErasure {
    fn from(erased: Erasure) -> Self {
        Self { by: erased.by, at: erased.at, why: erased.why }
    }
}

impl TryFrom<Edit> for CoreEdit {
    type Error = InvalidLetter;

    fn try_from(edit: Edit) -> Result<Self, InvalidLetter> {
        let original = join(edit.original, edit.original_base64, "edits.original-base64").map_err(invalid)?;
        Ok(Self { by: edit.by, at: edit.at, why: edit.why, original })
    }
}

impl TryFrom<Attempt> for AttemptRecord {
    type Error = InvalidLetter;

    fn try_from(attempt: Attempt) -> Result<Self, InvalidLetter> {
        let took = from_seconds(attempt.took_seconds);
        Ok(Self {
            attempt: attempt.attempt,
            kind: attempt.kind.into(),
            at: attempt.at,
            took: took.map_err(|error| InvalidLetter::of("history.took-seconds", error))?,
            failure: attempt.failure.map(TryInto::try_into).transpose()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use lazaret_core::failure::CauseLink;
    use lazaret_core::letter::AttemptKind;
    use lazaret_core::message::Operation;
    use lazaret_core::{Failure, Letter, LetterState, Phase, Reason, Timestamp};

    use super::*;

    /// Returns a letter with a value in every field.
    fn full() -> Letter {
        let at = |second| Timestamp::new(second, 123_456_789).unwrap();
        let mut message = Message::new(
            "evt/1 ü",
            "orders",
            Position { token: Some(Bytes::from_static(b"\xff")), ..Position::new(3, 41) },
        )
        .with_key(&b"\xffk"[..])
        .with_payload(&b"{\"total\": 1.10}"[..])
        .with_type("OrderPlaced")
        .with_header("a", "1")
        .with_header("a", &b"\xfe"[..]);
        message.headers.push_null("n");
        message.operation = Some(Operation::DropDatabase);
        message.content_type = Some("application/json".into());
        message.schema = Some(Box::new(Schema { id: Some("7".into()), version: None }));
        message.timestamp = Some(at(1));
        message.correlation = Some("corr".into());
        message.undecodable = Some("odd".into());
        let mut failure = Failure::new(Reason::TIMEOUT, "DbError", "no answer").in_phase(Phase::ExternalCall);
        failure.chain.push(CauseLink { error_type: None, message: "socket".into() });
        failure = failure.with_backtrace("0: a\n1: b");
        failure.retry_after = Some(Duration::from_millis(1500));
        failure.status = Some(503);
        failure.panicked = true;
        let mut letter =
            Letter::new(QueueName::of("shop", "mail"), "order/7 ü".into(), message.into(), at(2));
        letter.index = 9;
        letter.state = LetterState::Dead;
        letter.cause = Some(failure.clone());
        (letter.attempts, letter.crash_attempts, letter.replay_attempts, letter.poison) = (3, 1, 2, true);
        (letter.first_failed_at, letter.last_failed_at) = (Some(at(3)), Some(at(4)));
        (letter.due_at, letter.expires_at, letter.last_touched_at) = (Some(at(5)), Some(at(6)), at(7));
        letter.diagnostics.insert("d".into(), "1".into());
        letter.context.insert("c".into(), "2".into());
        (letter.owner, letter.assignee) = (Some("team".into()), Some("ada".into()));
        letter.comments.push(CoreComment { by: "ada".into(), at: at(8), text: "hm".into() });
        letter.edits.push(CoreEdit {
            by: "ada".into(),
            at: at(9),
            why: "typo".into(),
            original: Some(Bytes::from_static(b"\x80")),
        });
        letter.edits.push(CoreEdit { by: "ada".into(), at: at(9), why: "typo".into(), original: None });
        letter.record(AttemptRecord {
            attempt: 1,
            kind: AttemptKind::Live,
            at: at(10),
            took: Duration::from_nanos(1_000_000_007),
            failure: Some(failure),
        });
        letter
    }

    /// Returns the letter as it is after an import.
    fn imported(letter: Letter) -> Letter {
        let id = lazaret_core::LetterId::of_import(&letter.queue, &letter.message.id);
        Letter { id, ..letter }
    }

    fn through_json(detail: &LetterDetail) -> LetterDetail {
        serde_json::from_str(&serde_json::to_string(detail).unwrap()).unwrap()
    }

    #[test]
    fn an_exported_letter_round_trips() {
        // I5
        let letter = full();
        let back = through_json(&LetterDetail::of(&letter, true)).into_letter(None).unwrap();
        assert_eq!(back, imported(letter));
    }

    #[test]
    fn a_tombstone_and_a_payload_that_was_not_kept_stay_distinct() {
        let plain = Letter::new(
            QueueName::of("a", "b"),
            "k".into(),
            Message::new("m", "s", Position::new(0, 0)).into(),
            Timestamp::UNIX_EPOCH,
        );
        let left_out = Letter { payload_left_out: true, ..plain.clone() };
        let empty = Letter {
            message: plain.message.as_ref().clone().with_payload("").with_key("").into(),
            ..plain.clone()
        };
        // A custom sequencing policy may return an empty sequence.
        let nameless = Letter { sequence: "".into(), ..plain.clone() };
        for letter in [plain, left_out, empty, nameless] {
            let back = through_json(&LetterDetail::of(&letter, true)).into_letter(None).unwrap();
            assert_eq!(back, imported(letter));
        }
    }

    #[test]
    fn a_letter_that_is_marked_erased_keeps_no_content() {
        let erasure = Erasure { by: "olga".into(), at: Timestamp::UNIX_EPOCH, why: "request 7".into() };
        let marked = |letter: Letter| LetterDetail {
            erased: Some(erasure.clone()),
            ..LetterDetail::of(&letter, true)
        };
        let evicted = Letter { state: LetterState::Evicted, ..full() };
        let back = marked(evicted.clone()).into_letter(None).unwrap();
        let mut erased = imported(evicted);
        erased.erase(erasure.clone().into());
        assert_eq!(back, erased);
        assert!(
            back.message.payload.is_none() && back.message.headers.is_empty() && back.comments.is_empty()
        );
        let again = through_json(&LetterDetail::of(&back, true)).into_letter(None).unwrap();
        assert_eq!(again, back);
        // An open letter cannot have been erased.
        let open = marked(full()).into_letter(None).unwrap();
        assert_eq!(open, imported(full()));
    }

    #[test]
    fn without_the_payload_scope_payload_headers_and_originals_are_hidden() {
        let text = serde_json::to_string(&LetterDetail::of(&full(), false)).unwrap();
        for hidden in ["1.10", "original", "\"headers\":[{"] {
            assert!(!text.contains(hidden), "{hidden} in {text}");
        }
        let detail = through_json(&LetterDetail::of(&full(), false));
        assert_eq!((detail.content.payload_state, detail.content.payload_bytes), (PayloadState::Hidden, 15));
        assert_eq!(detail.into_letter(None).unwrap_err().field, "content.payload-state");
    }

    #[test]
    fn in_another_queue_a_letter_has_another_id() {
        // I8
        let queue = QueueName::of("other", "mail");
        let moved = LetterDetail::of(&full(), true).into_letter(Some(&queue)).unwrap();
        assert_eq!(moved.id, lazaret_core::LetterId::of_import(&queue, &full().message.id));
        assert_ne!(moved.id, imported(full()).id);
    }

    #[test]
    fn an_invalid_field_is_named() {
        type Spoil = fn(&mut LetterDetail);
        let spoilt: [(&str, Spoil); 7] = [
            ("queue", |d| d.letter.queue = "alone".into()),
            ("message.id", |d| d.letter.message.id.clear()),
            ("message.position", |d| d.letter.message.position = "1-2".into()),
            ("content.payload-base64", |d| d.content.payload_base64 = Some("!".into())),
            ("content.operation", |d| d.content.operation = Some("explode".into())),
            ("reason", |d| d.cause.as_mut().unwrap().reason = "no code".into()),
            ("history.took-seconds", |d| d.history[0].took_seconds = -1.0),
        ];
        for (field, spoil) in spoilt {
            let mut detail = LetterDetail::of(&full(), true);
            spoil(&mut detail);
            assert_eq!(detail.into_letter(None).unwrap_err().field, field);
        }
    }
}
