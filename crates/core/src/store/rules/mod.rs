//! The rules of a letter's life, each written once: pure functions from a view to a result and its effects.
//!
//! A store keeps rows and decides nothing. For every request it
//!
//! 1. loads a **view**: the row of the sequence, the letter, the letter behind it, the grant, the operation;
//! 2. calls the rule for the request, which returns a result, refuses with a [`StoreError`], or requests one
//!    more lookup ([`Entry::Insert`], [`Need`]);
//! 3. applies the [`Effects`]: all of them in one transaction, or nothing.
//!
//! | request | rule |
//! |---|---|
//! | `assign`, `hand_off` | [`GrantRow`], [`hand_off`], [`place`], [`insert`] |
//! | `claim_due`, `claim`, `renew`, `release`, `settle` | [`SequenceRow::claimed`], [`renew`], [`release`], [`settle`] |
//! | `settle_and_continue` | [`settle`], [`takes_next`] |
//! | `act`, `restore` | [`act`], [`place_restored`], [`restore`] |
//! | `change`, `purge`, `erase`, `expire`, `clear` | [`check_change`], [`purge`], [`erase`], [`expire`], [`clear`] |
//! | a group's counters | [`GroupRow`] |
//! | a group's next expiry | [`NextExpiries`] |
//! | `freeze`, `poll_work`, an item's outcome | [`exclusion`], [`Freeze`], [`Poll`] and [`Serving`], [`item_outcomes`] |
//!
//! # Without transactions over several documents
//!
//! All that has to be exclusive goes through the row of the sequence: append and close, claim and settle, act and settle. A
//! database that can change one document atomically keeps that row in one document, with a version, and what is left to do in
//! other documents beside it:
//!
//! 1. Load the document of the sequence. If a call before has left something to do in it, do that first.
//! 2. Ask the rule.
//! 3. Compare-and-set the document: the new row, and the [`Effects`] on everything else as values (the letter in its new form, the
//!    line for the audit, the count change). From here on the call has happened. A conflict means to load again and to ask again.
//! 4. Do what is left, then take it out of the document by another compare-and-set. An error in this step is
//!    [`MaybeDone`](super::Certainty::MaybeDone): the next call that loads the document finishes it.
//!
//! A refusal is an answer, too: check before giving it that the document still has the version on which the rule decided.
//!
//! Step 4 is done by whoever comes by, several times if need be, and late: a process that slept for a minute may wake up in the
//! middle of it. So each write carries the version of the decision and is refused behind a later one:
//!
//! - A **letter** remembers the version that decided about it; an older one does not overwrite it. A purged letter keeps its
//!   document, with its state.
//! - A **group** remembers the version up to which it has counted each sequence. The **counts** of a queue need no such thing if
//!   the document of each sequence holds its own, and the queue's are their sum.
//! - A **log** (audit, arrivals, sequences in the order in which they were opened) is a document for each number. An entry takes
//!   the first free number behind the one with which the log ended before the decision, unless it finds itself there. So
//!   numbers have no gaps, and no revision is given before the sequence is open: a reader never passes one that appears later.
//! - A letter that **leaves its sequence** ([`Effects::detached`]) needs another document of that kind. It is inserted unless it is there,
//!   after the groups have counted, with the letter as what is left to do in it. A letter leaves once, and documents of sequences
//!   stay: whoever inserts it late changes nothing.
//! - An **outcome** is written once; the counters of an operation stand in the same document.
//!
//! What can be derived is not copied: whether a sequence is paused, or still [reserved](SequenceRow::reserved) for an operation,
//! is read from the pauses and the plan when the row is loaded.
//!
//! A grant is another document than the sequence. A hand-off is admitted there, with its sequence noted as under way and the
//! horizon raised, *before* it decides. A new grant, or a later turn, first writes every sequence that is under way anew: a late
//! decision on the old version fails, asks again, and is fenced.
//!
//! `crates/testkit/tests/example_store` is a store of this kind; the guide *Writing a store* explains it.

mod acts;
mod effects;
mod freezing;
mod group_expiry;
mod groups;
mod intake;
mod leases;
mod lifecycle;
mod polling;
mod sequence;
mod serving;

pub use acts::{LetterLookup, RestoreView, act, place_restored, restore};
pub use effects::{
    AuditLine, Blocked, CountChange, CountedAs, Detached, Effects, Failed, LetterChange, LetterView,
};
pub use freezing::{Candidate, Freeze, Frozen, FrozenItem, exclusion, plan};
pub use group_expiry::{EXPIRIES_OF_GROUP, EXPIRIES_OF_QUEUE, GroupExpiry, NextExpiries};
pub use groups::{GroupChanges, GroupRow, LatestFailure};
pub use intake::{
    Entry, FIRST_INDEX, GrantRow, HandOffRequest, HandOffView, INDEX_STEP, LaterLetter, Slot, hand_off,
    insert, may_precede, place, skip_audit,
};
pub use leases::{
    AfterSettle, ClockWatch, Settle, SettleView, clamp_row, latest_lease_end, release, renew, settle,
};
pub use lifecycle::{check_change, clear, erase, expire, pause_audit, purge};
pub use polling::{
    ItemAction, ItemOutcomes, ItemView, Pending, is_tried, item_action, item_outcomes, takes_next,
};
pub use sequence::{
    Head, HeldLease, LeaseKind, Pace, Schedule, SequenceChange, SequenceRow, due_of, released_letters,
};
pub(crate) use sequence::{earlier, set_back};
pub use serving::{Need, Poll, Serving, Swept};

use jiff::Timestamp;

use super::error::{ErrorKind, Result, StoreError};

fn refuse<T>(kind: ErrorKind, operation: &'static str, context: impl Into<String>) -> Result<T> {
    Err(StoreError::not_done(kind, operation, context))
}

/// Adds a duration to a time, saturating at the maximum.
pub fn later(now: Timestamp, by: std::time::Duration) -> Timestamp {
    now.checked_add(by).unwrap_or(Timestamp::MAX)
}
