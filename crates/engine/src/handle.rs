//! The handle of a consumer: its states, pauses and replays. It also works while the consumer runs.

use std::sync::Arc;
use std::time::Duration;

use lazaret_core::policy::{BreakerState, OnDeadPolicy};
use lazaret_core::store::{Act, Actor, Pause, PauseScope, Result, StoreError};
use lazaret_core::{ConsumerName, Letter, LetterId, QueueName, SequenceId, Timestamp};

use crate::admission::{self, AttemptOf};
use crate::component::Component;
use crate::flow::Shards;
use crate::gate::OutageCause;
use crate::guards::{BreakerCause, PauseCause};
use crate::panics::guarded;
use crate::replay_all::ReplayAll;
use crate::sequence_sync;
use crate::store_refresh;
use crate::stored::{Purpose, Run, RunEnd};
use crate::telemetry::Stats;
use crate::time::{Moment, until};

/// The page size for reading heads in a replay.
const PAGE: usize = 100;

/// Controls a consumer. It is cheap to clone and works before, during and after the run.
#[derive(Clone)]
pub struct Handle {
    /// The first component, for everything that all components share.
    pub(crate) first: Arc<Component>,
    pub(crate) components: Vec<Arc<Component>>,
    pub(crate) shards: Shards,
}

/// The state of a fuse.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FuseState {
    /// The fuse is intact.
    Intact,
    /// The fuse has blown and paused the consumer, which stays paused until it is resumed.
    Blown {
        /// The explanation.
        why: String,
    },
}

/// The result of a replay of all sequences.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReplayReport {
    /// The number of sequences that were handled to their end.
    pub closed: u64,
    /// The number of sequences in which a letter failed again. The letters behind it wait.
    pub held: u64,
    /// The number of sequences that others leased, or whose replay was interrupted.
    pub skipped: u64,
}

impl Handle {
    /// Returns the consumer's name.
    pub fn name(&self) -> &ConsumerName {
        &self.first.identity.consumer
    }

    /// Returns the queue that holds the letters of the consumer. If the consumer has several components,
    /// this is the queue of the first one.
    pub fn queue(&self) -> &QueueName {
        // `build` rejects a consumer without components.
        &self.components[0].queue
    }

    /// Returns the queues of the consumer, one per component.
    pub fn queues(&self) -> impl Iterator<Item = &QueueName> {
        self.components.iter().map(|component| &component.queue)
    }

    /// Returns the counters of the consumer so far.
    pub fn stats(&self) -> Stats {
        self.first.telemetry.counters.read()
    }

    /// Returns the state of the breaker, or `None` if the consumer has no breaker.
    pub fn breaker(&self) -> Option<BreakerState> {
        self.first.guards.breaker()
    }

    /// Returns the time until the handler is next called as a probe, or `None` unless the breaker is
    /// open.
    pub fn breaker_probe_in(&self) -> Option<Duration> {
        self.first.guards.breaker_probe_in()
    }

    /// Returns the failure that opened the breaker, or `None` while the breaker is closed.
    pub fn breaker_cause(&self) -> Option<BreakerCause> {
        self.first.guards.breaker_cause()
    }

    /// Returns the state of the fuse, or `None` if the consumer has no fuse. A blown fuse stays blown
    /// across restarts.
    pub fn fuse(&self) -> Option<FuseState> {
        if !self.first.guards.has_fuse() {
            return None;
        }
        let blown = |pause: Pause| match PauseCause::of(&pause) {
            PauseCause::Fuse => Some(FuseState::Blown { why: pause.by.why }),
            PauseCause::Requested => None,
        };
        Some(self.pauses().into_iter().find_map(blown).unwrap_or(FuseState::Intact))
    }

    /// Returns the policy for later messages of a sequence with a dead letter, or `None` if dead letters
    /// are disabled.
    pub fn on_dead(&self) -> Option<&OnDeadPolicy> {
        self.first
            .options
            .dead_letter
            .as_ref()
            .filter(|letters| !letters.discard)
            .map(|letters| &letters.on_dead)
    }

    /// Returns the team that owns the letters of the consumer, if one is set.
    pub fn owner(&self) -> Option<&str> {
        self.first.options.dead_letter.as_ref().and_then(|letters| letters.owner.as_deref())
    }

    /// Returns the number of messages that were read and are not settled. Each is counted once per
    /// component.
    pub fn in_flight(&self) -> u64 {
        self.first.telemetry.gauges.in_flight()
    }

    /// Returns the number of messages in the source that are not read yet, or `None` if it is unknown.
    /// The number is at most [`refresh`](crate::Options::refresh) old.
    pub fn lag(&self) -> Option<u64> {
        self.first.telemetry.gauges.lag()
    }

    /// Returns the temporary error after which the source is being retried, or `None` while the source
    /// works.
    pub fn source_error(&self) -> Option<String> {
        self.first.telemetry.gauges.source_error()
    }

    /// Returns `true` while messages wait because the store fails or is full.
    pub fn is_store_failing(&self) -> bool {
        self.first.guards.gate.has_store_outage() || self.first.guards.shortage().is_some()
    }

    /// Explains why no more messages are read, and what to do: the retry backlog, the queue or the store
    /// is full, or the store fails. Returns `None` if none of this applies.
    pub fn held_back(&self) -> Option<String> {
        Some(self.hold()?.1)
    }

    /// Returns the name of the limit because of which no more messages are read: `max-letters`,
    /// `max-bytes`, `min-free`, `max-sequences`, `max-sequence-size` or `budget.backlog`, or `disk` if
    /// the store only reports that it is full. Returns `None` while no limit is reached.
    pub fn held_by(&self) -> Option<&'static str> {
        self.hold()?.0
    }

    /// Returns the limit that is reached, if there is one, and the reason why no more messages are read.
    fn hold(&self) -> Option<(Option<&'static str>, String)> {
        let guards = &self.first.guards;
        if let Some(shortage) = guards.shortage() {
            let why = format!("not reading: {}; {}", shortage.describe(guards.place()), shortage.remedy());
            return Some((Some(shortage.limit()), why));
        }
        if let Some(OutageCause { limit, why }) = guards.gate.outage_cause() {
            return Some((limit, format!("not reading: {why}")));
        }
        let why = "not reading: the retry backlog is full; it goes on when retries succeed, or raise budget.backlog";
        guards.backlog.is_full().then(|| (Some("budget.backlog"), why.to_owned()))
    }

    /// Returns the time of the first failure of the message that has been failing longest in memory: it
    /// waits in place for its next attempt, or the attempt runs. Messages that wait in the store do not
    /// count, because they are letters. Returns `None` if there is no such message.
    pub fn failing_since(&self, queue: &QueueName) -> Option<Timestamp> {
        let component = self.components.iter().find(|component| component.queue == *queue)?;
        component.ages.failing.oldest()
    }

    /// Returns the age of the oldest running attempt, live or stored, or `None` if none runs.
    pub fn attempt_age(&self) -> Option<Duration> {
        let oldest = self.components.iter().filter_map(|component| component.ages.attempts.oldest()).min()?;
        Some(until(oldest, self.first.now()))
    }

    /// Polls the store now for changes by other processes: letters that may run, and operations that
    /// were started. Without this call, the store is polled every [`refresh`](crate::Options::refresh).
    pub fn wake(&self) {
        for component in &self.components {
            component.signals.retry.notify_one();
            component.signals.replay.notify_one();
        }
        self.first.guards.gate.notify_watchers();
    }

    /// Returns the pauses, as of the last refresh of this instance.
    pub fn pauses(&self) -> Vec<Pause> {
        self.first.guards.gate.pauses()
    }

    /// Pauses the consumer or a part of it durably. The pause is in effect when this returns.
    pub async fn pause(&self, scope: PauseScope, by: &Actor) -> Result<()> {
        self.first.store.pause(self.name(), scope, by).await?;
        store_refresh::reload_pauses(&self.first).await
    }

    /// Ends a pause. Returns `false` if there was none.
    pub async fn resume(&self, scope: &PauseScope, by: &Actor) -> Result<bool> {
        self.first.guards.gate.stored(scope);
        let ended = self.first.store.resume(self.name(), scope, by).await?;
        store_refresh::reload_pauses(&self.first).await?;
        self.components.iter().for_each(|component| component.signals.retry.notify_one());
        Ok(ended)
    }

    /// Starts a drain: the consumer settles as many messages as possible, commits and releases leases.
    /// Then `run` returns.
    pub fn drain(&self) {
        self.first.lifecycle.drain.cancel();
    }

    /// Returns `true` once the consumer was told to end, by this handle, its token or a signal.
    pub fn is_draining(&self) -> bool {
        self.first.lifecycle.drain.is_cancelled()
    }

    /// Returns the replayer of one component, or `None` if there is no component with this name.
    pub fn replayer(&self, component: &str) -> Option<Replayer> {
        let component = self.components.iter().find(|c| c.queue.component() == component)?.clone();
        Some(Replayer { component, shards: self.shards.clone() })
    }
}

/// Changes and replays the letters of one component.
#[derive(Clone)]
pub struct Replayer {
    component: Arc<Component>,
    shards: Shards,
}

impl Replayer {
    /// Returns the queue of the component.
    pub fn queue(&self) -> &QueueName {
        &self.component.queue
    }

    /// Changes a letter. If the letter can then run, it is scheduled.
    pub async fn act(&self, letter: LetterId, act: Act, by: &Actor) -> Result<Letter> {
        let letter = self.component.store.act(&self.component.queue, letter, act, by).await?;
        if act == Act::Restore {
            sequence_sync::sync(&self.component, &self.shards).await?;
        }
        self.component.signals.retry.notify_one();
        Ok(letter)
    }

    /// Runs the sequence that was not touched for the longest time, in order, until a letter fails.
    /// Returns `true` if the whole sequence was handled, `false` if a letter failed again or there was
    /// no sequence to run.
    pub async fn process_any(&self) -> Result<bool> {
        self.process(|_| true).await
    }

    /// Like [`process_any`](Self::process_any), but runs the first sequence whose head the filter
    /// accepts. The filter receives only heads. If it panics, the head is not accepted.
    pub async fn process(&self, filter: impl Fn(&Letter) -> bool) -> Result<bool> {
        let mut after = None;
        loop {
            let store = &self.component.store;
            let page = store.heads(&self.component.queue, after.as_deref(), PAGE).await?;
            for head in &page.heads {
                if !guarded(|| filter(head)).unwrap_or(false) {
                    continue;
                }
                if let Some(end) = self.run(&head.sequence, "process").await? {
                    return Ok(end == RunEnd::Closed);
                }
            }
            match page.next {
                Some(next) => after = Some(next),
                None => return Ok(false),
            }
        }
    }

    /// Runs one sequence as part of an operation. Returns `None` if the sequence is not open or is
    /// leased by others.
    pub async fn process_sequence(&self, sequence: &SequenceId, operation: &str) -> Result<Option<bool>> {
        Ok(self.run(sequence, operation).await?.map(|end| end == RunEnd::Closed))
    }

    /// Runs every sequence that is open now once. A sequence that fails does not stop the others. At
    /// most a quarter of [`concurrency`](crate::Options::concurrency) sequences run at a time.
    pub async fn process_all(&self, operation: &str) -> Result<ReplayReport> {
        ReplayAll::new(self, &self.component, operation).run().await
    }

    /// Claims a sequence and runs it. Returns `None` if the sequence may not be claimed.
    pub(crate) async fn run(
        &self,
        sequence: &SequenceId,
        operation: &str,
    ) -> std::result::Result<Option<RunEnd>, StoreError> {
        let Component { queue, store, options, identity, .. } = &*self.component;
        if admission::may_claim(&self.component, AttemptOf::Replay).is_err() {
            return Ok(None);
        }
        let claimed_at = Moment::now(&*self.component.clock);
        let owner = format!("{}/{operation}", identity.instance);
        let Some(claim) = store.claim(queue, sequence, &owner, options.lease).await? else {
            return Ok(None);
        };
        let purpose = Purpose::Replay(operation.to_owned());
        let component = self.component.clone();
        let run = Run { component, claim, claimed_at, purpose, place: None, open: None };
        Ok(Some(run.run().await))
    }
}
