//! Publishes the messages of a plan during the phase with faults, some in bursts.

use std::sync::Arc;

use lazaret_core::{Message, MessageId, SequenceId};

use crate::history::Original;
use crate::plan::Script;
use crate::random::Random;
use crate::world::World;

/// Publishes every message of the plan, and closes the log.
pub(crate) async fn run(world: Arc<World>) {
    let mut random = Random::new(world.plan.seed).fork(2);
    let pace = world.plan.chaos.as_millis() as u64 / world.plan.messages.max(1);
    for number in 0..world.plan.messages {
        world.recreate_before(number).await;
        let key = random.below(world.plan.keys);
        let partition = (key % u64::from(world.plan.partitions)) as u32;
        let gap = if random.chance(100) { random.between(1, 5) } else { 0 };
        world.publish(number, &format!("key-{key}"), partition, gap);
        if world.plan.copies > 0 {
            let mut copies = Random::new(world.plan.seed).fork(5_000_000 + number);
            if copies.chance(world.plan.copies) {
                let (of, key) = (copies.below(number + 1), copies.below(world.plan.keys));
                let partition = (key % u64::from(world.plan.partitions)) as u32;
                world.publish_copy(of, &format!("key-{key}"), partition);
            }
        }
        if random.chance(300) {
            tokio::time::sleep(random.millis(0, pace * 5)).await;
        }
    }
    world.log.close();
}

impl World {
    /// Puts a message into the log.
    fn publish(&self, number: u64, key: &str, partition: u32, gap: u64) {
        if gap > 0 {
            self.log.skip(partition, gap);
        }
        let mut made = None;
        self.log.push_with(partition, |message| {
            let id = self.plan.recreations.id_of(&message);
            let message = Message { id, ..message }
                .with_key(key.to_owned())
                .with_header("n", number.to_string())
                .with_payload(key.to_owned());
            made = Some(message.clone());
            message
        });
        let Some(message) = made else { return };
        let sequence = SequenceId::by_key(&message);
        let mut history = self.history();
        let name = history.new_name(number, &message.id);
        let names = history.sequences.entry(sequence.clone()).or_default();
        names.push(name.clone());
        let place = names.len() - 1;
        let original = Original {
            number,
            incarnation: history.incarnation,
            sequence,
            place,
            delivered_at: None,
            first_delivered_at: None,
            message,
        };
        history.messages.insert(name, original);
    }

    /// Puts a copy of an earlier message into the log, under another key, if its handler always succeeds: otherwise the
    /// sequence of the copy could fail without a message of its own that does.
    fn publish_copy(&self, number: u64, key: &str, partition: u32) {
        let fine =
            (0..self.queues.len()).all(|component| Script::draw(&self.plan, number, component).is_healthy());
        let original = {
            let history = self.history();
            let found = history.messages.iter().find(|(_, original)| original.number == number);
            // A copy of a message of an earlier incarnation is no duplicate of it: the marks of handled messages belong to one.
            let found = found.filter(|(_, original)| fine && original.incarnation == history.incarnation);
            found.map(|(name, original)| (name.clone(), original.message.clone()))
        };
        let Some((name, original)) = original else { return };
        let mut made = None;
        self.log.push_with(partition, |message| {
            let copy = Message { position: message.position, ..original.clone() }.with_key(key.to_owned());
            made = Some(copy.clone());
            copy
        });
        let Some(copy) = made else { return };
        self.trace(|| format!("published a copy of {name} at {:?}", copy.position));
        self.history().copies.entry(name).or_default().push(copy);
    }

    /// Returns `true` when copies of the message with this name were published.
    pub(crate) fn has_copies(&self, name: &MessageId) -> bool {
        self.history().copies.contains_key(name)
    }
}
