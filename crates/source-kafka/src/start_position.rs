//! Chooses where to start reading a partition: the committed offset, within the current log.
//!
//! The start is always an offset, never "the end". A consumer that starts at the end and crashes before
//! its first commit would otherwise start at a later end.

use std::ops::RangeInclusive;
use std::sync::Arc;

use lazaret_core::Partition;
use lazaret_core::source::SourceError;

use crate::incarnations::{Life, Lives, SeenLogs};
use crate::options::OffsetReset;
use crate::positions::metadata::{self, CommitKey};
use crate::topology::Topology;

/// The position at which reading a partition starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StartPosition {
    /// The partition, in its incarnation.
    pub(crate) partition: Partition,
    /// The id of the topic, if its broker has reported it.
    pub(crate) log: Option<Arc<str>>,
    /// Whether the lookup found that the stream began a new incarnation.
    pub(crate) recreated: bool,
    /// The first offset to read.
    pub(crate) start: u64,
    /// The committed offset, which is the first one that is not settled.
    pub(crate) committed: Option<u64>,
    /// The settled ranges beyond it.
    pub(crate) settled: Vec<RangeInclusive<u64>>,
    /// The offset after the last message.
    pub(crate) end: u64,
}

/// The offsets of a partition as reported by the brokers.
#[derive(Clone, Debug)]
pub(crate) struct BrokerOffsets {
    pub(crate) partition: Partition,
    /// The id of the topic, if its broker has reported it.
    pub(crate) log: Option<Arc<str>>,
    /// The committed offset, with its metadata.
    pub(crate) committed: Option<(u64, String)>,
    /// The first offset in the log.
    pub(crate) low: u64,
    /// The offset after the last message.
    pub(crate) high: u64,
}

/// The policy for partitions without a committed offset.
#[derive(Clone, Debug)]
pub(crate) struct ResetPolicy {
    pub(crate) streams: OffsetReset,
    pub(crate) topology: Option<Arc<Topology>>,
}

impl ResetPolicy {
    /// Returns the reset of a topic. Retry topics start at their beginning, because this group wrote
    /// their records before it first read them.
    pub(crate) fn of(&self, topic: &str) -> OffsetReset {
        let topology = self.topology.as_ref();
        let is_retry_topic = topology.is_some_and(|topology| topology.of_retry_topic(topic).is_some());
        if is_retry_topic { OffsetReset::Earliest } else { self.streams }
    }
}

/// Determines where to start, from the brokers' offsets and the life of the stream.
pub(crate) fn start_position(
    found: BrokerOffsets,
    reset: OffsetReset,
    seen: &SeenLogs,
    lives: &mut Lives,
) -> Result<StartPosition, SourceError> {
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
            Err(SourceError::permanent(format!("{what} and {remedy}")))
        }
    }
}

/// The choice of a start.
#[derive(Debug, PartialEq, Eq)]
enum Choice {
    Start(StartPosition),
    /// The log is not the one that was read, for this reason.
    BeginAnew(String),
    /// There is no position, and no reset.
    Refuse(String),
}

/// Chooses the start of a partition in this life of its stream. `is_kept` says whether incarnations are
/// recorded.
fn choose(found: &BrokerOffsets, reset: OffsetReset, life: Life, is_kept: bool) -> Choice {
    let BrokerOffsets { partition, log, committed, low, high } = found;
    let (low, high) = (*low, *high);
    let start = |start, committed, settled| {
        let (partition, log) = (partition.clone(), log.clone());
        let recreated = life.is_recreated();
        Choice::Start(StartPosition { partition, log, recreated, start, committed, settled, end: high })
    };
    // Nothing of a new log was read before, and nothing of it may be skipped (I1), no matter when its
    // incarnation was recorded.
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
        // The topic was recreated or truncated, so the settled ranges belong to a different log.
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
        // I1: its offsets belong to other messages, and nothing of the new topic may be skipped.
        let text = metadata_of(Some("BBBBBBBBBBBBBBBBBBBBBA"), 15, &[17..=18]);
        for (life, reset) in [
            (Life::default(), OffsetReset::Earliest),
            (Life::default(), OffsetReset::Latest),
            (recreated(), OffsetReset::Latest),
            (Life { number: 1, is_fresh: true, was_known: true, ..Life::default() }, OffsetReset::Latest),
        ] {
            assert_eq!(started_in(life, &found(Some((15, &text))), reset), (10, None, vec![]));
        }
        // An operator restored the old positions without their metadata.
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
        // The consumer's own position counts. If retention deleted it, the reset applies.
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
        // I1: a source that resets by itself would skip messages, or mistake them for messages of the
        // deleted topic.
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
                // Without an engine, nothing is known.
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
    fn without_topic_ids_a_missing_position_is_a_lost_one_unless_it_is_the_first_start() {
        // I1
        let lost = BrokerOffsets { log: None, ..found(None) };
        let known = Life { was_known: true, ..Life::default() };
        assert!(matches!(choose(&lost, OffsetReset::Earliest, known, true), Choice::BeginAnew(_)));
        assert_eq!(
            started_in(Life::default(), &lost, OffsetReset::Latest),
            (20, None, vec![]),
            "the first start"
        );
    }
}
