//! Writes letters and notes to the store, many in one call.
//!
//! There is one writer per consumer. It collects the next batch while a call is in progress, so a slower
//! store gets larger batches. Every caller learns when its own write is durable.

use std::sync::Arc;

use lazaret_core::QueueName;
use lazaret_core::policy::CapacityPolicy;
use lazaret_core::store::{
    AttemptNote, Certainty, ErrorKind, HandOff, Limits, Placed, Result, Store, StoreError,
};
use tokio::sync::{mpsc, oneshot};

use crate::gate::MIN_FREE;
use crate::guards::Guards;
use crate::handed_off::bytes_of;
use crate::letters;
use crate::mutation::mutated;
use crate::options::Options;
use crate::store_refresh::beside_reserve;

/// The maximum number of requests that wait for the writer.
const WAITING_LIMIT: usize = 1024;
/// The maximum number of requests in one call.
const BATCH_LIMIT: usize = 512;

/// Sends requests to the writer.
#[derive(Clone, Debug)]
pub(crate) struct HandOffs {
    requests: mpsc::Sender<Request>,
}

#[derive(Debug)]
enum Request {
    HandOff { queue: QueueName, items: Vec<HandOff>, reply: oneshot::Sender<Vec<Result<Placed>>> },
    Note { queue: QueueName, note: Box<AttemptNote>, reply: oneshot::Sender<Result<()>> },
}

impl Request {
    /// Returns the size in bytes of the request's letters.
    fn bytes(&self) -> u64 {
        match self {
            Self::HandOff { items, .. } => bytes_of(items),
            Self::Note { .. } => 0,
        }
    }
}

impl HandOffs {
    /// Creates a sender and the receiving end for its writer.
    pub(crate) fn new() -> (Self, Inbound) {
        let (requests, inbound) = mpsc::channel(WAITING_LIMIT);
        (Self { requests }, Inbound(inbound))
    }

    /// Hands off letters. The results are in the order of the letters.
    pub(crate) async fn hand_off(&self, queue: &QueueName, items: Vec<HandOff>) -> Vec<Result<Placed>> {
        let count = items.len();
        let (reply, answer) = oneshot::channel();
        let request = Request::HandOff { queue: queue.clone(), items, reply };
        if self.requests.send(request).await.is_err() {
            return (0..count).map(|_| Err(ended("hand_off"))).collect();
        }
        match answer.await {
            Ok(answers) => answers,
            Err(_) => (0..count).map(|_| Err(lost("hand_off"))).collect(),
        }
    }

    /// Hands off one letter. The future does not hold the letter, because there is a future for each
    /// message in flight.
    pub(crate) fn hand_off_one(
        &self,
        queue: &QueueName,
        item: HandOff,
    ) -> impl Future<Output = Result<Placed>> + Send {
        let items = vec![item];
        async move { self.hand_off(queue, items).await.pop().unwrap_or_else(|| Err(lost("hand_off"))) }
    }

    /// Writes a note about the attempts of a message.
    pub(crate) fn note(
        &self,
        queue: &QueueName,
        note: AttemptNote,
    ) -> impl Future<Output = Result<()>> + Send {
        let (reply, answer) = oneshot::channel();
        let request = Request::Note { queue: queue.clone(), note: Box::new(note), reply };
        async move {
            self.requests.send(request).await.map_err(|_| ended("note_attempts"))?;
            answer.await.unwrap_or_else(|_| Err(lost("note_attempts")))
        }
    }
}

fn ended(operation: &'static str) -> StoreError {
    StoreError::not_done(ErrorKind::Unavailable, operation, "the consumer has ended")
}

fn lost(operation: &'static str) -> StoreError {
    StoreError::maybe(ErrorKind::Unavailable, operation, "the consumer ended before the store answered")
}

/// The receiving end of the writer's requests.
#[derive(Debug)]
pub(crate) struct Inbound(mpsc::Receiver<Request>);

/// Writes requests until all senders are dropped.
pub(crate) async fn write(
    mut inbound: Inbound,
    store: Arc<dyn Store>,
    options: Arc<Options>,
    guards: Arc<Guards>,
) {
    let limits = options.dead_letter.as_ref().map_or(Limits::NONE, |options| options.limits);
    let mut batch = Vec::with_capacity(BATCH_LIMIT);
    let mut turn = 0;
    while inbound.0.recv_many(&mut batch, BATCH_LIMIT).await > 0 {
        keep_reserve(&mut batch, &*store, &options, &guards).await;
        let mut queues: Vec<(QueueName, Batch)> = Vec::new();
        for request in batch.drain(..) {
            let queue = match &request {
                Request::HandOff { queue, .. } | Request::Note { queue, .. } => queue.clone(),
            };
            let at = queues.iter().position(|(known, _)| *known == queue).unwrap_or_else(|| {
                queues.push((queue, Batch::default()));
                queues.len() - 1
            });
            queues[at].1.add(request);
        }
        for (queue, batch) in queues {
            turn += u64::from(!mutated!(options, UnnumberedHandOffs));
            let bytes = bytes_of(&batch.items);
            let keeps_apart = !mutated!(options, ShareLetterIds);
            batch.write(&*store, &queue, &limits, turn, keeps_apart).await;
            guards.handed_off.add(bytes);
        }
    }
}

/// Refuses the hand-offs that would use the disk's reserve (I9). By then reading has stopped, or stops
/// with the first refusal. Messages that were read before may still become letters: their callers retry
/// until there is room.
async fn keep_reserve(batch: &mut Vec<Request>, store: &dyn Store, options: &Options, guards: &Guards) {
    let handed_off = &guards.handed_off;
    let bytes: u64 = batch.iter().map(Request::bytes).sum();
    if handed_off.fits(bytes) {
        return;
    }
    let capacity = options.dead_letter.as_ref().map_or(CapacityPolicy::NONE, |letters| letters.capacity);
    let before = handed_off.total();
    let room = match capacity.min_free {
        // If the store does not know its occupancy, there is no bound.
        Some(_) => store.occupancy().await.ok(),
        None => None,
    };
    handed_off.disk_measured(before, room.and_then(|room| beside_reserve(&capacity, &room)));
    let Some(disk) = room.and_then(|room| capacity.disk(&room)).filter(|_| !handed_off.fits(bytes)) else {
        return;
    };
    guards.ask_place(store).await;
    let why = format!("no room for more letters: {}", disk.describe(guards.place()));
    // The letters of a sequence are handed off in the order of the call: none passes a refused one.
    let (mut admitted, mut is_full) = (0, false);
    for request in std::mem::take(batch) {
        admitted += request.bytes();
        is_full = is_full || !handed_off.fits(admitted);
        match request {
            Request::HandOff { items, reply, .. } if is_full => {
                let _ = reply.send(items.iter().map(|_| Err(reserved(&why))).collect());
            }
            request => batch.push(request),
        }
    }
}

fn reserved(why: &str) -> StoreError {
    StoreError::not_done(ErrorKind::Full, "hand_off", why).with_limit(MIN_FREE)
}

/// The requests for one queue in one call.
#[derive(Default)]
struct Batch {
    items: Vec<HandOff>,
    hand_offs: Vec<(usize, oneshot::Sender<Vec<Result<Placed>>>)>,
    notes: Vec<AttemptNote>,
    noted: Vec<oneshot::Sender<Result<()>>>,
}

impl Batch {
    fn add(&mut self, request: Request) {
        match request {
            Request::HandOff { items, reply, .. } => {
                self.hand_offs.push((items.len(), reply));
                self.items.extend(items);
            }
            Request::Note { note, reply, .. } => {
                self.notes.push(*note);
                self.noted.push(reply);
            }
        }
    }

    /// Makes the calls and sends the replies. A dropped receiver is not an error here.
    async fn write(
        mut self,
        store: &dyn Store,
        queue: &QueueName,
        limits: &Limits,
        turn: u64,
        keeps_apart: bool,
    ) {
        if !self.notes.is_empty() {
            let result = store.note_attempts(queue, self.notes).await;
            for reply in self.noted {
                let _ = reply.send(result.as_ref().copied().map_err(again));
            }
        }
        if self.items.is_empty() {
            return;
        }
        for grant in self.items.iter_mut().filter_map(|item| item.grant.as_mut()) {
            grant.turn = turn;
        }
        let count = self.items.len();
        let called = match keeps_apart {
            true => letters::hand_off(store, queue, limits, self.items).await,
            false => store.hand_off(queue, limits, self.items).await,
        };
        let mut answers = match called {
            Ok(answers) if answers.len() == count => answers.into_iter(),
            Ok(_) => {
                let error =
                    StoreError::maybe(ErrorKind::Corrupt, "hand_off", "the store returned too few answers");
                all(count, &error).into_iter()
            }
            Err(error) => all(count, &error).into_iter(),
        };
        for (count, reply) in self.hand_offs {
            let _ = reply.send(answers.by_ref().take(count).collect());
        }
    }
}

fn all<T>(count: usize, error: &StoreError) -> Vec<Result<T>> {
    (0..count).map(|_| Err(again(error))).collect()
}

/// Copies the error for one more caller.
pub(crate) fn again(error: &StoreError) -> StoreError {
    let again = match error.certainty() {
        Certainty::NotDone => StoreError::not_done(error.kind(), error.operation(), error.context()),
        Certainty::MaybeDone => StoreError::maybe(error.kind(), error.operation(), error.context()),
    };
    match error.limit() {
        Some(limit) => again.with_limit(limit),
        None => again,
    }
}
