//! The 128-bit hash that identifies a sequence in memory.
//!
//! The hash is keyed with a secret per engine, so that nobody can craft keys that collide. At 10 million
//! open sequences, the chance that any two share a hash is about 10^-25. Lanes only need the hash to
//! spread. The blocked set only answers "is it surely absent?", for which two sequences with the same
//! hash would cost one store call.

use std::hash::Hasher;

use siphasher::sip128::{Hasher128, SipHasher13};

/// The hash of a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SequenceHash {
    pub(crate) high: u64,
    pub(crate) low: u64,
}

/// Hashes sequence ids with one engine's secret.
#[derive(Clone, Copy, Debug)]
pub struct SequenceHasher {
    keyed: SipHasher13,
}

impl SequenceHasher {
    /// Creates a hasher with this secret.
    pub fn new(secret: u64) -> Self {
        Self { keyed: SipHasher13::new_with_keys(secret, !secret.rotate_left(29)) }
    }

    /// Returns the hash of a sequence id.
    pub fn hash(&self, sequence: &str) -> SequenceHash {
        let mut hasher = self.keyed;
        hasher.write(sequence.as_bytes());
        let hash = hasher.finish128();
        SequenceHash { high: hash.h1, low: hash.h2 }
    }
}

impl SequenceHash {
    /// Returns the index of the shard, out of `count`, that owns the sequence.
    pub(crate) fn shard(self, count: usize) -> usize {
        // The high half selects the shard, the low half the slot in its tables: the two must not be
        // correlated.
        ((u128::from(self.high) * count as u128) >> 64) as usize
    }
}
