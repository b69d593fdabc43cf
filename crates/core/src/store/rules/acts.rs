//! Operators' acts on one letter.

use jiff::Timestamp;

use super::effects::{AuditLine, Effects, LetterChange, LetterView};
use super::intake::{LaterLetter, Slot, place};
use super::refuse;
use super::sequence::{Head, SequenceChange, SequenceRow};
use crate::letter::{Letter, LetterId, LetterState};
use crate::message::QueueName;
use crate::sequence::SequenceId;
use crate::store::{Act, Actor, ErrorKind, Result, StoreError};

/// The result of a lookup by letter id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LetterLookup<T> {
    /// The letter.
    Letter(T),
    /// The letter was purged; only this final state remains.
    Purged(LetterState),
    /// The id is unknown.
    Absent,
}

impl<T> LetterLookup<T> {
    /// The letter, or the error of a call that needs it: `NotFound`, or `Conflict` for an act on a purged letter.
    pub fn into_result(self, queue: &QueueName, id: LetterId, operation: &'static str) -> Result<T> {
        match self {
            Self::Letter(letter) => Ok(letter),
            Self::Purged(state) => {
                let kind = if operation == "act" { ErrorKind::Conflict } else { ErrorKind::NotFound };
                refuse(kind, operation, format!("letter {id} was {state} and has been purged"))
            }
            Self::Absent => {
                refuse(ErrorKind::NotFound, operation, format!("letter {id} not found in {queue}"))
            }
        }
    }
}

/// Checks that the letter's state and its sequence allow the act.
fn check(act: Act, letter: &Letter, row: Option<&SequenceRow>, now: Timestamp) -> Result<()> {
    let context = |why: &str| format!("cannot {} letter {}: {why}", act.as_str(), letter.id);
    let conflict = |why: &str| refuse(ErrorKind::Conflict, "act", context(why));
    match (act, letter.state) {
        (Act::Restore, LetterState::Evicted) if letter.erased.is_some() => {
            return conflict("its content was erased");
        }
        (Act::Restore, LetterState::Evicted) => {}
        (Act::Restore, state) => return conflict(&format!("it is {state}, not evicted")),
        (_, state) if state.is_open() => {}
        (_, state) => return conflict(&format!("it is {state}")),
    }
    if act == Act::Release && letter.payload_left_out {
        return conflict("its payload was left out");
    }
    // At or before the head of a leased sequence: the lease's letter would no longer be the head.
    if row.is_some_and(|row| row.is_in_flight(letter.index, now)) {
        return Err(StoreError::leased("act", context("its sequence is leased")));
    }
    Ok(())
}

/// Decides the effects of an act on an open letter. `row` is that of its sequence, `next` the letter behind it if it is the head.
/// [`Restore`](Act::Restore) uses [`place_restored`] and [`restore`]. `Conflict` if its state does not allow the act
/// or its sequence is leased.
pub fn act(
    act: Act,
    letter: &Letter,
    row: Option<&SequenceRow>,
    next: Option<Head>,
    by: &Actor,
    now: Timestamp,
) -> Result<Effects> {
    check(act, letter, row, now)?;
    let (Some(row), false) = (row, act == Act::Restore) else { return Err(stranded(letter)) };
    let before = LetterView::of(letter);
    let stays = |state, due_at, change| {
        let after = LetterView { state, due_at, touched_at: now, ..before };
        Effects::on_open(change, &before, &after, row, SequenceChange::Put(row.changed(&after, now)))
    };
    let (after, effects) = match act {
        Act::Evict => {
            (LetterState::Evicted, Effects::close(&before, LetterState::Evicted, None, row, next, now))
        }
        Act::Resolve => {
            (LetterState::Resolved, Effects::close(&before, LetterState::Resolved, None, row, next, now))
        }
        Act::Park | Act::Quarantine => {
            let state = if act == Act::Park { LetterState::Parked } else { LetterState::Quarantined };
            (state, stays(state, None, LetterChange::Hold(state)))
        }
        Act::Release | Act::Restore if letter.index == row.head.index => {
            let state = LetterState::Retrying;
            (state, stays(state, Some(now), LetterChange::Release(state)))
        }
        // It runs after the head, if that succeeds.
        Act::Release | Act::Restore => {
            let state = LetterState::Waiting;
            (state, stays(state, None, LetterChange::Release(state)))
        }
    };
    Ok(effects.audited(AuditLine::of_letter(by, act.as_str(), letter.id, letter.state, after)))
}

/// The error for an open letter without an open sequence.
fn stranded(letter: &Letter) -> StoreError {
    let context = format!("letter {} is open, its sequence {} is not", letter.id, letter.sequence);
    StoreError::not_done(ErrorKind::Corrupt, "act", context)
}

/// The sequence into which a letter is restored.
#[derive(Clone, Copy, Debug)]
pub struct RestoreView<'a> {
    /// Its row.
    pub row: &'a SequenceRow,
    /// The first free index at or after the letter's old one.
    pub free: u64,
    /// `true` if at that index it would be behind a later letter of its partition, or before an earlier one, because some were
    /// redelivered meanwhile.
    pub out_of_order: bool,
    /// The first later letter of its partition.
    pub later: Option<LaterLetter>,
}

/// The place of a restored letter: its old one, unless redelivered letters of its partition
/// would be out of order with it (I2). `view` is that of its sequence, if open.
pub fn place_restored(
    sequence: &SequenceId,
    letter: &Letter,
    view: Option<&RestoreView<'_>>,
    now: Timestamp,
) -> Result<Slot> {
    check(Act::Restore, letter, view.map(|view| view.row), now)?;
    match view {
        Some(view) if view.out_of_order => place(sequence, view.row, view.later, now),
        Some(view) => Ok(Slot::At(view.free)),
        None => Ok(Slot::At(letter.index)),
    }
}

/// Decides the effects of restoring an evicted letter at this index. `paused` is `true` if its sequence is paused; it applies to
/// a sequence that the letter opens.
pub fn restore(
    letter: &Letter,
    index: u64,
    row: Option<&SequenceRow>,
    paused: bool,
    by: &Actor,
    now: Timestamp,
) -> Effects {
    let before = LetterView::of(letter);
    let after = LetterView { state: LetterState::Dead, due_at: None, touched_at: now, index, ..before };
    let sequence = match row {
        Some(row) => SequenceChange::Reopen(row.with(&after, now)),
        None => SequenceChange::Open(SequenceRow::opened(after.head(now), paused)),
    };
    let count_change = super::CountChange {
        before: Some(before.counted_as()),
        after: Some(after.counted_as()),
        blocked_before: row.and_then(SequenceRow::blocked),
        blocked_after: sequence.row().and_then(SequenceRow::blocked),
        blocked_detached: None,
    };
    let audit = AuditLine::of_letter(by, Act::Restore.as_str(), letter.id, letter.state, LetterState::Dead);
    let letter = LetterChange::Restore(index);
    Effects { letter, sequence, detached: None, count_change, failed: None, audit: Some(audit), ended: false }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::sequence::LeaseKind;
    use super::*;
    use crate::message::{Message, Position};

    const NOW: Timestamp = Timestamp::UNIX_EPOCH;

    fn letter(state: LetterState) -> Letter {
        let message = Message::new("m", "s", Position::new(0, 0)).with_payload("p");
        let mut letter = Letter::new(QueueName::of("c", "c"), "k".into(), message.into(), NOW);
        (letter.state, letter.index) = (state, 10);
        letter
    }

    fn row_of(letter: &Letter) -> SequenceRow {
        SequenceRow::opened(LetterView::of(letter).head(NOW), false)
    }

    fn ada() -> Actor {
        Actor::new("ada", "cli", "known bug")
    }

    #[test]
    fn each_act_results_in_its_state() {
        for (what, state) in [
            (Act::Evict, LetterState::Evicted),
            (Act::Resolve, LetterState::Resolved),
            (Act::Park, LetterState::Parked),
            (Act::Quarantine, LetterState::Quarantined),
            (Act::Release, LetterState::Retrying),
        ] {
            let mut letter = letter(LetterState::Dead);
            let row = row_of(&letter);
            let effects = act(what, &letter, Some(&row), None, &ada(), NOW).unwrap();
            assert_eq!(effects.count_change.after.unwrap().state, state);
            assert_eq!(effects.sequence == SequenceChange::Remove, !state.is_open());
            let line = effects.audit.unwrap();
            assert_eq!((line.action.as_str(), line.after.as_deref()), (what.as_str(), Some(state.as_str())));
            effects.letter.apply(&mut letter, NOW);
            assert_eq!(letter.state, state, "letter, count change and audit agree");
        }
    }

    #[test]
    fn a_released_letter_behind_the_head_waits_for_it() {
        // I2
        let head = letter(LetterState::Dead);
        let mut behind = Letter { index: 11, attempts: 3, ..letter(LetterState::Dead) };
        let row = SequenceRow { count: 2, ..row_of(&head) };
        let effects = act(Act::Release, &behind, Some(&row), None, &ada(), NOW).unwrap();
        assert_eq!(effects.audit.unwrap().after.as_deref(), Some("waiting"));
        assert_eq!(effects.count_change.after.unwrap().state, LetterState::Waiting);
        assert_eq!(effects.sequence.row().map(|row| row.head), Some(row.head));
        effects.letter.apply(&mut behind, NOW);
        assert_eq!((behind.state, behind.due_at, behind.attempts), (LetterState::Waiting, None, 0));
    }

    #[test]
    fn leased_heads_and_closed_letters_refuse_acts() {
        let dead = letter(LetterState::Dead);
        let leased = row_of(&dead).claimed("w", Duration::from_secs(9), LeaseKind::Due, 1, NOW);
        for what in [Act::Evict, Act::Resolve, Act::Park, Act::Quarantine, Act::Release] {
            let refused = act(what, &dead, Some(&leased), None, &ada(), NOW).unwrap_err();
            assert_eq!((refused.kind(), refused.is_leased()), (ErrorKind::Conflict, true));
            let closed = letter(LetterState::Resolved);
            let refused = act(what, &closed, None, None, &ada(), NOW).unwrap_err();
            assert_eq!((refused.kind(), refused.is_leased()), (ErrorKind::Conflict, false));
        }
    }

    #[test]
    fn only_evicted_letters_are_restored_and_not_in_front_of_a_worker() {
        let sequence = SequenceId::from("k");
        let refused = |letter: &Letter, row: &SequenceRow| {
            let view = RestoreView { row, free: letter.index, out_of_order: false, later: None };
            place_restored(&sequence, letter, Some(&view), NOW).unwrap_err()
        };
        let dead = letter(LetterState::Dead);
        let leased = row_of(&dead).claimed("w", Duration::from_secs(9), LeaseKind::Due, 1, NOW);
        for row in [&row_of(&dead), &leased] {
            let error = refused(&dead, row);
            assert_eq!((error.kind(), error.is_leased()), (ErrorKind::Conflict, false));
            assert_eq!(
                error.context(),
                format!("cannot restore letter {}: it is dead, not evicted", dead.id)
            );
        }
        assert!(refused(&letter(LetterState::Evicted), &leased).is_leased());
    }

    #[test]
    fn a_letter_without_its_payload_cannot_be_released() {
        let bare = Letter { payload_left_out: true, ..letter(LetterState::Dead) };
        let refused = act(Act::Release, &bare, Some(&row_of(&bare)), None, &ada(), NOW).unwrap_err();
        assert!(refused.context().contains("payload was left out"));
    }

    #[test]
    fn a_restored_letter_gets_its_old_place_unless_that_breaks_the_order() {
        // I2
        let evicted = letter(LetterState::Evicted);
        let sequence = SequenceId::from("k");
        assert_eq!(place_restored(&sequence, &evicted, None, NOW).unwrap(), Slot::At(10));
        let other = Letter { index: 50, ..letter(LetterState::Dead) };
        let row = row_of(&other);
        let view = RestoreView { row: &row, free: 11, out_of_order: false, later: None };
        assert_eq!(place_restored(&sequence, &evicted, Some(&view), NOW).unwrap(), Slot::At(11));
        let view = RestoreView { out_of_order: true, ..view };
        assert_eq!(place_restored(&sequence, &evicted, Some(&view), NOW).unwrap(), Slot::End);
        let restored = restore(&evicted, 11, Some(&row), false, &ada(), NOW);
        let after = restored.sequence.row().unwrap();
        assert_eq!((after.count, after.head.index), (2, 11), "it is the head again");
        assert!(matches!(restored.sequence, SequenceChange::Reopen(_)));
    }
}
