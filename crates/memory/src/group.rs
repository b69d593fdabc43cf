//! The state behind a memory log: its partitions, its members, and how the former are shared among the latter.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::RangeInclusive;
use std::sync::Arc;

use lazaret_core::source::{Assignment, Commit, SourceEvent};
use lazaret_core::{Message, Partition, StreamName};
use tokio::sync::Notify;

use crate::log::{MemberId, SETTLED_LIMIT};

#[derive(Default)]
pub(crate) struct LogState {
    pub(crate) slots: Vec<Slot>,
    pub(crate) members: BTreeMap<MemberId, Member>,
    pub(crate) next_member: u64,
    pub(crate) finite: bool,
    pub(crate) forget_committed: bool,
}

/// One partition.
#[derive(Default)]
pub(crate) struct Slot {
    /// Its messages, without those that were forgotten.
    pub(crate) messages: VecDeque<Message>,
    /// How many were forgotten.
    forgotten: usize,
    pub(crate) next_offset: u64,
    pub(crate) committed: Option<u64>,
    pub(crate) settled_beyond: Vec<RangeInclusive<u64>>,
    pub(crate) tenure: Option<Tenure>,
}

/// Who has a partition, and how far it came.
pub(crate) struct Tenure {
    pub(crate) member: MemberId,
    pub(crate) phase: Phase,
    /// How many messages of the partition lie behind, forgotten ones included.
    passed: usize,
    pub(crate) paused: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    /// The member has not been told yet.
    Offered,
    /// The member reads it.
    Held,
    /// The member has to let go.
    Revoking,
}

pub(crate) struct Member {
    pub(crate) wake: Arc<Notify>,
    /// Whether it takes part; not after it was expelled, until it asks again.
    joined: bool,
    offered: BTreeSet<u32>,
    revoking: BTreeSet<u32>,
    lost: BTreeSet<u32>,
    /// The partitions it holds or has to let go.
    pub(crate) held: BTreeSet<u32>,
    /// The partition that it got messages of last; the next one has its turn.
    turn: u32,
    pub(crate) ended: bool,
}

impl Member {
    pub(crate) fn new(wake: Arc<Notify>) -> Self {
        Self {
            wake,
            joined: true,
            offered: BTreeSet::new(),
            revoking: BTreeSet::new(),
            lost: BTreeSet::new(),
            held: BTreeSet::new(),
            turn: u32::MAX,
            ended: false,
        }
    }
}

impl Slot {
    /// How many messages lie before the one behind the committed offset, forgotten ones included.
    fn committed_count(&self) -> usize {
        let kept = match self.committed {
            Some(committed) => self.messages.partition_point(|message| message.position.offset <= committed),
            None => 0,
        };
        self.forgotten + kept
    }

    /// How many messages its owner has not been given.
    pub(crate) fn remaining(&self) -> usize {
        let passed = self.tenure.as_ref().map_or_else(|| self.committed_count(), |tenure| tenure.passed);
        self.forgotten + self.messages.len() - passed
    }
}

impl LogState {
    pub(crate) fn joined(&self) -> Vec<MemberId> {
        self.members.iter().filter(|(_, member)| member.joined).map(|(id, _)| *id).collect()
    }

    pub(crate) fn wake_all(&self) {
        for member in self.members.values() {
            member.wake.notify_one();
        }
    }

    /// The tenure of a partition, if this member has seen its assignment.
    pub(crate) fn tenure_of(&mut self, member: MemberId, partition: u32) -> Option<&mut Tenure> {
        let tenure = self.slots.get_mut(partition as usize)?.tenure.as_mut();
        tenure.filter(|tenure| tenure.member == member && tenure.phase != Phase::Offered)
    }

    /// Brings the partitions towards their targets as far as that goes without waiting.
    pub(crate) fn rebalance(&mut self) {
        let joined = self.joined();
        for (index, slot) in self.slots.iter_mut().enumerate() {
            let Some(target) = target(&joined, index) else {
                continue;
            };
            let index = index as u32;
            match &mut slot.tenure {
                Some(tenure) if tenure.member == target || tenure.phase == Phase::Revoking => continue,
                Some(tenure) if tenure.phase == Phase::Held => {
                    tenure.phase = Phase::Revoking;
                    if let Some(owner) = self.members.get_mut(&tenure.member) {
                        owner.revoking.insert(index);
                        owner.wake.notify_one();
                    }
                    continue;
                }
                // The owner has not been told yet and never will be.
                Some(tenure) => {
                    if let Some(owner) = self.members.get_mut(&tenure.member) {
                        owner.offered.remove(&index);
                    }
                }
                None => {}
            }
            let passed = slot.committed_count();
            slot.tenure = Some(Tenure { member: target, phase: Phase::Offered, passed, paused: false });
            if let Some(member) = self.members.get_mut(&target) {
                member.offered.insert(index);
                member.wake.notify_one();
            }
        }
    }

    pub(crate) fn let_go(&mut self, member: MemberId, partition: u32) {
        self.slots[partition as usize].tenure = None;
        if let Some(member) = self.members.get_mut(&member) {
            member.revoking.remove(&partition);
            member.held.remove(&partition);
        }
    }

    /// Offers a partition to its owner again, from behind the committed position.
    pub(crate) fn rewind(&mut self, id: MemberId, partition: u32) {
        let Some(slot) = self.slots.get_mut(partition as usize) else { return };
        let passed = slot.committed_count();
        let Some(tenure) = slot.tenure.as_mut() else { return };
        if tenure.member != id || tenure.phase != Phase::Held {
            return;
        }
        *tenure = Tenure { member: id, phase: Phase::Offered, passed, paused: false };
        if let Some(member) = self.members.get_mut(&id) {
            member.held.remove(&partition);
            member.offered.insert(partition);
            member.wake.notify_one();
        }
    }

    pub(crate) fn leave(&mut self, id: MemberId) {
        if self.members.remove(&id).is_none() {
            return;
        }
        for slot in &mut self.slots {
            slot.tenure.take_if(|tenure| tenure.member == id);
        }
        self.rebalance();
        // Those who stay may have been waiting for what the one who left was to let go.
        self.wake_all();
    }

    pub(crate) fn expel(&mut self, id: MemberId) -> bool {
        let Some(member) = self.members.get_mut(&id).filter(|member| member.joined) else {
            return false;
        };
        member.joined = false;
        member.offered.clear();
        member.revoking.clear();
        member.lost.append(&mut member.held);
        member.wake.notify_one();
        for slot in &mut self.slots {
            slot.tenure.take_if(|tenure| tenure.member == id);
        }
        self.rebalance();
        true
    }

    pub(crate) fn commit(&mut self, member: MemberId, commit: Commit) {
        if self.tenure_of(member, commit.partition.index).is_none() {
            return;
        }
        let slot = &mut self.slots[commit.partition.index as usize];
        let offset = match &commit.position {
            Some(position) => Some(position.offset),
            None => slot.committed,
        };
        if slot.committed > offset {
            return;
        }
        slot.committed = offset;
        slot.settled_beyond = commit.settled_beyond;
        slot.settled_beyond.truncate(SETTLED_LIMIT);
        if self.forget_committed {
            let done = slot.committed_count() - slot.forgotten;
            slot.messages.drain(..done);
            slot.forgotten += done;
            if let Some(tenure) = &mut slot.tenure {
                tenure.passed = tenure.passed.max(slot.forgotten);
            }
        }
    }

    /// What a member has to hear next; `None` when it has to wait.
    pub(crate) fn poll(&mut self, stream: &StreamName, id: MemberId, batch: usize) -> Option<SourceEvent> {
        let partitions =
            |set: BTreeSet<u32>| set.into_iter().map(|index| Partition::new(stream.clone(), index)).collect();
        let member = self.members.get_mut(&id)?;
        if !member.lost.is_empty() {
            return Some(SourceEvent::Lost(partitions(std::mem::take(&mut member.lost))));
        }
        if !member.joined {
            member.joined = true;
            self.rebalance();
        }
        let member = self.members.get_mut(&id)?;
        if !member.revoking.is_empty() {
            return Some(SourceEvent::Revoking(partitions(std::mem::take(&mut member.revoking))));
        }
        if !member.offered.is_empty() {
            return Some(SourceEvent::Assigned(self.take_offered(stream, id)));
        }
        let messages = self.take_messages(id, batch);
        if !messages.is_empty() {
            return Some(SourceEvent::Messages(messages));
        }
        self.take_end(id)
    }

    fn take_offered(&mut self, stream: &StreamName, id: MemberId) -> Vec<Assignment> {
        let Some(member) = self.members.get_mut(&id) else {
            return Vec::new();
        };
        member.ended = false;
        let offered = std::mem::take(&mut member.offered);
        member.held.extend(&offered);
        let assignments = offered.into_iter().map(|index| {
            let slot = &mut self.slots[index as usize];
            if let Some(tenure) = &mut slot.tenure {
                tenure.phase = Phase::Held;
            }
            Assignment {
                partition: Partition::new(stream.clone(), index),
                settled: slot.settled_beyond.clone(),
            }
        });
        assignments.collect()
    }

    /// Messages of the member's partitions, beginning with the one whose turn it is.
    fn take_messages(&mut self, id: MemberId, batch: usize) -> Vec<Message> {
        let Self { slots, members, .. } = self;
        let Some(Member { held, turn, .. }) = members.get_mut(&id) else {
            return Vec::new();
        };
        let mut messages = Vec::new();
        let behind = held.range(turn.saturating_add(1)..).chain(held.range(..=*turn));
        let mut last = *turn;
        for index in behind {
            let slot = &mut slots[*index as usize];
            let remaining = slot.remaining();
            let Some(tenure) = slot.tenure.as_mut().filter(|t| t.phase == Phase::Held && !t.paused) else {
                continue;
            };
            let count = remaining.min(batch - messages.len());
            if count == 0 {
                continue;
            }
            let from = tenure.passed - slot.forgotten;
            if messages.is_empty() {
                messages.reserve_exact(batch.min(remaining));
            }
            messages.extend(slot.messages.range(from..from + count).cloned());
            tenure.passed += count;
            last = *index;
            if messages.len() == batch {
                break;
            }
        }
        *turn = last;
        messages
    }

    /// The end, once: when the log is finite, all that the member holds was delivered and nothing is on its way to it.
    fn take_end(&mut self, id: MemberId) -> Option<SourceEvent> {
        let joined = self.joined();
        let all_delivered = self.slots.iter().enumerate().all(|(index, slot)| match &slot.tenure {
            Some(tenure) if tenure.member == id => tenure.phase == Phase::Revoking || slot.remaining() == 0,
            _ => target(&joined, index) != Some(id),
        });
        let member = self.members.get_mut(&id)?;
        if !self.finite || member.ended || !all_delivered {
            return None;
        }
        member.ended = true;
        Some(SourceEvent::End)
    }
}

/// Whose partition it should be.
fn target(joined: &[MemberId], partition: usize) -> Option<MemberId> {
    joined.get(partition.checked_rem(joined.len())?).copied()
}
