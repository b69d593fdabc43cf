//! The source for the engine. It returns events that the driver has read ahead.
//!
//! Reading and copying records takes as long as handling them. So that both run in parallel, the group
//! member runs in its own thread and reads a little ahead (docs/decisions/0022-kafka-reads-ahead.md).
//! This side keeps the contract of a source for messages read ahead: messages of a paused partition are
//! buffered here, and messages of a revoked one are dropped.

use std::collections::{HashSet, VecDeque};
use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use lazaret_core::incarnation::IncarnationRegistry;
use lazaret_core::source::{Commit, Source, SourceError, SourceEvent};
use lazaret_core::{Message, Partition};
use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot, watch};

use crate::driver::{self, Command, Commits};
use crate::membership::Membership;
use crate::options::KafkaOptions;
use crate::read_ahead::{Item, ReadAhead, closed_error};
use crate::relay::KafkaRelay;
use crate::state::KafkaState;
use crate::topology::Topology;

/// One member of a Kafka consumer group. Dropping it without [`close`](Source::close) commits nothing.
pub struct KafkaSource {
    commands: mpsc::UnboundedSender<Command>,
    read: Arc<ReadAhead>,
    state: watch::Receiver<KafkaState>,
    /// The retry topics, if there are any.
    topology: Option<Arc<Topology>>,
    paused: HashSet<Partition>,
    /// Messages that were read before their partition was paused, in order.
    buffered: VecDeque<(Partition, Vec<Message>)>,
    /// Resumed partitions that the driver resumes when none of their messages is buffered any more.
    /// Otherwise the buffer could grow with every pause (I7).
    resuming: HashSet<Partition>,
    /// The number of assignment changes that were taken.
    changes: u64,
    /// The number of commits started, followed by whether the outcome of the last one is pending.
    begun: u64,
    committing: bool,
    /// Whether the end was read while messages before it are still buffered.
    ended: bool,
    /// Whether the driver knows if an engine runs the source.
    attached: bool,
}

impl KafkaSource {
    /// Starts to join the group. [`next`](Source::next) and [`state`](Self::state) report the progress.
    ///
    /// # Errors
    /// When an option is invalid.
    pub fn open(options: KafkaOptions) -> Result<Self, SourceError> {
        Self::drive(Membership::join(options, None, None)?, None)
    }

    /// Joins the group and also reads the retry topics of this relay. Relayed messages are restored with
    /// their attempts so far.
    ///
    /// # Errors
    /// When an option is invalid.
    pub fn open_with(options: KafkaOptions, relay: &KafkaRelay) -> Result<Self, SourceError> {
        let topology = Some(relay.topology());
        Self::drive(Membership::join(options, topology.clone(), relay.transactions())?, topology)
    }

    fn drive(membership: Membership, topology: Option<Arc<Topology>>) -> Result<Self, SourceError> {
        let state = membership.state();
        let (commands, read) = driver::start(membership)?;
        Ok(Self::new(commands, read, state, topology))
    }

    fn new(
        commands: mpsc::UnboundedSender<Command>,
        read: Arc<ReadAhead>,
        state: watch::Receiver<KafkaState>,
        topology: Option<Arc<Topology>>,
    ) -> Self {
        Self {
            commands,
            read,
            state,
            topology,
            paused: HashSet::new(),
            buffered: VecDeque::new(),
            resuming: HashSet::new(),
            changes: 0,
            begun: 0,
            committing: false,
            ended: false,
            attached: false,
        }
    }

    /// Returns the state, for monitoring while the engine runs the source.
    pub fn state(&self) -> watch::Receiver<KafkaState> {
        self.state.clone()
    }

    /// Returns the next event without waiting.
    fn step(&mut self) -> Option<Result<SourceEvent, SourceError>> {
        loop {
            if let Some(messages) = self.take_buffered() {
                return Some(Ok(self.deliver(messages)));
            }
            if self.ended && self.buffered.is_empty() {
                self.ended = false;
                return Some(Ok(SourceEvent::End));
            }
            match self.read.take()? {
                Item::Event(SourceEvent::Messages(messages)) => {
                    // An empty batch reports that an error is over.
                    let is_empty = messages.is_empty();
                    let messages = self.buffer_paused(messages);
                    if is_empty || !messages.is_empty() {
                        return Some(Ok(self.deliver(messages)));
                    }
                }
                Item::Event(SourceEvent::End) => self.ended = true,
                Item::Event(event) => {
                    self.changes += u64::from(driver::is_change(&event));
                    match &event {
                        SourceEvent::Assigned(all) => {
                            all.iter().for_each(|new| self.forget(&new.partition));
                            // The new partitions have a different end.
                            self.ended = false;
                        }
                        SourceEvent::Lost(partitions) => partitions.iter().for_each(|gone| self.forget(gone)),
                        _ => {}
                    }
                    return Some(Ok(event));
                }
                Item::Committed(number, outcome) => {
                    // A commit that was started before the last blocking one is not reported.
                    if self.committing && number == self.begun {
                        self.committing = false;
                        return Some(Ok(SourceEvent::Committed(outcome)));
                    }
                }
                Item::Error(error) => return Some(Err(error)),
            }
        }
    }

    /// Records which records of retry topics the engine takes, so that a consumer that runs until idle
    /// waits for the others.
    fn deliver(&self, messages: Vec<Message>) -> SourceEvent {
        if let Some(topology) = &self.topology {
            // Other records of a retry topic are undecodable.
            let retried = |message: &&Message| message.hop.is_some() || message.undecodable.is_some();
            for (stream, position) in messages.iter().filter(retried).map(Message::place) {
                topology.record_taken(stream, position);
            }
        }
        SourceEvent::Messages(messages)
    }

    /// Takes the first buffered messages whose partition is not paused.
    fn take_buffered(&mut self) -> Option<Vec<Message>> {
        let index = self.buffered.iter().position(|(partition, _)| !self.paused.contains(partition))?;
        let (partition, messages) = self.buffered.remove(index)?;
        if !self.is_buffered(&partition) && self.resuming.remove(&partition) {
            self.send(Command::Resume(vec![partition]));
        }
        Some(messages)
    }

    fn is_buffered(&self, partition: &Partition) -> bool {
        self.buffered.iter().any(|(of, _)| of == partition)
    }

    /// Buffers messages of paused partitions. Returns the other messages.
    fn buffer_paused(&mut self, messages: Vec<Message>) -> Vec<Message> {
        if self.paused.is_empty() {
            return messages;
        }
        let mut others = Vec::new();
        for message in messages {
            let (stream, position) = message.place();
            let number = position.partition_number();
            let of = |partition: &Partition| partition.number() == number && partition.stream == *stream;
            // Messages of one partition are adjacent.
            match self.buffered.back_mut().filter(|(partition, _)| of(partition)) {
                Some((_, waiting)) => waiting.push(message),
                None => {
                    let partition = position.partition_of(stream);
                    match self.paused.contains(&partition) {
                        true => self.buffered.push_back((partition, vec![message])),
                        false => others.push(message),
                    }
                }
            }
        }
        others
    }

    /// Drops the state of a partition that was revoked or restarted.
    fn forget(&mut self, partition: &Partition) {
        self.paused.remove(partition);
        self.resuming.remove(partition);
        self.buffered.retain(|(of, _)| of != partition);
    }

    /// Sends a command and waits for its answer.
    async fn request<T>(
        &self,
        command: impl FnOnce(oneshot::Sender<T>) -> Command,
    ) -> Result<T, SourceError> {
        let (answer, answered) = oneshot::channel();
        // If the driver has ended, the sender is dropped, and the receiver detects that.
        let _ = self.commands.send(command(answer));
        answered.await.map_err(|_| closed_error())
    }

    /// Sends a command. A driver that has ended reports this itself.
    fn send(&self, command: Command) {
        let _ = self.commands.send(command);
    }
}

#[async_trait]
impl Source for KafkaSource {
    fn attach(&mut self, registry: Arc<dyn IncarnationRegistry>) {
        self.attached = true;
        self.send(Command::Attach(Some((registry, Handle::current()))));
    }

    async fn next(&mut self) -> Result<SourceEvent, SourceError> {
        if !self.attached {
            self.attached = true;
            self.send(Command::Attach(None));
        }
        loop {
            // No await between taking and returning an event, so that cancellation loses nothing.
            if let Some(event) = self.step() {
                return event;
            }
            // A change since then has left a permit.
            self.read.arrived().await;
        }
    }

    async fn commit(&mut self, commits: Vec<Commit>) -> Result<(), SourceError> {
        self.committing = false;
        let commits = Commits { commits, changes: self.changes };
        self.request(|answer| Command::Commit(commits, answer)).await?
    }

    fn begin_commit(&mut self, commits: Vec<Commit>) -> Result<(), Vec<Commit>> {
        self.begun += 1;
        self.committing = true;
        self.send(Command::Begin(self.begun, Commits { commits, changes: self.changes }));
        Ok(())
    }

    fn pause(&mut self, partitions: &[Partition]) {
        self.paused.extend(partitions.iter().cloned());
        partitions.iter().for_each(|partition| {
            self.resuming.remove(partition);
        });
        self.send(Command::Pause(partitions.to_vec()));
    }

    fn resume(&mut self, partitions: &[Partition]) {
        let mut unbuffered = Vec::new();
        for partition in partitions {
            self.paused.remove(partition);
            match self.is_buffered(partition) {
                true => _ = self.resuming.insert(partition.clone()),
                false => unbuffered.push(partition.clone()),
            }
        }
        if !unbuffered.is_empty() {
            self.send(Command::Resume(unbuffered));
        }
    }

    fn rewind(&mut self, partitions: &[Partition]) {
        partitions.iter().for_each(|partition| {
            self.resuming.remove(partition);
            self.buffered.retain(|(of, _)| of != partition);
        });
        self.send(Command::Rewind(partitions.to_vec()));
    }

    async fn revoked(&mut self, partitions: &[Partition]) -> Result<(), SourceError> {
        partitions.iter().for_each(|partition| self.forget(partition));
        let partitions = partitions.to_vec();
        self.request(|answer| Command::Revoked(partitions, answer)).await?
    }

    async fn close(&mut self) -> Result<(), SourceError> {
        self.request(Command::Close).await?
    }

    fn lag(&self) -> Option<u64> {
        let buffered = self.buffered.iter().map(|(_, messages)| messages.len() as u64).sum::<u64>();
        Some(self.read.lag() + buffered)
    }
}

impl fmt::Debug for KafkaSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KafkaSource").field("state", &*self.state.borrow()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use lazaret_core::Position;
    use lazaret_core::source::Assignment;

    use super::*;
    use crate::retry_topics::RetryTopics;

    /// Creates a source for which the test acts as the driver.
    fn source() -> (KafkaSource, mpsc::UnboundedReceiver<Command>) {
        let (commands, received) = mpsc::unbounded_channel();
        let (_, state) = watch::channel(KafkaState::Joining);
        (KafkaSource::new(commands, Arc::new(ReadAhead::new()), state, None), received)
    }

    fn partition(index: u32) -> Partition {
        Partition::new("orders", index)
    }

    fn batch(places: &[(u32, u64)]) -> Item {
        let message = |(partition, offset): &(u32, u64)| {
            Message::new(format!("{partition}/{offset}"), "orders", Position::new(*partition, *offset))
        };
        Item::Event(SourceEvent::Messages(places.iter().map(message).collect()))
    }

    fn ids(event: Option<Result<SourceEvent, SourceError>>) -> Vec<String> {
        match event {
            Some(Ok(SourceEvent::Messages(messages))) => messages.iter().map(|m| m.id.to_string()).collect(),
            _ => Vec::new(),
        }
    }

    fn resumed(received: &mut mpsc::UnboundedReceiver<Command>) -> Vec<Partition> {
        let mut all = Vec::new();
        while let Ok(command) = received.try_recv() {
            if let Command::Resume(partitions) = command {
                all.extend(partitions);
            }
        }
        all
    }

    #[test]
    fn a_partition_is_resumed_when_its_buffered_messages_were_taken() {
        // I7, I2
        let (mut source, mut received) = source();
        source.read.put(batch(&[(0, 1), (1, 1), (0, 2)]));
        source.pause(&[partition(0), partition(1)]);
        assert!(source.step().is_none(), "both are buffered");
        source.resume(&[partition(0), partition(1)]);
        source.read.put(batch(&[(0, 3)]));
        assert_eq!(resumed(&mut received), []);
        assert_eq!(ids(source.step()), ["0/1"]);
        assert_eq!(resumed(&mut received), [], "one of its messages is still buffered");
        assert_eq!(ids(source.step()), ["1/1"]);
        assert_eq!(resumed(&mut received), [partition(1)]);
        source.pause(&[partition(0)]);
        assert!(source.step().is_none());
        source.resume(&[partition(0)]);
        assert_eq!(ids(source.step()), ["0/2", "0/3"]);
        assert_eq!(resumed(&mut received), [partition(0)]);
    }

    #[test]
    fn the_end_follows_buffered_messages_and_new_partitions() {
        let (mut source, _received) = source();
        source.pause(&[partition(0)]);
        source.read.put(batch(&[(0, 1)]));
        source.read.put(Item::Event(SourceEvent::End));
        assert!(source.step().is_none());
        let assignment = Assignment::new(partition(1), Vec::new());
        source.read.put(Item::Event(SourceEvent::Assigned(vec![assignment])));
        assert!(matches!(source.step(), Some(Ok(SourceEvent::Assigned(_)))));
        source.resume(&[partition(0)]);
        assert_eq!(ids(source.step()), ["0/1"]);
        assert!(source.step().is_none(), "the new partition has another end");
    }

    #[test]
    fn a_record_of_a_retry_topic_is_expected_until_the_engine_takes_it() {
        let topics = RetryTopics::new("mail", [Duration::from_secs(1)]);
        let topology = Arc::new(Topology::new(&topics, &["orders".to_owned()]).unwrap());
        let retries = Partition::new("orders.mail.retry.1s", 0);
        let (mut source, _received) = source();
        source.topology = Some(topology.clone());
        topology.record_start(&retries, Some(0));
        topology.record_write(retries.clone(), 0);
        let mut message = Message::new("m", retries.stream.clone(), Position::new(0, 0));
        message.undecodable = Some("not a record of the relay".into());
        source.read.put(Item::Event(SourceEvent::Messages(vec![message])));
        assert!(topology.is_expecting(), "it was only read ahead");
        source.pause(std::slice::from_ref(&retries));
        assert!(source.step().is_none());
        assert!(topology.is_expecting(), "it is buffered");
        source.resume(&[retries]);
        assert_eq!(ids(source.step()), ["m"]);
        assert!(!topology.is_expecting());
    }

    #[test]
    fn commits_carry_the_changes_that_the_engine_has_seen() {
        // I1: a commit must not apply to a different assignment of its partition.
        let (mut source, mut received) = source();
        source.read.put(Item::Event(SourceEvent::Lost(vec![partition(0)])));
        source.begin_commit(Vec::new()).unwrap_or_default();
        source.step();
        source.begin_commit(Vec::new()).unwrap_or_default();
        let mut known = Vec::new();
        while let Ok(Command::Begin(_, commits)) = received.try_recv() {
            known.push(commits.changes);
        }
        assert_eq!(known, [0, 1]);
    }
}
