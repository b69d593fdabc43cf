//! The recorded life of a store: calls of every kind, what each was to do, and when it was answered.

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use lazaret_core::source::{Commit, Ingest, NewMessage, Source, SourceEvent};
use lazaret_core::store::{
    Act, Action, Actor, AttemptNote, Change, Expect, GrantFence, HandOff, KeyValue, LetterStore, Limits,
    Operations, PauseScope, Placement, PlanRequest, Requeue, RolloutPolicy, Selection, Settled, Settlement,
    Triage,
};
use lazaret_core::{
    Clock, Failure, Letter, LetterId, LetterState, Message, MessageId, Partition, Position, QueueName,
    Reason, SequenceId,
};
use lazaret_power_loss::{History, Log, Recording, scratch};
use lazaret_testkit::ManualClock;
use tempfile::TempDir;

use crate::{InboxOptions, Options, SqliteStore};

/// The name of the file.
pub(super) const FILE: &str = "lazaret.db";
/// The name of a value, and of its namespace.
pub(super) const VALUE: (&str, &str) = ("test", "value");
/// The number of concurrent callers of a burst.
const BURST: u64 = 8;
const LEASE: Duration = Duration::from_secs(60);

pub(super) fn queue() -> QueueName {
    QueueName::of("orders", "orders")
}

pub(super) fn partition() -> Partition {
    Partition::new("orders", 0)
}

pub(super) fn inbox_options() -> InboxOptions {
    InboxOptions { batch: 100, ..InboxOptions::default() }
}

fn ada() -> Actor {
    Actor::new("ada", "cli", "the service is back")
}

/// A fence that was given out.
#[derive(Clone, Debug)]
pub(super) struct Fence {
    /// The sequence; `None` for the grant of the partition.
    pub(super) sequence: Option<SequenceId>,
    pub(super) fence: u64,
    /// The cut after which it is known.
    pub(super) answered: usize,
}

/// A store in a recorded folder.
pub(super) struct Life {
    folder: TempDir,
    clock: ManualClock,
    options: Options,
    recording: Option<Recording>,
    log: Option<Log>,
    history: RefCell<History>,
    fences: RefCell<Vec<Fence>>,
}

/// The description of a letter that is compared.
pub(super) fn description(letter: &Letter) -> String {
    let payload = letter.message.payload.as_deref().map(String::from_utf8_lossy).unwrap_or_default();
    let attempts = letter.attempts;
    format!("{} {} comments={} {payload}", letter.state, attempts, letter.comments.len())
}

fn described(state: LetterState, attempts: u32, comments: usize, payload: &str) -> String {
    format!("{state} {attempts} comments={comments} {payload}")
}

/// The payload of a message. Some fill more than a page.
fn payload(number: u64) -> String {
    format!("{{\"number\":{number},\"text\":\"{}\"}}", "x".repeat(if number % 5 == 3 { 6000 } else { 60 }))
}

pub(super) fn id(number: u64) -> LetterId {
    LetterId::of(&queue(), &MessageId::from(format!("m{number}")))
}

impl Life {
    pub(super) fn begin(options: Options) -> Self {
        let (folder, clock) = (scratch(), ManualClock::new());
        let options = Options { clock: Arc::new(clock.clone()), readers: 1, ..options };
        let recording = Some(Recording::start(folder.path()));
        Self {
            folder,
            clock,
            options,
            recording,
            log: None,
            history: RefCell::default(),
            fences: RefCell::default(),
        }
    }

    /// Ends the recording, whatever the store does at this moment.
    pub(super) fn end(mut self) -> Self {
        self.log = self.recording.take().map(Recording::finish);
        self
    }

    pub(super) fn log(&self) -> &Log {
        self.log.as_ref().expect("the life has ended")
    }

    pub(super) fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub(super) fn history(&self) -> std::cell::Ref<'_, History> {
        self.history.borrow()
    }

    /// The fences that were given out before a cut.
    pub(super) fn fences(&self, cut: usize) -> Vec<Fence> {
        self.fences.borrow().iter().filter(|known| known.answered <= cut).cloned().collect()
    }

    pub(super) fn is_answered(&self, object: &str, cut: usize) -> bool {
        self.history.borrow().is_answered(object, cut)
    }

    pub(super) fn is_requested(&self, object: &str, cut: usize) -> bool {
        self.history.borrow().is_requested(object, cut)
    }

    fn recording(&self) -> &Recording {
        self.recording.as_ref().expect("the life has not ended")
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join(FILE)
    }

    pub(super) fn open(&self) -> SqliteStore {
        SqliteStore::open(self.path(), self.options.clone()).unwrap()
    }

    /// The options of a store that is opened after the power cut, when all leases have ended.
    pub(super) fn later(&self) -> Options {
        let clock = ManualClock::new();
        clock.set(self.clock.now() + 10 * LEASE);
        Options { clock: Arc::new(clock), ..self.options.clone() }
    }

    /// Notes what a call is to do, makes it, and notes that it was answered.
    pub(super) async fn call<T, E: std::fmt::Debug>(
        &self,
        effects: &[(&str, &str)],
        call: impl Future<Output = Result<T, E>>,
    ) -> T {
        for (object, value) in effects {
            self.history.borrow_mut().request(*object, *value, self.recording());
        }
        let answer = call.await.unwrap();
        for (object, _) in effects {
            self.history.borrow_mut().answer(object, self.recording());
        }
        answer
    }

    /// Notes a fence that was given out.
    fn fenced(&self, sequence: Option<SequenceId>, fence: u64) {
        let answered = self.recording().mark();
        self.fences.borrow_mut().push(Fence { sequence, fence, answered });
    }

    /// Opens the store, makes calls of every kind, and closes it.
    pub(super) async fn open_and_run(&self, round: u64) {
        let store = self.open();
        let first = round * 100;
        self.hand_offs(&store, first).await;
        self.checkpoint();
        self.acts(&store, first).await;
        self.lease(&store, first).await;
        self.values(&store, first).await;
        self.inbox(&store, first).await;
        self.checkpoint();
        self.operation(&store, first).await;
        // In the redo log when the store is closed.
        self.burst(&store, first + 50).await;
        store.close().await.unwrap();
    }

    /// Lets SQLite write its log to the database, as far as nobody uses it. The next commit starts at the beginning of the log.
    fn checkpoint(&self) {
        let connection = rusqlite::Connection::open(self.path()).unwrap();
        connection.busy_timeout(Duration::ZERO).unwrap();
        connection.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(())).unwrap();
    }

    /// Letters of three sequences, one by one and several in a call, and a burst of concurrent ones.
    pub(super) async fn hand_offs(&self, store: &SqliteStore, first: u64) {
        let granted = store.assign(&queue(), &[partition()]).await.unwrap().remove(0).fence;
        self.fenced(None, granted);
        for number in first..first + 3 {
            self.hand_off(store, &[number], granted, number + 1).await;
        }
        self.hand_off(store, &[first + 3, first + 4, first + 5], granted, first + 4).await;
        let note = AttemptNote {
            message: format!("n{first}").as_str().into(),
            partition: partition(),
            offset: first + 9,
            attempts: 3,
            first_failed_at: self.clock.now(),
            failure: Failure::new(Reason::TIMEOUT, "HttpError", "boom"),
            same_failure: 1,
            due_at: self.clock.now(),
        };
        let name = format!("note n{first}");
        self.call(&[(name.as_str(), "3")], store.note_attempts(&queue(), vec![note])).await;
        self.burst(store, first + 10).await;
    }

    async fn hand_off(&self, store: &SqliteStore, numbers: &[u64], fence: u64, turn: u64) {
        let grant = GrantFence { partition: partition(), fence, turn };
        self.store_letters(store, numbers, Some(grant)).await;
    }

    async fn store_letters(&self, store: &SqliteStore, numbers: &[u64], grant: Option<GrantFence>) {
        let effects: Vec<(String, String)> = numbers
            .iter()
            .map(|number| {
                (format!("letter m{number}"), described(LetterState::Dead, 1, 0, &payload(*number)))
            })
            .collect();
        let effects: Vec<(&str, &str)> =
            effects.iter().map(|(object, value)| (object.as_str(), value.as_str())).collect();
        let items = numbers.iter().map(|number| self.letter(*number, grant.clone())).collect();
        let placed = self.call(&effects, store.hand_off(&queue(), &Limits::NONE, items)).await;
        for placed in placed {
            placed.unwrap();
        }
    }

    fn letter(&self, number: u64, grant: Option<GrantFence>) -> HandOff {
        let message = Message::new(format!("m{number}"), "orders", Position::new(0, number))
            .with_payload(payload(number));
        let mut letter = Letter::new(queue(), sequence(number), message.into(), self.clock.now());
        (letter.state, letter.attempts) = (LetterState::Dead, 1);
        letter.cause = Some(Failure::new(Reason::TIMEOUT, "HttpError", "boom"));
        HandOff { letter, placement: Placement::Open, grant }
    }

    /// Concurrent hand-offs and posts.
    async fn burst(&self, store: &SqliteStore, first: u64) {
        let inbox = store.inbox_log("orders", inbox_options());
        let inbox = &inbox;
        let mut calls: Vec<Pin<Box<dyn Future<Output = ()> + '_>>> = Vec::new();
        for number in first..first + BURST {
            calls.push(Box::pin(async move { self.store_letters(store, &[number], None).await }));
            calls.push(Box::pin(async move {
                let object = format!("post p{number}");
                self.call(&[(object.as_str(), "there")], inbox.post(vec![post(number)])).await;
            }));
        }
        all(calls).await;
    }

    async fn acts(&self, store: &SqliteStore, first: u64) {
        let (letter, text) = (format!("letter m{}", first + 2), payload(first + 2));
        let object = letter.as_str();
        let parked = described(LetterState::Parked, 1, 0, &text);
        self.call(&[(object, parked.as_str())], store.act(&queue(), id(first + 2), Act::Park, &ada())).await;
        for (change, value) in [
            (
                Change::Payload(Some("{\"edited\":1}".into())),
                described(LetterState::Parked, 1, 0, "{\"edited\":1}"),
            ),
            (Change::Comment("looks right".into()), described(LetterState::Parked, 1, 1, "{\"edited\":1}")),
        ] {
            let (queue, by) = (queue(), ada());
            let change = Triage::change(store, &queue, id(first + 2), &change, &by);
            self.call(&[(object, value.as_str())], change).await;
        }
        let consumer = "orders".into();
        let paused = if first == 0 { "paused" } else { "" };
        let (scope, by) = (PauseScope::Stream("other".into()), ada());
        self.call(&[("pause", paused)], store.set_pause(&consumer, &scope, first == 0, &by)).await;
    }

    /// Claims a sequence, resolves its head, and lets the next letter fail.
    async fn lease(&self, store: &SqliteStore, first: u64) {
        self.clock.advance(2 * LEASE);
        let sequence = sequence(first);
        let claim = store.claim(&queue(), &sequence, "worker", LEASE).await.unwrap().unwrap();
        self.fenced(Some(sequence), claim.lease.fence);
        let number: u64 = claim.head.message.id.as_str()[1..].parse().unwrap();
        let object = format!("letter m{number}");
        let resolved = described(LetterState::Resolved, 1, 0, &payload(number));
        let settle = store.settle(&claim.lease, claim.head.id, Settlement::Resolve(None));
        let settled = self.call(&[(object.as_str(), resolved.as_str())], settle).await;
        let Settled::Next(next) = settled else { panic!("{settled:?}") };
        let number: u64 = next.message.id.as_str()[1..].parse().unwrap();
        let object = format!("letter m{number}");
        let failed = described(LetterState::Dead, 2, 0, &payload(number));
        let requeue = Requeue {
            state: LetterState::Dead,
            due_at: None,
            cause: Some(Failure::new(Reason::TIMEOUT, "HttpError", "boom again")),
            attempts: 2,
            replay_attempts: 1,
            ..Requeue::of(&next)
        };
        let settle = store.settle(&claim.lease, next.id, Settlement::Requeue(Box::new(requeue)));
        self.call(&[(object.as_str(), failed.as_str())], settle).await;
    }

    /// Compare-and-set.
    async fn values(&self, store: &SqliteStore, first: u64) {
        let (space, name) = VALUE;
        for text in [format!("{first} one"), format!("{first} two")] {
            let found = store.read(space, name).await.unwrap().found;
            let expect = found.map_or(Expect::Absent, |found| Expect::Version(found.version));
            let write = KeyValue::write(store, space, name, expect, Some(text.clone().into()), None);
            self.call(&[("value", text.as_str())], write).await;
        }
    }

    /// A message in the inbox is posted, delivered and settled.
    async fn inbox(&self, store: &SqliteStore, first: u64) {
        let inbox = store.inbox_log("orders", inbox_options());
        let object = format!("post p{first}");
        self.call(&[(object.as_str(), "there")], inbox.post(vec![post(first)])).await;
        let mut source = inbox.source();
        let SourceEvent::Assigned(_) = source.next().await.unwrap() else { panic!("not assigned") };
        let SourceEvent::Messages(messages) = source.next().await.unwrap() else { panic!("no messages") };
        let objects: Vec<String> = messages.iter().map(|message| format!("post {}", message.id)).collect();
        let effects: Vec<(&str, &str)> = objects.iter().map(|object| (object.as_str(), "")).collect();
        let position = messages.last().map(|message| message.position.clone());
        let commit = Commit { partition: source.partition(), position, settled_beyond: vec![] };
        self.call(&effects, source.commit(vec![commit])).await;
    }

    /// A plan and its operation, which parks two letters.
    async fn operation(&self, store: &SqliteStore, first: u64) {
        let numbers = [first + 10, first + 11];
        let request = PlanRequest {
            action: Action::Park,
            selection: Selection::Letters(numbers.map(|number| (queue(), id(number))).to_vec()),
            valid_for: Duration::from_secs(3600),
            max_letters: 10,
        };
        let plan = store.freeze(&request, &ada()).await.unwrap();
        let rollout = RolloutPolicy { rate: None, ramp: vec![], stop_at: None, ..RolloutPolicy::default() };
        let object = format!("operation {}", 1 + first / 100);
        let by = ada();
        let begin = store.begin(plan.id, &rollout, &by);
        self.call(&[(object.as_str(), "under way")], begin).await;
        let parked = numbers.map(|number| {
            (format!("letter m{number}"), described(LetterState::Parked, 1, 0, &payload(number)))
        });
        let effects = [
            (object.as_str(), "over ok=2"),
            (parked[0].0.as_str(), parked[0].1.as_str()),
            (parked[1].0.as_str(), parked[1].1.as_str()),
        ];
        self.call(&effects, store.poll_work(&queue(), "worker", LEASE, 10)).await;
    }
}

/// The sequence of a message. Those of the first ones are short, those of a burst are shared.
fn sequence(number: u64) -> SequenceId {
    let name = if number % 100 < 10 { number % 3 } else { 3 + number % 4 };
    SequenceId::new(format!("s{name}"))
}

fn post(number: u64) -> NewMessage {
    let payload = Some(payload(number).into());
    NewMessage { id: Some(format!("p{number}").into()), payload, ..NewMessage::default() }
}

/// Waits for all of them at once.
async fn all(mut calls: Vec<Pin<Box<dyn Future<Output = ()> + '_>>>) {
    std::future::poll_fn(|context| {
        calls.retain_mut(|call| call.as_mut().poll(context).is_pending());
        if calls.is_empty() { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}
