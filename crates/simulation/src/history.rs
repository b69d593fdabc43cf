//! The history of a run: every attempt of every component, and its outcome.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use lazaret_core::recorder::Identity;
use lazaret_core::{Message, MessageId, SequenceId, Timestamp};
use lazaret_memory::MemberId;

use crate::broker::Relayed;
use crate::world::World;

/// The events of a run that the invariants are checked against. Messages are known by their [names](World::name).
#[derive(Default)]
pub(crate) struct History {
    /// Every message by its sequence, in order of the source, and of its incarnations.
    pub(crate) sequences: BTreeMap<SequenceId, Vec<MessageId>>,
    pub(crate) messages: BTreeMap<MessageId, Original>,
    /// The names of messages by number.
    pub(crate) names: BTreeMap<u64, MessageId>,
    /// How often the stream was recreated.
    pub(crate) incarnation: u32,
    /// The letters that the store had when the stream was recreated, by component and message, and the incarnation that began then. The
    /// first one counts.
    pub(crate) kept: BTreeMap<(usize, MessageId), u32>,
    /// The outcomes by component and message.
    pub(crate) records: BTreeMap<(usize, MessageId), Record>,
    pub(crate) running: Vec<Running>,
    pub(crate) next_attempt: u64,
    /// Messages that the duplicate filter has marked as handled, by component and the id of the mark.
    pub(crate) marked: BTreeSet<(usize, MessageId)>,
    /// The copies of messages. They have positions and keys of their own.
    pub(crate) copies: BTreeMap<MessageId, Vec<Message>>,
    /// Messages in the retry topic, and in the dead-letter topic.
    pub(crate) relayed: Vec<Relayed>,
    pub(crate) dead_in_topic: BTreeSet<(usize, MessageId)>,
    /// Deliveries from the retry topic so far: message, component and its attempts then.
    pub(crate) returned: BTreeSet<(MessageId, String, u32)>,
    /// When each process was last assigned each partition.
    pub(crate) assigned: BTreeMap<(u64, u32), Timestamp>,
    /// Since when each process has to give up each partition.
    pub(crate) leaving: BTreeMap<(u64, u32), Timestamp>,
    /// The processes that drain.
    pub(crate) draining: BTreeSet<u64>,
    /// Processes that were stopped, and have not asked their group since they go on.
    pub(crate) woken: BTreeSet<u64>,
    /// Processes that have ended.
    pub(crate) ended: BTreeSet<u64>,
    /// The last checked commit of each partition in this incarnation.
    pub(crate) checked: BTreeMap<u32, u64>,
    pub(crate) violations: Vec<String>,
    pub(crate) trace: Vec<String>,
}

/// A message as it was published.
pub(crate) struct Original {
    pub(crate) message: Message,
    pub(crate) number: u64,
    /// How often the stream had been recreated by then.
    pub(crate) incarnation: u32,
    pub(crate) sequence: SequenceId,
    /// Its place in the sequence.
    pub(crate) place: usize,
    pub(crate) delivered_at: Option<Timestamp>,
    pub(crate) first_delivered_at: Option<Timestamp>,
}

/// The outcome of one message in one component.
#[derive(Default)]
pub(crate) struct Record {
    /// Attempts that were no replays.
    pub(crate) automatic: u32,
    /// Attempts that the engine may not have counted: their process crashed before it could store the count.
    pub(crate) uncounted: u32,
    /// Running processes that attempted it.
    pub(crate) processes: BTreeSet<u64>,
    pub(crate) handled_at: Option<Timestamp>,
    /// The process that handled it, while that runs: it marks the message in the duplicate filter, however often that fails.
    pub(crate) handled_in: Option<u64>,
    /// Acknowledged without an effect: duplicate or skipped by verdict.
    pub(crate) acknowledged: bool,
    /// A replay asked for it to be skipped.
    pub(crate) skipped: bool,
    /// The process that last settled it as a live message.
    pub(crate) settled_by: Option<u64>,
    pub(crate) last_failed_at: Option<Timestamp>,
    pub(crate) evicted: bool,
    /// An operator changed its letter.
    pub(crate) changed: bool,
    pub(crate) released: u32,
    /// Crashes of the process while it ran.
    pub(crate) crashes: u32,
}

/// An attempt in progress.
pub(crate) struct Running {
    pub(crate) attempt: u64,
    pub(crate) component: usize,
    pub(crate) sequence: SequenceId,
    pub(crate) message: MessageId,
    /// By which the flight recorder knows it.
    pub(crate) identity: Identity,
    pub(crate) member: MemberId,
    pub(crate) process: u64,
    pub(crate) partition: u32,
    pub(crate) live: bool,
}

/// An attempt of a handler. Dropped without an end, it was aborted.
pub(crate) struct Attempt {
    pub(crate) world: Arc<World>,
    pub(crate) number: u64,
    pub(crate) component: usize,
    pub(crate) message: MessageId,
    pub(crate) started_at: Timestamp,
    pub(crate) replay: bool,
    pub(crate) process: u64,
    /// The process, if it is an attempt at a live message.
    pub(crate) live_in: Option<u64>,
    pub(crate) ended: bool,
}

impl Attempt {
    /// The number of the attempt, unique in a run.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// Ends the attempt.
    pub(crate) fn end(mut self, handled: bool, acknowledged: bool) {
        self.ended = true;
        let now = self.world.now();
        let mut history = self.world.history();
        let runs = !history.ended.contains(&self.process);
        let drains = history.draining.contains(&self.process);
        let record = history.records.entry((self.component, self.message.clone())).or_default();
        if handled || acknowledged {
            // A redelivery is allowed as long as the position is not committed.
            record.uncounted = record.uncounted.max(record.automatic);
            record.settled_by = self.live_in;
        }
        if handled {
            record.handled_at = Some(now);
            record.handled_in = runs.then_some(self.process);
        } else if !self.replay {
            record.last_failed_at = Some(now);
            // The drain may end before the outcome is stored. A lease that expires then does not use up the last attempt.
            record.uncounted += u32::from(drains);
        }
        record.acknowledged |= acknowledged;
        drop(history);
        self.world.trace(|| {
            let how = if handled { "handled" } else { "failed" };
            format!("component {} {how} {}", self.component, self.message)
        });
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        let now = self.world.now();
        let mine = |running: &&Running| running.attempt == self.number;
        let identity = self.world.history().running.iter().find(mine).map(|running| running.identity);
        if let Some(identity) = identity {
            self.world.isolation.ended(self.process, identity);
        }
        let mut history = self.world.history();
        history.running.retain(|running| running.attempt != self.number);
        if self.ended {
            return;
        }
        // Aborted by its time limit, which counts, or because its process crashed or lost the partition.
        let ran = Duration::try_from(now.duration_since(self.started_at)).unwrap_or_default();
        let timed_out = self.world.plan.options.attempt_timeout.is_some_and(|limit| ran >= limit);
        let record = history.records.entry((self.component, self.message.clone())).or_default();
        if self.replay {
            return;
        }
        record.last_failed_at = Some(now);
        if !timed_out {
            record.uncounted += 1;
        }
        drop(history);
        self.world.trace(|| {
            let how = if timed_out { "ran out of time with" } else { "was stopped with" };
            format!("component {} {how} {}", self.component, self.message)
        });
    }
}
