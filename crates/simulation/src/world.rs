//! The state that outlives processes: log, store, clock, and the history of the run.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jiff::SignedDuration;
use lazaret_core::recorder::Identity;
use lazaret_core::store::Store;
use lazaret_core::{Clock, Letter, Message, MessageId, Partition, QueueName, SequenceId, Timestamp};
use lazaret_engine::suspension::Suspension;
use lazaret_memory::{MemberId, MemoryLog, MemoryStore};
use lazaret_testkit::clock::test_epoch;
use lazaret_testkit::{ManualClock, TokioClock};
use tokio_util::sync::CancellationToken;

use crate::block_on::block_on;
use crate::history::{Attempt, History, Running};
use crate::invariants::has_left;
use crate::ledger::Ledger;
use crate::pauses::Pauses;
use crate::plan::{Plan, Script};
use crate::recorder::Isolation;

/// The name of the simulated consumer.
pub(crate) const CONSUMER: &str = "sim";
/// How many violations are kept of one run.
const VIOLATIONS_LIMIT: usize = 20;

/// The log, the store and the clock of a run, with its history.
pub(crate) struct World {
    pub(crate) plan: Plan,
    /// The clock of the engines, which may be set back.
    pub(crate) clock: TokioClock,
    /// The time of the checks, which never goes back.
    steady: TokioClock,
    /// The values of the duplicate filter.
    pub(crate) filter: MemoryStore,
    pub(crate) log: MemoryLog,
    pub(crate) store: Arc<dyn Store>,
    /// The clock of the store, set before each call.
    store_clock: ManualClock,
    pub(crate) queues: Vec<QueueName>,
    history: Mutex<History>,
    pub(crate) pauses: Pauses,
    pub(crate) isolation: Isolation,
    pub(crate) ledger: Ledger,
}

/// One process of an engine, from its start to its crash or its end.
#[derive(Clone)]
pub(crate) struct Process {
    pub(crate) number: u64,
    pub(crate) member: MemberId,
    /// Cancelled to make it crash.
    pub(crate) crash: CancellationToken,
    /// Stops it, and lets it go on.
    pub(crate) suspension: Suspension,
}

impl Process {
    pub(crate) fn new(number: u64, member: MemberId) -> Self {
        Self { number, member, crash: CancellationToken::new(), suspension: Suspension::default() }
    }

    /// Never returns when the process has crashed. Its tasks are aborted one after the other, at one moment: none of them runs any more.
    pub(crate) async fn goes_on(&self) {
        if self.crash.is_cancelled() {
            std::future::pending::<()>().await;
        }
    }
}

impl World {
    /// A world with the store that is made with this clock.
    pub(crate) fn new(plan: Plan, store: impl FnOnce(Arc<dyn Clock>) -> Arc<dyn Store>) -> Self {
        let (clock, store_clock) = (TokioClock::new(), ManualClock::new());
        let filter_clock = store_clock.clone();
        let log = MemoryLog::new("stream", plan.partitions + u32::from(plan.topics));
        let names = ["one", "two"];
        Self {
            store: store(Arc::new(store_clock.clone())),
            store_clock,
            queues: names[..plan.components].iter().map(|name| QueueName::of(CONSUMER, name)).collect(),
            filter: MemoryStore::new(Arc::new(filter_clock)),
            log,
            steady: clock.apart(),
            clock,
            plan,
            history: Mutex::default(),
            pauses: Pauses::default(),
            isolation: Isolation::default(),
            ledger: Ledger::default(),
        }
    }

    /// Runs a call of the store and blocks everything else until it is done.
    ///
    /// A store with threads of its own takes real time. If tasks ran meanwhile, virtual time would advance and the order of
    /// calls would depend on chance. Such threads do not see virtual time either, so the store's clock is set first.
    pub(crate) fn run<T>(&self, call: impl Future<Output = T>) -> T {
        self.store_clock.follow(self.store_time(), self.clock.steady());
        block_on(call)
    }

    /// The time of the store.
    pub(crate) fn store_time(&self) -> Timestamp {
        self.clock.now() + self.skew()
    }

    /// The time of the checks.
    pub(crate) fn now(&self) -> Timestamp {
        self.steady.now()
    }

    /// The time by which the store's clock is ahead of that of the engines.
    pub(crate) fn skew(&self) -> SignedDuration {
        SignedDuration::from_millis(self.plan.skew_millis)
    }

    /// A process ended: what it handled may not be marked in the duplicate filter.
    pub(crate) fn process_ended(&self, process: u64) {
        let mut history = self.history();
        history.ended.insert(process);
        drop(history);
        self.forget_handled_in(process);
    }

    /// What this process handled may not be marked in the duplicate filter.
    pub(crate) fn forget_handled_in(&self, process: u64) {
        for record in self.history().records.values_mut() {
            record.handled_in = record.handled_in.filter(|handled_in| *handled_in != process);
        }
    }

    /// A process crashed with what it was running.
    pub(crate) fn crashed_with(&self, process: u64) {
        let mut history = self.history();
        let History { running, records, .. } = &mut *history;
        for attempt in running.iter().filter(|attempt| attempt.process == process) {
            let record = records.entry((attempt.component, attempt.message.clone())).or_default();
            record.crashes += 1;
        }
    }

    /// Adds a line to the trace.
    pub(crate) fn trace(&self, text: impl FnOnce() -> String) {
        let line = format!("{:>8} {}", self.elapsed_millis(), text());
        self.history().trace.push(line);
    }

    fn elapsed_millis(&self) -> i128 {
        self.now().duration_since(test_epoch()).as_millis()
    }

    pub(crate) fn violated(&self, invariant: &str, text: &str) {
        let line = format!("{invariant} at {} ms: {text}", self.elapsed_millis());
        let mut history = self.history();
        if history.violations.len() < VIOLATIONS_LIMIT {
            history.violations.push(line.clone());
        }
        history.trace.push(format!("         VIOLATED {line}"));
    }

    /// The violations and the trace.
    pub(crate) fn findings(&self) -> (Vec<String>, Vec<String>) {
        let history = self.history();
        (history.violations.clone(), history.trace.clone())
    }

    pub(crate) fn script(&self, message: &Message, component: usize) -> Script {
        let name = self.name(message);
        let number = self.history().messages.get(&name).map_or(0, |original| original.number);
        Script::draw(&self.plan, number, component)
    }

    /// The number of attempts of this component at this message, the current one included.
    pub(crate) fn attempts_so_far(&self, component: usize, message: &Message) -> u32 {
        let name = self.name(message);
        let history = self.history();
        let record = history.records.get(&(component, name));
        record.map_or(0, |record| record.automatic + record.released)
    }

    /// The source delivered these messages to this member.
    pub(crate) fn delivered(&self, messages: &[Message]) {
        let now = self.now();
        for message in messages {
            let name = self.name(message);
            let mut history = self.history();
            let original = history.messages.get_mut(&name);
            let mut again = false;
            if let Some(original) = original.filter(|o| o.message.position == message.position) {
                again = original.first_delivered_at.is_some();
                original.first_delivered_at.get_or_insert(now);
                original.delivered_at = Some(now);
            }
            if self.plan.topics {
                // A message that is in the retry topic and was not committed comes twice. What the topic holds says nothing about
                // the other one, so each has attempts of its own.
                let (queue, attempts) = match &message.hop {
                    Some(hop) => {
                        let returned = (name.clone(), hop.queue.to_string(), hop.attempts);
                        again = !history.returned.insert(returned);
                        (Some(&hop.queue), hop.attempts)
                    }
                    None => (None, 0),
                };
                let left = self.plan.options.retry.max_attempts.saturating_sub(attempts);
                for (component, _) in
                    self.queues.iter().enumerate().filter(|(_, q)| queue.is_none_or(|of| of == *q))
                {
                    let record = history.records.entry((component, name.clone())).or_default();
                    record.uncounted += if again { left } else { 0 };
                }
            }
        }
    }

    /// An operator changed a letter.
    pub(crate) fn operator_acted(
        &self,
        component: usize,
        message: &MessageId,
        evicted: bool,
        released: bool,
    ) {
        let mut history = self.history();
        let record = history.records.entry((component, message.clone())).or_default();
        record.evicted |= evicted;
        record.changed = true;
        if released {
            record.uncounted += record.automatic;
            record.released += 1;
        }
    }

    /// A replay asks for this message to be skipped.
    pub(crate) fn skipped(&self, component: usize, message: &Message) {
        let name = self.name(message);
        self.history().records.entry((component, name)).or_default().skipped = true;
    }

    /// A process crashed before it could store its attempts, or lost these partitions.
    pub(crate) fn process_lost(&self, process: u64, partitions: Option<&[u32]>) {
        let mut history = self.history();
        let History { records, messages, running, .. } = &mut *history;
        for ((_, id), record) in records.iter_mut() {
            let partition = messages.get(id).map(|original| original.message.position.partition);
            let affected = partitions.is_none_or(|all| partition.is_some_and(|p| all.contains(&p)));
            if affected && record.processes.remove(&process) {
                record.uncounted += 1;
            }
        }
        if partitions.is_none() {
            running.retain(|attempt| attempt.process != process);
        }
    }

    /// Starts an attempt and checks every invariant about it.
    pub(crate) async fn begin(
        self: &Arc<Self>,
        process: &Process,
        component: usize,
        message: &Message,
        letter: Option<&Letter>,
        replay: bool,
    ) -> Attempt {
        process.goes_on().await;
        let (live, name) = (letter.is_none(), self.name(message));
        self.trace(|| {
            let kind = if live {
                "live"
            } else if replay {
                "replay"
            } else {
                "retry"
            };
            format!("process {} component {component} attempts {name} ({kind})", process.number)
        });
        self.check_identity(message);
        self.check_owned(process, message, live);
        self.check_paused(process, message, live, replay);
        self.check_duplicate(component, message);
        self.check_isolation(process, component, message);
        if !self.has_copies(&name) {
            self.check_order(process, component, message, letter).await;
            self.check_due(component, message, letter, replay);
            self.check_letter(component, message, letter);
            self.check_handed_off(process, component, message, live).await;
        }
        let copied = self.has_copies(&name);
        let mut history = self.history();
        let number = history.next_attempt;
        history.next_attempt += 1;
        let Some(original) = history.messages.get(&name) else {
            drop(history);
            self.violated("I5", &format!("{name} was never published"));
            return self.attempt(number, process.number, component, name, replay, None);
        };
        let running = Running {
            attempt: number,
            component,
            sequence: match letter.filter(|letter| has_left(letter)) {
                Some(letter) => letter.sequence.clone(),
                None if original.message.position == message.position => original.sequence.clone(),
                // That of a copy is not that of the original.
                None => SequenceId::by_key(message),
            },
            message: name.clone(),
            identity: Identity::of_message(&self.queues[component], message),
            member: process.member,
            process: process.number,
            partition: message.place().1.partition,
            live,
        };
        history.running.push(running);
        let max = self.plan.options.retry.max_attempts;
        let record = history.records.entry((component, name.clone())).or_default();
        record.processes.insert(process.number);
        let mut violation = None;
        if !replay {
            record.automatic += 1;
            let allowed = max + record.uncounted;
            if record.automatic > allowed && !copied {
                violation = Some(format!(
                    "{name} got {} automatic attempts, {max} are allowed and {} uncounted",
                    record.automatic, record.uncounted
                ));
            }
        }
        drop(history);
        if let Some(violation) = violation {
            self.violated("I4", &violation);
        }
        self.attempt(number, process.number, component, name, replay, live.then_some(process.number))
    }

    fn attempt(
        self: &Arc<Self>,
        number: u64,
        process: u64,
        component: usize,
        message: MessageId,
        replay: bool,
        live_in: Option<u64>,
    ) -> Attempt {
        let (world, started_at) = (self.clone(), self.now());
        Attempt { world, number, component, message, started_at, replay, process, live_in, ended: false }
    }

    /// The offset of the last message of a partition in this incarnation.
    pub(crate) fn last_offset(&self, partition: u32) -> Option<u64> {
        let history = self.history();
        let current = history.messages.iter().filter(|(_, o)| o.incarnation == history.incarnation);
        let positions = current.flat_map(|(name, original)| {
            let copies = history.copies.get(name).into_iter().flatten();
            std::iter::once(&original.message).chain(copies).map(|message| &message.position)
        });
        let in_topic = history.relayed.iter().map(|relayed| relayed.offset).max();
        if self.retry_partition() == Some(partition) {
            return in_topic;
        }
        positions.filter(|position| position.partition == partition).map(|position| position.offset).max()
    }

    /// A process returned these partitions gracefully. Its attempts are stored, unless the store was faulty or the deadline
    /// had passed.
    pub(crate) fn partitions_returned(&self, process: &Process, partitions: &[u32]) {
        let late = self.is_late(process.number, partitions);
        // With the duplicate filter a message is settled when it is marked, not when its handler returns.
        if !late && !self.plan.dedupe && !self.plan.topics {
            self.check_returned(process, partitions);
        }
        self.assignment_ended(process.number, partitions);
        if late || self.plan.has_store_faults() {
            self.process_lost(process.number, Some(partitions));
        }
    }

    /// What a process settled under an assignment that has ended says nothing about the next one.
    fn assignment_ended(&self, process: u64, partitions: &[u32]) {
        let mut history = self.history();
        let History { records, messages, .. } = &mut *history;
        for ((_, id), record) in records.iter_mut().filter(|(_, record)| record.settled_by == Some(process)) {
            let partition = messages.get(id).map(|original| original.message.position.partition);
            if partition.is_some_and(|partition| partitions.contains(&partition)) {
                record.settled_by = None;
            }
        }
    }

    /// A process has to give up these partitions, or all of them. The first request counts.
    pub(crate) fn leaving(&self, process: u64, partitions: Option<&[Partition]>) {
        let now = self.now();
        let mut history = self.history();
        let History { assigned, leaving, .. } = &mut *history;
        let own = assigned.keys().filter(|(owner, _)| *owner == process).copied();
        let named = |index: u32| partitions.is_none_or(|all| all.iter().any(|one| one.index == index));
        for key in own.filter(|(_, index)| named(*index)) {
            leaving.entry(key).or_insert(now);
        }
    }

    /// Returns whether the time for giving up one of these partitions is over.
    fn is_late(&self, process: u64, partitions: &[u32]) -> bool {
        let now = self.now();
        let history = self.history();
        let mut since = partitions.iter().filter_map(|index| history.leaving.get(&(process, *index)));
        since.any(|since| {
            let passed = Duration::try_from(now.duration_since(*since)).unwrap_or_default();
            passed >= self.plan.options.drain_deadline
        })
    }

    pub(crate) fn history(&self) -> MutexGuard<'_, History> {
        self.history.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
