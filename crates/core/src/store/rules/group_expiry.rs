//! When the next letter of a group expires, from a bounded number of letters.
//!
//! Letters are indexed by queue and expiry, and by group and arrival. An index by group and expiry would cost each hand-off an
//! entry. So a store reads the letters of the queue that expire next, once for all groups that it lists, and the oldest letters of
//! the groups that have none among them.

use std::collections::HashMap;
use std::hash::Hash;

use jiff::Timestamp;

/// Maximum number of letters of a queue that are read for the next expiry of its groups, those that expire next.
pub const EXPIRIES_OF_QUEUE: usize = 500;
/// Maximum number of letters that are read of a group which has none among those that expire next, the oldest first.
pub const EXPIRIES_OF_GROUP: usize = 100;

/// The letters of a queue that expire next, by group. `G` identifies a group within the queue.
///
/// ```
/// use lazaret_core::Timestamp;
/// use lazaret_core::store::rules::{GroupExpiry, NextExpiries};
/// let at = |second| Timestamp::from_second(second).unwrap();
/// let next = NextExpiries::new([(Some("timeout"), at(5)), (None, at(6)), (Some("timeout"), at(7))]);
/// assert_eq!(next.of(&"timeout"), GroupExpiry::Known(Some(at(5))));
/// assert_eq!(next.of(&"conflict"), GroupExpiry::Known(None));
/// ```
#[derive(Clone, Debug)]
pub struct NextExpiries<G> {
    by_group: HashMap<G, Timestamp>,
    is_all: bool,
}

/// When the next letter of a group expires, as far as the [letters of its queue](NextExpiries) tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupExpiry {
    /// At this time; `None` for never.
    Known(Option<Timestamp>),
    /// Later than [`EXPIRIES_OF_QUEUE`] letters of the queue. The earliest expiry among the [`EXPIRIES_OF_GROUP`] oldest open letters of the
    /// group is shown.
    OfOldest,
}

impl<G: Eq + Hash> NextExpiries<G> {
    /// The open letters of a queue that expire next, at most [`EXPIRIES_OF_QUEUE`], each with its group. Those that wait behind others do not
    /// expire.
    pub fn new(letters: impl IntoIterator<Item = (Option<G>, Timestamp)>) -> Self {
        let (mut by_group, mut read) = (HashMap::new(), 0);
        for (group, at) in letters {
            read += 1;
            if let Some(group) = group {
                let next = by_group.entry(group).or_insert(at);
                *next = at.min(*next);
            }
        }
        Self { by_group, is_all: read < EXPIRIES_OF_QUEUE }
    }

    /// When the next letter of this group expires.
    pub fn of(&self, group: &G) -> GroupExpiry {
        match self.by_group.get(group) {
            Some(at) => GroupExpiry::Known(Some(*at)),
            None if self.is_all => GroupExpiry::Known(None),
            None => GroupExpiry::OfOldest,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: usize) -> Timestamp {
        Timestamp::from_second(second.try_into().unwrap()).unwrap()
    }

    #[test]
    fn a_group_without_a_letter_among_the_next_is_read_by_itself() {
        let letters = |number: usize| (0..number).map(|second| (Some(second % 2), at(second)));
        let all = NextExpiries::new(letters(EXPIRIES_OF_QUEUE - 1));
        let some = NextExpiries::new(letters(EXPIRIES_OF_QUEUE));
        for next in [&all, &some] {
            assert_eq!(next.of(&0), GroupExpiry::Known(Some(at(0))));
            assert_eq!(next.of(&1), GroupExpiry::Known(Some(at(1))));
        }
        assert_eq!(all.of(&2), GroupExpiry::Known(None), "these are all letters of the queue");
        assert_eq!(some.of(&2), GroupExpiry::OfOldest);
    }

    #[test]
    fn letters_without_a_cause_count_as_read() {
        let some = NextExpiries::<u32>::new((0..EXPIRIES_OF_QUEUE).map(|second| (None, at(second))));
        assert_eq!(some.of(&1), GroupExpiry::OfOldest);
    }
}
