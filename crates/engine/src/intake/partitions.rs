//! Partitions that come and go: assignment, revocation, loss, and the grants in between.

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use lazaret_core::Partition;
use lazaret_core::source::Assignment;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::room::Share;
use super::{Chore, GRACE, Intake, Known, REWIND_PAUSE, Slot, Stage};
use crate::events::Event;
use crate::feed::{self, Shards};
use crate::lookout;
use crate::patience::{Left, patiently};
use crate::shard::ToShard;
use crate::shared::Component;
use crate::tenure::Tenure;
use crate::tracker::Tracker;

impl Intake {
    pub(super) fn assigned(&mut self, assignments: Vec<Assignment>) {
        for Assignment { partition, settled } in assignments {
            let index = self.free_slot(&partition);
            let unwanted = CancellationToken::new();
            let slot = &mut self.slots[index];
            slot.generation += 1;
            slot.stage = Stage::Preparing { waiting: Vec::new(), _unwanted: unwanted.clone().drop_guard() };
            slot.tracker = Tracker::new(partition.index);
            slot.settled = in_order(settled);
            slot.held = false;
            self.shared.tell(&Event::Assigned { partition: &partition });
            let (components, shards, generation) =
                (self.components.clone(), self.shards.clone(), slot.generation);
            self.chores.push(Box::pin(async move {
                // One that goes again before the store has answered must not be granted to us any more.
                tokio::select! {
                    biased;
                    () = unwanted.cancelled() => Chore::Done,
                    known = prepare(&components, &shards, &partition) => match known {
                        Ok(known) => Chore::Prepared(index, generation, known),
                        Err(Left::Gone | Left::Fenced) => Chore::Done,
                    },
                }
            }));
        }
        self.update_holds();
    }

    /// The slot of this partition, a new one if it has none.
    fn free_slot(&mut self, partition: &Partition) -> usize {
        let number = partition.index as usize;
        if self.by_number.len() <= number {
            self.by_number.resize_with(number + 1, Vec::new);
        }
        let known =
            self.by_number[number].iter().copied().find(|slot| self.slots[*slot].partition == *partition);
        if let Some(known) = known {
            self.free(known);
            return known;
        }
        self.slots.push(Slot {
            partition: partition.clone(),
            generation: 0,
            stage: Stage::Free,
            tracker: Tracker::new(partition.index),
            settled: Vec::new(),
            held: false,
            room: Share::default(),
        });
        self.by_number[number].push(self.slots.len() - 1);
        self.slots.len() - 1
    }

    pub(super) fn finished(&mut self, chore: Chore) {
        match chore {
            Chore::Prepared(slot, generation, known) => self.prepared(slot, generation, known),
            Chore::Rewind { slot, generation } => self.rewind(slot, generation),
            Chore::Done => {}
        }
    }

    fn prepared(&mut self, index: usize, generation: u32, known: Known) {
        let slot = &mut self.slots[index];
        if slot.generation != generation {
            return;
        }
        let Stage::Preparing { waiting, .. } = &mut slot.stage else { return };
        let waiting = std::mem::take(waiting);
        let tenure = Arc::new(Tenure::new(index as u32, generation, slot.partition.clone(), known));
        for shard in self.shards.iter() {
            shard.push(ToShard::Tenure(tenure.clone()));
        }
        slot.stage = Stage::Live(tenure);
        for message in waiting {
            self.route(index, message);
        }
        self.hand_over();
        self.update_holds();
    }

    pub(super) fn revoking(&mut self, partitions: &[Partition]) {
        for index in self.slots_of(partitions) {
            self.leave(index, true);
        }
        self.update_holds();
    }

    fn slots_of(&self, partitions: &[Partition]) -> Vec<usize> {
        (0..self.slots.len()).filter(|slot| partitions.contains(&self.slots[*slot].partition)).collect()
    }

    /// Starts nothing new of this partition and lets what runs come to its end.
    pub(super) fn leave(&mut self, index: usize, revoked: bool) {
        self.send_away(index);
        let deadline = Instant::now() + self.shared.options.drain_deadline;
        let slot = &mut self.slots[index];
        let tenure = match std::mem::replace(&mut slot.stage, Stage::Free) {
            // Somebody else took it over, and the source waits for us all the same.
            Stage::Free if revoked => None,
            Stage::Free => return,
            Stage::Preparing { .. } => None,
            Stage::Live(tenure) => Some(tenure),
            Stage::Leaving { tenure, deadline, revoked: before } => {
                slot.stage = Stage::Leaving { tenure, deadline, revoked: revoked || before };
                return;
            }
        };
        if let Some(tenure) = &tenure {
            tenure.close();
            let (slot, generation) = (tenure.slot, tenure.generation);
            for shard in self.shards.iter() {
                shard.push(ToShard::Leave { slot, generation });
            }
        }
        slot.stage = Stage::Leaving { tenure, deadline, revoked };
    }

    /// Lets go of the partitions whose last message has come to its end.
    pub(super) async fn leave_empty_slots(&mut self) {
        for index in 0..self.slots.len() {
            let slot = &self.slots[index];
            if let Stage::Leaving { deadline, revoked, .. } = slot.stage
                && (slot.tracker.outstanding() == 0 || Instant::now() >= deadline + GRACE)
            {
                self.commit_slots(&[index]).await;
                let partition = self.slots[index].partition.clone();
                self.free(index);
                self.shared.tell(&Event::Revoked { partition: &partition, lost: false });
                if revoked && let Err(error) = self.source.revoked(&[partition]).await {
                    tracing::warn!(%error, "the source did not take back a partition");
                }
            }
        }
    }

    /// The earliest time at which what goes must be looked at again: partitions, and stored sequences at the end.
    pub(super) fn deadline(&self) -> Option<Instant> {
        let runs = self.drain_until.filter(|_| self.shared.runs.load(Ordering::Acquire) > 0);
        let runs = runs.map(|until| if self.shared.cut.is_cancelled() { until + GRACE } else { until });
        let slots = self.slots.iter().filter_map(|slot| match &slot.stage {
            Stage::Leaving { tenure: Some(tenure), deadline, .. } if tenure.is_gone() => {
                Some(*deadline + GRACE)
            }
            Stage::Leaving { deadline, .. } => Some(*deadline),
            _ => None,
        });
        slots.chain(runs).min()
    }

    pub(super) fn deadline_passed(&mut self) {
        if self.drain_until.is_some_and(|until| Instant::now() >= until) {
            self.shared.cut.cancel();
        }
        for slot in &mut self.slots {
            if let Stage::Leaving { tenure, deadline, .. } = &slot.stage
                && Instant::now() >= *deadline
            {
                match tenure {
                    Some(tenure) => end(&self.shards, tenure),
                    None => slot.tracker = Tracker::new(slot.partition.index),
                }
            }
        }
    }

    /// Forgets partitions that somebody else owns already. Nothing of them is committed.
    pub(super) fn lost(&mut self, partitions: &[Partition]) {
        for index in self.slots_of(partitions) {
            self.leave(index, false);
            self.free(index);
            let partition = &self.slots[index].partition;
            self.shared.tell(&Event::Revoked { partition, lost: true });
        }
    }

    /// The store says that somebody else took over a partition that the source still calls ours. Either the source will
    /// say so too, or the other one was late: then the partition is read again under a new grant.
    pub(super) fn fenced(&mut self, index: usize) {
        if !matches!(self.slots[index].stage, Stage::Live(_)) {
            return;
        }
        self.free(index);
        let (slot, generation) = (index, self.slots[index].generation);
        self.chores.push(Box::pin(async move {
            tokio::time::sleep(REWIND_PAUSE).await;
            Chore::Rewind { slot, generation }
        }));
    }

    fn rewind(&mut self, index: usize, generation: u32) {
        let slot = &self.slots[index];
        if slot.generation == generation && matches!(slot.stage, Stage::Free) && !self.draining {
            self.source.rewind(std::slice::from_ref(&slot.partition));
        }
    }

    /// Drops what is left of a partition's time here. Notices that still come speak of the past.
    fn free(&mut self, index: usize) {
        self.send_away(index);
        let slot = &mut self.slots[index];
        match std::mem::replace(&mut slot.stage, Stage::Free) {
            Stage::Live(tenure) | Stage::Leaving { tenure: Some(tenure), .. } => {
                end(&self.shards, &tenure);
            }
            Stage::Free | Stage::Preparing { .. } | Stage::Leaving { tenure: None, .. } => {}
        }
        self.in_flight -= slot.tracker.outstanding();
        slot.generation += 1;
        slot.tracker = Tracker::new(slot.partition.index);
        slot.held = false;
        self.update_window();
    }
}

/// Whatever a source brings: ranges in order that do not overlap.
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

/// Drops what still waits or runs of a partition that is gone.
fn end(shards: &Shards, tenure: &Tenure) {
    tenure.end();
    let (slot, generation) = (tenure.slot, tenure.generation);
    for shard in shards.iter() {
        shard.push(ToShard::Leave { slot, generation });
        shard.push(ToShard::Gone);
    }
}

/// Asks the store what it knows of a partition that came, and brings the shards up to date, before the first message of
/// it is dispatched. The grant comes first: from then on no earlier owner can open a sequence behind our back.
async fn prepare(
    components: &[Arc<Component>],
    shards: &Shards,
    partition: &Partition,
) -> Result<Known, Left> {
    let partitions = std::slice::from_ref(partition);
    let mut known = Vec::with_capacity(components.len());
    for component in components {
        let store = &component.shared.store;
        let queue = &component.queue;
        patiently(component, || lookout::reload_pauses(&component.shared)).await?;
        let grants = patiently(component, || store.assign(queue, partitions)).await?;
        let notes = patiently(component, || store.attempt_notes(queue, partitions)).await?;
        patiently(component, || feed::refresh(component, shards)).await?;
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
