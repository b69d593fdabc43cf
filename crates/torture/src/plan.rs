//! The messages and the behaviour of their handler: a function of the seed, the same in every process.

use std::time::Duration;

use lazaret_core::{Message, MessageId, Position, QueueName, SequenceId};

/// The consumer, its only component and its stream.
pub const CONSUMER: &str = "torture";
/// The number of partitions of the stream.
pub const PARTITIONS: u32 = 8;
/// The most automatic attempts of a message.
pub const MAX_ATTEMPTS: u32 = 4;
/// One of this many keys keeps its dead letters; an operator closes those of the others.
const LEFT_ALONE: u32 = 20;

/// What the text of a key begins with.
const KEY: &str = "key-";
/// What the id of a message begins with.
const MESSAGE: &str = "m-";

/// The behaviour of the handler for a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Script {
    /// Succeeds.
    Fine,
    /// Fails this many times, then succeeds.
    FailsFirst(u32),
    /// Never succeeds.
    FailsAlways,
}

/// All messages of a run.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// The seed of all draws.
    pub seed: u64,
    /// The number of messages.
    pub messages: u64,
    /// The number of keys.
    pub keys: u32,
}

impl Plan {
    /// The key of a message.
    pub fn key(&self, number: u64) -> u32 {
        (mix(self.seed, number) % u64::from(self.keys)) as u32
    }

    /// The partition of a message: that of its key.
    pub fn partition(&self, number: u64) -> u32 {
        self.key(number) % PARTITIONS
    }

    /// The behaviour of the handler: one message in five fails, one in a hundred always.
    pub fn script(&self, number: u64) -> Script {
        let draw = mix(self.seed ^ 0x5c21, number);
        match draw % 100 {
            0 => Script::FailsAlways,
            1..20 => Script::FailsFirst(1 + (draw >> 32) as u32 % (MAX_ATTEMPTS - 1)),
            _ => Script::Fine,
        }
    }

    /// How long the handler waits, mostly not at all.
    pub fn pause(&self, number: u64, attempt: u32) -> Duration {
        let draw = mix(self.seed ^ 0x9a05e, number << 8 | u64::from(attempt));
        if draw.is_multiple_of(8) { Duration::from_micros((draw >> 32) % 3000) } else { Duration::ZERO }
    }

    /// Returns `true` when the dead letters of this key are kept.
    pub fn keeps_dead_letters(&self, key: u32) -> bool {
        key.is_multiple_of(LEFT_ALONE)
    }

    /// The message with this number, which is its offset too.
    pub fn message(&self, number: u64) -> Message {
        Message::new(message_id(number), CONSUMER, Position::new(self.partition(number), number))
            .with_key(format!("{KEY}{}", self.key(number)))
            .with_payload(format!("payload of {number}"))
    }
}

/// The queue of the consumer.
pub fn queue() -> QueueName {
    QueueName::of(CONSUMER, CONSUMER)
}

/// The key of a sequence.
pub fn key_of(sequence: &SequenceId) -> Option<u32> {
    sequence.as_str().strip_prefix(KEY)?.parse().ok()
}

/// The id of a message.
pub fn message_id(number: u64) -> MessageId {
    MessageId::from(format!("{MESSAGE}{number}").as_str())
}

/// The number of a message, by its id.
pub fn number_of(id: &MessageId) -> Option<u64> {
    id.as_str().strip_prefix(MESSAGE)?.parse().ok()
}

/// A pseudorandom number of the arguments: one round of SplitMix64.
pub fn mix(seed: u64, number: u64) -> u64 {
    let mut z = seed ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(0x1a2a_7e70);
    for multiplier in [0xbf58_476d_1ce4_e5b9, 0x94d0_49bb_1331_11eb] {
        z = (z ^ (z >> 30)).wrapping_mul(multiplier);
    }
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_message_in_five_fails_and_one_in_a_hundred_for_ever() {
        let plan = Plan { seed: 7, messages: 100_000, keys: 1000 };
        let scripts: Vec<Script> = (0..plan.messages).map(|number| plan.script(number)).collect();
        let failing = scripts.iter().filter(|script| **script != Script::Fine).count();
        let dead = scripts.iter().filter(|script| **script == Script::FailsAlways).count();
        assert!((19_500..20_500).contains(&failing), "{failing}");
        assert!((850..1150).contains(&dead), "{dead}");
        assert!(scripts.iter().all(|s| !matches!(s, Script::FailsFirst(n) if *n == 0 || *n >= MAX_ATTEMPTS)));
    }

    #[test]
    fn all_keys_are_used_and_each_has_one_partition() {
        let plan = Plan { seed: 1, messages: 20_000, keys: 1000 };
        let keys: std::collections::HashSet<u32> = (0..plan.messages).map(|n| plan.key(n)).collect();
        assert_eq!(keys.len(), 1000);
        assert!((0..100).all(|n| plan.message(n).position.partition == plan.key(n) % PARTITIONS));
        assert!((0..100).all(|n| key_of(&SequenceId::by_key(&plan.message(n))) == Some(plan.key(n))));
        assert!((0..100).all(|n| number_of(&plan.message(n).id) == Some(n)));
    }
}
