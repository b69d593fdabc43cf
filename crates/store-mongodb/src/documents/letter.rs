//! The document of a letter: readable fields on top, and all of the letter, exactly, in the field `lazaret`.

use std::sync::Arc;

use bson::{RawDocumentBuf, cstr, rawdoc};
use lazaret_core::letter::{Letter, LetterId, LetterState};
use lazaret_core::store::Result;
use lazaret_core::store::rules::LetterView;
use lazaret_core::{Fingerprint, Message, QueueName, SequenceId, StreamName, Timestamp};
use serde::{Deserialize, Serialize};

use super::chunks::{ChunksRef, split};
use super::details::Details;
use super::readable::{Readable, purged};
use crate::database::encode;
use crate::error::{corrupt, invalid};
use crate::layout::Layout;
use crate::values::{int, nanos, time, uint};

/// A part of a letter above this size is kept in chunks, and the letter refers to them.
pub(crate) const INLINE_BYTES: usize = 1 << 20;

/// A letter, or what is left of it after a purge.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct LetterDoc {
    #[serde(rename = "_id", with = "crate::values::text")]
    pub(crate) id: LetterId,
    pub(crate) lazaret: Kept,
}

/// All of a letter, with the fields that indexes need.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Kept {
    pub(crate) queue: QueueName,
    pub(crate) sequence: SequenceId,
    pub(crate) state: LetterState,
    pub(crate) open: bool,
    /// The version of the sequence's document that decided about it last.
    pub(crate) decided: i64,
    pub(crate) index: i64,
    /// Its number in the order of arrival; `None` when it was purged.
    #[serde(default)]
    pub(crate) number: Option<i64>,
    #[serde(default)]
    pub(crate) group: Option<Fingerprint>,
    pub(crate) stream: StreamName,
    pub(crate) partition: i64,
    pub(crate) offset: i64,
    #[serde(default)]
    pub(crate) due: Option<i64>,
    pub(crate) touched: i64,
    pub(crate) enqueued: i64,
    #[serde(default)]
    pub(crate) expires: Option<i64>,
    #[serde(default)]
    pub(crate) closed: Option<i64>,
    #[serde(default)]
    first_failed: Option<i64>,
    #[serde(default)]
    last_failed: Option<i64>,
    attempts: u32,
    crash_attempts: u32,
    replay_attempts: u32,
    poison: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) message: Option<Arc<Message>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) message_chunks: Option<ChunksRef>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) details: Option<Details>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) details_chunks: Option<ChunksRef>,
}

/// A letter as the store has it in memory.
#[derive(Clone, Debug)]
pub(crate) struct Held {
    pub(crate) letter: Letter,
    pub(crate) number: u64,
    closed_at: Option<Timestamp>,
    /// The message as it was loaded, and its chunks.
    stored_message: Option<(Arc<Message>, ChunksRef)>,
    stored_details: Option<ChunksRef>,
}

/// A letter to be written, with the chunks that it refers to, and those that it does not refer to any more.
pub(crate) struct Encoded {
    pub(crate) document: RawDocumentBuf,
    pub(crate) chunks: Vec<RawDocumentBuf>,
    pub(crate) dropped: Vec<String>,
}

/// The document of a letter as it is written.
#[derive(Serialize)]
struct Written<'a> {
    #[serde(rename = "_id", with = "crate::values::text")]
    id: LetterId,
    #[serde(flatten)]
    readable: &'a Readable<'a>,
    lazaret: &'a Kept,
}

impl Held {
    /// A letter that was not stored before.
    pub(crate) const fn new(letter: Letter, number: u64) -> Self {
        Self { letter, number, closed_at: None, stored_message: None, stored_details: None }
    }

    /// The letter with its parts, which were loaded from chunks where it refers to some.
    pub(crate) fn load(doc: LetterDoc, message: Option<Message>, details: Option<Details>) -> Result<Self> {
        let LetterDoc { id, lazaret: kept } = doc;
        let missing = |what| corrupt(format!("letter {id} has no {what}"));
        let number = uint(kept.number.ok_or_else(|| missing("number"))?);
        let message = kept.message.or(message.map(Arc::new)).ok_or_else(|| missing("message"))?;
        let details = kept.details.or(details).ok_or_else(|| missing("details"))?;
        let stored_message = kept.message_chunks.map(|chunks| (message.clone(), chunks));
        let letter = Letter {
            id,
            queue: kept.queue,
            sequence: kept.sequence,
            index: uint(kept.index),
            state: kept.state,
            message,
            cause: details.cause,
            attempts: kept.attempts,
            crash_attempts: kept.crash_attempts,
            replay_attempts: kept.replay_attempts,
            poison: kept.poison,
            first_failed_at: kept.first_failed.map(time),
            last_failed_at: kept.last_failed.map(time),
            enqueued_at: time(kept.enqueued),
            last_touched_at: time(kept.touched),
            due_at: kept.due.map(time),
            expires_at: kept.expires.map(time),
            diagnostics: details.diagnostics.into_iter().collect(),
            context: details.context.into_iter().collect(),
            owner: details.owner,
            assignee: details.assignee,
            comments: details.comments,
            payload_left_out: details.payload_left_out,
            history: details.history,
            edits: details.edits,
            erased: details.erased,
        };
        let closed_at = kept.closed.map(time);
        Ok(Self { letter, number, closed_at, stored_message, stored_details: kept.details_chunks })
    }

    /// The document of the letter as it stands, decided by this version.
    pub(crate) fn encode(&self, decided: i64, now: Timestamp, layout: Layout) -> Result<Encoded> {
        let letter = &self.letter;
        let mut chunks = Vec::new();
        let mut kept = self.kept(decided, now)?;
        let mut dropped: Vec<ChunksRef> = self.stored_details.iter().cloned().collect();
        match &self.stored_message {
            Some((message, stored)) if Arc::ptr_eq(message, &letter.message) => {
                kept.message_chunks = Some(stored.clone());
            }
            stored => {
                dropped.extend(stored.iter().map(|(_, chunks)| chunks.clone()));
                if message_size(&letter.message) > INLINE_BYTES {
                    kept.message_chunks = Some(split(letter.id, &*letter.message, &mut chunks)?);
                } else {
                    kept.message = Some(letter.message.clone());
                }
            }
        }
        kept.details = Some(Details::of(letter));
        let readable = Readable::of(letter, layout);
        let mut document = encode(&Written { id: letter.id, readable: &readable, lazaret: &kept })?;
        // The details are measured only if they can be too large.
        if document.as_bytes().len() > INLINE_BYTES
            && let Some(details) = &kept.details
            && encode(details)?.as_bytes().len() > INLINE_BYTES
        {
            kept.details_chunks = Some(split(letter.id, details, &mut chunks)?);
            kept.details = None;
            document = encode(&Written { id: letter.id, readable: &readable, lazaret: &kept })?;
        }
        let dropped = dropped.into_iter().map(|chunks| chunks.claim).collect();
        Ok(Encoded { document, chunks, dropped })
    }

    /// What is left of the letter after a purge: its id and its state.
    pub(crate) fn encode_purged(&self, decided: i64, now: Timestamp, layout: Layout) -> Result<Encoded> {
        let mut kept =
            Kept { number: None, group: None, expires: None, closed: None, ..self.kept(decided, now)? };
        (kept.first_failed, kept.last_failed, kept.due) = (None, None, None);
        let id = self.letter.id.to_string();
        let (name, state) = purged(layout);
        let mut document = rawdoc! { "_id": id };
        document.append(name, state);
        document.append(cstr!("lazaret"), encode(&kept)?);
        let message = self.stored_message.iter().map(|(_, chunks)| chunks.claim.clone());
        let dropped = message.chain(self.stored_details.iter().map(|chunks| chunks.claim.clone()));
        Ok(Encoded { document, chunks: Vec::new(), dropped: dropped.collect() })
    }

    fn kept(&self, decided: i64, now: Timestamp) -> Result<Kept> {
        let letter = &self.letter;
        let position = &letter.message.position;
        let offset = i64::try_from(position.offset)
            .map_err(|_| invalid(format!("offset {} is above 2^63", position.offset)))?;
        // A closed letter that is changed was closed before.
        let closed = (!letter.state.is_open()).then(|| nanos(self.closed_at.unwrap_or(now)));
        Ok(Kept {
            queue: letter.queue.clone(),
            sequence: letter.sequence.clone(),
            state: letter.state,
            open: letter.state.is_open(),
            decided,
            index: int(letter.index),
            number: Some(int(self.number)),
            group: letter.cause.as_ref().map(|cause| cause.fingerprint),
            stream: letter.message.stream.clone(),
            partition: position.partition_number().stored(),
            offset,
            due: letter.due_at.map(nanos),
            touched: nanos(letter.last_touched_at),
            enqueued: nanos(letter.enqueued_at),
            expires: letter.expires_at.map(nanos),
            closed,
            first_failed: letter.first_failed_at.map(nanos),
            last_failed: letter.last_failed_at.map(nanos),
            attempts: letter.attempts,
            crash_attempts: letter.crash_attempts,
            replay_attempts: letter.replay_attempts,
            poison: letter.poison,
            message: None,
            message_chunks: None,
            details: None,
            details_chunks: None,
        })
    }
}

impl LetterDoc {
    pub(crate) const fn is_purged(&self) -> bool {
        self.lazaret.number.is_none()
    }

    /// The fields that the rules need. They are in the document, whatever is in chunks.
    pub(crate) fn view(&self) -> LetterView {
        let kept = &self.lazaret;
        LetterView {
            id: self.id,
            index: uint(kept.index),
            state: kept.state,
            due_at: kept.due.map(time),
            enqueued_at: time(kept.enqueued),
            touched_at: time(kept.touched),
            group: kept.group,
        }
    }
}

/// About the size of a message, in bytes.
pub(crate) fn message_size(message: &Message) -> usize {
    let key = message.key.as_ref().map_or(0, bytes::Bytes::len);
    let token = message.position.token.as_ref().map_or(0, bytes::Bytes::len);
    let texts = [&message.event_type, &message.content_type, &message.correlation, &message.undecodable];
    let texts: usize = texts.iter().filter_map(|text| text.as_ref()).map(|text| text.len()).sum();
    message.payload_len() + message.headers.byte_size() + message.headers.len() * 32 + key + token + texts
}

#[cfg(test)]
mod tests {
    use bson::Document;
    use lazaret_core::letter::{AttemptKind, AttemptRecord, Edit};
    use lazaret_core::message::{Operation, Position};
    use lazaret_core::store::Comment;
    use lazaret_core::{Failure, Letter, Reason};

    use super::super::chunks::join;
    use super::*;

    fn letter(payload: Vec<u8>) -> Letter {
        let mut message =
            Message::new("m-1", "orders", Position::new(3, 9)).with_payload(payload).with_key("k");
        message.headers.push("h", "v");
        message.headers.push_null("none");
        message.operation = Some(Operation::Update);
        message.timestamp = Some(time(1_234_567_891));
        message.position.token = Some(vec![1, 2, 255].into());
        let mut letter = Letter::new("a/b".into(), "seq".into(), message.into(), time(77));
        letter.cause = Some(Failure::new(Reason::TIMEOUT, "HttpError", "boom").with_backtrace("at x"));
        letter.diagnostics.insert("a.b$\0".into(), "odd".into());
        letter.context.insert("c".into(), "d".into());
        (letter.due_at, letter.expires_at) = (Some(time(123)), Some(time(456)));
        letter.comments.push(Comment { by: "ada".into(), at: time(5), text: "hm".into() });
        letter.edits.push(Edit {
            by: "ada".into(),
            at: time(5),
            why: "typo".into(),
            original: Some("x".into()),
        });
        letter.record(AttemptRecord {
            attempt: 1,
            kind: AttemptKind::Live,
            at: time(9),
            took: std::time::Duration::from_nanos(5),
            failure: None,
        });
        letter
    }

    fn loaded(encoded: &Encoded) -> Held {
        let doc: LetterDoc = bson::deserialize_from_slice(encoded.document.as_bytes()).unwrap();
        let chunks = |stored: &ChunksRef| {
            let of = |chunk: &&RawDocumentBuf| chunk.get_str("claim").unwrap() == stored.claim;
            encoded.chunks.iter().filter(of).cloned().collect::<Vec<_>>()
        };
        let message =
            doc.lazaret.message_chunks.clone().map(|stored| join(&stored, &chunks(&stored)).unwrap());
        let details =
            doc.lazaret.details_chunks.clone().map(|stored| join(&stored, &chunks(&stored)).unwrap());
        Held::load(doc, message, details).unwrap()
    }

    #[test]
    fn a_letter_comes_back_exactly() {
        let letter = letter(vec![0, 255, b'{']);
        let encoded = Held::new(letter.clone(), 4).encode(1, time(0), Layout::FlowWarden).unwrap();
        assert!(encoded.chunks.is_empty());
        assert_eq!(loaded(&encoded).letter, letter);
    }

    #[test]
    fn a_letter_has_the_field_names_of_flowwarden() {
        let letter = letter(br#"{"total": 5}"#.to_vec());
        let document = Held::new(letter, 4).encode(1, time(0), Layout::FlowWarden).unwrap().document;
        let document = Document::try_from(document).unwrap();
        for name in [
            "streamName",
            "operationType",
            "documentKey",
            "fullDocument",
            "error",
            "attempts",
            "status",
            "firstAttemptAt",
            "lastAttemptAt",
            "createdAt",
            "expiresAt",
            "metadata",
            "resumeToken",
        ] {
            assert!(document.contains_key(name), "{name}");
        }
        assert_eq!(document.get_str("status").unwrap(), "PENDING");
        assert_eq!(document.get_document("fullDocument").unwrap(), &bson::doc! { "total": 5 });
        let error = document.get_document("error").unwrap();
        assert_eq!(error, &bson::doc! { "type": "HttpError", "message": "boom", "stackTrace": "at x" });
    }

    #[test]
    fn a_large_part_is_kept_in_chunks_and_kept_there_while_it_does_not_change() {
        let large = letter(vec![7; 17 << 20]);
        let encoded = Held::new(large.clone(), 4).encode(1, time(0), Layout::FlowWarden).unwrap();
        assert!(encoded.chunks.len() >= 5);
        assert!(encoded.document.as_bytes().len() < INLINE_BYTES);
        let mut held = loaded(&encoded);
        assert_eq!(held.letter, large);
        held.letter.attempts += 1;
        let again = held.encode(2, time(0), Layout::FlowWarden).unwrap();
        assert!(again.chunks.is_empty() && again.dropped.is_empty());
        held.letter.message = Arc::new(Message::new("m-1", "orders", Position::new(3, 9)));
        let small = held.encode(3, time(0), Layout::FlowWarden).unwrap();
        assert_eq!((small.chunks.len(), small.dropped.len()), (0, 1));
        assert_eq!(held.encode_purged(4, time(0), Layout::Lazaret).unwrap().dropped.len(), 1);
    }

    #[test]
    fn large_headers_and_large_edits_are_kept_in_chunks() {
        let mut letter = letter(b"{}".to_vec());
        let mut message = (*letter.message).clone();
        message.headers.push("large", vec![1_u8; 2 << 20]);
        letter.message = message.into();
        letter.edits[0].original = Some(vec![2_u8; 17 << 20].into());
        let encoded = Held::new(letter.clone(), 4).encode(1, time(0), Layout::FlowWarden).unwrap();
        assert!(encoded.chunks.len() >= 6);
        assert_eq!(loaded(&encoded).letter, letter);
    }

    #[test]
    fn a_letter_whose_chunks_are_missing_is_corrupt_and_never_half() {
        let encoded = Held::new(letter(vec![7; 9 << 20]), 4).encode(1, time(0), Layout::FlowWarden).unwrap();
        let doc: LetterDoc = bson::deserialize_from_slice(encoded.document.as_bytes()).unwrap();
        let stored = doc.lazaret.message_chunks.unwrap();
        assert!(join::<Message>(&stored, &encoded.chunks[1..]).is_err());
    }
}
