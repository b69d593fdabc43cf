//! Randomized comparison with the in-memory store: the same calls give the same letters, groups, queues, plans and
//! operations, and the counters in the file equal the sums over the letters. So bulk SQL is checked against the rules of the
//! core, which the in-memory store applies.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use lazaret_core::query::Query;
use lazaret_core::store::{
    Act, Action, Actor, Audit, Change, Command, GrantFence, Group, GroupsRequest, HandOff, Lease,
    LetterStore, Limits, OperationId, Operations, Placement, PlanId, PlanRequest, Requeue, RolloutPolicy,
    Selection, Settled, Settlement, StoreError, Triage,
};
use lazaret_core::{
    Clock, Failure, Letter, LetterId, LetterState, Message, MessageId, Partition, Position, QueueName,
    Reason, SequenceId,
};
use lazaret_memory::MemoryStore;
use lazaret_testkit::ManualClock;

use crate::consistency::check;
use crate::{Durability, Options, SqliteStore};

const STEPS: u64 = 400;
const MESSAGES: u64 = 40;
const QUEUES: [&str; 2] = ["orders/orders", "orders/mails"];
const LEASE: Duration = Duration::from_secs(300);

/// How the messages of a run are handed off.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Under the grant of their partition.
    Granted,
    /// Without one, as imports are.
    Imported,
}

/// A pseudo-random number generator (Knuth's MMIX), sufficient to choose calls.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }

    fn pick<T: Clone>(&mut self, of: &[T]) -> T {
        of[usize::try_from(self.below(of.len() as u64)).unwrap()].clone()
    }
}

/// A call, with all that it is called with.
#[derive(Clone, Debug)]
enum Call {
    HandOff(Vec<(Letter, Placement)>),
    Claim(SequenceId),
    Settle(SequenceId, How),
    Release(SequenceId),
    Act(u64, Act),
    Change(u64, Change),
    Purge(u64),
    Expire(Option<Duration>),
    Clear,
    Freeze(Action, &'static str),
    Begin(RolloutPolicy),
    Poll(usize),
    Command(Command),
}

#[derive(Clone, Debug)]
enum How {
    Resolve,
    Evict,
    Skip,
    Requeue(LetterState, Option<Failure>),
}

/// A store and the state of its callers.
struct Driver<S> {
    store: S,
    clock: ManualClock,
    kind: Kind,
    leases: BTreeMap<(QueueName, SequenceId), (Lease, LetterId)>,
    fences: BTreeMap<QueueName, u64>,
    /// The plan that was frozen last, and the operation that was begun last.
    plan: Option<PlanId>,
    operation: Option<OperationId>,
}

fn by() -> Actor {
    Actor::new("ada", "cli", "why not")
}

fn partition() -> Partition {
    Partition::new("orders", 0)
}

fn id(queue: &QueueName, message: u64) -> LetterId {
    LetterId::of(queue, &MessageId::from(format!("m{message}")))
}

fn text_of<T: std::fmt::Debug>(answer: Result<T, StoreError>) -> String {
    match answer {
        Ok(value) => format!("{value:?}"),
        Err(error) => format!("{:?}", error.kind()),
    }
}

/// A letter as both stores should have it: they number their places differently.
fn comparable(letter: Letter) -> Letter {
    Letter { index: 0, ..letter }
}

impl<S: LetterStore + Operations + Triage + Audit> Driver<S> {
    fn new(store: S, clock: &ManualClock, kind: Kind) -> Self {
        let (leases, fences) = (BTreeMap::new(), BTreeMap::new());
        Self { store, clock: clock.clone(), kind, leases, fences, plan: None, operation: None }
    }

    async fn call(&mut self, queue: &QueueName, call: Call) -> String {
        let now = self.clock.now();
        match call {
            Call::HandOff(letters) => {
                if !self.fences.contains_key(queue) {
                    let grant = self.store.assign(queue, &[partition()]).await.unwrap().remove(0);
                    self.fences.insert(queue.clone(), grant.fence);
                }
                let grant = GrantFence { partition: partition(), fence: self.fences[queue], turn: 0 };
                let items = letters.into_iter().map(|(letter, placement)| HandOff {
                    letter,
                    placement,
                    grant: Some(grant.clone()).filter(|_| self.kind == Kind::Granted),
                });
                let limits = Limits { max_sequences: Some(4), max_sequence_size: Some(6) };
                let answers = self.store.hand_off(queue, &limits, items.collect()).await.unwrap();
                answers.into_iter().map(text_of).collect::<Vec<_>>().join(", ")
            }
            Call::Claim(sequence) => {
                let claim = self.store.claim(queue, &sequence, "w", LEASE).await.unwrap();
                let head = claim.as_ref().map(|claim| claim.head.message.id.clone());
                if let Some(claim) = claim {
                    self.leases.insert((queue.clone(), sequence), (claim.lease, claim.head.id));
                }
                format!("{head:?}")
            }
            Call::Release(sequence) => match self.leases.remove(&(queue.clone(), sequence)) {
                Some((lease, _)) => text_of(self.store.release(&lease).await),
                None => "no lease".into(),
            },
            Call::Settle(sequence, how) => {
                let key = (queue.clone(), sequence);
                let Some((lease, letter)) = self.leases.remove(&key) else { return "no lease".into() };
                match self.store.settle(&lease, letter, settlement(how, now)).await {
                    Ok(Settled::Next(next)) => {
                        let answer = format!("next {}", next.message.id);
                        self.leases.insert(key, (lease, next.id));
                        answer
                    }
                    answer => text_of(answer),
                }
            }
            Call::Act(message, act) => {
                text_of(self.store.act(queue, id(queue, message), act, &by()).await.map(comparable))
            }
            Call::Change(message, change) => {
                let answer = self.store.change(queue, id(queue, message), &change, &by()).await;
                text_of(answer.map(comparable))
            }
            Call::Purge(message) => text_of(self.store.purge(queue, id(queue, message), &by()).await),
            Call::Expire(age) => text_of(self.store.expire(queue, age.map(|age| now - age), 1000).await),
            Call::Clear => text_of(self.store.clear(queue, &by()).await),
            Call::Freeze(action, query) => {
                let selection = Selection::Query(Query::parse(query).unwrap());
                let request = PlanRequest { action, selection, valid_for: LEASE * 100, max_letters: 50 };
                let plan = self.store.freeze(&request, &by()).await;
                self.plan = plan.as_ref().ok().map(|plan| plan.id);
                // The hash is that of all letters in their order.
                text_of(plan.map(|plan| (plan.letters, plan.sequences, plan.excluded, plan.hash)))
            }
            Call::Begin(rollout) => {
                let Some(plan) = self.plan else { return "no plan".into() };
                let operation = self.store.begin(plan, &rollout, &by()).await;
                self.operation = operation.as_ref().ok().map(|operation| operation.id).or(self.operation);
                text_of(operation)
            }
            Call::Poll(limit) => {
                let polled = self.store.poll_work(queue, "w", LEASE, limit).await.unwrap();
                let answer = (polled.settled, polled.again_at);
                let mut heads = Vec::new();
                for item in polled.items {
                    let (lease, head) = (item.claim.lease, item.claim.head);
                    heads.push((item.operation, head.message.id.clone()));
                    self.leases.insert((queue.clone(), lease.sequence.clone()), (lease, head.id));
                }
                format!("{answer:?} {heads:?}")
            }
            Call::Command(command) => {
                let Some(operation) = self.operation else { return "no operation".into() };
                text_of(self.store.command(operation, command, &by()).await)
            }
        }
    }

    /// All that an operator can see.
    async fn picture(&self) -> (Vec<Group>, String) {
        let (mut groups, mut after) = (Vec::new(), None);
        loop {
            let request = GroupsRequest { closed: true, after, limit: 2, ..GroupsRequest::default() };
            let page = self.store.groups(&request).await.unwrap();
            groups.extend(page.groups);
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        assert!(groups.windows(2).all(|pair| pair[0].counts.open() >= pair[1].counts.open()));
        groups.sort_by(|one, other| one.id.cmp(&other.id));
        let mut rest = format!("{:?}", self.store.queues().await.unwrap());
        for queue in QUEUES.map(QueueName::from) {
            for message in 0..MESSAGES {
                let letter = self.store.get(&queue, id(&queue, message)).await.unwrap().map(comparable);
                rest += &format!("\n{letter:?}");
            }
            let ids: Vec<MessageId> = (0..MESSAGES).map(|n| MessageId::from(format!("m{n}"))).collect();
            rest += &format!("\n{:?}", self.store.lookup(&queue, &ids).await.unwrap());
        }
        for operation in self.store.operations(None, 1000).await.unwrap().operations {
            let items = self.store.items(operation.id, 0, 1000).await.unwrap();
            rest += &format!("\n{operation:?} {items:?}");
        }
        let mut audit = self.store.audit(0, 100_000).await.unwrap();
        // Each store has a key of its own for digests.
        for text in audit.iter_mut().flat_map(|entry| [&mut entry.before, &mut entry.after]).flatten() {
            text.truncate(text.find(", hmac").unwrap_or(text.len()));
        }
        (groups, rest + &format!("\n{audit:?}"))
    }
}

fn settlement(how: How, now: lazaret_core::Timestamp) -> Settlement {
    match how {
        How::Resolve => Settlement::Resolve(None),
        How::Evict => Settlement::Evict("enough".into()),
        How::Skip => Settlement::Skip("not ours".into()),
        How::Requeue(state, cause) => Settlement::Requeue(Box::new(Requeue {
            state,
            due_at: Some(now),
            cause,
            attempts: 2,
            crash_attempts: 0,
            replay_attempts: 1,
            poison: false,
            diagnostics: Default::default(),
            attempt: None,
            leave_out_payload: false,
            detach: state == LetterState::Dead,
            expires_at: None,
        })),
    }
}

fn failure(random: &mut Random) -> Option<Failure> {
    let message = random.pick(&["boom", "no route", "order 7 is gone", "order 8 is gone", ""]);
    (!message.is_empty()).then(|| Failure::new(Reason::TIMEOUT, "E", message))
}

fn letter(random: &mut Random, queue: &QueueName, clock: &ManualClock) -> (Letter, Placement) {
    let number = random.below(MESSAGES);
    let message = Message::new(format!("m{number}"), "orders", Position::new(0, number)).with_payload("{}");
    let sequence = SequenceId::from(["a", "b", "c", "d", "e"][usize::try_from(number % 5).unwrap()]);
    let mut letter = Letter::new(queue.clone(), sequence, message.into(), clock.now());
    let placement = random.pick(&[
        Placement::Open,
        Placement::Open,
        Placement::Behind,
        Placement::Closed,
        Placement::Imported,
    ]);
    if placement == Placement::Imported {
        letter.id = LetterId::of_import(queue, &letter.message.id);
    }
    letter.state = match placement {
        Placement::Open | Placement::Imported => {
            random.pick(&[LetterState::Dead, LetterState::Retrying, LetterState::Parked])
        }
        Placement::Behind => LetterState::Waiting,
        Placement::Closed => LetterState::Skipped,
    };
    if placement != Placement::Behind {
        letter.cause = failure(random);
        letter.last_failed_at =
            letter.cause.as_ref().map(|_| clock.now() - Duration::from_secs(random.below(9)));
    }
    letter.expires_at =
        (random.below(3) == 0).then(|| clock.now() + Duration::from_secs(random.below(20_000)));
    (letter, placement)
}

fn next(random: &mut Random, queue: &QueueName, clock: &ManualClock) -> Call {
    let sequence = SequenceId::from(random.pick(&["a", "b", "c", "d", "e"]));
    let message = random.below(MESSAGES);
    match random.below(26) {
        0..=5 => Call::HandOff((0..=random.below(4)).map(|_| letter(random, queue, clock)).collect()),
        6..=8 => Call::Claim(sequence),
        9..=12 => {
            let state = random.pick(&[LetterState::Dead, LetterState::Retrying, LetterState::Waiting]);
            let requeue = How::Requeue(state, failure(random));
            Call::Settle(
                sequence,
                random.pick(&[How::Resolve, How::Evict, How::Skip, requeue.clone(), requeue]),
            )
        }
        13 => Call::Release(sequence),
        14 | 15 => {
            let acts = [
                Act::Evict,
                Act::Resolve,
                Act::Park,
                Act::Quarantine,
                Act::Release,
                Act::Restore,
                Act::Restore,
            ];
            Call::Act(message, random.pick(&acts))
        }
        16 | 17 => Call::Change(
            message,
            random.pick(&[
                Change::Payload(Some("[]".into())),
                Change::Payload(None),
                Change::Comment("seen".into()),
                Change::Assignee(Some("grace".into())),
                Change::Owner(None),
                Change::ExpiresAt(Some(clock.now())),
            ]),
        ),
        18 => Call::Purge(message),
        20 | 21 => {
            let query = random.pick(&[
                "state:dead",
                "queue:orders/orders",
                "seq:a",
                "-state:parked",
                "state:quarantined",
            ]);
            Call::Freeze(random.pick(&Action::ALL), query)
        }
        22 => Call::Begin(random.pick(&[
            RolloutPolicy::unlimited(),
            RolloutPolicy { ramp: vec![1, 2], ..RolloutPolicy::unlimited() },
            RolloutPolicy { rate: Some(0.01), ..RolloutPolicy::default() },
        ])),
        23 | 24 => Call::Poll(1 + usize::try_from(random.below(5)).unwrap()),
        25 => Call::Command(random.pick(&[Command::Pause, Command::Resume, Command::Cancel])),
        _ if random.below(6) == 0 => Call::Clear,
        _ => {
            let age = Duration::from_secs(3600 * random.below(12));
            Call::Expire((random.below(2) == 0).then_some(age))
        }
    }
}

async fn compare(seed: u64, kind: Kind) {
    let clock = ManualClock::new();
    let shared: Arc<dyn Clock> = Arc::new(clock.clone());
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("lazaret.db");
    // With every other seed, hand-offs stay in the redo log until something else is asked for.
    let redo_from = if seed.is_multiple_of(2) { 0 } else { usize::MAX };
    let options =
        Options { clock: shared.clone(), durability: Durability::Normal, redo_from, ..Options::default() };
    let mut here = Driver::new(SqliteStore::open(&path, options.clone()).unwrap(), &clock, kind);
    let mut other = SqliteStore::open(&path, options).unwrap();
    let mut there = Driver::new(MemoryStore::new(shared), &clock, kind);
    let file = rusqlite::Connection::open(&path).unwrap();
    let mut random = Random(seed);
    for step in 0..STEPS {
        clock.advance(Duration::from_secs(random.below(600)));
        let queue = QueueName::from(random.pick(&QUEUES));
        let call = next(&mut random, &queue, &clock);
        let (ours, theirs) = (here.call(&queue, call.clone()).await, there.call(&queue, call.clone()).await);
        assert_eq!(ours, theirs, "seed {seed}, step {step}: {call:?} in {queue}");
        if step % 20 == 19 {
            assert_eq!(here.picture().await, there.picture().await, "seed {seed}, step {step}");
            check(&file);
        }
        // Another process continues: the caches of the first are stale.
        if step % 7 == 6 {
            std::mem::swap(&mut here.store, &mut other);
        }
    }
}

#[tokio::test]
async fn every_counter_is_right_after_any_sequence_of_calls() {
    for seed in 0..8 {
        compare(seed, Kind::Granted).await;
        compare(seed, Kind::Imported).await;
    }
}
