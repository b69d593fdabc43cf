//! The state of a memory log: its partitions, its group members, and the assignment of partitions to members.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::RangeInclusive;
use std::sync::Arc;

use lazaret_core::message::PartitionNumber;
use lazaret_core::source::{Assignment, Commit, SourceEvent};
use lazaret_core::{Message, StreamName};
use tokio::sync::Notify;

use crate::log::{MemberId, SETTLED_LIMIT};

#[derive(Default)]
pub(crate) struct LogState {
    pub(crate) slots: Vec<Slot>,
    /// The number of times the log was recreated.
    pub(crate) incarnation: u32,
    /// A mutation: incarnations are not counted.
    pub(crate) forgets_incarnations: bool,
    pub(crate) members: BTreeMap<MemberId, Member>,
    pub(crate) next_member: u64,
    pub(crate) finite: bool,
    pub(crate) forget_committed: bool,
}

/// One partition.
#[derive(Default)]
pub(crate) struct Slot {
    /// The messages, without the forgotten ones.
    pub(crate) messages: VecDeque<Message>,
    /// The number of forgotten messages.
    forgotten: usize,
    pub(crate) next_offset: u64,
    pub(crate) committed: Option<u64>,
    pub(crate) settled_beyond: Vec<RangeInclusive<u64>>,
    pub(crate) ownership: Option<Ownership>,
}

/// The assignment of a partition to a member, and its read position.
pub(crate) struct Ownership {
    pub(crate) member: MemberId,
    pub(crate) phase: Phase,
    /// The number of messages read, including forgotten ones.
    passed: usize,
    pub(crate) paused: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    /// The member has not received the assignment yet.
    Offered,
    /// The member reads the partition.
    Held,
    /// The member has to release the partition.
    Revoking,
}

pub(crate) struct Member {
    pub(crate) wake: Arc<Notify>,
    /// `true` while this is a member of the group; `false` from an expulsion until the next poll.
    joined: bool,
    offered: BTreeSet<u32>,
    revoking: BTreeSet<u32>,
    lost: BTreeSet<PartitionNumber>,
    /// The partitions that the member holds or has to release.
    pub(crate) held: BTreeSet<u32>,
    /// The partition whose messages the member received last. The next poll starts after it.
    last_read: u32,
    pub(crate) ended: bool,
    /// The incarnation that the member was told of.
    seen_incarnation: u32,
}

impl Member {
    pub(crate) fn new(wake: Arc<Notify>, seen_incarnation: u32) -> Self {
        Self {
            wake,
            seen_incarnation,
            joined: true,
            offered: BTreeSet::new(),
            revoking: BTreeSet::new(),
            lost: BTreeSet::new(),
            held: BTreeSet::new(),
            last_read: u32::MAX,
            ended: false,
        }
    }
}

impl Slot {
    /// Returns the number of messages up to the committed offset, including forgotten ones.
    fn committed_count(&self) -> usize {
        let kept = match self.committed {
            Some(committed) => self.messages.partition_point(|message| message.position.offset <= committed),
            None => 0,
        };
        self.forgotten + kept
    }

    /// Returns the number of messages that the owner has not received yet.
    pub(crate) fn remaining(&self) -> usize {
        let passed =
            self.ownership.as_ref().map_or_else(|| self.committed_count(), |ownership| ownership.passed);
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

    /// Returns the assignment of a partition to this member, if the member has received it.
    pub(crate) fn ownership_of(&mut self, member: MemberId, partition: u32) -> Option<&mut Ownership> {
        let ownership = self.slots.get_mut(partition as usize)?.ownership.as_mut();
        ownership.filter(|ownership| ownership.member == member && ownership.phase != Phase::Offered)
    }

    /// Moves the partitions towards their targets as far as possible without waiting.
    pub(crate) fn rebalance(&mut self) {
        let joined = self.joined();
        for (index, slot) in self.slots.iter_mut().enumerate() {
            let Some(target) = target(&joined, index) else {
                continue;
            };
            let index = index as u32;
            match &mut slot.ownership {
                Some(ownership) if ownership.member == target || ownership.phase == Phase::Revoking => {
                    continue;
                }
                Some(ownership) if ownership.phase == Phase::Held => {
                    ownership.phase = Phase::Revoking;
                    if let Some(owner) = self.members.get_mut(&ownership.member) {
                        owner.revoking.insert(index);
                        owner.wake.notify_one();
                    }
                    continue;
                }
                // The owner has not received the assignment yet and never will.
                Some(ownership) => {
                    if let Some(owner) = self.members.get_mut(&ownership.member) {
                        owner.offered.remove(&index);
                    }
                }
                None => {}
            }
            let passed = slot.committed_count();
            slot.ownership = Some(Ownership { member: target, phase: Phase::Offered, passed, paused: false });
            if let Some(member) = self.members.get_mut(&target) {
                member.offered.insert(index);
                member.wake.notify_one();
            }
        }
    }

    pub(crate) fn let_go(&mut self, member: MemberId, partition: u32) {
        self.slots[partition as usize].ownership = None;
        if let Some(member) = self.members.get_mut(&member) {
            member.revoking.remove(&partition);
            member.held.remove(&partition);
        }
    }

    /// Assigns a partition to its owner again, from the committed position.
    pub(crate) fn rewind(&mut self, id: MemberId, partition: u32) {
        let Some(slot) = self.slots.get_mut(partition as usize) else { return };
        let passed = slot.committed_count();
        let Some(ownership) = slot.ownership.as_mut() else { return };
        if ownership.member != id || ownership.phase != Phase::Held {
            return;
        }
        *ownership = Ownership { member: id, phase: Phase::Offered, passed, paused: false };
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
            slot.ownership.take_if(|ownership| ownership.member == id);
        }
        self.rebalance();
        // The remaining members may have waited for partitions of the member that left.
        self.wake_all();
    }

    /// Begins the next incarnation: an empty log without positions. The members lose their partitions
    /// and join again.
    pub(crate) fn recreate(&mut self, partitions: u32) {
        for id in self.joined() {
            self.expel(id);
        }
        self.slots = (0..partitions).map(|_| Slot::default()).collect();
        self.incarnation += u32::from(!self.forgets_incarnations);
        self.wake_all();
    }

    pub(crate) fn expel(&mut self, id: MemberId) -> bool {
        let incarnation = self.incarnation;
        let Some(member) = self.members.get_mut(&id).filter(|member| member.joined) else {
            return false;
        };
        member.joined = false;
        member.offered.clear();
        member.revoking.clear();
        let held = std::mem::take(&mut member.held).into_iter();
        member.lost.extend(held.map(|index| PartitionNumber { index, incarnation }));
        member.wake.notify_one();
        for slot in &mut self.slots {
            slot.ownership.take_if(|ownership| ownership.member == id);
        }
        self.rebalance();
        true
    }

    pub(crate) fn commit(&mut self, member: MemberId, commit: Commit) {
        if self.ownership_of(member, commit.partition.index).is_none() {
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
            if let Some(ownership) = &mut slot.ownership {
                ownership.passed = ownership.passed.max(slot.forgotten);
            }
        }
    }

    /// Returns the next event of a member, or `None` if it has to wait.
    pub(crate) fn poll(&mut self, stream: &StreamName, id: MemberId, batch: usize) -> Option<SourceEvent> {
        let member = self.members.get_mut(&id)?;
        if !member.lost.is_empty() {
            let lost = std::mem::take(&mut member.lost).into_iter();
            return Some(SourceEvent::Lost(lost.map(|number| number.of(stream.clone())).collect()));
        }
        if !member.joined {
            member.joined = true;
            self.rebalance();
        }
        let member = self.members.get_mut(&id)?;
        if !member.revoking.is_empty() {
            let (revoking, incarnation) = (std::mem::take(&mut member.revoking), self.incarnation);
            let numbers = revoking.into_iter().map(|index| PartitionNumber { index, incarnation });
            return Some(SourceEvent::Revoking(numbers.map(|number| number.of(stream.clone())).collect()));
        }
        if self.incarnation > member.seen_incarnation && !member.offered.is_empty() {
            let incarnation = self.incarnation;
            member.seen_incarnation = incarnation;
            let offered = member.offered.iter();
            let numbers = offered.map(|index| PartitionNumber { index: *index, incarnation });
            return Some(SourceEvent::Recreated(numbers.map(|number| number.of(stream.clone())).collect()));
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
        let incarnation = self.incarnation;
        let assignments = offered.into_iter().map(|index| {
            let slot = &mut self.slots[index as usize];
            if let Some(ownership) = &mut slot.ownership {
                ownership.phase = Phase::Held;
            }
            let partition = PartitionNumber { index, incarnation }.of(stream.clone());
            Assignment::new(partition, slot.settled_beyond.clone())
        });
        assignments.collect()
    }

    /// Takes messages of the member's partitions, round-robin.
    fn take_messages(&mut self, id: MemberId, batch: usize) -> Vec<Message> {
        let Self { slots, members, .. } = self;
        let Some(Member { held, last_read, .. }) = members.get_mut(&id) else {
            return Vec::new();
        };
        let mut messages = Vec::new();
        let behind = held.range(last_read.saturating_add(1)..).chain(held.range(..=*last_read));
        let mut last = *last_read;
        for index in behind {
            let slot = &mut slots[*index as usize];
            let remaining = slot.remaining();
            let Some(ownership) = slot.ownership.as_mut().filter(|t| t.phase == Phase::Held && !t.paused)
            else {
                continue;
            };
            let count = remaining.min(batch - messages.len());
            if count == 0 {
                continue;
            }
            let from = ownership.passed - slot.forgotten;
            if messages.is_empty() {
                messages.reserve_exact(batch.min(remaining));
            }
            messages.extend(slot.messages.range(from..from + count).cloned());
            ownership.passed += count;
            last = *index;
            if messages.len() == batch {
                break;
            }
        }
        *last_read = last;
        messages
    }

    /// Returns `End` a single time, if the log is finite, the member has received everything, and no
    /// assignment is pending.
    fn take_end(&mut self, id: MemberId) -> Option<SourceEvent> {
        let joined = self.joined();
        let all_delivered = self.slots.iter().enumerate().all(|(index, slot)| match &slot.ownership {
            Some(ownership) if ownership.member == id => {
                ownership.phase == Phase::Revoking || slot.remaining() == 0
            }
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

/// Returns the member that should own a partition.
fn target(joined: &[MemberId], partition: usize) -> Option<MemberId> {
    joined.get(partition.checked_rem(joined.len())?).copied()
}
