//! The rows of letters: what is read, and the body of what has no column of its own.

use std::sync::Arc;

use bytes::Bytes;
use jiff::Timestamp;
use lazaret_core::letter::{AttemptRecord, Diagnostics, Erasure};
use lazaret_core::message::{Operation, Position, Schema};
use lazaret_core::store::Comment;
use lazaret_core::store::rules::LetterView;
use lazaret_core::{Failure, Headers, Letter, Message, MessageId, QueueName, SequenceId, StreamName};
use serde::{Deserialize, Serialize};
use tokio_postgres::Row;

use crate::error::Work;
use crate::values::{Columns, decode_headers, from_json, letter_id, partition_number, small, state, to_json};

/// The version of the body, in each.
const BODY_VERSION: u32 = 1;

/// The fields of a letter and its message without a column of their own.
#[derive(Default, Serialize, Deserialize)]
#[serde(default)]
struct Body {
    v: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    cause: Option<Failure>,
    #[serde(skip_serializing_if = "Diagnostics::is_empty")]
    diagnostics: Diagnostics,
    #[serde(skip_serializing_if = "Diagnostics::is_empty")]
    context: Diagnostics,
    #[serde(skip_serializing_if = "Option::is_none")]
    owner: Option<Arc<str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    assignee: Option<Arc<str>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    comments: Vec<Comment>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    history: Vec<AttemptRecord>,
    #[serde(skip_serializing_if = "Option::is_none")]
    token: Option<Vec<u8>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    operation: Option<Operation>,
    #[serde(skip_serializing_if = "Option::is_none")]
    content_type: Option<Arc<str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    schema: Option<Box<Schema>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    timestamp: Option<Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    correlation: Option<Arc<str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    undecodable: Option<Arc<str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    erased: Option<Box<Erasure>>,
}

/// The body of a letter, as JSON.
pub(crate) fn body_of(letter: &Letter) -> Work<String> {
    let message = &letter.message;
    let body = Body {
        v: BODY_VERSION,
        cause: letter.cause.clone(),
        diagnostics: letter.diagnostics.clone(),
        context: letter.context.clone(),
        owner: letter.owner.clone(),
        assignee: letter.assignee.clone(),
        comments: letter.comments.clone(),
        history: letter.history.clone(),
        token: message.position.token.as_ref().map(|token| token.to_vec()),
        operation: message.operation,
        content_type: message.content_type.clone(),
        schema: message.schema.clone(),
        timestamp: message.timestamp,
        correlation: message.correlation.clone(),
        undecodable: message.undecodable.clone(),
        erased: letter.erased.clone(),
    };
    to_json(&body, "a letter")
}

/// The body of a purged letter.
pub(crate) const NO_BODY: &str = "{}";

/// The columns of a letter, in the order of [`HeldLetter::read`]. Tables have the aliases `l` and `p`.
macro_rules! letter_columns {
    () => {
        "l.lid, l.qid, l.sid, l.closed_at, l.edits, l.id, l.idx, l.state, l.attempts, l.crash_attempts, \
         l.replay_attempts, l.poison, l.enqueued_at, l.touched_at, l.due_at, l.expires_at, l.first_failed_at, \
         l.last_failed_at, l.partition, l.position, l.stream, l.sequence, l.message, l.event_type, \
         l.payload_left_out, l.body::text"
    };
}

/// A query for [`HeldLetter::read`]. A `light` letter has no key, headers and payload.
macro_rules! select_letter {
    (light $rest:literal) => {
        concat!(
            "SELECT ",
            crate::letter_row::letter_columns!(),
            ", NULL::bytea, NULL::bytea, NULL::bytea ",
            $rest
        )
    };
    ($rest:literal) => {
        concat!("SELECT ", crate::letter_row::letter_columns!(), ", p.key, p.headers, p.payload ", $rest)
    };
}
pub(crate) use {letter_columns, select_letter};

/// A letter with its row. Its edits are not loaded; it may lack key, headers and payload.
#[derive(Clone, Debug)]
pub(crate) struct HeldLetter {
    pub(crate) lid: i64,
    pub(crate) qid: i64,
    /// The row of its sequence, if it is open.
    pub(crate) sid: Option<i64>,
    pub(crate) closed_at: Option<Timestamp>,
    /// The number of its edits.
    pub(crate) edits: i64,
    pub(crate) letter: Letter,
}

impl HeldLetter {
    pub(crate) fn read(row: &Row, queue: &QueueName) -> Work<Self> {
        let mut c = Columns::of(row);
        let (lid, qid, sid, closed_at, edits) = (c.get()?, c.get()?, c.get()?, c.moment()?, c.get()?);
        let (id, index, state) = (letter_id(c.get()?)?, c.unsigned()?, state(c.get()?)?);
        let (attempts, crash_attempts, replay_attempts) =
            (small(c.get()?)?, small(c.get()?)?, small(c.get()?)?);
        let (poison, enqueued_at, last_touched_at) = (c.get()?, c.time()?, c.time()?);
        let (due_at, expires_at) = (c.moment()?, c.moment()?);
        let (first_failed_at, last_failed_at) = (c.moment()?, c.moment()?);
        let (partition, offset) = (partition_number(c.get()?)?, c.unsigned()?);
        let (stream, sequence) = (StreamName::new(c.arc_text()?), SequenceId::new(c.arc_text()?));
        let (message, event_type) = (MessageId::new(c.arc_text()?), c.optional_text()?);
        let payload_left_out = c.get()?;
        let body: Body = from_json(&c.get::<String>()?, "the body of a letter")?;
        let (key, headers, payload) = (c.bytes()?, c.bytes()?, c.bytes()?);
        let message = Message {
            id: message,
            stream,
            position: Position { token: body.token.map(Bytes::from), ..Position::at(partition, offset) },
            key,
            event_type: event_type.map(Into::into),
            operation: body.operation,
            headers: headers.map_or_else(|| Ok(Headers::new()), decode_headers)?,
            payload,
            content_type: body.content_type,
            schema: body.schema,
            timestamp: body.timestamp,
            correlation: body.correlation,
            undecodable: body.undecodable,
            hop: None,
        };
        let letter = Letter {
            id,
            queue: queue.clone(),
            sequence,
            index,
            state,
            message: message.into(),
            cause: body.cause,
            attempts,
            crash_attempts,
            replay_attempts,
            poison,
            first_failed_at,
            last_failed_at,
            enqueued_at,
            last_touched_at,
            due_at,
            expires_at,
            diagnostics: body.diagnostics,
            context: body.context,
            owner: body.owner,
            assignee: body.assignee,
            comments: body.comments,
            payload_left_out,
            history: body.history,
            edits: Vec::new(),
            erased: body.erased,
        };
        Ok(Self { lid, qid, sid, closed_at, edits, letter })
    }

    /// The letter as the rules see it.
    pub(crate) fn view(&self) -> LetterView {
        LetterView::of(&self.letter)
    }

    /// `true` if only its id and state remain.
    pub(crate) const fn is_purged(&self) -> bool {
        self.sid.is_none() && self.closed_at.is_none()
    }

    /// The size of its large parts, in bytes.
    pub(crate) fn byte_size(&self) -> usize {
        let message = &self.letter.message;
        let history = self.letter.history.len() * 256;
        message.payload.as_ref().map_or(0, Bytes::len) + message.headers.byte_size() + history + 512
    }
}
