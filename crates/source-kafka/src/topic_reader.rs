//! Reads all partitions of a topic from given offsets, without a group.
//!
//! Nothing is committed, so readers of the topic in any group are not affected.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use lazaret_core::source::SourceError;
use lazaret_core::{Partition, StreamName, Timestamp};
use rdkafka::consumer::Consumer;
use rdkafka::error::{KafkaError, KafkaResult, RDKafkaErrorCode as Code};
use rdkafka::message::Message as _;
use tokio::sync::Notify;

use crate::client::assignment::{add_offset, list_of};
use crate::client::callbacks::{Callbacks, Client};
use crate::client::metadata::TopicWait;
use crate::error::{ClientError, classify, is_unknown_topic};
use crate::options::KafkaOptions;
use crate::record::{RecordParts, copy, timestamp};

const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// The maximum interval between polls of the client.
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// The time for which a bounded read waits for the brokers.
const SILENCE_LIMIT: Duration = Duration::from_secs(60);
/// The interval at which a followed topic is checked for new partitions.
const PARTITION_CHECK_INTERVAL: Duration = Duration::from_secs(30);
/// The size of a batch, which its last record may exceed (I7).
const BATCH_BYTES: usize = 8 * 1024 * 1024;

/// A record of a topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopicRecord {
    /// The partition.
    pub partition: Partition,
    /// The offset.
    pub offset: u64,
    /// Key, payload and headers.
    pub parts: RecordParts,
    /// The timestamp, if the record has one.
    pub timestamp: Option<Timestamp>,
}

/// The progress of a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Progress {
    /// The first offset that was not read.
    next: u64,
    /// The end of the partition when reading began.
    end: u64,
}

/// The range of offsets that a partition holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Extent {
    index: u32,
    low: u64,
    high: u64,
}

/// Reads all partitions of a topic without being a member of a group.
///
/// ```no_run
/// use std::collections::BTreeMap;
/// use lazaret_source_kafka::{KafkaOptions, TopicReader};
///
/// # async fn example() -> Result<(), lazaret_core::source::SourceError> {
/// let options = KafkaOptions::new("127.0.0.1:9092", "billing", ["orders"]);
/// // From the beginning, up to the end as it is now.
/// let mut reader = TopicReader::open(&options, "orders-dlt", &BTreeMap::new(), true).await?;
/// loop {
///     let records = reader.read().await?;
///     if records.is_empty() {
///         break;
///     }
///     println!("{} read, {} remain", records.len(), reader.remaining());
/// }
/// # Ok(())
/// # }
/// ```
pub struct TopicReader {
    client: Option<Arc<Client>>,
    callbacks: Callbacks,
    wake: Arc<Notify>,
    options: KafkaOptions,
    topic: StreamName,
    partitions: BTreeMap<u32, Progress>,
    bounded: bool,
    deleted: u64,
    /// When a record or an end was last received.
    received_at: Instant,
    partitions_checked_at: Instant,
    /// The last error since then.
    last_error: Option<String>,
}

impl TopicReader {
    /// Starts to read a topic. The options are the options of a consumer: brokers, properties and batch
    /// size. Their group and topics are not used. `next` holds the offsets at which partitions continue
    /// that were read before. A bounded read ends at the current end of each partition. A topic that
    /// does not exist yet is [waited for](KafkaOptions::with_topic_timeout).
    ///
    /// # Errors
    /// When the topic does not exist or is denied, the brokers are unreachable, or a property is invalid.
    pub async fn open(
        options: &KafkaOptions,
        topic: impl Into<String>,
        next: &BTreeMap<u32, u64>,
        bounded: bool,
    ) -> Result<Self, SourceError> {
        let topic = topic.into();
        // With `read_to_end`, the client reports the end of each partition.
        let options = KafkaOptions { topics: vec![topic.clone()], read_to_end: true, ..options.clone() };
        let wake = Arc::new(Notify::new());
        let callbacks = Callbacks::new(options.reads_committed(), wake.clone());
        let client = callbacks.connect(&options.fetching_client()?)?;
        let mut reader = Self {
            client: Some(client),
            callbacks,
            wake,
            options,
            topic: StreamName::new(topic),
            partitions: BTreeMap::new(),
            bounded,
            deleted: 0,
            received_at: Instant::now(),
            partitions_checked_at: Instant::now(),
            last_error: None,
        };
        let mut wait = TopicWait::new(&reader.options);
        let name = reader.topic.clone();
        let extents = loop {
            match reader.extents().await? {
                Err(error) if is_unknown_topic(&error) && wait.pause(name.as_str()).await => {}
                result => break result.map_err(|error| reader.request_error(error))?,
            }
        };
        reader.start(extents, next)?;
        Ok(reader)
    }

    /// Requests the partitions and starts to read new ones.
    async fn add_partitions(&mut self) -> Result<(), SourceError> {
        let extents = self.extents().await?.map_err(|error| self.request_error(error))?;
        self.start(extents, &BTreeMap::new())
    }

    /// Requests the partitions.
    async fn extents(&self) -> Result<KafkaResult<Vec<Extent>>, SourceError> {
        let Some(client) = self.client.clone() else { return Ok(Ok(Vec::new())) };
        let name = self.topic.clone();
        let extents = tokio::task::spawn_blocking(move || extents(&client, name.as_str())).await;
        extents.map_err(|_| SourceError::temporary("failed to look up the topic"))
    }

    /// Starts to read partitions that are new.
    fn start(&mut self, extents: Vec<Extent>, next: &BTreeMap<u32, u64>) -> Result<(), SourceError> {
        let Some(client) = self.client.clone() else { return Ok(()) };
        self.partitions_checked_at = Instant::now();
        let mut list = list_of([]);
        for Extent { index, low, high } in extents {
            if self.partitions.contains_key(&index) {
                continue;
            }
            let (start, deleted) = start_offset(next.get(&index).copied(), low, high);
            if deleted > 0 {
                tracing::warn!(topic = %self.topic, partition = index, deleted, "records deleted before they were read");
            }
            self.deleted += deleted;
            self.partitions.insert(index, Progress { next: start, end: high });
            if !(self.bounded && start >= high) {
                add_offset(&mut list, &self.partition(index), start, "");
            }
        }
        if list.count() > 0 {
            client.incremental_assign(&list).map_err(|error| self.request_error(error))?;
        }
        Ok(())
    }

    fn partition(&self, index: u32) -> Partition {
        Partition::new(self.topic.clone(), index)
    }

    /// Converts an error of a request. The client does not repeat requests.
    fn request_error(&self, error: KafkaError) -> SourceError {
        let reason = error.to_string();
        classify(error, &reason, &self.options, false).into_reported(reason)
    }

    /// Returns the offset at which each partition continues.
    pub fn next_offsets(&self) -> BTreeMap<u32, u64> {
        self.partitions.iter().map(|(index, progress)| (*index, progress.next)).collect()
    }

    /// Returns the number of offsets up to the end.
    pub fn remaining(&self) -> u64 {
        let end = |index: u32, progress: &Progress| {
            let reported = self.callbacks.end_of(&self.partition(index)).filter(|_| !self.bounded);
            reported.unwrap_or(0).max(progress.end)
        };
        self.partitions.iter().map(|(index, p)| end(*index, p).saturating_sub(p.next)).sum()
    }

    /// Returns the number of offsets after the ones given to [`open`](Self::open) that were deleted
    /// before they were read.
    pub fn deleted(&self) -> u64 {
        self.deleted
    }

    fn is_at_end(&self) -> bool {
        self.bounded && self.partitions.values().all(|progress| progress.next >= progress.end)
    }

    /// Returns the next records, in the order of each partition. Returns none at the end of a bounded
    /// read. Cancellation loses no records.
    ///
    /// # Errors
    /// When the topic permanently cannot be read. A bounded read also fails when the brokers are silent
    /// for a minute and records are missing.
    pub async fn read(&mut self) -> Result<Vec<TopicRecord>, SourceError> {
        self.received_at = Instant::now();
        loop {
            let records = self.take()?;
            if !records.is_empty() || self.is_at_end() {
                return Ok(records);
            }
            if self.bounded && self.received_at.elapsed() >= SILENCE_LIMIT {
                let reason = self.last_error.as_deref().unwrap_or("no response from the brokers");
                let (topic, remaining) = (&self.topic, self.remaining());
                let context =
                    format!("no record of {topic} for {SILENCE_LIMIT:?}, {remaining} remain: {reason}");
                return Err(SourceError::temporary(context));
            }
            if !self.bounded && self.partitions_checked_at.elapsed() >= PARTITION_CHECK_INTERVAL {
                // If the error persists, reading also fails, and reports it.
                if let Err(error) = self.add_partitions().await {
                    tracing::warn!(topic = %self.topic, %error, "check for new partitions failed");
                    self.partitions_checked_at = Instant::now();
                }
            }
            tokio::select! {
                () = self.wake.notified() => {}
                () = tokio::time::sleep(POLL_INTERVAL) => {}
            }
        }
    }

    /// Returns the available records without waiting.
    fn take(&mut self) -> Result<Vec<TopicRecord>, SourceError> {
        let (mut records, mut size) = (Vec::new(), 0);
        let Some(client) = self.client.clone() else { return Ok(records) };
        while records.len() < self.options.batch && size < BATCH_BYTES {
            self.callbacks.take_served();
            match client.poll(Duration::ZERO) {
                Some(Ok(record)) => {
                    self.last_error = None;
                    let (index, offset) = (record.partition().unsigned_abs(), record.offset().unsigned_abs());
                    if !self.advance(&client, index, offset) {
                        continue;
                    }
                    let (parts, timestamp) = (copy(&record), timestamp(&record));
                    size += parts.byte_size();
                    records.push(TopicRecord { partition: self.partition(index), offset, parts, timestamp });
                }
                Some(Err(KafkaError::PartitionEOF(index))) => self.reach_end(index.unsigned_abs()),
                Some(Err(error)) => self.handle_error(error)?,
                None if self.callbacks.take_served() => {}
                None => break,
            }
        }
        if !records.is_empty() {
            self.received_at = Instant::now();
        }
        Ok(records)
    }

    /// Advances a partition to a record. Returns `true` if the record is to be returned. Beyond the end
    /// of a bounded read, the partition is paused.
    fn advance(&mut self, client: &Client, index: u32, offset: u64) -> bool {
        let bounded = self.bounded;
        let Some(progress) = self.partitions.get_mut(&index).filter(|progress| offset >= progress.next)
        else {
            return false;
        };
        if bounded && offset >= progress.end {
            progress.next = progress.end;
            let list = list_of([&self.partition(index)]);
            if let Err(error) = client.pause(&list) {
                tracing::debug!(%error, "partition not paused at its end");
            }
            return false;
        }
        progress.next = offset + 1;
        true
    }

    /// Records that everything in a partition was delivered. Its end may lie after its last record,
    /// because of transaction markers.
    fn reach_end(&mut self, index: u32) {
        self.received_at = Instant::now();
        if let Some(progress) = self.partitions.get_mut(&index) {
            progress.next = progress.next.max(progress.end);
        }
    }

    fn handle_error(&mut self, error: KafkaError) -> Result<(), SourceError> {
        let reason = self.callbacks.take_reason();
        let reason = if reason.is_empty() { error.to_string() } else { reason };
        // The client looks up its group's coordinator, which this reader does not need.
        if error.rdkafka_error_code() == Some(Code::GroupAuthorizationFailed) {
            return Ok(());
        }
        match classify(error, &reason, &self.options, true) {
            ClientError::Reported(error) if !error.is_temporary() => Err(error),
            ClientError::Reported(error) => {
                tracing::warn!(topic = %self.topic, %error, "reading the topic failed, retrying");
                self.last_error = Some(error.to_string());
                Ok(())
            }
            ClientError::Retried => {
                self.last_error = Some(reason);
                Ok(())
            }
        }
    }
}

/// Drops the client in a separate thread, because dropping waits for the brokers.
impl Drop for TopicReader {
    fn drop(&mut self) {
        self.callbacks.close();
        if let Some(client) = self.client.take() {
            let close = move || drop(client);
            let started = thread::Builder::new().name("lazaret-kafka-reader".to_owned()).spawn(close);
            if let Err(error) = started {
                tracing::debug!(%error, "thread to close a client not started");
            }
        }
    }
}

impl fmt::Debug for TopicReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TopicReader")
            .field("topic", &self.topic)
            .field("bounded", &self.bounded)
            .field("partitions", &self.partitions)
            .finish_non_exhaustive()
    }
}

/// Returns the ranges of offsets that the partitions of a topic hold.
fn extents(client: &Client, topic: &str) -> KafkaResult<Vec<Extent>> {
    let metadata = client.fetch_metadata(Some(topic), REQUEST_TIMEOUT)?;
    let mut extents = Vec::new();
    for described in metadata.topics().iter().filter(|described| described.name() == topic) {
        if let Some(error) = described.error() {
            return Err(KafkaError::MetadataFetch(error.into()));
        }
        for partition in described.partitions() {
            let (low, high) = client.fetch_watermarks(topic, partition.id(), REQUEST_TIMEOUT)?;
            let [low, high] = [low, high].map(i64::unsigned_abs);
            extents.push(Extent { index: partition.id().unsigned_abs(), low, high });
        }
    }
    Ok(extents)
}

/// Returns where to start in a partition, and how many offsets were deleted before they were read.
fn start_offset(next: Option<u64>, low: u64, high: u64) -> (u64, u64) {
    match next {
        Some(next) if (low..=high).contains(&next) => (next, 0),
        Some(next) if next < low => (low, low - next),
        // The partition was never read, or the topic was recreated.
        _ => (low, 0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reading_continues_where_it_ended_or_starts_at_the_beginning() {
        assert_eq!(start_offset(None, 5, 9), (5, 0));
        assert_eq!((start_offset(Some(7), 5, 9), start_offset(Some(9), 5, 9)), ((7, 0), (9, 0)));
        assert_eq!(start_offset(Some(2), 5, 9), (5, 3), "three were deleted by retention");
        assert_eq!(start_offset(Some(10), 5, 9), (5, 0), "the topic was recreated");
    }
}
