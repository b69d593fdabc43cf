//! What the cases about letters share.

use std::future::Future;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use lazaret_core::letter::{AttemptKind, AttemptRecord};
use lazaret_core::store::{
    Act, Actor, AuditEntry, Claim, ErrorKind, GrantFence, HandOff, Limits, PauseScope, Placed, Placement,
    Requeue, Result, Settled, Settlement, Store,
};
use lazaret_core::{
    Clock, ConsumerName, Failure, Letter, LetterId, LetterState, Message, MessageId, Partition, Position,
    QueueName, Reason, SequenceId,
};

use crate::suite::{Backend, secs};

/// A letter store and one queue.
pub struct Fixture<S> {
    backend: Backend<S>,
    /// The queue that the cases use: `orders/orders`.
    pub queue: QueueName,
    offset: AtomicU64,
}

impl<S> Deref for Fixture<S> {
    type Target = Backend<S>;

    fn deref(&self) -> &Backend<S> {
        &self.backend
    }
}

/// The operator who acts.
pub fn operator() -> Actor {
    Actor::new("ada", "cli", "the service is back")
}

/// The settlement of a handled letter.
pub fn resolve() -> Settlement {
    Settlement::Resolve(None)
}

pub(in crate::suite) fn requeued(requeue: Requeue) -> Settlement {
    Settlement::Requeue(Box::new(requeue))
}

/// The settlement of a letter that failed again, unchanged.
pub(in crate::suite) fn fail_again(letter: &Letter) -> Settlement {
    requeued(Requeue::of(letter))
}

pub(in crate::suite) fn failure(message: &str) -> Failure {
    Failure::new(Reason::TIMEOUT, "HttpError", message)
}

pub(in crate::suite) fn seq(text: &str) -> SequenceId {
    text.into()
}

/// The message ids of letters.
pub(in crate::suite) fn ids<'a>(letters: impl IntoIterator<Item = &'a Letter>) -> Vec<&'a str> {
    letters.into_iter().map(|letter| letter.message.id.as_str()).collect()
}

pub(in crate::suite) fn kind<T: std::fmt::Debug>(result: Result<T>) -> ErrorKind {
    result.expect_err("the store should have refused").kind()
}

/// The duration of a lease in the cases.
pub(in crate::suite) const LEASE: Duration = secs(30);

impl<S> Fixture<S> {
    /// A fixture for the store that `make` makes with a clock.
    pub async fn new<F, M>(make: M) -> Self
    where
        M: FnOnce(Arc<dyn Clock>) -> F,
        F: Future<Output = S>,
    {
        Self {
            backend: Backend::new(make).await,
            queue: QueueName::of("orders", "orders"),
            offset: AtomicU64::new(0),
        }
    }

    pub(in crate::suite) fn consumer(&self) -> ConsumerName {
        self.queue.consumer().into()
    }

    pub(in crate::suite) fn partition(&self) -> Partition {
        Partition::new("orders", 0)
    }

    /// A message of partition 0, behind all that were made before.
    pub(in crate::suite) fn message(&self, sequence: &str, id: &str) -> Message {
        let offset = self.offset.fetch_add(1, Ordering::Relaxed);
        Message::new(id, "orders", Position::new(0, offset)).with_key(sequence.to_owned()).with_payload("{}")
    }

    /// A letter that waits.
    pub(in crate::suite) fn waiting(&self, sequence: &str, id: &str) -> Letter {
        let message = self.message(sequence, id).into();
        Letter::new(self.queue.clone(), seq(sequence), message, self.now())
    }

    /// A dead letter.
    pub(in crate::suite) fn dead(&self, sequence: &str, id: &str) -> Letter {
        let mut letter = self.waiting(sequence, id);
        letter.state = LetterState::Dead;
        letter.cause = Some(failure("boom"));
        letter.attempts = 3;
        letter.first_failed_at = Some(self.now());
        letter.last_failed_at = Some(self.now());
        letter
    }

    /// A letter that is to be retried after this time.
    pub(in crate::suite) fn retrying(&self, sequence: &str, id: &str, after: Duration) -> Letter {
        let mut letter = self.dead(sequence, id);
        letter.state = LetterState::Retrying;
        letter.attempts = 1;
        letter.due_at = Some(self.now() + after);
        letter
    }

    pub(in crate::suite) fn id_of(&self, message: &str) -> LetterId {
        LetterId::of(&self.queue, &MessageId::from(message))
    }

    /// A failed attempt that ended now.
    pub(in crate::suite) fn failed_attempt(&self, attempt: u32, message: &str) -> AttemptRecord {
        let failure = Some(failure(message));
        AttemptRecord { attempt, kind: AttemptKind::Retry, at: self.now(), took: secs(1), failure }
    }
}

impl<S: Store> Fixture<S> {
    pub(in crate::suite) async fn try_put(
        &self,
        letter: Letter,
        placement: Placement,
        limits: &Limits,
    ) -> Result<Placed> {
        let queue = letter.queue.clone();
        let items = vec![HandOff { letter, placement, grant: None }];
        self.store.hand_off(&queue, limits, items).await?.remove(0)
    }

    pub(in crate::suite) async fn put(&self, letter: Letter, placement: Placement) -> Placed {
        self.try_put(letter, placement, &Limits::NONE).await.expect("there are no limits and no grants")
    }

    /// Opens a sequence, or appends to it, without limits.
    pub(in crate::suite) async fn open(&self, letter: Letter) -> Placed {
        self.put(letter, Placement::Open).await
    }

    /// Appends behind a sequence if it is open, without limits.
    pub(in crate::suite) async fn behind(&self, letter: Letter) -> Placed {
        self.put(letter, Placement::Behind).await
    }

    /// Hands off a message under a grant.
    pub(in crate::suite) async fn under_grant(
        &self,
        letter: Letter,
        placement: Placement,
        fence: u64,
    ) -> Result<Placed> {
        let grant = Some(GrantFence { partition: letter.message.partition(), fence, turn: 0 });
        let items = vec![HandOff { letter, placement, grant }];
        self.store.hand_off(&self.queue, &Limits::NONE, items).await?.remove(0)
    }

    /// Opens a sequence with one dead letter, or appends one, and gives it as it is stored.
    pub(in crate::suite) async fn enqueue(&self, sequence: &str, message: &str) -> Letter {
        self.open(self.dead(sequence, message)).await;
        self.get(message).await
    }

    /// Fills a sequence with dead letters `sequence-0`, `sequence-1`, ….
    pub(in crate::suite) async fn fill(&self, sequence: &str, count: usize) {
        let items = (0..count).map(|n| HandOff {
            letter: self.dead(sequence, &format!("{sequence}-{n}")),
            placement: Placement::Open,
            grant: None,
        });
        for placed in self.store.hand_off(&self.queue, &Limits::NONE, items.collect()).await.unwrap() {
            placed.unwrap();
        }
    }

    pub(in crate::suite) async fn get(&self, message: &str) -> Letter {
        let letter = self.store.get(&self.queue, self.id_of(message)).await.unwrap();
        letter.unwrap_or_else(|| panic!("message {message} has no letter"))
    }

    pub(in crate::suite) async fn state(&self, message: &str) -> LetterState {
        self.get(message).await.state
    }

    pub(in crate::suite) async fn size(&self, sequence: &str) -> u64 {
        self.store.sequence_size(&self.queue, &seq(sequence)).await.unwrap()
    }

    pub(in crate::suite) async fn contains(&self, sequence: &str) -> bool {
        self.size(sequence).await > 0
    }

    /// The open letters of a sequence.
    pub(in crate::suite) async fn list(&self, sequence: &str) -> Vec<Letter> {
        self.store.sequence(&self.queue, &seq(sequence), 0, usize::MAX >> 1).await.unwrap()
    }

    /// The message ids of the open letters of a sequence.
    pub(in crate::suite) async fn messages(&self, sequence: &str) -> Vec<String> {
        self.list(sequence).await.iter().map(|letter| letter.message.id.to_string()).collect()
    }

    /// All heads, page by page.
    pub(in crate::suite) async fn heads(&self, page: usize) -> Vec<Letter> {
        let (mut heads, mut after) = (Vec::new(), None);
        loop {
            let answer = self.store.heads(&self.queue, after.as_deref(), page).await.unwrap();
            assert!(answer.heads.len() <= page, "a page holds at most its limit");
            heads.extend(answer.heads);
            after = answer.next;
            if after.is_none() {
                return heads;
            }
        }
    }

    /// All open sequences, page by page, as a new owner reads them.
    pub(in crate::suite) async fn opened(&self, page: usize) -> Vec<String> {
        let (mut sequences, mut revision) = (Vec::new(), 0);
        loop {
            let answer = self.store.opened_since(&self.queue, revision, page).await.unwrap();
            assert!(answer.sequences.len() <= page, "a page holds at most its limit");
            sequences.extend(answer.sequences.iter().map(ToString::to_string));
            revision = answer.revision;
            if !answer.more {
                return sequences;
            }
        }
    }

    pub(in crate::suite) async fn claim(&self, sequence: &str, owner: &str) -> Option<Claim> {
        self.store.claim(&self.queue, &seq(sequence), owner, LEASE).await.unwrap()
    }

    /// Claims what is due.
    pub(in crate::suite) async fn due(&self, owner: &str, limit: usize) -> Vec<Claim> {
        self.store.claim_due(&self.queue, owner, LEASE, limit).await.unwrap()
    }

    /// Claims the only sequence that is due.
    pub(in crate::suite) async fn due_one(&self, owner: &str) -> Claim {
        let mut claims = self.due(owner, 10).await;
        assert_eq!(claims.len(), 1, "exactly one sequence is due");
        claims.remove(0)
    }

    pub(in crate::suite) async fn settle(
        &self,
        claim: &Claim,
        letter: &Letter,
        settlement: Settlement,
    ) -> Result<Settled> {
        self.store.settle(&claim.lease, letter.id, settlement).await
    }

    pub(in crate::suite) async fn act(&self, message: &str, act: Act) -> Result<Letter> {
        self.store.act(&self.queue, self.id_of(message), act, &operator()).await
    }

    pub(in crate::suite) async fn pause(&self, sequence: &str) {
        self.store.pause(&self.consumer(), PauseScope::Sequence(seq(sequence)), &operator()).await.unwrap();
    }

    pub(in crate::suite) async fn audit(&self) -> Vec<AuditEntry> {
        self.store.audit(0, 1000).await.unwrap()
    }

    /// Axon's `process`: claims the oldest touched head that fits and is not leased, and works its sequence down until a
    /// letter stays or none is left. Returns `true` when none is left.
    pub(in crate::suite) async fn process(
        &self,
        fits: impl Fn(&Letter) -> bool,
        mut task: impl FnMut(&Letter) -> Settlement,
    ) -> bool {
        for head in self.heads(10).await.iter().filter(|head| fits(head)) {
            let claimed = self.store.claim(&self.queue, &head.sequence, "processor", LEASE).await.unwrap();
            let Some(Claim { lease, head, .. }) = claimed else { continue };
            let mut letter = head;
            loop {
                match self.store.settle(&lease, letter.id, task(&letter)).await.unwrap() {
                    Settled::Next(next) => letter = *next,
                    Settled::Closed => return true,
                    Settled::Requeued => return false,
                    Settled::Blocked => panic!("a replay goes on whatever the state"),
                }
            }
        }
        false
    }

    /// Processes anything, with success, and says what was seen.
    pub(in crate::suite) async fn process_all(&self) -> (bool, Vec<String>) {
        let mut seen = Vec::new();
        let done = self.process(
            |_| true,
            |letter| {
                seen.push(letter.message.id.to_string());
                resolve()
            },
        );
        (done.await, seen)
    }
}
