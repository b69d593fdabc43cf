//! Counts engine events.

use std::sync::Arc;

use lazaret_core::policy::Limit;
use lazaret_core::{Failure, LetterState, Partition, QueueName, Reason};
use lazaret_engine::{Event, Observer};
use metrics::{Label, SharedString};

use super::instruments::Instruments;
use super::labels::{self, Reasons, ReplayOutcome, label, of_queue};
use crate::names;

/// Counts the events of one consumer.
pub(super) struct MetricsObserver {
    pub(super) instruments: Arc<Instruments>,
    pub(super) reasons: Arc<Reasons>,
    pub(super) consumer: String,
}

impl MetricsObserver {
    fn of(
        &self,
        queue: &QueueName,
        more: impl IntoIterator<Item = (&'static str, SharedString)>,
    ) -> Vec<Label> {
        let mut labels = of_queue(&self.consumer, queue);
        labels.extend(more.into_iter().map(|(name, value)| Label::new(name, value)));
        labels
    }

    fn letters(&self, queue: &QueueName, state: LetterState, cause: Option<&Failure>, letters: u64) {
        let reason =
            cause.map_or(SharedString::const_str(labels::NONE), |cause| self.reasons.label(&cause.reason));
        let state = SharedString::const_str(state.as_str());
        let labels = self.of(queue, [("state", state), ("reason", reason)]);
        self.instruments.counter(&names::LETTERS_TOTAL, labels).increment(letters);
    }

    fn replayed(&self, queue: &QueueName, outcome: ReplayOutcome) {
        let labels = self.of(queue, [("outcome", SharedString::const_str(outcome.as_str()))]);
        self.instruments.counter(&names::REPLAY, labels).increment(1);
    }

    fn poison(&self, queue: &QueueName) {
        self.instruments.counter(&names::POISON, self.of(queue, [])).increment(1);
    }

    fn incarnations(&self, partition: &Partition, began: u64) {
        let stream = SharedString::from(partition.stream.as_str().to_owned());
        let labels = vec![label("consumer", &self.consumer), Label::new("stream", stream)];
        self.instruments.counter(&names::INCARNATIONS, labels).increment(began);
    }

    fn exhausted(&self, queue: &QueueName, limit: Option<Limit>, reason: &Reason) {
        let labels = self.of(queue, [("reason", self.reasons.label(reason))]);
        self.instruments.counter(&names::RETRY_EXHAUSTED, labels).increment(1);
        if limit == Some(Limit::Crashes) {
            self.poison(queue);
        }
    }
}

impl Observer for MetricsObserver {
    fn on(&self, event: &Event<'_>) {
        match event {
            Event::Failed { queue, failure, .. } => {
                let phase = SharedString::const_str(failure.phase.as_str());
                let reason = self.reasons.label(&failure.reason);
                let labels = self.of(queue, [("reason", reason), ("phase", phase)]);
                self.instruments.counter(&names::FAILURES, labels).increment(1);
            }
            Event::RetryScheduled { queue, reason, .. } => {
                let labels = self.of(queue, [("reason", self.reasons.label(reason))]);
                self.instruments.counter(&names::RETRY_SCHEDULED, labels).increment(1);
            }
            Event::RetryStarted { queue, attempt, lateness } => {
                let attempt = SharedString::const_str(labels::attempt(*attempt));
                let labels = self.of(queue, [("attempt", attempt)]);
                self.instruments.counter(&names::RETRY_ATTEMPTS, labels).increment(1);
                let late = self.instruments.histogram(&names::RETRY_LATENESS, self.of(queue, []));
                late.record(lateness.as_secs_f64());
            }
            Event::RetryExhausted { queue, limit, reason, .. } => self.exhausted(queue, *limit, reason),
            Event::Poison { queue, .. } => self.poison(queue),
            Event::LetterStored { queue, state, before, cause, replay, .. } => {
                if *before != Some(*state) {
                    self.letters(queue, *state, *cause, 1);
                }
                if replay.is_some() {
                    self.replayed(queue, ReplayOutcome::FailedAgain);
                }
            }
            Event::Relayed { queue, state, cause, .. } => self.letters(queue, *state, *cause, 1),
            Event::LetterClosed { queue, state, replay, .. } => {
                self.letters(queue, *state, None, 1);
                if replay.is_some() {
                    let resolved = *state == LetterState::Resolved;
                    self.replayed(queue, if resolved { ReplayOutcome::Ok } else { ReplayOutcome::Skipped });
                }
            }
            Event::Expired { queue, letters } => self.letters(queue, LetterState::Expired, None, *letters),
            Event::LeaseLost { queue, .. } => {
                self.instruments.counter(&names::LEASES_LOST, self.of(queue, [])).increment(1);
            }
            Event::BreakerOpened { failure, .. } => {
                let reason = Label::new("reason", self.reasons.label(&failure.reason));
                let labels = vec![label("consumer", &self.consumer), reason];
                self.instruments.counter(&names::BREAKER_OPENED, labels).increment(1);
            }
            // From 0, so that the first one is an increase.
            Event::Assigned { partition, .. } => self.incarnations(partition, 0),
            Event::IncarnationBegan { partition } => self.incarnations(partition, 1),
            Event::CommitFailed { .. } => {
                let labels = vec![label("consumer", &self.consumer)];
                self.instruments.counter(&names::COMMIT_FAILURES, labels).increment(1);
            }
            _ => {}
        }
    }
}
