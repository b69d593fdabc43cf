//! The rules of a letter's life, each written once: pure functions from a view to a result and its effects.
//!
//! A store keeps rows and decides nothing. For every request it
//!
//! 1. loads a **view**: the row of the sequence, the letter, the letter behind it, the grant, the operation;
//! 2. calls the rule for the request, which returns a result, refuses with a [`StoreError`], or requests one
//!    more lookup ([`Entry::Insert`], [`PollStep::Inspect`]);
//! 3. applies the [`Effects`]: all of them in one transaction, or nothing.
//!
//! | request | rule |
//! |---|---|
//! | `assign`, `hand_off` | [`GrantRow`], [`hand_off`], [`place`], [`insert`] |
//! | `claim_due`, `claim`, `renew`, `release`, `settle` | [`SequenceRow::claimed`], [`renew`], [`release`], [`settle`] |
//! | `act`, `restore` | [`act`], [`place_restored`], [`restore`] |
//! | `change`, `purge`, `expire`, `clear` | [`check_change`], [`purge`], [`expire`], [`clear`] |
//! | a group's counters | [`GroupRow`] |
//! | `freeze`, `poll_work`, an item's outcome | [`exclusion`], [`Freeze`], [`Poll`], [`item_action`], [`item_outcomes`] |
//!
//! # Without transactions over several documents
//!
//! Every exclusive change goes through the row of the sequence: append and close, claim and settle, act and settle. A
//! database with atomic single-document writes adds a version to that row and writes it by compare-and-set:
//!
//! 1. Write the letter in its new form, tagged with the row's next version. Readers ignore a form whose tag is above
//!    the row's version: it is not committed yet.
//! 2. Compare-and-set the row. This is the commit; after a conflict, load the view and call the rule again.
//! 3. Write counters, audit, ends and outcomes, each keyed by the row's version, so that a repetition after a crash is idempotent.
//!
//! The effects are values, so pending ones can be stored in the row itself until step 3 is done.

mod acts;
mod effects;
mod freezing;
mod groups;
mod intake;
mod leases;
mod lifecycle;
mod polling;
mod sequence;

pub use acts::{LetterLookup, RestoreView, act, place_restored, restore};
pub use effects::{AuditLine, Blocked, CountChange, CountedAs, Effects, Failed, LetterChange, LetterView};
pub use freezing::{Candidate, Freeze, Frozen, FrozenItem, exclusion, plan};
pub use groups::{GroupRow, LatestFailure};
pub use intake::{
    Entry, GrantRow, HandOffRequest, HandOffView, INDEX_STEP, LaterLetter, Slot, hand_off, insert, place,
    skip_audit,
};
pub use leases::{AfterSettle, Settle, SettleView, release, renew, settle};
pub use lifecycle::{check_change, clear, expire, pause_audit, purge};
pub use polling::{
    ItemAction, ItemOutcomes, ItemView, Pending, Poll, PollDecision, PollStep, StageCursor, is_tried,
    item_action, item_outcomes,
};
pub use sequence::{Head, HeldLease, LeaseKind, Schedule, SequenceChange, SequenceRow, due_of};

use jiff::Timestamp;

use super::error::{ErrorKind, Result, StoreError};

fn refuse<T>(kind: ErrorKind, operation: &'static str, context: impl Into<String>) -> Result<T> {
    Err(StoreError::not_done(kind, operation, context))
}

/// Adds a duration to a time, saturating at the maximum.
pub fn later(now: Timestamp, by: std::time::Duration) -> Timestamp {
    now.checked_add(by).unwrap_or(Timestamp::MAX)
}
