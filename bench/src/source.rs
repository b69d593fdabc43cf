//! The messages of a benchmark, and a source that generates them on demand.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use bytes::Bytes;
use lazaret_core::source::{Assignment, Commit, SourceError, SourceEvent};
use lazaret_core::{Message, MessageId, Partition, Position, Source, StreamName};

use crate::zipf::{Random, Zipf};

/// The number of partitions.
const PARTITIONS: usize = 12;
/// The batch size of the source.
const BATCH: usize = 512;
const SEED: u64 = 0x1a2a_7e70;

/// The payload of a message that its handler accepts.
const GOOD: &[u8] = b"good";
/// The payload of a message that its handler refuses.
const BAD: &[u8] = b"bad";

/// Returns whether a handler refuses this payload.
pub(crate) fn is_bad(payload: Option<&Bytes>) -> bool {
    payload.is_some_and(|payload| **payload == *BAD)
}

/// The key of one message and whether it is bad, in four bytes.
#[derive(Clone, Copy)]
struct Draw(u32);

impl Draw {
    const BAD_BIT: u32 = 1 << 31;

    fn new(key: u32, bad: bool) -> Self {
        debug_assert!(key < Self::BAD_BIT, "the upper bit marks bad messages");
        Self(if bad { key | Self::BAD_BIT } else { key })
    }

    fn key(self) -> u32 {
        self.0 & !Self::BAD_BIT
    }

    fn is_bad(self) -> bool {
        self.0 & Self::BAD_BIT != 0
    }
}

/// All messages of a run, generated in advance: the remaining work at run time is the same for subject and baseline.
pub(crate) struct Plan {
    stream: StreamName,
    keys: Vec<Bytes>,
    draws: Vec<Draw>,
}

impl Plan {
    fn new(keys: u32, draws: Vec<Draw>) -> Arc<Self> {
        let key = |n: u32| {
            let key = Bytes::from(format!("order-{n}"));
            // The first clone makes the bytes reference-counted; no run should pay for that.
            drop(key.clone());
            key
        };
        Arc::new(Self { stream: "orders".into(), keys: (0..keys).map(key).collect(), draws })
    }

    /// Generates good messages whose keys follow Zipf's law.
    pub(crate) fn zipf(count: usize, keys: u32) -> Arc<Self> {
        let (zipf, mut random) = (Zipf::new(keys), Random::new(SEED));
        Self::new(keys, (0..count).map(|_| Draw::new(zipf.draw(&mut random), false)).collect())
    }

    /// Generates good messages with uniform keys.
    pub(crate) fn uniform(count: usize, keys: u32) -> Arc<Self> {
        let mut random = Random::new(SEED);
        Self::new(keys, (0..count).map(|_| Draw::new(random.below(keys), false)).collect())
    }

    /// Generates messages with uniform keys, and a hot key with this share of all messages, which are bad.
    pub(crate) fn with_hot_key(count: usize, keys: u32, share: f64) -> Arc<Self> {
        let mut random = Random::new(SEED);
        let draws = (0..count).map(|_| {
            if random.unit() < share { Draw::new(keys, true) } else { Draw::new(random.below(keys), false) }
        });
        Self::new(keys + 1, draws.collect())
    }

    /// Generates messages with unique keys, of which this share is bad.
    pub(crate) fn distinct(count: u32, bad_share: f64) -> Arc<Self> {
        let mut random = Random::new(SEED);
        Self::new(count, (0..count).map(|key| Draw::new(key, random.unit() < bad_share)).collect())
    }

    /// Returns the number of messages.
    pub(crate) fn len(&self) -> usize {
        self.draws.len()
    }

    /// Returns the number of messages with this key.
    pub(crate) fn count_of_key(&self, key: u32) -> usize {
        self.draws.iter().filter(|draw| draw.key() == key).count()
    }

    /// Returns the number of bad messages.
    pub(crate) fn bad_count(&self) -> usize {
        self.draws.iter().filter(|draw| draw.is_bad()).count()
    }

    /// Returns the message with this number: one allocation, for its id. Beyond the last one, the plan starts again.
    pub(crate) fn message(&self, number: usize) -> Message {
        let is_first = number < self.draws.len();
        let draw = self.draws[if is_first { number } else { number % self.draws.len() }];
        let key = draw.key() as usize;
        let position = Position::new((key % PARTITIONS) as u32, number as u64);
        // A bad message that comes again is not to wait behind the letter of the one before it.
        let bytes = match draw.is_bad() && !is_first {
            true => Bytes::from(format!("order-{number}")),
            false => self.keys[key].clone(),
        };
        Message::new(short_id(number), self.stream.clone(), position)
            .with_key(bytes)
            .with_payload(Bytes::from_static(if draw.is_bad() { BAD } else { GOOD }))
    }
}

/// Returns the id `m-` and the number, formatted on the stack.
fn short_id(mut number: usize) -> MessageId {
    let mut text = [b'0'; 22];
    let mut start = text.len();
    loop {
        start -= 1;
        text[start] += (number % 10) as u8;
        number /= 10;
        if number == 0 {
            break;
        }
    }
    start -= 2;
    text[start..start + 2].copy_from_slice(b"m-");
    MessageId::from(std::str::from_utf8(&text[start..]).expect("digits are UTF-8"))
}

/// The commits that the source received, for inspection after the run.
#[derive(Default)]
pub(crate) struct Committed {
    /// The number of commit calls.
    pub(crate) commits: AtomicU64,
    /// The partitions whose last message was not committed when the source was closed.
    pub(crate) behind: AtomicU64,
}

/// A finite source that generates the messages of a plan.
///
/// It delivers nothing while any partition is held: the engine holds all or none in these runs.
pub(crate) struct BenchSource {
    plan: Arc<Plan>,
    /// For how long the plan is repeated; `None` for once.
    lasts: Option<Duration>,
    /// When that ends.
    until: Option<Instant>,
    assigned: bool,
    next: usize,
    ended: bool,
    held: [bool; PARTITIONS],
    delivered: [Option<u64>; PARTITIONS],
    committed: [Option<u64>; PARTITIONS],
    counters: Arc<Committed>,
}

impl BenchSource {
    pub(crate) fn new(plan: Arc<Plan>) -> Self {
        Self {
            plan,
            lasts: None,
            until: None,
            assigned: false,
            next: 0,
            ended: false,
            held: [false; PARTITIONS],
            delivered: [None; PARTITIONS],
            committed: [None; PARTITIONS],
            counters: Arc::default(),
        }
    }

    /// A source that repeats its plan for this time.
    #[cfg(feature = "console")]
    pub(crate) fn repeated(plan: Arc<Plan>, lasts: Duration) -> Self {
        Self { lasts: Some(lasts), ..Self::new(plan) }
    }

    /// Returns the commits of the engine, for inspection after the run.
    pub(crate) fn committed(&self) -> Arc<Committed> {
        self.counters.clone()
    }

    fn assign(&mut self) -> SourceEvent {
        self.assigned = true;
        self.until = self.lasts.map(|lasts| Instant::now() + lasts);
        let partitions = (0..PARTITIONS as u32).map(|index| Partition::new(self.plan.stream.clone(), index));
        let assignments = partitions.map(|partition| Assignment::new(partition, Vec::new()));
        SourceEvent::Assigned(assignments.collect())
    }

    fn has_more(&self) -> bool {
        match self.until {
            Some(until) => Instant::now() < until,
            None => self.next < self.plan.len(),
        }
    }

    fn batch(&mut self) -> SourceEvent {
        let last = if self.until.is_some() { usize::MAX } else { self.plan.len() };
        let end = (self.next + BATCH).min(last);
        let mut messages = Vec::with_capacity(end - self.next);
        for number in self.next..end {
            let message = self.plan.message(number);
            self.delivered[message.position.partition as usize] = Some(message.position.offset);
            messages.push(message);
        }
        self.next = end;
        SourceEvent::Messages(messages)
    }
}

#[async_trait]
impl Source for BenchSource {
    async fn next(&mut self) -> Result<SourceEvent, SourceError> {
        if !self.assigned {
            return Ok(self.assign());
        }
        if self.ended || self.held.contains(&true) {
            return std::future::pending().await;
        }
        if self.has_more() {
            return Ok(self.batch());
        }
        self.ended = true;
        Ok(SourceEvent::End)
    }

    async fn commit(&mut self, commits: Vec<Commit>) -> Result<(), SourceError> {
        self.counters.commits.fetch_add(1, Ordering::Relaxed);
        for commit in commits {
            if let Some(position) = commit.position {
                self.committed[commit.partition.index as usize] = Some(position.offset);
            }
        }
        Ok(())
    }

    fn pause(&mut self, partitions: &[Partition]) {
        partitions.iter().for_each(|partition| self.held[partition.index as usize] = true);
    }

    fn resume(&mut self, partitions: &[Partition]) {
        partitions.iter().for_each(|partition| self.held[partition.index as usize] = false);
    }

    fn rewind(&mut self, _: &[Partition]) {
        unreachable!("no other process acquires the grant of a benchmark's queue");
    }

    async fn revoked(&mut self, _: &[Partition]) -> Result<(), SourceError> {
        Ok(())
    }

    async fn close(&mut self) -> Result<(), SourceError> {
        let behind = self.delivered.iter().zip(&self.committed).filter(|(last, done)| last != done).count();
        self.counters.behind.store(behind as u64, Ordering::Relaxed);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_short_and_told_apart() {
        assert_eq!(short_id(0).as_str(), "m-0");
        assert_eq!(short_id(9_999_999).as_str(), "m-9999999");
        assert_eq!(short_id(usize::MAX).as_str(), format!("m-{}", usize::MAX));
    }

    #[test]
    fn a_hot_key_gets_its_share_and_only_its_messages_are_bad() {
        let plan = Plan::with_hot_key(100_000, 10, 0.01);
        assert_eq!(plan.bad_count(), plan.count_of_key(10));
        assert!((900..1100).contains(&plan.bad_count()), "{}", plan.bad_count());
    }

    #[tokio::test]
    async fn the_source_delivers_every_message_once_and_waits_while_it_is_held() {
        let plan = Plan::zipf(1000, 50);
        let mut source = BenchSource::new(plan.clone());
        let Ok(SourceEvent::Assigned(assigned)) = source.next().await else { panic!("assigns first") };
        let partitions: Vec<Partition> = assigned.into_iter().map(|a| a.partition).collect();
        source.pause(&partitions);
        assert!(at_once(&mut source).await.is_none());
        source.resume(&partitions);
        let mut ids = Vec::new();
        while let Some(Ok(SourceEvent::Messages(messages))) = at_once(&mut source).await {
            ids.extend(messages.into_iter().map(|message| message.id));
        }
        let expected: Vec<MessageId> = (0..plan.len()).map(short_id).collect();
        assert_eq!(ids, expected);
    }

    #[cfg(feature = "console")]
    #[tokio::test]
    async fn a_repeated_plan_ends_with_its_time_and_gives_bad_messages_new_keys() {
        let plan = Plan::distinct(1000, 0.5);
        let mut source = BenchSource::repeated(plan.clone(), Duration::from_secs(3600));
        assert!(matches!(source.next().await, Ok(SourceEvent::Assigned(_))));
        let (mut ids, mut bad_keys) = (std::collections::HashSet::new(), std::collections::HashSet::new());
        while ids.len() < 3 * plan.len() {
            let Ok(SourceEvent::Messages(messages)) = source.next().await else { panic!("it goes on") };
            for message in messages {
                assert!(!is_bad(message.payload.as_ref()) || bad_keys.insert(message.key.clone()));
                assert!(ids.insert(message.id.as_str().to_owned()));
            }
        }
        source.until = Some(Instant::now());
        assert!(matches!(source.next().await, Ok(SourceEvent::End)));
    }

    /// Returns the next event of the source without waiting.
    async fn at_once(source: &mut BenchSource) -> Option<Result<SourceEvent, SourceError>> {
        tokio::select! {
            biased;
            event = source.next() => Some(event),
            () = std::future::ready(()) => None,
        }
    }
}
