//! The source as the engine has it: it gives out what its driver has read ahead.
//!
//! Reading and copying records takes as long as handling them. So that both happen at once, the member of the group lives in
//! a thread of its own and reads ahead, a little (docs/decisions/0022-kafka-reads-ahead.md). This side keeps the promises of
//! a source about what was read ahead: messages of a partition that is paused wait here, and those of one that is gone are
//! dropped.

use std::collections::{HashSet, VecDeque};
use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use lazaret_core::source::{Commit, Source, SourceError, SourceEvent};
use lazaret_core::{Message, Partition};
use tokio::sync::{mpsc, oneshot, watch};

use crate::driver::{self, Command, Commits, Read, Told};
use crate::membership::Membership;
use crate::options::KafkaOptions;
use crate::relay::KafkaRelay;

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
    commands: mpsc::UnboundedSender<Command>,
    read: Arc<Read>,
    state: watch::Receiver<KafkaState>,
    paused: HashSet<Partition>,
    /// Messages that came while their partition was paused, in the order in which they came.
    aside: VecDeque<(Partition, Vec<Message>)>,
    /// Partitions that are not paused any more, and of which the driver is told so when nothing of them is aside any more:
    /// otherwise more could come than is taken, again and again (I7).
    resuming: HashSet<Partition>,
    /// How many changes of partitions were taken.
    changes: u64,
    /// How many commits were begun, and whether the last one is still to be told of.
    begun: u64,
    committing: bool,
    /// The end has come, and some that came before it wait aside.
    ended: bool,
}

impl KafkaSource {
    /// Joins the group. That takes its time: [`next`](Source::next) tells how it goes. The error says which option
    /// makes no sense.
    pub fn open(options: KafkaOptions) -> Result<Self, SourceError> {
        Self::drive(Membership::join(options, None, None)?)
    }

    /// Joins the group and reads, besides the topics, the retry topics of this relay: what was passed on comes back as it was,
    /// with what is known of its attempts.
    pub fn open_with(options: KafkaOptions, relay: &KafkaRelay) -> Result<Self, SourceError> {
        Self::drive(Membership::join(options, Some(relay.chain()), relay.transactions())?)
    }

    fn drive(membership: Membership) -> Result<Self, SourceError> {
        let state = membership.state();
        let (commands, read) = driver::start(membership)?;
        Ok(Self::new(commands, read, state))
    }

    fn new(
        commands: mpsc::UnboundedSender<Command>,
        read: Arc<Read>,
        state: watch::Receiver<KafkaState>,
    ) -> Self {
        Self {
            commands,
            read,
            state,
            paused: HashSet::new(),
            aside: VecDeque::new(),
            resuming: HashSet::new(),
            changes: 0,
            begun: 0,
            committing: false,
            ended: false,
        }
    }

    /// How it is doing, for those who watch it while the engine has it.
    pub fn state(&self) -> watch::Receiver<KafkaState> {
        self.state.clone()
    }

    /// What there is to say next, without waiting.
    fn step(&mut self) -> Option<Result<SourceEvent, SourceError>> {
        loop {
            if let Some(messages) = self.take_aside() {
                return Some(Ok(SourceEvent::Messages(messages)));
            }
            if self.ended && self.aside.is_empty() {
                self.ended = false;
                return Some(Ok(SourceEvent::End));
            }
            match self.read.take()? {
                Told::Event(SourceEvent::Messages(messages)) => {
                    let messages = self.put_aside(messages);
                    if !messages.is_empty() {
                        return Some(Ok(SourceEvent::Messages(messages)));
                    }
                }
                Told::Event(SourceEvent::End) => self.ended = true,
                Told::Event(event) => {
                    self.changes += u64::from(driver::is_change(&event));
                    match &event {
                        SourceEvent::Assigned(all) => {
                            all.iter().for_each(|new| self.forget(&new.partition));
                            // There is another end, behind these.
                            self.ended = false;
                        }
                        SourceEvent::Lost(partitions) => partitions.iter().for_each(|gone| self.forget(gone)),
                        _ => {}
                    }
                    return Some(Ok(event));
                }
                Told::Committed(number, outcome) => {
                    // One that was begun before the last blocking one is over already.
                    if self.committing && number == self.begun {
                        self.committing = false;
                        return Some(Ok(SourceEvent::Committed(outcome)));
                    }
                }
                Told::Trouble(error) => return Some(Err(error)),
            }
        }
    }

    /// The first messages aside whose partition is not paused any more.
    fn take_aside(&mut self) -> Option<Vec<Message>> {
        let index = self.aside.iter().position(|(partition, _)| !self.paused.contains(partition))?;
        let (partition, messages) = self.aside.remove(index)?;
        if !self.is_aside(&partition) && self.resuming.remove(&partition) {
            self.tell(Command::Resume(vec![partition]));
        }
        Some(messages)
    }

    fn is_aside(&self, partition: &Partition) -> bool {
        self.aside.iter().any(|(of, _)| of == partition)
    }

    /// Puts messages of paused partitions aside. Returns the others.
    fn put_aside(&mut self, messages: Vec<Message>) -> Vec<Message> {
        if self.paused.is_empty() {
            return messages;
        }
        let mut others = Vec::new();
        for message in messages {
            let (stream, position) = message.place();
            let of =
                |partition: &Partition| partition.index == position.partition && partition.stream == *stream;
            // Messages of one partition come one after the other.
            match self.aside.back_mut().filter(|(partition, _)| of(partition)) {
                Some((_, waiting)) => waiting.push(message),
                None => {
                    let partition = Partition::new(stream.clone(), position.partition);
                    match self.paused.contains(&partition) {
                        true => self.aside.push_back((partition, vec![message])),
                        false => others.push(message),
                    }
                }
            }
        }
        others
    }

    /// A partition is gone, or begins anew.
    fn forget(&mut self, partition: &Partition) {
        self.paused.remove(partition);
        self.resuming.remove(partition);
        self.aside.retain(|(of, _)| of != partition);
    }

    /// Has the driver do something, and waits for its answer.
    async fn ask<T>(&self, command: impl FnOnce(oneshot::Sender<T>) -> Command) -> Result<T, SourceError> {
        let (answer, answered) = oneshot::channel();
        // A driver that is gone drops the answer, and that is one, too.
        let _ = self.commands.send(command(answer));
        answered.await.map_err(|_| driver::gone())
    }

    /// Tells the driver something. One that is gone has told so, or will.
    fn tell(&self, command: Command) {
        let _ = self.commands.send(command);
    }
}

#[async_trait]
impl Source for KafkaSource {
    async fn next(&mut self) -> Result<SourceEvent, SourceError> {
        loop {
            // Taken and returned without an await between: cancellation can lose nothing.
            if let Some(event) = self.step() {
                return event;
            }
            // A change since then has left its permit.
            self.read.arrived().await;
        }
    }

    async fn commit(&mut self, commits: Vec<Commit>) -> Result<(), SourceError> {
        self.committing = false;
        let commits = Commits { commits, changes: self.changes };
        self.ask(|answer| Command::Commit(commits, answer)).await?
    }

    fn begin_commit(&mut self, commits: Vec<Commit>) -> Result<(), Vec<Commit>> {
        self.begun += 1;
        self.committing = true;
        self.tell(Command::Begin(self.begun, Commits { commits, changes: self.changes }));
        Ok(())
    }

    fn pause(&mut self, partitions: &[Partition]) {
        self.paused.extend(partitions.iter().cloned());
        partitions.iter().for_each(|partition| {
            self.resuming.remove(partition);
        });
        self.tell(Command::Pause(partitions.to_vec()));
    }

    fn resume(&mut self, partitions: &[Partition]) {
        let mut at_once = Vec::new();
        for partition in partitions {
            self.paused.remove(partition);
            match self.is_aside(partition) {
                true => _ = self.resuming.insert(partition.clone()),
                false => at_once.push(partition.clone()),
            }
        }
        if !at_once.is_empty() {
            self.tell(Command::Resume(at_once));
        }
    }

    fn rewind(&mut self, partitions: &[Partition]) {
        partitions.iter().for_each(|partition| {
            self.resuming.remove(partition);
            self.aside.retain(|(of, _)| of != partition);
        });
        self.tell(Command::Rewind(partitions.to_vec()));
    }

    async fn revoked(&mut self, partitions: &[Partition]) -> Result<(), SourceError> {
        partitions.iter().for_each(|partition| self.forget(partition));
        let partitions = partitions.to_vec();
        self.ask(|answer| Command::Revoked(partitions, answer)).await?
    }

    async fn close(&mut self) -> Result<(), SourceError> {
        self.ask(Command::Close).await?
    }

    fn lag(&self) -> Option<u64> {
        let aside = self.aside.iter().map(|(_, messages)| messages.len() as u64).sum::<u64>();
        Some(self.read.lag() + aside)
    }
}

impl fmt::Debug for KafkaSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KafkaSource").field("state", &*self.state.borrow()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use lazaret_core::Position;
    use lazaret_core::source::Assignment;

    use super::*;

    /// A source whose driver is the test.
    fn source() -> (KafkaSource, mpsc::UnboundedReceiver<Command>) {
        let (commands, received) = mpsc::unbounded_channel();
        let (_, state) = watch::channel(KafkaState::Joining);
        (KafkaSource::new(commands, Arc::new(Read::new()), state), received)
    }

    fn partition(index: u32) -> Partition {
        Partition::new("orders", index)
    }

    fn batch(places: &[(u32, u64)]) -> Told {
        let message = |(partition, offset): &(u32, u64)| {
            Message::new(format!("{partition}/{offset}"), "orders", Position::new(*partition, *offset))
        };
        Told::Event(SourceEvent::Messages(places.iter().map(message).collect()))
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
    fn a_partition_is_read_on_when_all_that_was_aside_is_taken() {
        // I7, I2
        let (mut source, mut received) = source();
        source.read.put(batch(&[(0, 1), (1, 1), (0, 2)]));
        source.pause(&[partition(0), partition(1)]);
        assert!(source.step().is_none(), "both wait");
        source.resume(&[partition(0), partition(1)]);
        source.read.put(batch(&[(0, 3)]));
        assert_eq!(resumed(&mut received), []);
        assert_eq!(ids(source.step()), ["0/1"]);
        assert_eq!(resumed(&mut received), [], "one of it is still aside");
        assert_eq!(ids(source.step()), ["1/1"]);
        assert_eq!(resumed(&mut received), [partition(1)]);
        source.pause(&[partition(0)]);
        assert!(source.step().is_none());
        source.resume(&[partition(0)]);
        assert_eq!(ids(source.step()), ["0/2", "0/3"]);
        assert_eq!(resumed(&mut received), [partition(0)]);
    }

    #[test]
    fn the_end_comes_after_what_was_aside_and_not_before_what_comes_anew() {
        let (mut source, _received) = source();
        source.pause(&[partition(0)]);
        source.read.put(batch(&[(0, 1)]));
        source.read.put(Told::Event(SourceEvent::End));
        assert!(source.step().is_none());
        let assignment = Assignment { partition: partition(1), settled: Vec::new() };
        source.read.put(Told::Event(SourceEvent::Assigned(vec![assignment])));
        assert!(matches!(source.step(), Some(Ok(SourceEvent::Assigned(_)))));
        source.resume(&[partition(0)]);
        assert_eq!(ids(source.step()), ["0/1"]);
        assert!(source.step().is_none(), "there is another end, behind the new partition");
    }

    #[test]
    fn commits_say_how_much_the_engine_knew() {
        // I1: so that none is taken for one about another life of its partition.
        let (mut source, mut received) = source();
        source.read.put(Told::Event(SourceEvent::Lost(vec![partition(0)])));
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
