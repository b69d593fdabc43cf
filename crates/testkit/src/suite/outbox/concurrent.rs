//! The outbox of a store that several processes share: every end is read once, whoever writes first, and whenever watching begins.

use std::collections::BTreeSet;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use lazaret_core::store::{HandOff, LetterStore, Limits, Outbox, Placement};
use lazaret_core::{Failure, Letter, LetterState, Message, Position, QueueName, Reason, Timestamp};
use tokio::task::JoinSet;

/// The number of letters of a call.
const LETTERS: u64 = 3;

/// Processes that write to one store, each with a connection of its own.
#[derive(Clone, Copy, Debug)]
pub struct Writers {
    /// How many there are.
    pub count: u64,
    /// The calls of each.
    pub calls: u64,
}

/// The queue of the letters.
#[must_use]
pub fn queue() -> QueueName {
    QueueName::of("orders", "orders")
}

/// The hand-off of a dead letter, the message of which is `m-NUMBER`.
#[must_use]
pub fn dead(number: u64) -> HandOff {
    let message = Message::new(format!("m-{number}"), "orders", Position::new(0, number)).with_payload("{}");
    let mut letter =
        Letter::new(queue(), format!("s-{number}").as_str().into(), message.into(), Timestamp::now());
    letter.state = LetterState::Dead;
    letter.cause = Some(Failure::new(Reason::TIMEOUT, "HttpError", "boom"));
    HandOff { letter, placement: Placement::Open, grant: None }
}

/// Reads and forgets pages, as a mirror does, until nothing is left and the writers have ended. Returns the messages of the ends.
pub async fn read<S: Outbox>(store: S, written: Arc<AtomicBool>) -> Vec<String> {
    let mut found = Vec::new();
    loop {
        // Asked before the page: what was written before is in it, or was read.
        let is_last = written.load(Ordering::SeqCst);
        let page = store.ends(&queue(), 0, 10).await.unwrap();
        match page.ends.last() {
            Some(last) => store.forget_ends(&queue(), last.number).await.unwrap(),
            None if is_last => return found,
            None => tokio::task::yield_now().await,
        }
        found.extend(page.ends.into_iter().map(|end| end.letter.unwrap().message.id.to_string()));
    }
}

/// I11: an end that is listed after a later one was forgotten is still read. `open` opens the same store once more.
pub async fn an_end_that_is_listed_late_is_still_read<S, F>(writers: Writers, open: impl Fn() -> F)
where
    S: LetterStore + Outbox + 'static,
    F: Future<Output = S>,
{
    let (store, other) = (open().await, open().await);
    store.watch_ends(&queue()).await.unwrap();
    let written = Arc::new(AtomicBool::new(false));
    let reading = tokio::spawn(read(other, written.clone()));
    start(writers, &open).await.join_all().await;
    written.store(true, Ordering::SeqCst);
    writers.assert_each_once(reading.await.unwrap());
}

/// I11: watching that begins between hand-offs, twice at once, misses none of them.
pub async fn watching_that_begins_between_hand_offs_misses_none<S, F>(writers: Writers, open: impl Fn() -> F)
where
    S: LetterStore + Outbox + 'static,
    F: Future<Output = S>,
{
    let (store, other) = (open().await, open().await);
    let writing = start(writers, &open).await;
    // Some have ended before.
    while store.counts(&queue()).await.unwrap().open() < 20 {
        tokio::task::yield_now().await;
    }
    let queue = queue();
    let (one, two) = tokio::join!(store.watch_ends(&queue), other.watch_ends(&queue));
    one.and(two).unwrap();
    writing.join_all().await;
    writers.assert_each_once(read(store, Arc::new(AtomicBool::new(true))).await);
}

async fn start<S, F>(writers: Writers, open: &impl Fn() -> F) -> JoinSet<()>
where
    S: LetterStore + 'static,
    F: Future<Output = S>,
{
    let mut writing = JoinSet::new();
    for writer in 0..writers.count {
        writing.spawn(writers.write(open().await, writer));
    }
    writing
}

impl Writers {
    async fn write<S: LetterStore>(self, store: S, writer: u64) {
        for call in 0..self.calls {
            let first = (writer * self.calls + call) * LETTERS;
            let items = (first..first + LETTERS).map(dead).collect();
            for placed in store.hand_off(&queue(), &Limits::NONE, items).await.unwrap() {
                placed.unwrap();
            }
        }
    }

    fn assert_each_once(self, found: Vec<String>) {
        let (count, found) = (found.len(), found.into_iter().collect::<BTreeSet<_>>());
        assert_eq!(found.len(), count, "one was listed twice");
        let all: BTreeSet<String> =
            (0..self.count * self.calls * LETTERS).map(|number| format!("m-{number}")).collect();
        let missing: Vec<&String> = all.difference(&found).collect();
        assert!(missing.is_empty(), "not listed: {missing:?}");
    }
}
