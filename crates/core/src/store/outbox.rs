//! Letters that ended, kept until somebody was told of them.

use async_trait::async_trait;

use super::error::Result;
use crate::letter::{Letter, LetterId, LetterState};
use crate::message::QueueName;

/// A letter that came to an end: it will not be tried again by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct End {
    /// Its number. Later ends have larger ones; gaps mean nothing, and no number is given twice.
    pub number: u64,
    /// The letter that ended.
    pub id: LetterId,
    /// How it ended: `dead`, `parked` or `quarantined`.
    pub state: LetterState,
    /// Automatic attempts that it had then.
    pub attempts: u32,
    /// The letter as it stands now, open or closed. `None` when it was purged in the meantime.
    pub letter: Option<Letter>,
}

/// Some ends, and how many follow.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EndsPage {
    /// The ends, oldest first.
    pub ends: Vec<End>,
    /// How many there are behind these.
    pub left: u64,
}

/// A list of the letters of a queue that ended, for those who have to tell others about them.
///
/// A letter ends when it is handed off as `dead`, `parked` or `quarantined`, or is requeued in one of these states from
/// another one. One that is replayed and fails again has ended before; what people do to a letter by hand ends nothing. An
/// end is written in the same step as the letter, so none is lost, whoever dies; it stays until it is forgotten.
///
/// Queues that nobody [watches](Self::watch_ends) have no such list, and it costs them nothing.
#[async_trait]
pub trait Outbox: Send + Sync + 'static {
    /// From now on the ends of this queue are listed. Letters that stand in such a state now are listed at once, in the order
    /// in which they were taken in. Watching what is watched changes nothing.
    async fn watch_ends(&self, queue: &QueueName) -> Result<()>;

    /// The ends after this number, oldest first, at most `limit`.
    async fn ends(&self, queue: &QueueName, after: u64, limit: usize) -> Result<EndsPage>;

    /// Forgets the ends up to and including this number: everybody was told.
    async fn forget_ends(&self, queue: &QueueName, up_to: u64) -> Result<()>;

    /// Stops listing ends of this queue, and forgets those that are listed.
    async fn unwatch_ends(&self, queue: &QueueName) -> Result<()>;
}

/// Whether a letter that comes from one state, or is new, to another has ended. For those who write a store.
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
