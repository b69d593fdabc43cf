//! The time during which this consumer owns a partition.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use lazaret_core::store::{AttemptNote, Grant, GrantFence};
use lazaret_core::{MessageId, Partition};
use tokio_util::sync::CancellationToken;

/// One assignment of one partition, from its coming to its going.
#[derive(Debug)]
pub(crate) struct Tenure {
    /// The partition's place in the intake's list.
    pub(crate) slot: u32,
    /// Tells this assignment from earlier ones of the same slot.
    pub(crate) generation: u32,
    pub(crate) partition: Partition,
    /// Cancelled when the partition shall go: nothing new starts, what waits gives up.
    pub(crate) leaving: CancellationToken,
    /// The partition is gone: what still runs is dropped.
    gone: AtomicBool,
    /// Nothing of this assignment may start any more.
    closing: AtomicBool,
    /// What the store granted to each component.
    stakes: Vec<Stake>,
}

/// What one component may do and must know about the partition.
#[derive(Debug)]
struct Stake {
    fence: u64,
    /// Messages up to here may have a letter already.
    horizon: Option<u64>,
    /// Messages up to here need a closer look before they run: a letter or a note may exist.
    careful_up_to: Option<u64>,
    notes: HashMap<MessageId, AttemptNote>,
    /// One more than the highest offset with a note; 0 when there is none.
    noted: AtomicU64,
}

impl Tenure {
    pub(crate) fn new(
        slot: u32,
        generation: u32,
        partition: Partition,
        known: Vec<(Grant, Vec<AttemptNote>)>,
    ) -> Self {
        let stakes = known
            .into_iter()
            .map(|(grant, notes)| {
                let noted = notes.iter().map(|note| note.offset).max();
                Stake {
                    fence: grant.fence,
                    horizon: grant.horizon,
                    careful_up_to: grant.horizon.max(noted),
                    notes: notes.into_iter().map(|note| (note.message.clone(), note)).collect(),
                    noted: AtomicU64::new(noted.map_or(0, |offset| offset + 1)),
                }
            })
            .collect();
        Self {
            slot,
            generation,
            partition,
            leaving: CancellationToken::new(),
            gone: AtomicBool::new(false),
            closing: AtomicBool::new(false),
            stakes,
        }
    }

    /// From here on nothing of this assignment starts, and what waits gives up.
    pub(crate) fn close(&self) {
        self.closing.store(true, Ordering::Release);
        self.leaving.cancel();
    }

    /// The partition is gone. Whoever says so tells the shards, which drop what still runs.
    pub(crate) fn end(&self) {
        self.close();
        self.gone.store(true, Ordering::Release);
    }

    /// Whether the partition is gone.
    pub(crate) fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Acquire)
    }

    /// Whether nothing may start any more.
    pub(crate) fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Acquire)
    }

    /// Whether a message at this offset needs a closer look.
    pub(crate) fn careful(&self, component: usize, offset: u64) -> bool {
        self.stakes[component].careful_up_to.is_some_and(|end| offset <= end)
    }

    /// Whether a message at this offset may have a letter already.
    pub(crate) fn may_have_letter(&self, component: usize, offset: u64) -> bool {
        self.stakes[component].horizon.is_some_and(|end| offset <= end)
    }

    /// What is remembered of the message from before the last restart.
    pub(crate) fn note(&self, component: usize, message: &MessageId) -> Option<AttemptNote> {
        self.stakes[component].notes.get(message).cloned()
    }

    /// A note on a message at this offset is being written.
    pub(crate) fn noted(&self, component: usize, offset: u64) {
        self.stakes[component].noted.fetch_max(offset + 1, Ordering::AcqRel);
    }

    /// Whether there may be notes that speak of messages up to this offset, all of which are settled now. Answers
    /// `true` until the settled offset has passed every note.
    pub(crate) fn may_forget(&self, component: usize, settled: u64) -> bool {
        let noted = &self.stakes[component].noted;
        let end = noted.load(Ordering::Acquire);
        if end == 0 {
            return false;
        }
        if settled + 1 >= end {
            // A note that is written meanwhile has raised the mark again, and then it stays.
            let _ = noted.compare_exchange(end, 0, Ordering::AcqRel, Ordering::Acquire);
        }
        true
    }

    /// Under which grant this component hands off. The writer numbers its calls.
    pub(crate) fn grant(&self, component: usize) -> GrantFence {
        GrantFence { partition: self.partition.clone(), fence: self.stakes[component].fence, turn: 0 }
    }
}
