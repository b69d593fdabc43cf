//! Letters with one cause, counted.

use std::sync::Arc;

use jiff::Timestamp;

use super::effects::{Blocked, Standing};
use crate::failure::{Failure, Reason};
use crate::letter::LetterState;
use crate::store::{Counts, GROUP_MESSAGE_BYTES, Group, GroupId, Trend};
use crate::traceback::excerpt;

/// What is shown of the latest failure of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LatestFailure {
    /// Its reason.
    pub reason: Reason,
    /// Its type.
    pub error_type: String,
    /// Its message; of a long one, an excerpt.
    pub message: String,
}

/// The counters of a group, as a store keeps them. They change with the letters, so they are exact; what is shown of a group
/// is never computed from its letters.
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
/// assert!(group.is_empty(), "a group without letters is gone");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupRow {
    /// Its latest failure.
    pub latest: Arc<LatestFailure>,
    /// Its letters by state, in the order of [`LetterState::ALL`].
    pub by_state: [u64; 9],
    /// How many open sequences have one of them as their head.
    pub sequences: u64,
    /// How many open letters stand behind those heads.
    pub behind: u64,
    /// When a letter first came into it.
    pub first_seen: Timestamp,
    /// When a letter of it last failed.
    pub last_seen: Timestamp,
    /// How many letters came into it lately.
    pub trend: Trend,
}

impl GroupRow {
    /// A group that nothing came into yet.
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

    /// A letter came into the group with this failure.
    pub fn enter(&mut self, failure: &Failure, failed_at: Timestamp, now: Timestamp) {
        self.trend.record(now);
        self.see(failure, failed_at);
    }

    /// A letter of the group failed. One that failed before the latest failure changes nothing.
    pub fn see(&mut self, failure: &Failure, failed_at: Timestamp) {
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

    /// Counts letters in a state.
    pub fn count(&mut self, state: LetterState, by: i64) {
        let count = &mut self.by_state[state as usize];
        *count = count.saturating_add_signed(by);
    }

    /// Counts a sequence whose head is of the group.
    pub fn block(&mut self, blocked: Blocked, by: i64) {
        self.sequences = self.sequences.saturating_add_signed(by);
        self.behind =
            self.behind.saturating_add_signed(by * i64::try_from(blocked.behind).unwrap_or(i64::MAX));
    }

    /// Whether no letter belongs to it any more.
    pub fn is_empty(&self) -> bool {
        self.by_state == [0; 9]
    }

    /// The group as others see it. `oldest` is when its oldest open letter was taken in.
    pub fn shown(&self, id: GroupId, oldest: Option<Timestamp>, now: Timestamp) -> Group {
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

impl super::Tally {
    /// What each of the groups concerned counts differently: how many letters in which state, and which sequences.
    pub fn changes(&self) -> impl Iterator<Item = (Standing, i64)> {
        [(self.was, -1), (self.is, 1)].into_iter().filter_map(|(standing, by)| Some((standing?, by)))
    }

    /// Which sequences are blocked by which groups, and which are not any more.
    pub fn blocks(&self) -> impl Iterator<Item = (Blocked, i64)> {
        let same = self.was_blocked == self.is_blocked;
        [(self.was_blocked, -1), (self.is_blocked, 1)]
            .into_iter()
            .filter(move |_| !same)
            .filter_map(|(blocked, by)| Some((blocked?, by)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_that_comes_late_does_not_hide_the_latest() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let failure = |message: &str| Failure::new(Reason::TIMEOUT, "E", message);
        let mut group = GroupRow::new(at(0));
        group.enter(&failure("new"), at(20), at(20));
        group.see(&failure("old"), at(10));
        assert_eq!((group.latest.message.as_str(), group.last_seen), ("new", at(20)));
        group.see(&failure("newest"), at(20));
        assert_eq!(group.latest.message, "newest", "of two at one time the later call counts");
    }
}
