//! The incarnations of topics: determines which log is read, and whether it is the one that was read before.
//!
//! The broker assigns each topic an id when it is created. The consumer's store keeps the last id seen.
//! A topic that was deleted and recreated is therefore detected at the next lookup of positions, and
//! while it is read. A log without an id, or a log that lost its end, is detected by positions that it
//! cannot have.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lazaret_core::incarnation::{Beginning, IncarnationRegistry, Incarnations};
use lazaret_core::source::SourceError;
use lazaret_core::{Clock, Partition, StreamName, SystemClock};
use tokio::runtime::Handle;

/// How long positions of other tools are ignored after an incarnation was first seen, because they may
/// belong to the deleted topic. Another member may have just recorded the incarnation.
const FRESH: Duration = Duration::from_secs(60);

/// The logs that the consumer has seen, and how to treat other logs.
#[derive(Clone, Default)]
pub(crate) struct SeenLogs {
    /// The registry that records them. `None` when the source runs without an engine.
    registry: Option<(Arc<dyn IncarnationRegistry>, Handle)>,
    /// Whether a log without an id begins a new incarnation when its positions are lost.
    may_start_fresh: bool,
    /// Findings of lookups whose starts may not be committed yet. A repeated lookup must decide as the
    /// first one did.
    pending: Arc<Mutex<BTreeMap<StreamName, Finding>>>,
}

/// The finding of a lookup about a topic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Finding {
    /// The topic is seen for the first time.
    First,
    /// The topic now has an id. It is unknown whether it is the topic that was read without an id.
    Identified,
    /// The topic is a different one than before.
    Recreated,
}

impl SeenLogs {
    pub(crate) fn new(may_start_fresh: bool) -> Self {
        Self { registry: None, may_start_fresh, pending: Arc::default() }
    }

    /// Sets the registry. It is called in this runtime, which has the drivers of its store.
    pub(crate) fn attach(&mut self, registry: Arc<dyn IncarnationRegistry>, runtime: Handle) {
        self.registry = Some((registry, runtime));
    }

    pub(crate) fn has_registry(&self) -> bool {
        self.registry.is_some()
    }

    /// Records the topics with these ids, and returns the lives of their streams. Blocks.
    pub(crate) fn identify<'a>(
        &self,
        logs: impl Iterator<Item = (&'a StreamName, &'a Option<Arc<str>>)>,
    ) -> Result<Lives, SourceError> {
        let mut lives = Lives::default();
        let Some((registry, runtime)) = &self.registry else { return Ok(lives) };
        lives.known = runtime.block_on(registry.incarnations()).map_err(SourceError::from)?;
        let logs: BTreeSet<_> = logs.collect();
        for &(stream, log) in &logs {
            let (after, finding) = match lives.known.0.get(stream) {
                None => (None, Finding::First),
                Some(known) => match (&known.stream.id, log) {
                    (Some(before), Some(now)) if before != now => {
                        (Some(known.stream.number), Finding::Recreated)
                    }
                    (None, Some(_)) => (None, Finding::Identified),
                    _ => continue,
                },
            };
            let beginning = Beginning { stream: stream.clone(), partition: None, id: log.clone(), after };
            lives.known = runtime.block_on(registry.begin(&beginning)).map_err(SourceError::from)?;
            let current = lives.known.0.get(stream).and_then(|known| known.stream.id.as_ref());
            if current != log.as_ref() {
                let context = format!("the topic {stream} was recreated while its id was looked up");
                return Err(SourceError::temporary(context));
            }
            // A repeated lookup keeps the first finding: partitions not read before it have not been
            // read since.
            let mut pending = self.pending();
            if finding == Finding::Recreated || !pending.contains_key(stream) {
                pending.insert(stream.clone(), finding);
            }
        }
        let pending = self.pending();
        let found = |(stream, _): (&'a StreamName, _)| Some((stream.clone(), *pending.get(stream)?));
        lives.found = logs.into_iter().filter_map(found).collect();
        Ok(lives)
    }

    /// Records that the starts of these lives are committed, or need not be.
    pub(crate) fn complete(&self, lives: &Lives) {
        self.pending().retain(|stream, _| !lives.found.contains_key(stream));
    }

    fn pending(&self) -> MutexGuard<'_, BTreeMap<StreamName, Finding>> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks the store which of these partitions were read before their streams were recorded. Blocks.
    pub(crate) fn look_for_progress<'a>(
        &self,
        lives: &mut Lives,
        partitions: impl Iterator<Item = &'a Partition>,
    ) -> Result<(), SourceError> {
        let Some((registry, runtime)) = &self.registry else { return Ok(()) };
        let is_first = |partition: &&Partition| lives.found.get(&partition.stream) == Some(&Finding::First);
        let asked: Vec<Partition> =
            partitions.filter(is_first).map(|partition| lives.in_incarnation(partition)).collect();
        if asked.is_empty() {
            return Ok(());
        }
        let horizons = runtime.block_on(registry.horizons(&asked)).map_err(SourceError::from)?;
        let read = asked.into_iter().zip(horizons).filter(|(_, horizon)| horizon.is_some());
        lives.read_before = read.map(|(partition, _)| partition).collect();
        Ok(())
    }

    /// Begins an incarnation of one partition whose log is a different one. `what` is the reason. A
    /// topic without an id may have been recreated, and only a person knows whether all of its messages
    /// should be handled.
    pub(crate) fn begin_anew(
        &self,
        lives: &mut Lives,
        partition: &Partition,
        log: Option<&Arc<str>>,
        what: String,
    ) -> Result<Life, SourceError> {
        if log.is_none() && self.has_registry() && !self.may_start_fresh {
            return Err(SourceError::permanent(format!(
                "{what}: the topic was recreated or its log was truncated, and its broker gives topics no ids; to handle all that the \
                 log has now as new messages, set `on-lost-position: start-fresh`"
            )));
        }
        tracing::warn!(%partition, reason = what, "log is another one, reading it from its beginning");
        let Some((registry, runtime)) = &self.registry else { return Ok(lives.of(partition)) };
        let after = lives.known.current(partition).map(|current| current.number);
        let (stream, index) = (partition.stream.clone(), Some(partition.index));
        let beginning = Beginning { stream, partition: index, id: log.cloned(), after };
        lives.known = runtime.block_on(registry.begin(&beginning)).map_err(SourceError::from)?;
        Ok(lives.of(partition))
    }
}

impl fmt::Debug for SeenLogs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { may_start_fresh, .. } = self;
        f.debug_struct("SeenLogs").field("may_start_fresh", may_start_fresh).finish_non_exhaustive()
    }
}

/// The lives of the streams in one lookup.
#[derive(Debug, Default)]
pub(crate) struct Lives {
    known: Incarnations,
    /// The findings that this lookup, or the lookup that it repeats, recorded.
    found: BTreeMap<StreamName, Finding>,
    /// The partitions that have a horizon although their stream is seen for the first time.
    read_before: BTreeSet<Partition>,
}

/// The life of the log of one partition.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Life {
    /// The number of its incarnation.
    pub(crate) number: u32,
    /// The finding of this lookup about the stream. `None` if an earlier lookup had recorded the same.
    pub(crate) found: Option<Finding>,
    /// Whether the incarnation was first seen a moment ago, and is not the first of its stream.
    pub(crate) is_fresh: bool,
    /// Whether the store knew the log: an earlier lookup recorded its stream, or messages from it were
    /// handed off.
    pub(crate) was_known: bool,
}

impl Life {
    /// Returns `true` if this lookup found that the topic was recreated.
    pub(crate) fn is_recreated(self) -> bool {
        self.found == Some(Finding::Recreated)
    }

    /// Returns `true` if a missing position was lost: the partition was read before, and nothing shows
    /// that its log is still the same. `has_id` says whether the topic has an id.
    pub(crate) fn lost_its_position(self, has_id: bool) -> bool {
        let is_identified = has_id && !matches!(self.found, Some(Finding::First | Finding::Identified));
        self.was_known && !is_identified
    }
}

impl Lives {
    /// Returns the partition in its current incarnation.
    fn in_incarnation(&self, partition: &Partition) -> Partition {
        partition.in_incarnation(self.known.current(partition).map_or(0, |current| current.number))
    }

    pub(crate) fn of(&self, partition: &Partition) -> Life {
        let Some(current) = self.known.current(partition) else { return Life::default() };
        let age = SystemClock.now().duration_since(current.since).unsigned_abs();
        let is_fresh = current.number > 0 && age < FRESH;
        let found = self.found.get(&partition.stream).copied();
        let is_read = || self.read_before.contains(&self.in_incarnation(partition));
        let was_known = found != Some(Finding::First) || is_read();
        Life { number: current.number, found, is_fresh, was_known }
    }
}

#[cfg(test)]
mod tests {
    use async_trait::async_trait;
    use lazaret_core::Timestamp;
    use lazaret_core::store::Result as StoreResult;

    use super::*;

    const LOG: &str = "AAAAAAAAAAAAAAAAAAAAAQ";

    #[test]
    fn without_topic_ids_an_incarnation_starts_only_when_asked() {
        // I1
        let partition = &Partition::new("orders", 3);
        for (may_start_fresh, log, is_refused) in
            [(false, None, true), (true, None, false), (false, Some(LOG.into()), false)]
        {
            let mut seen = SeenLogs::new(may_start_fresh);
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            seen.attach(Arc::new(Kept::default()), runtime.handle().clone());
            let mut lives = seen.identify([(&partition.stream, &log)].into_iter()).unwrap();
            match seen.begin_anew(&mut lives, partition, log.as_ref(), "lost".to_owned()) {
                Ok(life) => assert_eq!((life.number, is_refused), (1, false)),
                Err(error) => {
                    assert!(is_refused && !error.is_temporary(), "{error}");
                    assert!(error.to_string().contains("on-lost-position: start-fresh"), "{error}");
                }
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
        // I1: without the id, the next topic with that name would be mistaken for this one.
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
        // The brokers are being upgraded. One of them was not upgraded yet when it was asked.
        assert_eq!(identify(Some("a")), (0, Some(Finding::Identified)));
        assert_eq!([identify(None), identify(Some("a"))], [(0, None); 2]);
        let recorded = kept.known.lock().unwrap().clone();
        assert_eq!(recorded.0[&stream].stream.id.as_deref(), Some("a"));
        assert_eq!(identify(Some("b")), (1, Some(Finding::Recreated)));
    }

    #[test]
    fn a_lookup_that_is_repeated_decides_as_the_first_one() {
        // I1: the first lookup recorded its finding, and failed before the starts were committed.
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
        // I1: the store was written by an earlier version, and the topic is a different one.
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
                // Only a person can decide this.
                None => assert!(matches!(begun, Err(error) if !error.is_temporary())),
                // A repetition does not mistake the new incarnation for the old one.
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
        known: Mutex<Incarnations>,
        horizons: BTreeMap<Partition, u64>,
    }

    #[async_trait]
    impl IncarnationRegistry for Kept {
        async fn incarnations(&self) -> StoreResult<Incarnations> {
            Ok(self.known.lock().unwrap().clone())
        }

        async fn begin(&self, beginning: &Beginning) -> StoreResult<Incarnations> {
            let mut kept = self.known.lock().unwrap();
            kept.begin(beginning, Timestamp::now());
            Ok(kept.clone())
        }

        async fn horizons(&self, partitions: &[Partition]) -> StoreResult<Vec<Option<u64>>> {
            Ok(partitions.iter().map(|partition| self.horizons.get(partition).copied()).collect())
        }
    }
}
