//! Work of many callers, done together.
//!
//! A document that many calls change by compare-and-set lets one of them through at a time; the others read it again. And each call about one
//! letter waits for as many responses as a call about a hundred. So callers of one process line up, and a worker does all that waits at
//! once. While it waits for the server, the next callers line up: the busier the store, the more letters share a command.

use std::collections::{BTreeSet, VecDeque};
use std::marker::PhantomData;
use std::sync::{Mutex, MutexGuard, PoisonError};

use lazaret_core::store::{Certainty, ErrorKind, Result, StoreError};
use tokio::sync::oneshot;

use crate::store::MongoStore;

/// One kind of work.
pub(crate) trait Work: Sized + Send + Sync + 'static {
    /// The request of one caller.
    type Item: Send + 'static;
    /// The answer to it.
    type Answer: Send + 'static;
    /// Only items of the same kind are done together.
    type Kind: PartialEq;
    /// Two items with the same key are done one after the other.
    type Key: Ord;

    /// Maximum number of items that are done together (I7).
    const MOST: usize;
    /// Number of workers at the same time.
    const WORKERS: usize;

    /// The queue in which callers of this work line up.
    fn line(store: &MongoStore) -> &Line<Self>;

    /// The kind of an item.
    fn kind(item: &Self::Item) -> Self::Kind;

    /// The key of an item; `None` if it does not matter what is done with it.
    fn key(item: &Self::Item) -> Option<Self::Key>;

    /// Does the work. Returns an answer for each item, in their order.
    fn run(
        store: &MongoStore,
        items: Vec<Self::Item>,
    ) -> impl Future<Output = Vec<Result<Self::Answer>>> + Send;
}

/// The callers that wait for one kind of work.
pub(crate) struct Line<W: Work> {
    state: Mutex<State<W>>,
}

struct State<W: Work> {
    waiting: VecDeque<Waiting<W>>,
    workers: usize,
}

struct Waiting<W: Work> {
    item: W::Item,
    reply: oneshot::Sender<Result<W::Answer>>,
}

impl<W: Work> Default for Line<W> {
    fn default() -> Self {
        Self { state: Mutex::new(State { waiting: VecDeque::new(), workers: 0 }) }
    }
}

impl<W: Work> Line<W> {
    fn lock(&self) -> MutexGuard<'_, State<W>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<W: Work> State<W> {
    /// Takes items that are done together: those of the first one's kind, with different keys.
    fn take(&mut self) -> Vec<Waiting<W>> {
        let Some(kind) = self.waiting.front().map(|first| W::kind(&first.item)) else { return Vec::new() };
        let mut keys = BTreeSet::new();
        let (mut taken, mut left) = (Vec::new(), VecDeque::new());
        for one in self.waiting.drain(..) {
            let fits = taken.len() < W::MOST
                && W::kind(&one.item) == kind
                && W::key(&one.item).is_none_or(|key| keys.insert(key));
            if fits { taken.push(one) } else { left.push_back(one) }
        }
        self.waiting = left;
        taken
    }
}

/// A running worker. One that panics, or whose runtime ends, is counted out.
struct Worker<W: Work> {
    store: MongoStore,
    counted: bool,
    work: PhantomData<W>,
}

impl<W: Work> Worker<W> {
    /// Works until nothing waits.
    async fn run(mut self) {
        while let Some(batch) = self.next_batch() {
            let (items, replies): (Vec<_>, Vec<_>) =
                batch.into_iter().map(|one| (one.item, one.reply)).unzip();
            let answers = Box::pin(W::run(&self.store, items)).await;
            for (reply, answer) in replies.into_iter().zip(answers) {
                // A caller that has left does not matter.
                let _ = reply.send(answer);
            }
        }
    }

    /// The next items. Without any, the worker is counted out under the same lock, so that the next caller starts another one.
    fn next_batch(&mut self) -> Option<Vec<Waiting<W>>> {
        let mut state = W::line(&self.store).lock();
        let batch = state.take();
        if batch.is_empty() {
            state.workers -= 1;
            self.counted = false;
            return None;
        }
        Some(batch)
    }
}

impl<W: Work> Drop for Worker<W> {
    fn drop(&mut self) {
        if self.counted {
            W::line(&self.store).lock().workers -= 1;
        }
    }
}

/// Has an item done, together with those of other callers.
pub(crate) async fn done_together<W: Work>(store: &MongoStore, item: W::Item) -> Result<W::Answer> {
    let (reply, answer) = oneshot::channel();
    let starts = {
        let mut state = W::line(store).lock();
        state.waiting.push_back(Waiting { item, reply });
        let starts = state.workers < W::WORKERS;
        state.workers += usize::from(starts);
        starts
    };
    if starts {
        let work = PhantomData;
        tokio::spawn(Worker::<W> { store: store.clone(), counted: true, work }.run());
    }
    answer.await.unwrap_or_else(|_| {
        let context = "the runtime ended before the server answered";
        Err(StoreError::maybe(ErrorKind::Unavailable, "write", context))
    })
}

/// The same answer for so many callers.
pub(crate) fn same_for_all(answer: Result<()>, callers: usize) -> Vec<Result<()>> {
    let again = |_| answer.as_ref().copied().map_err(repeated);
    (0..callers).map(again).collect()
}

/// The same error, for another caller.
pub(crate) fn repeated(error: &StoreError) -> StoreError {
    match error.certainty() {
        Certainty::NotDone => StoreError::not_done(error.kind(), error.operation(), error.context()),
        Certainty::MaybeDone => StoreError::maybe(error.kind(), error.operation(), error.context()),
    }
}

#[cfg(test)]
mod tests {
    use mongodb::Client;

    use super::*;
    use crate::MongoStoreOptions;
    use crate::leases::{SettleItem, Settlements};

    fn waiting(queue: &str, sequence: &str) -> Waiting<Settlements> {
        let item = SettleItem::test(&queue.into(), &sequence.into());
        Waiting { item, reply: oneshot::channel().0 }
    }

    fn sequences(taken: &[Waiting<Settlements>]) -> Vec<&str> {
        taken.iter().map(|one| one.item.sequence().as_str()).collect()
    }

    #[test]
    fn settlements_of_different_sequences_of_a_queue_are_done_together() {
        let mut state = State { waiting: VecDeque::new(), workers: 0 };
        let all = [("q/q", "a"), ("q/q", "b"), ("q/q", "a"), ("r/r", "a"), ("q/q", "c")];
        state.waiting.extend(all.map(|(queue, sequence)| waiting(queue, sequence)));
        assert_eq!(sequences(&state.take()), ["a", "b", "c"]);
        assert_eq!(sequences(&state.take()), ["a"], "the second one of its sequence");
        assert_eq!(sequences(&state.take()), ["a"], "that of the other queue");
        assert!(state.take().is_empty());
    }

    #[test]
    fn a_batch_is_bounded() {
        // I7
        let mut state = State { waiting: VecDeque::new(), workers: 0 };
        state.waiting.extend((0..Settlements::MOST + 3).map(|number| waiting("q/q", &number.to_string())));
        assert_eq!(state.take().len(), Settlements::MOST);
        assert_eq!(state.take().len(), 3);
    }

    #[tokio::test]
    async fn callers_get_the_error_of_their_batch_and_the_next_ones_are_served() {
        let uri = "mongodb://127.0.0.1:1/?directConnection=true&serverSelectionTimeoutMS=50";
        let client = Client::with_uri_str(uri).await.unwrap();
        let store = MongoStore::unchecked(&client, "shop", MongoStoreOptions::default());
        for _ in 0..2 {
            let item = |sequence: &str| SettleItem::test(&"q/q".into(), &sequence.into());
            let (one, other) = tokio::join!(
                done_together::<Settlements>(&store, item("a")),
                done_together::<Settlements>(&store, item("b")),
            );
            for error in [one.unwrap_err(), other.unwrap_err()] {
                assert_eq!((error.kind(), error.certainty()), (ErrorKind::Unavailable, Certainty::NotDone));
            }
        }
        assert_eq!(Settlements::line(&store).lock().workers, 0, "an idle worker ends");
    }
}
