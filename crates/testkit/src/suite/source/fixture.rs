//! The harness that a source brings, and a consumer that checks what holds for every source.

use std::collections::BTreeMap;
use std::future::Future;
use std::ops::RangeInclusive;
use std::time::Duration;

use async_trait::async_trait;
use lazaret_core::source::{Commit, Source, SourceEvent};
use lazaret_core::{Message, Partition, Position, StreamName};

/// The capabilities of a source. A case that needs another prints that it was not run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// Several consumers share the partitions, and [`SourceHarness::expel`] works.
    pub groups: bool,
    /// Settled ranges beyond the committed position are kept.
    pub settled_ranges: bool,
    /// The source can come to an end, and [`SourceHarness::finish`] works.
    pub finite: bool,
}

/// A stream with at least two partitions, fresh for one case, and consumers of it.
#[async_trait]
pub trait SourceHarness: Send + 'static {
    /// The capabilities of this source.
    fn capabilities(&self) -> Capabilities;

    /// The stream that the harness fills.
    fn stream(&self) -> StreamName;

    /// How many partitions it has, at least two.
    fn partitions(&self) -> u32;

    /// Adds a message with this payload to a partition.
    async fn push(&mut self, partition: u32, payload: &str);

    /// Ends the stream.
    async fn finish(&mut self);

    /// Starts one more consumer. Dropping it is a crash.
    async fn open(&mut self) -> Box<dyn Source>;

    /// Expels the nth consumer, from 0, from the group.
    async fn expel(&mut self, nth: usize);
}

/// How long a case waits for an event that must come, and for one that must not.
#[derive(Clone, Copy, Debug)]
struct Timeouts {
    long: Duration,
    short: Duration,
}

const TIMEOUTS: Timeouts = Timeouts { long: Duration::from_secs(240), short: Duration::from_millis(500) };

/// A harness, fresh for one case.
pub struct SourceFixture<H> {
    pub(super) harness: H,
}

impl<H: SourceHarness> SourceFixture<H> {
    /// A fixture for the harness that `make` makes.
    pub async fn new<F: Future<Output = H>>(make: impl FnOnce() -> F) -> Self {
        let harness = make().await;
        assert!(harness.partitions() >= 2, "the cases need two partitions");
        Self { harness }
    }

    /// Returns `true`, and prints it, when the source lacks a capability.
    pub(super) fn lacks(&self, what: &str, can: bool) -> bool {
        if !can {
            println!("not run: this source has no {what}");
        }
        !can
    }

    /// Adds numbered messages to a partition: the payloads are `partition:number`.
    pub(super) async fn fill(&mut self, partition: u32, numbers: std::ops::Range<u32>) {
        for number in numbers {
            self.harness.push(partition, &format!("{partition}:{number}")).await;
        }
    }

    pub(super) async fn open(&mut self) -> Consumer {
        Consumer::new(self.harness.open().await)
    }

    /// A consumer that has been given every partition, however long that takes, and all that there is in them.
    pub(super) async fn open_assigned(&mut self) -> Consumer {
        let all = self.harness.partitions() as usize;
        let mut consumer = self.open().await;
        consumer.until("every partition is assigned", |c| c.held.len() == all).await;
        consumer.until_quiet().await;
        consumer
    }

    pub(super) fn partition(&self, index: u32) -> Partition {
        Partition::new(self.harness.stream(), index)
    }
}

/// One consumer and what it was given, by partition.
pub(super) struct Consumer {
    pub(super) source: Box<dyn Source>,
    pub(super) held: BTreeMap<Partition, Vec<RangeInclusive<u64>>>,
    pub(super) got: BTreeMap<u32, Vec<Message>>,
    pub(super) revoking: Vec<Partition>,
    lost: Vec<Partition>,
    pub(super) ends: u32,
}

impl Consumer {
    fn new(source: Box<dyn Source>) -> Self {
        let (held, got) = (BTreeMap::new(), BTreeMap::new());
        Self { source, held, got, revoking: Vec::new(), lost: Vec::new(), ends: 0 }
    }

    /// Takes the next event if one comes in time, and checks what holds for every source.
    async fn step(&mut self, timeout: Duration) -> bool {
        let Ok(event) = tokio::time::timeout(timeout, self.source.next()).await else { return false };
        match event.expect("the source works") {
            SourceEvent::Messages(messages) => {
                assert!(!messages.is_empty(), "an event has at least one message");
                for message in messages {
                    let partition = message.partition();
                    assert!(self.held.contains_key(&partition), "messages come after the assignment only");
                    assert!(!self.revoking.contains(&partition), "messages come before the revocation only");
                    self.got.entry(partition.index).or_default().push(message);
                }
            }
            SourceEvent::Assigned(assignments) => {
                for assignment in assignments {
                    let before = self.held.insert(assignment.partition.clone(), assignment.settled);
                    assert!(before.is_none(), "a partition is not assigned twice");
                    self.got.remove(&assignment.partition.index);
                    self.lost.retain(|lost| *lost != assignment.partition);
                }
            }
            SourceEvent::Revoking(partitions) => self.revoking.extend(partitions),
            SourceEvent::Lost(partitions) => {
                for partition in partitions {
                    assert!(self.held.remove(&partition).is_some(), "only what was assigned is lost");
                    self.lost.push(partition);
                }
            }
            SourceEvent::Recreated(partitions) => {
                panic!("the stream was not recreated: {partitions:?}")
            }
            SourceEvent::End => self.ends += 1,
            SourceEvent::Committed(_) => unreachable!("no commit was begun"),
        }
        true
    }

    /// Takes events until the condition holds.
    pub(super) async fn until(&mut self, what: &str, holds: impl Fn(&Self) -> bool) {
        while !holds(self) {
            assert!(self.step(TIMEOUTS.long).await, "timed out: waited until {what}");
        }
    }

    /// Takes events until there are none.
    pub(super) async fn until_quiet(&mut self) {
        for _ in 0..10_000 {
            if !self.step(TIMEOUTS.short).await {
                return;
            }
        }
        panic!("the source never stops sending");
    }

    pub(super) fn count(&self) -> usize {
        self.got.values().map(Vec::len).sum()
    }

    pub(super) fn payloads(&self, partition: u32) -> Vec<String> {
        let messages = self.got.get(&partition).into_iter().flatten();
        messages.map(|message| String::from_utf8(message.payload.clone().unwrap().into()).unwrap()).collect()
    }

    fn position(&self, partition: u32, number: usize) -> Position {
        self.got[&partition][number].position.clone()
    }

    pub(super) fn offset(&self, partition: u32, number: usize) -> u64 {
        self.position(partition, number).offset
    }

    /// Commits a partition up to its nth message.
    pub(super) async fn commit(
        &mut self,
        partition: &Partition,
        number: usize,
        settled_beyond: Vec<RangeInclusive<u64>>,
    ) {
        let position = self.position(partition.index, number);
        let commit = Commit { partition: partition.clone(), position: Some(position), settled_beyond };
        self.source.commit(vec![commit]).await.expect("the source works");
    }

    /// Commits settled ranges without a position.
    pub(super) async fn commit_beyond(
        &mut self,
        partition: &Partition,
        settled_beyond: Vec<RangeInclusive<u64>>,
    ) {
        let commit = Commit { partition: partition.clone(), position: None, settled_beyond };
        self.source.commit(vec![commit]).await.expect("the source works");
    }

    /// Rewinds a partition and forgets its messages.
    pub(super) fn rewind(&mut self, partition: &Partition) {
        self.held.remove(partition);
        self.source.rewind(std::slice::from_ref(partition));
    }

    /// Gives up everything that is being revoked.
    pub(super) async fn give_up(&mut self) {
        let revoking = std::mem::take(&mut self.revoking);
        for partition in &revoking {
            self.held.remove(partition);
        }
        self.source.revoked(&revoking).await.expect("the source works");
    }
}

pub(super) fn numbered(partition: u32, numbers: std::ops::Range<u32>) -> Vec<String> {
    numbers.map(|number| format!("{partition}:{number}")).collect()
}
