//! What is remembered of the letters with one cause besides the letters themselves.

use jiff::Timestamp;
use lazaret_core::letter::{Letter, LetterId};
use lazaret_core::store::{Counts, GROUP_MESSAGE_BYTES, Group, GroupId, Trend};
use lazaret_core::traceback::excerpt;
use lazaret_core::{Failure, Fingerprint, Reason};

use super::queue::Queue;

/// A group, without what the letters say.
pub(super) struct GroupRow {
    /// How many letters belong to it, in whatever state.
    letters: u64,
    reason: Reason,
    error_type: String,
    message: String,
    first_seen: Timestamp,
    last_seen: Timestamp,
    trend: Trend,
}

impl GroupRow {
    /// A group that nothing came into yet.
    fn new(reason: Reason, failed_at: Timestamp, now: Timestamp) -> Self {
        Self {
            letters: 0,
            reason,
            error_type: String::new(),
            message: String::new(),
            first_seen: now,
            last_seen: failed_at,
            trend: Trend::default(),
        }
    }

    /// A letter of the group failed.
    fn see(&mut self, failure: &Failure, failed_at: Timestamp) {
        if failed_at < self.last_seen {
            return;
        }
        self.last_seen = failed_at;
        self.reason = failure.reason.clone();
        self.error_type = failure.error_type.clone();
        self.message = excerpt(&failure.message, GROUP_MESSAGE_BYTES).into_owned();
    }
}

/// The group that a letter belongs to.
fn group_of(letter: &Letter) -> Option<Fingerprint> {
    letter.cause.as_ref().map(|cause| cause.fingerprint)
}

impl Queue {
    /// A letter that was just stored came into its group.
    pub(super) fn came_in(&mut self, letter: LetterId, now: Timestamp) {
        let letter = self.letters.get(&letter).expect("the letter was stored before");
        let Some(cause) = &letter.cause else { return };
        let failed_at = letter.last_failed_at.unwrap_or(now);
        let row = self.groups.entry(cause.fingerprint);
        let row = row.or_insert_with(|| GroupRow::new(cause.reason.clone(), failed_at, now));
        row.letters += 1;
        row.trend.record(now);
        row.see(cause, failed_at);
    }

    /// A letter failed again. It belonged to the group `before`, and may belong to another now.
    pub(super) fn failed_again(&mut self, letter: LetterId, before: Option<Fingerprint>, now: Timestamp) {
        let stored = self.letters.get(&letter).expect("the letter has just failed");
        if group_of(stored) != before {
            self.came_in(letter, now);
            self.left(before);
        } else if let (Some(cause), Some(failed_at)) = (&stored.cause, stored.last_failed_at)
            && let Some(row) = self.groups.get_mut(&cause.fingerprint)
        {
            row.see(cause, failed_at);
        }
    }

    /// A letter is not in this group any more. A group without letters is gone.
    pub(super) fn left(&mut self, group: Option<Fingerprint>) {
        let Some(group) = group else { return };
        let Some(row) = self.groups.get_mut(&group) else { return };
        row.letters -= 1;
        if row.letters == 0 {
            self.groups.remove(&group);
        }
    }

    pub(super) fn group(&self, fingerprint: Fingerprint, now: Timestamp) -> Option<Group> {
        let row = self.groups.get(&fingerprint)?;
        let mut group = Group {
            id: GroupId { queue: self.name.clone(), fingerprint },
            reason: row.reason.clone(),
            error_type: row.error_type.clone(),
            message: row.message.clone(),
            counts: Counts::default(),
            blocked_behind: 0,
            oldest: None,
            first_seen: row.first_seen,
            last_seen: row.last_seen,
            trend: row.trend.at(now),
        };
        for letter in self.letters.values().filter(|letter| group_of(letter) == Some(fingerprint)) {
            group.counts.by_state[letter.state as usize] += 1;
            if letter.state.is_open() {
                group.oldest =
                    Some(group.oldest.map_or(letter.enqueued_at, |oldest| oldest.min(letter.enqueued_at)));
            }
        }
        for row in self.open.values().filter(|row| group_of(self.stored(row.head())) == Some(fingerprint)) {
            group.counts.sequences += 1;
            group.blocked_behind += row.letters.len() as u64 - 1;
        }
        Some(group)
    }

    /// When the oldest open letter was taken in.
    pub(super) fn oldest(&self) -> Option<Timestamp> {
        self.letters.values().filter(|letter| letter.state.is_open()).map(|letter| letter.enqueued_at).min()
    }
}
