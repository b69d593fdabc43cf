//! The settled offsets of the assigned partitions, for commits in transactions.
//!
//! A relayed message is settled in the transaction that writes it, before the engine commits it. The
//! position in a transaction therefore combines the engine's last commit and the messages relayed since.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use lazaret_core::Partition;

use crate::positions::settled::SettledOffsets;

/// Settled offsets by partition, each with the number of its assignment.
pub(crate) type OffsetsByPartition = HashMap<Partition, (u64, SettledOffsets)>;

/// The assigned partitions. Each assignment of a partition has a different number.
#[derive(Debug, Default)]
pub(crate) struct AssignedOffsets {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The number of assignments so far.
    assignments: u64,
    partitions: OffsetsByPartition,
}

impl AssignedOffsets {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a partition that was assigned or rewound.
    pub(crate) fn assign(&self, partition: Partition, settled: SettledOffsets) {
        let mut state = self.state();
        state.assignments += 1;
        let number = state.assignments;
        state.partitions.insert(partition, (number, settled));
    }

    /// Removes a revoked partition.
    pub(crate) fn revoke(&self, partition: &Partition) {
        self.state().partitions.remove(partition);
    }

    /// Returns the settled offsets of a partition, or `None` if it is not assigned.
    pub(crate) fn get(&self, partition: &Partition) -> Option<(u64, SettledOffsets)> {
        self.state().partitions.get(partition).cloned()
    }

    /// Updates partitions after a commit, unless they were revoked or rewound since.
    pub(crate) fn update(&self, committed: OffsetsByPartition) {
        let mut state = self.state();
        for (partition, (number, settled)) in committed {
            if let Some(known) = state.partitions.get_mut(&partition).filter(|known| known.0 == number) {
                known.1 = settled;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_commit_of_an_earlier_assignment_changes_nothing() {
        let (offsets, partition) = (AssignedOffsets::default(), Partition::new("orders", 0));
        offsets.assign(partition.clone(), SettledOffsets::new(5, vec![], 0, None));
        let (number, mut settled) = offsets.get(&partition).unwrap();
        settled.settle([5..=9]);
        offsets.revoke(&partition);
        offsets.assign(partition.clone(), SettledOffsets::new(6, vec![], 0, None));
        offsets.update([(partition.clone(), (number, settled))].into());
        assert_eq!(offsets.get(&partition).unwrap().1.offset, 6);
    }
}
