//! The status of a stream, for monitoring.

use std::time::Duration;

use jiff::Timestamp;

use crate::error::ErrorClass;

/// The number of decisions that are kept.
const DECISIONS: usize = 16;

/// The status of a stream.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MongoStatus {
    /// What the stream does.
    pub state: StreamState,
    /// The cluster time of the last event that was read.
    pub last_event_at: Option<Timestamp>,
    /// When the stream was last opened. `None`: it was never open.
    pub opened_at: Option<Timestamp>,
    /// When the server last answered.
    pub answered_at: Option<Timestamp>,
    /// The time of the position that the stream would resume from after a crash.
    pub token_at: Option<Timestamp>,
    /// The oplog of the server, if it may be read.
    pub oplog: Option<OplogWindow>,
    /// The number of events that were read.
    pub events: u64,
    /// How often the stream was opened again after an error. The driver also resumes by itself where it repeats no event, and does not
    /// tell.
    pub restarts: u64,
    /// The [incarnation](lazaret_core::incarnation) that is read: how often the collection was created again, or the history of the server
    /// was replaced, since the stream was first read.
    pub incarnation: u32,
    /// Decisions that skipped, repeated or ended something, the newest last.
    pub decisions: Vec<Decision>,
}

/// What a stream does.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum StreamState {
    /// It connects, or looks for its position.
    #[default]
    Starting,
    /// Another instance reads the stream.
    Standby {
        /// The instance, and behind a slash a random part that is new in each process.
        leader: Option<String>,
        /// When its lease ends, unless it is renewed.
        until: Option<Timestamp>,
    },
    /// It reads.
    Reading,
    /// It failed, and is opened again after a delay.
    Restarting {
        /// The number of restarts since the last progress.
        attempt: u32,
        /// The class of the error.
        class: ErrorClass,
        /// The error.
        error: String,
    },
    /// The stream was invalidated. It waits until all events before that are settled.
    Invalidated,
    /// It failed for good.
    Failed {
        /// The class of the error.
        class: ErrorClass,
        /// The error.
        error: String,
    },
    /// It was closed.
    Closed,
}

/// A decision that skipped, repeated or ended something.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// When it was made.
    pub at: Timestamp,
    /// What was decided, and why.
    pub text: String,
}

/// The times of the oldest and the newest entry of the oplog.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OplogWindow {
    /// The oldest.
    pub oldest: Timestamp,
    /// The newest.
    pub newest: Timestamp,
}

impl MongoStatus {
    /// The age of the position that the stream would resume from.
    pub fn token_age(&self, now: Timestamp) -> Option<Duration> {
        Some(between(self.token_at?, now))
    }

    /// The time between the last event that was read and the newest entry of the oplog. The entries in between may be of other
    /// collections.
    pub fn oplog_lag(&self) -> Option<Duration> {
        Some(between(self.last_event_at?, self.oplog?.newest))
    }

    /// The time until the position falls out of the oplog, if it keeps its length. Zero: it may be gone.
    pub fn headroom(&self) -> Option<Duration> {
        Some(between(self.oplog?.oldest, self.token_at?))
    }

    pub(crate) fn decide(&mut self, text: String) {
        if self.decisions.len() == DECISIONS {
            self.decisions.remove(0);
        }
        self.decisions.push(Decision { at: Timestamp::now(), text });
    }
}

/// The time from one moment to a later one; zero if it is not later.
fn between(from: Timestamp, to: Timestamp) -> Duration {
    Duration::try_from(to.duration_since(from)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn ages_are_computed_from_times() {
        let mut status =
            MongoStatus { token_at: Some(at(100)), last_event_at: Some(at(90)), ..MongoStatus::default() };
        assert_eq!(status.token_age(at(160)), Some(Duration::from_secs(60)));
        assert_eq!(status.token_age(at(50)), Some(Duration::ZERO), "clocks may differ");
        assert_eq!((status.oplog_lag(), status.headroom()), (None, None), "the oplog is unknown");
        status.oplog = Some(OplogWindow { oldest: at(40), newest: at(120) });
        assert_eq!(status.oplog_lag(), Some(Duration::from_secs(30)));
        assert_eq!(status.headroom(), Some(Duration::from_secs(60)));
    }

    #[test]
    fn the_list_of_decisions_is_bounded() {
        // I7
        let mut status = MongoStatus::default();
        (0..40).for_each(|number| status.decide(number.to_string()));
        assert_eq!(status.decisions.len(), DECISIONS);
        assert_eq!(status.decisions.last().unwrap().text, "39");
    }
}
