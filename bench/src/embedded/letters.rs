//! The letters of the benchmarks, and a quick way to fill a store with many of them.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use lazaret_core::letter::{AttemptKind, AttemptRecord};
use lazaret_core::store::{HandOff, LetterStore, Limits, Placement};
use lazaret_core::{Failure, Letter, LetterState, Message, Position, QueueName, Reason, Timestamp};
use lazaret_store_sqlite::SqliteStore;

use super::CONSUMER;

/// How many letters go into the store in one call while it is filled.
const BATCH: usize = 2000;
/// How many kinds of failures there are.
const FAILURES: usize = 50;

/// The queue of the only consumer.
pub(super) fn queue() -> QueueName {
    QueueName::of(CONSUMER, CONSUMER)
}

/// Letters of one shape.
#[derive(Clone)]
pub(super) struct Mould {
    queue: QueueName,
    payload: Bytes,
    now: Timestamp,
}

impl Mould {
    /// Letters with this many bytes of payload.
    pub(super) fn new(payload_bytes: usize) -> Self {
        let payload: Vec<u8> = (0..payload_bytes).map(|n| b'a' + (n % 23) as u8).collect();
        Self { queue: queue(), payload: payload.into(), now: Timestamp::now() }
    }

    /// How the message with this number has failed.
    pub(super) fn failure(number: usize) -> Failure {
        let kind = number % FAILURES;
        Failure::new(
            Reason::TIMEOUT,
            format!("Error{kind}"),
            format!("the ledger gave no answer to {number}"),
        )
    }

    /// A letter as the engine makes it: one that failed carries its cause and its attempt.
    pub(super) fn letter(&self, number: usize, sequence: &str, state: LetterState) -> Letter {
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

/// A letter that is put at the end of its sequence.
pub(super) fn open_with(letter: Letter) -> HandOff {
    HandOff { letter, placement: Placement::Open, grant: None }
}

/// Puts all letters into the store, many a call.
pub(super) async fn fill(store: &SqliteStore, letters: impl Iterator<Item = Letter>) {
    let mut letters = letters.map(open_with).peekable();
    while letters.peek().is_some() {
        let batch: Vec<HandOff> = letters.by_ref().take(BATCH).collect();
        put(store, batch).await;
    }
}

/// Puts letters into the store in one call.
pub(super) async fn put(store: &SqliteStore, items: Vec<HandOff>) {
    let answers = store.hand_off(&queue(), &Limits::NONE, items).await.expect("the store takes letters");
    for answer in answers {
        answer.expect("the store takes every letter");
    }
}
