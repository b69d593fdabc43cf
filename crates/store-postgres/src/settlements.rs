//! Settlements of many callers, in one transaction.
//!
//! While a transaction is in progress, settlements that arrive are collected, and the next one takes them all: the busier the store, the
//! larger the transactions, and the fewer commits and locks of an operation for each letter.

use std::collections::{HashSet, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use lazaret_core::store::{Certainty, ErrorKind, Result, Settled, StoreError};
use tokio::sync::oneshot;

use crate::leases::SettleItem;
use crate::store::{PostgresStore, Queue};
use crate::transaction::transaction;

const SETTLE: &str = "settle";
/// Number of settlements in one transaction (I7).
const BATCH: usize = 256;
/// Number of transactions at the same time.
const WRITERS: usize = 2;

/// The settlements that wait for a transaction.
#[derive(Default)]
pub(crate) struct Settlements {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Waiting>,
    writers: usize,
}

struct Waiting {
    queue: Queue,
    item: SettleItem,
    reply: oneshot::Sender<Result<Settled>>,
}

/// A running writer. One that panics is counted out, too.
struct Writer {
    store: PostgresStore,
    counted: bool,
}

impl Settlements {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Takes settlements of one queue, each of another sequence.
    fn take(&mut self) -> Vec<Waiting> {
        let Some(qid) = self.waiting.front().map(|first| first.queue.qid) else { return Vec::new() };
        let mut sequences = HashSet::new();
        let (mut taken, mut left) = (Vec::new(), VecDeque::new());
        for one in self.waiting.drain(..) {
            let fits = taken.len() < BATCH && one.queue.qid == qid;
            if fits && sequences.insert(one.item.lease.sequence.clone()) {
                taken.push(one);
            } else {
                left.push_back(one);
            }
        }
        self.waiting = left;
        taken
    }
}

impl Writer {
    /// Writes until nothing waits.
    async fn run(mut self) {
        while let Some(batch) = self.next_batch() {
            Box::pin(self.store.settle_batch(batch)).await;
        }
    }

    /// The next settlements. Without any, the writer is counted out under the same lock, so that whoever comes next starts another one.
    fn next_batch(&mut self) -> Option<Vec<Waiting>> {
        let mut state = self.store.settlements().lock();
        let batch = state.take();
        if batch.is_empty() {
            state.writers -= 1;
            self.counted = false;
            return None;
        }
        Some(batch)
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        if self.counted {
            self.store.settlements().lock().writers -= 1;
        }
    }
}

/// The same error, for another caller.
fn repeated(error: &StoreError) -> StoreError {
    let context = error.to_string();
    match error.certainty() {
        Certainty::NotDone => StoreError::not_done(error.kind(), SETTLE, context),
        Certainty::MaybeDone => StoreError::maybe(error.kind(), SETTLE, context),
    }
}

fn unanswered() -> StoreError {
    StoreError::maybe(ErrorKind::Unavailable, SETTLE, "the runtime ended before the server answered")
}

impl PostgresStore {
    /// Settles a letter, together with those of other callers.
    pub(crate) async fn settle_together(&self, queue: Queue, item: SettleItem) -> Result<Settled> {
        let (reply, answer) = oneshot::channel();
        let starts = {
            let mut state = self.settlements().lock();
            state.waiting.push_back(Waiting { queue, item, reply });
            let starts = state.writers < WRITERS;
            state.writers += usize::from(starts);
            starts
        };
        if starts {
            tokio::spawn(Writer { store: self.clone(), counted: true }.run());
        }
        answer.await.unwrap_or_else(|_| Err(unanswered()))
    }

    async fn settle_batch(&self, batch: Vec<Waiting>) {
        let Some(queue) = batch.first().map(|first| first.queue.clone()) else { return };
        let (items, replies): (Vec<SettleItem>, Vec<_>) =
            batch.into_iter().map(|one| (one.item, one.reply)).unzip();
        let answers = match Box::pin(self.settle_at_once(&queue, &items)).await {
            Ok(answers) => answers,
            // What one letter causes must not fail the others.
            Err(error)
                if items.len() > 1
                    && error.certainty() == Certainty::NotDone
                    && error.kind() != ErrorKind::Unavailable =>
            {
                let mut answers = Vec::with_capacity(items.len());
                for item in &items {
                    let one = Box::pin(self.settle_at_once(&queue, std::slice::from_ref(item))).await;
                    answers.push(one.and_then(|mut one| one.pop().unwrap_or_else(|| Err(unanswered()))));
                }
                answers
            }
            Err(error) => items.iter().map(|_| Err(repeated(&error))).collect(),
        };
        for (reply, answer) in replies.into_iter().zip(answers) {
            // A caller that has stopped waiting does not matter.
            let _ = reply.send(answer);
        }
    }

    async fn settle_at_once(&self, queue: &Queue, items: &[SettleItem]) -> Result<Vec<Result<Settled>>> {
        Ok(transaction!(self, "settle", |tx| tx.settle_all(queue, items)))
    }
}
