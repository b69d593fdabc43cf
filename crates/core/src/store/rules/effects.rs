//! The effects of a decision: changes of one letter, its sequence, its groups, the audit and the list of ends.

use jiff::Timestamp;

use super::sequence::{Head, SequenceChange, SequenceRow, due_of};
use crate::fingerprint::Fingerprint;
use crate::letter::{AttemptRecord, Erasure, Letter, LetterId, LetterState};
use crate::message::Message;
use crate::sequence::SequenceId;
use crate::store::{Actor, Requeue, is_end};

/// The fields of a stored letter that the rules need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LetterView {
    /// Its id.
    pub id: LetterId,
    /// Its index in the sequence.
    pub index: u64,
    /// Its state.
    pub state: LetterState,
    /// When it is due, for `retrying`.
    pub due_at: Option<Timestamp>,
    /// When it was enqueued.
    pub enqueued_at: Timestamp,
    /// When it was last touched.
    pub touched_at: Timestamp,
    /// The group of its cause.
    pub group: Option<Fingerprint>,
}

impl LetterView {
    /// The view of this letter.
    pub fn of(letter: &Letter) -> Self {
        Self {
            id: letter.id,
            index: letter.index,
            state: letter.state,
            due_at: letter.due_at,
            enqueued_at: letter.enqueued_at,
            touched_at: letter.last_touched_at,
            group: group_of(letter),
        }
    }

    /// Its entry in the row of its sequence, when it becomes the head now.
    pub fn head(&self, now: Timestamp) -> Head {
        let due = due_of(self.state, self.due_at, self.enqueued_at);
        let head = Head { index: self.index, due, touched: self.touched_at, group: self.group }.as_of(now);
        match self.state {
            // It only waited for its turn. Its touch does not tell that it was enqueued by a clock that was set back since.
            LetterState::Waiting => Head { due: head.due.map(|due| due.min(now)), ..head },
            _ => head,
        }
    }

    /// How it is counted.
    pub const fn counted_as(&self) -> CountedAs {
        CountedAs { group: self.group, state: self.state }
    }
}

/// The group of a letter: the fingerprint of its stored cause.
pub(super) fn group_of(letter: &Letter) -> Option<Fingerprint> {
    letter.cause.as_ref().map(|cause| cause.fingerprint)
}

/// How a letter is counted: in its queue by its state, and in its group if it has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CountedAs {
    /// The group.
    pub group: Option<Fingerprint>,
    /// The state.
    pub state: LetterState,
}

/// The contribution of a sequence to the group of its head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Blocked {
    /// The group.
    pub group: Fingerprint,
    /// Number of letters behind the head.
    pub behind: u64,
}

impl Blocked {
    /// The letters behind the heads of `by` such sequences.
    pub(super) fn letters(&self, by: i64) -> i64 {
        by.saturating_mul(i64::try_from(self.behind).unwrap_or(i64::MAX))
    }
}

/// The count of a letter and its sequence, before and after a change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CountChange {
    /// The letter before; `None` if it did not exist.
    pub before: Option<CountedAs>,
    /// The letter after; `None` if it no longer exists.
    pub after: Option<CountedAs>,
    /// The sequence before.
    pub blocked_before: Option<Blocked>,
    /// The sequence after.
    pub blocked_after: Option<Blocked>,
    /// The sequence of a letter that was [detached](Effects::detached).
    pub blocked_detached: Option<Blocked>,
}

/// A failure to record in the group of the letter's cause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failed {
    /// When it failed.
    pub at: Timestamp,
    /// `true` if the letter enters the group with it.
    pub enters: bool,
}

/// An audit line; the store adds its number and its time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditLine {
    /// The author, channel and reason.
    pub by: Actor,
    /// The action.
    pub action: String,
    /// Its subject.
    pub subject: String,
    /// The state before.
    pub before: Option<String>,
    /// The state after.
    pub after: Option<String>,
}

impl AuditLine {
    /// Creates a line about a change of state.
    pub fn new(
        by: &Actor,
        action: &str,
        subject: impl ToString,
        before: Option<&str>,
        after: Option<&str>,
    ) -> Self {
        Self {
            by: by.clone(),
            action: action.to_owned(),
            subject: subject.to_string(),
            before: before.map(str::to_owned),
            after: after.map(str::to_owned),
        }
    }

    pub(super) fn of_letter(
        by: &Actor,
        action: &str,
        letter: LetterId,
        before: LetterState,
        after: LetterState,
    ) -> Self {
        Self::new(by, action, letter, Some(before.as_str()), Some(after.as_str()))
    }
}

/// The change of a letter.
#[derive(Clone, Debug)]
pub enum LetterChange {
    /// Store it, open or closed.
    Insert {
        /// Its index in the sequence.
        index: u64,
        /// When it is due: by the clock as it is set now.
        due_at: Option<Timestamp>,
    },
    /// Close it in this state, with a last attempt in its history.
    Close(LetterState, Option<AttemptRecord>),
    /// Keep it in place in another open state that does not run automatically.
    Hold(LetterState),
    /// Keep it in place with fresh attempts: `retrying`, due now, or `waiting` behind the head.
    Release(LetterState),
    /// Reopen it from `evicted` as `dead`, at this index.
    Restore(u64),
    /// Keep it in place after another failure.
    Requeue(Box<Requeue>),
    /// [Remove its content](Letter::erase). In plans that have the letter, its digest
    /// becomes that of no payload, and their hash [`Plan::erased_hash`](crate::store::Plan::erased_hash).
    Erase(Box<Erasure>),
    /// Remove all of it except id and state.
    Forget,
}

impl LetterChange {
    /// Applies the change to a letter in memory. [`Forget`](Self::Forget) changes nothing: the store removes the letter.
    pub fn apply(self, letter: &mut Letter, now: Timestamp) {
        match self {
            Self::Insert { index, due_at } => {
                (letter.index, letter.due_at) = (index, due_at);
                letter.enqueued_at = now;
            }
            Self::Close(state, attempt) => {
                (letter.state, letter.due_at) = (state, None);
                if let Some(attempt) = attempt {
                    letter.record(attempt);
                }
            }
            Self::Hold(state) => (letter.state, letter.due_at) = (state, None),
            Self::Release(state) => {
                (letter.state, letter.due_at) = (state, (state == LetterState::Retrying).then_some(now));
                (letter.attempts, letter.crash_attempts, letter.poison) = (0, 0, false);
            }
            Self::Restore(index) => {
                (letter.state, letter.due_at, letter.index) = (LetterState::Dead, None, index);
            }
            Self::Requeue(requeue) => requeue_letter(letter, *requeue, now),
            Self::Erase(erasure) => letter.erase(*erasure),
            Self::Forget => {}
        }
        letter.last_touched_at = now;
    }
}

/// The time of the requeue's failure; `None` without a failure.
pub(super) fn failed_at(requeue: &Requeue, now: Timestamp) -> Option<Timestamp> {
    let failed = requeue.attempt.as_ref().is_some_and(|attempt| attempt.failure.is_some());
    (failed || requeue.cause.is_some()).then(|| requeue.attempt.as_ref().map_or(now, |attempt| attempt.at))
}

fn requeue_letter(letter: &mut Letter, requeue: Requeue, now: Timestamp) {
    if let Some(at) = failed_at(&requeue, now) {
        if letter.first_failed_at.is_none() || letter.state == LetterState::Waiting {
            // Its time starts now. A time that has passed while it waited is none; one to come was set by a person.
            letter.expires_at = letter.expires_at.filter(|end| *end > now).or(requeue.expires_at);
        }
        letter.first_failed_at.get_or_insert(at);
        letter.last_failed_at = Some(at);
    }
    letter.state = requeue.state;
    letter.due_at = requeue.due_at.filter(|_| requeue.state == LetterState::Retrying);
    letter.attempts = requeue.attempts;
    letter.crash_attempts = requeue.crash_attempts;
    letter.replay_attempts = requeue.replay_attempts;
    letter.poison = requeue.poison;
    letter.diagnostics = requeue.diagnostics;
    if requeue.leave_out_payload && !letter.payload_left_out {
        letter.payload_left_out = true;
        letter.message = Message { payload: None, ..(*letter.message).clone() }.into();
    }
    if let Some(cause) = requeue.cause {
        letter.cause = Some(cause);
    }
    if let Some(attempt) = requeue.attempt {
        letter.record(attempt);
    }
}

/// A letter that leaves its sequence for one of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Detached {
    /// Its new sequence, which was never open before.
    pub sequence: SequenceId,
    /// The row to insert for it, under a new revision of the queue. The letter keeps its index.
    pub row: SequenceRow,
}

/// All changes of a decision about one letter. The store applies them atomically.
#[derive(Clone, Debug)]
#[must_use = "a decision changes nothing before its effects are applied"]
pub struct Effects {
    /// The letter.
    pub letter: LetterChange,
    /// The row of its sequence: the one that it leaves, if it is detached.
    pub sequence: SequenceChange,
    /// The sequence that it goes to.
    pub detached: Option<Detached>,
    /// The change of the counters.
    pub count_change: CountChange,
    /// A failure to record in the letter's new group.
    pub failed: Option<Failed>,
    /// An audit line (I11).
    pub audit: Option<AuditLine>,
    /// `true` if the letter is to be listed as ended in a watched queue, in its state after the change. One that is forgotten keeps its state.
    pub ended: bool,
}

impl Effects {
    /// The effects of a change of an open letter and its sequence.
    pub(super) fn on_open(
        change: LetterChange,
        before: &LetterView,
        after: &LetterView,
        row: &SequenceRow,
        sequence: SequenceChange,
    ) -> Self {
        let blocked_after = match &sequence {
            SequenceChange::Keep => row.blocked(),
            changed => changed.row().and_then(SequenceRow::blocked),
        };
        let count_change = CountChange {
            before: Some(before.counted_as()),
            after: Some(after.counted_as()),
            blocked_before: row.blocked(),
            blocked_after,
            blocked_detached: None,
        };
        Self {
            letter: change,
            sequence,
            detached: None,
            count_change,
            failed: None,
            audit: None,
            ended: false,
        }
    }

    /// Closes an open letter. `next` is the letter behind it, for the head.
    pub(super) fn close(
        letter: &LetterView,
        state: LetterState,
        attempt: Option<AttemptRecord>,
        row: &SequenceRow,
        next: Option<Head>,
        now: Timestamp,
    ) -> Self {
        let after = LetterView { state, ..*letter };
        let sequence = SequenceChange::put_or_remove(row.without(letter.index, next, now));
        Self::on_open(LetterChange::Close(state, attempt), letter, &after, row, sequence)
    }

    /// The effects of a new letter.
    pub(super) fn insert(
        letter: &LetterView,
        failed_at: Option<Timestamp>,
        sequence: SequenceChange,
        row: Option<&SequenceRow>,
        now: Timestamp,
    ) -> Self {
        let count_change = CountChange {
            before: None,
            after: Some(letter.counted_as()),
            blocked_before: row.and_then(SequenceRow::blocked),
            blocked_after: sequence.row().and_then(SequenceRow::blocked),
            blocked_detached: None,
        };
        let failed = letter.group.map(|_| Failed { at: failed_at.unwrap_or(now), enters: true });
        let ended = is_end(None, letter.state);
        Self {
            letter: LetterChange::Insert { index: letter.index, due_at: letter.due_at },
            sequence,
            detached: None,
            count_change,
            failed,
            audit: None,
            ended,
        }
    }

    /// The same change of a letter that leaves its sequence. `next` is the letter behind it, for the head.
    pub(super) fn detach(
        self,
        letter: &LetterView,
        to: SequenceId,
        row: &SequenceRow,
        next: Option<Head>,
        now: Timestamp,
    ) -> Self {
        let sequence = SequenceChange::put_or_remove(row.without(letter.index, next, now));
        let detached = Detached { sequence: to, row: SequenceRow::opened(letter.head(now), false) };
        let count_change = CountChange {
            blocked_after: sequence.row().and_then(SequenceRow::blocked),
            blocked_detached: detached.row.blocked(),
            ..self.count_change
        };
        Self { sequence, detached: Some(detached), count_change, ..self }
    }

    pub(super) fn audited(self, line: AuditLine) -> Self {
        Self { audit: Some(line), ..self }
    }

    /// The index from which letters run automatically from now on ([`SequenceRow::released_from`]); `None` if the sequence is
    /// closed, reserved, or its head does not run by itself.
    pub fn released_from(&self) -> Option<u64> {
        match &self.sequence {
            SequenceChange::Put(row) | SequenceChange::Reopen(row) => row.released_from(),
            _ => None,
        }
    }

    /// Sets the pace of released letters.
    pub fn pace(&mut self, pace: super::Pace, now: Timestamp) {
        if let SequenceChange::Put(row) | SequenceChange::Reopen(row) = &mut self.sequence {
            *row = row.clone().paced(pace, now);
        }
    }

    /// Reserves the sequence for an operation, or ends the reservation.
    pub fn reserve(&mut self, operation: Option<crate::store::OperationId>) {
        if let SequenceChange::Put(row) | SequenceChange::Reopen(row) = &mut self.sequence {
            row.reserved = operation;
        }
    }
}
