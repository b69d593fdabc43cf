//! A partition from its assignment to its revocation.

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use lazaret_core::source::{Assignment, Ownership};
use lazaret_core::{Message, Partition};
use rdkafka::consumer::base_consumer::PartitionQueue;
use rdkafka::error::KafkaError;

use crate::client::batch::{Batches, FetchError};
use crate::client::callbacks::{Callbacks, Client};
use crate::positions::metadata;
use crate::positions::settled::SettledOffsets;
use crate::record::{PartitionNames, RecordReader};
use crate::retry_reader::RetryReader;
use crate::start_position::StartPosition;
use crate::topology::Topology;

/// A partition that this member owns.
///
/// The partition has its own queue of records. While it is paused, the queue is not polled. Nothing is
/// fetched twice, and records that librdkafka has prefetched stay there, bounded by
/// `queued.max.messages.kbytes`.
pub(crate) struct OwnedPartition {
    pub(crate) partition: Partition,
    batches: Batches,
    /// The same queue in the client's type. It wakes the member when a record arrives.
    _queue: PartitionQueue<Callbacks>,
    names: PartitionNames,
    pub(crate) stage: Stage,
    pub(crate) paused: bool,
    /// The id of the topic, if its broker has reported it.
    pub(crate) log: Option<Arc<str>>,
    /// The id of the assignment, unique across all partitions.
    pub(crate) assignment_id: u64,
    /// The first offset of this assignment.
    pub(crate) start: u64,
    /// The first offset that was not delivered.
    pub(crate) next: u64,
    pub(crate) committed: Option<u64>,
    /// The ranges beyond the committed offset that were committed with it since the assignment.
    pub(crate) committed_beyond: Vec<RangeInclusive<u64>>,
    /// The ranges that were settled before this assignment.
    settled: Vec<RangeInclusive<u64>>,
    /// The offset after the last message at the time of the assignment.
    pub(crate) end: u64,
    /// Whether the end was reached.
    at_end: bool,
    /// The reader, for a partition of a retry topic.
    retry: Option<RetryReader>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// The partition is being read.
    Reading,
    /// The partition waits for the lookup of its committed offset.
    Rewinding,
    /// The engine is finishing its messages.
    Revoking,
}

/// The reason why reading a partition stopped.
pub(crate) enum ReadEnd {
    /// There are no more records, or the batch is full.
    Done,
    /// The next record has this offset, which is below the delivered ones, so the log was truncated.
    Truncated(u64),
}

fn next_assignment_id() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

impl OwnedPartition {
    /// Takes over a partition before it is assigned to the fetching client, so that no record arrives in
    /// the common queue. Returns `None` if the client has no queue for it.
    pub(crate) fn new(
        client: &Arc<Client>,
        callbacks: &Callbacks,
        position: StartPosition,
        topology: Option<&Arc<Topology>>,
    ) -> Option<Self> {
        let StartPosition { partition, log, start, committed, settled, end, .. } = position;
        let mut queue = client.split_partition_queue(partition.stream.as_str(), partition.index as i32)?;
        let callbacks = callbacks.clone();
        queue.set_nonempty_callback(move || callbacks.wake());
        let batches = Batches::of(client, partition.stream.as_str(), partition.index as i32)?;
        let names = PartitionNames::new(&partition);
        let partition = names.partition().clone();
        let (stage, paused, at_end) = (Stage::Reading, false, false);
        let next = start;
        let retry = topology.and_then(|topology| RetryReader::new(topology, &partition, start));
        Some(Self {
            partition,
            batches,
            _queue: queue,
            names,
            stage,
            paused,
            log,
            assignment_id: next_assignment_id(),
            start,
            next,
            committed,
            committed_beyond: Vec::new(),
            settled,
            end,
            at_end,
            retry,
        })
    }

    /// Restarts at a new position, after the client was repositioned. The position may be in a new
    /// incarnation.
    pub(crate) fn restart(&mut self, position: StartPosition) {
        let StartPosition { partition, log, start, committed, settled, end, .. } = position;
        self.names = PartitionNames::new(&partition);
        self.partition = self.names.partition().clone();
        self.log = log;
        let (stage, paused, at_end) = (Stage::Reading, false, false);
        (self.stage, self.paused, self.at_end) = (stage, paused, at_end);
        (self.start, self.next, self.end) = (start, start, end);
        (self.committed, self.settled) = (committed, settled);
        self.committed_beyond.clear();
        self.assignment_id = next_assignment_id();
        if let Some(retry) = &mut self.retry {
            retry.rewind(start);
        }
    }

    pub(crate) fn assignment(&self, ownership: Ownership) -> Assignment {
        Assignment { partition: self.partition.clone(), settled: self.settled.clone(), ownership }
    }

    /// Returns the offsets that were settled before this assignment.
    pub(crate) fn settled_offsets(&self, metadata_limit: usize) -> SettledOffsets {
        let offset = self.committed.unwrap_or(self.start);
        SettledOffsets::new(offset, self.settled.clone(), metadata_limit, self.log.clone())
    }

    /// Returns `true` if the partition's messages may be delivered.
    pub(crate) fn is_readable(&self) -> bool {
        self.stage == Stage::Reading && !self.paused
    }

    /// Returns `true` if everything up to the end at the time of the assignment was delivered. In a
    /// retry topic, everything that this relay has written since must also be delivered.
    pub(crate) fn is_at_end(&self) -> bool {
        let written = self.retry.as_ref().map_or(0, RetryReader::written);
        self.stage == Stage::Reading && (self.at_end || self.next >= self.end) && self.next >= written
    }

    /// Adds available messages to the batch, up to its size, and errors to `errors`. A finite read skips
    /// messages written after the assignment.
    pub(crate) fn read(
        &mut self,
        messages: &mut Vec<Message>,
        size: usize,
        reader: &mut RecordReader,
        finite: bool,
        errors: &mut Vec<FetchError>,
    ) -> ReadEnd {
        while messages.len() < size && !(finite && self.is_at_end()) {
            // The end of a retry topic may move with every message, and a fetched record cannot be put back.
            let limit = if finite && self.retry.is_some() { 1 } else { size - messages.len() };
            let batch = self.batches.take(limit);
            let mut remaining = batch.len();
            if remaining == 0 {
                break;
            }
            // Reserved once for the whole batch. Records of other partitions follow, and growing would
            // move the messages.
            messages.reserve(limit);
            for record in batch.iter() {
                remaining -= 1;
                let record = match record {
                    Ok(record) => record,
                    Err(FetchError { error: KafkaError::PartitionEOF(_), .. }) => {
                        self.at_end = true;
                        continue;
                    }
                    Err(error) => {
                        errors.push(error);
                        continue;
                    }
                };
                let offset = record.offset();
                if offset < self.next {
                    reader.finish(&self.names, messages);
                    return ReadEnd::Truncated(offset);
                }
                // Offsets in between hold no message: they were compacted or aborted, or are transaction
                // markers.
                self.next = offset + 1;
                if let Some(retry) = &mut self.retry {
                    messages.push(retry.read(reader, &record, offset, &self.names));
                } else if !(finite && offset >= self.end) {
                    reader.copy(&record, offset, remaining + 1, &self.names, messages);
                }
            }
            reader.finish(&self.names, messages);
        }
        ReadEnd::Done
    }

    /// Merges the ranges of the engine's commit with the ranges settled before the assignment, from this
    /// offset on.
    pub(crate) fn settled_beyond(
        &self,
        ranges: Vec<RangeInclusive<u64>>,
        offset: u64,
    ) -> Vec<RangeInclusive<u64>> {
        metadata::with_earlier(ranges, &self.settled, offset)
    }
}
