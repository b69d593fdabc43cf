//! Runs the steps of the model against a store, and translates the store's answers into the model's.

use std::sync::Arc;
use std::time::Duration;

use lazaret_core::store::{
    Actor, Claim, GrantFence, HandOff, Lease, LeaseUse, Limits, PauseScope, Placed, Requeue, Result, Settled,
    Settlement, Store, StoreError,
};
use lazaret_core::{
    Clock, Letter, LetterId, LetterState, Message, MessageId, Partition, Position, QueueName, SequenceId,
    Timestamp,
};

use super::{
    ALL_SEQUENCES, Answer, How, Item, LEASE, LIMITS, MESSAGES, Model, SEQUENCES, Step, Under, name, refused,
    sequence_of,
};
use crate::clock::{ManualClock, test_epoch};

/// A store that runs a sequence of steps.
pub(super) struct Driver<S> {
    store: S,
    clock: ManualClock,
    queue: QueueName,
    leases: Vec<Lease>,
    grants: Vec<u64>,
    /// The number of delivered messages. The model's source never goes back.
    delivered: u64,
}

fn id(message: u64) -> MessageId {
    MessageId::from(format!("m{message:02}"))
}

fn number(letter: &Letter) -> u64 {
    let digits = letter.message.id.as_str().strip_prefix('m');
    digits.and_then(|digits| digits.parse().ok()).expect("the model numbers its messages")
}

fn queue() -> QueueName {
    QueueName::of("orders", "orders")
}

fn sequence(index: usize) -> SequenceId {
    match index.checked_sub(SEQUENCES.len()) {
        None => SEQUENCES[index].into(),
        Some(message) => {
            let message = message as u64;
            sequence(sequence_of(message)).detached(LetterId::of(&queue(), &id(message)))
        }
    }
}

fn seconds(time: Timestamp) -> u64 {
    time.duration_since(test_epoch()).as_secs().try_into().expect("time runs forward from the beginning")
}

fn operator() -> Actor {
    Actor::new("ada", "cli", "model")
}

fn settled(answer: Result<Settled>) -> Answer {
    let line = match answer {
        Ok(Settled::Next(letter)) => format!("next {}", number(&letter)),
        Ok(Settled::Closed) => "closed".into(),
        Ok(Settled::Blocked) => "blocked".into(),
        Ok(Settled::Requeued) => "requeued".into(),
        Err(error) => return refused(error.kind()),
    };
    vec![line]
}

fn placed(answer: &Result<Placed>) -> String {
    match answer {
        Ok(Placed::Opened) => "opened".into(),
        Ok(Placed::Appended) => "appended".into(),
        Ok(Placed::Closed) => "closed".into(),
        Ok(Placed::Held(state)) => format!("held {state}"),
        Ok(Placed::NotOpen(_)) => "not open".into(),
        Err(error) => refused(error.kind()).concat(),
    }
}

fn answered<T>(answer: Result<T>, text: impl FnOnce(T) -> String) -> Answer {
    answer.map_or_else(|error: StoreError| refused(error.kind()), |value| vec![text(value)])
}

const REFUSED: &str = "the store does what the model never refuses";

impl<S: Store> Driver<S> {
    pub(super) async fn new<F: Future<Output = S>>(make: impl Fn(Arc<dyn Clock>) -> F) -> Self {
        let clock = ManualClock::new();
        let store = make(Arc::new(clock.clone())).await;
        let queue = queue();
        Self { store, clock, queue, leases: Vec::new(), grants: Vec::new(), delivered: 0 }
    }

    fn partition() -> Partition {
        Partition::new("orders", 0)
    }

    /// Runs a step. The model stands as it was before it.
    pub(super) async fn run(&mut self, step: &Step, model: &Model) -> Answer {
        match step {
            Step::Assign => {
                let grants = self.store.assign(&self.queue, &[Self::partition()]).await.expect(REFUSED);
                self.grants.push(grants[0].fence);
                vec![format!("horizon {:?}", grants[0].horizon)]
            }
            Step::HandOff { items, grant, limited } => self.hand_off(items, *grant, *limited).await,
            Step::ClaimDue { one } => self.claim_due(model.claim_limit(*one)).await,
            Step::Claim { sequence: index } => {
                let (sequence, lease) = (sequence(*index), Duration::from_secs(LEASE));
                let claim = self.store.claim(&self.queue, &sequence, "replay", lease).await.expect(REFUSED);
                self.note_claims(claim.into_iter().collect())
            }
            Step::Settle { lease, second, how } => match model.pick_lease(*lease) {
                Some(lease) => self.settle(lease, model.settled_message(lease, *second), *how).await,
                None => vec![],
            },
            Step::Renew { lease } => match model.pick_lease(*lease) {
                Some(lease) => {
                    let (lease, length) = (&self.leases[lease], Duration::from_secs(LEASE));
                    let renewed = self.store.renew(lease, length, LeaseUse::Attempt).await;
                    answered(renewed, |_| "renewed".into())
                }
                None => vec![],
            },
            Step::Release { lease } => {
                if let Some(lease) = model.pick_lease(*lease) {
                    self.store.release(&self.leases[lease]).await.expect(REFUSED);
                }
                vec![]
            }
            Step::Act { message, act } => {
                let letter = LetterId::of(&self.queue, &id(*message));
                let answer = self.store.act(&self.queue, letter, *act, &operator()).await;
                answered(answer, |letter| letter.state.to_string())
            }
            Step::Clear => {
                let cleared = self.store.clear(&self.queue, &operator()).await.expect(REFUSED);
                vec![format!("{} evicted, {} busy", cleared.evicted, cleared.busy)]
            }
            Step::Pause { sequence: index } => {
                let scope = PauseScope::Sequence(sequence(*index));
                self.store.pause(&"orders".into(), scope, &operator()).await.expect(REFUSED);
                vec![]
            }
            Step::Resume { sequence: index } => {
                let scope = PauseScope::Sequence(sequence(*index));
                vec![
                    self.store
                        .resume(&"orders".into(), &scope, &operator())
                        .await
                        .expect(REFUSED)
                        .to_string(),
                ]
            }
            Step::Advance { seconds } => {
                self.clock.advance(Duration::from_secs(*seconds));
                vec![]
            }
        }
    }

    async fn hand_off(&mut self, items: &[Item], grant: Under, limited: bool) -> Answer {
        // A fence that was never given stands for "old" where there is none.
        let fence = match grant {
            Under::None => None,
            Under::Current => Some(self.grants.last().copied().unwrap_or(u64::MAX >> 1)),
            Under::Old => Some(self.grants.iter().rev().nth(1).copied().unwrap_or(u64::MAX >> 1)),
        };
        let first = self.delivered;
        self.delivered += items.len() as u64;
        let items = items.iter().zip(first..).map(|(item, offset)| HandOff {
            letter: self.letter(item, offset),
            placement: item.placement,
            grant: fence.map(|fence| GrantFence { partition: Self::partition(), fence, turn: 0 }),
        });
        let limits = if limited { LIMITS } else { Limits::NONE };
        let answers = self.store.hand_off(&self.queue, &limits, items.collect()).await.expect(REFUSED);
        answers.iter().map(placed).collect()
    }

    fn letter(&self, item: &Item, offset: u64) -> Letter {
        let message = Message::new(id(item.message), "orders", Position::new(0, offset));
        let now = self.clock.now();
        let mut letter =
            Letter::new(self.queue.clone(), sequence(sequence_of(item.message)), message.into(), now);
        letter.state = item.state;
        letter.attempts = 1;
        letter.due_at = (item.state == LetterState::Retrying).then(|| now + Duration::from_secs(item.delay));
        letter
    }

    async fn claim_due(&mut self, limit: usize) -> Answer {
        let claims = self.store.claim_due(&self.queue, "scheduler", Duration::from_secs(LEASE), limit);
        let mut claims = claims.await.expect(REFUSED);
        let dues = claims.iter().filter(|claim| claim.head.state == LetterState::Retrying);
        assert!(dues.map(|claim| claim.head.due_at).is_sorted(), "the earliest due comes first");
        claims.sort_by_key(|claim| index_of(&claim.lease.sequence));
        self.note_claims(claims)
    }

    fn note_claims(&mut self, claims: Vec<Claim>) -> Answer {
        let lines = claims.iter().map(|claim| {
            assert_eq!(seconds(claim.lease.until), seconds(self.clock.now()) + LEASE);
            let sequence = name(index_of(&claim.lease.sequence));
            format!("{sequence}: {:?}", Some(number(&claim.head)))
        });
        let lines = lines.collect();
        self.leases.extend(claims.into_iter().map(|claim| claim.lease));
        lines
    }

    async fn settle(&self, lease: usize, message: u64, how: How) -> Answer {
        let letter = LetterId::of(&self.queue, &id(message));
        let settlement = match how {
            How::Resolve => Settlement::Resolve(None),
            How::Evict => Settlement::Evict("model".into()),
            How::Skip => Settlement::Skip("model".into()),
            How::Requeue(..) | How::Leave => {
                let (state, delay) = match how {
                    How::Requeue(state, delay) => (state, delay),
                    _ => (LetterState::Dead, 0),
                };
                let stored = self.store.get(&self.queue, letter).await.expect(REFUSED);
                let attempts = stored.map_or(0, |letter| letter.attempts) + 1;
                let due_at =
                    (state == LetterState::Retrying).then(|| self.clock.now() + Duration::from_secs(delay));
                Settlement::Requeue(Box::new(Requeue {
                    state,
                    due_at,
                    cause: None,
                    attempts,
                    crash_attempts: 0,
                    replay_attempts: 0,
                    poison: attempts > 3,
                    diagnostics: Default::default(),
                    attempt: None,
                    leave_out_payload: false,
                    detach: matches!(how, How::Leave),
                    expires_at: None,
                }))
            }
        };
        settled(self.store.settle(&self.leases[lease], letter, settlement).await)
    }

    /// Everything that can be observed, as the model writes it.
    pub(super) async fn observe(&self) -> Answer {
        let mut lines = Vec::new();
        let opened = self.opened().await;
        let left = opened.iter().copied().filter(|index| *index >= SEQUENCES.len());
        for index in (0..SEQUENCES.len()).chain(left) {
            let (sequence, name) = (sequence(index), name(index));
            let full = self.store.is_full(&self.queue, &sequence, &LIMITS).await.expect(REFUSED);
            lines.push(format!("{name}: full {full}"));
            let letters = self.store.sequence(&self.queue, &sequence, 0, 1000).await.expect(REFUSED);
            let size = self.store.sequence_size(&self.queue, &sequence).await.expect(REFUSED);
            assert_eq!(size, letters.len() as u64, "the size is that of the list");
            assert!(letters.is_sorted_by(|one, other| one.index < other.index), "indexes grow");
            lines.extend(letters.iter().map(|letter| describe(&name, letter)));
        }
        let messages: Vec<MessageId> = (0..MESSAGES).map(id).collect();
        let states = self.store.lookup(&self.queue, &messages).await.expect(REFUSED);
        lines.extend(states.iter().enumerate().map(|(message, state)| format!("{message}: {state:?}")));
        lines.push(format!("heads {:?}", self.heads().await));
        lines.push(format!("opened {opened:?}"));
        let counts = self.store.counts(&self.queue).await.expect(REFUSED);
        lines.push(format!("counts {:?} sequences {}", counts.by_state, counts.sequences));
        let next_due = self.store.next_due(&self.queue).await.expect(REFUSED);
        let next_due = next_due.map(|due| seconds(due.max(self.clock.now())));
        lines.push(format!("next due {next_due:?}"));
        let pauses = self.store.pauses(&"orders".into()).await.expect(REFUSED);
        let mut paused: Vec<usize> = (0..SEQUENCES.len()).collect();
        paused
            .retain(|index| pauses.iter().any(|pause| pause.scope == PauseScope::Sequence(sequence(*index))));
        lines.push(format!("paused {paused:?}"));
        lines.push(format!("audited {}", self.store.audit(0, 10_000).await.expect(REFUSED).len()));
        lines
    }

    /// The heads in small pages. Those touched at one time come in any order.
    async fn heads(&self) -> Vec<(u64, usize)> {
        let (mut heads, mut after) = (Vec::new(), None);
        loop {
            let page = self.store.heads(&self.queue, after.as_deref(), 3).await.expect(REFUSED);
            heads.extend(
                page.heads.iter().map(|head| (seconds(head.last_touched_at), index_of(&head.sequence))),
            );
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        assert!(heads.is_sorted_by_key(|(touched, _)| *touched), "the oldest touched comes first");
        heads.sort_unstable();
        heads
    }

    async fn opened(&self) -> Vec<usize> {
        let (mut sequences, mut revision) = (Vec::new(), 0);
        loop {
            let page = self.store.opened_since(&self.queue, revision, 3).await.expect(REFUSED);
            sequences.extend(page.sequences.iter().map(index_of));
            revision = page.revision;
            if !page.more {
                break;
            }
        }
        sequences.sort_unstable();
        sequences.dedup();
        sequences
    }
}

fn index_of(sequence: &SequenceId) -> usize {
    let found = (0..ALL_SEQUENCES).find(|index| self::sequence(*index) == *sequence);
    found.expect("the model names every sequence")
}

fn describe(name: &str, letter: &Letter) -> String {
    let (message, state, attempts, poison) = (number(letter), letter.state, letter.attempts, letter.poison);
    let due = letter.due_at.map(seconds);
    let (enqueued, touched) = (seconds(letter.enqueued_at), seconds(letter.last_touched_at));
    format!(
        "{name}: {message} {state} due {due:?} attempts {attempts} poison {poison} at {enqueued} {touched}"
    )
}
