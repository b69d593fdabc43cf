//! The incarnations of topics: which log is read, and whether it is the one that was read before.
//!
//! The broker gives each topic an id when it is created. The store of the consumer keeps the id that was seen last, so a topic that was
//! deleted and created again is found at the next lookup of positions, and while it is read. A log without an id, or one that lost its
//! end, is found by positions that it cannot have.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lazaret_core::incarnation::{Beginning, IncarnationRegistry, Incarnations};
use lazaret_core::source::SourceError;
use lazaret_core::{Clock, Partition, StreamName, SystemClock};
use tokio::runtime::Handle;

use crate::lookup::LookupError;

/// How long positions of other tools are ignored after an incarnation was first seen: they may be those of the topic that was deleted.
/// Another member may have recorded the incarnation a moment ago.
const FRESH: Duration = Duration::from_secs(60);

/// The logs that the consumer has seen, and what to do about others.
#[derive(Clone, Default)]
pub(crate) struct SeenLogs {
    /// Where they are recorded; `None` when the source runs without an engine.
    registry: Option<(Arc<dyn IncarnationRegistry>, Handle)>,
    /// A log without an id whose positions are lost begins a new incarnation.
    may_start_fresh: bool,
    /// What lookups recorded whose starts may not be committed yet: one that is repeated must decide as the first one.
    pending: Arc<Mutex<BTreeMap<StreamName, Finding>>>,
}

/// What a lookup recorded about a topic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Finding {
    /// The topic is seen for the first time.
    First,
    /// The topic has an id now. Nothing tells whether it is the one that was read without an id.
    Identified,
    /// The topic is another one than before.
    Recreated,
}

impl SeenLogs {
    pub(crate) fn new(may_start_fresh: bool) -> Self {
        Self { registry: None, may_start_fresh, pending: Arc::default() }
    }

    /// Sets where they are recorded. The registry is asked in this runtime, which has the drivers of its store.
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
    ) -> Result<Lives, LookupError> {
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
                return Err(LookupError::Source(SourceError::temporary(context)));
            }
            // What it had not read before, it has not read since.
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

    /// The starts of these lives are committed, or need not be.
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
    ) -> Result<(), LookupError> {
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

    /// Begins an incarnation of one partition, whose log is another one for this reason. Without an id of the topic it may have been
    /// recreated, and only a person knows whether the messages that it has are all to be handled.
    pub(crate) fn begin_anew(
        &self,
        lives: &mut Lives,
        partition: &Partition,
        log: Option<&Arc<str>>,
        what: String,
    ) -> Result<Life, LookupError> {
        if log.is_none() && self.has_registry() && !self.may_start_fresh {
            return Err(LookupError::Source(SourceError::permanent(format!(
                "{what}: the topic was recreated or its log was truncated, and its broker gives topics no ids; to handle all that the \
                 log has now as new messages, set `on-lost-position: start-fresh`"
            ))));
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

/// The lives of the streams of one lookup.
#[derive(Debug, Default)]
pub(crate) struct Lives {
    known: Incarnations,
    /// What this lookup, or one that it repeats, recorded.
    found: BTreeMap<StreamName, Finding>,
    /// The partitions that have a horizon, although their stream is seen for the first time.
    read_before: BTreeSet<Partition>,
}

/// The life of the log of one partition.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Life {
    /// The number of its incarnation.
    pub(crate) number: u32,
    /// What this lookup recorded about its stream; `None` if an earlier one had recorded the same.
    pub(crate) found: Option<Finding>,
    /// It was first seen a moment ago, and is not the first one of its stream.
    pub(crate) is_fresh: bool,
    /// The store knows of it: an earlier lookup recorded its stream, or messages of it were handed off.
    pub(crate) was_known: bool,
}

impl Life {
    /// Returns whether this lookup found that the topic was recreated.
    pub(crate) fn is_recreated(self) -> bool {
        self.found == Some(Finding::Recreated)
    }

    /// Returns whether a position that is missing was lost: the partition was read before, and nothing tells that its log is still the
    /// same. `has_id` says that the topic has an id.
    pub(crate) fn lost_its_position(self, has_id: bool) -> bool {
        let is_identified = has_id && !matches!(self.found, Some(Finding::First | Finding::Identified));
        self.was_known && !is_identified
    }
}

impl Lives {
    /// The partition in its current incarnation.
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
