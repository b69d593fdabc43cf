//! A group whose members are killed and replaced while messages are written, and a check of the result.
//!
//! The handler of every member appends to one journal file when it begins with a message and when it has
//! handled it. Each entry is one line in one write, so the journal survives every kill, and its lines
//! are in the order of the events. The driver polls the committed offsets, and checks the journal and
//! the letters for every message below them.

pub(crate) mod letters;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use lazaret_core::handler::Attempt;
use lazaret_core::policy::{PoisonPolicy, RetryPolicy, Strategy};
use lazaret_core::{HandlerError, Message, Reason};
use lazaret_engine::Options;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer};
use rdkafka::{Offset, TopicPartitionList};

use super::{LONG, Topic, client};
use letters::Letters;

pub(crate) const CONSUMER: &str = "orders";
pub(crate) const PARTITIONS: u32 = 12;
/// Ten keys for each partition.
const KEYS: u32 = 120;
/// The modulus and the remainder of keys that have a permanently failing message, which has the number
/// [`DEADLY`].
const DEADLY_KEYS: (u32, u32) = (20, 7);
const DEADLY: u32 = 25;
/// The approximate number of messages written per second.
const RATE: u32 = 500;
/// The time that the group may take to finish after the last kill, on a busy machine.
const CALM: Duration = Duration::from_secs(300);
/// The interval at which the driver requests the committed offsets.
const SAMPLE: Duration = Duration::from_millis(250);

/// Pseudorandom numbers from a seed (SplitMix64).
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(crate) fn below(&mut self, below: u64) -> u64 {
        self.next() % below
    }
}

/// Returns the seed of this run, from the environment or a new one, and prints it.
pub(crate) fn seed() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    let given = std::env::var("LAZARET_TEST_SEED").ok().and_then(|text| text.parse().ok());
    let seed = given.unwrap_or_else(|| RandomState::new().hash_one(0) >> 32);
    println!("LAZARET_TEST_SEED={seed}");
    seed
}

/// The identity of a message: the key and the number among the key's messages, as in the payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Which {
    pub(crate) key: u32,
    pub(crate) number: u32,
}

impl Which {
    /// Returns `true` if the message is never handled.
    pub(crate) fn is_deadly(self) -> bool {
        self.key % DEADLY_KEYS.0 == DEADLY_KEYS.1 && self.number == DEADLY
    }

    /// Returns `true` if the message waits behind one that is never handled, provided that order is kept.
    fn is_behind(self) -> bool {
        self.key % DEADLY_KEYS.0 == DEADLY_KEYS.1 && self.number > DEADLY
    }

    fn parse(payload: &str) -> Self {
        let (key, number) = payload.split_once(':').unwrap();
        Self { key: key.parse().unwrap(), number: number.parse().unwrap() }
    }
}

impl fmt::Display for Which {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.key, self.number)
    }
}

/// A line of the journal.
#[derive(Clone, Copy, Debug)]
struct Line {
    done: bool,
    which: Which,
    place: (u32, u64),
    member: u32,
}

impl Line {
    fn parse(text: &str) -> Self {
        let words: Vec<&str> = text.split(' ').collect();
        let [what, payload, partition, offset, member] = words[..] else { panic!("{text:?}") };
        let place = (partition.parse().unwrap(), offset.parse().unwrap());
        Self { done: what == "done", which: Which::parse(payload), place, member: member.parse().unwrap() }
    }
}

/// The handler of a member. A fifth of all attempts fail, and some messages always fail.
#[derive(Debug)]
pub(crate) struct Work {
    journal: File,
    seed: u64,
    member: u32,
}

impl Work {
    pub(crate) fn new(journal: &Path, seed: u64, member: u32) -> Self {
        let journal = OpenOptions::new().create(true).append(true).open(journal).unwrap();
        Self { journal, seed, member }
    }

    fn write(&self, what: &str, message: &Message, which: Which) {
        let (position, member) = (&message.position, self.member);
        let line = format!("{what} {which} {} {} {member}\n", position.partition, position.offset);
        (&self.journal).write_all(line.as_bytes()).unwrap();
    }

    pub(crate) async fn handle(
        &self,
        message: Message,
        Attempt(attempt): Attempt,
    ) -> Result<(), HandlerError> {
        let payload = message.payload.as_deref().unwrap_or_default();
        let which = Which::parse(std::str::from_utf8(payload).unwrap());
        self.write("begin", &message, which);
        let lot = u64::from(which.key) << 40 | u64::from(which.number) << 8 | u64::from(attempt);
        let mut random = Random::new(self.seed ^ lot);
        tokio::time::sleep(Duration::from_millis(random.below(6))).await;
        if which.is_deadly() {
            return Err(HandlerError::msg("this message always fails").reason(Reason::DOMAIN_INVALID));
        }
        if random.below(5) == 0 {
            return Err(HandlerError::msg("not now").reason(Reason::DEPENDENCY_UNAVAILABLE));
        }
        self.write("done", &message, which);
        Ok(())
    }
}

/// Returns options of a member. They are quick, and nothing stops it although a fifth of all attempts fail.
pub(crate) fn options(member: u32, strategy: Strategy) -> Options {
    let retry = RetryPolicy {
        strategy,
        // Some retries stay in memory, and the next ones go to the store.
        hold: Duration::from_millis(25),
        max_attempts: 100,
        initial_delay: Duration::from_millis(10),
        // Two delays make two retry topics.
        multiplier: if strategy == Strategy::Topics { 20.0 } else { 2.0 },
        max_delay: Duration::from_millis(200),
        max_crashes: 0,
        ..RetryPolicy::default()
    };
    Options {
        instance: format!("member-{member}"),
        retry,
        breaker: None,
        fuse: None,
        poison: PoisonPolicy { same_failure: None },
        commit_interval: Duration::from_millis(100),
        drain_deadline: Duration::from_secs(2),
        lease: Duration::from_secs(3),
        refresh: Duration::from_millis(200),
        ..Options::default()
    }
}

/// Starts and ends members.
pub(crate) trait Herd {
    type Member;
    fn start(&mut self, number: u32) -> Self::Member;
    /// Ends a member abruptly.
    async fn kill(&mut self, member: Self::Member);
    /// Closes a member gracefully.
    async fn close(&mut self, member: Self::Member);
}

/// Writes messages and records what was written.
struct Writer<'a> {
    topic: &'a Topic,
    producer: BaseProducer,
    random: Random,
    numbers: BTreeMap<u32, u32>,
    started: Instant,
    written: u32,
}

impl<'a> Writer<'a> {
    fn new(topic: &'a Topic, seed: u64) -> Self {
        let producer = client(&topic.brokers).set("enable.idempotence", "true").create().unwrap();
        let (numbers, random) = (BTreeMap::new(), Random::new(seed));
        Self { topic, producer, random, numbers, started: Instant::now(), written: 0 }
    }

    /// Writes the messages that are due.
    fn write(&mut self) {
        let due = (self.started.elapsed().as_secs_f64() * f64::from(RATE)) as u32;
        while self.written < due {
            let key = self.random.below(u64::from(KEYS)) as u32;
            let number = self.numbers.entry(key).or_default();
            let (text, payload) = (key.to_string(), Which { key, number: *number }.to_string());
            let record = BaseRecord::to(&self.topic.name).partition((key % PARTITIONS) as i32);
            self.producer.send(record.key(&text).payload(&payload)).unwrap();
            *number += 1;
            self.written += 1;
        }
        self.producer.poll(Duration::ZERO);
    }
}

/// Reads the journal and the committed positions, and compares them.
pub(crate) struct Auditor {
    journal: BufReader<File>,
    half_line: String,
    ordered: bool,
    /// The places of handled messages.
    done: BTreeSet<(u32, u64)>,
    /// The handled numbers of each key, in the order of their first time.
    numbers: BTreeMap<u32, Vec<u32>>,
    /// The line with which a message of each key was last begun.
    last: BTreeMap<u32, Line>,
    committed: BTreeMap<u32, u64>,
    checked: BTreeMap<u32, u64>,
    asker: BaseConsumer,
    topic: String,
    repeated: u32,
    samples: u32,
}

impl Auditor {
    fn new(topic: &Topic, journal: &Path, ordered: bool) -> Self {
        let asker = client(&topic.brokers).set("group.id", &topic.group).create().unwrap();
        File::options().create(true).append(true).open(journal).unwrap();
        Self {
            journal: BufReader::new(File::open(journal).unwrap()),
            half_line: String::new(),
            ordered,
            done: BTreeSet::new(),
            numbers: BTreeMap::new(),
            last: BTreeMap::new(),
            committed: BTreeMap::new(),
            checked: BTreeMap::new(),
            asker,
            topic: topic.name.clone(),
            repeated: 0,
            samples: 0,
        }
    }

    /// Reads new lines of the journal.
    fn read(&mut self) {
        while self.journal.read_line(&mut self.half_line).unwrap() > 0 && self.half_line.ends_with('\n') {
            let line = Line::parse(self.half_line.trim_end());
            self.half_line.clear();
            if line.done { self.handled(line) } else { self.begun(line) }
        }
    }

    /// Asserts I2: no attempt starts while an earlier message of its key is not handled.
    fn begun(&mut self, line: Line) {
        let Which { key, number } = line.which;
        if self.ordered {
            let handled = self.numbers.get(&key).map_or(0, Vec::len) as u32;
            assert!(number <= handled, "{} was begun before {key}:{handled} was handled", line.which);
        }
        self.last.insert(key, line);
    }

    fn handled(&mut self, line: Line) {
        let Which { key, number } = line.which;
        if self.ordered {
            // I6: no message is settled while another member works on its key.
            let last = self.last[&key];
            assert!(
                last.member == line.member && last.which == line.which,
                "{line:?} ended after {last:?} began"
            );
        }
        if self.done.insert(line.place) {
            self.numbers.entry(key).or_default().push(number);
        } else {
            self.repeated += 1;
        }
    }

    /// Requests the committed offsets, and only then checks what is settled (I1).
    async fn sample(&mut self, letters: &mut impl Letters) {
        let mut list = TopicPartitionList::new();
        list.add_partition_range(&self.topic, 0, PARTITIONS as i32 - 1);
        let list = self.asker.committed_offsets(list, LONG).unwrap();
        for element in list.elements() {
            if let Offset::Offset(offset) = element.offset() {
                let before = self.committed.insert(element.partition() as u32, offset.unsigned_abs());
                assert!(before.is_none_or(|before| before <= offset.unsigned_abs()), "a position went back");
            }
        }
        self.read();
        let open: Vec<(u32, u64)> = self
            .committed
            .iter()
            .flat_map(|(partition, committed)| {
                let from = self.checked.get(partition).copied().unwrap_or(0);
                (from..*committed).map(|offset| (*partition, offset))
            })
            .filter(|place| !self.done.contains(place))
            .collect();
        for (place, held) in open.iter().zip(letters.are_held(&open).await) {
            assert!(held, "{place:?} lies below a committed position and is not settled");
        }
        self.checked = self.committed.clone();
        self.samples += 1;
    }
}

/// Runs a group for this long, kills and adds members every few seconds, and checks the guarantees.
pub(crate) struct Chaos<'a> {
    pub(crate) topic: &'a Topic,
    pub(crate) journal: PathBuf,
    pub(crate) seed: u64,
    pub(crate) lasts: Duration,
    /// Whether order by key is promised.
    pub(crate) ordered: bool,
}

impl Chaos<'_> {
    pub(crate) async fn run<H: Herd>(&self, herd: &mut H, letters: &mut impl Letters) {
        let mut random = Random::new(self.seed);
        let mut writer = Writer::new(self.topic, self.seed);
        let mut auditor = Auditor::new(self.topic, &self.journal, self.ordered);
        let mut members: Vec<H::Member> = (0..3).map(|number| herd.start(number)).collect();
        let (mut started, mut killed, mut closed) = (3, 0, 0);
        let begun = Instant::now();
        let mut next = begun + Duration::from_secs(4);
        // A busy machine does less in the same time.
        let is_enough = |killed: u32, samples: u32| killed >= 3 && samples > 20;
        while begun.elapsed() < self.lasts
            || (!is_enough(killed, auditor.samples) && begun.elapsed() < 4 * self.lasts)
        {
            writer.write();
            auditor.sample(letters).await;
            if Instant::now() >= next {
                next = Instant::now() + Duration::from_millis(1000 + random.below(2500));
                match random.below(4) {
                    0 if members.len() < 5 => {}
                    1 if members.len() > 1 => {
                        let one = members.swap_remove(random.below(members.len() as u64) as usize);
                        herd.close(one).await;
                        closed += 1;
                        continue;
                    }
                    _ => {
                        let one = members.swap_remove(random.below(members.len() as u64) as usize);
                        herd.kill(one).await;
                        killed += 1;
                    }
                }
                members.push(herd.start(started));
                started += 1;
            }
            tokio::time::sleep(SAMPLE).await;
        }
        while members.len() < 3 {
            members.push(herd.start(started));
            started += 1;
        }
        writer.producer.flush(LONG).unwrap();
        self.calm_down(&mut auditor, letters).await;
        self.check(&writer, &auditor, letters).await;
        for member in members {
            herd.close(member).await;
        }
        println!(
            "{} written, {} repeated; {started} members started, {killed} killed, {closed} closed; {} samples",
            writer.written, auditor.repeated, auditor.samples
        );
        assert!(is_enough(killed, auditor.samples), "there was no chaos to speak of");
    }

    /// Waits until the lag is zero and nothing remains to be retried.
    async fn calm_down(&self, auditor: &mut Auditor, letters: &mut impl Letters) {
        let ends: BTreeMap<u32, u64> = (0..PARTITIONS).map(|p| (p, self.topic.end(p as i32))).collect();
        let started = Instant::now();
        while auditor.committed != ends || !letters.are_quiet().await {
            let committed = &auditor.committed;
            assert!(started.elapsed() < CALM, "seed {}: committed {committed:?} of {ends:?}", self.seed);
            tokio::time::sleep(SAMPLE).await;
            auditor.sample(letters).await;
        }
        // Reads messages handled between the last sample and the calm.
        auditor.read();
    }

    /// Asserts that every message was handled or is held. Only messages that cannot be handled are held,
    /// and with order also the messages behind them.
    async fn check(&self, writer: &Writer<'_>, auditor: &Auditor, letters: &mut impl Letters) {
        let mut lost = Vec::new();
        for (key, count) in &writer.numbers {
            let mut seen = auditor.numbers.get(key).cloned().unwrap_or_default();
            assert!(!self.ordered || seen.is_sorted(), "key {key}: {seen:?}");
            seen.sort_unstable();
            let expected: Vec<u32> = (0..*count)
                .filter(|number| {
                    let which = Which { key: *key, number: *number };
                    let is_held = which.is_deadly() || (self.ordered && which.is_behind());
                    !is_held
                })
                .collect();
            if seen != expected {
                lost.push((*key, *count, seen));
            }
        }
        assert!(lost.is_empty(), "seed {}: not as expected: {lost:?}", self.seed);
        let ends = auditor.committed.iter().flat_map(|(p, end)| (0..*end).map(|offset| (*p, offset)));
        let open: Vec<(u32, u64)> = ends.filter(|place| !auditor.done.contains(place)).collect();
        assert!(!open.is_empty(), "some messages cannot be handled");
        let held = letters.are_held(&open).await;
        assert!(held.iter().all(|held| *held), "every message that was not handled is held: {open:?}");
    }
}
