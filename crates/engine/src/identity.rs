//! The names of a consumer and of this instance, and the seed from which hashes and jitter are derived.

use lazaret_core::policy::seed_of;
use lazaret_core::{Clock, ConsumerName, Message};

use crate::hash::SequenceHasher;
use crate::options::Options;

/// The identity of one running instance of a consumer.
#[derive(Debug)]
pub(crate) struct Identity {
    pub(crate) consumer: ConsumerName,
    /// The name under which this instance owns leases.
    pub(crate) instance: String,
    pub(crate) hasher: SequenceHasher,
    seed: u64,
    /// A random number that does not depend on the seed.
    nonce: u64,
}

impl Identity {
    /// Takes the instance name and the seed from the options, or generates them.
    pub(crate) fn new(consumer: ConsumerName, options: &Options, clock: &dyn Clock) -> Self {
        let seed = match options.seed {
            0 => fresh_seed(clock),
            given => given,
        };
        let instance = match options.instance.as_str() {
            "" => format!("{consumer}-{}-{:08x}", std::process::id(), seed as u32),
            given => given.to_owned(),
        };
        Self { consumer, instance, hasher: SequenceHasher::new(seed), seed, nonce: fresh_seed(clock) }
    }

    /// Returns a name of this process that no other process has, not even the next one with the same
    /// instance name.
    pub(crate) fn process(&self) -> String {
        format!("{}/{:016x}", self.instance, self.nonce)
    }

    /// Returns the seed for the jitter of one message.
    pub(crate) fn jitter_seed(&self, message: &Message) -> u64 {
        seed_of(message.id.as_str(), self.seed)
    }
}

fn fresh_seed(clock: &dyn Clock) -> u64 {
    use std::hash::{BuildHasher, Hasher};
    // The hash keys of the standard library are the only source of randomness that needs no dependency.
    let mut hasher = std::collections::hash_map::RandomState::new().build_hasher();
    hasher.write_i128(clock.now().as_nanosecond());
    hasher.write_u32(std::process::id());
    hasher.finish() | 1
}
