//! Letters and notes, encoded by the caller: the single writer only has to insert
//! them. The redo log stores the same encoding.

use std::sync::Arc;

use bytes::Bytes;
use lazaret_core::message::PartitionNumber;
use lazaret_core::store::{AttemptNote, GrantFence, HandOff, Placement};
use lazaret_core::{
    Failure, Letter, LetterId, LetterState, MessageId, Partition, QueueName, SequenceId, StreamName,
    Timestamp,
};
use serde::{Deserialize, Serialize};

use crate::error::{Fault, Work};
use crate::redo::{Fields, put};
use crate::rows::{self, Body, encode_headers, id_bytes, nanos};

/// A letter to store: its columns, and its encoded body. The store adds its place and times.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct EncodedLetter {
    pub(crate) placement: Placement,
    pub(crate) grant: Option<GrantFence>,
    pub(crate) id: LetterId,
    pub(crate) queue: QueueName,
    pub(crate) sequence: SequenceId,
    pub(crate) state: LetterState,
    /// Automatic attempts, crash attempts and replay attempts.
    pub(crate) attempts: [u32; 3],
    pub(crate) poison: bool,
    pub(crate) due_at: Option<i64>,
    pub(crate) expires_at: Option<i64>,
    pub(crate) first_failed_at: Option<i64>,
    pub(crate) last_failed_at: Option<i64>,
    pub(crate) place: Place,
    pub(crate) message: MessageId,
    pub(crate) event_type: Option<Arc<str>>,
    pub(crate) key: Option<Bytes>,
    pub(crate) headers: Option<Bytes>,
    pub(crate) payload: Option<Bytes>,
    /// Also part of the body.
    pub(crate) cause: Option<Failure>,
    pub(crate) body: Bytes,
    /// `true` if the body holds edits, which the tables hold apart from it.
    pub(crate) has_edits: bool,
}

/// The position of a message in its stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) stream: StreamName,
    pub(crate) partition: PartitionNumber,
    pub(crate) offset: u64,
}

impl Place {
    pub(crate) fn of(letter: &Letter) -> Self {
        let position = &letter.message.position;
        let (stream, partition) = (letter.message.stream.clone(), position.partition_number());
        Self { stream, partition, offset: position.offset }
    }

    pub(crate) fn partition(&self) -> Partition {
        self.partition.of(self.stream.clone())
    }
}

impl EncodedLetter {
    pub(crate) fn new(item: HandOff) -> Work<Self> {
        let HandOff { letter, placement, grant } = item;
        let place = Place::of(&letter);
        let (id, queue, sequence) = (letter.id, letter.queue.clone(), letter.sequence.clone());
        let (state, poison) = (letter.state, letter.poison);
        let attempts = [letter.attempts, letter.crash_attempts, letter.replay_attempts];
        let [due_at, expires_at, first_failed_at, last_failed_at] =
            [letter.due_at, letter.expires_at, letter.first_failed_at, letter.last_failed_at]
                .map(|moment| moment.map(nanos));
        let (body, message) = Body::of(letter);
        Ok(Self {
            placement,
            grant,
            id,
            queue,
            sequence,
            state,
            attempts,
            poison,
            due_at,
            expires_at,
            first_failed_at,
            last_failed_at,
            place,
            message: message.id.clone(),
            event_type: message.event_type.clone(),
            key: message.key.clone(),
            headers: encode_headers(&message.headers).map(Bytes::from),
            payload: message.payload.clone(),
            body: body.encode()?.into(),
            has_edits: body.has_edits(),
            cause: body.cause,
        })
    }

    pub(crate) fn encode(&self, into: &mut Vec<u8>) {
        put::number(into, placement_number(self.placement));
        put::option(into, self.grant.as_ref(), |into, grant| {
            put::text(into, grant.partition.stream.as_str());
            put::partition(into, grant.partition.number());
            put::number(into, grant.fence);
            put::number(into, grant.turn);
        });
        put::bytes(into, &id_bytes(self.id));
        put::text(into, self.queue.as_str());
        put::text(into, self.sequence.as_str());
        put::number(into, self.state as u64);
        for attempts in self.attempts {
            put::number(into, attempts.into());
        }
        put::number(into, self.poison.into());
        for moment in [self.due_at, self.expires_at, self.first_failed_at, self.last_failed_at] {
            put::option(into, moment, put::signed);
        }
        put::text(into, self.place.stream.as_str());
        put::partition(into, self.place.partition);
        put::number(into, self.place.offset);
        put::text(into, self.message.as_str());
        put::option(into, self.event_type.as_deref(), put::text);
        for blob in [&self.key, &self.headers, &self.payload] {
            put::option(into, blob.as_deref(), put::bytes);
        }
        put::bytes(into, &self.body);
    }

    pub(crate) fn decode(fields: &mut Fields<'_>) -> Work<Self> {
        let placement = fields.number().and_then(|number| fields.known(placement(number)))?;
        let grant = fields.option(|fields| {
            let stream = StreamName::new(fields.text()?);
            let partition = fields.partition()?.of(stream);
            Ok(GrantFence { partition, fence: fields.number()?, turn: fields.number()? })
        })?;
        let id = rows::letter_id(fields.bytes()?)?;
        let (queue, sequence) = (QueueName::from(fields.text()?), SequenceId::new(fields.text()?));
        let state = rows::state(fields.signed()?)?;
        let attempts = [fields.small()?, fields.small()?, fields.small()?];
        let poison = fields.number()? != 0;
        let mut moment = || fields.option(Fields::signed);
        let (due_at, expires_at) = (moment()?, moment()?);
        let (first_failed_at, last_failed_at) = (moment()?, moment()?);
        let stream = StreamName::new(fields.text()?);
        let place = Place { stream, partition: fields.partition()?, offset: fields.number()? };
        let message = MessageId::new(fields.text()?);
        let event_type = fields.option(Fields::text)?.map(Arc::from);
        let mut blob = || -> Work<_> { Ok(fields.option(Fields::bytes)?.map(Bytes::copy_from_slice)) };
        let (key, headers, payload) = (blob()?, blob()?, blob()?);
        let body = Bytes::copy_from_slice(fields.bytes()?);
        let decoded = Body::decode(&body)?;
        let (has_edits, cause) = (decoded.has_edits(), decoded.cause);
        Ok(Self {
            placement,
            grant,
            id,
            queue,
            sequence,
            state,
            attempts,
            poison,
            due_at,
            expires_at,
            first_failed_at,
            last_failed_at,
            place,
            message,
            event_type,
            key,
            headers,
            payload,
            cause,
            body,
            has_edits,
        })
    }

    /// Approximate size in the log, in bytes.
    pub(crate) fn byte_size(&self) -> usize {
        let blobs = [&self.key, &self.headers, &self.payload].map(|blob| blob.as_ref().map_or(0, Bytes::len));
        let texts = self.sequence.as_str().len() + self.message.as_str().len();
        256 + self.body.len() + texts + blobs.iter().sum::<usize>()
    }
}

fn placement_number(placement: Placement) -> u64 {
    match placement {
        Placement::Open => 0,
        Placement::Behind => 1,
        Placement::Closed => 2,
        Placement::Imported => 3,
    }
}

fn placement(number: u64) -> Option<Placement> {
    [Placement::Open, Placement::Behind, Placement::Closed, Placement::Imported]
        .into_iter()
        .find(|placement| placement_number(*placement) == number)
}

/// An attempt note to store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Note {
    pub(crate) place: Place,
    pub(crate) message: MessageId,
    pub(crate) attempts: u32,
    pub(crate) body: Vec<u8>,
}

/// The fields of a note without a column of their own.
#[derive(Serialize, Deserialize)]
pub(crate) struct NoteBody {
    pub(crate) first_failed_at: Timestamp,
    pub(crate) failure: Failure,
    pub(crate) same_failure: u32,
    pub(crate) due_at: Timestamp,
}

/// The version of the note encoding, the first byte of each body.
const NOTE_VERSION: u8 = 1;

impl NoteBody {
    pub(crate) fn encode(note: &AttemptNote) -> Work<Vec<u8>> {
        let body = Self {
            first_failed_at: note.first_failed_at,
            failure: note.failure.clone(),
            same_failure: note.same_failure,
            due_at: note.due_at,
        };
        let mut bytes = vec![NOTE_VERSION];
        serde_json::to_writer(&mut bytes, &body)
            .map_err(|error| Fault::Corrupt(format!("failed to encode a note: {error}")))?;
        Ok(bytes)
    }

    pub(crate) fn decode(bytes: &[u8]) -> Work<Self> {
        let json = bytes.strip_prefix(&[NOTE_VERSION]);
        let json = json.ok_or_else(|| Fault::Corrupt("unknown version of an attempt note".into()))?;
        serde_json::from_slice(json)
            .map_err(|error| Fault::Corrupt(format!("failed to decode a note: {error}")))
    }
}
