//! Encodings of values in the tables: times, numbers, states, headers, and the body of a letter.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use jiff::Timestamp;
use lazaret_core::letter::{AttemptRecord, Diagnostics, Edit, Erasure, append_entry};
use lazaret_core::message::{Operation, PartitionNumber, Position, Schema};
use lazaret_core::store::{Comment, ErrorKind, PauseScope, StoreError};
use lazaret_core::{Failure, Headers, Letter, LetterId, LetterState, Message, QueueName, SequenceId};
use rusqlite::{Connection, Row};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use uuid::Uuid;

use crate::error::{Fault, Work};
use crate::letters::edits;

/// The version of the body encoding, the first byte of each `body`.
const BODY_VERSION: u8 = 1;

/// A time as stored: nanoseconds since 1970, saturating outside of the years 1677 to 2262.
pub(crate) fn nanos(time: Timestamp) -> i64 {
    let end = if time < Timestamp::UNIX_EPOCH { i64::MIN } else { i64::MAX };
    i64::try_from(time.as_nanosecond()).unwrap_or(end)
}

/// A stored time.
pub(crate) fn time(nanos: i64) -> Timestamp {
    match nanos {
        i64::MIN => Timestamp::MIN,
        i64::MAX => Timestamp::MAX,
        _ => Timestamp::from_nanosecond(nanos.into()).unwrap_or(Timestamp::MAX),
    }
}

/// Adds a duration to a time, saturating at the maximum.
pub(crate) fn later(now: i64, by: Duration) -> i64 {
    now.saturating_add(i64::try_from(by.as_nanos()).unwrap_or(i64::MAX))
}

/// A number for comparison with stored ones, saturating at their maximum.
pub(crate) fn bound(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// A number to store. SQLite's integers end at 2^63.
pub(crate) fn number(number: u64, what: &str, operation: &'static str) -> Work<i64> {
    i64::try_from(number).map_err(|_| {
        let context = format!("{what} {number} exceeds the maximum of this store");
        Fault::Refused(StoreError::not_done(ErrorKind::Invalid, operation, context))
    })
}

/// A stored number that is never negative.
pub(crate) fn unsigned(number: i64) -> Work<u64> {
    u64::try_from(number).map_err(|_| Fault::Corrupt(format!("unexpected negative number {number}")))
}

/// The partition of a stored number, in its incarnation.
fn partition_number(stored: i64) -> Work<PartitionNumber> {
    PartitionNumber::from_stored(stored)
        .ok_or_else(|| Fault::Corrupt(format!("unexpected partition {stored}")))
}

/// The first row of a query, converted by a function that may find it corrupt.
pub(crate) fn first<T>(
    mut rows: rusqlite::Rows<'_>,
    read: impl FnOnce(&Row<'_>) -> Work<T>,
) -> Work<Option<T>> {
    rows.next()?.map(read).transpose()
}

/// The stored form of a pause scope.
pub(crate) fn scope_text(scope: &PauseScope) -> Work<String> {
    serde_json::to_string(scope)
        .map_err(|error| Fault::Corrupt(format!("failed to encode a pause scope: {error}")))
}

/// The stored form of the pause scope of one sequence.
pub(crate) fn sequence_scope(sequence: &SequenceId) -> Work<String> {
    scope_text(&PauseScope::Sequence(sequence.clone()))
}

/// The row limit of a query.
pub(crate) fn limit(limit: usize) -> i64 {
    i64::try_from(limit).unwrap_or(i64::MAX)
}

/// A stored state, by its index in [`LetterState::ALL`].
pub(crate) fn state(number: i64) -> Work<LetterState> {
    let state = usize::try_from(number).ok().and_then(|place| LetterState::ALL.get(place));
    state.copied().ok_or_else(|| Fault::Corrupt(format!("unknown letter state {number}")))
}

/// The stored form of a letter id.
pub(crate) fn id_bytes(id: LetterId) -> [u8; 16] {
    id.as_uuid().into_bytes()
}

pub(crate) fn letter_id(bytes: &[u8]) -> Work<LetterId> {
    let uuid =
        Uuid::from_slice(bytes).map_err(|error| Fault::Corrupt(format!("invalid letter id: {error}")))?;
    let mut text = Uuid::encode_buffer();
    let text = uuid.hyphenated().encode_lower(&mut text);
    text.parse().map_err(|error| Fault::Corrupt(format!("invalid letter id: {error}")))
}

/// The length that marks a null value. No value is that long.
const NULL_LENGTH: u64 = u64::MAX;

/// Encodes headers: for each its name and its value, each with a length prefix. `None` without headers.
pub(crate) fn encode_headers(headers: &Headers) -> Option<Vec<u8>> {
    if headers.is_empty() {
        return None;
    }
    let mut bytes = Vec::with_capacity(headers.byte_size() + 16 * headers.len());
    for (name, value) in headers.iter_nullable() {
        for part in [Some(name.as_bytes()), value.map(AsRef::as_ref)] {
            let length = part.map_or(NULL_LENGTH, |part| part.len() as u64);
            bytes.extend_from_slice(&length.to_le_bytes());
            bytes.extend_from_slice(part.unwrap_or_default());
        }
    }
    Some(bytes)
}

/// Decodes stored headers.
pub(crate) fn decode_headers(mut bytes: &[u8]) -> Work<Headers> {
    let corrupt = || Fault::Corrupt("truncated headers of a letter".into());
    // `None` is null.
    let part = |bytes: &mut &[u8]| -> Work<Option<Bytes>> {
        let (length, rest) = bytes.split_first_chunk::<8>().ok_or_else(corrupt)?;
        let length = u64::from_le_bytes(*length);
        if length == NULL_LENGTH {
            *bytes = rest;
            return Ok(None);
        }
        let length = usize::try_from(length).map_err(|_| corrupt())?;
        let (part, rest) = rest.split_at_checked(length).ok_or_else(corrupt)?;
        *bytes = rest;
        Ok(Some(Bytes::copy_from_slice(part)))
    };
    let mut headers = Headers::new();
    while !bytes.is_empty() {
        let name = part(&mut bytes)?.ok_or_else(corrupt)?;
        let name = std::str::from_utf8(&name)
            .map_err(|error| Fault::Corrupt(format!("invalid header name: {error}")))?;
        match part(&mut bytes)? {
            Some(value) => headers.push(name, value),
            None => headers.push_null(name),
        }
    }
    Ok(headers)
}

/// The fields of a letter and its message without a column of their own.
#[derive(Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Body {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) cause: Option<Failure>,
    #[serde(skip_serializing_if = "Diagnostics::is_empty")]
    pub(crate) diagnostics: Diagnostics,
    #[serde(skip_serializing_if = "Diagnostics::is_empty")]
    context: Diagnostics,
    #[serde(skip_serializing_if = "Option::is_none")]
    owner: Option<Arc<str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    assignee: Option<Arc<str>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    comments: Vec<Comment>,
    #[serde(skip_serializing_if = "is_false")]
    pub(crate) payload_left_out: bool,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    history: Vec<AttemptRecord>,
    /// Set in the redo log and in files before version 5 only; see [`take_edits`](Self::take_edits).
    #[serde(skip_serializing_if = "Vec::is_empty")]
    edits: Vec<EditRow>,
    #[serde(skip_serializing_if = "Option::is_none")]
    token: Option<Hex>,
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

fn is_false(flag: &bool) -> bool {
    !flag
}

#[derive(Serialize, Deserialize)]
struct EditRow {
    by: String,
    at: Timestamp,
    why: String,
    original: Option<Hex>,
}

impl Body {
    /// The reason of the cause, which also has a column of its own.
    pub(crate) fn reason(&self) -> Option<&str> {
        self.cause.as_ref().map(|cause| cause.reason.as_str())
    }

    pub(crate) fn encode(&self) -> Work<Vec<u8>> {
        encode_body(self)
    }

    pub(crate) fn decode(bytes: &[u8]) -> Work<Self> {
        decode_body(bytes)
    }

    /// A stored body with one more attempt in its history. All else stays as it was written: most letters end with an attempt, and none
    /// of their failures has to be read for it.
    pub(crate) fn with_attempt(stored: &[u8], attempt: &AttemptRecord) -> Work<Vec<u8>> {
        const HISTORY: &str = "history";
        let mut fields: BTreeMap<&str, &RawValue> = decode_body(stored)?;
        let history = fields.get(HISTORY).map(|history| serde_json::from_str(history.get()));
        let mut history: Vec<&RawValue> = history.transpose().map_err(undecodable)?.unwrap_or_default();
        let attempt = serde_json::value::to_raw_value(attempt).map_err(unencodable)?;
        append_entry(&*attempt, &mut history);
        let history = serde_json::value::to_raw_value(&history).map_err(unencodable)?;
        fields.insert(HISTORY, &history);
        encode_body(&fields)
    }

    /// Removes the edits, which the tables hold apart from the body.
    pub(crate) fn take_edits(&mut self) -> Vec<Edit> {
        let edits = std::mem::take(&mut self.edits).into_iter().map(|edit| Edit {
            by: edit.by,
            at: edit.at,
            why: edit.why,
            original: edit.original.map(|original| original.0),
        });
        edits.collect()
    }

    /// `true` if edits have to be [taken](Self::take_edits) from it.
    pub(crate) fn has_edits(&self) -> bool {
        !self.edits.is_empty()
    }

    /// The letter with what this body holds of it.
    fn complete(self, mut letter: Letter) -> Letter {
        let message = Arc::make_mut(&mut letter.message);
        message.position.token = self.token.map(|token| token.0);
        message.operation = self.operation;
        message.content_type = self.content_type;
        message.schema = self.schema;
        message.timestamp = self.timestamp;
        message.correlation = self.correlation;
        message.undecodable = self.undecodable;
        Letter {
            cause: self.cause,
            diagnostics: self.diagnostics,
            context: self.context,
            owner: self.owner,
            assignee: self.assignee,
            comments: self.comments,
            payload_left_out: self.payload_left_out,
            history: self.history,
            erased: self.erased,
            ..letter
        }
    }

    pub(crate) fn of(letter: Letter) -> (Self, Arc<Message>) {
        let message = letter.message;
        let edits = letter.edits.into_iter().map(|edit| EditRow {
            by: edit.by,
            at: edit.at,
            why: edit.why,
            original: edit.original.map(Hex),
        });
        let body = Self {
            cause: letter.cause,
            diagnostics: letter.diagnostics,
            context: letter.context,
            owner: letter.owner,
            assignee: letter.assignee,
            comments: letter.comments,
            payload_left_out: letter.payload_left_out,
            history: letter.history,
            edits: edits.collect(),
            token: message.position.token.clone().map(Hex),
            operation: message.operation,
            content_type: message.content_type.clone(),
            schema: message.schema.clone(),
            timestamp: message.timestamp,
            correlation: message.correlation.clone(),
            undecodable: message.undecodable.clone(),
            erased: letter.erased,
        };
        (body, message)
    }
}

fn encode_body(body: &impl Serialize) -> Work<Vec<u8>> {
    let mut bytes = vec![BODY_VERSION];
    serde_json::to_writer(&mut bytes, body).map_err(unencodable)?;
    Ok(bytes)
}

fn decode_body<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Work<T> {
    match bytes.split_first() {
        Some((&BODY_VERSION, json)) => serde_json::from_slice(json).map_err(undecodable),
        Some((version, _)) => {
            Err(Fault::Corrupt(format!("unknown version {version} of the body of a letter")))
        }
        None => Err(Fault::Corrupt("the body of a letter is empty".into())),
    }
}

fn unencodable(error: serde_json::Error) -> Fault {
    Fault::Corrupt(format!("failed to encode a letter: {error}"))
}

fn undecodable(error: serde_json::Error) -> Fault {
    Fault::Corrupt(format!("failed to decode the body of a letter: {error}"))
}

/// Bytes as hexadecimal digits in JSON.
struct Hex(Bytes);

impl Serialize for Hex {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        use std::fmt::Write as _;
        let mut digits = String::with_capacity(2 * self.0.len());
        for byte in &self.0 {
            write!(digits, "{byte:02x}").map_err(serde::ser::Error::custom)?;
        }
        serializer.serialize_str(&digits)
    }
}

impl<'de> Deserialize<'de> for Hex {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let digits = String::deserialize(deserializer)?;
        let nibble = |digit: u8| char::from(digit).to_digit(16).and_then(|nibble| u8::try_from(nibble).ok());
        let bytes: Option<Vec<u8>> = digits
            .as_bytes()
            .chunks(2)
            .map(|pair| match pair {
                [high, low] => Some(nibble(*high)? << 4 | nibble(*low)?),
                _ => None,
            })
            .collect();
        let bytes = bytes.ok_or_else(|| serde::de::Error::custom("not hexadecimal digits"))?;
        Ok(Self(bytes.into()))
    }
}

/// The columns of a letter for changes and queries, in the order of [`read_letter`].
macro_rules! letter_columns {
    () => {
        "id, idx, state, attempts, crash_attempts, replay_attempts, poison, enqueued_at, touched_at, due_at, \
         expires_at, first_failed_at, last_failed_at, partition, position, stream, sequence, message, event_type, body"
    };
}

/// A query for whole letters, for [`read_letter`] and [`read_whole`]; `light` ones lack key, headers and payload, and their edits
/// cannot be read.
macro_rules! select_letter {
    (light $rest:literal) => {
        concat!(
            "SELECT ",
            crate::rows::letter_columns!(),
            ", NULL, NULL, NULL, NULL, NULL FROM letters ",
            $rest
        )
    };
    ($rest:literal) => {
        concat!(
            "SELECT ",
            crate::rows::letter_columns!(),
            ", key, headers, payload, lid, edits FROM letters JOIN payloads USING (lid) ",
            $rest
        )
    };
}
pub(crate) use {letter_columns, select_letter};

/// The row of a letter and the number of its edits, from a query for whole letters.
pub(crate) fn edits_of(row: &Row<'_>) -> Work<(i64, i64)> {
    Ok((row.get(23)?, row.get(24)?))
}

/// The size of the large columns of a query made with [`select_letter`], in bytes.
pub(crate) fn byte_size(row: &Row<'_>) -> Work<usize> {
    let mut bytes = 0;
    for column in 19..=22 {
        let blob = row.get_ref(column)?.as_blob_or_null().map_err(rusqlite::Error::from)?;
        bytes += blob.map_or(0, <[u8]>::len);
    }
    Ok(bytes)
}

/// Reads a letter with its edits from a query for whole letters made with [`select_letter`], [to be shown](UndecodedLetter::shown).
pub(crate) fn read_whole(connection: &Connection, row: &Row<'_>, queue: &QueueName) -> Work<Letter> {
    Ok(UndecodedLetter::read_whole(connection, row, queue)?.shown())
}

/// Reads a letter without its edits from a query made with [`select_letter`], [to be shown](UndecodedLetter::shown).
pub(crate) fn read_letter(row: &Row<'_>, queue: &QueueName) -> Work<Letter> {
    Ok(UndecodedLetter::read(row, queue)?.shown())
}

/// A letter whose body was read, but not decoded. Every caller waits for the thread of the writer, so it leaves the decoding to the one
/// that wants the letter.
pub(crate) struct UndecodedLetter {
    /// The letter without all that its body holds. Its message is undecodable if its headers are damaged.
    pub(crate) letter: Letter,
    pub(crate) body: Vec<u8>,
}

impl UndecodedLetter {
    /// Reads a letter with its edits from a query for whole letters made with [`select_letter`].
    pub(crate) fn read_whole(connection: &Connection, row: &Row<'_>, queue: &QueueName) -> Work<Self> {
        let mut read = Self::read(row, queue)?;
        let (lid, number) = edits_of(row)?;
        read.letter.edits = edits::read(connection, lid, number)?;
        Ok(read)
    }

    /// Reads a letter without its edits from a query made with [`select_letter`].
    pub(crate) fn read(row: &Row<'_>, queue: &QueueName) -> Work<Self> {
        let id = letter_id(row.get_ref(0)?.as_blob().map_err(rusqlite::Error::from)?)?;
        Self::read_as(id, row, queue).map_err(|fault| fault.of_letter(id))
    }

    fn read_as(id: LetterId, row: &Row<'_>, queue: &QueueName) -> Work<Self> {
        let moment = |column| -> Work<Option<Timestamp>> { Ok(row.get::<_, Option<i64>>(column)?.map(time)) };
        let text = |column| -> Work<Arc<str>> { Ok(row.get(column)?) };
        let blob = |column| -> Work<Option<Bytes>> {
            let blob = row.get_ref(column)?.as_blob_or_null().map_err(rusqlite::Error::from)?;
            Ok(blob.map(Bytes::copy_from_slice))
        };
        let headers = row.get_ref(21)?.as_blob_or_null().map_err(rusqlite::Error::from)?;
        let position = Position::at(partition_number(row.get(13)?)?, unsigned(row.get(14)?)?);
        let (headers, damage) = match headers.map_or_else(|| Ok(Headers::new()), decode_headers) {
            Ok(headers) => (headers, None),
            Err(Fault::Corrupt(what)) => (Headers::new(), Some(what)),
            Err(fault) => return Err(fault),
        };
        let (message, stream) =
            (lazaret_core::MessageId::new(text(17)?), lazaret_core::StreamName::new(text(15)?));
        let message = Message {
            key: blob(20)?,
            event_type: row.get(18)?,
            headers,
            payload: blob(22)?,
            undecodable: damage.map(Arc::from),
            ..Message::new(message, stream, position)
        };
        let letter = Letter {
            id,
            queue: queue.clone(),
            sequence: SequenceId::new(text(16)?),
            index: unsigned(row.get(1)?)?,
            state: state(row.get(2)?)?,
            message: message.into(),
            cause: None,
            attempts: row.get(3)?,
            crash_attempts: row.get(4)?,
            replay_attempts: row.get(5)?,
            poison: row.get(6)?,
            first_failed_at: moment(11)?,
            last_failed_at: moment(12)?,
            enqueued_at: time(row.get(7)?),
            last_touched_at: time(row.get(8)?),
            due_at: moment(9)?,
            expires_at: moment(10)?,
            diagnostics: Diagnostics::new(),
            context: Diagnostics::new(),
            owner: None,
            assignee: None,
            comments: Vec::new(),
            payload_left_out: false,
            history: Vec::new(),
            edits: Vec::new(),
            erased: None,
        };
        let body = row.get_ref(19)?.as_blob().map_err(rusqlite::Error::from)?;
        Ok(Self { letter, body: body.to_vec() })
    }

    /// `true` if the payload was left out of the letter, or its damaged body does not tell. Only a letter without a payload has to be
    /// decoded for it.
    pub(crate) fn payload_left_out(&self) -> bool {
        self.letter.message.payload.is_none()
            && Body::decode(&self.body).map_or(true, |body| body.payload_left_out)
    }

    /// Decodes the letter. An error names it if it is damaged.
    pub(crate) fn decode(self) -> Work<Letter> {
        let Self { letter, body } = self;
        if let Some(damage) = &letter.message.undecodable {
            return Err(Fault::Corrupt(damage.to_string()).of_letter(letter.id));
        }
        let body = Body::decode(&body).map_err(|fault| fault.of_letter(letter.id))?;
        Ok(body.complete(letter))
    }

    /// Decodes a letter that is shown, or removed without its content. A damaged one lacks what cannot be decoded, and says why: a person
    /// has to see it to decide about it, and to see the others of its page. Such a letter is never executed.
    pub(crate) fn shown(self) -> Letter {
        let Self { letter, body } = self;
        let payload_left_out = letter.message.payload.is_none();
        let mut damage = letter.message.undecodable.as_ref().map(ToString::to_string);
        let body = Body::decode(&body).unwrap_or_else(|fault| {
            damage = Some(fault.into_error("decode").context().to_owned());
            Body { payload_left_out, ..Body::default() }
        });
        let mut letter = body.complete(letter);
        if let Some(damage) = damage {
            tracing::error!(letter = %letter.id, queue = %letter.queue, %damage, "damaged letter shown without its content");
            let why = format!("damaged in the store: {damage}");
            Arc::make_mut(&mut letter.message).undecodable = Some(why.into());
        }
        letter
    }
}

#[cfg(test)]
mod tests {
    use lazaret_core::Reason;
    use lazaret_core::letter::AttemptKind;

    use super::*;

    #[test]
    fn times_keep_their_nanoseconds_and_saturate() {
        let some = Timestamp::new(1_767_225_600, 123_456_789).unwrap();
        assert_eq!(time(nanos(some)), some);
        for end in [Timestamp::MAX, Timestamp::MIN] {
            assert_eq!(time(nanos(end)), end);
        }
        assert_eq!(later(nanos(some), Duration::MAX), i64::MAX);
    }

    #[test]
    fn headers_round_trip_byte_for_byte() {
        // I5
        let mut headers = Headers::new();
        headers.push("", "");
        headers.push("binary", (0..=255).collect::<Vec<u8>>());
        headers.push("again", "1");
        headers.push_null("again");
        headers.push("again", "2");
        let bytes = encode_headers(&headers).unwrap();
        assert_eq!(decode_headers(&bytes).unwrap(), headers);
        for end in [1, 9, bytes.len() - 1] {
            assert!(matches!(decode_headers(&bytes[..end]), Err(Fault::Corrupt(_))), "cut at {end}");
        }
    }

    #[test]
    fn hexadecimal_digits_are_lossless() {
        let all: Bytes = (0..=255).collect::<Vec<u8>>().into();
        let json = serde_json::to_string(&Hex(all.clone())).unwrap();
        assert_eq!(serde_json::from_str::<Hex>(&json).unwrap().0, all);
        assert!(serde_json::from_str::<Hex>("\"abc\"").is_err());
        assert!(serde_json::from_str::<Hex>("\"zz\"").is_err());
    }

    #[test]
    fn a_body_of_another_version_is_refused() {
        assert!(matches!(Body::decode(b"\x02{}"), Err(Fault::Corrupt(_))));
        assert!(matches!(Body::decode(b""), Err(Fault::Corrupt(_))));
        assert!(Body::decode(b"\x01{}").is_ok());
    }

    #[test]
    fn an_attempt_is_appended_to_a_body_that_is_not_decoded() {
        let failure = Failure::new(Reason::TIMEOUT, "DbError", "a \"quoted\" \u{1f600} text");
        let attempt = |number: u32| AttemptRecord {
            attempt: number,
            kind: AttemptKind::Retry,
            at: Timestamp::UNIX_EPOCH,
            took: Duration::from_millis(5),
            failure: number.is_multiple_of(2).then(|| failure.clone()),
        };
        let mut expected = Body {
            cause: Some(failure.clone()),
            diagnostics: [("a \"key\"".to_owned(), "\\".to_owned())].into(),
            token: Some(Hex(Bytes::from_static(&[0, 255]))),
            ..Body::default()
        };
        let mut stored = expected.encode().unwrap();
        // Beyond the limit, the second entry gives way.
        for number in 1..=40 {
            attempt(number).append_to(&mut expected.history);
            stored = Body::with_attempt(&stored, &attempt(number)).unwrap();
            assert_eq!(
                serde_json::to_value(Body::decode(&stored).unwrap()).unwrap(),
                serde_json::to_value(&expected).unwrap()
            );
        }
        assert!(matches!(Body::with_attempt(b"\x01{\"history\":1}", &attempt(1)), Err(Fault::Corrupt(_))));
        assert!(matches!(Body::with_attempt(b"\x02{}", &attempt(1)), Err(Fault::Corrupt(_))));
    }
}
