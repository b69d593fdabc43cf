//! The status of a stream, for monitoring.

use std::time::Duration;

use jiff::Timestamp;

use crate::error::ErrorClass;

/// The number of decisions that are kept.
const DECISIONS: usize = 16;

/// The status of a stream.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MongoStatus {
    /// The current activity of the stream.
    pub state: StreamState,
    /// The cluster time of the last event that was read.
    pub last_event_at: Option<Timestamp>,
    /// When the stream was last opened. `None` if it was never open.
    pub opened_at: Option<Timestamp>,
    /// When the server last answered.
    pub answered_at: Option<Timestamp>,
    /// The time of the position from which the stream would resume after a crash.
    pub token_at: Option<Timestamp>,
    /// The oplog of the server, if it can be read.
    pub oplog: Option<OplogWindow>,
    /// The number of events read.
    pub events: u64,
    /// The number of times that the stream was reopened after an error. The driver also resumes by
    /// itself if it repeats no event, and does not report this.
    pub restarts: u64,
    /// The [incarnation](lazaret_core::incarnation) that is read: the number of times that the
    /// collection was recreated, or the history of the server was replaced, since the stream was first
    /// read.
    pub incarnation: u32,
    /// Decisions that skipped, repeated or ended something, newest last.
    pub decisions: Vec<Decision>,
}

/// The activity of a stream.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum StreamState {
    /// Connecting, or looking for the position.
    #[default]
    Starting,
    /// Waiting while another instance reads the stream.
    Standby {
        /// The leading instance: its name and, after a slash, a random part that is new in each process.
        /// Unnamed instances have only the random part.
        leader: Option<String>,
        /// When its lease ends unless it is renewed.
        until: Option<Timestamp>,
    },
    /// Reading.
    Reading,
    /// Waiting to reopen the stream after a failure.
    Restarting {
        /// The number of restarts since the last progress.
        attempt: u32,
        /// The class of the error.
        class: ErrorClass,
        /// The error.
        error: String,
    },
    /// Waiting, after the stream was invalidated, until all earlier events are settled.
    Invalidated,
    /// Failed permanently.
    Failed {
        /// The class of the error.
        class: ErrorClass,
        /// The error.
        error: String,
    },
    /// Closed.
    Closed,
}

/// A decision that skipped, repeated or ended something.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// When the decision was made.
    pub at: Timestamp,
    /// The decision and its reason.
    pub text: String,
}

/// The times of the oldest and the newest entry of the oplog.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OplogWindow {
    /// The time of the oldest entry.
    pub oldest: Timestamp,
    /// The time of the newest entry.
    pub newest: Timestamp,
}

impl MongoStatus {
    /// Returns the age of the position from which the stream would resume.
    pub fn token_age(&self, now: Timestamp) -> Option<Duration> {
        Some(between(self.token_at?, now))
    }

    /// Returns the time between the last event that was read and the newest entry of the oplog. The
    /// entries in between may belong to other collections.
    pub fn oplog_lag(&self) -> Option<Duration> {
        Some(between(self.last_event_at?, self.oplog?.newest))
    }

    /// Returns the time until the position falls out of the oplog, if the oplog keeps its length. Zero
    /// means that it may be gone.
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

/// Returns the time from one moment to a later one, or zero if it is not later.
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
