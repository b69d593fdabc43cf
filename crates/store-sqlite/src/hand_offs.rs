//! Hand-offs and notes, as calls that the redo log can record.

use lazaret_core::store::{AttemptNote, HandOff, Limits, Placed, Result};
use lazaret_core::{MessageId, QueueName, StreamName};

use crate::encoded_letter::{EncodedLetter, Note, NoteBody, Place};
use crate::error::Work;
use crate::recorded::Repeatable;
use crate::redo::{Fields, Size, put};
use crate::step::Step;

/// The letters of one hand-off.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HandOffs {
    queue: QueueName,
    limits: Limits,
    items: Vec<EncodedLetter>,
}

impl HandOffs {
    pub(crate) fn new(queue: QueueName, limits: Limits, items: Vec<HandOff>) -> Work<Self> {
        let items = items.into_iter().map(EncodedLetter::new).collect::<Work<_>>()?;
        Ok(Self { queue, limits, items })
    }

    /// What it writes.
    pub(crate) fn to_write(&self) -> Size {
        let bytes = self.items.iter().map(EncodedLetter::byte_size).sum();
        Size { count: self.items.len(), bytes }
    }
}

impl Repeatable for HandOffs {
    const KIND: u8 = 1;
    const OPERATION: &'static str = "hand_off";
    type Answer = Vec<Result<Placed>>;

    fn run(&mut self, step: &mut Step<'_>) -> Work<Self::Answer> {
        step.queue(&self.queue, |queue| queue.hand_off_all(&self.items, &self.limits))
    }

    fn outcome(answer: &Self::Answer, into: &mut Vec<u8>) {
        into.extend(answer.iter().map(|placed| match placed {
            Ok(Placed::Opened) => b'o',
            Ok(Placed::Appended) => b'a',
            Ok(Placed::Closed) => b'c',
            Ok(Placed::Held(_)) => b'h',
            Ok(Placed::NotOpen(_)) => b'n',
            Err(_) => b'r',
        }));
    }

    fn encode(&self, into: &mut Vec<u8>) {
        put::text(into, self.queue.as_str());
        for limit in [self.limits.max_sequences, self.limits.max_sequence_size] {
            put::option(into, limit, put::number);
        }
        put::number(into, self.items.len() as u64);
        for item in &self.items {
            item.encode(into);
        }
    }

    fn decode(fields: &mut Fields<'_>) -> Work<Self> {
        let queue = QueueName::from(fields.text()?);
        let mut limit = || fields.option(Fields::number);
        let limits = Limits { max_sequences: limit()?, max_sequence_size: limit()? };
        let items = fields.list(EncodedLetter::decode)?;
        Ok(Self { queue, limits, items })
    }

    fn size(&self, _: &Self::Answer) -> Size {
        self.to_write()
    }
}

/// Notes on the messages of one queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Notes {
    queue: QueueName,
    notes: Vec<Note>,
}

impl Notes {
    pub(crate) fn new(queue: QueueName, notes: Vec<AttemptNote>) -> Work<Self> {
        let notes = notes.into_iter().map(|note| {
            let body = NoteBody::encode(&note)?;
            let (partition, offset) = (note.partition.number(), note.offset);
            let place = Place { stream: note.partition.stream, partition, offset };
            Ok(Note { place, message: note.message, attempts: note.attempts, body })
        });
        Ok(Self { queue, notes: notes.collect::<Work<_>>()? })
    }
}

impl Repeatable for Notes {
    const KIND: u8 = 2;
    const OPERATION: &'static str = "note_attempts";
    type Answer = ();

    fn run(&mut self, step: &mut Step<'_>) -> Work<()> {
        step.queue(&self.queue, |queue| queue.note_attempts(&self.notes))
    }

    fn outcome((): &(), _: &mut Vec<u8>) {}

    fn encode(&self, into: &mut Vec<u8>) {
        put::text(into, self.queue.as_str());
        put::number(into, self.notes.len() as u64);
        for note in &self.notes {
            put::text(into, note.place.stream.as_str());
            put::partition(into, note.place.partition);
            put::number(into, note.place.offset);
            put::text(into, note.message.as_str());
            put::number(into, note.attempts.into());
            put::bytes(into, &note.body);
        }
    }

    fn decode(fields: &mut Fields<'_>) -> Work<Self> {
        let queue = QueueName::from(fields.text()?);
        let notes = fields.list(|fields| {
            let stream = StreamName::new(fields.text()?);
            let place = Place { stream, partition: fields.partition()?, offset: fields.number()? };
            let (message, attempts) = (MessageId::new(fields.text()?), fields.small()?);
            Ok(Note { place, message, attempts, body: fields.bytes()?.to_vec() })
        })?;
        Ok(Self { queue, notes })
    }

    fn size(&self, _: &Self::Answer) -> Size {
        Size { count: self.notes.len(), bytes: self.notes.iter().map(|note| 128 + note.body.len()).sum() }
    }
}
