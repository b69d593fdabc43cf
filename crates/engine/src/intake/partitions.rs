//! Assignment, revocation and loss of partitions, and the grants of the store.

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use lazaret_core::Partition;
use lazaret_core::source::Assignment;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::delay_queue::Usage;
use super::state::{Background, Known, Slot, Stage};
use super::task::Intake;
use crate::component::Component;
use crate::events::Event;
use crate::flow::{Shards, ToShard};
use crate::mutation::mutated;
use crate::ownership::PartitionOwnership;
use crate::sequence_sync;
use crate::store_refresh;
use crate::store_retry::{Abandoned, retry_until_ok};
use crate::tracker::Tracker;

/// The time that cancelled work has to end after the deadline of a drain.
pub(crate) const GRACE: Duration = Duration::from_secs(1);
/// The delay before a fenced partition is read again.
const REWIND_DELAY: Duration = Duration::from_secs(1);

impl Intake {
    pub(super) fn assigned(&mut self, assignments: Vec<Assignment>) {
        for Assignment { partition, settled, ownership } in assignments {
            let index = self.free_slot(&partition);
            let unwanted = CancellationToken::new();
            let slot = &mut self.slots[index];
            slot.generation += 1;
            let guard = unwanted.clone().drop_guard();
            slot.stage = Stage::Preparing { waiting: Vec::new(), ownership, _unwanted: guard };
            slot.tracker = Tracker::new(partition.number());
            slot.settled = in_order(settled);
            slot.held = false;
            self.telemetry.emit(&Event::Assigned { partition: &partition });
            let (components, shards, generation) =
                (self.components.clone(), self.shards.clone(), slot.generation);
            self.background.push(Box::pin(async move {
                // If a partition is revoked before the store has answered, it must no longer be granted
                // to us.
                tokio::select! {
                    biased;
                    () = unwanted.cancelled() => Background::Done,
                    known = prepare(&components, &shards, &partition) => match known {
                        Ok(known) => Background::Prepared(index, generation, known),
                        Err(Abandoned::Revoked | Abandoned::Fenced) => Background::Done,
                    },
                }
            }));
        }
        self.update_holds();
    }

    /// Returns the slot of this partition, or a new one.
    fn free_slot(&mut self, partition: &Partition) -> usize {
        let number = partition.index as usize;
        if self.by_number.len() <= number {
            self.by_number.resize_with(number + 1, Vec::new);
        }
        let known =
            self.by_number[number].iter().copied().find(|slot| self.slots[*slot].partition == *partition);
        if let Some(known) = known {
            self.release_slot(known);
            return known;
        }
        self.slots.push(Slot {
            partition: partition.clone(),
            generation: 0,
            stage: Stage::Free,
            tracker: Tracker::new(partition.number()),
            settled: Vec::new(),
            held: false,
            delayed: Usage::default(),
        });
        self.by_number[number].push(self.slots.len() - 1);
        self.slots.len() - 1
    }

    pub(super) fn finished(&mut self, done: Background) {
        match done {
            Background::Prepared(slot, generation, known) => self.prepared(slot, generation, known),
            Background::Rewind { slot, generation } => self.rewind(slot, generation),
            Background::Done => {}
        }
    }

    fn prepared(&mut self, index: usize, generation: u32, known: Known) {
        let slot = &mut self.slots[index];
        if slot.generation != generation {
            return;
        }
        let Stage::Preparing { waiting, ownership, .. } = &mut slot.stage else { return };
        let (waiting, source) = (std::mem::take(waiting), ownership.clone());
        let partition = slot.partition.clone();
        let ownership = Arc::new(PartitionOwnership::new(index as u32, generation, partition, source, known));
        for shard in self.shards.iter() {
            shard.push(ToShard::Assigned(ownership.clone()));
        }
        slot.stage = Stage::Live(ownership);
        for message in waiting {
            self.route(index, message);
        }
        self.hand_over();
        self.update_holds();
    }

    pub(super) fn revoking(&mut self, partitions: &[Partition]) {
        for index in self.slots_of(partitions) {
            self.begin_revoke(index, true);
        }
        self.update_holds();
    }

    fn slots_of(&self, partitions: &[Partition]) -> Vec<usize> {
        (0..self.slots.len()).filter(|slot| partitions.contains(&self.slots[*slot].partition)).collect()
    }

    /// Begins the revocation: nothing new of this partition starts, and running work may end.
    pub(super) fn begin_revoke(&mut self, index: usize, revoked: bool) {
        self.drop_delayed(index);
        let deadline = Instant::now() + self.options.drain_deadline;
        let slot = &mut self.slots[index];
        let ownership = match std::mem::replace(&mut slot.stage, Stage::Free) {
            // Another instance owns the partition, but the source still waits for our confirmation.
            Stage::Free if revoked => None,
            Stage::Free => return,
            Stage::Preparing { .. } => None,
            Stage::Live(ownership) => Some(ownership),
            Stage::Revoking { ownership, deadline, revoked: before } => {
                slot.stage = Stage::Revoking { ownership, deadline, revoked: revoked || before };
                return;
            }
        };
        if let Some(ownership) = &ownership {
            ownership.close();
            let (slot, generation) = (ownership.slot, ownership.generation);
            for shard in self.shards.iter() {
                shard.push(ToShard::Revoking { slot, generation });
            }
        }
        slot.stage = Stage::Revoking { ownership, deadline, revoked };
    }

    /// Releases the partitions that have no outstanding messages, or whose deadline has passed.
    pub(super) async fn finish_revocations(&mut self) {
        for index in 0..self.slots.len() {
            let slot = &self.slots[index];
            if let Stage::Revoking { deadline, revoked, .. } = slot.stage
                && (slot.tracker.outstanding() == 0 || Instant::now() >= deadline + GRACE)
            {
                if !mutated!(self.options, LeaveWithoutCommit) {
                    self.commit_slots(&[index]).await;
                }
                let partition = self.slots[index].partition.clone();
                self.release_slot(index);
                self.telemetry.emit(&Event::Revoked { partition: &partition, lost: false });
                if revoked && let Err(error) = self.source.revoked(&[partition]).await {
                    tracing::warn!(%error, "revocation not confirmed by the source");
                }
            }
        }
    }

    /// Returns the next deadline of a revocation, or of stored runs in a drain.
    pub(super) fn deadline(&self) -> Option<Instant> {
        let runs = self.drain_until.filter(|_| self.lifecycle.has_runs());
        let runs = runs.map(|until| if self.lifecycle.abort.is_cancelled() { until + GRACE } else { until });
        let slots = self.slots.iter().filter_map(|slot| match &slot.stage {
            Stage::Revoking { ownership: Some(ownership), deadline, .. } if ownership.is_revoked() => {
                Some(*deadline + GRACE)
            }
            Stage::Revoking { deadline, .. } => Some(*deadline),
            _ => None,
        });
        slots.chain(runs).min()
    }

    pub(super) fn deadline_passed(&mut self) {
        if self.drain_until.is_some_and(|until| Instant::now() >= until) {
            self.lifecycle.abort.cancel();
        }
        for slot in &mut self.slots {
            if let Stage::Revoking { ownership, deadline, .. } = &slot.stage
                && Instant::now() >= *deadline
            {
                match ownership {
                    Some(ownership) => revoke(&self.shards, ownership),
                    None => slot.tracker = Tracker::new(slot.partition.number()),
                }
            }
        }
    }

    /// Drops partitions that another instance already owns. Nothing of them is committed.
    pub(super) fn lost(&mut self, partitions: &[Partition]) {
        for index in self.slots_of(partitions) {
            self.begin_revoke(index, false);
            self.release_slot(index);
            let partition = &self.slots[index].partition;
            self.telemetry.emit(&Event::Revoked { partition, lost: true });
        }
    }

    /// Drops a partition that the store granted to another instance while the source still assigns it to
    /// us. Either the source will revoke it too, or the other instance was late. In the latter case the
    /// partition is read again under a new grant.
    pub(super) fn fenced(&mut self, index: usize) {
        if !matches!(self.slots[index].stage, Stage::Live(_)) {
            return;
        }
        self.release_slot(index);
        let (slot, generation) = (index, self.slots[index].generation);
        self.background.push(Box::pin(async move {
            tokio::time::sleep(REWIND_DELAY).await;
            Background::Rewind { slot, generation }
        }));
    }

    fn rewind(&mut self, index: usize, generation: u32) {
        let slot = &self.slots[index];
        if slot.generation == generation && matches!(slot.stage, Stage::Free) && !self.draining {
            self.source.rewind(std::slice::from_ref(&slot.partition));
        }
    }

    /// Drops the remains of an assignment. Notices that still arrive are stale.
    fn release_slot(&mut self, index: usize) {
        self.drop_delayed(index);
        let slot = &mut self.slots[index];
        match std::mem::replace(&mut slot.stage, Stage::Free) {
            Stage::Live(ownership) | Stage::Revoking { ownership: Some(ownership), .. } => {
                revoke(&self.shards, &ownership);
            }
            Stage::Free | Stage::Preparing { .. } | Stage::Revoking { ownership: None, .. } => {}
        }
        self.in_flight -= slot.tracker.outstanding();
        slot.generation += 1;
        slot.tracker = Tracker::new(slot.partition.number());
        slot.held = false;
        self.update_window();
    }
}

/// Sorts ranges and merges overlapping ones, because sources may deliver them in any form.
fn in_order(mut ranges: Vec<RangeInclusive<u64>>) -> Vec<RangeInclusive<u64>> {
    ranges.retain(|range| !range.is_empty());
    ranges.sort_unstable_by_key(|range| *range.start());
    ranges.dedup_by(|next, before| {
        let joins = next.start() <= before.end();
        if joins {
            *before = *before.start()..=(*before.end()).max(*next.end());
        }
        joins
    });
    ranges
}

/// Drops the waiting and running messages of a revoked partition.
fn revoke(shards: &Shards, ownership: &PartitionOwnership) {
    ownership.revoke();
    let (slot, generation) = (ownership.slot, ownership.generation);
    for shard in shards.iter() {
        shard.push(ToShard::Revoking { slot, generation });
        shard.push(ToShard::Revoked);
    }
}

/// Queries the store for an assigned partition and updates the shards. This happens before the
/// partition's first message is dispatched. The grant comes first: from then on no earlier owner can
/// open a sequence unnoticed.
async fn prepare(
    components: &[Arc<Component>],
    shards: &Shards,
    partition: &Partition,
) -> Result<Known, Abandoned> {
    let partitions = std::slice::from_ref(partition);
    let mut known = Vec::with_capacity(components.len());
    for component in components {
        let store = &component.store;
        let queue = &component.queue;
        retry_until_ok(component, || store_refresh::catch_up(component)).await?;
        let lists_first = mutated!(component.options, ListBeforeGrant);
        if lists_first {
            retry_until_ok(component, || sequence_sync::sync(component, shards)).await?;
        }
        let grants = retry_until_ok(component, || store.assign(queue, partitions)).await?;
        let notes = retry_until_ok(component, || store.attempt_notes(queue, partitions)).await?;
        if !lists_first {
            retry_until_ok(component, || sequence_sync::sync(component, shards)).await?;
        }
        known.extend(grants.into_iter().next().map(|grant| (grant, notes)));
    }
    Ok(known)
}

#[cfg(test)]
mod tests {
    use super::in_order;

    #[test]
    fn ranges_come_in_order_and_apart() {
        let empty = std::ops::RangeInclusive::new(9, 8);
        assert_eq!(in_order(vec![7..=7, 1..=3, empty, 2..=5, 4..=4]), [1..=5, 7..=7]);
        assert_eq!(in_order(Vec::new()), []);
    }
}
