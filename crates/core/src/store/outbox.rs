//! The outbox: letters that ended, or lost their content, listed until they were announced.

use async_trait::async_trait;

use super::error::Result;
use crate::letter::{Letter, LetterId, LetterState};
use crate::message::QueueName;

/// A letter that ended: it is not retried automatically. Or one that ended before, and was erased or purged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct End {
    /// Its number. Grows with each end; numbers are unique and can have gaps.
    pub number: u64,
    /// The letter that ended.
    pub id: LetterId,
    /// Its final state: `dead`, `parked` or `quarantined`. The closed state of a letter that was erased or purged.
    pub state: LetterState,
    /// Number of automatic attempts at that time.
    pub attempts: u32,
    /// The letter as currently stored, open or closed. `None` if it was purged.
    pub letter: Option<Letter>,
}

/// A page of ends, with the number of those that follow.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EndsPage {
    /// The ends, oldest first.
    pub ends: Vec<End>,
    /// Number of ends behind these.
    pub left: u64,
}

/// The ended letters of a queue, for notifications.
///
/// A letter ends when it is handed off as `dead`, `parked` or `quarantined`, or is requeued in one of these states from
/// another one. A letter that fails again in a replay has ended before; changes by operators end nothing. The
/// end is written in the same transaction as the letter, so none is lost in a crash; it stays until it is forgotten.
///
/// A closed letter is listed once more when its content is erased, and when it is purged, by a person or by retention. So those who keep
/// copies can remove the content there without looking at all of them. The state of such an end is closed, and nobody announces it.
///
/// Queues that are not [watched](Self::watch_ends) have no such list and no cost.
#[async_trait]
pub trait Outbox: Send + Sync + 'static {
    /// Starts listing the ends of this queue. Letters that are in such a state now are listed at once, in the order
    /// in which they were enqueued. Idempotent.
    async fn watch_ends(&self, queue: &QueueName) -> Result<()>;

    /// The ends after this number, oldest first, at most `limit`.
    async fn ends(&self, queue: &QueueName, after: u64, limit: usize) -> Result<EndsPage>;

    /// Forgets the ends up to and including this number: they were announced.
    async fn forget_ends(&self, queue: &QueueName, up_to: u64) -> Result<()>;

    /// Stops listing ends of this queue, and forgets the listed ones.
    async fn unwatch_ends(&self, queue: &QueueName) -> Result<()>;
}

/// `true` if a transition between these states ends a letter; `before` is `None` for a new letter.
///
/// ```
/// use lazaret_core::LetterState::{Dead, Parked, Retrying};
/// use lazaret_core::store::is_end;
/// assert!(is_end(None, Dead) && is_end(Some(Retrying), Parked));
/// assert!(!is_end(Some(Dead), Dead) && !is_end(Some(Dead), Retrying));
/// ```
pub fn is_end(before: Option<LetterState>, now: LetterState) -> bool {
    matches!(now, LetterState::Dead | LetterState::Parked | LetterState::Quarantined) && before != Some(now)
}
