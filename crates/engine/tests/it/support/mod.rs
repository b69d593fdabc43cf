//! Shared parts of the engine's tests: a bench with a log, a store and a paused clock, and handlers that
//! follow a script.

mod handlers;
mod store;

use std::fmt::{self, Write as _};
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::FutureExt;
use lazaret_core::handler::BoxHandler;
use lazaret_core::policy::{RetryPolicy, Strategy};
use lazaret_core::store::{Actor, AuditEntry, Counts, LetterStore, Pause};
use lazaret_core::{
    Clock, ConsumerName, HandlerError, Letter, LetterId, LetterState, MessageId, QueueName, Reason,
    Timestamp, Verdict,
};
use lazaret_engine::{Builder, Consumer, Error, Event, Handle, Options, Replayer, Stats};
use lazaret_memory::{MemoryLog, MemorySource, MemoryStore};
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

pub(crate) use handlers::{Calls, Reply, Try};
pub(crate) use store::FaultyStore;

/// The name of the consumer and of its only component, by default.
pub(crate) const NAME: &str = "orders";

pub(crate) const fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

pub(crate) const fn millis(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// The time of tokio's paused clock, beginning in 2001.
#[derive(Clone, Copy)]
pub(crate) struct PausedClock {
    start: Instant,
}

impl PausedClock {
    /// Returns how long the test has run.
    pub(crate) fn elapsed(&self) -> Duration {
        self.start.elapsed()
    }

    /// Returns the time this long after the start of the test.
    pub(crate) fn at(after: Duration) -> Timestamp {
        let base = Timestamp::from_second(1_000_000_000).expect("a time in 2001");
        base + jiff::SignedDuration::try_from(after).expect("a test is short")
    }
}

impl Clock for PausedClock {
    fn now(&self) -> Timestamp {
        Self::at(self.elapsed())
    }

    fn steady(&self) -> Duration {
        self.elapsed()
    }
}

/// The clock of a bench, which a test can set.
#[derive(Clone)]
pub(crate) struct SetClock(PausedClock, Arc<AtomicI64>);

impl SetClock {
    /// Creates a clock for the engine alone: the store keeps the clock of the bench.
    pub(crate) fn beside_the_store(bench: &Bench) -> Self {
        Self(bench.clock, Arc::default())
    }

    pub(crate) fn back_by_an_hour(&self) {
        self.back_by(3600);
    }

    pub(crate) fn back_by(&self, seconds: i64) {
        self.1.fetch_sub(seconds, Ordering::SeqCst);
    }

    pub(crate) fn forward_by_an_hour(&self) {
        self.1.fetch_add(3600, Ordering::SeqCst);
    }
}

impl Clock for SetClock {
    fn now(&self) -> Timestamp {
        self.0.now() + jiff::SignedDuration::from_secs(self.1.load(Ordering::SeqCst))
    }

    fn steady(&self) -> Duration {
        self.0.steady()
    }
}

/// Everything outside a consumer, which survives its crash.
#[derive(Clone)]
pub(crate) struct Bench {
    pub(crate) clock: PausedClock,
    pub(crate) log: MemoryLog,
    pub(crate) store: Arc<FaultyStore>,
    pub(crate) calls: Calls,
    pub(crate) events: EventLog,
}

/// The events that observers received, as text.
#[derive(Clone, Default)]
pub(crate) struct EventLog(Arc<Mutex<Vec<String>>>);

impl EventLog {
    pub(crate) fn all(&self) -> Vec<String> {
        self.0.lock().expect("no test panics here").clone()
    }

    /// Returns the number of events that begin with this name.
    pub(crate) fn count(&self, event: &str) -> usize {
        self.all().iter().filter(|text| text.starts_with(event)).count()
    }

    fn note(&self, event: &Event<'_>) {
        let mut text = Cut(String::new());
        // A truncated event is as good as a complete one.
        let _ = write!(text, "{event:?}");
        self.0.lock().expect("no test panics here").push(text.0);
    }
}

/// A text that accepts no more once it is long enough, because the payload of a message may be huge.
struct Cut(String);

impl fmt::Write for Cut {
    fn write_str(&mut self, more: &str) -> fmt::Result {
        self.0.push_str(more);
        if self.0.len() > 16 * 1024 { Err(fmt::Error) } else { Ok(()) }
    }
}

impl Bench {
    /// Creates a bench whose log has one partition.
    pub(crate) fn new() -> Self {
        Self::with_partitions(1)
    }

    pub(crate) fn with_partitions(partitions: u32) -> Self {
        let clock = PausedClock { start: Instant::now() };
        Self {
            clock,
            log: MemoryLog::new("events", partitions),
            store: Arc::new(FaultyStore::new(MemoryStore::new(Arc::new(clock)))),
            calls: Calls::new(clock),
            events: EventLog::default(),
        }
    }

    /// Returns the bench with a clock that can be set, which the store also uses.
    pub(crate) fn with_set_clock(self) -> (Self, SetClock) {
        let clock = SetClock(self.clock, Arc::default());
        let store = Arc::new(FaultyStore::new(MemoryStore::new(Arc::new(clock.clone()))));
        (Self { store, ..self }, clock)
    }

    /// Adds messages to partition 0: `a1` has the key `a` and the payload `a1`.
    pub(crate) fn push(&self, names: &[&str]) {
        self.push_to(0, names);
    }

    pub(crate) fn push_to(&self, partition: u32, names: &[&str]) {
        for name in names {
            let key = name.trim_end_matches(|c: char| c.is_ascii_digit());
            self.log.push(partition, key.to_owned(), (*name).to_owned());
        }
    }

    /// Returns the builder of a consumer of the whole bench.
    pub(crate) fn builder(&self, options: Options) -> Builder {
        self.builder_on(options, self.log.join())
    }

    pub(crate) fn builder_on(&self, options: Options, source: MemorySource) -> Builder {
        let events = self.events.clone();
        Consumer::builder(NAME)
            .source(source)
            .store(self.store.clone())
            .clock(Arc::new(self.clock))
            .options(options)
            .observer(move |event: &Event<'_>| events.note(event))
    }

    /// Returns a handler that records its calls and follows the script.
    pub(crate) fn handler(&self, script: impl Fn(&Try) -> Reply + Send + Sync + 'static) -> BoxHandler {
        self.calls.handler(NAME, script)
    }

    /// Starts a consumer with one handler.
    pub(crate) fn start(
        &self,
        options: Options,
        script: impl Fn(&Try) -> Reply + Send + Sync + 'static,
    ) -> Running {
        Running::start(self.builder(options).handler(self.handler(script)))
    }

    /// Runs a consumer until the log is read and nothing more will become due.
    pub(crate) async fn run(
        &self,
        options: Options,
        script: impl Fn(&Try) -> Reply + Send + Sync + 'static,
    ) -> Stats {
        self.log.close();
        let running = self.start(Options { until_idle: true, ..options }, script);
        running.ended().await.expect("the consumer ends well")
    }

    pub(crate) fn queue() -> QueueName {
        QueueName::of(NAME, NAME)
    }

    /// Returns the open letters of a sequence, in order.
    pub(crate) fn letters(&self, sequence: &str) -> Vec<Letter> {
        self.letters_in(&Self::queue(), sequence)
    }

    pub(crate) fn letters_in(&self, queue: &QueueName, sequence: &str) -> Vec<Letter> {
        at_once(self.store.memory().sequence(queue, &sequence.into(), 0, 10_000))
    }

    /// Returns the payloads and the states of the open letters of a sequence.
    pub(crate) fn standing(&self, sequence: &str) -> Vec<(String, LetterState)> {
        self.letters(sequence).iter().map(|letter| (payload_of(letter), letter.state)).collect()
    }

    /// Returns the only open letter of a sequence.
    pub(crate) fn letter(&self, sequence: &str) -> Letter {
        let mut letters = self.letters(sequence);
        assert_eq!(letters.len(), 1, "one letter in {sequence}: {letters:?}");
        letters.remove(0)
    }

    /// Returns the letter, open or closed, of the message at this offset in partition 0.
    pub(crate) fn letter_at(&self, offset: u64) -> Option<Letter> {
        let id = LetterId::of(&Self::queue(), &MessageId::from(format!("events/0/{offset}")));
        at_once(self.store.memory().get(&Self::queue(), id))
    }

    pub(crate) fn counts(&self) -> Counts {
        at_once(self.store.memory().counts(&Self::queue()))
    }

    pub(crate) fn pauses(&self) -> Vec<Pause> {
        at_once(self.store.memory().pauses(&ConsumerName::from(NAME)))
    }

    pub(crate) fn audit(&self) -> Vec<AuditEntry> {
        use lazaret_core::store::Audit;
        at_once(self.store.memory().audit(0, 10_000))
    }

    /// Returns the committed offset of partition 0.
    pub(crate) fn committed(&self) -> Option<u64> {
        self.log.committed(0)
    }
}

pub(crate) fn payload_of(letter: &Letter) -> String {
    let payload = letter.message.payload.as_deref().unwrap_or_default();
    String::from_utf8_lossy(payload).into_owned()
}

/// Returns the response of a memory store, which never waits.
pub(crate) fn at_once<T>(call: impl Future<Output = lazaret_core::store::Result<T>>) -> T {
    call.now_or_never().expect("a memory store answers at once").expect("a memory store does not fail")
}

/// A running consumer.
pub(crate) struct Running {
    pub(crate) handle: Handle,
    drain: CancellationToken,
    task: JoinHandle<Result<Stats, Error>>,
}

impl Running {
    pub(crate) fn start(builder: Builder) -> Self {
        let consumer = builder.build().expect("the consumer is complete");
        let drain = CancellationToken::new();
        let handle = consumer.handle();
        let task = tokio::spawn(Box::pin(consumer.run(drain.clone())));
        Self { handle, drain, task }
    }

    /// Waits until the consumer ends by itself.
    pub(crate) async fn ended(self) -> Result<Stats, Error> {
        self.task.await.expect("the engine does not panic")
    }

    /// Asks the consumer to drain.
    pub(crate) fn begin_stop(&self) {
        self.drain.cancel();
    }

    pub(crate) async fn stop(self) -> Stats {
        self.begin_stop();
        self.ended().await.expect("the consumer ends well")
    }

    /// Kills the consumer: nothing is drained and nothing committed.
    pub(crate) async fn crash(self) {
        self.task.abort();
        let killed = self.task.await;
        assert!(killed.is_err_and(|error| error.is_cancelled()), "it was still running");
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.task.is_finished()
    }

    /// Returns the replayer of the only component.
    pub(crate) fn replayer(&self) -> Replayer {
        self.handle.replayer(NAME).expect("the component is known")
    }

    pub(crate) fn stats(&self) -> Stats {
        self.handle.stats()
    }
}

/// Returns options that make every run the same: a fixed seed, no jitter, no breaker, no fuse.
pub(crate) fn options() -> Options {
    Options {
        seed: 7,
        shards: 2,
        concurrency: 8,
        instance: "test".to_owned(),
        breaker: None,
        fuse: None,
        retry: retry(Strategy::Ordered),
        ..Options::default()
    }
}

/// Up to three attempts, the first retry after one second, the second after two. A lane waits in memory
/// for at most one second.
pub(crate) fn retry(strategy: Strategy) -> RetryPolicy {
    RetryPolicy {
        strategy,
        jitter: 0.0,
        initial_delay: secs(1),
        hold: secs(1),
        max_attempts: 3,
        ..RetryPolicy::default()
    }
}

/// Returns options with which the first failure is the last.
pub(crate) fn one_attempt() -> Options {
    let retry = RetryPolicy { max_attempts: 1, ..retry(Strategy::Ordered) };
    Options { retry, ..options() }
}

/// A transient failure.
pub(crate) fn transient() -> HandlerError {
    HandlerError::foreign("Timeout", "no answer").reason(Reason::TIMEOUT)
}

/// A permanent failure.
pub(crate) fn fatal() -> HandlerError {
    HandlerError::foreign("Invalid", "no such order").reason(Reason::DOMAIN_INVALID)
}

pub(crate) fn asking(verdict: Verdict) -> HandlerError {
    HandlerError::foreign("Asked", "the handler decided").verdict(verdict)
}

/// Returns an actor for a test.
pub(crate) fn operator(why: &str) -> Actor {
    Actor::new("ada", "test", why)
}

/// A switch that says if the handler is repaired.
#[derive(Clone, Default)]
pub(crate) struct Repaired(pub(crate) Arc<AtomicBool>);

impl Repaired {
    pub(crate) fn repair(&self) {
        self.0.store(true, Ordering::SeqCst);
    }

    /// Returns the script of a handler that fails until it is repaired. Payloads that end in 9 always
    /// fail.
    pub(crate) fn script(&self) -> impl Fn(&Try) -> Reply + Send + Sync + 'static {
        let repaired = self.clone();
        move |this| {
            let well = repaired.0.load(Ordering::SeqCst) && !this.name.ends_with('9');
            if well { Reply::Done } else { Reply::Fail(fatal()) }
        }
    }
}

/// Starts a consumer with a dead letter for each of these messages.
pub(crate) async fn with_dead(options: Options, names: &[&str]) -> (Bench, Running, Repaired) {
    let (bench, repaired) = (Bench::new(), Repaired::default());
    bench.push(names);
    let running = bench.start(options, repaired.script());
    let last = names.len() as u64 - 1;
    eventually("all are letters", || bench.committed() == Some(last)).await;
    (bench, running, repaired)
}

/// Lets the paused clock run until the condition holds, for at most ten minutes of its time.
pub(crate) async fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + secs(600);
    while !holds() {
        assert!(Instant::now() < deadline, "waited in vain for: {what}");
        tokio::time::sleep(millis(1)).await;
    }
}

/// Lets the paused clock run for this long.
pub(crate) async fn let_pass(time: Duration) {
    tokio::time::sleep(time).await;
}
