//! Letters that people annotate, that run out of time, and that are removed for good.

use jiff::Timestamp;

use super::effects::{AuditLine, Effects, LetterChange, LetterView, Tally};
use super::refuse;
use super::sequence::{Head, SequenceChange, SequenceRow};
use crate::letter::LetterState;
use crate::message::{ConsumerName, QueueName};
use crate::store::{Actor, Change, Cleared, ErrorKind, PauseScope, Result};

/// Checks that a change to what is noted on a letter is allowed now: its payload only while it is open and nobody works on it
/// (`Conflict`). [`Change::apply`] then makes it.
pub fn check_change(
    change: &Change,
    letter: &LetterView,
    row: Option<&SequenceRow>,
    now: Timestamp,
) -> Result<()> {
    if !matches!(change, Change::Payload(_)) {
        return Ok(());
    }
    let why = if !letter.state.is_open() {
        format!("it is {}", letter.state)
    } else if row.is_some_and(|row| row.is_in_work(letter.index, now)) {
        "somebody is working on it".to_owned()
    } else {
        return Ok(());
    };
    let context = format!("cannot change the payload of letter {}: {why}", letter.id);
    refuse(ErrorKind::Conflict, "change", context)
}

/// Removes a closed letter for good; its trace stays (I8). `Conflict` when it is open. Somebody who purges one letter is
/// audited with it; what retention removes is audited as a whole ([`AuditLine::purged`]).
pub fn purge(letter: &LetterView, by: Option<&Actor>) -> Result<Effects> {
    if letter.state.is_open() {
        let context = format!("cannot purge letter {}: it is {}", letter.id, letter.state);
        return refuse(ErrorKind::Conflict, "purge", context);
    }
    let line = |by| AuditLine::new(by, "purge", letter.id, Some(letter.state.as_str()), Some("purged"));
    let tally = Tally { was: Some(letter.standing()), ..Tally::default() };
    Ok(Effects {
        letter: LetterChange::Forget,
        sequence: SequenceChange::Keep,
        tally,
        failed: None,
        audit: by.map(line),
        ended: false,
    })
}

/// Closes an open letter whose time has run out. `None` for one that somebody works on: it is left for later.
pub fn expire(letter: &LetterView, row: &SequenceRow, next: Option<Head>, now: Timestamp) -> Option<Effects> {
    if row.is_in_work(letter.index, now) {
        return None;
    }
    let by = Actor::engine("its time ran out");
    let line = AuditLine::of_letter(&by, "expire", letter.id, letter.state, LetterState::Expired);
    Some(Effects::close(letter, LetterState::Expired, None, row, next).audited(line))
}

/// Evicts a letter because its queue is cleared. `None` for the head of a sequence that somebody works on. The queue is
/// audited as a whole ([`AuditLine::cleared`]).
pub fn clear(letter: &LetterView, row: &SequenceRow, next: Option<Head>, now: Timestamp) -> Option<Effects> {
    let free = !row.is_in_work(letter.index, now);
    free.then(|| Effects::close(letter, LetterState::Evicted, None, row, next))
}

/// The line for a pause that was set or ended; `None` when nothing was paused before or after.
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
    /// The line for a queue that was cleared.
    pub fn cleared(queue: &QueueName, cleared: &Cleared, by: &Actor) -> Self {
        let after = format!("{} evicted, {} busy", cleared.evicted, cleared.busy);
        Self::new(by, "clear", queue, None, Some(&after))
    }

    /// The line for closed letters that were removed because their time was over.
    pub fn purged(queue: &QueueName, letters: u64) -> Self {
        let by = Actor::engine("the time to keep closed letters ran out");
        Self::new(&by, "purge", queue, None, Some(&format!("{letters} purged")))
    }
}
