//! Looks up where to start reading a partition: the committed offset, within what the log still has.
//!
//! Requests to the brokers block, so they run in their own thread. The start is always an offset, never "the end": a consumer
//! that starts at the end and crashes before its first commit would start at a later end.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;
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
use crate::incarnations::{Life, Lives, SeenLogs};
use crate::options::{KafkaOptions, MEMORY_STORE, OffsetReset};
use crate::positions::metadata::{self, CommitKey};
use crate::topology::Topology;

const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// Where reading a partition starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StartPosition {
    /// The partition, in its incarnation.
    pub(crate) partition: Partition,
    /// The id of the topic, if its broker has told it.
    pub(crate) log: Option<Arc<str>>,
    /// The lookup found that the stream began a new incarnation.
    pub(crate) recreated: bool,
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
    log: Option<Arc<str>>,
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
    /// The reset of a topic. Retry topics start at their beginning: this group wrote their records before it first read them.
    fn of(&self, topic: &str) -> OffsetReset {
        let topology = self.topology.as_ref();
        let is_retry_topic = topology.is_some_and(|topology| topology.of_retry_topic(topic).is_some());
        if is_retry_topic { OffsetReset::Earliest } else { self.streams }
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

/// What a lookup is for.
#[derive(Clone, Debug)]
pub(crate) enum LookupPurpose {
    /// The partitions were assigned.
    Assign(Vec<Partition>),
    /// Owned partitions are rewound to the committed offset, or without one to the offset where the assignment started.
    Rewind(Vec<(Partition, u64)>),
    /// A record of an owned partition had this offset, below those that were delivered: the log is another one from there on.
    Truncated(Partition, u64),
}

/// What a lookup goes by.
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
            commit_starts(&clients.group, &positions, reset, store.own.as_deref())?;
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
                // All of a new topic; of a log that was cut, what follows the cut.
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

/// Requests the offsets of partitions. Those that their topics do not have are left out: the group assigned what a topic had before it
/// was recreated.
fn fetch_offsets(client: &Arc<Client>, partitions: &[Partition]) -> KafkaResult<Vec<BrokerOffsets>> {
    let names: BTreeSet<&str> = partitions.iter().map(|partition| partition.stream.as_str()).collect();
    // Before the offsets: what is committed for a topic that is recreated in between has the id of the new one.
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
                // The client panics on metadata that is not UTF-8. It counts as metadata of another tool.
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

/// Determines where to start, given the offsets of the brokers and the life of the stream.
fn start_position(
    found: BrokerOffsets,
    reset: OffsetReset,
    seen: &SeenLogs,
    lives: &mut Lives,
) -> Result<StartPosition, LookupError> {
    let life = lives.of(&found.partition);
    match choose(&found, reset, life, seen.has_registry()) {
        Choice::Start(StartPosition { partition, log, recreated, start, committed, settled, end }) => {
            let partition = partition.in_incarnation(life.number);
            Ok(StartPosition { partition, log, recreated, start, committed, settled, end })
        }
        Choice::BeginAnew(what) => {
            let life = seen.begin_anew(lives, &found.partition, found.log.as_ref(), what)?;
            let BrokerOffsets { partition, log, low, high, .. } = found;
            let partition = partition.in_incarnation(life.number);
            let (committed, settled) = (None, Vec::new());
            Ok(StartPosition { partition, log, recreated: true, start: low, committed, settled, end: high })
        }
        Choice::Refuse(what) => {
            let remedy =
                "auto.offset.reset is error; set a position for the group or choose earliest or latest";
            Err(LookupError::Source(SourceError::permanent(format!("{what} and {remedy}"))))
        }
    }
}

/// The start of a partition.
#[derive(Debug, PartialEq, Eq)]
enum Choice {
    Start(StartPosition),
    /// The log is another one than the one that was read, for this reason.
    BeginAnew(String),
    /// There is no position, and no reset.
    Refuse(String),
}

/// Chooses the start of a partition in this life of its stream. `is_kept` says that incarnations are recorded.
fn choose(found: &BrokerOffsets, reset: OffsetReset, life: Life, is_kept: bool) -> Choice {
    let BrokerOffsets { partition, log, committed, low, high } = found;
    let (low, high) = (*low, *high);
    let start = |start, committed, settled| {
        let (partition, log) = (partition.clone(), log.clone());
        let recreated = life.is_recreated();
        Choice::Start(StartPosition { partition, log, recreated, start, committed, settled, end: high })
    };
    // Nothing of a new log was read before, and nothing of it may be skipped (I1), whenever its incarnation was recorded.
    let or_refuse = |what: String, settled: Vec<RangeInclusive<u64>>, is_new: bool| {
        let from = match reset {
            OffsetReset::Error => return Choice::Refuse(what),
            OffsetReset::Latest if !is_new => high,
            OffsetReset::Earliest | OffsetReset::Latest => low,
        };
        start(from, None, metadata::within(settled, from, high))
    };
    let is_later = life.number > 0;
    let no_position = |is_new| match life.lost_its_position(log.is_some()) && is_kept {
        true => Choice::BeginAnew(format!(
            "the group has no position in {partition}, but the store knows that this consumer read it before"
        )),
        false => or_refuse(format!("{partition} has no committed position"), Vec::new(), is_new),
    };
    let Some((offset, metadata)) = committed else { return no_position(is_later) };
    let offset = *offset;
    match (log, metadata::log_of(metadata)) {
        (Some(log), Some(of)) if of != &**log => {
            tracing::warn!(%partition, offset, "position of a deleted topic ignored");
            return no_position(true);
        }
        (Some(_), None) if life.is_fresh => {
            tracing::warn!(
                %partition, offset,
                "position ignored: another tool committed it before this topic was first read, and it may be one of the deleted \
                 topic; set it again to skip messages"
            );
            return no_position(is_later);
        }
        _ => {}
    }
    let key = CommitKey::of(partition, offset, log.as_deref());
    let settled = metadata::decode(metadata, key).unwrap_or_else(|reason| {
        tracing::warn!(%partition, offset, reason, "commit metadata ignored, some messages may be redelivered");
        Vec::new()
    });
    if (low..=high).contains(&offset) {
        return start(offset, Some(offset), metadata::within(settled, offset, high));
    }
    if offset > high {
        // The topic was recreated or truncated: the settled ranges belong to another log.
        let what =
            format!("the committed position {offset} of {partition} is beyond the end of its log, {high}");
        if is_kept {
            return Choice::BeginAnew(what);
        }
        tracing::warn!(%partition, offset, high, "committed position beyond the end of the log");
        return or_refuse(what, Vec::new(), true);
    }
    let deleted = low - offset;
    tracing::warn!(%partition, offset, deleted, "log truncated by retention before it was read");
    let is_own = log.is_some() && metadata::log_of(metadata) == log.as_deref();
    let what = format!("the committed position {offset} of {partition} was deleted");
    or_refuse(what, settled, is_later && !is_own)
}

/// Commits starts that are not committed yet. A consumer that starts at the end and crashes must not start at a later end, and where
/// topics have no ids, a position that is missing later is one that was deleted.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::incarnations::Finding;

    const LOG: &str = "AAAAAAAAAAAAAAAAAAAAAQ";

    fn found(committed: Option<(u64, &str)>) -> BrokerOffsets {
        let committed = committed.map(|(offset, metadata)| (offset, metadata.to_owned()));
        let (partition, log) = (Partition::new("orders", 3), Some(LOG.into()));
        BrokerOffsets { partition, log, committed, low: 10, high: 20 }
    }

    fn metadata_of(log: Option<&str>, offset: u64, ranges: &[RangeInclusive<u64>]) -> String {
        let key = CommitKey { topic: "orders", partition: 3, offset, log };
        metadata::encode(ranges, key, None, metadata::DEFAULT_LIMIT)
    }

    fn metadata(offset: u64, ranges: &[RangeInclusive<u64>]) -> String {
        metadata_of(Some(LOG), offset, ranges)
    }

    type Started = (u64, Option<u64>, Vec<RangeInclusive<u64>>);

    fn started_in(life: Life, found: &BrokerOffsets, reset: OffsetReset) -> Started {
        match choose(found, reset, life, true) {
            Choice::Start(position) => (position.start, position.committed, position.settled),
            other => panic!("{other:?}"),
        }
    }

    fn recreated() -> Life {
        Life { number: 1, found: Some(Finding::Recreated), was_known: true, ..Life::default() }
    }

    fn started(found: BrokerOffsets, reset: OffsetReset) -> Started {
        started_in(Life::default(), &found, reset)
    }

    #[test]
    fn positions_that_were_committed_with_another_store_are_refused() {
        // I2
        let options = |store: &str| KafkaOptions::new("b", "billing", ["orders"]).with_store(store);
        let committed = |metadata: &str| {
            let (partition, metadata) = (Partition::new("orders", 3), metadata.to_owned());
            vec![BrokerOffsets { partition, log: None, committed: Some((5, metadata)), low: 0, high: 9 }]
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
        let refused = Choice::Refuse("orders/3 has no committed position".to_owned());
        assert_eq!(choose(&found(None), OffsetReset::Error, Life::default(), true), refused);
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
        let choice = choose(&found(Some((4, ""))), OffsetReset::Error, Life::default(), true);
        assert!(matches!(choice, Choice::Refuse(_)), "{choice:?}");
    }

    #[test]
    fn positions_of_a_deleted_topic_are_not_those_of_its_successor() {
        // I1: its offsets are those of other messages, and nothing of the new topic may be skipped.
        let text = metadata_of(Some("BBBBBBBBBBBBBBBBBBBBBA"), 15, &[17..=18]);
        for (life, reset) in [
            (Life::default(), OffsetReset::Earliest),
            (Life::default(), OffsetReset::Latest),
            (recreated(), OffsetReset::Latest),
            (Life { number: 1, is_fresh: true, was_known: true, ..Life::default() }, OffsetReset::Latest),
        ] {
            assert_eq!(started_in(life, &found(Some((15, &text))), reset), (10, None, vec![]));
        }
        // Somebody put the old positions back, and no metadata with them.
        let life = Life { is_fresh: true, ..recreated() };
        assert_eq!(started_in(life, &found(Some((15, ""))), OffsetReset::Earliest), (10, None, vec![]));
        assert_eq!(started_in(life, &found(None), OffsetReset::Latest), (10, None, vec![]));
        // Later, or in the first incarnation, positions of other tools count.
        let life = Life { number: 1, was_known: true, ..Life::default() };
        assert_eq!(started_in(life, &found(Some((15, ""))), OffsetReset::Earliest), (15, Some(15), vec![]));
    }

    #[test]
    fn a_new_incarnation_without_a_position_of_its_own_is_read_from_its_beginning() {
        // I1: a member may look up its partitions long after another one recorded the incarnation.
        let later = Life { number: 1, was_known: true, ..Life::default() };
        let of_the_old = metadata_of(Some("BBBBBBBBBBBBBBBBBBBBBA"), 15, &[]);
        for commit in [None, Some((15, of_the_old.as_str())), Some((4, ""))] {
            assert_eq!(started_in(later, &found(commit), OffsetReset::Latest), (10, None, vec![]));
        }
        // Its own position counts, and where retention deleted it, the reset does.
        let own = metadata(12, &[14..=15]);
        assert_eq!(
            started_in(later, &found(Some((12, &own))), OffsetReset::Latest),
            (12, Some(12), vec![14..=15])
        );
        let own = metadata(4, &[14..=15]);
        assert_eq!(started_in(later, &found(Some((4, &own))), OffsetReset::Latest), (20, None, vec![]));
        let first = Life { was_known: true, ..Life::default() };
        assert_eq!(started_in(first, &found(None), OffsetReset::Latest), (20, None, vec![]));
    }

    #[test]
    fn a_position_is_lost_if_the_partition_was_read_and_no_id_tells_that_its_log_is_the_same() {
        // I1: a source that resets by itself would skip messages, or take them for those of the deleted topic.
        let life = |found, was_known| Life { found, was_known, ..Life::default() };
        for (has_id, life, is_lost) in [
            (false, life(Some(Finding::First), false), false),
            (false, life(Some(Finding::First), true), true),
            (false, life(None, true), true),
            (true, life(Some(Finding::First), false), false),
            (true, life(Some(Finding::First), true), true),
            (true, life(Some(Finding::Identified), true), true),
            (true, recreated(), false),
            (true, life(None, true), false),
        ] {
            let log = has_id.then(|| LOG.into());
            let found = BrokerOffsets { log, ..found(None) };
            for reset in [OffsetReset::Earliest, OffsetReset::Latest, OffsetReset::Error] {
                let choice = choose(&found, reset, life, true);
                assert_eq!(matches!(choice, Choice::BeginAnew(_)), is_lost, "{has_id} {life:?} {choice:?}");
                // Without an engine nothing is known.
                assert!(!matches!(choose(&found, reset, life, false), Choice::BeginAnew(_)));
            }
        }
    }

    #[test]
    fn a_position_beyond_the_end_is_one_of_another_log() {
        // I1
        let text = metadata(25, &[27..=30]);
        for found in [found(Some((25, &text))), BrokerOffsets { log: None, ..found(Some((25, ""))) }] {
            let choice = choose(&found, OffsetReset::Latest, Life::default(), true);
            assert!(matches!(&choice, Choice::BeginAnew(what) if what.contains("25")), "{choice:?}");
            let Choice::Start(position) = choose(&found, OffsetReset::Earliest, Life::default(), false)
            else {
                panic!("a source without an engine has no incarnations")
            };
            assert_eq!((position.start, position.committed), (10, None));
        }
    }

    #[test]
    fn without_topic_ids_a_lost_position_starts_an_incarnation_only_when_asked() {
        // I1
        let lost = BrokerOffsets { log: None, ..found(None) };
        let known = Life { was_known: true, ..Life::default() };
        assert!(matches!(choose(&lost, OffsetReset::Earliest, known, true), Choice::BeginAnew(_)));
        assert_eq!(
            started_in(Life::default(), &lost, OffsetReset::Latest),
            (20, None, vec![]),
            "the first start"
        );
        let partition = &lost.partition;
        for (may_start_fresh, log, is_refused) in
            [(false, None, true), (true, None, false), (false, Some(LOG.into()), false)]
        {
            let mut seen = SeenLogs::new(may_start_fresh);
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            seen.attach(Arc::new(Kept::default()), runtime.handle().clone());
            let mut lives = seen.identify([(&partition.stream, &log)].into_iter()).unwrap();
            match seen.begin_anew(&mut lives, partition, log.as_ref(), "lost".to_owned()) {
                Ok(life) => assert_eq!((life.number, is_refused), (1, false)),
                Err(LookupError::Source(error)) => {
                    assert!(is_refused && !error.is_temporary(), "{error}");
                    assert!(error.to_string().contains("on-lost-position: start-fresh"), "{error}");
                }
                Err(error) => panic!("{error:?}"),
            }
        }
    }

    #[test]
    fn an_incarnation_goes_on_after_a_restart() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let mut seen = SeenLogs::new(false);
        seen.attach(Arc::new(Kept::default()), runtime.handle().clone());
        let (partition, stream) = (Partition::new("orders", 3), "orders".into());
        let identify = |log: &str| {
            let lives = seen.identify([(&stream, &Some(log.into()))].into_iter()).unwrap();
            seen.complete(&lives);
            let life = lives.of(&partition);
            (life.number, life.is_recreated())
        };
        assert_eq!([identify("a"), identify("a")], [(0, false); 2]);
        assert_eq!([identify("b"), identify("b"), identify("c")], [(1, true), (1, false), (2, true)]);
    }

    #[test]
    fn a_topic_that_gets_an_id_goes_on_with_it() {
        // I1: without the id, the next topic of that name would be taken for this one.
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let mut seen = SeenLogs::new(false);
        let kept = Arc::new(Kept::default());
        seen.attach(kept.clone(), runtime.handle().clone());
        let (partition, stream) = (Partition::new("orders", 3), "orders".into());
        let identify = |log: Option<&str>| {
            let lives = seen.identify([(&stream, &log.map(Into::into))].into_iter()).unwrap();
            seen.complete(&lives);
            let life = lives.of(&partition);
            (life.number, life.found)
        };
        assert_eq!([identify(None), identify(None)], [(0, Some(Finding::First)), (0, None)]);
        // The brokers were upgraded, and one of them was not yet when it was asked.
        assert_eq!(identify(Some("a")), (0, Some(Finding::Identified)));
        assert_eq!([identify(None), identify(Some("a"))], [(0, None); 2]);
        let recorded = kept.known.lock().unwrap().clone();
        assert_eq!(recorded.0[&stream].stream.id.as_deref(), Some("a"));
        assert_eq!(identify(Some("b")), (1, Some(Finding::Recreated)));
    }

    #[test]
    fn a_lookup_that_is_repeated_decides_as_the_first_one() {
        // I1: the first one recorded what it found, and failed before the starts were committed.
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let mut seen = SeenLogs::new(false);
        seen.attach(Arc::new(Kept::default()), runtime.handle().clone());
        let (partition, stream) = (Partition::new("orders", 3), "orders".into());
        let identify = |log: Option<&str>| {
            let lives = seen.identify([(&stream, &log.map(Into::into))].into_iter()).unwrap();
            let life = lives.of(&partition);
            (lives, life.found, life.lost_its_position(log.is_some()))
        };
        for _ in 0..2 {
            let (_, found, is_lost) = identify(None);
            assert_eq!((found, is_lost), (Some(Finding::First), false), "it is the first start");
        }
        seen.complete(&identify(None).0);
        assert!(identify(None).2, "a start was committed");
        for _ in 0..2 {
            assert_eq!(identify(Some("a")).1, Some(Finding::Identified));
        }
        for _ in 0..2 {
            assert_eq!(identify(Some("b")).1, Some(Finding::Recreated));
        }
        seen.complete(&identify(Some("b")).0);
        assert_eq!(identify(Some("b")).1, None);
    }

    #[test]
    fn a_partition_with_a_horizon_was_read_before_its_stream_was_recorded() {
        // I1: the store is one of an earlier version, and the topic is another one.
        for log in [None, Some(LOG)] {
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            let mut seen = SeenLogs::new(false);
            let known = Partition::new("orders", 3);
            let horizons = [(known.clone(), 41)].into();
            seen.attach(Arc::new(Kept { horizons, ..Kept::default() }), runtime.handle().clone());
            let log = log.map(Into::into);
            for is_repeated in [false, true] {
                let mut lives = seen.identify([(&known.stream, &log)].into_iter()).unwrap();
                let other = Partition::new("orders", 4);
                seen.look_for_progress(&mut lives, [&known, &other].into_iter()).unwrap();
                let is_lost = |partition| lives.of(partition).lost_its_position(log.is_some());
                assert_eq!([is_lost(&known), is_lost(&other)], [true, false], "{log:?} {is_repeated}");
            }
            let mut lives = seen.identify([(&known.stream, &log)].into_iter()).unwrap();
            let begun = seen.begin_anew(&mut lives, &known, log.as_ref(), "lost".to_owned());
            match log {
                // Only a person knows.
                None => assert!(matches!(begun, Err(LookupError::Source(error)) if !error.is_temporary())),
                // A repetition does not take the new incarnation for the old one.
                Some(_) => {
                    assert_eq!(begun.unwrap().number, 1);
                    let mut lives = seen.identify([(&known.stream, &log)].into_iter()).unwrap();
                    seen.look_for_progress(&mut lives, [&known].into_iter()).unwrap();
                    assert!(!lives.of(&known).lost_its_position(true));
                }
            }
        }
    }

    /// Incarnations in memory.
    #[derive(Default)]
    struct Kept {
        known: std::sync::Mutex<lazaret_core::incarnation::Incarnations>,
        horizons: std::collections::BTreeMap<Partition, u64>,
    }

    #[async_trait::async_trait]
    impl lazaret_core::incarnation::IncarnationRegistry for Kept {
        async fn incarnations(&self) -> lazaret_core::store::Result<lazaret_core::incarnation::Incarnations> {
            Ok(self.known.lock().unwrap().clone())
        }

        async fn begin(
            &self,
            beginning: &lazaret_core::incarnation::Beginning,
        ) -> lazaret_core::store::Result<lazaret_core::incarnation::Incarnations> {
            let mut kept = self.known.lock().unwrap();
            kept.begin(beginning, lazaret_core::Timestamp::now());
            Ok(kept.clone())
        }

        async fn horizons(&self, partitions: &[Partition]) -> lazaret_core::store::Result<Vec<Option<u64>>> {
            Ok(partitions.iter().map(|partition| self.horizons.get(partition).copied()).collect())
        }
    }
}
