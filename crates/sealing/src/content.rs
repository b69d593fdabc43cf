//! What of a letter is encrypted, and what each value is bound to.
//!
//! Encrypted are the payload and those that edits replaced, the headers, the messages, causes and traces of failures, diagnostics, context, and
//! the reason why a message could not be decoded. The rest stays plain: a store orders, finds and groups letters by it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use lazaret_core::failure::CauseLink;
use lazaret_core::letter::{AttemptRecord, Diagnostics};
use lazaret_core::store::{AttemptNote, Change, Group, GroupId, Requeue, Settlement};
use lazaret_core::traceback::excerpt;
use lazaret_core::{Failure, Fingerprint, Headers, Letter, LetterId, Message, QueueName};
use serde::{Deserialize, Serialize};

use crate::cipher::{Forged, random};
use crate::envelope::{SUBJECT_BYTES, Sealed, from_text, seal, to_text};
use crate::headers;
use crate::key::{DataKey, DataKeyId, KeyId};
use crate::key_ring::DataKeys;

/// The name of the only header of a message whose headers are encrypted, and of the only entry of an encrypted map.
const SEALED_NAME: &str = "lazaret-sealed";
/// The length of the excerpt of a failure's message that stands apart from the rest, in bytes. Encrypted, it is within the limit of the
/// message of a group, to which it is copied.
const EXCERPT_BYTES: usize = 640;

/// The field of a letter that a value is encrypted for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Field {
    Payload,
    Headers,
    /// The beginning of the message of a failure, or all of it.
    Message,
    /// The rest of a failure.
    Failure,
    Diagnostics,
    Context,
    Undecodable,
}

impl Field {
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Payload => "payload",
            Self::Headers => "headers",
            Self::Message => "message",
            Self::Failure => "failure",
            Self::Diagnostics => "diagnostics",
            Self::Context => "context",
            Self::Undecodable => "undecodable",
        }
    }
}

/// Why a value cannot be decrypted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Closed {
    /// It was changed, or belongs elsewhere.
    Forged,
    /// Its data key is wrapped by a key that this process does not have.
    NoKey(KeyId),
}

impl From<Forged> for Closed {
    fn from(_: Forged) -> Self {
        Self::Forged
    }
}

impl fmt::Display for Closed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Forged => f.write_str("it was changed, or belongs elsewhere"),
            Self::NoKey(key) => write!(f, "key {key} is not configured"),
        }
    }
}

/// A value that cannot be decrypted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Unreadable {
    /// The letter that holds it, if it is one.
    pub(crate) letter: Option<LetterId>,
    pub(crate) owner: String,
    pub(crate) field: &'static str,
    pub(crate) why: Closed,
}

impl Unreadable {
    /// `true` if it can be decrypted with another key.
    pub(crate) fn needs_key(&self) -> bool {
        matches!(self.why, Closed::NoKey(_))
    }
}

impl fmt::Display for Unreadable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { owner, field, why, .. } = self;
        write!(f, "the encrypted {field} of {owner} cannot be decrypted: {why}")
    }
}

/// The text in the place of a value that cannot be decrypted.
fn placeholder(why: &Closed) -> String {
    format!("[cannot be decrypted: {why}]")
}

/// The place of a value: what it is bound to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place<'a> {
    /// What kind of thing holds it.
    kind: &'static str,
    /// The queue or the consumer.
    room: &'a str,
    /// The name of the thing in it.
    name: &'a [u8],
    /// The group of a failure.
    fingerprint: Option<Fingerprint>,
}

impl<'a> Place<'a> {
    fn letter(queue: &'a QueueName, name: &'a [u8; SUBJECT_BYTES]) -> Self {
        Self { kind: "letter", room: queue.as_str(), name, fingerprint: None }
    }

    /// A message of an inbox, by the id that its sender gave; without one, any message without one.
    pub(crate) fn post(consumer: &'a str, id: Option<&'a str>) -> Self {
        let kind = if id.is_some() { "post" } else { "post without an id" };
        Self { kind, room: consumer, name: id.unwrap_or_default().as_bytes(), fingerprint: None }
    }

    /// The bytes that a value of this field is bound to. Lengths keep the parts apart.
    pub(crate) fn bound_to(&self, field: Field) -> Vec<u8> {
        let fingerprint = self.fingerprint.map(|fingerprint| fingerprint.to_string()).unwrap_or_default();
        let parts = [
            self.kind.as_bytes(),
            self.room.as_bytes(),
            self.name,
            field.as_str().as_bytes(),
            fingerprint.as_bytes(),
        ];
        let mut bytes = Vec::with_capacity(parts.iter().map(|part| part.len() + 8).sum());
        for part in parts {
            bytes.extend_from_slice(&(part.len() as u64).to_be_bytes());
            bytes.extend_from_slice(part);
        }
        bytes
    }
}

/// The bytes of the id of a letter.
fn subject_of(letter: LetterId) -> [u8; SUBJECT_BYTES] {
    *letter.as_uuid().as_bytes()
}

/// The parts of a failure that do not fit into its message.
#[derive(Default, Serialize, Deserialize)]
struct Details {
    /// The whole message, if it is longer than the excerpt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    message: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    chain: Vec<CauseLink>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    backtrace: Option<String>,
}

/// Encrypts the values of one letter.
#[derive(Clone, Copy)]
struct Sealer<'a> {
    key: &'a DataKey,
    subject: &'a [u8; SUBJECT_BYTES],
    place: Place<'a>,
}

impl Sealer<'_> {
    fn bytes(&self, field: Field, bytes: &[u8]) -> Bytes {
        seal(self.key, &random(), &self.place.bound_to(field), bytes).into()
    }

    fn text(&self, field: Field, text: &str) -> String {
        to_text(self.subject, &self.bytes(field, text.as_bytes()))
    }

    fn map(&self, field: Field, map: &mut Diagnostics) {
        if !map.is_empty() {
            let json = serde_json::to_string(map).expect("texts can be written as JSON");
            *map = BTreeMap::from([(SEALED_NAME.to_owned(), self.text(field, &json))]);
        }
    }

    fn failure(&self, failure: &mut Failure) {
        let place = Place { fingerprint: Some(failure.fingerprint), ..self.place };
        let sealer = Sealer { place, ..*self };
        let message = std::mem::take(&mut failure.message);
        let shown = excerpt(&message, EXCERPT_BYTES).into_owned();
        let details = Details {
            message: (shown != message).then_some(message),
            chain: std::mem::take(&mut failure.chain),
            backtrace: failure.backtrace.take(),
        };
        if details.message.is_some() || details.backtrace.is_some() || !details.chain.is_empty() {
            let json = serde_json::to_string(&details).expect("texts can be written as JSON");
            failure.backtrace = Some(sealer.text(Field::Failure, &json));
        }
        if !shown.is_empty() {
            failure.message = sealer.text(Field::Message, &shown);
        }
    }

    fn attempt(&self, attempt: &mut AttemptRecord) {
        attempt.failure.iter_mut().for_each(|failure| self.failure(failure));
    }

    fn message(&self, message: &mut Message) {
        if let Some(payload) = &message.payload {
            message.payload = Some(self.bytes(Field::Payload, payload));
        }
        if !message.headers.is_empty() {
            let sealed = self.bytes(Field::Headers, &headers::encode(&message.headers));
            message.headers = Headers::from_iter([(SEALED_NAME, sealed)]);
        }
        if let Some(why) = &message.undecodable {
            message.undecodable = Some(self.text(Field::Undecodable, why).into());
        }
    }
}

/// Encrypts the content of a letter.
pub(crate) fn seal_letter(keys: &DataKeys, letter: &mut Letter) {
    let (queue, subject) = (letter.queue.clone(), subject_of(letter.id));
    let sealer = Sealer { key: keys.active(), subject: &subject, place: Place::letter(&queue, &subject) };
    sealer.message(Arc::make_mut(&mut letter.message));
    letter.cause.iter_mut().for_each(|cause| sealer.failure(cause));
    letter.history.iter_mut().for_each(|attempt| sealer.attempt(attempt));
    sealer.map(Field::Diagnostics, &mut letter.diagnostics);
    sealer.map(Field::Context, &mut letter.context);
    for edit in &mut letter.edits {
        edit.original = edit.original.take().map(|original| sealer.bytes(Field::Payload, &original));
    }
}

/// Encrypts the failure of a note.
pub(crate) fn seal_note(keys: &DataKeys, queue: &QueueName, note: &mut AttemptNote) {
    let subject = subject_of(LetterId::of(queue, &note.message));
    let sealer = Sealer { key: keys.active(), subject: &subject, place: Place::letter(queue, &subject) };
    sealer.failure(&mut note.failure);
}

/// Encrypts what a settlement writes into its letter.
pub(crate) fn seal_settlement(
    keys: &DataKeys,
    queue: &QueueName,
    letter: LetterId,
    settlement: &mut Settlement,
) {
    let subject = subject_of(letter);
    let sealer = Sealer { key: keys.active(), subject: &subject, place: Place::letter(queue, &subject) };
    match settlement {
        Settlement::Resolve(attempt) => attempt.iter_mut().for_each(|attempt| sealer.attempt(attempt)),
        // The reasons are for the audit. They never hold the text of a failure.
        Settlement::Evict(dismissal) | Settlement::Skip(dismissal) => {
            dismissal.attempt.iter_mut().for_each(|attempt| sealer.attempt(attempt));
        }
        Settlement::Requeue(requeue) => {
            let Requeue { cause, diagnostics, attempt, .. } = &mut **requeue;
            cause.iter_mut().for_each(|cause| sealer.failure(cause));
            sealer.map(Field::Diagnostics, diagnostics);
            attempt.iter_mut().for_each(|attempt| sealer.attempt(attempt));
        }
    }
}

/// Encrypts the payload of a change. `stored` is the letter as it is stored: its first payload comes back as it was encrypted, so that
/// stores recognize it.
pub(crate) fn seal_change(
    keys: &DataKeys,
    queue: &QueueName,
    letter: LetterId,
    stored: Option<&Letter>,
    change: &Change,
) -> Change {
    let subject = subject_of(letter);
    let sealer = Sealer { key: keys.active(), subject: &subject, place: Place::letter(queue, &subject) };
    let first = stored.and_then(|stored| stored.edits.first()?.original.as_ref());
    let sealed = |payload: &Bytes| {
        let mut opener = Opener::new(keys);
        let same = first.filter(|first| {
            let place = Place::letter(queue, &subject);
            matches!(opener.bytes(&place, Field::Payload, first), Ok(Some(opened)) if opened == payload)
        });
        same.cloned().unwrap_or_else(|| sealer.bytes(Field::Payload, payload))
    };
    match change {
        Change::Payload(payload) => Change::Payload(payload.as_ref().map(sealed)),
        Change::HeldPayload(payload) => Change::HeldPayload(payload.as_ref().map(sealed)),
        other => other.clone(),
    }
}

/// Encrypts the content of a message that is posted to an inbox. The same message gives the same bytes, so that the inbox recognizes it when
/// it is posted again.
pub(crate) struct PostSealer<'a> {
    pub(crate) key: &'a DataKey,
    pub(crate) place: Place<'a>,
    /// `true` for a message with an id.
    pub(crate) is_repeatable: bool,
}

impl PostSealer<'_> {
    fn bytes(&self, field: Field, bytes: &[u8]) -> Bytes {
        let bound_to = self.place.bound_to(field);
        let nonce = if self.is_repeatable { self.key.nonce_of(&bound_to, bytes) } else { random() };
        seal(self.key, &nonce, &bound_to, bytes).into()
    }

    /// Encrypts payload, headers and the reason why it could not be decoded.
    pub(crate) fn seal(
        &self,
        payload: &mut Option<Bytes>,
        headers: &mut Headers,
        undecodable: &mut Option<Arc<str>>,
    ) {
        *payload = payload.take().map(|payload| self.bytes(Field::Payload, &payload));
        if !headers.is_empty() {
            let sealed = self.bytes(Field::Headers, &headers::encode(headers));
            *headers = Headers::from_iter([(SEALED_NAME, sealed)]);
        }
        if let Some(why) = undecodable {
            let sealed = self.bytes(Field::Undecodable, why.as_bytes());
            *why = to_text(&[0; SUBJECT_BYTES], &sealed).into();
        }
    }
}

/// What tells messages apart that are decrypted together: the place of the payload, and the id. Those without an id of their own share
/// a place.
type MessagePlace = (Vec<u8>, String);

/// Decrypts values, and keeps the ids of keys that are not known: a value under such a key stays as it is.
pub(crate) struct Opener<'a> {
    keys: &'a DataKeys,
    pub(crate) unknown: BTreeSet<DataKeyId>,
    /// The values that cannot be decrypted.
    pub(crate) unreadable: Vec<Unreadable>,
    /// Messages with a value under a key that is not known. They stay as they are until the ring was read again: whether a payload may be
    /// plain depends on the other values.
    pub(crate) waiting: BTreeSet<MessagePlace>,
    /// For the second time, after the ring was read again.
    again: Option<Again<'a>>,
    /// `true` while values are as they are stored. Afterwards they may be decrypted, and are plain, whatever they look like.
    is_stored: bool,
}

/// What the second time takes over from the first one.
struct Again<'a> {
    /// The keys from before, and the newer ones.
    all: &'a DataKeys,
    waiting: BTreeSet<MessagePlace>,
}

/// The values of a message: decrypted, plain (`None`), or closed.
struct OpenedMessage {
    payload: Result<Option<Bytes>, Closed>,
    headers: Result<Option<Headers>, Closed>,
    undecodable: Result<Option<String>, Closed>,
}

impl OpenedMessage {
    /// Puts the decrypted values into their message. Returns the fields that cannot be decrypted, which stay as they are.
    fn put_into(self, message: &mut Message) -> Vec<(Field, Closed)> {
        let mut closed = Vec::new();
        // A message is encrypted whole, and edits encrypt payloads: the other way round, an encrypted payload may have plain headers.
        let is_sealed = matches!(self.headers, Ok(Some(_))) || matches!(self.undecodable, Ok(Some(_)));
        match self.payload {
            Ok(Some(opened)) => message.payload = Some(opened),
            Ok(None) if is_sealed && message.payload.is_some() => {
                closed.push((Field::Payload, Closed::Forged));
            }
            Ok(None) => {}
            Err(why) => closed.push((Field::Payload, why)),
        }
        match self.headers {
            Ok(Some(opened)) => message.headers = opened,
            Ok(None) => {}
            Err(why) => closed.push((Field::Headers, why)),
        }
        match self.undecodable {
            Ok(Some(opened)) => message.undecodable = Some(opened.into()),
            Ok(None) => {}
            Err(why) => closed.push((Field::Undecodable, why)),
        }
        closed
    }
}

impl<'a> Opener<'a> {
    pub(crate) fn new(keys: &'a DataKeys) -> Self {
        let (unknown, waiting) = (BTreeSet::new(), BTreeSet::new());
        Self { keys, unknown, unreadable: Vec::new(), waiting, again: None, is_stored: true }
    }

    /// Decrypts for the second time: messages that wait, with all keys, and the rest only with the newer ones.
    pub(crate) fn again(newer: &'a DataKeys, all: &'a DataKeys, waiting: BTreeSet<MessagePlace>) -> Self {
        Self { again: Some(Again { all, waiting }), is_stored: false, ..Self::new(newer) }
    }

    /// The data key; `None` for one that is not known.
    fn key(&mut self, id: DataKeyId) -> Result<Option<&'a DataKey>, Closed> {
        let keys = self.keys;
        if let Some(key) = keys.get(id) {
            return Ok(Some(key));
        }
        if let Some(wrapped_by) = keys.locked_by(id) {
            return Err(Closed::NoKey(wrapped_by.clone()));
        }
        self.unknown.insert(id);
        Ok(None)
    }

    /// What a value is that has the mark of an encrypted one, and is none: damaged, and in a store without data keys plain.
    fn incomplete<T>(&self) -> Result<Option<T>, Closed> {
        if self.is_stored && !self.keys.is_empty() { Err(Closed::Forged) } else { Ok(None) }
    }

    /// The decrypted bytes; `None` for a plain value.
    fn bytes(&mut self, place: &Place<'_>, field: Field, bytes: &[u8]) -> Result<Option<Bytes>, Closed> {
        let sealed = match Sealed::parse(bytes) {
            Ok(Some(sealed)) => sealed,
            Ok(None) => return Ok(None),
            Err(Forged) => return self.incomplete(),
        };
        let Some(key) = self.key(sealed.key)? else { return Ok(None) };
        let opened = sealed.open(key, &place.bound_to(field))?;
        Ok(Some(opened.into()))
    }

    /// The decrypted text, and the subject it is bound to; `None` for a plain one.
    fn text(
        &mut self,
        place: impl FnOnce(&[u8; SUBJECT_BYTES]) -> Vec<u8>,
        text: &str,
    ) -> Result<Option<String>, Closed> {
        let (subject, bytes) = match from_text(text) {
            Ok(Some(found)) => found,
            Ok(None) => return Ok(None),
            Err(Forged) => return self.incomplete(),
        };
        let Ok(Some(sealed)) = Sealed::parse(&bytes) else { return self.incomplete() };
        let Some(key) = self.key(sealed.key)? else { return Ok(None) };
        let opened = sealed.open(key, &place(&subject))?;
        String::from_utf8(opened).map(Some).map_err(|_| Closed::Forged)
    }

    /// The decrypted headers; `None` for plain ones.
    fn headers(&mut self, place: &Place<'_>, headers: &Headers) -> Result<Option<Headers>, Closed> {
        let mut all = headers.iter();
        let (Some((SEALED_NAME, sealed)), None) = (all.next(), all.next()) else { return Ok(None) };
        let opened = self.bytes(place, Field::Headers, sealed)?;
        opened.map(|opened| headers::decode(&opened).ok_or(Closed::Forged)).transpose()
    }

    fn try_map(&mut self, place: &Place<'_>, field: Field, map: &mut Diagnostics) -> Result<(), Closed> {
        let Some(sealed) = map.get(SEALED_NAME).filter(|_| map.len() == 1) else { return Ok(()) };
        if let Some(json) = self.text(|_| place.bound_to(field), sealed)? {
            *map = serde_json::from_str(&json).map_err(|_| Closed::Forged)?;
        }
        Ok(())
    }

    /// Decrypts a map. One that cannot be decrypted says so.
    fn map(&mut self, place: &Place<'_>, field: Field, map: &mut Diagnostics) -> Option<Closed> {
        let why = self.try_map(place, field, map).err()?;
        *map = BTreeMap::from([(SEALED_NAME.to_owned(), placeholder(&why))]);
        Some(why)
    }

    fn try_failure(&mut self, place: &Place<'_>, failure: &mut Failure) -> Result<(), Closed> {
        let place = Place { fingerprint: Some(failure.fingerprint), ..*place };
        if let Some(message) = self.text(|_| place.bound_to(Field::Message), &failure.message)? {
            failure.message = message;
        }
        let Some(sealed) = &failure.backtrace else { return Ok(()) };
        let Some(json) = self.text(|_| place.bound_to(Field::Failure), sealed)? else { return Ok(()) };
        let details: Details = serde_json::from_str(&json).map_err(|_| Closed::Forged)?;
        (failure.chain, failure.backtrace) = (details.chain, details.backtrace);
        if let Some(message) = details.message {
            failure.message = message;
        }
        Ok(())
    }

    /// Decrypts a failure. One that cannot be decrypted says so, and keeps its reason, phase and type.
    fn failure(&mut self, place: &Place<'_>, failure: &mut Failure) -> Option<Closed> {
        let why = self.try_failure(place, failure).err()?;
        failure.message = placeholder(&why);
        failure.chain.clear();
        failure.backtrace = None;
        Some(why)
    }

    /// Decrypts the content of a message at its place. Returns the fields that cannot be decrypted, which stay as they are.
    pub(crate) fn message(&mut self, place: &Place<'_>, message: &mut Message) -> Vec<(Field, Closed)> {
        let this = (place.bound_to(Field::Payload), message.id.as_str().to_owned());
        let again = self.again.as_ref().map(|again| (again.all, again.waiting.contains(&this)));
        match again {
            None => {
                let others = std::mem::take(&mut self.unknown);
                let opened = self.opened_message(place, message);
                let is_all_known = self.unknown.is_empty();
                self.unknown.extend(others);
                if is_all_known {
                    return opened.put_into(message);
                }
                self.waiting.insert(this);
                Vec::new()
            }
            Some((all, true)) => {
                let newer = std::mem::replace(&mut self.keys, all);
                self.is_stored = true;
                let opened = self.opened_message(place, message);
                (self.keys, self.is_stored) = (newer, false);
                opened.put_into(message)
            }
            // It is decrypted.
            Some((_, false)) => Vec::new(),
        }
    }

    fn opened_message(&mut self, place: &Place<'_>, message: &Message) -> OpenedMessage {
        let payload = message.payload.as_ref();
        let undecodable = message.undecodable.as_ref();
        OpenedMessage {
            payload: payload.map_or(Ok(None), |payload| self.bytes(place, Field::Payload, payload)),
            headers: self.headers(place, &message.headers),
            undecodable: undecodable
                .map_or(Ok(None), |text| self.text(|_| place.bound_to(Field::Undecodable), text)),
        }
    }
}

/// Something whose content is decrypted. What cannot be decrypted is replaced by a text that says so, and is listed by the opener: encrypted
/// bytes are never taken for content.
pub(crate) trait Content {
    fn open(&mut self, with: &mut Opener<'_>);
}

/// A letter whose payload or headers cannot be decrypted has none, and its message tells why it cannot be decoded.
impl Content for Letter {
    fn open(&mut self, with: &mut Opener<'_>) {
        let (queue, id, subject) = (self.queue.clone(), self.id, subject_of(self.id));
        let place = Place::letter(&queue, &subject);
        let unreadable = |field: Field, why| {
            let owner = format!("letter {id}");
            Unreadable { letter: Some(id), owner, field: field.as_str(), why }
        };
        let mut closed = Vec::new();
        let message = Arc::make_mut(&mut self.message);
        for (field, why) in with.message(&place, message) {
            match field {
                Field::Payload => {
                    message.payload = None;
                    self.payload_left_out = true;
                }
                Field::Headers => message.headers = Headers::new(),
                _ => {}
            }
            closed.push(unreadable(field, why));
        }
        if let Some(first) = closed.first() {
            message.undecodable = Some(first.to_string().into());
        }
        let attempts = self.history.iter_mut().filter_map(|attempt| attempt.failure.as_mut());
        for failure in self.cause.iter_mut().chain(attempts) {
            closed.extend(with.failure(&place, failure).map(|why| unreadable(Field::Failure, why)));
        }
        for (field, map) in [(Field::Diagnostics, &mut self.diagnostics), (Field::Context, &mut self.context)]
        {
            closed.extend(with.map(&place, field, map).map(|why| unreadable(field, why)));
        }
        for edit in &mut self.edits {
            let Some(original) = &edit.original else { continue };
            match with.bytes(&place, Field::Payload, original) {
                Ok(Some(opened)) => edit.original = Some(opened),
                Ok(None) => {}
                Err(why) => {
                    edit.original = Some(placeholder(&why).into());
                    closed.push(unreadable(Field::Payload, why));
                }
            }
        }
        with.unreadable.extend(closed);
    }
}

/// The message of a group is that of one of its letters, which it names.
impl Content for Group {
    fn open(&mut self, with: &mut Opener<'_>) {
        let GroupId { queue, fingerprint } = &self.id;
        let place = |subject: &[u8; SUBJECT_BYTES]| {
            let place = Place { fingerprint: Some(*fingerprint), ..Place::letter(queue, subject) };
            place.bound_to(Field::Message)
        };
        match with.text(place, &self.message) {
            Ok(Some(opened)) => self.message = opened,
            Ok(None) => {}
            Err(why) => {
                self.message = placeholder(&why);
                let (owner, field) = (format!("group {}", self.id), Field::Message.as_str());
                with.unreadable.push(Unreadable { letter: None, owner, field, why });
            }
        }
    }
}

/// A note of a queue.
pub(crate) struct QueueNote<'a>(pub(crate) &'a QueueName, pub(crate) AttemptNote);

impl Content for QueueNote<'_> {
    fn open(&mut self, with: &mut Opener<'_>) {
        let Self(queue, note) = self;
        let subject = subject_of(LetterId::of(queue, &note.message));
        if let Some(why) = with.failure(&Place::letter(queue, &subject), &mut note.failure) {
            let owner = format!("the note on message {}", note.message);
            with.unreadable.push(Unreadable { letter: None, owner, field: Field::Failure.as_str(), why });
        }
    }
}

impl<T: Content> Content for Vec<T> {
    fn open(&mut self, with: &mut Opener<'_>) {
        self.iter_mut().for_each(|one| one.open(with));
    }
}

impl<T: Content> Content for Option<T> {
    fn open(&mut self, with: &mut Opener<'_>) {
        self.iter_mut().for_each(|one| one.open(with));
    }
}

#[cfg(test)]
mod tests;
