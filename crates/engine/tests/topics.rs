//! Strategy `topics`: the broker holds what failed, brings it back when it is due, and the store is the second line.
//!
//! The broker is partition 1 of the log, and a relay that fails on request.

#![allow(clippy::unwrap_used, reason = "a test that fails panics; that is its answer")]

mod support;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use lazaret_core::policy::{RetryPolicy, Strategy};
use lazaret_core::relay::{Handover, Hop, Relay, RelayError, RelayErrorKind};
use lazaret_core::source::{Commit, Source, SourceError, SourceEvent};
use lazaret_core::store::PauseScope;
use lazaret_core::{Letter, LetterId, LetterState, Message, MessageId, Partition, Position, Verdict};
use lazaret_engine::{BuildError, DeadLetterOptions, Options};
use lazaret_memory::{MemoryLog, MemorySource};
use support::{
    Bench, PausedClock, Reply, Running, SetClock, Try, asking, eventually, fatal, let_pass, millis, operator,
    options, payload_of, retry, secs, transient,
};

/// Where the retry topic is.
const RETRIES: u32 = 1;

/// How a relay fails.
#[derive(Clone, Copy)]
enum Fault {
    /// It refuses.
    Refuse(RelayErrorKind),
    /// It takes the message and says that it does not know.
    Forget,
}

/// A broker that holds what failed.
struct Broker {
    log: MemoryLog,
    fault: Mutex<Option<Fault>>,
    dead: Mutex<Vec<Letter>>,
    claims: Mutex<Vec<LetterId>>,
    /// How long it takes to publish a claim check.
    claim_delay: Mutex<Duration>,
    /// How often it was asked.
    asked: Mutex<usize>,
}

impl Broker {
    fn new(log: &MemoryLog) -> Arc<Self> {
        let (fault, dead, claims, claim_delay, asked) = Default::default();
        Arc::new(Self { log: log.clone(), fault, dead, claims, claim_delay, asked })
    }

    fn fail(&self, fault: impl Into<Option<Fault>>) {
        *self.fault.lock().unwrap() = fault.into();
    }

    fn dead(&self) -> Vec<Letter> {
        self.dead.lock().unwrap().clone()
    }

    fn asked(&self) -> usize {
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

    fn append(&self, letter: &Letter, same_failure: u32) {
        let hop = Hop {
            // The place at first. The source puts each where it belongs.
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
struct Returning {
    source: MemorySource,
    /// The handovers that came.
    seen: Vec<(MessageId, u32)>,
}

impl Returning {
    fn new(log: &MemoryLog) -> Self {
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

struct Place {
    bench: Bench,
    broker: Arc<Broker>,
}

impl Place {
    fn new() -> Self {
        let bench = Bench::with_partitions(2);
        let broker = Broker::new(&bench.log);
        Self { bench, broker }
    }

    fn options(&self) -> Options {
        Options { relay: Some(self.broker.clone()), retry: retry(Strategy::Topics), ..options() }
    }

    fn start(&self, options: Options, script: impl Fn(&Try) -> Reply + Send + Sync + 'static) -> Running {
        let handler = self.bench.handler(script);
        Running::start(self.builder(options).handler(handler))
    }

    fn builder(&self, options: Options) -> lazaret_engine::Builder {
        let builder = self.bench.builder(options);
        builder.source(Returning::new(&self.bench.log))
    }

    /// A place whose clock can be set.
    fn with_set_clock() -> (Self, SetClock) {
        let Self { bench, broker } = Self::new();
        let (bench, clock) = bench.with_set_clock();
        (Self { bench, broker }, clock)
    }

    /// Starts a consumer with this clock whose first retry is due after this time.
    fn start_by(&self, clock: &SetClock, delay: Duration) -> Running {
        let retry = RetryPolicy { initial_delay: delay, max_delay: delay, ..retry(Strategy::Topics) };
        let builder = self.builder(Options { retry, ..self.options() }).clock(Arc::new(clock.clone()));
        Running::start(builder.handler(self.bench.handler(failing(1))))
    }

    /// Waits until the message is handled at its second attempt, and returns when that began, in seconds.
    async fn second_attempt(&self, name: &str) -> f64 {
        eventually("it is tried again", || self.bench.calls.of(name).len() == 2).await;
        self.bench.calls.times_of(name)[1]
    }

    /// Runs until nothing is left to do.
    async fn run(&self, options: Options, script: impl Fn(&Try) -> Reply + Send + Sync + 'static) {
        self.bench.log.close();
        let running = self.start(Options { until_idle: true, ..options }, script);
        running.ended().await.unwrap();
    }
}

/// Fails the first `times`, then succeeds.
fn failing(times: usize) -> impl Fn(&Try) -> Reply + Send + Sync + 'static {
    move |this| if this.before < times { Reply::Fail(transient()) } else { Reply::Done }
}

fn failing_for(name: &'static str, times: usize) -> impl Fn(&Try) -> Reply + Send + Sync + 'static {
    move |this| {
        if this.name == name && this.before < times { Reply::Fail(transient()) } else { Reply::Done }
    }
}

#[tokio::test(start_paused = true)]
async fn topics_need_a_broker_and_a_place_for_what_it_does_not_take() {
    let options = Options { retry: retry(Strategy::Topics), ..options() };
    assert!(matches!(options.validate(), Err(BuildError::TopicsWithoutBroker)));
    let options = Options { dead_letter: None, ..Place::new().options() };
    assert!(matches!(options.validate(), Err(BuildError::TopicsWithoutLetters)));
}

#[tokio::test(start_paused = true)]
async fn a_message_comes_back_when_it_is_due_and_its_attempts_are_counted() {
    // I4, I5, I12
    let place = Place::new();
    place.bench.push(&["a1"]);
    place.run(place.options(), failing(2)).await;
    let Place { bench, .. } = &place;
    assert_eq!((bench.calls.attempts_of("a1"), bench.calls.done()), (vec![1, 2, 3], vec!["a1".to_owned()]));
    assert_eq!(bench.calls.times_of("a1"), [0.0, 1.0, 3.0], "never early and not late");
    for call in bench.calls.of("a1") {
        assert_eq!(
            call.message.partition(),
            Partition::new("events", 0),
            "the handler sees where it came on"
        );
        assert_eq!((call.message.position.offset, call.message.id.as_str()), (0, "events/0/0"));
    }
    assert_eq!((bench.committed(), bench.log.committed(RETRIES)), (Some(0), Some(1)));
    assert_eq!(bench.counts().open(), 0, "the store holds nothing");
    assert_eq!((bench.events.count("Relayed"), bench.events.count("RetryStarted")), (2, 2));
}

#[tokio::test(start_paused = true)]
async fn a_message_that_never_succeeds_is_dead_in_the_broker() {
    // I4
    let place = Place::new();
    place.bench.push(&["a1", "a2"]);
    place.run(place.options(), failing_for("a1", usize::MAX)).await;
    let dead = place.broker.dead();
    assert_eq!(dead.len(), 1);
    assert_eq!(
        (dead[0].state, dead[0].attempts, payload_of(&dead[0])),
        (LetterState::Dead, 3, "a1".to_owned())
    );
    assert_eq!(dead[0].first_failed_at, Some(PausedClock::at(secs(0))));
    assert_eq!(dead[0].last_failed_at, Some(PausedClock::at(secs(3))));
    assert_eq!((place.bench.counts().open(), place.bench.calls.done()), (0, vec!["a2".to_owned()]));
}

#[tokio::test(start_paused = true)]
async fn errors_that_alternate_end_after_the_last_attempt_too() {
    // I4
    let place = Place::new();
    place.bench.push(&["a1"]);
    let options =
        Options { retry: RetryPolicy { max_attempts: 5, ..retry(Strategy::Topics) }, ..place.options() };
    let script = |this: &Try| {
        let text = if this.before.is_multiple_of(2) { "A" } else { "B" };
        Reply::Fail(lazaret_core::HandlerError::foreign(text, text).verdict(Verdict::Retry))
    };
    place.run(options, script).await;
    assert_eq!(place.bench.calls.attempts_of("a1"), [1, 2, 3, 4, 5]);
    assert_eq!(place.broker.dead()[0].attempts, 5);
}

#[tokio::test(start_paused = true)]
async fn attempts_and_due_times_survive_a_crash() {
    // I4, I12: what is known stands in the message that comes back.
    let place = Place::new();
    place.bench.push(&["a1"]);
    let running = place.start(place.options(), failing(usize::MAX));
    eventually("it was relayed for the second time", || place.broker.asked() == 2).await;
    let_pass(millis(500)).await;
    running.crash().await;
    place.run(place.options(), failing(usize::MAX)).await;
    assert_eq!(place.bench.calls.attempts_of("a1"), [1, 2, 3]);
    assert_eq!(place.bench.calls.times_of("a1"), [0.0, 1.0, 3.0]);
    assert_eq!(place.broker.dead().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_message_whose_time_is_up_meanwhile_is_not_tried_again() {
    // I4
    let place = Place::new();
    place.bench.push(&["a1"]);
    let retry = RetryPolicy { max_elapsed: Some(secs(5)), ..retry(Strategy::Topics) };
    let options = Options { retry, ..place.options() };
    let running = place.start(options.clone(), failing(usize::MAX));
    eventually("it was relayed", || place.bench.committed() == Some(0)).await;
    running.crash().await;
    let_pass(secs(60)).await;
    place.run(options, failing(usize::MAX)).await;
    assert_eq!((place.bench.calls.len(), place.broker.dead().len()), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn messages_that_wait_take_nothing_of_the_window() {
    // I3, I7
    let place = Place::new();
    let failing: Vec<String> = (0..50).map(|n| format!("f{n}")).collect();
    place.bench.push(&failing.iter().map(String::as_str).collect::<Vec<_>>());
    let retry = RetryPolicy { initial_delay: secs(20), ..retry(Strategy::Topics) };
    let options = Options { window: 4, delay_queue: 8, retry, ..place.options() };
    let script = |this: &Try| {
        if this.name.starts_with('f') && this.before == 0 { Reply::Fail(transient()) } else { Reply::Done }
    };
    let running = place.start(options, script);
    eventually("all were relayed", || place.broker.asked() == 50).await;
    place.bench.push(&["a1", "b1", "c1", "d1", "e1"]);
    eventually("the others are handled", || place.bench.calls.done().len() == 5).await;
    assert!(place.bench.clock.elapsed() < secs(5));
    eventually("all are handled", || place.bench.calls.done().len() == 55).await;
    assert!(place.bench.clock.elapsed() < secs(22), "{:?}", place.bench.clock.elapsed());
    for name in &failing {
        let [first, second] = place.bench.calls.times_of(name)[..] else { panic!("{name} was tried twice") };
        assert!(second >= first + 20.0, "{name}: I12");
    }
    running.stop().await;
    assert_eq!(place.bench.log.committed(RETRIES), Some(49));
}

#[tokio::test(start_paused = true)]
async fn one_that_is_due_late_does_not_hold_up_one_behind_it() {
    // I3, I12
    let place = Place::new();
    place.bench.push(&["a1", "b1"]);
    let hint = |this: &Try| match (this.name.as_str(), this.before) {
        ("a1", 0) => Reply::Fail(transient().retry_after(secs(120))),
        ("b1", 0) => Reply::After(millis(10), Box::new(Reply::Fail(transient()))),
        _ => Reply::Done,
    };
    place.run(place.options(), hint).await;
    assert_eq!(place.bench.calls.times_of("a1"), [0.0, 120.0]);
    assert_eq!(place.bench.calls.times_of("b1"), [0.0, 1.01]);
}

#[tokio::test(start_paused = true)]
async fn what_the_broker_refuses_for_a_while_is_relayed_in_the_end() {
    let place = Place::new();
    place.bench.push(&["a1", "b1"]);
    place.broker.fail(Fault::Refuse(RelayErrorKind::Temporary));
    let running = place.start(place.options(), failing_for("a1", 1));
    eventually("it was refused", || place.broker.asked() >= 3).await;
    assert!(place.bench.events.count("RelayFailed") >= 2);
    assert_eq!(place.bench.calls.done(), ["b1"], "others flow on (I3)");
    assert_eq!(place.bench.committed(), None, "nothing of it is committed (I1)");
    place.broker.fail(None);
    eventually("it is handled", || place.bench.calls.done() == ["b1", "a1"]).await;
    assert_eq!(place.bench.counts().open(), 0);
    let stats = running.stop().await;
    assert!(stats.relay_failures >= 3 && stats.relayed == 1);
}

#[tokio::test(start_paused = true)]
async fn attempts_are_not_forgotten_while_the_broker_is_away() {
    // I4: the process crashes while the broker refuses.
    let place = Place::new();
    place.bench.push(&["a1"]);
    place.broker.fail(Fault::Refuse(RelayErrorKind::Temporary));
    let running = place.start(place.options(), failing(usize::MAX));
    eventually("it was refused", || place.broker.asked() >= 2).await;
    running.crash().await;
    place.broker.fail(None);
    place.run(place.options(), failing(usize::MAX)).await;
    assert_eq!(place.bench.calls.attempts_of("a1"), [1, 2, 3]);
}

#[tokio::test(start_paused = true)]
async fn what_the_broker_does_not_take_goes_to_the_store_and_is_retried_there() {
    // I1, I9
    for (trouble, patience) in
        [(RelayErrorKind::Temporary, 35), (RelayErrorKind::Permanent, 1), (RelayErrorKind::TooLarge, 1)]
    {
        let place = Place::new();
        place.bench.push(&["a1"]);
        place.broker.fail(Fault::Refuse(trouble));
        let running = place.start(place.options(), failing(2));
        eventually("it is a letter", || place.bench.events.count("LetterStored") >= 1).await;
        assert!(place.bench.clock.elapsed() < secs(patience), "{trouble:?}");
        eventually("it is handled", || place.bench.calls.done() == ["a1"]).await;
        assert_eq!(place.bench.calls.attempts_of("a1"), [1, 2, 3], "{trouble:?}");
        running.stop().await;
        assert_eq!(place.bench.committed(), Some(0));
    }
}

#[tokio::test(start_paused = true)]
async fn a_dead_message_that_is_too_large_is_in_the_store_and_the_broker_says_where() {
    let place = Place::new();
    place.bench.push(&["a1", "b1"]);
    place.broker.fail(Fault::Refuse(RelayErrorKind::TooLarge));
    let script = |this: &Try| Reply::Fail(if this.name == "a1" { fatal() } else { transient() });
    let running = place.start(place.options(), script);
    eventually("both are dead in the store", || place.bench.counts().of(LetterState::Dead) == 2).await;
    running.stop().await;
    let letters = [0, 1].map(|offset| place.bench.letter_at(offset).unwrap().id);
    assert_eq!(
        *place.broker.claims.lock().unwrap(),
        letters,
        "the second died after its retries in the store"
    );
}

#[tokio::test(start_paused = true)]
async fn a_dead_message_that_the_broker_refuses_has_a_claim_check_in_every_path() {
    for kind in [RelayErrorKind::TooLarge, RelayErrorKind::Permanent] {
        for gives_up in [false, true] {
            let place = Place::new();
            place.bench.push(&["a1"]);
            place.broker.fail(Fault::Refuse(kind));
            let script = move |_: &Try| match gives_up {
                true => Reply::SendToDlq("enough"),
                false => Reply::Fail(fatal()),
            };
            place.run(place.options(), script).await;
            let letter = place.bench.letter_at(0).unwrap();
            assert_eq!(letter.state, LetterState::Dead);
            assert_eq!(*place.broker.claims.lock().unwrap(), [letter.id], "{kind:?}, {gives_up}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_claim_check_that_takes_longer_than_the_lease_is_published_and_no_lease_is_lost() {
    let place = Place::new();
    place.bench.push(&["b1"]);
    place.broker.fail(Fault::Refuse(RelayErrorKind::TooLarge));
    *place.broker.claim_delay.lock().unwrap() = secs(40);
    let options = Options { lease: secs(3), ..place.options() };
    let running = place.start(options, |_: &Try| Reply::Fail(transient()));
    eventually("its claim check is published", || !place.broker.claims.lock().unwrap().is_empty()).await;
    let letter = place.bench.letter_at(0).unwrap();
    assert_eq!((letter.state, place.broker.claims.lock().unwrap()[0]), (LetterState::Dead, letter.id));
    assert_eq!((place.bench.events.count("LeaseLost"), running.stats().leases_lost), (0, 0));
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn another_message_with_the_id_of_a_letter_is_handled_under_an_id_of_its_own() {
    // I1: settled as a duplicate, it would be lost.
    let place = Place::new();
    place.bench.push(&["a1"]);
    place.broker.fail(Fault::Refuse(RelayErrorKind::Permanent));
    let script = |this: &Try| if this.name == "a1" { Reply::Fail(fatal()) } else { Reply::Done };
    let running = place.start(place.options(), script);
    eventually("it is a letter", || place.bench.counts().of(LetterState::Dead) == 1).await;
    let mut letter = place.bench.letter_at(0).unwrap();
    letter.due_at = Some(PausedClock::at(secs(0)));
    place.broker.append(&letter, 1);
    let forged =
        Message { position: Position::new(0, 99), key: Some("b".into()), ..(*letter.message).clone() };
    letter.message = Arc::new(forged.with_payload("b1"));
    letter.attempts += 1;
    place.broker.append(&letter, 1);
    eventually("the other one is handled", || place.bench.calls.done() == ["b1"]).await;
    assert_eq!(place.bench.calls.of("b1")[0].message.id.as_str(), "events/1/1");
    assert_eq!(place.bench.events.count("Duplicate"), 1, "the first is the letter itself");
    let stats = running.handle.stats();
    assert_eq!((stats.id_conflicts, stats.duplicates), (1, 1));
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn when_neither_broker_nor_store_take_it_the_source_waits() {
    // I9
    let place = Place::new();
    place.bench.push(&["b0"]);
    let running = place.start(place.options(), failing_for("a1", usize::MAX));
    eventually("it works", || place.bench.committed() == Some(0)).await;
    place.bench.push(&["a1"]);
    place.broker.fail(Fault::Refuse(RelayErrorKind::Permanent));
    place.bench.store.set_down(true);
    eventually("both refused", || place.bench.events.count("HandOffFailed") > 2).await;
    place.bench.push(&["b1"]);
    let_pass(secs(60)).await;
    assert_eq!((place.bench.committed(), place.bench.calls.len()), (Some(0), 2), "the source is held");
    assert!(place.bench.events.count("RelayFailed") >= 1);
    place.bench.store.set_down(false);
    eventually("b1 is handled", || place.bench.calls.done() == ["b0", "b1"]).await;
    running.stop().await;
    assert_eq!(place.bench.committed(), Some(2));
}

#[tokio::test(start_paused = true)]
async fn what_is_in_the_broker_and_in_the_store_runs_once() {
    // I8: the broker took every copy and never said so.
    let place = Place::new();
    place.bench.push(&["a1"]);
    place.broker.fail(Fault::Forget);
    let running = place.start(place.options(), failing(1));
    eventually("it is handled", || place.bench.calls.done() == ["a1"]).await;
    assert!(place.broker.asked() > 3);
    let copies = place.broker.asked() as u64;
    eventually("all copies are settled", || place.bench.log.committed(RETRIES) == Some(copies - 1)).await;
    assert_eq!(place.bench.calls.done(), ["a1"]);
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn of_two_copies_of_one_handover_one_runs() {
    // I8: the process died after the broker had taken the message and before the position was committed.
    let place = Place::new();
    place.bench.push(&["a1"]);
    let options = Options { commit_interval: secs(1000), ..place.options() };
    let running = place.start(options, failing(2));
    eventually("it was relayed", || place.broker.asked() == 1).await;
    running.crash().await;
    place.run(place.options(), failing(2)).await;
    assert_eq!(place.broker.asked(), 2, "the same handover twice");
    assert_eq!((place.bench.calls.attempts_of("a1"), place.bench.calls.done().len()), (vec![1, 1, 2], 1));
    assert_eq!(place.bench.events.count("Duplicate"), 1);
}

#[tokio::test(start_paused = true)]
async fn what_waits_for_a_person_stays_in_the_store() {
    let place = Place::new();
    place.bench.push(&["a1", "b1"]);
    let script = |this: &Try| {
        let verdict = if this.name == "a1" { Verdict::Park } else { Verdict::Quarantine };
        Reply::Fail(asking(verdict))
    };
    place.run(place.options(), script).await;
    let counts = place.bench.counts();
    assert_eq!((counts.of(LetterState::Parked), counts.of(LetterState::Quarantined)), (1, 1));
    assert_eq!(place.broker.asked(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_handler_that_gives_up_gives_it_to_the_broker_and_if_that_refuses_to_the_store() {
    let place = Place::new();
    place.bench.push(&["a1"]);
    place.run(place.options(), |_: &Try| Reply::SendToDlq("enough")).await;
    assert_eq!((place.broker.dead().len(), place.bench.counts().open()), (1, 0));
    let place = Place::new();
    place.bench.push(&["a1"]);
    place.broker.fail(Fault::Refuse(RelayErrorKind::Temporary));
    place.run(place.options(), |_: &Try| Reply::SendToDlq("enough")).await;
    assert_eq!((place.broker.dead().len(), place.bench.counts().of(LetterState::Dead)), (0, 1));
}

#[tokio::test(start_paused = true)]
async fn the_broker_gets_the_payload_also_when_letters_go_without() {
    // I5: a record without a payload is a tombstone.
    let place = Place::new();
    place.bench.push(&["a1"]);
    let dead_letter = Some(DeadLetterOptions { include_payload: false, ..DeadLetterOptions::default() });
    let options = Options { dead_letter, ..place.options() };
    place.run(options, |_: &Try| Reply::Fail(fatal())).await;
    assert_eq!(payload_of(&place.broker.dead()[0]), "a1");
}

#[tokio::test(start_paused = true)]
async fn a_message_comes_back_to_the_component_that_failed() {
    let place = Place::new();
    place.bench.push(&["a1"]);
    place.bench.log.close();
    let calls = &place.bench.calls;
    let options = Options { until_idle: true, ..place.options() };
    let builder = place
        .builder(options)
        .component("mail", calls.handler("mail", failing(1)))
        .component("index", calls.handler("index", failing(0)));
    Running::start(builder).ended().await.unwrap();
    assert_eq!((calls.done_by("mail"), calls.done_by("index")), (vec!["a1".into()], vec!["a1".into()]));
    let components: Vec<String> = calls.all().into_iter().map(|call| call.component).collect();
    assert_eq!(components.iter().filter(|name| *name == "mail").count(), 2);
    assert_eq!(components.len(), 3);
}

#[tokio::test(start_paused = true)]
async fn a_pause_of_the_stream_holds_what_comes_back_to_it() {
    let place = Place::new();
    place.bench.push(&["a1"]);
    let options = Options { window: 1, ..place.options() };
    let running = place.start(options, failing(1));
    eventually("it was relayed", || place.broker.asked() == 1).await;
    let scope = PauseScope::Stream("events".into());
    running.handle.pause(scope.clone(), &operator("look at it")).await.unwrap();
    let_pass(secs(10)).await;
    assert_eq!(place.bench.calls.len(), 1);
    running.handle.resume(&scope, &operator("well")).await.unwrap();
    eventually("it is handled", || place.bench.calls.done() == ["a1"]).await;
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_partition_that_goes_takes_along_what_waits() {
    // I1: what waits in the room is given up and comes again to whoever gets the partition.
    let place = Place::new();
    let names: Vec<String> = (0..20).map(|n| format!("k{n}")).collect();
    place.bench.push(&names.iter().map(String::as_str).collect::<Vec<_>>());
    let retry = RetryPolicy { initial_delay: secs(20), ..retry(Strategy::Topics) };
    let options = Options { retry, ..place.options() };
    let first = place.start(options.clone(), failing(1));
    eventually("all were relayed", || place.broker.asked() == 20).await;
    let second = place.start(Options { instance: "second".to_owned(), ..options }, failing(1));
    let_pass(secs(5)).await;
    first.stop().await;
    assert!(place.bench.clock.elapsed() < secs(10), "nobody waits for what is not due");
    eventually("all are handled", || place.bench.calls.done().len() == 20).await;
    assert_eq!(place.bench.calls.len(), 40);
    for name in &names {
        let [first, second] = place.bench.calls.times_of(name)[..] else { panic!("{name} was tried twice") };
        assert!((second - first - 20.0).abs() < 1.1 && second >= first + 20.0, "{name}: {first} {second}");
    }
    second.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_fenced_relay_leaves_the_partition_to_its_new_owner() {
    // I6
    let place = Place::new();
    place.bench.push(&["a1"]);
    place.broker.fail(Fault::Refuse(RelayErrorKind::Fenced));
    let running = place.start(place.options(), failing_for("a1", 2));
    eventually("it was refused", || place.broker.asked() == 1).await;
    assert_eq!((place.bench.committed(), place.bench.counts().open()), (None, 0));
    place.broker.fail(None);
    eventually("it is handled", || place.bench.calls.done() == ["a1"]).await;
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_message_in_the_delay_queue_does_not_wait_for_a_clock_that_was_set_back() {
    let (place, clock) = Place::with_set_clock();
    place.bench.push(&["a1"]);
    let running = place.start_by(&clock, secs(60));
    let_pass(secs(10)).await;
    clock.back_by_an_hour();
    let second = place.second_attempt("a1").await;
    assert!((60.0..62.0).contains(&second), "its delay, no more and no less (I12): {second}");
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_message_that_was_relayed_before_the_clock_was_set_back_waits_for_its_delay() {
    let (place, clock) = Place::with_set_clock();
    place.bench.push(&["a1"]);
    let running = place.start_by(&clock, secs(60));
    eventually("its position is committed", || place.bench.committed() == Some(0)).await;
    running.crash().await;
    let_pass(secs(10)).await;
    clock.back_by_an_hour();
    let running = place.start_by(&clock, secs(60));
    let second = place.second_attempt("a1").await;
    assert!((60.0..75.0).contains(&second), "its delay, from when it is read again (I12): {second}");
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_clock_that_is_set_forward_and_back_makes_no_relayed_message_early() {
    // I12
    let (place, clock) = Place::with_set_clock();
    place.bench.push(&["a1"]);
    let running = place.start_by(&clock, secs(3700));
    let_pass(secs(10)).await;
    clock.forward_by_an_hour();
    let_pass(secs(10)).await;
    clock.back_by_an_hour();
    let_pass(secs(10)).await;
    clock.back_by_an_hour();
    let_pass(secs(10)).await;
    clock.forward_by_an_hour();
    let_pass(secs(3600)).await;
    let second = place.second_attempt("a1").await;
    assert!((3700.0..3702.0).contains(&second), "{second}");
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn an_original_that_is_redelivered_finds_the_letter_of_its_copy() {
    // I4, I8: the position was not committed when the message was relayed.
    let place = Place::new();
    place.bench.push(&["a1"]);
    let options = Options { commit_interval: secs(3600), ..place.options() };
    let script = |this: &Try| match this.attempt {
        1 => Reply::Fail(transient()),
        _ => Reply::Fail(asking(Verdict::Park)),
    };
    let running = place.start(options.clone(), script);
    eventually("its copy is parked", || place.bench.counts().of(LetterState::Parked) == 1).await;
    running.crash().await;
    assert_eq!((place.bench.committed(), place.bench.calls.attempts_of("a1")), (None, vec![1, 2]));
    let running = place.start(options, script);
    let_pass(secs(30)).await;
    assert_eq!(place.bench.calls.attempts_of("a1"), [1, 2], "neither the original nor its copy runs again");
    assert_eq!(place.bench.counts().open(), 1);
    running.stop().await;
    assert_eq!(place.bench.committed(), Some(0), "both are settled");
}
