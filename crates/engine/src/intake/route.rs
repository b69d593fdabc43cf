//! Routes messages from the source to the shards of their sequences.

use std::ops::Range;

use lazaret_core::{Message, Sequencing};
use tokio::time::Instant;

use super::state::Stage;
use super::task::Intake;
use crate::flow::{Arrival, Ticket, ToShard};
use crate::panics::guarded;
use crate::telemetry::Counters;

impl Intake {
    pub(super) fn accept(&mut self, messages: Vec<Message>) {
        self.ended = false;
        Counters::add(&self.telemetry.counters.read, messages.len() as u64);
        let mut last = usize::MAX;
        for message in messages {
            let Some(slot) = self.slot_of(&message, last) else {
                let (stream, position) = message.place();
                tracing::warn!(%stream, %position, "message of an unassigned partition ignored");
                continue;
            };
            last = slot;
            match &mut self.slots[slot].stage {
                Stage::Preparing { waiting, .. } => waiting.push(message),
                Stage::Live(_) => self.route(slot, message),
                // The message will be delivered again to the next owner.
                Stage::Free | Stage::Revoking { .. } => {}
            }
        }
        self.hand_over();
        if self.delayed.deliveries() > 0 {
            self.update_holds();
        }
    }

    fn slot_of(&self, message: &Message, last: usize) -> Option<usize> {
        let (stream, position) = message.place();
        let fits = |slot: usize| {
            let partition = &self.slots[slot].partition;
            partition.number() == position.partition_number() && partition.stream == *stream
        };
        if last < self.slots.len() && fits(last) {
            return Some(last);
        }
        self.by_number.get(position.partition as usize)?.iter().copied().find(|slot| fits(*slot))
    }

    /// Tracks a message. Sends it, once per component, to the shard of its sequence, or to the delay
    /// queue if it was relayed.
    #[inline]
    pub(super) fn route(&mut self, slot: usize, message: Message) {
        let count = self.targets(&message).len();
        let entry = &mut self.slots[slot];
        let (_, position) = message.place();
        let offset = position.offset;
        // The ranges are sorted and do not overlap.
        let range = entry.settled.partition_point(|range| *range.end() < offset);
        if entry.settled.get(range).is_some_and(|range| range.contains(&offset)) {
            entry.tracker.push(position, 0);
            self.next_commit.get_or_insert_with(|| Instant::now() + self.options.commit_interval);
            return;
        }
        let number = entry.tracker.push(position, count as u32);
        let ticket = Ticket { slot: slot as u32, generation: entry.generation, number };
        self.in_flight += count;
        match message.hop {
            Some(_) => self.delay(ticket, message),
            None => self.send(ticket, message),
        }
    }

    /// Returns the components that receive a message. A relayed message returns to the component that
    /// failed, or to all components if that one no longer exists.
    pub(super) fn targets(&self, message: &Message) -> Range<usize> {
        let all = 0..self.components.len();
        let Some(hop) = &message.hop else { return all };
        let found = self.components.iter().position(|component| component.queue == hop.queue);
        found.map_or(all, |index| index..index + 1)
    }

    /// Sends a tracked message to the shard of its sequence.
    #[inline]
    pub(super) fn send(&mut self, ticket: Ticket, message: Message) {
        let targets = self.targets(&message);
        let sequencing = &self.options.sequencing;
        let hasher = &self.identity.hasher;
        let placed = match sequencing {
            Sequencing::Custom(_) => guarded(|| hasher.hash(&sequencing.text(&message))),
            _ => Ok(hasher.hash(&sequencing.text(&message))),
        };
        let unsequenced = placed.is_err();
        // I10: a policy that panics costs this message its place in its sequence and nothing else.
        let hash = placed.unwrap_or_else(|_| hasher.hash(&Sequencing::Key.text(&message)));
        let routed = &mut self.routed[hash.shard(self.shards.len())];
        let first = targets.start as u32;
        for component in first + 1..targets.end as u32 {
            let message = message.clone();
            routed.push(ToShard::Message(Arrival { message, ticket, hash, component, unsequenced }));
        }
        routed.push(ToShard::Message(Arrival { message, ticket, hash, component: first, unsequenced }));
    }

    pub(super) fn hand_over(&mut self) {
        for (shard, routed) in self.shards.iter().zip(&mut self.routed) {
            shard.append(routed);
        }
        self.update_window();
    }
}
