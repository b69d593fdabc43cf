//! Counters of letters with the same cause.

use std::fmt;
use std::sync::Arc;

use jiff::Timestamp;

use super::effects::{Blocked, CountedAs};
use crate::failure::{Failure, Reason};
use crate::letter::LetterState;
use crate::store::{Counts, GROUP_MESSAGE_BYTES, Group, GroupId, Trend};
use crate::traceback::excerpt;

/// The displayed fields of a group's latest failure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LatestFailure {
    /// Its reason.
    pub reason: Reason,
    /// Its type.
    pub error_type: String,
    /// Its message; for a long one, an excerpt.
    pub message: String,
}

/// The counters of a group, as a store keeps them. They change with the letters, so they are exact: a group is never
/// computed from its letters.
///
/// ```
/// use lazaret_core::store::rules::GroupRow;
/// use lazaret_core::{Failure, LetterState, Reason, Timestamp};
/// let now = Timestamp::UNIX_EPOCH;
/// let failure = Failure::new(Reason::TIMEOUT, "DbError", "no answer");
/// let mut group = GroupRow::new(now);
/// group.enter(&failure, now, now);
/// group.count(LetterState::Dead, 1);
/// assert_eq!(group.latest.reason, Reason::TIMEOUT);
/// assert!(!group.is_empty());
/// group.count(LetterState::Dead, -1);
/// assert!(group.is_empty(), "a group without letters is removed");
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct GroupRow {
    /// Its latest failure.
    pub latest: Arc<LatestFailure>,
    /// Its letters by state, in the order of [`LetterState::ALL`].
    pub by_state: [u64; 9],
    /// Number of open sequences with one of them as head.
    pub sequences: u64,
    /// Number of open letters behind those heads.
    pub behind: u64,
    /// When the first letter entered it.
    pub first_seen: Timestamp,
    /// When a letter of it last failed.
    pub last_seen: Timestamp,
    /// Hourly numbers of letters that entered it.
    pub trend: Trend,
}

/// Prints the counts with the names of the states.
impl fmt::Debug for GroupRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GroupRow")
            .field("latest", &self.latest)
            .field("counts", &Counts { sequences: self.sequences, by_state: self.by_state })
            .field("behind", &self.behind)
            .field("first_seen", &self.first_seen)
            .field("last_seen", &self.last_seen)
            .field("trend", &self.trend)
            .finish()
    }
}

impl GroupRow {
    /// An empty group.
    pub fn new(now: Timestamp) -> Self {
        let latest = LatestFailure {
            reason: Reason::HANDLER_ERROR,
            error_type: String::new(),
            message: String::new(),
        };
        Self {
            latest: latest.into(),
            by_state: [0; 9],
            sequences: 0,
            behind: 0,
            first_seen: now,
            last_seen: Timestamp::MIN,
            trend: Trend::default(),
        }
    }

    /// Records a letter that entered the group with this failure.
    pub fn enter(&mut self, failure: &Failure, failed_at: Timestamp, now: Timestamp) {
        self.trend.record(now);
        self.record_failure(failure, failed_at);
    }

    /// Records a failure of a letter of the group. Failures before the latest one change nothing.
    pub fn record_failure(&mut self, failure: &Failure, failed_at: Timestamp) {
        if failed_at < self.last_seen {
            return;
        }
        self.last_seen = failed_at;
        let message = excerpt(&failure.message, GROUP_MESSAGE_BYTES);
        let same = self.latest.message == message
            && self.latest.error_type == failure.error_type
            && self.latest.reason == failure.reason;
        if !same {
            self.latest = Arc::new(LatestFailure {
                reason: failure.reason.clone(),
                error_type: failure.error_type.clone(),
                message: message.into_owned(),
            });
        }
    }

    /// Adds `by` letters in this state.
    pub fn count(&mut self, state: LetterState, by: i64) {
        let count = &mut self.by_state[state as usize];
        *count = count.saturating_add_signed(by);
    }

    /// Adds `by` sequences whose head is in the group.
    pub fn block(&mut self, blocked: Blocked, by: i64) {
        self.sequences = self.sequences.saturating_add_signed(by);
        self.behind =
            self.behind.saturating_add_signed(by * i64::try_from(blocked.behind).unwrap_or(i64::MAX));
    }

    /// `true` if it has no letters.
    pub fn is_empty(&self) -> bool {
        self.by_state == [0; 9]
    }

    /// The public view of the group. `oldest` is when its oldest open letter was enqueued.
    pub fn to_group(&self, id: GroupId, oldest: Option<Timestamp>, now: Timestamp) -> Group {
        Group {
            id,
            reason: self.latest.reason.clone(),
            error_type: self.latest.error_type.clone(),
            message: self.latest.message.clone(),
            counts: Counts { sequences: self.sequences, by_state: self.by_state },
            blocked_behind: self.behind,
            oldest,
            first_seen: self.first_seen,
            last_seen: self.last_seen,
            trend: self.trend.at(now),
        }
    }
}

impl super::CountChange {
    /// The changes of the letter counts, by group and state.
    pub fn changes(&self) -> impl Iterator<Item = (CountedAs, i64)> {
        [(self.before, -1), (self.after, 1)].into_iter().filter_map(|(counted, by)| Some((counted?, by)))
    }

    /// The changes of the blocked counts, by group.
    pub fn blocks(&self) -> impl Iterator<Item = (Blocked, i64)> {
        let same = self.blocked_before == self.blocked_after;
        [(self.blocked_before, -1), (self.blocked_after, 1)]
            .into_iter()
            .filter(move |_| !same)
            .chain([(self.blocked_detached, 1)])
            .filter_map(|(blocked, by)| Some((blocked?, by)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_late_report_does_not_replace_a_newer_failure() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let failure = |message: &str| Failure::new(Reason::TIMEOUT, "E", message);
        let mut group = GroupRow::new(at(0));
        group.enter(&failure("new"), at(20), at(20));
        group.record_failure(&failure("old"), at(10));
        assert_eq!((group.latest.message.as_str(), group.last_seen), ("new", at(20)));
        group.record_failure(&failure("newest"), at(20));
        assert_eq!(group.latest.message, "newest", "of two at the same time the later call wins");
    }
}
