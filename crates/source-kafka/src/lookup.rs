//! Looks up where to start reading a partition: the committed offset, within what the log still has.
//!
//! Requests to the brokers block, so they run in their own thread. The start is always an offset, never "the end": a consumer
//! that starts at the end and crashes before its first commit would start at a later end.

use std::ops::RangeInclusive;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use lazaret_core::Partition;
use lazaret_core::source::SourceError;
use rdkafka::Offset;
use rdkafka::consumer::{CommitMode, Consumer};
use rdkafka::error::{KafkaError, KafkaResult};
use tokio::sync::oneshot;

use crate::client::assignment::{add_offset, list_of, partition};
use crate::client::callbacks::{Callbacks, Client, Clients};
use crate::options::{KafkaOptions, MEMORY_STORE, OffsetReset};
use crate::positions::metadata::{self, CommitKey};
use crate::topology::Topology;

const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// Where reading a partition starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StartPosition {
    pub(crate) partition: Partition,
    /// The first offset to read.
    pub(crate) start: u64,
    /// The committed offset: the first one that is not settled.
    pub(crate) committed: Option<u64>,
    /// The ranges that are settled beyond it.
    pub(crate) settled: Vec<RangeInclusive<u64>>,
    /// The offset after the last message.
    pub(crate) end: u64,
}

/// The offsets of a partition, from the brokers.
#[derive(Clone, Debug)]
struct BrokerOffsets {
    partition: Partition,
    committed: Option<(u64, String)>,
    low: u64,
    high: u64,
}

/// Where to start without a committed offset.
#[derive(Clone, Debug)]
pub(crate) struct ResetPolicy {
    pub(crate) streams: OffsetReset,
    pub(crate) topology: Option<Arc<Topology>>,
}

impl ResetPolicy {
    /// Determines the start. Retry topics start at their beginning: this group wrote their records before it first read them.
    fn start(&self, found: BrokerOffsets) -> Result<StartPosition, LookupError> {
        let topic = found.partition.stream.as_str();
        let topology = self.topology.as_ref();
        let is_retry_topic = topology.is_some_and(|topology| topology.of_retry_topic(topic).is_some());
        start_position(found, if is_retry_topic { OffsetReset::Earliest } else { self.streams })
    }
}

/// Checks that the positions of a group were committed with the store of this member. Letters, and what is known of a message, are
/// in the store: with another one, messages would run although their predecessors wait there.
#[derive(Clone, Debug)]
pub(crate) struct StoreCheck {
    group: String,
    own: Option<Arc<str>>,
    replaced: Vec<String>,
}

impl StoreCheck {
    pub(crate) fn new(options: &KafkaOptions) -> Self {
        let KafkaOptions { group, store, replaced_stores, .. } = options;
        Self { group: group.clone(), own: store.clone(), replaced: replaced_stores.clone() }
    }

    fn check(&self, found: &[BrokerOffsets]) -> Result<(), LookupError> {
        let Some(own) = &self.own else { return Ok(()) };
        for BrokerOffsets { partition, committed, .. } in found {
            let store = committed.as_ref().and_then(|(_, metadata)| metadata::store_of(metadata));
            let Some(other) = store.filter(|store| !self.accepts(own, store)) else { continue };
            let group = &self.group;
            return Err(LookupError::Source(SourceError::permanent(format!(
                "the positions of the group {group} in {partition} were committed with another store: {other}, and this one is \
                 {own}; give all members of a group the same store, or, to move the group to this store, stop the other members \
                 and add {other} to `replaced-stores`"
            ))));
        }
        Ok(())
    }

    fn accepts(&self, own: &str, store: &str) -> bool {
        // What was in memory is gone: there is nothing to move.
        store == own || store == MEMORY_STORE || self.replaced.iter().any(|replaced| replaced == store)
    }
}

/// Why a lookup failed.
#[derive(Debug)]
pub(crate) enum LookupError {
    Client(KafkaError),
    Source(SourceError),
}

impl From<KafkaError> for LookupError {
    fn from(error: KafkaError) -> Self {
        Self::Client(error)
    }
}

/// What a lookup is for.
#[derive(Clone, Debug)]
pub(crate) enum LookupPurpose {
    /// The partitions were assigned.
    Assign(Vec<Partition>),
    /// Owned partitions are rewound to the committed offset, or without one to the offset where the assignment started.
    Rewind(Vec<(Partition, u64)>),
}

/// A lookup in progress.
pub(crate) type PendingLookup = oneshot::Receiver<Result<Vec<StartPosition>, LookupError>>;

/// Starts a lookup. The callbacks wake their owner when it is done.
pub(crate) fn start(
    clients: Clients,
    callbacks: Callbacks,
    purpose: LookupPurpose,
    reset: ResetPolicy,
    store: StoreCheck,
) -> PendingLookup {
    let (sender, pending) = oneshot::channel();
    let request = move || {
        let positions = look_up(&clients, &purpose, &reset, &store);
        // Dropped first: the receiver may hold the last reference, and dropping a client blocks.
        drop(clients);
        // The receiver may be gone.
        let _ = sender.send(positions);
        callbacks.wake();
    };
    // Without a thread the sender is dropped, and the receiver sees that.
    if let Err(error) = thread::Builder::new().name("lazaret-kafka-lookup".to_owned()).spawn(request) {
        tracing::warn!(%error, "lookup thread not started");
    }
    pending
}

fn look_up(
    clients: &Clients,
    purpose: &LookupPurpose,
    reset: &ResetPolicy,
    store: &StoreCheck,
) -> Result<Vec<StartPosition>, LookupError> {
    match purpose {
        LookupPurpose::Assign(partitions) => {
            let found = fetch_offsets(&clients.group, partitions)?;
            store.check(&found)?;
            let positions: Vec<_> =
                found.into_iter().map(|found| reset.start(found)).collect::<Result<_, _>>()?;
            if reset.streams == OffsetReset::Latest {
                commit_starts(&clients.group, &positions, store.own.as_deref())?;
            }
            Ok(positions)
        }
        LookupPurpose::Rewind(places) => {
            let partitions: Vec<_> = places.iter().map(|(partition, _)| partition.clone()).collect();
            let found = fetch_offsets(&clients.group, &partitions)?;
            let mut positions = Vec::new();
            for (found, (_, assigned_at)) in found.into_iter().zip(places) {
                let mut position = start_position(found, OffsetReset::Earliest)?;
                if position.committed.is_none() {
                    position.start = position.start.max(*assigned_at);
                }
                let StartPosition { partition, start, .. } = &position;
                let offset = Offset::Offset(*start as i64);
                clients.fetcher.seek(
                    partition.stream.as_str(),
                    partition.index as i32,
                    offset,
                    REQUEST_TIMEOUT,
                )?;
                positions.push(position);
            }
            Ok(positions)
        }
    }
}

fn fetch_offsets(client: &Client, partitions: &[Partition]) -> KafkaResult<Vec<BrokerOffsets>> {
    let list = client.committed_offsets(list_of(partitions), REQUEST_TIMEOUT)?;
    let mut found = Vec::new();
    for element in list.elements() {
        element.error()?;
        let committed = match element.offset() {
            Offset::Offset(offset) => {
                // The client panics on metadata that is not UTF-8. It counts as metadata of another tool.
                let metadata = catch_unwind(AssertUnwindSafe(|| element.metadata().to_owned()));
                Some((offset.unsigned_abs(), metadata.unwrap_or_else(|_| "not UTF-8".to_owned())))
            }
            _ => None,
        };
        let (topic, number) = (element.topic(), element.partition());
        let (low, high) = client.fetch_watermarks(topic, number, REQUEST_TIMEOUT)?;
        let (low, high) = (low.unsigned_abs(), high.unsigned_abs());
        found.push(BrokerOffsets { partition: partition(topic, number), committed, low, high });
    }
    Ok(found)
}

/// Determines where to start, given the offsets of the brokers.
fn start_position(found: BrokerOffsets, reset: OffsetReset) -> Result<StartPosition, LookupError> {
    let BrokerOffsets { partition, committed, low, high } = found;
    let fallback = match reset {
        OffsetReset::Earliest => Some(low),
        OffsetReset::Latest => Some(high),
        OffsetReset::Error => None,
    };
    let no_reset = |what: String| {
        let remedy = "auto.offset.reset is error; set a position for the group or choose earliest or latest";
        LookupError::Source(SourceError::permanent(format!("{what} and {remedy}")))
    };
    let Some((offset, metadata)) = committed else {
        let start = fallback.ok_or_else(|| no_reset(format!("{partition} has no committed position")))?;
        return Ok(StartPosition { partition, start, committed: None, settled: Vec::new(), end: high });
    };
    let key = CommitKey { topic: partition.stream.as_str(), partition: partition.index, offset };
    let settled = metadata::decode(&metadata, key).unwrap_or_else(|reason| {
        tracing::warn!(%partition, offset, reason, "commit metadata ignored, some messages may be redelivered");
        Vec::new()
    });
    if (low..=high).contains(&offset) {
        let settled = metadata::within(settled, offset, high);
        return Ok(StartPosition { partition, start: offset, committed: Some(offset), settled, end: high });
    }
    let start = fallback
        .ok_or_else(|| no_reset(format!("the committed position {offset} of {partition} was deleted")))?;
    if offset < low {
        let deleted = low - offset;
        tracing::warn!(%partition, offset, deleted, start, "log truncated by retention before it was read");
        let settled = metadata::within(settled, start, high);
        return Ok(StartPosition { partition, start, committed: None, settled, end: high });
    }
    // The topic was recreated or truncated: the settled ranges belong to another log.
    tracing::warn!(%partition, offset, high, start, "committed position beyond the end of the log");
    Ok(StartPosition { partition, start, committed: None, settled: Vec::new(), end: high })
}

/// Commits starts that are not committed yet. A consumer that starts at the end and crashes must not start at a later end.
fn commit_starts(client: &Client, positions: &[StartPosition], store: Option<&str>) -> KafkaResult<()> {
    let mut list = list_of([]);
    for StartPosition { partition, start, .. } in positions.iter().filter(|p| p.committed.is_none()) {
        let key = CommitKey { topic: partition.stream.as_str(), partition: partition.index, offset: *start };
        let metadata = metadata::encode(&[], key, store, metadata::DEFAULT_LIMIT);
        add_offset(&mut list, partition, *start, &metadata);
    }
    if list.count() == 0 { Ok(()) } else { client.commit(&list, CommitMode::Sync) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(committed: Option<(u64, &str)>) -> BrokerOffsets {
        let committed = committed.map(|(offset, metadata)| (offset, metadata.to_owned()));
        BrokerOffsets { partition: Partition::new("orders", 3), committed, low: 10, high: 20 }
    }

    fn metadata(offset: u64, ranges: &[RangeInclusive<u64>]) -> String {
        let key = CommitKey { topic: "orders", partition: 3, offset };
        metadata::encode(ranges, key, None, metadata::DEFAULT_LIMIT)
    }

    fn started(found: BrokerOffsets, reset: OffsetReset) -> (u64, Option<u64>, Vec<RangeInclusive<u64>>) {
        let position = start_position(found, reset).unwrap();
        assert_eq!(position.end, 20);
        (position.start, position.committed, position.settled)
    }

    #[test]
    fn positions_that_were_committed_with_another_store_are_refused() {
        // I2
        let options = |store: &str| KafkaOptions::new("b", "billing", ["orders"]).with_store(store);
        let committed = |metadata: &str| {
            let (partition, metadata) = (Partition::new("orders", 3), metadata.to_owned());
            vec![BrokerOffsets { partition, committed: Some((5, metadata)), low: 0, high: 9 }]
        };
        let check = |options: &KafkaOptions, metadata: &str| {
            StoreCheck::new(options).check(&committed(metadata)).map_err(|error| match error {
                LookupError::Source(error) => (error.is_temporary(), error.to_string()),
                LookupError::Client(error) => panic!("{error}"),
            })
        };
        for accepted in ["", "lz1.9JHXfwEAAemFAw", "lz2.a1.", "lz2.memory.", "another tool"] {
            assert_eq!(check(&options("a1"), accepted), Ok(()), "{accepted}");
        }
        let (is_temporary, error) = check(&options("a1"), "lz2.b2.").unwrap_err();
        assert!(!is_temporary);
        for word in ["billing", "orders/3", "b2", "a1", "replaced-stores"] {
            assert!(error.contains(word), "{error} does not contain {word}");
        }
        assert_eq!(check(&options("a1").replacing_stores(["c3", "b2"]), "lz2.b2."), Ok(()));
        assert!(check(&options(MEMORY_STORE), "lz2.b2.").is_err());
        let unknown = KafkaOptions::new("b", "billing", ["orders"]);
        assert_eq!(check(&unknown, "lz2.b2."), Ok(()), "a program that names no store is not checked");
    }

    #[test]
    fn the_committed_position_has_priority() {
        for reset in [OffsetReset::Earliest, OffsetReset::Latest, OffsetReset::Error] {
            let text = metadata(12, &[14..=15, 18..=30]);
            assert_eq!(started(found(Some((12, &text))), reset), (12, Some(12), vec![14..=15, 18..=19]));
            assert_eq!(started(found(Some((20, ""))), reset), (20, Some(20), vec![]));
        }
    }

    #[test]
    fn without_a_position_the_reset_decides() {
        assert_eq!(started(found(None), OffsetReset::Earliest), (10, None, vec![]));
        assert_eq!(started(found(None), OffsetReset::Latest), (20, None, vec![]));
        let LookupError::Source(error) = start_position(found(None), OffsetReset::Error).unwrap_err() else {
            panic!("no source error")
        };
        assert!(!error.is_temporary() && error.to_string().contains("orders/3 has no committed position"));
    }

    #[test]
    fn damaged_metadata_costs_only_redelivery() {
        // I1
        for text in ["invalid", "not UTF-8", &metadata(11, &[14..=15])] {
            assert_eq!(started(found(Some((12, text))), OffsetReset::Earliest), (12, Some(12), vec![]));
        }
    }

    #[test]
    fn a_deleted_position_falls_back_to_the_reset() {
        let text = metadata(4, &[6..=11, 15..=16]);
        assert_eq!(
            started(found(Some((4, &text))), OffsetReset::Earliest),
            (10, None, vec![10..=11, 15..=16])
        );
        assert!(start_position(found(Some((4, ""))), OffsetReset::Error).is_err());
    }

    #[test]
    fn a_position_beyond_the_end_belongs_to_another_log() {
        let text = metadata(25, &[27..=30]);
        assert_eq!(started(found(Some((25, &text))), OffsetReset::Earliest), (10, None, vec![]));
    }
}
