//! Leases: claim, renewal, release and settlement.

use std::time::Duration;

use jiff::Timestamp;

use super::effects::{AuditLine, Effects, Failed, LetterChange, LetterView, failed_at};
use super::sequence::{EXPIRED, HeldLease, LeaseKind, SequenceChange, SequenceRow, due_when_stored};
use super::{later, refuse};
use crate::letter::{LetterId, LetterState};
use crate::sequence::SequenceId;
use crate::store::{
    Actor, Dismissal, ErrorKind, Lease, LeaseUse, OperationId, Outcome, Requeue, Result, Settlement, is_end,
};

/// Checks that a lease is current and has not ended (I6). Returns the row.
fn check<'a>(
    row: Option<&'a SequenceRow>,
    lease: &Lease,
    operation: &'static str,
    now: Timestamp,
) -> Result<(&'a SequenceRow, &'a HeldLease)> {
    let state = match row.map(|row| (row, &row.lease)) {
        Some((row, Some(held))) if held.fence == lease.fence && held.until > now => return Ok((row, held)),
        Some((_, Some(held))) if held.fence == lease.fence && held.until == EXPIRED => {
            "it expired".to_owned()
        }
        Some((_, Some(held))) if held.fence == lease.fence => format!("it ended at {}", held.until),
        Some((_, Some(held))) => format!("{} holds the sequence under fence {}", held.owner, held.fence),
        Some((_, None)) => "the sequence is not leased".to_owned(),
        None => "the sequence is closed".to_owned(),
    };
    let context = format!("lease {} of {} is not current: {state}", lease.fence, lease.sequence);
    refuse(ErrorKind::Fenced, operation, context)
}

/// Extends a lease from now, used for this: returns the row and the owner's lease. `Fenced` if it is not current or has ended.
pub fn renew(
    row: Option<&SequenceRow>,
    lease: &Lease,
    duration: Duration,
    used_for: LeaseUse,
    now: Timestamp,
) -> Result<(SequenceRow, Lease)> {
    let (row, held) = check(row, lease, "renew", now)?;
    let until = later(now, duration);
    let used_for = if held.kind == LeaseKind::Due { used_for } else { held.used_for };
    let row = SequenceRow { lease: Some(HeldLease { until, used_for, ..held.clone() }), ..row.clone() };
    Ok((row, Lease { until, ..lease.clone() }))
}

/// Releases a lease: returns the row after it, and the lease's operation. `None` if it is not current.
pub fn release(row: Option<&SequenceRow>, lease: &Lease) -> Option<(SequenceRow, Option<OperationId>)> {
    let row = row?;
    let held = row.lease.as_ref().filter(|held| held.fence == lease.fence)?;
    Some((row.clone().released(), held.kind.operation()))
}

/// Leases are never taken for shorter than this by [`clamp_lease`]. Owners renew theirs at least three times in this time,
/// however long they are.
const SHORTEST_CLAMP: Duration = Duration::from_secs(30);

/// Detects steps back of the store's clock between two calls.
#[derive(Clone, Copy, Debug, Default)]
pub struct ClockWatch(Option<Timestamp>);

impl ClockWatch {
    /// Returns `true` if the clock was set back since the last call, or if there was none: it may have been set back while no
    /// process was running.
    ///
    /// ```
    /// use lazaret_core::Timestamp;
    /// use lazaret_core::store::rules::ClockWatch;
    /// let at = |second| Timestamp::from_second(second).unwrap();
    /// let mut watch = ClockWatch::default();
    /// assert!(watch.went_back(at(5)), "nothing is known");
    /// assert!(!watch.went_back(at(6)));
    /// assert!(watch.went_back(at(1)));
    /// ```
    pub fn went_back(&mut self, now: Timestamp) -> bool {
        self.0.replace(now).is_none_or(|before| now < before)
    }
}

/// The longest time that is left of another owner's lease if leases have this length.
fn longest_rest(lease: Duration) -> Duration {
    lease.max(SHORTEST_CLAMP)
}

/// The latest end that a lease of this length can have now; a later one is of a time before the clock was set back.
pub fn latest_lease_end(lease: Duration, now: Timestamp) -> Timestamp {
    later(now, longest_rest(lease))
}

/// The row by a clock that was set back: its head waits for the rest of its delay, its lease ends no later than it can have been
/// given for. `None` if the row stays as it is.
///
/// The store writes the row and, if its [touch](super::Head::touched) changed, the letter at the head: it is touched now, with the
/// [due time of the row](super::Head::date). [`ClockWatch`] tells when to look at the rows.
pub fn clamp_row(row: &SequenceRow, lease: Duration, now: Timestamp) -> Option<SequenceRow> {
    let set_back = row.set_back(now);
    clamp_lease(set_back.as_ref().unwrap_or(row), lease, now).or(set_back)
}

/// The row with a lease that ends no later than it can have been given for, so that the lease of a dead owner does not last for
/// as long as the clock was set back. A living owner renews it in time. `None` if the row stays as it is.
fn clamp_lease(row: &SequenceRow, lease: Duration, now: Timestamp) -> Option<SequenceRow> {
    let until = latest_lease_end(lease, now);
    let held = row.lease.as_ref().filter(|held| held.until > until)?;
    Some(SequenceRow { lease: Some(HeldLease { until, ..held.clone() }), ..row.clone() })
}

/// The stored data that a settlement depends on.
#[derive(Clone, Copy, Debug)]
pub struct SettleView<'a> {
    /// The row of the sequence, if open.
    pub row: Option<&'a SequenceRow>,
    /// The letter at its head.
    pub head: Option<LetterView>,
    /// The letter behind the head.
    pub next: Option<LetterView>,
    /// The store's time.
    pub now: Timestamp,
}

/// The state of the lease after a settlement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AfterSettle {
    /// The lease continues with the letter behind: load it.
    Next,
    /// The sequence has no more letters.
    Closed,
    /// The letter behind may not run now, or is polled separately, unless the operation of the lease
    /// [takes](Settle::take_next) it.
    Blocked,
    /// The letter stays at the head.
    Requeued,
}

/// The decision about a settlement.
#[derive(Clone, Debug)]
pub struct Settle {
    /// The changes.
    pub effects: Effects,
    /// The state of the lease.
    pub after: AfterSettle,
    /// The operation of the lease, and the letter's outcome in it: call
    /// [`item_outcomes`](super::item_outcomes), and [reserve](Effects::reserve) the sequence if the operation continues with it.
    pub outcome: Option<(OperationId, Outcome)>,
    /// The lease of an operation, as it is if the operation takes the letter behind.
    continued: Option<HeldLease>,
}

impl Settle {
    /// The row of the sequence, if the lease ends with this settlement and its operation may take the letter behind. For
    /// [`settle_and_continue`](crate::store::LetterStore::settle_and_continue): if the operation continues with the sequence, ask
    /// [`takes_next`](super::takes_next) with this row.
    pub fn untaken(&self) -> Option<&SequenceRow> {
        self.continued.as_ref().and(self.effects.sequence.row())
    }

    /// Continues the lease with the letter behind, which its operation has taken.
    pub fn take_next(&mut self) {
        if let SequenceChange::Put(row) = &mut self.effects.sequence
            && let Some(continued) = self.continued.take()
        {
            row.lease = Some(continued);
            self.after = AfterSettle::Next;
        }
    }

    /// The index from which letters of the sequence run automatically from now on because an operation's letter left it: closed, or
    /// detached. If the operation has a rate, that bounds them, too ([`Effects::pace`]).
    pub fn released_from(&self) -> Option<u64> {
        let left = self.effects.detached.is_some()
            || self.outcome.is_some_and(|(_, outcome)| outcome == Outcome::Ok);
        self.effects.released_from().filter(|_| left)
    }
}

/// Decides the effects of a settlement. `Fenced` if the lease is not current, `NotFound` if the letter is no longer the
/// head, `Invalid` for a requeue in a closed state, or for one that detaches a letter that is not `dead`.
pub fn settle(
    view: &SettleView<'_>,
    lease: &Lease,
    letter: LetterId,
    settlement: Settlement,
) -> Result<Settle> {
    let (row, held) = check(view.row, lease, "settle", view.now)?;
    let Some(head) = view.head.filter(|head| head.id == letter) else {
        let context = format!("letter {letter} is not the head of {}", lease.sequence);
        return refuse(ErrorKind::NotFound, "settle", context);
    };
    let outcome = match &settlement {
        Settlement::Requeue(_) => Outcome::FailedAgain,
        Settlement::Resolve(_) | Settlement::Evict(_) | Settlement::Skip(_) => Outcome::Ok,
    };
    let outcome = held.kind.operation().map(|operation| (operation, outcome));
    let (after, effects) = match settlement {
        Settlement::Requeue(requeue) if requeue.detach && !lease.sequence.stands_alone() => {
            detached(view, row, held, &head, requeue, lease.sequence.detached(letter))?
        }
        Settlement::Requeue(requeue) => {
            let (state, effects) = (requeue.state, requeued(row, &head, requeue, view.now)?);
            let line = held.kind.operation().and_then(|operation| held_by(operation, &head, state));
            (AfterSettle::Requeued, Effects { audit: line, ..effects })
        }
        Settlement::Resolve(attempt) => close_and_continue(view, row, held, |row, next| {
            let closed = Effects::close(&head, LetterState::Resolved, attempt, row, next, view.now);
            match held.kind {
                LeaseKind::Operation(id) => closed.audited(resolved_by(id, &head)),
                LeaseKind::Due | LeaseKind::Replay => closed,
            }
        }),
        Settlement::Evict(why) => give_up(view, row, held, &head, LetterState::Evicted, ("evict", why)),
        Settlement::Skip(why) => give_up(view, row, held, &head, LetterState::Skipped, ("skip", why)),
    };
    let may_be_taken = after == AfterSettle::Blocked && outcome.is_some();
    let continued = may_be_taken.then(|| held.for_next_letter());
    Ok(Settle { effects, after, outcome, continued })
}

/// The audit line of a letter that an operation has resolved (I11). The operation's own lines say who asked for that.
fn resolved_by(operation: OperationId, head: &LetterView) -> AuditLine {
    let by = Actor::engine(format!("replayed by operation {operation}"));
    AuditLine::of_letter(&by, "resolve", head.id, head.state, LetterState::Resolved)
}

/// The audit line of a letter that a replay of an operation has parked or quarantined (I11): nobody retries it, and only a person moves
/// it on.
fn held_by(operation: OperationId, head: &LetterView, state: LetterState) -> Option<AuditLine> {
    let action = match state {
        LetterState::Parked => "park",
        LetterState::Quarantined => "quarantine",
        _ => return None,
    };
    let by = Actor::engine(format!("replayed by operation {operation}"));
    (head.state != state).then(|| AuditLine::of_letter(&by, action, head.id, head.state, state))
}

/// Closes a letter without a success, audited (I11).
fn give_up(
    view: &SettleView<'_>,
    row: &SequenceRow,
    held: &HeldLease,
    head: &LetterView,
    state: LetterState,
    (action, dismissal): (&str, Dismissal),
) -> (AfterSettle, Effects) {
    let Dismissal { why, attempt } = dismissal;
    let line = AuditLine::of_letter(&Actor::engine(why), action, head.id, head.state, state);
    close_and_continue(view, row, held, |row, next| {
        let attempt = attempt.map(|attempt| *attempt);
        Effects::close(head, state, attempt, row, next, view.now).audited(line)
    })
}

/// Moves the lease to the next letter, or ends it, with the sequence or because the letter may not run now.
fn close_and_continue(
    view: &SettleView<'_>,
    row: &SequenceRow,
    held: &HeldLease,
    close: impl FnOnce(&SequenceRow, Option<super::Head>) -> Effects,
) -> (AfterSettle, Effects) {
    let next = view.next.map(|next| next.head(view.now));
    let mut effects = close(row, next);
    if let (SequenceChange::Put(row), LeaseKind::Due) = (&mut effects.sequence, held.kind) {
        *row = row.clone().after_run(true, view.now);
    }
    let may_run = |row: &SequenceRow| row.due().is_some_and(|due| due <= view.now) && !row.paused;
    let continues = match (held.kind, &effects.sequence) {
        (LeaseKind::Due, SequenceChange::Put(row)) => may_run(row),
        (LeaseKind::Due, _) | (LeaseKind::Operation(_), _) => false,
        // One that failed again ends a replay, also if it leaves.
        (LeaseKind::Replay, _) => effects.detached.is_none(),
    };
    match &mut effects.sequence {
        SequenceChange::Put(row) if continues => {
            row.lease = Some(held.for_next_letter());
            (AfterSettle::Next, effects)
        }
        SequenceChange::Put(row) => {
            row.lease = None;
            (AfterSettle::Blocked, effects)
        }
        _ => (AfterSettle::Closed, effects),
    }
}

/// Moves a letter that died to a sequence of its own. Those behind it go on, as behind one that was closed.
fn detached(
    view: &SettleView<'_>,
    row: &SequenceRow,
    held: &HeldLease,
    head: &LetterView,
    requeue: Box<Requeue>,
    to: SequenceId,
) -> Result<(AfterSettle, Effects)> {
    if requeue.state != LetterState::Dead {
        let context = format!("letter {} cannot leave its sequence as {}", head.id, requeue.state);
        return refuse(ErrorKind::Invalid, "settle", context);
    }
    let (letter, effects) = failed_again(row, head, requeue, view.now)?;
    let (after, effects) =
        close_and_continue(view, row, held, |row, next| effects.detach(&letter, to, row, next, view.now));
    Ok((if held.kind == LeaseKind::Due { after } else { AfterSettle::Requeued }, effects))
}

fn requeued(row: &SequenceRow, head: &LetterView, requeue: Box<Requeue>, now: Timestamp) -> Result<Effects> {
    Ok(failed_again(row, head, requeue, now)?.1)
}

/// The letter after another failure, and the effects if it stays at the head.
fn failed_again(
    row: &SequenceRow,
    head: &LetterView,
    mut requeue: Box<Requeue>,
    now: Timestamp,
) -> Result<(LetterView, Effects)> {
    let state = requeue.state;
    if !state.is_open() {
        let context = format!("letter {} cannot be requeued as {state}", head.id);
        return refuse(ErrorKind::Invalid, "settle", context);
    }
    let failed_at = failed_at(&requeue, now);
    let group = requeue.cause.as_ref().map(|cause| cause.fingerprint).or(head.group);
    let decided_at = requeue.attempt.as_ref().map(|attempt| attempt.at);
    requeue.due_at = due_when_stored(requeue.due_at, decided_at, now);
    let due_at = requeue.due_at.filter(|_| state == LetterState::Retrying);
    let after = LetterView { state, due_at, touched_at: now, group, ..*head };
    let is_automatic = row.lease.as_ref().is_some_and(|held| held.kind == LeaseKind::Due);
    let changed = row.changed(&after, now);
    let changed = if is_automatic { changed.after_run(false, now) } else { changed };
    let sequence = SequenceChange::Put(changed.released());
    let failed = failed_at.filter(|_| group.is_some()).map(|at| Failed { at, enters: group != head.group });
    let ended = is_end(Some(head.state), state);
    let effects = Effects::on_open(LetterChange::Requeue(requeue), head, &after, row, sequence);
    Ok((after, Effects { failed, ended, ..effects }))
}

#[cfg(test)]
mod tests {
    use super::super::sequence::Head;
    use super::*;
    use crate::failure::{Failure, Reason};
    use crate::message::QueueName;

    const NOW: Timestamp = Timestamp::UNIX_EPOCH;
    const LEASE: Duration = Duration::from_secs(30);

    fn letter(number: u64, state: LetterState) -> LetterView {
        let queue = QueueName::of("c", "c");
        LetterView {
            id: LetterId::of(&queue, &number.to_string().into()),
            index: number,
            state,
            due_at: None,
            enqueued_at: NOW,
            touched_at: NOW,
            group: None,
        }
    }

    #[test]
    fn a_letter_that_waited_for_its_turn_is_due_at_once_by_any_clock() {
        // It was enqueued by a clock that was set back, and was at the head once before, by the clock as it is now.
        let later = NOW + jiff::SignedDuration::from_hours(3);
        let waiting = LetterView { enqueued_at: later, ..letter(1, LetterState::Waiting) };
        assert_eq!(waiting.head(NOW).due, Some(NOW));
        let untouched = LetterView { touched_at: later, ..waiting };
        assert!(untouched.head(NOW).due <= Some(NOW));
        // A retry has a delay, which counts.
        let retrying = LetterView { due_at: Some(later), ..letter(1, LetterState::Retrying) };
        assert_eq!(retrying.head(NOW).due, Some(later));
    }

    fn claimed(count: u64, kind: LeaseKind) -> (SequenceRow, Lease) {
        let head: Head = letter(1, LetterState::Waiting).head(NOW);
        let row = SequenceRow { count, ..SequenceRow::opened(head, false) }.claimed("w", LEASE, kind, 4, NOW);
        let lease = row.lease_of(&QueueName::of("c", "c"), &"k".into()).unwrap();
        (row, lease)
    }

    fn resolve(kind: LeaseKind, next: Option<LetterState>, paused: bool) -> Settle {
        let (mut row, lease) = claimed(1 + u64::from(next.is_some()), kind);
        row.paused = paused;
        let head = letter(1, LetterState::Waiting);
        let next = next.map(|state| letter(2, state));
        let view = SettleView { row: Some(&row), head: Some(head), next, now: NOW };
        settle(&view, &lease, head.id, Settlement::Resolve(None)).unwrap()
    }

    #[test]
    fn the_kind_of_a_lease_decides_whether_it_continues() {
        use LetterState::{Dead, Waiting};
        let operation = LeaseKind::Operation(OperationId(1));
        for (kind, next, paused, expected) in [
            (LeaseKind::Due, Some(Waiting), false, AfterSettle::Next),
            (LeaseKind::Due, Some(Waiting), true, AfterSettle::Blocked),
            (LeaseKind::Due, Some(Dead), false, AfterSettle::Blocked),
            (LeaseKind::Replay, Some(Dead), false, AfterSettle::Next),
            (LeaseKind::Replay, Some(Dead), true, AfterSettle::Next),
            (operation, Some(Waiting), false, AfterSettle::Blocked),
            (LeaseKind::Due, None, false, AfterSettle::Closed),
        ] {
            let settled = resolve(kind, next, paused);
            assert_eq!(settled.after, expected, "{kind:?} {next:?} {paused}");
            let held = settled.effects.sequence.row().and_then(|row| row.lease.as_ref());
            assert_eq!(
                held.is_some(),
                expected == AfterSettle::Next,
                "a lease that does not continue is released"
            );
            assert_eq!(settled.outcome.is_some(), kind == operation);
        }
    }

    #[test]
    fn a_letter_that_an_operation_resolved_has_an_audit_line_that_names_both() {
        // I11
        let line = resolve(LeaseKind::Operation(OperationId(7)), None, false).effects.audit.unwrap();
        assert_eq!(line.subject, letter(1, LetterState::Waiting).id.to_string());
        assert_eq!((line.action.as_str(), line.after.as_deref()), ("resolve", Some("resolved")));
        assert!(line.by.why.contains("op_7"), "{}", line.by.why);
        for kind in [LeaseKind::Due, LeaseKind::Replay] {
            assert_eq!(resolve(kind, None, false).effects.audit, None, "it is in the history of the letter");
        }
    }

    #[test]
    fn a_letter_that_a_replay_parked_or_quarantined_has_an_audit_line_that_names_the_operation() {
        // I11
        let audited = |kind, before, state| {
            let (row, lease) = claimed(1, kind);
            let head = letter(1, before);
            let view = SettleView { row: Some(&row), head: Some(head), next: None, now: NOW };
            let message = crate::Message::new("1", "orders", crate::Position::new(0, 0));
            let stored = crate::Letter::new(QueueName::of("c", "c"), "k".into(), message.into(), NOW);
            let requeue = Settlement::Requeue(Box::new(Requeue { state, ..Requeue::of(&stored) }));
            let line = settle(&view, &lease, head.id, requeue).unwrap().effects.audit;
            line.map(|line| (line.action, line.before, line.after, line.by.why.contains("op_7")))
        };
        use LetterState::{Dead, Parked, Quarantined, Retrying};
        let operation = LeaseKind::Operation(OperationId(7));
        let line = |action: &str, after: &str| {
            Some((action.to_owned(), Some("dead".to_owned()), Some(after.to_owned()), true))
        };
        assert_eq!(audited(operation, Dead, Parked), line("park", "parked"));
        assert_eq!(audited(operation, Dead, Quarantined), line("quarantine", "quarantined"));
        for (kind, before, state) in [
            (operation, Parked, Parked),
            (operation, Dead, Dead),
            (LeaseKind::Due, Retrying, Parked),
            (LeaseKind::Replay, Dead, Parked),
        ] {
            assert_eq!(audited(kind, before, state), None, "{kind:?} {before} {state}");
        }
    }

    #[test]
    fn the_lease_of_an_operation_continues_with_a_letter_that_the_operation_takes() {
        use LetterState::{Dead, Waiting};
        let operation = LeaseKind::Operation(OperationId(1));
        let mut taken = resolve(operation, Some(Dead), false);
        assert_eq!(taken.untaken().map(|row| (row.head.index, row.lease.is_none())), Some((2, true)));
        taken.take_next();
        let held = taken.effects.sequence.row().and_then(|row| row.lease.clone()).unwrap();
        assert_eq!((taken.after, held.fence, held.until), (AfterSettle::Next, 4, NOW + LEASE));
        assert_eq!((held.kind, held.used_for), (operation, LeaseUse::Wait), "I4: no attempt has begun");
        assert!(taken.untaken().is_none());
        let (failed, _) = die(operation, "k", Some(Waiting));
        for settled in [
            resolve(operation, None, false),
            resolve(LeaseKind::Due, Some(Dead), false),
            resolve(LeaseKind::Replay, Some(Dead), false),
            failed,
        ] {
            assert!(settled.untaken().is_none(), "{:?}", settled.after);
        }
    }

    fn die(kind: LeaseKind, sequence: &str, next: Option<LetterState>) -> (Settle, LetterView) {
        let (mut row, mut lease) = claimed(1 + u64::from(next.is_some()), kind);
        row.head.group = Some(Failure::new(Reason::TIMEOUT, "E", "x").fingerprint);
        lease.sequence = sequence.into();
        let head = LetterView { group: row.head.group, ..letter(1, LetterState::Retrying) };
        let next = next.map(|state| letter(2, state));
        let view = SettleView { row: Some(&row), head: Some(head), next, now: NOW };
        let message = crate::Message::new("m", "s", crate::Position::new(0, 0));
        let of = crate::Letter::new(QueueName::of("c", "c"), "k".into(), message.into(), NOW);
        let requeue = Requeue { state: LetterState::Dead, detach: true, ..Requeue::of(&of) };
        (settle(&view, &lease, head.id, Settlement::Requeue(Box::new(requeue))).unwrap(), head)
    }

    #[test]
    fn a_letter_that_leaves_its_sequence_lets_those_behind_it_go_on() {
        use LetterState::{Dead, Waiting};
        let operation = LeaseKind::Operation(OperationId(1));
        for (kind, next, expected) in [
            (LeaseKind::Due, Some(Waiting), AfterSettle::Next),
            (LeaseKind::Due, Some(Dead), AfterSettle::Blocked),
            (LeaseKind::Due, None, AfterSettle::Closed),
            (LeaseKind::Replay, Some(Waiting), AfterSettle::Requeued),
            (operation, Some(Waiting), AfterSettle::Requeued),
            (operation, None, AfterSettle::Requeued),
        ] {
            let (settled, head) = die(kind, "k", next);
            assert_eq!(settled.after, expected, "{kind:?} {next:?}");
            let row = settled.effects.sequence.row();
            assert_eq!(row.map(|row| (row.count, row.head.index)), next.map(|_| (1, 2)));
            let held = row.and_then(|row| row.lease.as_ref());
            assert_eq!(held.is_some(), expected == AfterSettle::Next, "no other lease goes on");
            let released = kind == operation && next == Some(Waiting);
            assert_eq!(settled.released_from().is_some() && kind == operation, released);
            let blocks: Vec<i64> = settled.effects.count_change.blocks().map(|(_, by)| by).collect();
            assert_eq!(blocks, [-1, 1], "it is counted in its new sequence");
            let detached = settled.effects.detached.unwrap();
            assert_eq!(detached.sequence, SequenceId::from("k").detached(head.id));
            assert_eq!((detached.row.count, detached.row.due(), detached.row.lease), (1, None, None));
        }
    }

    #[test]
    fn a_letter_that_stands_alone_stays() {
        for sequence in ["~m:evt-1", "~d:1:k"] {
            let (settled, _) = die(LeaseKind::Due, sequence, None);
            assert_eq!(settled.after, AfterSettle::Requeued);
            assert!(settled.effects.detached.is_none() && settled.effects.sequence.row().is_some());
        }
    }

    #[test]
    fn a_paced_sequence_stops_after_each_letter_until_its_pace_ends() {
        use super::super::sequence::Pace;
        let (row, lease) = claimed(3, LeaseKind::Due);
        let interval = Duration::from_secs(2);
        let settled = |left, settlement: Settlement| {
            let row = SequenceRow { pace: Some(Pace { next: NOW, interval, left }), ..row.clone() };
            let (head, next) = (letter(1, LetterState::Waiting), letter(2, LetterState::Waiting));
            let view = SettleView { row: Some(&row), head: Some(head), next: Some(next), now: NOW };
            settle(&view, &lease, head.id, settlement).unwrap()
        };
        let one = settled(2, Settlement::Resolve(None));
        let row_after = one.effects.sequence.row().unwrap();
        assert_eq!(one.after, AfterSettle::Blocked);
        assert_eq!(row_after.pace, Some(Pace { next: NOW + interval, interval, left: 1 }));
        assert_eq!(row_after.schedule().due, Some(NOW + interval), "the next letter is due a step later");
        let last = settled(1, Settlement::Resolve(None));
        assert_eq!((last.after, last.effects.sequence.row().unwrap().pace), (AfterSettle::Next, None));
    }

    #[test]
    fn a_late_owner_cannot_settle() {
        // I6
        let (row, lease) = claimed(1, LeaseKind::Due);
        let head = letter(1, LetterState::Waiting);
        let ask = |row: Option<&SequenceRow>, lease: &Lease, now| {
            let view = SettleView { row, head: Some(head), next: None, now };
            settle(&view, lease, head.id, Settlement::Resolve(None)).map(drop).map_err(|error| error.kind())
        };
        let old = Lease { fence: 3, ..lease.clone() };
        assert_eq!(ask(Some(&row), &old, NOW), Err(ErrorKind::Fenced));
        assert_eq!(ask(Some(&row), &lease, NOW + LEASE), Err(ErrorKind::Fenced));
        assert_eq!(ask(None, &lease, NOW), Err(ErrorKind::Fenced));
        assert_eq!(ask(Some(&row), &lease, NOW), Ok(()));
        let other = letter(9, LetterState::Waiting);
        let view = SettleView { row: Some(&row), head: Some(other), next: None, now: NOW };
        let refused = settle(&view, &lease, head.id, Settlement::Resolve(None)).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::NotFound);
    }

    #[test]
    fn a_lease_that_ends_too_late_is_clamped_and_keeps_its_owner() {
        let (row, lease) = claimed(1, LeaseKind::Due);
        assert_eq!(clamp_lease(&row, LEASE, NOW), None);
        let set_back = NOW - Duration::from_secs(3600);
        let clamped = clamp_lease(&row, LEASE, set_back).unwrap();
        assert!(clamped.is_leased(set_back) && !clamped.is_leased(set_back + LEASE));
        assert_eq!(clamped.lease.as_ref().map(|held| held.fence), Some(lease.fence));
        assert!(
            renew(Some(&clamped), &lease, LEASE, LeaseUse::Attempt, set_back).is_ok(),
            "a living owner goes on"
        );
    }

    #[test]
    fn a_row_is_clamped_as_a_whole() {
        let set_back = NOW - Duration::from_secs(3600);
        let (row, _) = claimed(1, LeaseKind::Due);
        let clamped = clamp_row(&row, LEASE, set_back).unwrap();
        assert_eq!((clamped.head.due, clamped.head.touched), (Some(set_back), set_back));
        assert_eq!(clamped.lease.as_ref().map(|held| held.until), Some(set_back + LEASE));
        assert_eq!(clamp_row(&clamped, LEASE, set_back), None);
        assert_eq!(clamp_row(&row, LEASE, NOW), None);
    }

    #[test]
    fn only_the_current_lease_is_released() {
        let operation = OperationId(7);
        let (row, lease) = claimed(1, LeaseKind::Operation(operation));
        let (released, taken_for) = release(Some(&row), &lease).unwrap();
        assert_eq!((released.lease, taken_for), (None, Some(operation)));
        assert!(release(Some(&row), &Lease { fence: 3, ..lease.clone() }).is_none());
        assert!(release(None, &lease).is_none());
    }
}
