//! The state that outlives processes: log, store, clock, and the history of the run.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use jiff::SignedDuration;
use lazaret_core::store::Store;
use lazaret_core::{Clock, Letter, Message, MessageId, QueueName, SequenceId};
use lazaret_memory::{MemberId, MemoryLog};
use lazaret_testkit::clock::test_epoch;
use lazaret_testkit::{ManualClock, TokioClock};
use tokio_util::sync::CancellationToken;

use crate::block_on::block_on;
use crate::history::{Attempt, History, Original, Running};
use crate::pauses::Pauses;
use crate::plan::{Plan, Script};

/// The name of the simulated consumer.
pub(crate) const CONSUMER: &str = "sim";
/// How many violations are kept of one run.
const VIOLATIONS_LIMIT: usize = 20;

/// The log, the store and the clock of a run, with its history.
pub(crate) struct World {
    pub(crate) plan: Plan,
    pub(crate) clock: TokioClock,
    pub(crate) log: MemoryLog,
    pub(crate) store: Arc<dyn Store>,
    /// The clock of the store, set before each call.
    store_clock: ManualClock,
    pub(crate) queues: Vec<QueueName>,
    history: Mutex<History>,
    pub(crate) pauses: Pauses,
}

/// One process of an engine, from its start to its crash or its end.
#[derive(Clone)]
pub(crate) struct Process {
    pub(crate) number: u64,
    pub(crate) member: MemberId,
    /// Cancelled to make it crash.
    pub(crate) crash: CancellationToken,
    /// When it last started to drain, in milliseconds of the run.
    pub(crate) draining_since: Arc<AtomicU64>,
}

impl World {
    /// A world with the store that is made with this clock.
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
            history: Mutex::default(),
            pauses: Pauses::default(),
        }
    }

    /// Runs a call of the store and blocks everything else until it is done.
    ///
    /// A store with threads of its own takes real time. If tasks ran meanwhile, virtual time would advance and the order of
    /// calls would depend on chance. Such threads do not see virtual time either, so the store's clock is set first.
    pub(crate) fn run<T>(&self, call: impl Future<Output = T>) -> T {
        self.store_clock.set(self.clock.now() + self.skew());
        block_on(call)
    }

    /// The time by which the store's clock is ahead of that of the engines.
    pub(crate) fn skew(&self) -> SignedDuration {
        SignedDuration::from_millis(self.plan.skew_millis)
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
        let mut history = self.history();
        let ids = history.sequences.entry(sequence.clone()).or_default();
        ids.push(message.id.clone());
        let place = ids.len() - 1;
        let original = Original { number, sequence, place, delivered_at: None, message: message.clone() };
        history.messages.insert(message.id, original);
    }

    /// Adds a line to the trace.
    pub(crate) fn trace(&self, text: impl FnOnce() -> String) {
        let line = format!("{:>8} {}", self.elapsed_millis(), text());
        self.history().trace.push(line);
    }

    fn elapsed_millis(&self) -> i128 {
        self.clock.now().duration_since(test_epoch()).as_millis()
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
        let number = self.history().messages.get(&message.id).map_or(0, |original| original.number);
        Script::draw(&self.plan, number, component)
    }

    /// The number of attempts of this component at this message, the current one included.
    pub(crate) fn attempts_so_far(&self, component: usize, message: &Message) -> u32 {
        let history = self.history();
        let record = history.records.get(&(component, message.id.clone()));
        record.map_or(0, |record| record.automatic + record.released)
    }

    /// The source delivered these messages to this member.
    pub(crate) fn delivered(&self, messages: &[Message]) {
        let now = self.clock.now();
        let mut history = self.history();
        for message in messages {
            if let Some(original) = history.messages.get_mut(&message.id) {
                original.delivered_at = Some(now);
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
        let live = letter.is_none();
        self.trace(|| {
            let kind = if live {
                "live"
            } else if replay {
                "replay"
            } else {
                "retry"
            };
            format!("process {} component {component} attempts {} ({kind})", process.number, message.id)
        });
        self.check_identity(message);
        self.check_order(process, component, message, live).await;
        self.check_due(component, message, letter, replay);
        self.check_letter(component, message, letter);
        self.check_handed_off(component, message, live).await;
        self.check_paused(process, message, live, replay);
        let mut history = self.history();
        let number = history.next_attempt;
        history.next_attempt += 1;
        let Some(original) = history.messages.get(&message.id) else {
            drop(history);
            self.violated("I5", &format!("{} was never published", message.id));
            return self.attempt(number, component, message, replay, None);
        };
        let running = Running {
            attempt: number,
            component,
            sequence: original.sequence.clone(),
            message: message.id.clone(),
            member: process.member,
            process: process.number,
            partition: message.position.partition,
            live,
        };
        history.running.push(running);
        let max = self.plan.options.retry.max_attempts;
        let record = history.records.entry((component, message.id.clone())).or_default();
        record.processes.insert(process.number);
        let mut violation = None;
        if !replay {
            record.automatic += 1;
            let allowed = max + record.uncounted;
            if record.automatic > allowed {
                violation = Some(format!(
                    "{} got {} automatic attempts, {max} are allowed and {} uncounted",
                    message.id, record.automatic, record.uncounted
                ));
            }
        }
        drop(history);
        if let Some(violation) = violation {
            self.violated("I4", &violation);
        }
        self.attempt(number, component, message, replay, live.then_some(process.number))
    }

    fn attempt(
        self: &Arc<Self>,
        number: u64,
        component: usize,
        message: &Message,
        replay: bool,
        live_in: Option<u64>,
    ) -> Attempt {
        let (world, message, started_at) = (self.clone(), message.id.clone(), self.clock.now());
        Attempt { world, number, component, message, started_at, replay, live_in, ended: false }
    }

    /// The offset of the last message of a partition.
    pub(crate) fn last_offset(&self, partition: u32) -> Option<u64> {
        let history = self.history();
        let positions = history.messages.values().map(|original| &original.message.position);
        positions.filter(|position| position.partition == partition).map(|position| position.offset).max()
    }

    /// A process returned these partitions gracefully. Its attempts are stored, unless the store was faulty or the deadline
    /// had passed.
    pub(crate) fn partitions_returned(&self, process: &Process, partitions: &[u32]) {
        let faults = &self.plan.faults;
        let since = process.draining_since.load(Ordering::Relaxed);
        let late =
            self.elapsed_millis() - i128::from(since) >= self.plan.options.drain_deadline.as_millis() as i128;
        if !late {
            self.check_returned(process, partitions);
        }
        if late || faults.outages || faults.lost_request + faults.lost_answer + faults.late_effect > 0 {
            self.process_lost(process.number, Some(partitions));
        }
    }

    /// A process started to drain.
    pub(crate) fn drain_started(&self, process: &Process) {
        process.draining_since.store(self.elapsed_millis() as u64, Ordering::Relaxed);
    }

    pub(crate) fn history(&self) -> MutexGuard<'_, History> {
        self.history.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
