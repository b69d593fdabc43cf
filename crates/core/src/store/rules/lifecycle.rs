//! Annotation, expiry and removal of letters.

use jiff::Timestamp;

use super::effects::{AuditLine, CountChange, Effects, Failed, LetterChange, LetterView};
use super::refuse;
use super::sequence::{Head, SequenceChange, SequenceRow};
use crate::letter::{Erasure, Letter, LetterState};
use crate::message::{ConsumerName, QueueName};
use crate::store::{Actor, Change, Cleared, ErrorKind, PauseScope, Result, StoreError};

/// Checks that an annotation is allowed now (`Conflict`): nothing is added to an erased letter, because it is not erased again, and a
/// payload can be changed only while the letter is open and not in flight. [`Change::apply`] then applies it.
pub fn check_change(
    change: &Change,
    letter: &Letter,
    row: Option<&SequenceRow>,
    now: Timestamp,
) -> Result<()> {
    if letter.erased.is_some() && change.adds_content() {
        let context =
            format!("cannot change letter {}: its content was erased, and it takes no other", letter.id);
        return refuse(ErrorKind::Conflict, "change", context);
    }
    if !change.is_edit() {
        return Ok(());
    }
    let context = |why: &str| format!("cannot change the payload of letter {}: {why}", letter.id);
    if !letter.state.is_open() {
        return refuse(ErrorKind::Conflict, "change", context(&format!("it is {}", letter.state)));
    }
    if row.is_some_and(|row| row.is_in_flight(letter.index, now)) {
        return Err(StoreError::leased("change", context("it is in flight")));
    }
    Ok(())
}

/// Purges a closed letter; its id and state remain (I8). `Conflict` if it is open. A purge by a person is
/// audited per letter; retention is audited as a whole ([`AuditLine::purged`]). A watched queue lists it as an end, so that copies of it go too.
pub fn purge(letter: &LetterView, by: Option<&Actor>) -> Result<Effects> {
    if letter.state.is_open() {
        let context = format!("cannot purge letter {}: it is {}", letter.id, letter.state);
        return refuse(ErrorKind::Conflict, "purge", context);
    }
    let line = |by| AuditLine::new(by, "purge", letter.id, Some(letter.state.as_str()), Some("purged"));
    let count_change = CountChange { before: Some(letter.counted_as()), ..CountChange::default() };
    Ok(Effects {
        letter: LetterChange::Forget,
        sequence: SequenceChange::Keep,
        detached: None,
        count_change,
        failed: None,
        audit: by.map(line),
        ended: true,
    })
}

/// Erases the content of a closed letter; the rest remains. `Conflict` if it is open: somebody has to decide first what becomes of its
/// message, because nobody can run it any more. `Conflict`, too, if it was erased before. The message of its group is erased with it, if it
/// came from this letter. A watched queue lists it as an end, so that copies of its content go too.
pub fn erase(letter: &Letter, by: &Actor, now: Timestamp) -> Result<Effects> {
    let refused =
        |why: &str| refuse(ErrorKind::Conflict, "erase", format!("cannot erase letter {}: {why}", letter.id));
    if letter.state.is_open() {
        return refused(&format!("it is {}; evict or resolve it first", letter.state));
    }
    if letter.erased.is_some() {
        return refused("its content was erased before");
    }
    let view = LetterView::of(letter);
    let counted = Some(view.counted_as());
    // The group shows the latest failure. It is replaced, if it is the one of this letter.
    let failed =
        view.group.map(|_| Failed { at: letter.last_failed_at.unwrap_or(letter.enqueued_at), enters: false });
    let erasure = Erasure { by: by.who.clone(), at: now, why: by.why.clone() };
    Ok(Effects {
        letter: LetterChange::Erase(Box::new(erasure)),
        sequence: SequenceChange::Keep,
        detached: None,
        count_change: CountChange { before: counted, after: counted, ..CountChange::default() },
        failed,
        audit: Some(AuditLine::new(by, "erase", letter.id, Some(letter.state.as_str()), Some("erased"))),
        ended: true,
    })
}

/// Closes an open letter whose TTL has passed. `None` for a letter in flight, which is postponed, and for one that waits behind others: its
/// time starts with its [first failure](crate::store::Requeue::expires_at).
pub fn expire(letter: &LetterView, row: &SequenceRow, next: Option<Head>, now: Timestamp) -> Option<Effects> {
    if letter.state == LetterState::Waiting || row.is_in_flight(letter.index, now) {
        return None;
    }
    let by = Actor::engine("ttl expired");
    let line = AuditLine::of_letter(&by, "expire", letter.id, letter.state, LetterState::Expired);
    Some(Effects::close(letter, LetterState::Expired, None, row, next, now).audited(line))
}

/// Evicts a letter of a cleared queue. `None` for the head of a leased sequence. The queue is
/// audited as a whole ([`AuditLine::cleared`]).
pub fn clear(letter: &LetterView, row: &SequenceRow, next: Option<Head>, now: Timestamp) -> Option<Effects> {
    let free = !row.is_in_flight(letter.index, now);
    free.then(|| Effects::close(letter, LetterState::Evicted, None, row, next, now))
}

/// The audit line of a pause that was set or ended; `None` if the scope was not paused before or after.
pub fn pause_audit(
    consumer: &ConsumerName,
    scope: &PauseScope,
    before: bool,
    after: bool,
    by: &Actor,
) -> Option<AuditLine> {
    let action = if after { "pause" } else { "resume" };
    let [was, is] = [before, after].map(|paused| paused.then_some("paused"));
    (before || after).then(|| AuditLine::new(by, action, format!("{consumer}: {scope}"), was, is))
}

impl AuditLine {
    /// The audit line of a cleared queue.
    pub fn cleared(queue: &QueueName, cleared: &Cleared, by: &Actor) -> Self {
        let after = format!("{} evicted, {} busy", cleared.evicted, cleared.busy);
        Self::new(by, "clear", queue, None, Some(&after))
    }

    /// The audit line of closed letters that were purged by retention.
    pub fn purged(queue: &QueueName, letters: u64) -> Self {
        let by = Actor::engine("retention of closed letters ended");
        Self::new(&by, "purge", queue, None, Some(&format!("{letters} purged")))
    }
}
