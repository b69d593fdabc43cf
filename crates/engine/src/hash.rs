//! The 128-bit hash that identifies a sequence in memory.
//!
//! Keyed with a secret per engine, so that keys cannot be crafted to collide. At 10 million open sequences
//! the chance that any two share a hash is about 10^-25; lanes only need the hash to spread, and the blocked set is
//! asked "is it surely absent?", for which two sequences under one hash would cost one store call.

use std::hash::Hasher;

use siphasher::sip128::{Hasher128, SipHasher13};

/// A sequence, hashed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SequenceHash {
    pub(crate) high: u64,
    pub(crate) low: u64,
}

/// Hashes sequence ids under one engine's secret.
#[derive(Clone, Copy, Debug)]
pub struct SequenceHasher {
    keyed: SipHasher13,
}

impl SequenceHasher {
    /// A hasher under this secret.
    pub fn new(secret: u64) -> Self {
        Self { keyed: SipHasher13::new_with_keys(secret, !secret.rotate_left(29)) }
    }

    /// The hash of a sequence id.
    pub fn hash(&self, sequence: &str) -> SequenceHash {
        let mut hasher = self.keyed;
        hasher.write(sequence.as_bytes());
        let hash = hasher.finish128();
        SequenceHash { high: hash.h1, low: hash.h2 }
    }
}

impl SequenceHash {
    /// Which of `count` shards owns the sequence.
    pub(crate) fn shard(self, count: usize) -> usize {
        // The high half picks the shard, the low half the slot in its tables: they must not be correlated.
        ((u128::from(self.high) * count as u128) >> 64) as usize
    }
}
