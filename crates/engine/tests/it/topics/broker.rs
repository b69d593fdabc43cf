//! A broker that is partition 1 of the log, a relay that fails on request, and a consumer with both.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use lazaret_core::policy::{RetryPolicy, Strategy};
use lazaret_core::relay::{Handover, Hop, Relay, RelayError, RelayErrorKind};
use lazaret_core::source::{Commit, Source, SourceError, SourceEvent};
use lazaret_core::{Letter, LetterId, Message, MessageId, Partition};
use lazaret_engine::Options;
use lazaret_memory::{MemoryLog, MemorySource};

use crate::support::{Bench, Reply, Running, SetClock, Try, eventually, let_pass, options, retry, transient};

/// The partition of the retry topic.
pub(crate) const RETRIES: u32 = 1;

/// The way in which a relay fails.
#[derive(Clone, Copy)]
pub(crate) enum Fault {
    /// The relay refuses the message.
    Refuse(RelayErrorKind),
    /// The relay accepts the message but reports that the outcome is unknown.
    Forget,
}

/// A broker that holds failed messages.
pub(crate) struct Broker {
    pub(crate) log: MemoryLog,
    fault: Mutex<Option<Fault>>,
    pub(crate) dead: Mutex<Vec<Letter>>,
    pub(crate) claims: Mutex<Vec<LetterId>>,
    /// The time that it takes to publish a claim check.
    pub(crate) claim_delay: Mutex<Duration>,
    /// How often the relay was called.
    asked: Mutex<usize>,
}

impl Broker {
    pub(crate) fn new(log: &MemoryLog) -> Arc<Self> {
        let (fault, dead, claims, claim_delay, asked) = Default::default();
        Arc::new(Self { log: log.clone(), fault, dead, claims, claim_delay, asked })
    }

    pub(crate) fn fail(&self, fault: impl Into<Option<Fault>>) {
        *self.fault.lock().unwrap() = fault.into();
    }

    pub(crate) fn dead(&self) -> Vec<Letter> {
        self.dead.lock().unwrap().clone()
    }

    pub(crate) fn asked(&self) -> usize {
        *self.asked.lock().unwrap()
    }

    fn take(&self, write: impl FnOnce()) -> Result<(), RelayError> {
        *self.asked.lock().unwrap() += 1;
        let fault = *self.fault.lock().unwrap();
        match fault {
            None => write(),
            Some(Fault::Refuse(trouble)) => return Err(RelayError::not_done(trouble, "no")),
            Some(Fault::Forget) => {
                write();
                return Err(RelayError::maybe_done(RelayErrorKind::Temporary, "who knows"));
            }
        }
        Ok(())
    }

    pub(crate) fn append(&self, letter: &Letter, same_failure: u32) {
        let hop = Hop {
            // The original place of the message. The source sets the place of each delivery.
            stream: letter.message.stream.clone(),
            position: letter.message.position.clone(),
            queue: letter.queue.clone(),
            attempts: letter.attempts,
            crashes: letter.crash_attempts,
            first_failed_at: letter.first_failed_at.unwrap(),
            last_failed_at: letter.last_failed_at.unwrap(),
            failure: letter.cause.clone().unwrap(),
            same_failure,
            due_at: letter.due_at.unwrap(),
            twin: false,
            conflict: false,
        };
        let message = Message { hop: Some(Box::new(hop)), ..(*letter.message).clone() };
        self.log.push_with(RETRIES, |_| message);
    }
}

#[async_trait]
impl Relay for Broker {
    async fn retry(&self, handover: Handover<'_>) -> Result<(), RelayError> {
        assert!(handover.letter.message.hop.is_none());
        self.take(|| self.append(handover.letter, handover.same_failure))
    }

    async fn dead(&self, handover: Handover<'_>) -> Result<(), RelayError> {
        self.take(|| self.dead.lock().unwrap().push(handover.letter.clone()))
    }

    async fn claim(&self, handover: Handover<'_>) -> Result<(), RelayError> {
        let delay = *self.claim_delay.lock().unwrap();
        let_pass(delay).await;
        self.claims.lock().unwrap().push(handover.letter.id);
        Ok(())
    }
}

/// Brings messages back from the broker.
pub(crate) struct Returning {
    source: MemorySource,
    /// The handovers that were received.
    seen: Vec<(MessageId, u32)>,
}

impl Returning {
    pub(crate) fn new(log: &MemoryLog) -> Self {
        Self { source: log.join(), seen: Vec::new() }
    }
}

#[async_trait]
impl Source for Returning {
    async fn next(&mut self) -> Result<SourceEvent, SourceError> {
        let mut event = self.source.next().await?;
        if let SourceEvent::Messages(messages) = &mut event {
            for message in messages {
                let Message { stream, position, hop: Some(hop), id, .. } = message else { continue };
                std::mem::swap(stream, &mut hop.stream);
                std::mem::swap(position, &mut hop.position);
                let handover = (id.clone(), hop.attempts);
                hop.twin = self.seen.contains(&handover);
                self.seen.push(handover);
            }
        }
        Ok(event)
    }

    async fn commit(&mut self, commits: Vec<Commit>) -> Result<(), SourceError> {
        self.source.commit(commits).await
    }

    fn pause(&mut self, partitions: &[Partition]) {
        self.source.pause(partitions);
    }

    fn resume(&mut self, partitions: &[Partition]) {
        self.source.resume(partitions);
    }

    fn rewind(&mut self, partitions: &[Partition]) {
        self.source.rewind(partitions);
    }

    async fn revoked(&mut self, partitions: &[Partition]) -> Result<(), SourceError> {
        self.source.revoked(partitions).await
    }

    async fn close(&mut self) -> Result<(), SourceError> {
        self.source.close().await
    }
}

pub(crate) struct Place {
    pub(crate) bench: Bench,
    pub(crate) broker: Arc<Broker>,
}

impl Place {
    pub(crate) fn new() -> Self {
        let bench = Bench::with_partitions(2);
        let broker = Broker::new(&bench.log);
        Self { bench, broker }
    }

    pub(crate) fn options(&self) -> Options {
        Options { relay: Some(self.broker.clone()), retry: retry(Strategy::Topics), ..options() }
    }

    pub(crate) fn start(
        &self,
        options: Options,
        script: impl Fn(&Try) -> Reply + Send + Sync + 'static,
    ) -> Running {
        let handler = self.bench.handler(script);
        Running::start(self.builder(options).handler(handler))
    }

    pub(crate) fn builder(&self, options: Options) -> lazaret_engine::Builder {
        let builder = self.bench.builder(options);
        builder.source(Returning::new(&self.bench.log))
    }

    /// Creates a place whose clock can be set.
    pub(crate) fn with_set_clock() -> (Self, SetClock) {
        let Self { bench, broker } = Self::new();
        let (bench, clock) = bench.with_set_clock();
        (Self { bench, broker }, clock)
    }

    /// Starts a consumer with this clock. Its first retry is due after `delay`.
    pub(crate) fn start_by(&self, clock: &SetClock, delay: Duration) -> Running {
        let retry = RetryPolicy { initial_delay: delay, max_delay: delay, ..retry(Strategy::Topics) };
        let builder = self.builder(Options { retry, ..self.options() }).clock(Arc::new(clock.clone()));
        Running::start(builder.handler(self.bench.handler(failing(1))))
    }

    /// Waits until the message is handled at its second attempt, and returns the start time of that
    /// attempt in seconds.
    pub(crate) async fn second_attempt(&self, name: &str) -> f64 {
        eventually("it is tried again", || self.bench.calls.of(name).len() == 2).await;
        self.bench.calls.times_of(name)[1]
    }

    /// Runs until no work is left.
    pub(crate) async fn run(&self, options: Options, script: impl Fn(&Try) -> Reply + Send + Sync + 'static) {
        self.bench.log.close();
        let running = self.start(Options { until_idle: true, ..options }, script);
        running.ended().await.unwrap();
    }
}

/// Fails `times` times, then succeeds.
pub(crate) fn failing(times: usize) -> impl Fn(&Try) -> Reply + Send + Sync + 'static {
    move |this| if this.before < times { Reply::Fail(transient()) } else { Reply::Done }
}

pub(crate) fn failing_for(
    name: &'static str,
    times: usize,
) -> impl Fn(&Try) -> Reply + Send + Sync + 'static {
    move |this| {
        if this.name == name && this.before < times { Reply::Fail(transient()) } else { Reply::Done }
    }
}
