//! The letters of the benchmarks, and a fast way to fill a store.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use lazaret_core::letter::{AttemptKind, AttemptRecord};
use lazaret_core::store::{HandOff, LetterStore, Limits, Placement};
use lazaret_core::{Failure, Letter, LetterState, Message, Position, QueueName, Reason, Timestamp};

use crate::consumer::CONSUMER;

/// The letters per call while a store is filled.
const BATCH: usize = 2000;
/// The number of distinct failures.
const FAILURES: usize = 50;

/// Returns the queue of the consumer.
pub(crate) fn queue() -> QueueName {
    QueueName::of(CONSUMER, CONSUMER)
}

/// Letters of one shape.
#[derive(Clone)]
pub(crate) struct Mould {
    queue: QueueName,
    payload: Bytes,
    now: Timestamp,
}

impl Mould {
    /// Creates letters with this many bytes of payload.
    pub(crate) fn new(payload_bytes: usize) -> Self {
        let payload: Vec<u8> = (0..payload_bytes).map(|n| b'a' + (n % 23) as u8).collect();
        Self { queue: queue(), payload: payload.into(), now: Timestamp::now() }
    }

    /// Returns the failure of the message with this number.
    pub(crate) fn failure(number: usize) -> Failure {
        let kind = number % FAILURES;
        Failure::new(
            Reason::TIMEOUT,
            format!("Error{kind}"),
            format!("the ledger gave no answer to {number}"),
        )
    }

    /// Returns a letter as the engine creates it: a failed one has its cause and attempt.
    pub(crate) fn letter(&self, number: usize, sequence: &str, state: LetterState) -> Letter {
        let message = Message::new(format!("evt-{number}"), "orders", Position::new(0, number as u64))
            .with_key(sequence.to_owned())
            .with_payload(self.payload.clone());
        let mut letter = Letter::new(self.queue.clone(), sequence.into(), Arc::new(message), self.now);
        letter.state = state;
        if state != LetterState::Waiting {
            let failure = Self::failure(number);
            letter.record(AttemptRecord {
                attempt: 1,
                kind: AttemptKind::Live,
                at: self.now,
                took: Duration::from_millis(3),
                failure: Some(failure.clone()),
            });
            letter.cause = Some(failure);
            letter.attempts = 1;
            (letter.first_failed_at, letter.last_failed_at) = (Some(self.now), Some(self.now));
        }
        letter
    }
}

/// Returns an item that appends a letter to its sequence.
pub(crate) fn open_with(letter: Letter) -> HandOff {
    HandOff { letter, placement: Placement::Open, grant: None }
}

/// Stores all letters in batches.
pub(crate) async fn fill(store: &impl LetterStore, letters: impl Iterator<Item = Letter>) {
    let mut letters = letters.map(open_with).peekable();
    while letters.peek().is_some() {
        let batch: Vec<HandOff> = letters.by_ref().take(BATCH).collect();
        put(store, batch).await;
    }
}

/// Stores letters in one call.
pub(crate) async fn put(store: &impl LetterStore, items: Vec<HandOff>) {
    let answers = store.hand_off(&queue(), &Limits::NONE, items).await.expect("the store takes letters");
    for answer in answers {
        answer.expect("the store takes every letter");
    }
}
