//! The row of an open sequence: its head, lease and reservation.

use std::time::Duration;

use jiff::Timestamp;

use super::effects::{Blocked, LetterView};
use super::later;
use crate::fingerprint::Fingerprint;
use crate::letter::{Letter, LetterState};
use crate::message::QueueName;
use crate::sequence::SequenceId;
use crate::store::{Lease, LeaseUse, OperationId};

/// When a letter may run automatically as the head; `None` if it may not.
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
        // At once.
        LetterState::Waiting => Some(enqueued_at),
        _ => None,
    }
}

/// Number of letters that run automatically one after the other: up to the first one that does not, which blocks those behind it.
/// The states are those of the letters of a sequence in order, [from](SequenceRow::released_from) the first one that runs.
///
/// ```
/// use lazaret_core::LetterState::{Dead, Retrying, Waiting};
/// use lazaret_core::store::rules::released_letters;
/// assert_eq!(released_letters([Retrying, Waiting, Dead, Waiting]), 2);
/// ```
pub fn released_letters(states: impl IntoIterator<Item = LetterState>) -> u64 {
    states.into_iter().take_while(|state| state.is_automatic()).count() as u64
}

/// The head of a sequence, as its row keeps it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// Its index.
    pub index: u64,
    /// When it may run automatically; `None` if it may not.
    pub due: Option<Timestamp>,
    /// When it was last touched, or when the pace of its sequence was set, if that is later: its times are relative to this one
    /// if the clock is set back.
    pub touched: Timestamp,
    /// The group of its cause.
    pub group: Option<Fingerprint>,
}

/// By how much a stored time may be ahead of the clock before the clock counts as set back. The processes that share a store
/// read the clock one after the other, and a call that began earlier may write later.
const CLOCK_TOLERANCE: Duration = Duration::from_secs(1);

/// How far the clock was set back since this time, at least; `None` if it was not.
pub(crate) fn set_back(since: Timestamp, now: Timestamp) -> Option<Duration> {
    let by = Duration::try_from(since.duration_since(now)).ok()?;
    (by > CLOCK_TOLERANCE).then_some(by)
}

/// Subtracts a duration from a time, saturating at the minimum.
pub(crate) fn earlier(time: Timestamp, by: Duration) -> Timestamp {
    time.checked_sub(by).unwrap_or(Timestamp::MIN)
}

/// The due time of a letter that is stored now. The engine decided it at the time of the failure: if that is in the future, the
/// clock was set back since, and the letter is due as long after now as it was after the failure.
pub(super) fn due_when_stored(
    due_at: Option<Timestamp>,
    failed_at: Option<Timestamp>,
    now: Timestamp,
) -> Option<Timestamp> {
    let due = due_at?;
    let Some(failed_at) = failed_at.filter(|failed_at| set_back(*failed_at, now).is_some()) else {
        return due_at;
    };
    let delay = Duration::try_from(due.duration_since(failed_at)).unwrap_or_default();
    Some(due.min(later(now, delay)))
}

impl Head {
    /// The head by a clock that may have been set back since it was touched. Its due time is then as far from now as it was from
    /// the touch: it waits for its delay, and not for the clock to catch up. It never runs earlier than it would have by a
    /// clock that runs on (I12).
    pub(super) fn as_of(self, now: Timestamp) -> Self {
        let Some(by) = set_back(self.touched, now) else { return self };
        Self { due: self.due.map(|due| earlier(due, by)), touched: now, ..self }
    }

    /// Gives the letter at the head the due time of its row. They differ if the clock was set back before it became the head.
    pub fn date(&self, letter: &mut Letter) {
        if letter.state == LetterState::Retrying && letter.due_at.is_some() {
            letter.due_at = self.due;
        }
    }
}

/// The end of a lease that expired.
pub(super) const EXPIRED: Timestamp = Timestamp::UNIX_EPOCH;

/// The stored lease of a sequence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldLease {
    /// The owner.
    pub owner: String,
    /// Its number in the queue.
    pub fence: u64,
    /// When it ends. 1970 for one that [expired](SequenceRow::expired): its sequence is in the index of due ones again.
    pub until: Timestamp,
    /// Its purpose.
    pub kind: LeaseKind,
    /// What its owner used it for at the last renewal. It begins with `Attempt` if the lease before it
    /// [was interrupted](SequenceRow::was_interrupted), so that the next claim for due letters learns of it, too, unless a settlement has
    /// counted that attempt. Attempts of replays are not counted by leases, and do not change it.
    pub used_for: LeaseUse,
}

impl HeldLease {
    /// The lease when its owner continues with the next letter.
    pub(super) fn for_next_letter(&self) -> Self {
        Self { used_for: LeaseUse::Wait, ..self.clone() }
    }

    /// The lease that is left when its owner ends it and the letter stays at the head: that of the attempt which was interrupted
    /// before a replay.
    fn interrupted_before(self) -> Option<Self> {
        let interrupted = self.kind != LeaseKind::Due && self.used_for == LeaseUse::Attempt;
        interrupted.then_some(Self { until: EXPIRED, kind: LeaseKind::Due, ..self })
    }
}

/// The purpose of a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseKind {
    /// Due letters: the lease continues while the next letter may run automatically.
    Due,
    /// A replay by hand: the lease continues whatever the state of the next letter.
    Replay,
    /// Letters of an operation: the lease continues with the next one only if the operation [takes](super::takes_next) it.
    Operation(OperationId),
}

impl LeaseKind {
    /// The operation, if any.
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
    /// Number of open letters; never 0.
    pub count: u64,
    /// The first letter.
    pub head: Head,
    /// `true` if a person paused the sequence.
    pub paused: bool,
    /// The current or last lease: an expired lease stays until the next claim.
    pub lease: Option<HeldLease>,
    /// The operation for which the remaining letters are reserved: until it is over, or has no more letters of the sequence before it,
    /// they do not run automatically. A store that writes this down clears it in all sequences when the operation ends.
    pub reserved: Option<OperationId>,
    /// The pace at which its letters run automatically, if an operation with a rate released them.
    pub pace: Option<Pace>,
}

/// The pace of letters that run automatically because an operation with a rate released them: they stood behind letters that it
/// closed, or were released themselves. Its rate bounds their calls as well
/// ([`OperationMachine::pace_released`](crate::store::OperationMachine::pace_released)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// The earliest time of the next run.
    pub next: Timestamp,
    /// The time between two runs.
    pub interval: Duration,
    /// Number of letters to run at this pace; those behind them run at once.
    pub left: u64,
}

impl Pace {
    /// The pace after a run: one letter fewer if it `closed`.
    fn after_run(self, closed: bool, now: Timestamp) -> Option<Self> {
        let left = self.left.saturating_sub(u64::from(closed));
        let next = later(self.next.max(now), self.interval);
        (left > 0).then_some(Self { next, left, ..self })
    }
}

/// The times of a sequence in the scheduler's two indexes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Schedule {
    /// When it can be claimed, if it is not leased.
    pub due: Option<Timestamp>,
    /// When it can be claimed at the earliest, if it is leased.
    pub busy: Option<Timestamp>,
}

/// The change of the row of a sequence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SequenceChange {
    /// No change.
    Keep,
    /// Insert this row, under a new revision of its queue.
    Open(SequenceRow),
    /// Update the row.
    Put(SequenceRow),
    /// Update the row, under a new revision of its queue: a letter was restored.
    Reopen(SequenceRow),
    /// Delete the row after its last letter.
    Remove,
}

impl SequenceRow {
    pub(super) const fn opened(head: Head, paused: bool) -> Self {
        Self { count: 1, head, paused, lease: None, reserved: None, pace: None }
    }

    /// `true` if it is leased now.
    pub fn is_leased(&self, now: Timestamp) -> bool {
        self.lease.as_ref().is_some_and(|lease| lease.until > now)
    }

    /// `true` if the letter with this index is in flight: at or before the head of a leased sequence.
    pub fn is_in_flight(&self, index: u64, now: Timestamp) -> bool {
        self.is_leased(now) && index <= self.head.index
    }

    /// `true` if the last lease for due letters has expired: neither a settlement nor a release ended it, so an attempt at the head
    /// had begun, and its end is unknown. Not so if its owner [waited](LeaseUse::Wait). Replays since then do not change
    /// that. Ask before the row is [claimed](Self::claimed) again.
    pub fn was_interrupted(&self, now: Timestamp) -> bool {
        self.lease.as_ref().is_some_and(|lease| lease.until <= now && lease.used_for == LeaseUse::Attempt)
    }

    /// `true` if the last lease has expired, whatever it was for. Ask before the row is [claimed](Self::claimed) again.
    pub fn was_lost(&self, now: Timestamp) -> bool {
        self.lease.as_ref().is_some_and(|lease| lease.until <= now)
    }

    /// The operation for which it is leased now.
    pub fn operation(&self, now: Timestamp) -> Option<OperationId> {
        self.lease.as_ref().filter(|lease| lease.until > now)?.kind.operation()
    }

    /// When the head may run automatically, apart from pauses, reservations and leases.
    pub fn due(&self) -> Option<Timestamp> {
        let due = self.head.due?;
        Some(self.pace.map_or(due, |pace| due.max(pace.next)))
    }

    /// The index from which its letters run automatically from now on: that of the head. `None` if that does not run by itself.
    /// [`released_letters`] counts them.
    pub fn released_from(&self) -> Option<u64> {
        (self.head.due.is_some() && self.reserved.is_none()).then_some(self.head.index)
    }

    /// The row after an automatic run of its head.
    pub(super) fn after_run(self, closed: bool, now: Timestamp) -> Self {
        match self.pace.and_then(|pace| pace.after_run(closed, now)) {
            Some(pace) => self.paced(pace, now),
            None => Self { pace: None, ..self },
        }
    }

    /// The row with a pace that is set now.
    pub(super) fn paced(self, pace: Pace, now: Timestamp) -> Self {
        Self { pace: Some(pace), head: Head { touched: now, ..self.head }, ..self }
    }

    /// The row by a clock that was set back since its head was touched: its times are as far from now as they were from the
    /// touch. `None` if the clock was not set back.
    pub(super) fn set_back(&self, now: Timestamp) -> Option<Self> {
        let by = set_back(self.head.touched, now)?;
        let pace = self.pace.map(|pace| Pace { next: earlier(pace.next, by), ..pace });
        Some(Self { head: self.head.as_of(now), pace, ..self.clone() })
    }

    /// Its times in the scheduler's indexes.
    pub fn schedule(&self) -> Schedule {
        let may_run = !self.paused && self.reserved.is_none();
        match (self.due().filter(|_| may_run), &self.lease) {
            (Some(due), Some(lease)) if lease.until > EXPIRED => {
                Schedule { due: None, busy: Some(due.max(lease.until)) }
            }
            (due, _) => Schedule { due, busy: None },
        }
    }

    /// Its contribution to the group of its head, which blocks all letters behind it.
    pub fn blocked(&self) -> Option<Blocked> {
        self.head.group.map(|group| Blocked { group, behind: self.count - 1 })
    }

    /// The row after its lease expired: in the index of due sequences again. The lease stays, so that the next claim can
    /// report it.
    pub fn expired(&self) -> Self {
        let lease = self.lease.clone().map(|lease| HeldLease { until: EXPIRED, ..lease });
        Self { lease, ..self.clone() }
    }

    /// The row after its owner ended the lease.
    pub(super) fn released(self) -> Self {
        Self { lease: self.lease.and_then(HeldLease::interrupted_before), ..self }
    }

    /// The row under a new lease, with the times of a clock that was set back. The fence must be new in this queue. The letter at
    /// its head gets the [due time of the row](Head::date).
    pub fn claimed(&self, owner: &str, lease: Duration, kind: LeaseKind, fence: u64, now: Timestamp) -> Self {
        let until = later(now, lease);
        let used_for = if self.was_interrupted(now) { LeaseUse::Attempt } else { LeaseUse::Wait };
        let held = HeldLease { owner: owner.to_owned(), fence, until, kind, used_for };
        Self { lease: Some(held), ..self.set_back(now).unwrap_or_else(|| self.clone()) }
    }

    /// The lease as returned to its owner.
    pub fn lease_of(&self, queue: &QueueName, sequence: &SequenceId) -> Option<Lease> {
        let HeldLease { owner, fence, until, .. } = self.lease.clone()?;
        Some(Lease { queue: queue.clone(), sequence: sequence.clone(), owner, fence, until })
    }

    /// The row without a letter. `next` is the letter behind it, for the head.
    pub(super) fn without(&self, index: u64, next: Option<Head>, now: Timestamp) -> Option<Self> {
        let row = if index == self.head.index { self.headed(next?, now) } else { self.clone() };
        Some(Self { count: self.count.saturating_sub(1).max(1), ..row })
    }

    /// The row with this head as of now. A lease that expired speaks of the letter that was the head then.
    fn headed(&self, head: Head, now: Timestamp) -> Self {
        let row = self.set_back(now).unwrap_or_else(|| self.clone());
        let is_same = head.index == self.head.index;
        Self { head, lease: row.lease.filter(|lease| is_same || lease.until > now), ..row }
    }

    /// The row with one more letter.
    pub(super) fn with(&self, letter: &LetterView, now: Timestamp) -> Self {
        let is_first = letter.index < self.head.index;
        let row = if is_first { self.headed(letter.head(now), now) } else { self.clone() };
        Self { count: self.count + 1, ..row }
    }

    /// The row after a change of one of its letters.
    pub fn changed(&self, letter: &LetterView, now: Timestamp) -> Self {
        if letter.index == self.head.index { self.headed(letter.head(now), now) } else { self.clone() }
    }
}

impl SequenceChange {
    /// The new row, if there is one.
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
    fn paused_and_reserved_sequences_are_in_no_index() {
        for row in
            [SequenceRow { paused: true, ..row() }, SequenceRow { reserved: Some(OperationId(1)), ..row() }]
        {
            assert_eq!(row.schedule(), Schedule::default());
        }
    }

    /// The row after its owner has recorded an attempt.
    fn during_an_attempt(row: &SequenceRow) -> SequenceRow {
        let lease = row.lease.clone().map(|lease| HeldLease { used_for: LeaseUse::Attempt, ..lease });
        SequenceRow { lease, ..row.clone() }
    }

    #[test]
    fn only_an_expired_lease_for_due_letters_was_interrupted() {
        let claimed = |kind| row().claimed("w", Duration::from_secs(30), kind, 1, at(0));
        let fresh = claimed(LeaseKind::Due);
        assert!(!fresh.was_interrupted(at(30)) && fresh.was_lost(at(30)), "no attempt was recorded");
        let due = during_an_attempt(&fresh);
        assert!(due.was_interrupted(at(30)) && !due.was_interrupted(at(29)) && !due.was_lost(at(29)));
        let expired = due.expired();
        assert!(expired.was_interrupted(at(30)) && !expired.is_leased(at(1)));
        assert_eq!(expired.schedule(), row().schedule(), "it is due again");
        assert!(!row().was_interrupted(at(30)) && !row().was_lost(at(30)), "never leased, or released");
        for kind in [LeaseKind::Replay, LeaseKind::Operation(OperationId(1))] {
            assert!(!claimed(kind).was_interrupted(at(30)));
            assert_eq!(claimed(kind).released().lease, None);
        }
    }

    #[test]
    fn an_interruption_is_passed_on_by_every_kind_of_replay_until_due_letters_are_claimed() {
        // I4
        let claim =
            |row: &SequenceRow, kind, now| row.claimed("w", Duration::from_secs(30), kind, 2, at(now));
        let lost = during_an_attempt(&claim(&row(), LeaseKind::Due, 0));
        let again = claim(&lost, LeaseKind::Due, 30);
        assert!(again.was_interrupted(at(60)), "the claim that learnt of it was lost, too");
        for kind in [LeaseKind::Replay, LeaseKind::Operation(OperationId(1))] {
            let replayed = claim(&lost, kind, 30);
            assert!(replayed.is_leased(at(59)) && replayed.was_interrupted(at(60)), "it was cut off");
            let released = replayed.released();
            assert!(released.was_interrupted(at(31)) && !released.is_leased(at(31)));
            assert_eq!(released.schedule(), row().schedule(), "it is due at once");
            assert_eq!(claim(&released, LeaseKind::Due, 31).released().lease, None, "it was reported");
        }
    }

    #[test]
    fn only_the_head_and_letters_before_it_are_in_flight() {
        let leased = row().claimed("w", Duration::from_secs(30), LeaseKind::Due, 1, at(0));
        assert!(leased.is_in_flight(7, at(1)) && leased.is_in_flight(6, at(1)));
        assert!(!leased.is_in_flight(8, at(1)), "a letter behind the head is not in flight");
        assert!(!leased.is_in_flight(7, at(30)), "the lease has ended");
    }

    #[test]
    fn the_times_of_a_row_go_back_with_the_clock() {
        // I12
        let interval = Duration::from_secs(1);
        let pace = Some(Pace { next: at(60), interval, left: 3 });
        let head = Head { due: Some(at(100)), touched: at(40), ..row().head };
        let paced = SequenceRow { head, pace, ..row() };
        for now in [at(40), at(41), at(39), at(1000)] {
            assert_eq!(paced.set_back(now), None, "it was not set back at {now}");
        }
        let back = paced.set_back(at(10)).unwrap();
        assert_eq!((back.head.due, back.head.touched), (Some(at(70)), at(10)), "60 s after the touch");
        assert_eq!(back.pace.map(|pace| pace.next), Some(at(30)));
        assert_eq!(back.set_back(at(10)), None, "once");
        assert_eq!(back.set_back(at(5)).unwrap().head.due, Some(at(65)), "each step");
    }

    #[test]
    fn a_letter_that_is_stored_after_the_clock_was_set_back_waits_for_its_delay() {
        // I12
        let due = |failed_at: i64, now| due_when_stored(Some(at(130)), Some(at(failed_at)), at(now));
        assert_eq!(due(100, 100), Some(at(130)));
        assert_eq!(due(100, 120), Some(at(130)));
        assert_eq!(due(100, 10), Some(at(40)), "30 s after now");
        assert_eq!(due(200, 10), Some(at(10)), "it was due before the failure");
        assert_eq!(due_when_stored(Some(at(130)), None, at(10)), Some(at(130)));
        assert_eq!(due_when_stored(None, Some(at(100)), at(10)), None);
    }

    #[test]
    fn a_claim_dates_the_head_by_the_clock_as_it_is_set() {
        let head = Head { due: Some(at(100)), touched: at(40), ..row().head };
        let claimed =
            SequenceRow { head, ..row() }.claimed("w", Duration::from_secs(30), LeaseKind::Replay, 1, at(10));
        assert_eq!((claimed.head.due, claimed.head.touched), (Some(at(70)), at(10)));
    }

    #[test]
    fn a_new_head_has_a_pace_by_the_clock_as_it_is_set() {
        let pace = Some(Pace { next: at(60), interval: Duration::from_secs(1), left: 3 });
        let head = Head { touched: at(40), ..row().head };
        let two = SequenceRow { count: 2, head, pace, ..row() };
        let next = Head { index: 9, touched: at(10), ..head };
        let moved = two.without(7, Some(next), at(10)).unwrap();
        assert_eq!((moved.head, moved.pace.map(|pace| pace.next)), (next, Some(at(30))));
    }

    #[test]
    fn a_row_is_removed_with_its_last_letter() {
        assert_eq!(row().without(7, None, at(1)), None);
        let two = SequenceRow { count: 2, ..row() };
        assert_eq!(two.without(9, None, at(1)), Some(row()), "the head stays");
        let next = Head { index: 9, ..two.head };
        assert_eq!(two.without(7, Some(next), at(1)).unwrap().head.index, 9);
    }
}
