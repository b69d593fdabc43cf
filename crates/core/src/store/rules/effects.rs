//! What a decision comes to: changes to one letter, its sequence, its groups, the audit and the list of ends.

use jiff::Timestamp;

use super::sequence::{Head, SequenceChange, SequenceRow, due_of};
use crate::fingerprint::Fingerprint;
use crate::letter::{AttemptRecord, Letter, LetterId, LetterState};
use crate::message::Message;
use crate::store::{Actor, Requeue, is_end};

/// What the rules need to know of a stored letter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LetterView {
    /// Its id.
    pub id: LetterId,
    /// Its place in the sequence.
    pub index: u64,
    /// Its state.
    pub state: LetterState,
    /// When it is due, for `retrying`.
    pub due_at: Option<Timestamp>,
    /// When it was taken in.
    pub enqueued_at: Timestamp,
    /// When it was last touched.
    pub touched_at: Timestamp,
    /// The group of its cause.
    pub group: Option<Fingerprint>,
}

impl LetterView {
    /// What there is to know of this letter.
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

    /// How the row of its sequence remembers it if it is the head.
    pub fn head(&self) -> Head {
        Head {
            index: self.index,
            due: due_of(self.state, self.due_at, self.enqueued_at),
            touched: self.touched_at,
            group: self.group,
        }
    }

    /// Where it is counted.
    pub const fn standing(&self) -> Standing {
        Standing { group: self.group, state: self.state }
    }
}

/// The group that a letter belongs to: that of its cause, as long as it is stored.
pub(super) fn group_of(letter: &Letter) -> Option<Fingerprint> {
    letter.cause.as_ref().map(|cause| cause.fingerprint)
}

/// Where a letter is counted: in its queue by its state, and in its group if it has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standing {
    /// The group.
    pub group: Option<Fingerprint>,
    /// The state.
    pub state: LetterState,
}

/// What a sequence adds to the group of its head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Blocked {
    /// The group.
    pub group: Fingerprint,
    /// How many letters stand behind the head.
    pub behind: u64,
}

/// How a letter and its sequence were counted before, and how they are counted now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// The letter before; `None` when it was not there.
    pub was: Option<Standing>,
    /// The letter now; `None` when it is not there any more.
    pub is: Option<Standing>,
    /// The sequence before.
    pub was_blocked: Option<Blocked>,
    /// The sequence now.
    pub is_blocked: Option<Blocked>,
}

/// A failure that a group is to be told of: that of the letter's cause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failed {
    /// When it failed.
    pub at: Timestamp,
    /// Whether the letter comes into the group with it.
    pub enters: bool,
}

/// A line for the audit; the store gives it its number and its time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditLine {
    /// Who did it, how and why.
    pub by: Actor,
    /// What was done.
    pub action: String,
    /// To what.
    pub subject: String,
    /// How it stood before.
    pub before: Option<String>,
    /// How it stands now.
    pub after: Option<String>,
}

impl AuditLine {
    /// A line about something that went from one state to another.
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

/// What becomes of a letter.
#[derive(Clone, Debug)]
pub enum LetterChange {
    /// It is stored at this index, open or closed as it comes.
    Insert(u64),
    /// It leaves its sequence in this state, with a last attempt in its history.
    Close(LetterState, Option<AttemptRecord>),
    /// It stays where it is, in another open state, and does not run by itself.
    Hold(LetterState),
    /// It stays where it is, due now, with fresh attempts.
    Release,
    /// It comes back from `evicted` as `dead`, at this index.
    Restore(u64),
    /// It failed again and stays where it is.
    Requeue(Box<Requeue>),
    /// All of it goes but its id and its state.
    Forget,
}

impl LetterChange {
    /// Makes the change on a letter in memory. [`Forget`](Self::Forget) is the store's: nothing is left to be changed.
    pub fn apply(self, letter: &mut Letter, now: Timestamp) {
        match self {
            Self::Insert(index) => {
                letter.index = index;
                letter.enqueued_at = now;
            }
            Self::Close(state, attempt) => {
                (letter.state, letter.due_at) = (state, None);
                if let Some(attempt) = attempt {
                    letter.record(attempt);
                }
            }
            Self::Hold(state) => (letter.state, letter.due_at) = (state, None),
            Self::Release => {
                (letter.state, letter.due_at) = (LetterState::Retrying, Some(now));
                (letter.attempts, letter.crash_attempts, letter.poison) = (0, 0, false);
            }
            Self::Restore(index) => {
                (letter.state, letter.due_at, letter.index) = (LetterState::Dead, None, index);
            }
            Self::Requeue(requeue) => requeue_letter(letter, *requeue, now),
            Self::Forget => {}
        }
        letter.last_touched_at = now;
    }
}

/// When a requeue says that the letter failed; `None` when it says nothing of it.
pub(super) fn failed_at(requeue: &Requeue, now: Timestamp) -> Option<Timestamp> {
    let failed = requeue.attempt.as_ref().is_some_and(|attempt| attempt.failure.is_some());
    (failed || requeue.cause.is_some()).then(|| requeue.attempt.as_ref().map_or(now, |attempt| attempt.at))
}

fn requeue_letter(letter: &mut Letter, requeue: Requeue, now: Timestamp) {
    if let Some(at) = failed_at(&requeue, now) {
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

/// All that a decision about one letter changes. The store applies it as a whole, or nothing of it.
#[derive(Clone, Debug)]
#[must_use = "a decision changes nothing before its effects are applied"]
pub struct Effects {
    /// The letter.
    pub letter: LetterChange,
    /// The row of its sequence.
    pub sequence: SequenceChange,
    /// What is counted differently.
    pub tally: Tally,
    /// A failure to be seen by the group in which the letter is now.
    pub failed: Option<Failed>,
    /// A line for the audit (I11).
    pub audit: Option<AuditLine>,
    /// Whether the letter is to be listed as ended, where somebody watches.
    pub ended: bool,
}

impl Effects {
    /// Effects on an open letter: it and its sequence stand like this from now on.
    pub(super) fn on_open(
        change: LetterChange,
        before: &LetterView,
        after: &LetterView,
        row: &SequenceRow,
        sequence: SequenceChange,
    ) -> Self {
        let is_blocked = match &sequence {
            SequenceChange::Keep => row.blocked(),
            changed => changed.row().and_then(SequenceRow::blocked),
        };
        let tally = Tally {
            was: Some(before.standing()),
            is: Some(after.standing()),
            was_blocked: row.blocked(),
            is_blocked,
        };
        Self { letter: change, sequence, tally, failed: None, audit: None, ended: false }
    }

    /// Closes an open letter. `next` is the letter behind it, for the head.
    pub(super) fn close(
        letter: &LetterView,
        state: LetterState,
        attempt: Option<AttemptRecord>,
        row: &SequenceRow,
        next: Option<Head>,
    ) -> Self {
        let after = LetterView { state, ..*letter };
        let sequence = SequenceChange::put_or_remove(row.without(letter.index, next));
        Self::on_open(LetterChange::Close(state, attempt), letter, &after, row, sequence)
    }

    /// Effects of a letter that is new.
    pub(super) fn insert(
        letter: &LetterView,
        failed_at: Option<Timestamp>,
        sequence: SequenceChange,
        row: Option<&SequenceRow>,
        now: Timestamp,
    ) -> Self {
        let tally = Tally {
            was: None,
            is: Some(letter.standing()),
            was_blocked: row.and_then(SequenceRow::blocked),
            is_blocked: sequence.row().and_then(SequenceRow::blocked),
        };
        let failed = letter.group.map(|_| Failed { at: failed_at.unwrap_or(now), enters: true });
        let ended = is_end(None, letter.state);
        Self { letter: LetterChange::Insert(letter.index), sequence, tally, failed, audit: None, ended }
    }

    pub(super) fn audited(self, line: AuditLine) -> Self {
        Self { audit: Some(line), ..self }
    }

    /// Reserves the sequence for an operation that goes on with it, or for none.
    pub fn reserve(&mut self, operation: Option<crate::store::OperationId>) {
        if let SequenceChange::Put(row) | SequenceChange::Reopen(row) = &mut self.sequence {
            row.reserved = operation;
        }
    }
}
