//! A partitioned log with a consumer group, which is the shared state of memory sources.
//!
//! The log outlives its consumers: it keeps the messages, the committed positions and the settled ranges
//! beyond them. Members of the group share the partitions round-robin. When a member joins or leaves,
//! only the partitions that move are revoked. Each is assigned to its new owner once the old owner has
//! released it:
//!
//! - A member that has received its assignment gets `Revoking` and keeps the partition until it calls
//!   `revoked`.
//! - A member that is dropped without `close` has crashed: its partitions are reassigned at once.
//! - A member that is [expelled](MemoryLog::expel) gets `Lost`. Its partitions are reassigned at once,
//!   its commits for them are ignored, and it joins again at its next poll.

use std::fmt;
use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use lazaret_core::message::PartitionNumber;
use lazaret_core::source::{Commit, SourceEvent};
use lazaret_core::{Message, MessageId, Partition, Position, StreamName};
use tokio::sync::Notify;

use crate::group::{LogState, Member, Phase, Slot};
use crate::source::MemorySource;

/// The default batch size of a source.
pub const DEFAULT_BATCH: usize = 512;
/// The maximum number of settled ranges beyond the committed position that are kept per partition (I7).
pub const SETTLED_LIMIT: usize = 1024;

/// The number of a member in its log's group. It stays the same if the member is expelled and joins
/// again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MemberId(pub(crate) u64);

impl fmt::Display for MemberId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "member-{}", self.0)
    }
}

/// A partitioned log in memory. Clones are handles to the same log.
///
/// ```
/// use lazaret_core::source::{Source, SourceEvent};
/// use lazaret_memory::MemoryLog;
///
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// let log = MemoryLog::new("orders", 1);
/// log.push(0, "order-7", "{}");
/// log.close();
/// let mut source = log.join();
/// assert!(matches!(source.next().await.unwrap(), SourceEvent::Assigned(_)));
/// assert!(matches!(source.next().await.unwrap(), SourceEvent::Messages(m) if m[0].id.as_str() == "orders/0/0"));
/// assert!(matches!(source.next().await.unwrap(), SourceEvent::End));
/// # });
/// ```
#[derive(Clone)]
pub struct MemoryLog {
    shared: Arc<Shared>,
}

struct Shared {
    stream: StreamName,
    state: Mutex<LogState>,
}

impl MemoryLog {
    /// Creates an empty log with this number of partitions.
    pub fn new(stream: impl Into<StreamName>, partitions: u32) -> Self {
        let slots = (0..partitions).map(|_| Slot::default()).collect();
        let state = Mutex::new(LogState { slots, ..LogState::default() });
        Self { shared: Arc::new(Shared { stream: stream.into(), state }) }
    }

    /// Discards messages once they are committed, for runs that would exceed the memory.
    #[must_use]
    pub fn forgetting_committed(self) -> Self {
        self.state().forget_committed = true;
        self
    }

    /// Returns the stream's name.
    pub fn stream(&self) -> &StreamName {
        &self.shared.stream
    }

    /// Returns the number of partitions.
    pub fn partitions(&self) -> u32 {
        self.state().slots.len() as u32
    }

    /// Appends a message with this key and payload, and returns its position. Its id is
    /// `stream/partition/offset`.
    ///
    /// # Panics
    /// Panics if the partition does not exist.
    pub fn push(&self, partition: u32, key: impl Into<Bytes>, payload: impl Into<Bytes>) -> Position {
        self.push_with(partition, |message| message.with_key(key).with_payload(payload))
    }

    /// Appends a message and returns its position. `build` receives a message with only an id and a
    /// position, and may change everything but the position. It must not call the log.
    ///
    /// # Panics
    /// Panics if the partition does not exist.
    pub fn push_with(&self, partition: u32, build: impl FnOnce(Message) -> Message) -> Position {
        let mut state = self.state();
        let LogState { slots, members, incarnation, .. } = &mut *state;
        let slot = slots.get_mut(partition as usize).expect("the log has this partition");
        let number = PartitionNumber { index: partition, incarnation: *incarnation };
        let position = Position::at(number, slot.next_offset);
        let stream = &self.shared.stream;
        let made = MessageId::from(format!("{}/{}", number.of(stream.clone()), slot.next_offset));
        let mut message = build(Message::new(made.clone(), stream.clone(), position.clone()));
        // A message that a relay published keeps its id.
        if message.id != made && message.hop.is_none() {
            message.id = MessageId::given(message.id);
        }
        message.stream = stream.clone();
        message.position = position.clone();
        slot.next_offset += 1;
        slot.messages.push_back(message);
        if let Some(member) = slot.ownership.as_ref().and_then(|ownership| members.get_mut(&ownership.member))
        {
            member.ended = false;
            member.wake.notify_one();
        }
        position
    }

    /// Skips offsets, as compaction and transaction markers do.
    ///
    /// # Panics
    /// Panics if the partition does not exist.
    pub fn skip(&self, partition: u32, offsets: u64) {
        self.state().slots.get_mut(partition as usize).expect("the log has this partition").next_offset +=
            offsets;
    }

    /// Deletes the log and creates it again with this number of partitions. Its messages and positions
    /// are deleted, offsets start again, and the members lose their partitions. Later messages belong to
    /// the next [incarnation](lazaret_core::incarnation).
    ///
    /// ```
    /// # use lazaret_memory::MemoryLog;
    /// let log = MemoryLog::new("orders", 1);
    /// log.push(0, "order-7", "{}");
    /// log.recreate(1);
    /// assert_eq!(log.push(0, "order-7", "{}").to_string(), "0~1:0");
    /// ```
    pub fn recreate(&self, partitions: u32) {
        self.state().recreate(partitions);
    }

    /// Returns the current [incarnation](lazaret_core::incarnation): the number of times the log was
    /// recreated.
    pub fn incarnation(&self) -> u32 {
        self.state().incarnation
    }

    /// Makes the log forget its incarnations: after a recreation, messages get the same positions as
    /// before, and so the same derived ids. For the test that the simulation detects this.
    #[cfg(feature = "mutations")]
    pub fn forget_incarnations(&self) {
        self.state().forgets_incarnations = true;
    }

    /// Closes the log for new messages. Sources that reach its end return `End`.
    pub fn close(&self) {
        let mut state = self.state();
        state.finite = true;
        state.wake_all();
    }

    /// Joins the group as a new member.
    pub fn join(&self) -> MemorySource {
        let wake = Arc::new(Notify::new());
        let mut state = self.state();
        let id = MemberId(state.next_member);
        state.next_member += 1;
        let incarnation = state.incarnation;
        state.members.insert(id, Member::new(wake.clone(), incarnation));
        state.rebalance();
        drop(state);
        MemorySource::new(self.clone(), id, wake)
    }

    /// Expels a member from the group, as a broker does after a session timeout. The member gets `Lost`,
    /// its partitions are reassigned at once, and it joins again at its next poll. Returns `false` if
    /// the member does not exist or is already expelled.
    pub fn expel(&self, member: MemberId) -> bool {
        self.state().expel(member)
    }

    /// Returns the members of the group in the order in which they joined.
    pub fn members(&self) -> Vec<MemberId> {
        self.state().joined()
    }

    /// Returns the current owner of a partition.
    pub fn owner(&self, partition: u32) -> Option<MemberId> {
        let state = self.state();
        state.slots.get(partition as usize)?.ownership.as_ref().map(|ownership| ownership.member)
    }

    /// Returns the committed offset of a partition.
    pub fn committed(&self, partition: u32) -> Option<u64> {
        self.state().slots.get(partition as usize)?.committed
    }

    /// Returns the settled ranges beyond the committed offset, as of the last commit.
    pub fn settled_beyond(&self, partition: u32) -> Vec<RangeInclusive<u64>> {
        self.state().slots.get(partition as usize).map(|slot| slot.settled_beyond.clone()).unwrap_or_default()
    }

    /// Returns the offset of the next message in a partition.
    pub fn next_offset(&self, partition: u32) -> u64 {
        self.state().slots.get(partition as usize).map_or(0, |slot| slot.next_offset)
    }

    /// Returns `true` if a partition belongs to this log and to its current incarnation.
    fn is_current(&self, state: &LogState, partition: &Partition) -> bool {
        partition.stream == self.shared.stream && partition.incarnation == state.incarnation
    }

    fn state(&self) -> MutexGuard<'_, LogState> {
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn poll(&self, member: MemberId, batch: usize) -> Option<SourceEvent> {
        self.state().poll(&self.shared.stream, member, batch)
    }

    pub(crate) fn commit(&self, member: MemberId, commits: Vec<Commit>) {
        let mut state = self.state();
        for commit in commits {
            if self.is_current(&state, &commit.partition) {
                state.commit(member, commit);
            }
        }
    }

    pub(crate) fn set_paused(&self, member: MemberId, partitions: &[Partition], paused: bool) {
        let mut state = self.state();
        for partition in partitions {
            if !self.is_current(&state, partition) {
                continue;
            }
            if let Some(ownership) = state.ownership_of(member, partition.index) {
                ownership.paused = paused;
            }
        }
    }

    pub(crate) fn rewind(&self, member: MemberId, partitions: &[Partition]) {
        let mut state = self.state();
        for partition in partitions {
            if !self.is_current(&state, partition) {
                continue;
            }
            state.rewind(member, partition.index);
        }
    }

    pub(crate) fn revoked(&self, member: MemberId, partitions: &[Partition]) {
        let mut state = self.state();
        for partition in partitions {
            if !self.is_current(&state, partition) {
                continue;
            }
            if state
                .ownership_of(member, partition.index)
                .is_some_and(|ownership| ownership.phase == Phase::Revoking)
            {
                state.let_go(member, partition.index);
            }
        }
        state.rebalance();
    }

    pub(crate) fn leave(&self, member: MemberId) {
        self.state().leave(member);
    }

    pub(crate) fn lag(&self, member: MemberId) -> u64 {
        let state = self.state();
        let Some(held) = state.members.get(&member).map(|member| &member.held) else {
            return 0;
        };
        held.iter().map(|index| state.slots[*index as usize].remaining() as u64).sum()
    }
}

impl fmt::Debug for MemoryLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryLog").field("stream", &self.shared.stream).finish_non_exhaustive()
    }
}
