//! The open sequences of a queue, in memory: the reason why healthy messages never touch the store.
//!
//! The set answers "surely absent" or "maybe open". Absent is always right; a "maybe" is checked with the store before
//! anything follows from it. Up to its limit it is a flat table of 128-bit hashes: 16 bytes a slot, at most 4/5 full,
//! one cache line a look-up. Above the limit it turns into a bit filter of fixed size that only ever grows fuller; it
//! becomes exact again when it is rebuilt at the next start.

use crate::hash::SequenceHash;

/// The smallest table. A power of two.
const SMALLEST: usize = 64;
/// Bits of the filter per sequence of the limit; with four probes about 2 % of absent sequences are asked for.
const FILTER_BITS_PER_SEQUENCE: usize = 8;
const FILTER_PROBES: u32 = 4;

/// The open sequences of one shard of one queue.
#[derive(Debug)]
pub struct BlockedSet {
    form: Form,
    limit: usize,
}

#[derive(Debug)]
enum Form {
    Exact(Table),
    Filter(Filter),
}

impl BlockedSet {
    /// An empty set that stays exact up to `limit` sequences.
    pub fn new(limit: usize) -> Self {
        Self { form: Form::Exact(Table::default()), limit: limit.max(1) }
    }

    /// Whether the sequence may be open. `false` is certain.
    #[doc(hidden)]
    pub fn maybe(&self, sequence: SequenceHash) -> bool {
        match &self.form {
            Form::Exact(table) => table.len > 0 && table.contains(pack(sequence)),
            Form::Filter(filter) => filter.contains(pack(sequence)),
        }
    }

    /// Notes that the sequence is open. Twice is once.
    #[doc(hidden)]
    pub fn insert(&mut self, sequence: SequenceHash) {
        match &mut self.form {
            Form::Exact(table) if table.len < self.limit || table.contains(pack(sequence)) => {
                table.insert(pack(sequence));
            }
            Form::Exact(table) => {
                let mut filter = Filter::new(self.limit);
                table.slots.iter().filter(|slot| **slot != EMPTY).for_each(|slot| filter.insert(*slot));
                filter.insert(pack(sequence));
                self.form = Form::Filter(filter);
            }
            Form::Filter(filter) => filter.insert(pack(sequence)),
        }
    }

    /// Notes that the sequence is closed. A filter cannot forget; it goes on saying "maybe".
    #[doc(hidden)]
    pub fn remove(&mut self, sequence: SequenceHash) {
        if let Form::Exact(table) = &mut self.form {
            table.remove(pack(sequence));
        }
    }

    /// How many sequences the set holds; `None` once it is a filter.
    pub fn len(&self) -> Option<usize> {
        match &self.form {
            Form::Exact(table) => Some(table.len),
            Form::Filter(_) => None,
        }
    }

    /// Whether it is known to hold nothing.
    pub fn is_empty(&self) -> bool {
        self.len() == Some(0)
    }

    /// The memory that the set takes, in bytes.
    pub fn byte_size(&self) -> usize {
        match &self.form {
            Form::Exact(table) => table.slots.capacity() * size_of::<u128>(),
            Form::Filter(filter) => filter.words.capacity() * size_of::<u64>(),
        }
    }
}

/// Marks a free slot. A sequence whose hash happens to be this is stored as 1.
const EMPTY: u128 = 0;

fn pack(sequence: SequenceHash) -> u128 {
    let packed = (u128::from(sequence.high) << 64) | u128::from(sequence.low);
    if packed == EMPTY { 1 } else { packed }
}

/// Open addressing with linear probing and backward-shift deletion: no tombstones, so look-ups stay short.
#[derive(Debug, Default)]
struct Table {
    slots: Vec<u128>,
    len: usize,
}

impl Table {
    fn home(&self, packed: u128) -> usize {
        packed as usize & (self.slots.len() - 1)
    }

    fn contains(&self, packed: u128) -> bool {
        if self.slots.is_empty() {
            return false;
        }
        let mut at = self.home(packed);
        loop {
            match self.slots[at] {
                EMPTY => return false,
                found if found == packed => return true,
                _ => at = (at + 1) & (self.slots.len() - 1),
            }
        }
    }

    fn insert(&mut self, packed: u128) {
        if (self.len + 1) * 5 > self.slots.len() * 4 {
            self.grow();
        }
        if self.place(packed) {
            self.len += 1;
        }
    }

    /// Puts the hash into the first free slot from its home; `false` when it was there.
    fn place(&mut self, packed: u128) -> bool {
        let mut at = self.home(packed);
        while self.slots[at] != EMPTY {
            if self.slots[at] == packed {
                return false;
            }
            at = (at + 1) & (self.slots.len() - 1);
        }
        self.slots[at] = packed;
        true
    }

    fn grow(&mut self) {
        let larger = (self.slots.len() * 2).max(SMALLEST);
        let old = std::mem::replace(&mut self.slots, vec![EMPTY; larger]);
        for packed in old.into_iter().filter(|slot| *slot != EMPTY) {
            self.place(packed);
        }
    }

    fn remove(&mut self, packed: u128) {
        if self.slots.is_empty() {
            return;
        }
        let mask = self.slots.len() - 1;
        let mut hole = self.home(packed);
        loop {
            match self.slots[hole] {
                EMPTY => return,
                found if found == packed => break,
                _ => hole = (hole + 1) & mask,
            }
        }
        self.len -= 1;
        let mut next = (hole + 1) & mask;
        while self.slots[next] != EMPTY {
            let home = self.home(self.slots[next]);
            // The slot may move back into the hole unless its home lies strictly between hole and slot.
            if next.wrapping_sub(home) & mask >= next.wrapping_sub(hole) & mask {
                self.slots[hole] = self.slots[next];
                hole = next;
            }
            next = (next + 1) & mask;
        }
        self.slots[hole] = EMPTY;
    }
}

/// A Bloom filter whose probes are cut from the 128 bits that are there anyway.
#[derive(Debug)]
struct Filter {
    words: Vec<u64>,
}

impl Filter {
    fn new(sequences: usize) -> Self {
        let words = (sequences * FILTER_BITS_PER_SEQUENCE / 64).next_power_of_two().max(1);
        Self { words: vec![0; words] }
    }

    fn probes(&self, packed: u128) -> impl Iterator<Item = (usize, u64)> + use<> {
        let mask = self.words.len() - 1;
        (0..FILTER_PROBES).map(move |i| {
            let part = (packed >> (32 * i)) as u64;
            let mixed = part.wrapping_mul(0x9E37_79B9_7F4A_7C15);
            ((mixed >> 20) as usize & mask, 1 << (mixed & 63))
        })
    }

    fn insert(&mut self, packed: u128) {
        for (word, bit) in self.probes(packed) {
            self.words[word] |= bit;
        }
    }

    fn contains(&self, packed: u128) -> bool {
        self.probes(packed).all(|(word, bit)| self.words[word] & bit != 0)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;
    use crate::hash::SequenceHasher;

    fn hash(n: u64) -> SequenceHash {
        SequenceHasher::new(7).hash(&format!("order-{n}"))
    }

    #[test]
    fn an_empty_set_holds_nothing() {
        let set = BlockedSet::new(10);
        assert!(set.is_empty() && !set.maybe(hash(1)));
    }

    #[test]
    fn a_set_beyond_its_limit_never_says_absent_wrongly() {
        // I2
        let mut set = BlockedSet::new(1_000);
        (0..5_000).for_each(|n| set.insert(hash(n)));
        assert_eq!(set.len(), None);
        assert!((0..5_000).all(|n| set.maybe(hash(n))));
        set.remove(hash(17));
        assert!(set.maybe(hash(18)));
    }

    #[test]
    fn the_filter_still_tells_most_absent_ones_apart_at_its_limit() {
        let mut set = BlockedSet::new(10_000);
        (0..10_001).for_each(|n| set.insert(hash(n)));
        let wrong = (100_000..110_000).filter(|n| set.maybe(hash(*n))).count();
        assert!(wrong < 1_000, "{wrong} of 10,000 absent sequences were taken for open");
    }

    #[test]
    fn a_hash_that_looks_like_a_free_slot_is_kept_all_the_same() {
        let zero = SequenceHash { high: 0, low: 0 };
        let mut set = BlockedSet::new(10);
        set.insert(zero);
        assert!(set.maybe(zero));
    }

    proptest! {
        #[test]
        fn it_agrees_with_a_plain_set(steps in prop::collection::vec((any::<bool>(), 0_u64..200), 0..2_000)) {
            let (mut set, mut model) = (BlockedSet::new(10_000), HashSet::new());
            // Few distinct low bits make long runs of neighbours, where deletion can go wrong.
            let crowded = |n: u64| SequenceHash { high: n, low: n % 7 };
            for (insert, n) in steps {
                if insert { set.insert(crowded(n)); model.insert(n); } else { set.remove(crowded(n)); model.remove(&n); }
            }
            for n in 0..200 {
                prop_assert_eq!(set.maybe(crowded(n)), model.contains(&n));
            }
            prop_assert_eq!(set.len(), Some(model.len()));
        }
    }
}
