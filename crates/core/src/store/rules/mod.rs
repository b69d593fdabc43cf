//! The rules of a letter's life, each written once: pure functions from a view to an answer and its effects.
//!
//! A store keeps rows; it decides nothing. For every request it
//!
//! 1. loads a **view**: the row of the sequence, the letter, the letter behind it, the grant, the operation;
//! 2. calls the rule for the request, which answers, refuses with a [`StoreError`](super::StoreError), or asks for one more
//!    look ([`Entry::Insert`], [`PollStep::Look`]);
//! 3. applies the [`Effects`]: all of them in one transaction, or nothing.
//!
//! | request | rule |
//! |---|---|
//! | `assign`, `hand_off` | [`GrantRow`], [`hand_off`], [`place`], [`insert`] |
//! | `claim_due`, `claim`, `renew`, `release`, `settle` | [`SequenceRow::claimed`], [`renew`], [`release`], [`settle`] |
//! | `act`, `restore` | [`act`], [`place_restored`], [`restore`] |
//! | `change`, `purge`, `expire`, `clear` | [`check_change`], [`purge`], [`expire`], [`clear`] |
//! | a group's counters | [`GroupRow`] |
//! | `freeze`, `poll_work`, an item's outcome | [`exclusion`], [`Freeze`], [`Poll`], [`turn`], [`item_outcomes`] |
//!
//! # Without transactions over several documents
//!
//! All that has to be exclusive goes through the row of the sequence: append and close, claim and settle, act and settle. A
//! database that can change one document atomically gives that row a version and writes it by compare-and-set:
//!
//! 1. Write the letter in its new form, marked with the version that the row will have. A reader that finds such a mark above
//!    the row's version ignores the new form: nothing has happened yet.
//! 2. Compare-and-set the row. From here on it has happened; a conflict means to load the view again and ask the rule again.
//! 3. Write counters, audit, ends and outcomes, each keyed by the row's version, so that a repetition after a crash changes nothing.
//!
//! The effects are values, so what is left of them can be kept in the row itself until step 3 is done.

mod acts;
mod effects;
mod freezing;
mod groups;
mod intake;
mod leases;
mod lifecycle;
mod polling;
mod sequence;

pub use acts::{Known, RestoreView, act, place_restored, restore};
pub use effects::{AuditLine, Blocked, Effects, Failed, LetterChange, LetterView, Standing, Tally};
pub use freezing::{Candidate, Freeze, Frozen, FrozenItem, exclusion, plan};
pub use groups::{GroupRow, LatestFailure};
pub use intake::{
    Entry, GrantRow, HandOffRequest, HandOffView, INDEX_STEP, Later, Slot, hand_off, insert, place,
    skip_audit,
};
pub use leases::{GoOn, Settle, SettleView, release, renew, settle};
pub use lifecycle::{check_change, clear, expire, pause_audit, purge};
pub use polling::{
    ItemOutcomes, ItemView, Pending, Poll, PollStep, Round, Stage, Turn, is_tried, item_outcomes, turn,
};
pub use sequence::{Head, HeldLease, LeaseKind, Schedule, SequenceChange, SequenceRow, due_of};

use jiff::Timestamp;

use super::error::{ErrorKind, Result, StoreError};

fn refuse<T>(kind: ErrorKind, operation: &'static str, context: impl Into<String>) -> Result<T> {
    Err(StoreError::not_done(kind, operation, context))
}

/// The time this much later, or the end of time.
pub fn later(now: Timestamp, by: std::time::Duration) -> Timestamp {
    now.checked_add(by).unwrap_or(Timestamp::MAX)
}
