//! What really happened: the ledger of every attempt, and the invariants checked against it.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use lazaret_core::policy::Strategy;
use lazaret_core::store::Store;
use lazaret_core::{Clock, Letter, LetterState, Message, MessageId, QueueName, SequenceId, Timestamp};
use lazaret_memory::{MemberId, MemoryLog};
use tokio_util::sync::CancellationToken;

use super::plan::{Plan, Script};
use super::wait;
use crate::{ManualClock, TokioClock};

/// The name of the simulated consumer.
pub(crate) const CONSUMER: &str = "sim";
/// How many violations are kept of one run.
const VIOLATIONS_LIMIT: usize = 20;

/// The durable things, and the record of what happened to them.
pub(crate) struct World {
    pub(crate) plan: Plan,
    pub(crate) clock: TokioClock,
    pub(crate) log: MemoryLog,
    pub(crate) store: Arc<dyn Store>,
    /// What the store takes for the time.
    store_clock: ManualClock,
    pub(crate) queues: Vec<QueueName>,
    ledger: Mutex<Ledger>,
}

#[derive(Default)]
struct Ledger {
    /// Every message by its sequence, in order of the source.
    sequences: BTreeMap<SequenceId, Vec<MessageId>>,
    messages: BTreeMap<MessageId, Original>,
    /// What each component did with each message.
    deeds: BTreeMap<(usize, MessageId), Deeds>,
    running: Vec<Running>,
    next_attempt: u64,
    /// Up to where each partition's commits were checked.
    checked: BTreeMap<u32, u64>,
    acts: u64,
    violations: Vec<String>,
    trace: Vec<String>,
}

struct Original {
    message: Message,
    number: u64,
    sequence: SequenceId,
    /// Its place in the sequence.
    place: usize,
    delivered_at: Option<Timestamp>,
}

#[derive(Default)]
struct Deeds {
    /// Attempts that the engine made by itself since the last fresh start, and since when.
    automatic: u32,
    /// Attempts that may go uncounted because whoever made one died before it was written down.
    forgiven: u32,
    /// Lives that attempted it, and are alive.
    lives: BTreeSet<u64>,
    handled_at: Option<Timestamp>,
    /// Acknowledged without an effect: duplicate or skipped by verdict.
    waived: bool,
    last_failed_at: Option<Timestamp>,
    evicted: bool,
    /// An operator changed its letter.
    touched: bool,
    released: u32,
}

struct Running {
    attempt: u64,
    component: usize,
    sequence: SequenceId,
    message: MessageId,
    member: MemberId,
    life: u64,
    partition: u32,
    live: bool,
}

/// One life of one engine: from its start to its crash or its end.
#[derive(Clone)]
pub(crate) struct Life {
    pub(crate) number: u64,
    pub(crate) member: MemberId,
    /// Cancelled to make it crash.
    pub(crate) crash: CancellationToken,
    /// When it last began to leave something, in milliseconds of the run.
    pub(crate) leaving_since: Arc<AtomicU64>,
}

/// An attempt that a handler makes.
pub(crate) struct Attempt {
    world: Arc<World>,
    number: u64,
    component: usize,
    message: MessageId,
    started_at: Timestamp,
    replay: bool,
    ended: bool,
}

impl World {
    /// A world on the store that is made with this clock.
    pub(crate) fn new(plan: Plan, store: impl FnOnce(Arc<dyn Clock>) -> Arc<dyn Store>) -> Self {
        let (clock, store_clock) = (TokioClock::new(), ManualClock::new());
        let log = MemoryLog::new("stream", plan.partitions);
        let names = ["one", "two"];
        Self {
            store: store(Arc::new(store_clock.clone())),
            store_clock,
            queues: names[..plan.components].iter().map(|name| QueueName::of(CONSUMER, name)).collect(),
            log,
            clock,
            plan,
            ledger: Mutex::default(),
        }
    }

    /// Has the store do something, and holds up the whole world until it is done.
    ///
    /// A store with threads of its own takes real time. Virtual time would run on meanwhile, and which call comes first
    /// would be left to chance; so nobody else runs. Such threads know nothing of virtual time either: they are shown it.
    pub(crate) fn ask<T>(&self, call: impl Future<Output = T>) -> T {
        self.store_clock.set(self.clock.now());
        wait::for_the(call)
    }

    /// Puts a message into the log.
    pub(crate) fn publish(&self, number: u64, key: &str, partition: u32, gap: u64) {
        if gap > 0 {
            self.log.skip(partition, gap);
        }
        let mut made = None;
        self.log.push_with(partition, |message| {
            let message = message
                .with_key(key.to_owned())
                .with_header("n", number.to_string())
                .with_payload(key.to_owned());
            made = Some(message.clone());
            message
        });
        let Some(message) = made else { return };
        let sequence = SequenceId::by_key(&message);
        let mut ledger = self.ledger();
        let ids = ledger.sequences.entry(sequence.clone()).or_default();
        ids.push(message.id.clone());
        let place = ids.len() - 1;
        let original = Original { number, sequence, place, delivered_at: None, message: message.clone() };
        ledger.messages.insert(message.id, original);
    }

    /// Notes what happens, for the report of a violation.
    pub(crate) fn trace(&self, text: impl FnOnce() -> String) {
        let line = format!("{:>8} {}", self.elapsed_millis(), text());
        self.ledger().trace.push(line);
    }

    fn elapsed_millis(&self) -> i128 {
        self.clock.now().duration_since(crate::clock::test_epoch()).as_millis()
    }

    pub(crate) fn violated(&self, invariant: &str, text: &str) {
        let line = format!("{invariant} at {} ms: {text}", self.elapsed_millis());
        let mut ledger = self.ledger();
        if ledger.violations.len() < VIOLATIONS_LIMIT {
            ledger.violations.push(line.clone());
        }
        ledger.trace.push(format!("         VIOLATED {line}"));
    }

    pub(crate) fn verdict(&self) -> (Vec<String>, Vec<String>) {
        let ledger = self.ledger();
        (ledger.violations.clone(), ledger.trace.clone())
    }

    pub(crate) fn script(&self, message: &Message, component: usize) -> Script {
        let number = self.ledger().messages.get(&message.id).map_or(0, |original| original.number);
        Script::draw(&self.plan, number, component)
    }

    /// How many attempts this component has made at this message, this one included.
    pub(crate) fn attempts_so_far(&self, component: usize, message: &Message) -> u32 {
        let ledger = self.ledger();
        let deeds = ledger.deeds.get(&(component, message.id.clone()));
        deeds.map_or(0, |deeds| deeds.automatic + deeds.released)
    }

    /// The source delivered these messages to this member.
    pub(crate) fn delivered(&self, messages: &[Message]) {
        let now = self.clock.now();
        let mut ledger = self.ledger();
        for message in messages {
            if let Some(original) = ledger.messages.get_mut(&message.id) {
                original.delivered_at = Some(now);
            }
        }
    }

    /// An operator changed a letter.
    pub(crate) fn acted(&self, component: usize, message: &MessageId, evicted: bool, released: bool) {
        let mut ledger = self.ledger();
        ledger.acts += 1;
        let deeds = ledger.deeds.entry((component, message.clone())).or_default();
        deeds.evicted |= evicted;
        deeds.touched = true;
        if released {
            deeds.forgiven += deeds.automatic;
            deeds.released += 1;
        }
    }

    /// A life ended without being able to write down what it did, or lost these partitions.
    pub(crate) fn died(&self, life: u64, partitions: Option<&[u32]>) {
        let mut ledger = self.ledger();
        let Ledger { deeds, messages, running, .. } = &mut *ledger;
        for ((_, id), deeds) in deeds.iter_mut() {
            let partition = messages.get(id).map(|original| original.message.position.partition);
            let concerned = partitions.is_none_or(|all| partition.is_some_and(|p| all.contains(&p)));
            if concerned && deeds.lives.remove(&life) {
                deeds.forgiven += 1;
            }
        }
        if partitions.is_none() {
            running.retain(|attempt| attempt.life != life);
        }
    }

    /// A handler starts an attempt. Everything that must hold at this moment is checked.
    pub(crate) async fn begin(
        self: &Arc<Self>,
        life: &Life,
        component: usize,
        message: &Message,
        letter: Option<&Letter>,
        replay: bool,
    ) -> Attempt {
        let live = letter.is_none();
        self.trace(|| {
            let kind = if live {
                "live"
            } else if replay {
                "replay"
            } else {
                "retry"
            };
            format!("life {} component {component} attempts {} ({kind})", life.number, message.id)
        });
        self.check_identity(message);
        self.check_order(life, component, message, live).await;
        self.check_due(component, message, letter, replay);
        self.check_letter(component, message, letter);
        self.check_handed_off(component, message, live).await;
        let mut ledger = self.ledger();
        let number = ledger.next_attempt;
        ledger.next_attempt += 1;
        let Some(original) = ledger.messages.get(&message.id) else {
            drop(ledger);
            self.violated("I5", &format!("{} was never published", message.id));
            return self.attempt(number, component, message, replay);
        };
        let running = Running {
            attempt: number,
            component,
            sequence: original.sequence.clone(),
            message: message.id.clone(),
            member: life.member,
            life: life.number,
            partition: message.position.partition,
            live,
        };
        ledger.running.push(running);
        let max = self.plan.options.retry.max_attempts;
        let deeds = ledger.deeds.entry((component, message.id.clone())).or_default();
        deeds.lives.insert(life.number);
        let mut broken = None;
        if !replay {
            deeds.automatic += 1;
            let allowed = max + deeds.forgiven;
            if deeds.automatic > allowed {
                broken = Some(format!(
                    "{} got {} automatic attempts, {max} are allowed and {} forgiven",
                    message.id, deeds.automatic, deeds.forgiven
                ));
            }
        }
        drop(ledger);
        if let Some(broken) = broken {
            self.violated("I4", &broken);
        }
        self.attempt(number, component, message, replay)
    }

    fn attempt(self: &Arc<Self>, number: u64, component: usize, message: &Message, replay: bool) -> Attempt {
        let (world, message) = (self.clone(), message.id.clone());
        Attempt { world, number, component, message, started_at: self.clock.now(), replay, ended: false }
    }

    fn check_identity(&self, message: &Message) {
        let same =
            self.ledger().messages.get(&message.id).is_some_and(|original| original.message == *message);
        if !same {
            self.violated("I5", &format!("{} is not what was published", message.id));
        }
    }

    /// I2 and I6: no earlier message of the sequence is unsettled or open, nobody else is at work on the sequence, and
    /// no later message was handled since this one was last delivered.
    async fn check_order(&self, life: &Life, component: usize, message: &Message, live: bool) {
        if self.plan.options.retry.strategy == Strategy::Unordered {
            return;
        }
        let (earlier, overlap, overtaken) = {
            let ledger = self.ledger();
            let Some(original) = ledger.messages.get(&message.id) else { return };
            let ids = &ledger.sequences[&original.sequence];
            let deeds = |id: &MessageId| ledger.deeds.get(&(component, id.clone()));
            let settled = |id: &MessageId| deeds(id).is_some_and(|d| d.handled_at.is_some() || d.waived);
            let earlier: Vec<(MessageId, bool)> =
                ids[..original.place].iter().map(|id| (id.clone(), settled(id))).collect();
            let overlap = ledger.running.iter().find(|other| {
                other.component == component
                    && other.sequence == original.sequence
                    // Whoever lost the partition may not know it yet; it can settle nothing.
                    && !(other.live && self.log.owner(other.partition) != Some(other.member))
                    && !(live && self.log.owner(message.position.partition) != Some(life.member))
            });
            let overlap = overlap.map(|other| format!("{} by life {}", other.message, other.life));
            let overtaken = ids[original.place + 1..].iter().find(|id| {
                let handled_at = deeds(id).and_then(|deeds| deeds.handled_at);
                let mine = deeds(&message.id);
                // One that was handled before and comes again after a crash repeats what was done in order.
                let first = !mine.is_some_and(|d| d.handled_at.is_some() || d.waived || d.evicted);
                first && handled_at.is_some() && handled_at > original.delivered_at
            });
            (earlier, overlap, overtaken.cloned())
        };
        if let Some(other) = overlap {
            self.violated("I6", &format!("{} starts while {other} is being handled", message.id));
        }
        if let Some(later) = overtaken {
            self.violated("I2", &format!("{} starts after the later {later} was handled", message.id));
        }
        let queue = &self.queues[component];
        let ids: Vec<MessageId> = earlier.iter().map(|(id, _)| id.clone()).collect();
        let states = self.ask(self.store.lookup(queue, &ids)).unwrap_or_default();
        for ((id, settled), state) in earlier.iter().zip(states) {
            match state {
                Some(state) if state.is_open() => {
                    self.violated("I2", &format!("{} starts while the earlier {id} is {state}", message.id));
                }
                None if !settled => {
                    self.violated(
                        "I2",
                        &format!("{} starts while the earlier {id} is not settled", message.id),
                    );
                }
                _ => {}
            }
        }
    }

    /// I12: not before its time.
    fn check_due(&self, component: usize, message: &Message, letter: Option<&Letter>, replay: bool) {
        let now = self.clock.now();
        let due =
            letter.filter(|letter| letter.state == LetterState::Retrying).and_then(|letter| letter.due_at);
        if !replay && due.is_some_and(|due| now < due) {
            self.violated("I12", &format!("{} was retried before it was due", message.id));
        }
        let retry = &self.plan.options.retry;
        let shortest = retry.initial_delay.mul_f64(1.0 - retry.jitter);
        let ledger = self.ledger();
        let deeds = ledger.deeds.get(&(component, message.id.clone()));
        let early = deeds.is_some_and(|deeds| {
            let since = deeds.last_failed_at.map(|failed| now.duration_since(failed));
            let since = since.and_then(|since| std::time::Duration::try_from(since).ok());
            // After a crash the count starts anew with a redelivery, and a release means at once.
            deeds.forgiven == 0 && deeds.released == 0 && since.is_some_and(|since| since < shortest)
        });
        drop(ledger);
        if early && !replay {
            self.violated("I12", &format!("{} was retried sooner than its shortest delay", message.id));
        }
    }

    /// I6: nobody made a letter of a message that its owner had handled, and that was not delivered again since.
    fn check_letter(&self, component: usize, message: &Message, letter: Option<&Letter>) {
        let Some(letter) = letter else { return };
        let late = {
            let ledger = self.ledger();
            let delivered_at = ledger.messages.get(&message.id).and_then(|original| original.delivered_at);
            let deeds = ledger.deeds.get(&(component, message.id.clone()));
            let handled_at = deeds.and_then(|deeds| deeds.handled_at);
            handled_at.is_some() && handled_at > delivered_at && Some(letter.enqueued_at) > handled_at
        };
        if late {
            self.violated("I6", &format!("{} was handled, and a late owner made a letter of it", message.id));
        }
    }

    /// I8: a message that has a letter is not handled live.
    async fn check_handed_off(&self, component: usize, message: &Message, live: bool) {
        if !live {
            return;
        }
        let id = [message.id.clone()];
        let found = self.ask(self.store.lookup(&self.queues[component], &id)).unwrap_or_default();
        if let Some(Some(state)) = found.first() {
            self.violated("I8", &format!("{} is handled live and has a letter that is {state}", message.id));
        }
    }

    /// I1: everything up to a committed position is settled.
    pub(crate) async fn check_commit(&self, partition: u32, offset: u64) {
        let from = self.ledger().checked.insert(partition, offset).map_or(0, |last| last + 1);
        let open = self.unsettled(partition, &(from..=offset));
        self.check_letters("committed", open).await;
    }

    /// I1: what a commit calls settled beyond its position is settled.
    pub(crate) async fn check_settled(&self, partition: u32, range: RangeInclusive<u64>) {
        let open = self.unsettled(partition, &range);
        self.check_letters("settled beyond the position", open).await;
    }

    /// Messages in this range that no handler has settled, by component.
    fn unsettled(&self, partition: u32, range: &RangeInclusive<u64>) -> Vec<(usize, MessageId)> {
        let ledger = self.ledger();
        let ids = ledger.messages.values().filter(|original| {
            let position = &original.message.position;
            position.partition == partition && range.contains(&position.offset)
        });
        let mut open = Vec::new();
        for original in ids {
            let id = &original.message.id;
            for component in 0..self.queues.len() {
                let deeds = ledger.deeds.get(&(component, id.clone()));
                if !deeds.is_some_and(|d| d.handled_at.is_some() || d.waived) {
                    open.push((component, id.clone()));
                }
            }
        }
        open
    }

    async fn check_letters(&self, what: &str, messages: Vec<(usize, MessageId)>) {
        for (component, id) in messages {
            let found = self.ask(self.store.lookup(&self.queues[component], std::slice::from_ref(&id)));
            if !matches!(found.unwrap_or_default().first(), Some(Some(_))) {
                self.violated("I1", &format!("{id} was {what} and is not settled in component {component}"));
            }
        }
    }

    /// The offset of the last message of a partition.
    pub(crate) fn last_offset(&self, partition: u32) -> Option<u64> {
        let ledger = self.ledger();
        let positions = ledger.messages.values().map(|original| &original.message.position);
        positions.filter(|position| position.partition == partition).map(|position| position.offset).max()
    }

    /// A life gave these partitions back in order. What it did is written down, unless the store kept it from that or
    /// the time for it was up.
    pub(crate) fn left(&self, life: &Life, partitions: &[u32]) {
        let faults = &self.plan.faults;
        let since = life.leaving_since.load(Ordering::Relaxed);
        let late =
            self.elapsed_millis() - i128::from(since) >= self.plan.options.drain_deadline.as_millis() as i128;
        if late || faults.outages || faults.lost_request + faults.lost_answer + faults.late_effect > 0 {
            self.died(life.number, Some(partitions));
        }
    }

    /// A life begins to leave.
    pub(crate) fn leaving(&self, life: &Life) {
        life.leaving_since.store(self.elapsed_millis() as u64, Ordering::Relaxed);
    }

    /// The outcome that every run must have once the world behaves: every message has one of its ends (I1, I3, I11).
    pub(crate) async fn check_end(&self) {
        let ids: Vec<(MessageId, u64, SequenceId)> = {
            let ledger = self.ledger();
            let all = ledger.messages.values();
            all.map(|o| (o.message.id.clone(), o.number, o.sequence.clone())).collect()
        };
        for component in 0..self.queues.len() {
            let queue = &self.queues[component];
            let names: Vec<MessageId> = ids.iter().map(|(id, _, _)| id.clone()).collect();
            let states = self.ask(self.store.lookup(queue, &names)).unwrap_or_default();
            let healthy = |sequence: &SequenceId| {
                let mut others = ids.iter().filter(|(_, _, s)| s == sequence);
                others.all(|(_, number, _)| Script::draw(&self.plan, *number, component).is_healthy())
            };
            let touched = |sequence: &SequenceId| {
                let ledger = self.ledger();
                let all = &ledger.sequences[sequence];
                all.iter().any(|id| ledger.deeds.get(&(component, id.clone())).is_some_and(|d| d.touched))
            };
            for ((id, _, sequence), state) in ids.iter().zip(states) {
                let (settled, handled, acted) = {
                    let ledger = self.ledger();
                    let deeds = ledger.deeds.get(&(component, id.clone()));
                    let handled = deeds.is_some_and(|d| d.handled_at.is_some());
                    (handled || deeds.is_some_and(|d| d.waived), handled, deeds.is_some_and(|d| d.evicted))
                };
                match state {
                    None if !settled => self.violated("I1", &format!("{id} is lost")),
                    Some(LetterState::Resolved) if !settled && !acted => {
                        self.violated("I11", &format!("{id} is resolved and nobody handled it"));
                    }
                    Some(state) if state.is_open() && healthy(sequence) && !handled && !touched(sequence) => {
                        self.violated("I3", &format!("{id} is {state} in a sequence where nothing fails"));
                    }
                    _ => {}
                }
            }
        }
    }

    fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Attempt {
    /// Tells attempts apart.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// The attempt came to its end.
    pub(crate) fn end(mut self, handled: bool, waived: bool) {
        self.ended = true;
        let now = self.world.clock.now();
        let mut ledger = self.world.ledger();
        let deeds = ledger.deeds.entry((self.component, self.message.clone())).or_default();
        if handled || waived {
            // Whoever hears of it again because the position was not committed does so by right.
            deeds.forgiven = deeds.forgiven.max(deeds.automatic);
        }
        if handled {
            deeds.handled_at = Some(now);
        } else if !self.replay {
            deeds.last_failed_at = Some(now);
        }
        deeds.waived |= waived;
        drop(ledger);
        self.world.trace(|| {
            let how = if handled { "handled" } else { "failed" };
            format!("component {} {how} {}", self.component, self.message)
        });
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        let now = self.world.clock.now();
        let mut ledger = self.world.ledger();
        ledger.running.retain(|running| running.attempt != self.number);
        if self.ended {
            return;
        }
        // Broken off: by the time limit, which counts, or because its owner died or lost the right to it.
        let ran = std::time::Duration::try_from(now.duration_since(self.started_at)).unwrap_or_default();
        let timed_out = self.world.plan.options.attempt_timeout.is_some_and(|limit| ran >= limit);
        let deeds = ledger.deeds.entry((self.component, self.message.clone())).or_default();
        if self.replay {
            return;
        }
        deeds.last_failed_at = Some(now);
        if !timed_out {
            deeds.forgiven += 1;
        }
    }
}
