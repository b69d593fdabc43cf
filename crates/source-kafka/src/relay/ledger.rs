//! What is settled of each partition, for commits that are made in transactions.
//!
//! A message that is passed on is settled in the same transaction, before the engine hears of it. So the position that goes
//! into a transaction is made of both: what the engine said last, and what was passed on since.

use std::collections::HashMap;
use std::ops::RangeInclusive;
use std::sync::{Mutex, MutexGuard, PoisonError};

use lazaret_core::Partition;

use crate::settled::{self, Place};

/// How far one partition is settled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Standing {
    /// The first offset that is not settled.
    pub(crate) offset: u64,
    /// What is settled beyond it, in order and apart.
    settled: Vec<RangeInclusive<u64>>,
    /// How many characters of metadata the broker takes.
    limit: usize,
}

impl Standing {
    pub(crate) fn new(offset: u64, settled: Vec<RangeInclusive<u64>>, limit: usize) -> Self {
        let mut standing = Self { offset, settled: Vec::new(), limit };
        standing.settle(settled);
        standing
    }

    /// Everything before this offset is settled, too, and so are these ranges.
    pub(crate) fn told(&mut self, offset: u64, ranges: &[RangeInclusive<u64>], limit: usize) {
        self.offset = self.offset.max(offset);
        self.limit = limit;
        self.settle(ranges.iter().cloned());
    }

    /// These offsets are settled.
    pub(crate) fn settle(&mut self, ranges: impl IntoIterator<Item = RangeInclusive<u64>>) {
        self.settled.extend(ranges);
        self.settled.sort_unstable_by_key(|range| *range.start());
        let mut joined: Vec<RangeInclusive<u64>> = Vec::with_capacity(self.settled.len());
        for range in self.settled.drain(..) {
            let (start, end) = range.into_inner();
            if end < self.offset {
                continue;
            }
            if start <= self.offset {
                self.offset = end.saturating_add(1);
                continue;
            }
            match joined.last_mut() {
                Some(last) if start <= last.end().saturating_add(1) => {
                    *last = *last.start()..=(*last.end()).max(end);
                }
                _ => joined.push(start..=end),
            }
        }
        self.settled = joined;
    }

    /// What is committed besides the offset.
    pub(crate) fn metadata(&self, partition: &Partition) -> String {
        let place =
            Place { topic: partition.stream.as_str(), partition: partition.index, offset: self.offset };
        settled::encode(&self.settled, place, self.limit)
    }
}

/// How partitions stand, each with the number that it came with.
pub(crate) type Standings = HashMap<Partition, (u64, Standing)>;

/// The partitions that are ours. Each time that one comes it has another number.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// How many have come.
    came: u64,
    standings: Standings,
}

impl Ledger {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A partition came, or begins anew.
    pub(crate) fn come(&self, partition: Partition, standing: Standing) {
        let mut state = self.state();
        state.came += 1;
        let number = state.came;
        state.standings.insert(partition, (number, standing));
    }

    /// A partition went.
    pub(crate) fn go(&self, partition: &Partition) {
        self.state().standings.remove(partition);
    }

    /// How a partition stands; `None` when it is not ours.
    pub(crate) fn standing(&self, partition: &Partition) -> Option<(u64, Standing)> {
        self.state().standings.get(partition).cloned()
    }

    /// Partitions stand so now, unless they went meanwhile.
    pub(crate) fn committed(&self, standings: Standings) {
        let mut state = self.state();
        for (partition, (number, standing)) in standings {
            if let Some(known) = state.standings.get_mut(&partition).filter(|known| known.0 == number) {
                known.1 = standing;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_settled_moves_the_offset_when_it_reaches_it() {
        // I1
        let mut standing = Standing::new(10, vec![12..=13], 4096);
        standing.settle([15..=15]);
        assert_eq!((standing.offset, standing.settled.as_slice()), (10, &[12..=13, 15..=15][..]));
        standing.settle([10..=10]);
        assert_eq!(standing.offset, 11, "11 is not settled");
        standing.settle([11..=11, 14..=14]);
        assert_eq!((standing.offset, standing.settled.len()), (16, 0));
    }

    #[test]
    fn what_the_engine_says_never_takes_back_what_was_passed_on() {
        // I1: the engine has not heard of 10 and 20 yet.
        let mut standing = Standing::new(10, vec![], 4096);
        standing.settle([10..=10]);
        standing.settle([20..=20]);
        standing.told(10, &[12..=12], 4096);
        assert_eq!((standing.offset, standing.settled.as_slice()), (11, &[12..=12, 20..=20][..]));
        standing.told(21, &[], 4096);
        assert_eq!((standing.offset, standing.settled.len()), (21, 0));
    }

    #[test]
    fn the_metadata_is_what_a_reader_understands() {
        let partition = Partition::new("orders", 3);
        let standing = Standing::new(10, vec![12..=13, 15..=15], 4096);
        let place = Place { topic: "orders", partition: 3, offset: 10 };
        assert_eq!(settled::decode(&standing.metadata(&partition), place).unwrap(), [12..=13, 15..=15]);
        assert_eq!(Standing::new(10, vec![12..=13], 0).metadata(&partition), "");
    }

    #[test]
    fn a_partition_that_came_again_stands_as_it_came() {
        let (ledger, partition) = (Ledger::default(), Partition::new("orders", 0));
        ledger.come(partition.clone(), Standing::new(5, vec![], 0));
        let (number, mut standing) = ledger.standing(&partition).unwrap();
        standing.settle([5..=9]);
        ledger.go(&partition);
        ledger.come(partition.clone(), Standing::new(6, vec![], 0));
        ledger.committed([(partition.clone(), (number, standing))].into());
        assert_eq!(ledger.standing(&partition).unwrap().1.offset, 6);
    }
}
