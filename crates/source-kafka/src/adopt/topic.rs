//! Reads a dead-letter topic: all its partitions, from given offsets, as a member of no group.
//!
//! Nothing is committed anywhere. Whoever else reads the topic, in whatever group, does not notice.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use lazaret_core::source::SourceError;
use lazaret_core::{Partition, StreamName};
use rdkafka::consumer::Consumer;
use rdkafka::error::{KafkaError, KafkaResult, RDKafkaErrorCode as Code};
use rdkafka::message::Message as _;
use tokio::sync::Notify;

use super::letter::Found;
use crate::member::{Client, Member, add_offset, list_of};
use crate::membership::connect;
use crate::options::KafkaOptions;
use crate::record::{Parts, time_of};
use crate::trouble::{Trouble, judge};

/// How long to wait for one answer of the brokers.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long to wait for a sign of life before the client is polled all the same.
const TICK: Duration = Duration::from_millis(100);
/// How long the brokers may be silent before a bounded reading gives up.
const SILENCE: Duration = Duration::from_secs(60);
/// How often a topic that is followed is asked for new partitions.
const PARTITIONS_EVERY: Duration = Duration::from_secs(30);
/// How many bytes are read at once, but for the last record of them (I7).
const BATCH_BYTES: usize = 8 * 1024 * 1024;

/// How far a partition was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Reading {
    /// The first offset that was not read.
    next: u64,
    /// Where the partition ended when reading began.
    end: u64,
}

/// What a partition holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Extent {
    index: u32,
    low: u64,
    high: u64,
}

/// A topic that is being read.
pub(super) struct Topic {
    client: Option<Arc<Client>>,
    member: Member,
    wake: Arc<Notify>,
    options: KafkaOptions,
    stream: StreamName,
    partitions: BTreeMap<u32, Reading>,
    /// Read to the ends as they were, and no further.
    bounded: bool,
    /// Offsets that were there to be read when the reading before this one ended, and are gone.
    pub(super) gone: u64,
    /// When something was last heard.
    heard: Instant,
    looked: Instant,
    /// What the client complained of since.
    trouble: Option<String>,
}

impl Topic {
    /// Begins to read the one topic of these options. `next` says where partitions go on that were read before.
    pub(super) async fn open(
        options: KafkaOptions,
        next: &BTreeMap<u32, u64>,
        bounded: bool,
    ) -> Result<Self, SourceError> {
        let wake = Arc::new(Notify::new());
        let member = Member::new(options.reads_committed(), wake.clone());
        let client = connect(&options.reading_client()?, &member)?;
        let stream = StreamName::new(options.topics[0].as_str());
        let mut topic = Self {
            client: Some(client),
            member,
            wake,
            options,
            stream,
            partitions: BTreeMap::new(),
            bounded,
            gone: 0,
            heard: Instant::now(),
            looked: Instant::now(),
            trouble: None,
        };
        topic.look(next).await?;
        Ok(topic)
    }

    /// Asks for partitions, and begins to read those that are new.
    async fn look(&mut self, next: &BTreeMap<u32, u64>) -> Result<(), SourceError> {
        let Some(client) = self.client.clone() else { return Ok(()) };
        let name = self.stream.clone();
        let asked = client.clone();
        let extents = tokio::task::spawn_blocking(move || extents(&asked, name.as_str())).await;
        let extents = extents.map_err(|_| SourceError::temporary("the topic could not be looked up"))?;
        let extents = extents.map_err(|error| self.blame(error))?;
        self.looked = Instant::now();
        let mut list = list_of([]);
        for Extent { index, low, high } in extents {
            if self.partitions.contains_key(&index) {
                continue;
            }
            let (start, gone) = begin(next.get(&index).copied(), low, high);
            if gone > 0 {
                tracing::warn!(topic = %self.stream, partition = index, gone, "records are gone that were not adopted");
            }
            self.gone += gone;
            self.partitions.insert(index, Reading { next: start, end: high });
            if !(self.bounded && start >= high) {
                add_offset(&mut list, &self.partition(index), start, "");
            }
        }
        if list.count() > 0 {
            client.incremental_assign(&list).map_err(|error| self.blame(error))?;
        }
        Ok(())
    }

    fn partition(&self, index: u32) -> Partition {
        Partition { stream: self.stream.clone(), index }
    }

    /// An error that nobody repeats but us.
    fn blame(&self, error: KafkaError) -> SourceError {
        let reason = error.to_string();
        match judge(error, &reason, &self.options, false) {
            Trouble::Told(error) => error,
            Trouble::Noted => SourceError::temporary(reason),
        }
    }

    /// Where each partition goes on.
    pub(super) fn next(&self) -> BTreeMap<u32, u64> {
        self.partitions.iter().map(|(index, reading)| (*index, reading.next)).collect()
    }

    /// How many offsets are left to the ends.
    pub(super) fn left(&self) -> u64 {
        let end = |index: u32, reading: &Reading| {
            let told = self.member.end_of(&self.partition(index)).filter(|_| !self.bounded);
            told.unwrap_or(0).max(reading.end)
        };
        self.partitions.iter().map(|(index, reading)| end(*index, reading).saturating_sub(reading.next)).sum()
    }

    fn is_read(&self) -> bool {
        self.bounded && self.partitions.values().all(|reading| reading.next >= reading.end)
    }

    /// The next records, in the order of each partition; none when all was read that was there. A bounded reading gives up
    /// when nothing was heard for long and something is missing.
    pub(super) async fn read(&mut self) -> Result<Vec<Found>, SourceError> {
        self.heard = Instant::now();
        loop {
            let records = self.take()?;
            if !records.is_empty() || self.is_read() {
                return Ok(records);
            }
            if self.bounded && self.heard.elapsed() >= SILENCE {
                let why = self.trouble.as_deref().unwrap_or("the brokers are silent");
                let left = self.left();
                let context =
                    format!("nothing came from {} for {SILENCE:?}, {left} are left: {why}", self.stream);
                return Err(SourceError::temporary(context));
            }
            if !self.bounded && self.looked.elapsed() >= PARTITIONS_EVERY {
                // Trouble with that is trouble with reading, too, and told there.
                if let Err(error) = self.look(&BTreeMap::new()).await {
                    tracing::warn!(%error, "new partitions were not looked for");
                    self.looked = Instant::now();
                }
            }
            tokio::select! {
                () = self.wake.notified() => {}
                () = tokio::time::sleep(TICK) => {}
            }
        }
    }

    /// What is there, without waiting.
    fn take(&mut self) -> Result<Vec<Found>, SourceError> {
        let (mut records, mut size) = (Vec::new(), 0);
        let Some(client) = self.client.clone() else { return Ok(records) };
        while records.len() < self.options.batch && size < BATCH_BYTES {
            self.member.take_served();
            match client.poll(Duration::ZERO) {
                Some(Ok(record)) => {
                    self.trouble = None;
                    let (index, offset) = (record.partition().unsigned_abs(), record.offset().unsigned_abs());
                    if !self.is_wanted(&client, index, offset) {
                        continue;
                    }
                    let (parts, written_at) = (Parts::of(&record), time_of(&record));
                    let found = Found { place: self.partition(index), offset, parts, written_at };
                    size += found.size();
                    records.push(found);
                }
                Some(Err(KafkaError::PartitionEOF(index))) => self.at_end(index.unsigned_abs()),
                Some(Err(error)) => self.note(error)?,
                None if self.member.take_served() => {}
                None => break,
            }
        }
        if !records.is_empty() {
            self.heard = Instant::now();
        }
        Ok(records)
    }

    /// Whether a record is to be given. Beyond the end of a bounded reading it is not, and the partition rests.
    fn is_wanted(&mut self, client: &Client, index: u32, offset: u64) -> bool {
        let bounded = self.bounded;
        let Some(reading) = self.partitions.get_mut(&index).filter(|reading| offset >= reading.next) else {
            return false;
        };
        if bounded && offset >= reading.end {
            reading.next = reading.end;
            let list = list_of([&Partition { stream: self.stream.clone(), index }]);
            if let Err(error) = client.pause(&list) {
                tracing::debug!(%error, "a partition that was read goes on");
            }
            return false;
        }
        reading.next = offset + 1;
        true
    }

    /// Everything of this partition was delivered. Its end may lie behind its last record: marks of transactions do.
    fn at_end(&mut self, index: u32) {
        self.heard = Instant::now();
        if let Some(reading) = self.partitions.get_mut(&index) {
            reading.next = reading.next.max(reading.end);
        }
    }

    fn note(&mut self, error: KafkaError) -> Result<(), SourceError> {
        let reason = self.member.take_reason();
        let reason = if reason.is_empty() { error.to_string() } else { reason };
        // The client asks for the group that it is no member of. Nobody here needs one.
        if error.rdkafka_error_code() == Some(Code::GroupAuthorizationFailed) {
            return Ok(());
        }
        match judge(error, &reason, &self.options, true) {
            Trouble::Told(error) if !error.is_temporary() => Err(error),
            Trouble::Told(error) => {
                tracing::warn!(topic = %self.stream, %error, "a dead-letter topic cannot be read now");
                self.trouble = Some(error.to_string());
                Ok(())
            }
            Trouble::Noted => {
                self.trouble = Some(reason);
                Ok(())
            }
        }
    }
}

/// The client waits for its brokers when it goes; nobody waits for it.
impl Drop for Topic {
    fn drop(&mut self) {
        self.member.close();
        if let Some(client) = self.client.take() {
            let leave = move || drop(client);
            if let Err(error) = thread::Builder::new().name("lazaret-kafka-adopt".to_owned()).spawn(leave) {
                tracing::debug!(%error, "no thread to let a client go in");
            }
        }
    }
}

/// What the partitions of a topic hold.
fn extents(client: &Client, topic: &str) -> KafkaResult<Vec<Extent>> {
    let metadata = client.fetch_metadata(Some(topic), PATIENCE)?;
    let mut extents = Vec::new();
    for described in metadata.topics().iter().filter(|described| described.name() == topic) {
        if let Some(error) = described.error() {
            return Err(KafkaError::MetadataFetch(error.into()));
        }
        for partition in described.partitions() {
            let (low, high) = client.fetch_watermarks(topic, partition.id(), PATIENCE)?;
            let [low, high] = [low, high].map(i64::unsigned_abs);
            extents.push(Extent { index: partition.id().unsigned_abs(), low, high });
        }
    }
    Ok(extents)
}

/// Where to begin in a partition, and how many offsets are gone that should have been read.
fn begin(next: Option<u64>, low: u64, high: u64) -> (u64, u64) {
    match next {
        Some(next) if (low..=high).contains(&next) => (next, 0),
        Some(next) if next < low => (low, low - next),
        // Never read, or the topic is another one of the same name: what was adopted before is known by its id.
        _ => (low, 0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reading_goes_on_where_it_ended_or_begins_at_the_beginning() {
        assert_eq!(begin(None, 5, 9), (5, 0));
        assert_eq!((begin(Some(7), 5, 9), begin(Some(9), 5, 9)), ((7, 0), (9, 0)));
        assert_eq!(begin(Some(2), 5, 9), (5, 3), "three were lost to retention");
        assert_eq!(begin(Some(10), 5, 9), (5, 0), "the topic was made anew");
    }
}
