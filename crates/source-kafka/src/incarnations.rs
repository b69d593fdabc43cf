//! The incarnations of topics: which log is read, and whether it is the one that was read before.
//!
//! The broker gives each topic an id when it is created. The store of the consumer keeps the id that was seen last, so a topic that was
//! deleted and created again is found at the next lookup of positions, and while it is read. A log without an id, or one that lost its
//! end, is found by positions that it cannot have.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
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
}

impl SeenLogs {
    pub(crate) fn new(may_start_fresh: bool) -> Self {
        Self { registry: None, may_start_fresh }
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
        for (stream, log) in logs {
            let after = match lives.known.0.get(stream) {
                None => None,
                Some(known) => match (&known.stream.id, log) {
                    (Some(before), Some(now)) if before != now => Some(known.stream.number),
                    _ => {
                        lives.known_before.insert(stream.clone());
                        continue;
                    }
                },
            };
            let beginning = Beginning { stream: stream.clone(), partition: None, id: log.clone(), after };
            lives.known = runtime.block_on(registry.begin(&beginning)).map_err(SourceError::from)?;
            let current = lives.known.0.get(stream).and_then(|known| known.stream.id.as_ref());
            if current != log.as_ref() {
                let context = format!("the topic {stream} was recreated while its id was looked up");
                return Err(LookupError::Source(SourceError::temporary(context)));
            }
            if after.is_some() {
                lives.recreated.insert(stream.clone());
            }
        }
        Ok(lives)
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
    /// The streams whose topic is another one than before this lookup.
    recreated: BTreeSet<StreamName>,
    /// The streams that an earlier lookup recorded.
    known_before: BTreeSet<StreamName>,
}

/// The life of the log of one partition.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Life {
    /// The number of its incarnation.
    pub(crate) number: u32,
    /// This lookup found it.
    pub(crate) recreated: bool,
    /// It was first seen a moment ago, and is not the first one of its stream.
    pub(crate) is_fresh: bool,
    /// An earlier lookup recorded its stream.
    pub(crate) was_known: bool,
}

impl Lives {
    pub(crate) fn of(&self, partition: &Partition) -> Life {
        let recreated = self.recreated.contains(&partition.stream);
        let was_known = self.known_before.contains(&partition.stream);
        let Some(current) = self.known.current(partition) else { return Life::default() };
        let age = SystemClock.now().duration_since(current.since).unsigned_abs();
        let is_fresh = current.number > 0 && age < FRESH;
        Life { number: current.number, recreated, is_fresh, was_known }
    }
}
