//! Tracks the settled messages of a partition: the watermark, and the messages that are settled beyond
//! it.
//!
//! Messages enter in the order of the source and are settled in any order. Only delivered messages are
//! tracked, so gaps from compaction and transaction markers cost nothing. All operations are O(1)
//! amortised, except listing the settled messages beyond the watermark, which is linear in the number of
//! messages in flight.

use std::collections::{BTreeMap, VecDeque};
use std::ops::RangeInclusive;

use bytes::Bytes;
use lazaret_core::Position;
use lazaret_core::message::PartitionNumber;

/// The maximum number of ranges beyond the watermark that are reported to the source (I7).
const RANGES_LIMIT: usize = 1024;

/// The messages of one partition from the watermark to the newest message.
#[derive(Debug)]
pub(crate) struct Tracker {
    partition: PartitionNumber,
    /// The number of the message at the front of `entries`.
    first: u64,
    entries: VecDeque<Entry>,
    /// The tokens of tracked messages, for sources that use tokens.
    tokens: BTreeMap<u64, Bytes>,
    /// The last message of the contiguous settled prefix.
    watermark: Option<Position>,
    /// `true` if a message was settled since the watermark was last taken.
    moved: bool,
    /// The number of deliveries that are neither settled nor abandoned.
    outstanding: usize,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    offset: u64,
    /// The number of components that have not settled the message yet.
    unsettled: u32,
}

impl Tracker {
    pub(crate) fn new(partition: PartitionNumber) -> Self {
        Self {
            partition,
            first: 0,
            entries: VecDeque::new(),
            tokens: BTreeMap::new(),
            watermark: None,
            moved: false,
            outstanding: 0,
        }
    }

    /// Tracks the next message, which `components` components have to settle. Returns its number.
    pub(crate) fn push(&mut self, position: &Position, components: u32) -> u64 {
        debug_assert!(
            self.entries.back().is_none_or(|last| last.offset <= position.offset),
            "a source delivers in order"
        );
        let number = self.first + self.entries.len() as u64;
        if let Some(token) = &position.token {
            self.tokens.insert(number, token.clone());
        }
        self.entries.push_back(Entry { offset: position.offset, unsettled: components });
        self.outstanding += components as usize;
        if components == 0 {
            self.advance();
        }
        number
    }

    /// Records that one component has settled this message.
    pub(crate) fn settle(&mut self, number: u64) {
        self.outstanding -= 1;
        let entry = &mut self.entries[(number - self.first) as usize];
        entry.unsettled -= 1;
        if entry.unsettled == 0 {
            self.moved = true;
            if number == self.first {
                self.advance();
            }
        }
    }

    /// Records that one component will no longer settle a message. The watermark stays before that
    /// message.
    pub(crate) fn abandon(&mut self) {
        self.outstanding -= 1;
    }

    fn advance(&mut self) {
        while let Some(entry) = self.entries.front()
            && entry.unsettled == 0
        {
            let token = self.tokens.remove(&self.first);
            self.watermark = Some(Position { token, ..Position::at(self.partition, entry.offset) });
            self.moved = true;
            self.entries.pop_front();
            self.first += 1;
        }
    }

    /// Returns the number of deliveries that are neither settled nor abandoned.
    pub(crate) fn outstanding(&self) -> usize {
        self.outstanding
    }

    /// Returns the watermark, if a message was settled since it was last taken. `Some(None)` means that
    /// only messages beyond the watermark were settled and that it has not moved since the assignment.
    pub(crate) fn take_moved(&mut self) -> Option<Option<Position>> {
        std::mem::take(&mut self.moved).then(|| self.watermark.clone())
    }

    /// Records that the last taken watermark could not be committed.
    pub(crate) fn not_committed(&mut self) {
        self.moved = true;
    }

    /// Returns the offsets that are settled beyond the watermark, as ranges.
    ///
    /// An offset that a settled and an unsettled message share is omitted.
    pub(crate) fn settled_beyond(&self) -> Vec<RangeInclusive<u64>> {
        let mut ranges: Vec<RangeInclusive<u64>> = Vec::new();
        let mut run: Option<(u64, u64)> = None;
        let mut unsettled_offset = None;
        for entry in &self.entries {
            if entry.unsettled == 0 && unsettled_offset != Some(entry.offset) {
                run = Some((run.map_or(entry.offset, |(start, _)| start), entry.offset));
                continue;
            }
            if entry.unsettled > 0 {
                unsettled_offset = Some(entry.offset);
            }
            if let Some((start, end)) = run.take() {
                close_run(&mut ranges, start, end, entry.offset);
                if ranges.len() == RANGES_LIMIT {
                    return ranges;
                }
            }
        }
        if let Some((start, end)) = run {
            ranges.push(start..=end);
        }
        ranges
    }
}

/// Ends a run of settled offsets before `next`, which is not settled.
fn close_run(ranges: &mut Vec<RangeInclusive<u64>>, start: u64, end: u64, next: u64) {
    let end = if end == next { end.checked_sub(1) } else { Some(end) };
    if let Some(end) = end
        && start <= end
    {
        ranges.push(start..=end);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn tracker(index: u32) -> Tracker {
        Tracker::new(PartitionNumber { index, incarnation: 0 })
    }

    fn push(tracker: &mut Tracker, offset: u64) -> u64 {
        tracker.push(&Position::new(3, offset), 1)
    }

    #[test]
    fn the_watermark_waits_for_the_oldest() {
        // I1
        let mut tracker = tracker(3);
        let numbers: Vec<_> = [10, 11, 12].map(|o| push(&mut tracker, o)).into();
        tracker.settle(numbers[1]);
        tracker.settle(numbers[2]);
        assert_eq!(tracker.take_moved(), Some(None));
        assert_eq!(tracker.settled_beyond(), [11..=12]);
        tracker.settle(numbers[0]);
        assert_eq!(tracker.take_moved(), Some(Some(Position::new(3, 12))));
        assert_eq!(tracker.take_moved(), None);
    }

    #[test]
    fn gaps_between_offsets_do_not_hold_it_back() {
        let mut tracker = tracker(3);
        for offset in [5, 9, 100] {
            let number = push(&mut tracker, offset);
            tracker.settle(number);
        }
        assert_eq!(tracker.take_moved(), Some(Some(Position::new(3, 100))));
    }

    #[test]
    fn a_message_is_settled_when_all_components_are_done() {
        let mut tracker = tracker(3);
        let number = tracker.push(&Position::new(3, 1), 2);
        tracker.settle(number);
        assert_eq!(tracker.take_moved(), None);
        tracker.settle(number);
        assert_eq!(tracker.take_moved().flatten().map(|p| p.offset), Some(1));
    }

    #[test]
    fn an_abandoned_message_holds_the_watermark_forever() {
        let mut tracker = tracker(3);
        push(&mut tracker, 1);
        let second = push(&mut tracker, 2);
        tracker.abandon();
        tracker.settle(second);
        assert_eq!((tracker.take_moved(), tracker.outstanding()), (Some(None), 0));
    }

    #[test]
    fn the_token_of_the_watermark_comes_back() {
        let mut tracker = tracker(3);
        let position = Position { token: Some(Bytes::from_static(b"t")), ..Position::new(3, 7) };
        let number = tracker.push(&position, 1);
        tracker.settle(number);
        assert_eq!(tracker.take_moved(), Some(Some(position)));
        assert!(tracker.tokens.is_empty());
    }

    #[test]
    fn an_offset_shared_with_an_unsettled_message_is_not_called_settled() {
        // I1: two operations of one transaction have one offset.
        let mut tracker = tracker(3);
        let numbers: Vec<_> = [1, 2, 2, 3].map(|o| push(&mut tracker, o)).into();
        tracker.settle(numbers[1]);
        tracker.settle(numbers[3]);
        assert_eq!(tracker.settled_beyond(), [3..=3]);
    }

    proptest! {
        #[test]
        fn every_delivered_offset_up_to_the_watermark_is_settled(
            gaps in prop::collection::vec(0_u64..3, 1..60), order in any::<u64>()
        ) {
            let mut tracker = tracker(0);
            let mut offset = 0;
            let mut open: Vec<(u64, u64)> = gaps.iter().map(|gap| {
                offset += gap;
                (tracker.push(&Position::new(0, offset), 1), offset)
            }).collect();
            let all = open.clone();
            let mut random = order;
            let mut settled = Vec::new();
            let mut watermark = None;
            while !open.is_empty() {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let (number, _) = open.swap_remove((random >> 33) as usize % open.len());
                tracker.settle(number);
                settled.push(number);
                watermark = tracker.take_moved().flatten().map(|p| p.offset).or(watermark);
                let prefix = all.iter().take_while(|(n, _)| settled.contains(n)).last().map(|(_, o)| *o);
                prop_assert_eq!(watermark, prefix);
                for range in tracker.settled_beyond() {
                    for (number, offset) in &all {
                        prop_assert!(!range.contains(offset) || settled.contains(number));
                    }
                }
            }
            prop_assert_eq!(tracker.outstanding(), 0);
        }
    }
}
