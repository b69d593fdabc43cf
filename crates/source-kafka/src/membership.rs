//! The member of a group: it joins, reads, commits and leaves.
//!
//! It lives in a thread of its own, see `driver`, and nothing that is called here blocks that. Why a rebalance is answered
//! outside of its callback, and why every partition has a queue of its own: docs/decisions/0012-kafka-rebalance.md.

pub(crate) mod commit;
mod partitions;

use std::collections::VecDeque;
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
use rdkafka::message::Message as _;
use rdkafka::{ClientConfig, Offset};
use tokio::sync::{Notify, oneshot, watch};

use crate::chain::Chain;
use crate::lookup::{Beginning, Purpose};
use crate::member::{Change, Client, Clients, Member, assign, partition, unassign};
use crate::options::{KafkaOptions, Reset};
use crate::record::Reader;
use crate::relay::Transactions;
use crate::slot::{Pause, Slot, Stage};
use crate::source::KafkaState;
use crate::trouble::{Trouble, judge};

use self::partitions::{Going, Lookup};

/// How long to wait for a sign of life before the client is polled all the same.
const TICK: Duration = Duration::from_millis(100);
/// How long leaving the group may take.
const CLOSING: Duration = Duration::from_secs(10);

/// One member of a Kafka consumer group. Dropping it without [`close`](Source::close) commits nothing.
pub(crate) struct Membership {
    /// None when it is closed.
    clients: Option<Clients>,
    /// What the member of the group hears.
    member: Member,
    /// What the client that reads hears.
    reading: Member,
    wake: Arc<Notify>,
    options: KafkaOptions,
    /// The retry topics, if there are any.
    chain: Option<Arc<Chain>>,
    /// Who commits, if it is not the member of the group.
    transactions: Option<Arc<Transactions>>,
    reset: Reset,
    reader: Reader,
    slots: Vec<Slot>,
    /// What has to be told before any message.
    ready: VecDeque<SourceEvent>,
    troubles: VecDeque<SourceError>,
    lookup: Option<Lookup>,
    /// No look-up before that: the last one failed.
    lookup_rest: Option<Instant>,
    /// Partitions that shall be read again, once no other look-up is under way.
    rewinds: Vec<Partition>,
    going: Option<Going>,
    /// When both clients were polled last.
    pumped: Instant,
    committing: Option<commit::Committing>,
    /// The group has put us out, as the answer to a commit said.
    expelled: bool,
    /// The engine goes on meanwhile and has to be told what came of it, at that time at the latest.
    begun: Option<tokio::time::Instant>,
    /// The slot that messages were taken from last; the next one has its turn.
    turn: usize,
    /// Messages may be read. While they may not, everything else goes on.
    pub(crate) may_read: bool,
    joined: bool,
    ended: bool,
    metadata_limit: usize,
    state: watch::Sender<KafkaState>,
}

impl Membership {
    /// Joins the group. That takes its time: [`next`](Source::next) tells how it goes. The error says which option makes no
    /// sense.
    pub(crate) fn join(
        options: KafkaOptions,
        chain: Option<Arc<Chain>>,
        transactions: Option<Arc<Transactions>>,
    ) -> Result<Self, SourceError> {
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
            lookup_rest: None,
            rewinds: Vec::new(),
            going: None,
            pumped: Instant::now(),
            committing: None,
            expelled: false,
            begun: None,
            turn: 0,
            may_read: true,
            joined: false,
            ended: false,
            metadata_limit: options.metadata_limit,
            state: watch::Sender::new(KafkaState::Joining),
            options,
            chain,
            transactions,
        };
        if let (Some(transactions), Some(clients)) = (&source.transactions, &source.clients) {
            transactions.serve(&clients.group);
        }
        source.subscribe().map_err(refused)?;
        Ok(source)
    }

    /// How it is doing, for those who watch it.
    pub(crate) fn state(&self) -> watch::Receiver<KafkaState> {
        self.state.subscribe()
    }

    fn subscribe(&self) -> Result<(), KafkaError> {
        let retries = self.chain.iter().flat_map(|chain| chain.retry_topics());
        let topics: Vec<&str> = self.options.topics.iter().map(String::as_str).chain(retries).collect();
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
        if let Some(answer) = self.take_answer() {
            return Some(Ok(answer));
        }
        if let Some(trouble) = self.troubles.pop_front() {
            return Some(Err(trouble));
        }
        if !self.may_read {
            return None;
        }
        self.take_messages().map(Ok)
    }

    /// Serves what the clients have to say, except records. A client that says nothing is polled all the same now and then:
    /// one that is not polled is taken for dead.
    fn pump(&mut self) {
        let is_time = self.pumped.elapsed() >= TICK;
        if is_time {
            self.pumped = Instant::now();
        }
        for reads in [false, true] {
            let member = if reads { &self.reading } else { &self.member };
            if !member.take_call() && !is_time {
                continue;
            }
            let Some(clients) = &self.clients else { return };
            let client = if reads { clients.reading.clone() } else { clients.group.clone() };
            let member = member.clone();
            loop {
                member.take_served();
                match client.poll(Duration::ZERO) {
                    Some(Err(error)) => self.note(error, &member.take_reason()),
                    // What is read comes by the queues of the slots. If not, it is read again rather than lost.
                    Some(Ok(record)) if reads => {
                        self.read_again(&partition(record.topic(), record.partition()));
                    }
                    // The member of the group does not read. What it got before it was paused is nobody's.
                    Some(Ok(_)) => {}
                    None if member.take_served() => {}
                    None => break,
                }
            }
        }
    }

    fn read_again(&mut self, partition: &Partition) {
        if self.slot(partition).is_some_and(|slot| slot.stage == Stage::Held) {
            tracing::warn!(%partition, "a record came by the wrong queue; the partition is read again");
            self.ready.push_back(SourceEvent::Lost(vec![partition.clone()]));
            self.rewind(std::slice::from_ref(partition));
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
            match slot.read(&mut messages, batch, &mut self.reader, finite, &mut errors) {
                Pause::Done => {}
                Pause::Back(offset) => {
                    self.ready.push_back(SourceEvent::Lost(vec![slot.partition.clone()]));
                    match turn_back(self.clients.as_ref(), slot, offset) {
                        true => {
                            enter(self.transactions.as_deref(), slot, self.metadata_limit);
                            self.ready.push_back(SourceEvent::Assigned(vec![slot.assignment()]));
                        }
                        // What was taken after that record is gone from the queue, so it must be read again.
                        false => {
                            slot.stage = Stage::Rewinding;
                            self.rewinds.push(slot.partition.clone());
                        }
                    }
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
            // What came back came after the end; there is another one.
            self.ended &= messages.iter().all(|message| message.hop.is_none());
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

/// Says how a partition stands that came, or begins anew.
fn enter(transactions: Option<&Transactions>, slot: &Slot, limit: usize) {
    if let Some(transactions) = transactions {
        transactions.ledger().come(slot.partition.clone(), slot.standing(limit));
    }
}

/// The log was cut below what was delivered. It is another log from there on, to be read as if newly assigned. Says whether
/// the client does so.
fn turn_back(clients: Option<&Clients>, slot: &mut Slot, offset: u64) -> bool {
    let partition = slot.partition.clone();
    tracing::warn!(%partition, delivered = slot.next, offset, "the log was cut; reading again from its new end");
    let end = slot.end;
    slot.begin_again(Beginning { partition, start: offset, committed: None, settled: Vec::new(), end });
    // The record that told us is read again.
    let (topic, number) = (slot.partition.stream.as_str(), slot.partition.index as i32);
    let Some(clients) = clients else { return false };
    let sought = clients.reading.seek(topic, number, Offset::Offset(offset as i64), Duration::ZERO);
    if let Err(error) = &sought {
        tracing::warn!(%error, "a partition could not be turned back at once");
    }
    sought.is_ok()
}

/// Makes a client that wakes its member.
pub(crate) fn connect(config: &ClientConfig, member: &Member) -> Result<Arc<Client>, SourceError> {
    let mut client = Client::from_config_and_context(config, member.clone()).map_err(refused)?;
    let woken = member.clone();
    client.set_nonempty_callback(move || woken.call());
    Ok(Arc::new(client))
}

/// The client does not take its settings.
pub(crate) fn refused(error: KafkaError) -> SourceError {
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
impl Source for Membership {
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

    fn begin_commit(&mut self, commits: Vec<Commit>) -> Result<(), Vec<Commit>> {
        self.begin(commits)
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

impl Drop for Membership {
    fn drop(&mut self) {
        self.leave();
    }
}

impl fmt::Debug for Membership {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let KafkaOptions { group, topics, .. } = &self.options;
        f.debug_struct("Membership").field("group", group).field("topics", topics).finish_non_exhaustive()
    }
}
