//! Looks up where to start reading partitions. The requests to the brokers block, and run in their own
//! thread.
//!
//! `start_position` chooses the start from the responses.

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use lazaret_core::Partition;
use lazaret_core::source::SourceError;
use rdkafka::Offset;
use rdkafka::consumer::{CommitMode, Consumer};
use rdkafka::error::{KafkaError, KafkaResult, RDKafkaErrorCode};
use tokio::sync::oneshot;

use crate::client::assignment::{add_offset, list_of, partition};
use crate::client::callbacks::{Callbacks, Client, Clients};
use crate::client::topic_ids::describe_topics;
use crate::incarnations::SeenLogs;
use crate::options::OffsetReset;
use crate::positions::metadata::{self, CommitKey};
use crate::start_position::{BrokerOffsets, ResetPolicy, StartPosition, start_position};
use crate::store_check::StoreCheck;

const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// The error of a lookup.
#[derive(Debug)]
pub(crate) enum LookupError {
    Client(KafkaError),
    Source(SourceError),
}

impl From<SourceError> for LookupError {
    fn from(error: SourceError) -> Self {
        Self::Source(error)
    }
}

impl From<KafkaError> for LookupError {
    fn from(error: KafkaError) -> Self {
        Self::Client(error)
    }
}

/// The purpose of a lookup.
#[derive(Clone, Debug)]
pub(crate) enum LookupPurpose {
    /// Start partitions that were assigned.
    Assign(Vec<Partition>),
    /// Rewind owned partitions to the committed offset, or without one to the offset where the
    /// assignment started.
    Rewind(Vec<(Partition, u64)>),
    /// Continue after a truncation. A record of an owned partition had this offset, which is below the
    /// delivered ones, so the log is a different one from there on.
    Truncated(Partition, u64),
}

/// The rules of a lookup.
#[derive(Clone, Debug)]
pub(crate) struct LookupRules {
    pub(crate) reset: ResetPolicy,
    pub(crate) store: StoreCheck,
    pub(crate) seen: SeenLogs,
}

/// A lookup in progress.
pub(crate) type PendingLookup = oneshot::Receiver<Result<Vec<StartPosition>, LookupError>>;

/// Starts a lookup. The callbacks wake their owner when it is done.
pub(crate) fn start(
    clients: Clients,
    callbacks: Callbacks,
    purpose: LookupPurpose,
    rules: LookupRules,
) -> PendingLookup {
    let (sender, pending) = oneshot::channel();
    let request = move || {
        let positions = look_up(&clients, &purpose, &rules);
        // Dropped first, because the receiver may hold the last reference, and dropping a client blocks.
        drop(clients);
        // The receiver may have been dropped.
        let _ = sender.send(positions);
        callbacks.wake();
    };
    // Without a thread, the sender is dropped, and the receiver detects that.
    if let Err(error) = thread::Builder::new().name("lazaret-kafka-lookup".to_owned()).spawn(request) {
        tracing::warn!(%error, "lookup thread not started");
    }
    pending
}

fn look_up(
    clients: &Clients,
    purpose: &LookupPurpose,
    rules: &LookupRules,
) -> Result<Vec<StartPosition>, LookupError> {
    let LookupRules { reset, store, seen } = rules;
    match purpose {
        LookupPurpose::Assign(partitions) => {
            let found = fetch_offsets(&clients.group, partitions)?;
            store.check(&found)?;
            let mut lives = seen.identify(found.iter().map(|found| (&found.partition.stream, &found.log)))?;
            seen.look_for_progress(&mut lives, found.iter().map(|found| &found.partition))?;
            let mut positions = Vec::with_capacity(found.len());
            for found in found {
                let reset = reset.of(found.partition.stream.as_str());
                positions.push(start_position(found, reset, seen, &mut lives)?);
            }
            commit_starts(&clients.group, &positions, reset, store.own())?;
            seen.complete(&lives);
            Ok(positions)
        }
        LookupPurpose::Rewind(places) => {
            let partitions: Vec<_> = places.iter().map(|(partition, _)| partition.clone()).collect();
            let found = fetch_offsets(&clients.group, &partitions)?;
            let mut lives = seen.identify(found.iter().map(|found| (&found.partition.stream, &found.log)))?;
            let mut positions = Vec::new();
            for found in found {
                let place = places.iter().find(|(before, _)| before.has_place_of(&found.partition));
                let Some((before, assigned_at)) = place else { continue };
                let mut position = start_position(found, OffsetReset::Earliest, seen, &mut lives)?;
                if position.committed.is_none() && position.partition == *before {
                    position.start = position.start.max(*assigned_at);
                }
                positions.push(sought(clients, position)?);
            }
            seen.complete(&lives);
            Ok(positions)
        }
        LookupPurpose::Truncated(partition, offset) => {
            let found = fetch_offsets(&clients.group, std::slice::from_ref(partition))?;
            let mut lives = seen.identify(found.iter().map(|found| (&found.partition.stream, &found.log)))?;
            let mut positions = Vec::new();
            for BrokerOffsets { partition: plain, log, low, high, .. } in found {
                let mut life = lives.of(&plain);
                if life.number == partition.incarnation {
                    let what = format!(
                        "a record of {partition} has the offset {offset}, which was delivered before"
                    );
                    life = seen.begin_anew(&mut lives, &plain, log.as_ref(), what)?;
                }
                let partition = plain.in_incarnation(life.number);
                // A recreated topic is read from its beginning, a truncated log from the cut.
                let start = if life.is_recreated() { low } else { low.max(*offset) };
                let (committed, settled) = (None, Vec::new());
                let recreated = true;
                let position =
                    StartPosition { partition, log, recreated, start, committed, settled, end: high };
                positions.push(sought(clients, position)?);
            }
            seen.complete(&lives);
            Ok(positions)
        }
    }
}

/// Repositions the fetching client.
fn sought(clients: &Clients, position: StartPosition) -> KafkaResult<StartPosition> {
    let StartPosition { partition, start, .. } = &position;
    let (topic, number) = (partition.stream.as_str(), partition.index as i32);
    clients.fetcher.seek(topic, number, Offset::Offset(*start as i64), REQUEST_TIMEOUT)?;
    Ok(position)
}

/// Requests the offsets of partitions. Omits partitions that their topics do not have: the group may
/// have assigned the partitions from before a topic was recreated.
fn fetch_offsets(client: &Arc<Client>, partitions: &[Partition]) -> KafkaResult<Vec<BrokerOffsets>> {
    let names: BTreeSet<&str> = partitions.iter().map(|partition| partition.stream.as_str()).collect();
    // Requested before the offsets: if a topic is recreated in between, its commits carry the new id.
    let topics = describe_topics(client, names.iter().copied(), REQUEST_TIMEOUT)?;
    if !names.into_iter().all(|name| topics.contains_key(name)) {
        return Err(KafkaError::MetadataFetch(RDKafkaErrorCode::UnknownTopicOrPartition));
    }
    let exists = |partition: &&Partition| {
        topics.get(partition.stream.as_str()).is_some_and(|topic| topic.has(partition.index))
    };
    let list = list_of(partitions.iter().filter(exists));
    let mut found = Vec::new();
    if list.count() == 0 {
        return Ok(found);
    }
    let list = client.committed_offsets(list, REQUEST_TIMEOUT)?;
    for element in list.elements() {
        element.error()?;
        let committed = match element.offset() {
            Offset::Offset(offset) => {
                // The client panics on metadata that is not UTF-8. Such metadata counts as another tool's.
                let metadata = catch_unwind(AssertUnwindSafe(|| element.metadata().to_owned()));
                Some((offset.unsigned_abs(), metadata.unwrap_or_else(|_| "not UTF-8".to_owned())))
            }
            _ => None,
        };
        let (topic, number) = (element.topic(), element.partition());
        let (low, high) = client.fetch_watermarks(topic, number, REQUEST_TIMEOUT)?;
        let (low, high) = (low.unsigned_abs(), high.unsigned_abs());
        let log = topics.get(topic).and_then(|topic| topic.id.clone());
        found.push(BrokerOffsets { partition: partition(topic, number), log, committed, low, high });
    }
    Ok(found)
}

/// Commits starts that are not committed yet. A consumer that starts at the end and crashes must not
/// start at a later end. Where topics have no ids, this also shows that a position missing later was
/// deleted.
fn commit_starts(
    client: &Client,
    positions: &[StartPosition],
    reset: &ResetPolicy,
    store: Option<&str>,
) -> KafkaResult<()> {
    let mut list = list_of([]);
    let is_wanted = |position: &&StartPosition| {
        position.committed.is_none()
            && (position.log.is_none() || reset.streams == OffsetReset::Latest || position.recreated)
    };
    for StartPosition { partition, log, start, .. } in positions.iter().filter(is_wanted) {
        let key = CommitKey::of(partition, *start, log.as_deref());
        let metadata = metadata::encode(&[], key, store, metadata::DEFAULT_LIMIT);
        add_offset(&mut list, partition, *start, &metadata);
    }
    if list.count() == 0 { Ok(()) } else { client.commit(&list, CommitMode::Sync) }
}
