//! The settled offsets of one partition.

use std::ops::RangeInclusive;
use std::sync::Arc;

use lazaret_core::Partition;

use super::metadata::{self, CommitKey};

/// The settled offsets of one partition: everything before an offset, and ranges beyond it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SettledOffsets {
    /// The first offset that is not settled.
    pub(crate) offset: u64,
    /// The settled ranges beyond it, in order and disjoint.
    ranges: Vec<RangeInclusive<u64>>,
    /// The maximum number of characters of metadata.
    metadata_limit: usize,
    /// The id of the topic, if its broker has reported it.
    log: Option<Arc<str>>,
}

impl SettledOffsets {
    pub(crate) fn new(
        offset: u64,
        ranges: Vec<RangeInclusive<u64>>,
        metadata_limit: usize,
        log: Option<Arc<str>>,
    ) -> Self {
        let mut settled = Self { offset, ranges: Vec::new(), metadata_limit, log };
        settled.settle(ranges);
        settled
    }

    /// Adds the engine's commit, which settles everything before this offset, and these ranges.
    pub(crate) fn add_commit(&mut self, offset: u64, ranges: &[RangeInclusive<u64>], metadata_limit: usize) {
        self.offset = self.offset.max(offset);
        self.metadata_limit = metadata_limit;
        self.settle(ranges.iter().cloned());
    }

    /// Settles these offsets.
    pub(crate) fn settle(&mut self, ranges: impl IntoIterator<Item = RangeInclusive<u64>>) {
        self.ranges.extend(ranges);
        self.ranges.sort_unstable_by_key(|range| *range.start());
        let mut joined: Vec<RangeInclusive<u64>> = Vec::with_capacity(self.ranges.len());
        for range in self.ranges.drain(..) {
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
        self.ranges = joined;
    }

    /// Encodes the ranges beyond the offset, and the ids of topic and store, as commit metadata.
    pub(crate) fn metadata(&self, partition: &Partition, store: Option<&str>) -> String {
        let key = CommitKey::of(partition, self.offset, self.log.as_deref());
        metadata::encode(&self.ranges, key, store, self.metadata_limit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settled_ranges_advance_the_offset_when_they_reach_it() {
        // I1
        let mut settled = SettledOffsets::new(10, vec![12..=13], 4096, None);
        settled.settle([15..=15]);
        assert_eq!((settled.offset, settled.ranges.as_slice()), (10, &[12..=13, 15..=15][..]));
        settled.settle([10..=10]);
        assert_eq!(settled.offset, 11, "11 is not settled");
        settled.settle([11..=11, 14..=14]);
        assert_eq!((settled.offset, settled.ranges.len()), (16, 0));
    }

    #[test]
    fn a_commit_of_the_engine_keeps_what_was_relayed() {
        // I1: the engine does not know of 10 and 20 yet.
        let mut settled = SettledOffsets::new(10, vec![], 4096, None);
        settled.settle([10..=10]);
        settled.settle([20..=20]);
        settled.add_commit(10, &[12..=12], 4096);
        assert_eq!((settled.offset, settled.ranges.as_slice()), (11, &[12..=12, 20..=20][..]));
        settled.add_commit(21, &[], 4096);
        assert_eq!((settled.offset, settled.ranges.len()), (21, 0));
    }

    #[test]
    fn the_metadata_can_be_decoded() {
        let partition = Partition::new("orders", 3);
        let settled = SettledOffsets::new(10, vec![12..=13, 15..=15], 4096, None);
        let key = CommitKey::of(&partition, 10, None);
        assert_eq!(metadata::decode(&settled.metadata(&partition, None), key).unwrap(), [12..=13, 15..=15]);
        assert_eq!(SettledOffsets::new(10, vec![12..=13], 0, None).metadata(&partition, None), "");
    }
}
