//! The row of an open sequence: what it remembers of its head, its lease and its reservation.

use std::time::Duration;

use jiff::Timestamp;

use super::effects::{Blocked, LetterView};
use super::later;
use crate::fingerprint::Fingerprint;
use crate::letter::LetterState;
use crate::message::QueueName;
use crate::sequence::SequenceId;
use crate::store::{Lease, OperationId};

/// The time from which a letter may run by itself if it is the head; `None` when it may not.
///
/// ```
/// use lazaret_core::store::rules::due_of;
/// use lazaret_core::{LetterState, Timestamp};
/// let (early, late) = (Timestamp::UNIX_EPOCH, Timestamp::MAX);
/// assert_eq!(due_of(LetterState::Retrying, Some(late), early), Some(late));
/// assert_eq!(due_of(LetterState::Waiting, None, early), Some(early));
/// assert_eq!(due_of(LetterState::Dead, None, early), None);
/// ```
pub fn due_of(state: LetterState, due_at: Option<Timestamp>, enqueued_at: Timestamp) -> Option<Timestamp> {
    match state {
        LetterState::Retrying => Some(due_at.unwrap_or(enqueued_at)),
        // At once: since before now.
        LetterState::Waiting => Some(enqueued_at),
        _ => None,
    }
}

/// What the row of a sequence remembers of the letter at its head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// Its index.
    pub index: u64,
    /// When it may run by itself; `None` when it may not.
    pub due: Option<Timestamp>,
    /// When it was last touched.
    pub touched: Timestamp,
    /// The group of its cause.
    pub group: Option<Fingerprint>,
}

/// The right that somebody has to a sequence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldLease {
    /// Who.
    pub owner: String,
    /// Its number in the queue.
    pub fence: u64,
    /// When it ends.
    pub until: Timestamp,
    /// What for.
    pub kind: LeaseKind,
}

/// What a lease was taken for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseKind {
    /// Letters that are due: it goes on as long as the next one may run by itself.
    Due,
    /// A replay by hand: it goes on whatever the state of the next letter.
    Replay,
    /// One letter of an operation: each letter has a turn of its own.
    Operation(OperationId),
}

impl LeaseKind {
    /// The operation for which it was taken.
    pub const fn operation(self) -> Option<OperationId> {
        match self {
            Self::Operation(id) => Some(id),
            Self::Due | Self::Replay => None,
        }
    }
}

/// The row of an open sequence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SequenceRow {
    /// How many open letters it has; never 0.
    pub count: u64,
    /// The first of them.
    pub head: Head,
    /// Whether a person paused the sequence.
    pub paused: bool,
    /// Who works on it, or last did: a lease that has ended stays until the next claim.
    pub lease: Option<HeldLease>,
    /// The operation that has begun with its letters and goes on with them: until then they do not run by themselves.
    pub reserved: Option<OperationId>,
}

/// Under which times a sequence stands in the scheduler's two indexes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Schedule {
    /// Nobody holds it: it can be claimed from this time on.
    pub due: Option<Timestamp>,
    /// Somebody holds it: it can be claimed from this time on at the earliest.
    pub busy: Option<Timestamp>,
}

/// What becomes of the row of a sequence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SequenceChange {
    /// Nothing.
    Keep,
    /// The sequence is opened with this row, under a new revision of its queue.
    Open(SequenceRow),
    /// The row from now on.
    Put(SequenceRow),
    /// The row from now on, under a new revision of its queue: a letter came back into it.
    Reopen(SequenceRow),
    /// The last letter has left.
    Remove,
}

impl SequenceRow {
    pub(super) const fn opened(head: Head, paused: bool) -> Self {
        Self { count: 1, head, paused, lease: None, reserved: None }
    }

    /// Whether somebody works on it now.
    pub fn is_leased(&self, now: Timestamp) -> bool {
        self.lease.as_ref().is_some_and(|lease| lease.until > now)
    }

    /// Whether somebody works on the letter with this index: one at or before the head is not for others to change.
    pub fn is_in_work(&self, index: u64, now: Timestamp) -> bool {
        self.is_leased(now) && index <= self.head.index
    }

    /// The operation for which it is leased now.
    pub fn operation(&self, now: Timestamp) -> Option<OperationId> {
        self.lease.as_ref().filter(|lease| lease.until > now)?.kind.operation()
    }

    /// Where it stands in the indexes of the scheduler.
    pub fn schedule(&self) -> Schedule {
        let may_run = !self.paused && self.reserved.is_none();
        match (self.head.due.filter(|_| may_run), &self.lease) {
            (Some(due), Some(lease)) => Schedule { due: None, busy: Some(due.max(lease.until)) },
            (due, _) => Schedule { due, busy: None },
        }
    }

    /// What it adds to the group of its head: all letters behind the head are blocked by it.
    pub fn blocked(&self) -> Option<Blocked> {
        self.head.group.map(|group| Blocked { group, behind: self.count - 1 })
    }

    /// The row under a new lease. The fence must never have been given before in this queue.
    pub fn claimed(&self, owner: &str, lease: Duration, kind: LeaseKind, fence: u64, now: Timestamp) -> Self {
        let held = HeldLease { owner: owner.to_owned(), fence, until: later(now, lease), kind };
        Self { lease: Some(held), ..self.clone() }
    }

    /// The lease as its owner gets it.
    pub fn lease_of(&self, queue: &QueueName, sequence: &SequenceId) -> Option<Lease> {
        let HeldLease { owner, fence, until, .. } = self.lease.clone()?;
        Some(Lease { queue: queue.clone(), sequence: sequence.clone(), owner, fence, until })
    }

    /// The row without a letter. `next` is the letter behind it, for the head.
    pub(super) fn without(&self, index: u64, next: Option<Head>) -> Option<Self> {
        let head = if index == self.head.index { next? } else { self.head };
        Some(Self { count: self.count.saturating_sub(1).max(1), head, ..self.clone() })
    }

    /// The row with one letter more.
    pub(super) fn with(&self, letter: &LetterView) -> Self {
        let head = if letter.index < self.head.index { letter.head() } else { self.head };
        Self { count: self.count + 1, head, ..self.clone() }
    }

    /// The row after a letter of it has changed.
    pub(super) fn changed(&self, letter: &LetterView) -> Self {
        let head = if letter.index == self.head.index { letter.head() } else { self.head };
        Self { head, ..self.clone() }
    }
}

impl SequenceChange {
    /// The row after it, if there is one and it is not the old one.
    pub const fn row(&self) -> Option<&SequenceRow> {
        match self {
            Self::Open(row) | Self::Put(row) | Self::Reopen(row) => Some(row),
            Self::Keep | Self::Remove => None,
        }
    }

    pub(super) fn put_or_remove(row: Option<SequenceRow>) -> Self {
        row.map_or(Self::Remove, Self::Put)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn row() -> SequenceRow {
        SequenceRow::opened(Head { index: 7, due: Some(at(10)), touched: at(1), group: None }, false)
    }

    #[test]
    fn a_leased_sequence_is_free_when_both_its_lease_and_its_due_time_have_passed() {
        let leased = row().claimed("w", Duration::from_secs(30), LeaseKind::Due, 1, at(0));
        assert_eq!(leased.schedule(), Schedule { due: None, busy: Some(at(30)) });
        let short = row().claimed("w", Duration::from_secs(3), LeaseKind::Due, 1, at(0));
        assert_eq!(short.schedule().busy, Some(at(10)), "I12: not before it is due");
        assert_eq!(row().schedule(), Schedule { due: Some(at(10)), busy: None });
    }

    #[test]
    fn what_is_paused_or_reserved_is_in_no_index() {
        for row in
            [SequenceRow { paused: true, ..row() }, SequenceRow { reserved: Some(OperationId(1)), ..row() }]
        {
            assert_eq!(row.schedule(), Schedule::default());
        }
    }

    #[test]
    fn only_the_head_and_what_would_go_before_it_is_in_work() {
        let leased = row().claimed("w", Duration::from_secs(30), LeaseKind::Due, 1, at(0));
        assert!(leased.is_in_work(7, at(1)) && leased.is_in_work(6, at(1)));
        assert!(!leased.is_in_work(8, at(1)), "a letter behind the head is nobody's");
        assert!(!leased.is_in_work(7, at(30)), "a lease ends at its end");
    }

    #[test]
    fn a_row_goes_with_its_last_letter() {
        assert_eq!(row().without(7, None), None);
        let two = SequenceRow { count: 2, ..row() };
        assert_eq!(two.without(9, None), Some(row()), "the head stays");
        let next = Head { index: 9, ..two.head };
        assert_eq!(two.without(7, Some(next)).unwrap().head.index, 9);
    }
}
