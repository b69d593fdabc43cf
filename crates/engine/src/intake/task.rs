//! The task of the intake, which always keeps polling the source.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::{FuturesUnordered, StreamExt};
use lazaret_core::source::{SourceError, SourceEvent};
use lazaret_core::{Clock, Source};
use tokio::time::Instant;

use super::delay_queue::DelayQueue;
use super::state::{Background, Moved, Slot};
use crate::component::Component;
use crate::error::Error;
use crate::events::Event;
use crate::flight::Flight;
use crate::flow::{Notice, Shards, ToShard};
use crate::guards::Guards;
use crate::identity::Identity;
use crate::lifecycle::Lifecycle;
use crate::mailbox::Mailbox;
use crate::mutation::mutated;
use crate::options::Options;
use crate::telemetry::Telemetry;

/// The delay after an error of the source.
const SOURCE_RETRY_DELAY: Duration = Duration::from_millis(200);
/// The interval at which a persistent error of the source is logged.
const ERROR_LOG_INTERVAL: Duration = Duration::from_secs(30);

/// The reader of one consumer's source.
pub(crate) struct Intake {
    pub(super) source: Box<dyn Source>,
    pub(super) options: Arc<Options>,
    pub(super) identity: Arc<Identity>,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) guards: Arc<Guards>,
    pub(super) lifecycle: Arc<Lifecycle>,
    pub(super) telemetry: Arc<Telemetry>,
    pub(super) flight: Arc<Flight>,
    pub(super) components: Vec<Arc<Component>>,
    pub(super) shards: Shards,
    pub(super) notices: Arc<Mailbox<Notice>>,
    pub(super) slots: Vec<Slot>,
    /// The slots by partition number. Names are compared within a number.
    pub(super) by_number: Vec<Vec<usize>>,
    pub(super) routed: Vec<Vec<ToShard>>,
    /// The number of messages that are neither settled nor abandoned, including those in the delay
    /// queue.
    pub(super) in_flight: usize,
    /// Messages that returned from the broker and are not due yet.
    pub(super) delayed: DelayQueue,
    pub(super) full: bool,
    pub(super) background: FuturesUnordered<Pin<Box<dyn Future<Output = Background> + Send>>>,
    pub(super) next_commit: Option<Instant>,
    /// The partitions of a commit in progress, until the source reports its outcome.
    pub(super) committing: Option<Vec<Moved>>,
    /// `true` once the source was read to its end.
    pub(super) ended: bool,
    pub(super) draining: bool,
    /// The deadline of the drain.
    pub(super) drain_until: Option<Instant>,
    pub(super) source_retry_at: Option<Instant>,
    /// The time at which a persistent error of the source was last logged.
    pub(super) error_logged_at: Option<Instant>,
    pub(super) idle_check: Option<Pin<Box<dyn Future<Output = bool> + Send>>>,
    pub(super) next_idle_check: Instant,
}

impl Intake {
    pub(crate) fn new(
        source: Box<dyn Source>,
        components: Vec<Arc<Component>>,
        shards: Shards,
        notices: Arc<Mailbox<Notice>>,
    ) -> Self {
        Self {
            source,
            options: components[0].options.clone(),
            identity: components[0].identity.clone(),
            clock: components[0].clock.clone(),
            guards: components[0].guards.clone(),
            lifecycle: components[0].lifecycle.clone(),
            telemetry: components[0].telemetry.clone(),
            flight: components[0].flight.clone(),
            routed: shards.iter().map(|_| Vec::new()).collect(),
            components,
            shards,
            notices,
            slots: Vec::new(),
            by_number: Vec::new(),
            in_flight: 0,
            delayed: DelayQueue::default(),
            full: false,
            background: FuturesUnordered::new(),
            next_commit: None,
            committing: None,
            ended: false,
            draining: false,
            drain_until: None,
            source_retry_at: None,
            error_logged_at: None,
            idle_check: None,
            next_idle_check: Instant::now(),
        }
    }

    /// Runs until the consumer is drained.
    pub(crate) async fn run(mut self) {
        let (telemetry, lifecycle) = (self.telemetry.clone(), self.lifecycle.clone());
        let notices = self.notices.clone();
        let mut changed = self.guards.gate.watch();
        let mut batch = Vec::new();
        telemetry.gauges.publish_lag(self.source.lag());
        loop {
            while notices.take(&mut batch) {
                self.apply_notices(&mut batch);
            }
            self.release_due();
            // Shards report the messages that they hold back without a notice.
            self.update_window();
            self.finish_revocations().await;
            telemetry.gauges.publish_in_flight(self.in_flight);
            if self.draining && self.is_drained() {
                break;
            }
            self.start_idle_check();
            let deadline = self.deadline();
            let next_release = self.next_release();
            tokio::select! {
                biased;
                () = lifecycle.drain.cancelled(), if !self.draining => self.begin_drain(),
                () = at(self.next_commit) => self.begin_commit().await,
                () = at(deadline) => self.deadline_passed(),
                () = at(next_release) => {}
                Some(done) = self.background.next(), if !self.background.is_empty() => self.finished(done),
                () = changed.changed() => self.update_holds(),
                idle = check(&mut self.idle_check) => self.idle_checked(idle),
                event = self.source.next(), if !self.draining && self.source_retry_at.is_none() => self.handle_event(event),
                () = at(self.source_retry_at) => self.source_retry_at = None,
                () = notices.arrived() => {}
                // Reading the lag makes the source check every partition, so it is not done in every
                // round.
                () = lifecycle.activity.notified() => telemetry.gauges.publish_lag(self.source.lag()),
                () = tokio::time::sleep_until(self.next_idle_check), if self.waits_for_idle() => {}
            }
        }
        if !mutated!(self.options, LeaveWithoutCommit) {
            self.commit().await;
        }
        telemetry.gauges.publish_in_flight(0);
        telemetry.gauges.publish_lag(self.source.lag());
        if let Err(error) = self.source.close().await {
            tracing::warn!(%error, "source not closed cleanly");
        }
    }

    fn handle_event(&mut self, event: Result<SourceEvent, SourceError>) {
        if event.is_ok() && self.error_logged_at.take().is_some() {
            tracing::info!(consumer = self.identity.consumer.as_str(), "source recovered");
            self.telemetry.gauges.publish_source_error(None);
        }
        match event {
            Ok(SourceEvent::Messages(messages)) => self.accept(messages),
            Ok(SourceEvent::Assigned(assignments)) => self.assigned(assignments),
            Ok(SourceEvent::Recreated(partitions)) => {
                for partition in &partitions {
                    self.telemetry.emit(&Event::IncarnationBegan { partition });
                }
            }
            Ok(SourceEvent::Revoking(partitions)) => self.revoking(&partitions),
            Ok(SourceEvent::Lost(partitions)) => self.lost(&partitions),
            Ok(SourceEvent::End) => self.ended = true,
            Ok(SourceEvent::Committed(outcome)) => {
                let moved = self.committing.take().unwrap_or_default();
                self.committed(&moved, outcome);
            }
            Err(error) if error.is_temporary() => {
                let now = Instant::now();
                if self.error_logged_at.is_none_or(|logged| now - logged >= ERROR_LOG_INTERVAL) {
                    tracing::warn!(consumer = self.identity.consumer.as_str(), %error, "source failed, retrying");
                    self.error_logged_at = Some(now);
                }
                self.telemetry.gauges.publish_source_error(Some(error.to_string()));
                self.source_retry_at = Some(now + SOURCE_RETRY_DELAY);
            }
            Err(error) => self.lifecycle.fail(Error::Source(error)),
        }
    }
}

/// Waits until this time, or forever if there is none.
async fn at(time: Option<Instant>) {
    match time {
        Some(time) => tokio::time::sleep_until(time).await,
        None => std::future::pending().await,
    }
}

async fn check(idle: &mut Option<Pin<Box<dyn Future<Output = bool> + Send>>>) -> bool {
    match idle {
        Some(check) => check.await,
        None => std::future::pending().await,
    }
}
