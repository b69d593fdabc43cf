//! Counters of letters with the same cause.

use std::fmt;
use std::sync::Arc;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::effects::{Blocked, CountedAs};
use crate::failure::{Failure, Reason};
use crate::letter::LetterState;
use crate::store::{Counts, GROUP_MESSAGE_BYTES, Group, GroupId, Trend};
use crate::traceback::excerpt;

/// The displayed fields of a group's latest failure.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LatestFailure {
    /// Its reason.
    pub reason: Reason,
    /// Its type.
    pub error_type: String,
    /// Its message; for a long one, an excerpt.
    pub message: String,
}

impl LatestFailure {
    fn with_message(failure: &Failure, message: String) -> Self {
        Self { reason: failure.reason.clone(), error_type: failure.error_type.clone(), message }
    }
}

/// The changes that one call makes to a group, summed up. A store whose calls must not wait for each other writes them down as they are,
/// and [adds](GroupRow::add) them to the group later, in the order of the calls.
///
/// ```
/// use lazaret_core::store::rules::{GroupChanges, GroupRow};
/// use lazaret_core::{Failure, LetterState, Reason, Timestamp};
/// let now = Timestamp::UNIX_EPOCH;
/// let mut changes = GroupChanges::default();
/// changes.enter(&Failure::new(Reason::TIMEOUT, "DbError", "no answer"), now);
/// changes.count(LetterState::Dead, 1);
/// assert_eq!(changes.open(), 1);
/// let mut group = GroupRow::new(now);
/// group.add(&changes, now);
/// assert_eq!((group.latest.reason.clone(), group.is_empty()), (Reason::TIMEOUT, false));
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupChanges {
    by_state: [i64; 9],
    sequences: i64,
    behind: i64,
    /// Letters that entered the group.
    entered: u64,
    /// The latest failure, and when it was.
    latest: Option<(Timestamp, LatestFailure)>,
}

impl GroupChanges {
    /// See [`GroupRow::enter`].
    pub fn enter(&mut self, failure: &Failure, failed_at: Timestamp) {
        self.entered += 1;
        self.record_failure(failure, failed_at);
    }

    /// See [`GroupRow::record_failure`].
    pub fn record_failure(&mut self, failure: &Failure, failed_at: Timestamp) {
        if self.latest.as_ref().is_none_or(|(latest, _)| failed_at >= *latest) {
            let message = excerpt(&failure.message, GROUP_MESSAGE_BYTES).into_owned();
            self.latest = Some((failed_at, LatestFailure::with_message(failure, message)));
        }
    }

    /// See [`GroupRow::count`].
    pub fn count(&mut self, state: LetterState, by: i64) {
        self.by_state[state as usize] += by;
    }

    /// See [`GroupRow::block`].
    pub fn block(&mut self, blocked: Blocked, by: i64) {
        self.sequences += by;
        self.behind += blocked.letters(by);
    }

    /// By how many letters the open ones change.
    pub fn open(&self) -> i64 {
        LetterState::ALL
            .iter()
            .zip(self.by_state)
            .filter(|(state, _)| state.is_open())
            .map(|(_, by)| by)
            .sum()
    }

    /// `true` if they change nothing.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
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
            self.latest = Arc::new(LatestFailure::with_message(failure, message.into_owned()));
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
        self.behind = self.behind.saturating_add_signed(blocked.letters(by));
    }

    /// Adds changes that were [summed up](GroupChanges). `now` is the time of the call that made them.
    pub fn add(&mut self, changes: &GroupChanges, now: Timestamp) {
        for (count, by) in self.by_state.iter_mut().zip(changes.by_state) {
            *count = count.saturating_add_signed(by);
        }
        self.sequences = self.sequences.saturating_add_signed(changes.sequences);
        self.behind = self.behind.saturating_add_signed(changes.behind);
        self.trend.record_many(now, changes.entered);
        if let Some((at, latest)) = &changes.latest
            && *at >= self.last_seen
        {
            self.last_seen = *at;
            self.latest = Arc::new(latest.clone());
        }
    }

    /// `true` if it has no letters.
    pub fn is_empty(&self) -> bool {
        self.by_state == [0; 9]
    }

    /// The public view of the group. `oldest` is when its oldest open letter was enqueued, `next_expiry` when its next one
    /// [expires](super::NextExpiries).
    pub fn to_group(
        &self,
        id: GroupId,
        oldest: Option<Timestamp>,
        next_expiry: Option<Timestamp>,
        now: Timestamp,
    ) -> Group {
        Group {
            id,
            reason: self.latest.reason.clone(),
            error_type: self.latest.error_type.clone(),
            message: self.latest.message.clone(),
            counts: Counts { sequences: self.sequences, by_state: self.by_state },
            blocked_behind: self.behind,
            oldest,
            next_expiry,
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

    /// What one group gets at once, the other gets summed up by call.
    #[test]
    fn changes_that_are_added_later_make_the_same_group() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let failure = |message: &str| Failure::new(Reason::TIMEOUT, "E", message);
        let (mut direct, mut summed) = (GroupRow::new(at(1)), GroupRow::new(at(1)));
        let group = "g1_0123456789abcdef".parse().unwrap();
        for call in 1..=20 {
            let now = at(call * 1000);
            let mut changes = GroupChanges::default();
            for letter in 0..call % 4 {
                // Some reports are late.
                let (failure, failed) =
                    (failure(&format!("{call} {letter}")), at(call * 1000 - letter * 1500));
                direct.enter(&failure, failed, now);
                direct.count(LetterState::Dead, 1);
                changes.enter(&failure, failed);
                changes.count(LetterState::Dead, 1);
                let (blocked, by) = (Blocked { group, behind: letter.unsigned_abs() }, 1);
                direct.block(blocked, by);
                changes.block(blocked, by);
            }
            if call % 5 == 0 {
                for (state, by) in [(LetterState::Dead, -2), (LetterState::Resolved, 2)] {
                    direct.count(state, by);
                    changes.count(state, by);
                }
            }
            summed.add(&changes, now);
            assert_eq!(summed, direct, "after call {call}");
        }
        assert_eq!(GroupChanges::default().open(), 0);
    }
}
