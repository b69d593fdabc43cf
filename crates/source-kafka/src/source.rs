//! The member of a group, as the engine sees it.
//!
//! Everything that the engine calls runs on its task and never blocks. Why a rebalance is answered outside of its callback,
//! and why every partition has a queue of its own: docs/decisions/0012-kafka-rebalance.md.

mod commit;

use std::collections::{BTreeSet, VecDeque};
use std::fmt;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use lazaret_core::Partition;
use lazaret_core::source::{Commit, Source, SourceError, SourceEvent};
use rdkafka::config::FromClientConfigAndContext;
use rdkafka::consumer::Consumer;
use rdkafka::error::KafkaError;
use rdkafka::{ClientConfig, Offset};
use tokio::sync::{Notify, oneshot, watch};

use crate::lookup::{self, Beginning, Failed, Purpose};
use crate::member::{Change, Client, Clients, Member, add_offset, assign, list_of, unassign};
use crate::options::{KafkaOptions, Reset};
use crate::record::Reader;
use crate::slot::{Pause, Slot, Stage};
use crate::trouble::{Trouble, judge};

/// How long to wait for a sign of life before the client is polled all the same.
const TICK: Duration = Duration::from_millis(100);
/// How long to wait before positions are looked up again.
const LOOKUP_REST: Duration = Duration::from_millis(500);
/// How long to wait for what follows when partitions were let go.
const FINISHING: Duration = Duration::from_millis(500);
/// How long leaving the group may take.
const CLOSING: Duration = Duration::from_secs(10);

/// How a source is doing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KafkaState {
    /// It has not got its first assignment yet.
    Joining,
    /// It is a member of its group and reads this many partitions.
    Reading(usize),
    /// Something is wrong, and it goes on trying.
    Trouble(String),
    /// It left.
    Closed,
}

/// One member of a Kafka consumer group. Dropping it without [`close`](Source::close) commits nothing.
pub struct KafkaSource {
    /// None when it is closed.
    clients: Option<Clients>,
    /// What the member of the group hears.
    member: Member,
    /// What the client that reads hears.
    reading: Member,
    wake: Arc<Notify>,
    options: KafkaOptions,
    reset: Reset,
    reader: Reader,
    slots: Vec<Slot>,
    /// What has to be told before any message.
    ready: VecDeque<SourceEvent>,
    troubles: VecDeque<SourceError>,
    lookup: Option<Lookup>,
    /// Partitions that shall be read again, once no other look-up is under way.
    rewinds: Vec<Partition>,
    going: Option<Going>,
    committing: Option<commit::Committing>,
    /// The slot that messages were taken from last; the next one has its turn.
    turn: usize,
    joined: bool,
    ended: bool,
    metadata_limit: usize,
    state: watch::Sender<KafkaState>,
}

/// A look-up, and when it has to be repeated.
struct Lookup {
    purpose: Purpose,
    stage: Asking,
}

enum Asking {
    Awaited(lookup::Answer),
    Resting { until: Instant },
}

/// A rebalance that waits until the engine is done with some partitions.
struct Going {
    /// All that the group wants back.
    partitions: Vec<Partition>,
    /// Those that the engine still works on.
    waiting: BTreeSet<Partition>,
    until: Instant,
}

impl KafkaSource {
    /// Joins the group. That takes its time: [`next`](Source::next) tells how it goes. The error says which option
    /// makes no sense.
    pub fn open(options: KafkaOptions) -> Result<Self, SourceError> {
        let reset = options.reset()?;
        let wake = Arc::new(Notify::new());
        let member = Member::new(options.reads_committed(), wake.clone());
        let reading = Member::new(options.reads_committed(), wake.clone());
        let clients = Clients {
            group: connect(&options.group_client()?, &member)?,
            reading: connect(&options.reading_client()?, &reading)?,
        };
        let source = Self {
            clients: Some(clients),
            member,
            reading,
            wake,
            reset,
            reader: Reader::new(&options),
            slots: Vec::new(),
            ready: VecDeque::new(),
            troubles: VecDeque::new(),
            lookup: None,
            rewinds: Vec::new(),
            going: None,
            committing: None,
            turn: 0,
            joined: false,
            ended: false,
            metadata_limit: options.metadata_limit,
            state: watch::Sender::new(KafkaState::Joining),
            options,
        };
        source.subscribe().map_err(refused)?;
        Ok(source)
    }

    /// How it is doing, for those who watch it while the engine has it.
    pub fn state(&self) -> watch::Receiver<KafkaState> {
        self.state.subscribe()
    }

    fn subscribe(&self) -> Result<(), KafkaError> {
        let topics: Vec<&str> = self.options.topics.iter().map(String::as_str).collect();
        self.clients.as_ref().map_or(Ok(()), |clients| clients.group.subscribe(&topics))
    }

    /// What there is to say next, without waiting.
    fn step(&mut self) -> Option<Result<SourceEvent, SourceError>> {
        self.pump();
        self.look_again();
        self.take_beginnings();
        self.take_overdue();
        self.take_changes();
        if let Some(event) = self.ready.pop_front() {
            return Some(Ok(event));
        }
        if let Some(trouble) = self.troubles.pop_front() {
            return Some(Err(trouble));
        }
        self.take_messages().map(Ok)
    }

    /// Serves what the clients have to say, except records.
    fn pump(&mut self) {
        let Some(Clients { group, reading }) = self.clients.clone() else { return };
        for (client, member) in [(group, self.member.clone()), (reading, self.reading.clone())] {
            loop {
                member.take_served();
                match client.poll(Duration::ZERO) {
                    Some(Err(error)) => self.note(error, &member.take_reason()),
                    // The member of the group does not read, and what is read comes by the queues of the slots.
                    Some(Ok(_)) => {}
                    None if member.take_served() => {}
                    None => break,
                }
            }
        }
    }

    fn note(&mut self, error: KafkaError, reason: &str) {
        match judge(error, reason, &self.options, !self.slots.is_empty()) {
            Trouble::Noted => tracing::debug!(reason, "the Kafka client deals with an error"),
            Trouble::Told(error) => self.complain(error),
        }
    }

    fn complain(&mut self, error: SourceError) {
        self.state.send_replace(KafkaState::Trouble(error.to_string()));
        // The client repeats itself; what was said already need not be said twice.
        let known = self.troubles.iter().any(|trouble| trouble.to_string() == error.to_string());
        if !known {
            self.troubles.push_back(error);
        }
    }

    /// Says that things go well.
    fn be_well(&self) {
        let reading = KafkaState::Reading(self.slots.len());
        self.state.send_if_modified(|state| {
            let changed = *state != reading;
            *state = reading;
            changed
        });
    }

    fn slot(&mut self, partition: &Partition) -> Option<&mut Slot> {
        self.slots.iter_mut().find(|slot| slot.partition == *partition)
    }

    // Partitions that come.

    /// Starts the next look-up, or repeats one that failed.
    fn look_again(&mut self) {
        match &self.lookup {
            Some(Lookup { stage: Asking::Awaited(_), .. }) => return,
            Some(Lookup { stage: Asking::Resting { until }, .. }) if Instant::now() < *until => return,
            Some(Lookup { purpose, .. }) => {
                let purpose = purpose.clone();
                self.look_up(purpose);
                return;
            }
            None => {}
        }
        let wanted = std::mem::take(&mut self.rewinds);
        let held = self.slots.iter().filter(|slot| wanted.contains(&slot.partition));
        let places: Vec<_> = held.map(|slot| (slot.partition.clone(), slot.start)).collect();
        if !places.is_empty() {
            self.look_up(Purpose::Again(places));
        }
    }

    fn look_up(&mut self, purpose: Purpose) {
        let Some(clients) = self.clients.clone() else { return };
        let answer = lookup::start(clients, self.member.clone(), purpose.clone(), self.reset);
        self.lookup = Some(Lookup { purpose, stage: Asking::Awaited(answer) });
    }

    fn take_beginnings(&mut self) {
        let Some(Lookup { purpose, stage: Asking::Awaited(answer) }) = &mut self.lookup else { return };
        let beginnings = match answer.try_recv() {
            Ok(Ok(beginnings)) => beginnings,
            Err(oneshot::error::TryRecvError::Empty) => return,
            Ok(Err(failed)) => {
                let purpose = purpose.clone();
                return self.look_up_failed(purpose, failed);
            }
            Err(oneshot::error::TryRecvError::Closed) => {
                let error = SourceError::temporary("positions could not be looked up");
                let purpose = purpose.clone();
                return self.look_up_failed(purpose, Failed::Source(error));
            }
        };
        match self.lookup.take().map(|lookup| lookup.purpose) {
            Some(Purpose::Come(_)) => self.come(beginnings),
            Some(Purpose::Again(_)) => self.begin_again(beginnings),
            None => {}
        }
    }

    fn look_up_failed(&mut self, purpose: Purpose, failed: Failed) {
        match failed {
            Failed::Source(error) => self.complain(error),
            Failed::Client(error) => {
                let reason = error.to_string();
                // Not the client's matter: nobody but us repeats it.
                match judge(error, &reason, &self.options, false) {
                    Trouble::Told(error) => self.complain(error),
                    Trouble::Noted => {}
                }
            }
        }
        self.lookup =
            Some(Lookup { purpose, stage: Asking::Resting { until: Instant::now() + LOOKUP_REST } });
    }

    /// Takes partitions whose beginnings are known.
    fn come(&mut self, beginnings: Vec<Beginning>) {
        let Some(Clients { group, reading }) = self.clients.clone() else { return };
        let partitions: Vec<Partition> = beginnings.iter().map(|b| b.partition.clone()).collect();
        self.forget(&partitions);
        if let Err(error) = assign(&group, &partitions) {
            // Who is told nothing waits for nothing: the group will say again what it wants.
            tracing::warn!(%error, "an assignment was not taken");
            return;
        }
        let mut list = list_of([]);
        let mut assignments = Vec::new();
        for beginning in beginnings {
            add_offset(&mut list, &beginning.partition, beginning.start, "");
            // A queue of its own comes first, so that no record comes by the common one.
            let Some(slot) = Slot::new(&reading, &self.reading, beginning) else {
                return self.complain(SourceError::permanent("the client has no queue for a partition"));
            };
            assignments.push(slot.assignment());
            self.slots.push(slot);
        }
        if let Err(error) = reading.incremental_assign(&list) {
            let context = format!("the client does not read its partitions: {error}");
            return self.complain(SourceError::permanent(context).with_source(error));
        }
        self.joined = true;
        self.ended = false;
        self.be_well();
        if !assignments.is_empty() {
            self.ready.push_back(SourceEvent::Assigned(assignments));
        }
    }

    /// Stops reading partitions.
    fn forget(&mut self, partitions: &[Partition]) {
        let (gone, kept) = self.slots.drain(..).partition(|slot| partitions.contains(&slot.partition));
        self.slots = kept;
        let gone: Vec<Slot> = gone;
        if let Some(clients) = self.clients.as_ref().filter(|_| !gone.is_empty())
            && let Err(error) =
                clients.reading.incremental_unassign(&list_of(gone.iter().map(|slot| &slot.partition)))
        {
            tracing::warn!(%error, "partitions are still read that are gone");
        }
    }

    fn begin_again(&mut self, beginnings: Vec<Beginning>) {
        let mut assignments = Vec::new();
        for beginning in beginnings {
            let slot = self.slots.iter_mut().find(|slot| slot.partition == beginning.partition);
            if let Some(slot) = slot.filter(|slot| slot.stage == Stage::Rewinding) {
                slot.begin_again(beginning);
                assignments.push(slot.assignment());
            }
        }
        self.ended = false;
        if !assignments.is_empty() {
            self.ready.push_back(SourceEvent::Assigned(assignments));
        }
    }

    // Partitions that go.

    /// Acts on what the group wants, one thing after the other. Says whether it wanted anything.
    fn take_changes(&mut self) -> bool {
        let mut any = false;
        while self.lookup.is_none()
            && self.going.is_none()
            && let Some(change) = self.member.next_change()
        {
            any = true;
            match change {
                Change::Come(partitions) if partitions.is_empty() => self.come(Vec::new()),
                Change::Come(partitions) => self.look_up(Purpose::Come(partitions)),
                Change::Go { partitions, lost } => self.go(partitions, lost),
            }
        }
        any
    }

    fn go(&mut self, partitions: Vec<Partition>, lost: bool) {
        let ours = self.slots.iter_mut().filter(|slot| partitions.contains(&slot.partition));
        let ours: Vec<Partition> = ours
            .map(|slot| {
                slot.stage = Stage::Going;
                slot.partition.clone()
            })
            .collect();
        if lost || ours.is_empty() {
            return self.lose(&partitions, ours);
        }
        let until = Instant::now() + self.options.max_poll_interval() / 4 * 3;
        let waiting = ours.iter().cloned().collect();
        self.going = Some(Going { partitions, waiting, until });
        self.ready.push_back(SourceEvent::Revoking(ours));
    }

    /// Lets go of partitions at once. The engine is told of those that it works on.
    fn lose(&mut self, partitions: &[Partition], told: Vec<Partition>) {
        self.forget(partitions);
        if !told.is_empty() {
            self.ready.push_back(SourceEvent::Lost(told));
        }
        self.let_go(partitions);
    }

    fn let_go(&self, partitions: &[Partition]) {
        if let Some(clients) = &self.clients
            && let Err(error) = unassign(&clients.group, partitions)
        {
            tracing::warn!(%error, "partitions were not given back");
        }
        self.be_well();
    }

    /// Waits a little for what the group asks next. A member that let go is given what it gets instead, be it nothing, and
    /// only when it has taken that does it join again, and the others get what it let go.
    async fn finish_rebalance(&mut self) {
        let until = Instant::now() + FINISHING;
        while self.lookup.is_none() && Instant::now() < until {
            self.pump();
            if self.take_changes() {
                return;
            }
            tokio::select! {
                () = self.wake.notified() => {}
                () = tokio::time::sleep(TICK) => {}
            }
        }
    }

    /// Gives up waiting for the engine before the group gives up waiting for us.
    fn take_overdue(&mut self) {
        if let Some(Going { partitions, waiting, .. }) =
            self.going.take_if(|going| Instant::now() >= going.until)
        {
            tracing::warn!("partitions were not let go in time; what was not committed will be repeated");
            self.lose(&partitions, waiting.into_iter().collect());
        }
    }

    /// The group does not know us any more: whatever we hold is lost. Joins anew.
    fn start_over(&mut self) {
        let ours: Vec<Partition> = self.slots.iter().map(|slot| slot.partition.clone()).collect();
        let going = self.going.take().map(|going| going.partitions).unwrap_or_default();
        self.lookup.take_if(|lookup| matches!(lookup.purpose, Purpose::Again(_)));
        self.rewinds.clear();
        self.forget(&ours);
        if !ours.is_empty() {
            self.ready.push_back(SourceEvent::Lost(ours));
        }
        if !going.is_empty() {
            self.let_go(&going);
        }
        if let Some(clients) = &self.clients {
            clients.group.unsubscribe();
        }
        if let Err(error) = self.subscribe() {
            self.complain(refused(error));
        }
    }

    // Messages.

    /// Messages of the partitions that flow, beginning with the one whose turn it is; or the end.
    fn take_messages(&mut self) -> Option<SourceEvent> {
        let finite = self.options.read_to_end;
        let (batch, count) = (self.options.batch, self.slots.len());
        let mut messages = Vec::new();
        let mut errors = Vec::new();
        for step in 1..=count {
            let index = (self.turn + step) % count;
            let slot = &mut self.slots[index];
            if !slot.flows() {
                continue;
            }
            match slot.read(&mut messages, batch, &self.reader, finite) {
                Pause::Done => {}
                Pause::Error(error) => errors.push(error),
                Pause::Back(offset) => {
                    turn_back(self.clients.as_ref(), slot, offset);
                    self.ready.push_back(SourceEvent::Lost(vec![slot.partition.clone()]));
                    self.ready.push_back(SourceEvent::Assigned(vec![slot.assignment()]));
                }
            }
            if messages.len() == batch {
                self.turn = index;
                break;
            }
        }
        for error in errors {
            let reason = self.reading.take_reason();
            self.note(error, &reason);
        }
        if !messages.is_empty() {
            if matches!(*self.state.borrow(), KafkaState::Trouble(_)) {
                self.be_well();
            }
            return Some(SourceEvent::Messages(messages));
        }
        self.ready.pop_front().or_else(|| self.take_end())
    }

    /// The end, once, when all was delivered that was there.
    fn take_end(&mut self) -> Option<SourceEvent> {
        let is_over = self.options.read_to_end
            && self.joined
            && !self.ended
            && self.lookup.is_none()
            && self.going.is_none()
            && self.rewinds.is_empty()
            && self.slots.iter().all(Slot::is_read);
        is_over.then(|| {
            self.ended = true;
            SourceEvent::End
        })
    }

    /// Leaves the group, in a thread of its own: the client waits for the brokers. The receiver hears when it is done.
    fn leave(&mut self) -> Option<oneshot::Receiver<()>> {
        let Clients { group, reading } = self.clients.take()?;
        self.member.close();
        self.reading.close();
        // The client waits for an answer to what it asked before.
        let outstanding = self.lookup.take().and_then(|lookup| match lookup.purpose {
            Purpose::Come(partitions) => Some(Change::Come(partitions)),
            Purpose::Again(_) => None,
        });
        let going = self.going.take().map(|Going { partitions, .. }| Change::Go { partitions, lost: false });
        let later = std::iter::from_fn(|| self.member.next_change());
        let changes: Vec<Change> = outstanding.into_iter().chain(going).chain(later).collect();
        let slots = std::mem::take(&mut self.slots);
        self.state.send_replace(KafkaState::Closed);
        let (done, gone) = oneshot::channel();
        let leave = move || {
            for change in changes {
                let answered = match &change {
                    Change::Come(partitions) => assign(&group, partitions),
                    Change::Go { partitions, .. } => unassign(&group, partitions),
                };
                if let Err(error) = answered {
                    tracing::debug!(%error, "a rebalance was not answered at the end");
                }
            }
            drop(group);
            drop(slots);
            drop(reading);
            // Nobody may be waiting any more.
            let _ = done.send(());
        };
        let started = thread::Builder::new().name("lazaret-kafka-leave".to_owned()).spawn(leave);
        started.is_ok().then_some(gone)
    }
}

/// The log was cut below what was delivered. It is another log from there on, to be read as if newly assigned.
fn turn_back(clients: Option<&Clients>, slot: &mut Slot, offset: u64) {
    let partition = slot.partition.clone();
    tracing::warn!(%partition, delivered = slot.next, offset, "the log was cut; reading again from its new end");
    let end = slot.end;
    slot.begin_again(Beginning { partition, start: offset, committed: None, settled: Vec::new(), end });
    // The record that told us is read again.
    let (topic, number) = (slot.partition.stream.as_str(), slot.partition.index as i32);
    if let Some(clients) = clients
        && let Err(error) = clients.reading.seek(topic, number, Offset::Offset(offset as i64), Duration::ZERO)
    {
        tracing::warn!(%error, "a partition could not be turned back");
    }
}

/// Makes a client that wakes its member.
fn connect(config: &ClientConfig, member: &Member) -> Result<Arc<Client>, SourceError> {
    let mut client = Client::from_config_and_context(config, member.clone()).map_err(refused)?;
    let woken = member.clone();
    client.set_nonempty_callback(move || woken.wake());
    Ok(Arc::new(client))
}

/// The client does not take its settings.
fn refused(error: KafkaError) -> SourceError {
    match error {
        // The value stays untold, and so does the error that holds it: a mistyped name may have a password as its value.
        KafkaError::ClientConfig(_, why, name, _) => SourceError::permanent(format!(
            "the Kafka client refuses the property {name}: {why}; correct it in `properties`"
        )),
        error => {
            let context = format!("the Kafka client refuses its settings: {error}; correct `properties`");
            SourceError::permanent(context).with_source(error)
        }
    }
}

#[async_trait]
impl Source for KafkaSource {
    async fn next(&mut self) -> Result<SourceEvent, SourceError> {
        loop {
            if self.clients.is_none() {
                return Err(SourceError::permanent("the source was closed"));
            }
            // Taken and returned without an await between: cancellation can lose nothing.
            if let Some(event) = self.step() {
                return event;
            }
            // A change since then has left its permit.
            tokio::select! {
                () = self.wake.notified() => {}
                () = tokio::time::sleep(TICK) => {}
            }
        }
    }

    async fn commit(&mut self, commits: Vec<Commit>) -> Result<(), SourceError> {
        self.commit_all(commits).await
    }

    fn pause(&mut self, partitions: &[Partition]) {
        self.slots
            .iter_mut()
            .filter(|slot| partitions.contains(&slot.partition))
            .for_each(|s| s.paused = true);
    }

    fn resume(&mut self, partitions: &[Partition]) {
        self.slots
            .iter_mut()
            .filter(|slot| partitions.contains(&slot.partition))
            .for_each(|s| s.paused = false);
    }

    fn rewind(&mut self, partitions: &[Partition]) {
        for slot in self.slots.iter_mut().filter(|slot| partitions.contains(&slot.partition)) {
            if slot.stage == Stage::Held {
                slot.stage = Stage::Rewinding;
                self.rewinds.push(slot.partition.clone());
            }
        }
    }

    async fn revoked(&mut self, partitions: &[Partition]) -> Result<(), SourceError> {
        let Some(going) = &mut self.going else { return Ok(()) };
        partitions.iter().for_each(|partition| {
            going.waiting.remove(partition);
        });
        if going.waiting.is_empty()
            && let Some(going) = self.going.take()
        {
            self.lose(&going.partitions, Vec::new());
            self.finish_rebalance().await;
        }
        Ok(())
    }

    async fn close(&mut self) -> Result<(), SourceError> {
        let Some(gone) = self.leave() else { return Ok(()) };
        match tokio::time::timeout(CLOSING, gone).await {
            Ok(_) => Ok(()),
            Err(_) => {
                Err(SourceError::temporary("leaving the group takes too long; its session will run out"))
            }
        }
    }

    fn lag(&self) -> Option<u64> {
        let lag = |slot: &Slot| {
            let end = self.reading.end_of(&slot.partition).unwrap_or(0).max(slot.end);
            end.saturating_sub(slot.next)
        };
        Some(self.slots.iter().map(lag).sum())
    }
}

impl Drop for KafkaSource {
    fn drop(&mut self) {
        self.leave();
    }
}

impl fmt::Debug for KafkaSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let KafkaOptions { group, topics, .. } = &self.options;
        f.debug_struct("KafkaSource").field("group", group).field("topics", topics).finish_non_exhaustive()
    }
}
