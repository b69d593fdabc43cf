//! The ownership of one partition from its assignment to its revocation.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use lazaret_core::source::Ownership;
use lazaret_core::store::{AttemptNote, Grant, GrantFence};
use lazaret_core::{MessageId, Partition};
use tokio_util::sync::CancellationToken;

/// One assignment of one partition.
#[derive(Debug)]
pub(crate) struct PartitionOwnership {
    /// The index of the partition in the intake's list.
    pub(crate) slot: u32,
    /// Distinguishes this assignment from earlier assignments in the same slot.
    pub(crate) generation: u32,
    pub(crate) partition: Partition,
    /// Cancelled when the revocation begins. Nothing new starts then, and waiting messages are
    /// abandoned.
    pub(crate) closing: CancellationToken,
    /// `true` once the partition is revoked: running attempts are dropped.
    revoked: AtomicBool,
    /// `true` once nothing of this assignment may start any more. Read for every message, so it is a
    /// flag in addition to the token.
    closed: AtomicBool,
    /// The time for which the source is certain of the ownership.
    source: Ownership,
    /// The grant of each component.
    per_component: Vec<ComponentGrant>,
}

/// The grant of one component for the partition, with the notes of the partition.
#[derive(Debug)]
struct ComponentGrant {
    fence: u64,
    /// The recovery horizon: messages up to this offset may have a letter.
    horizon: Option<u64>,
    /// Messages up to this offset may have a letter or a note.
    lookup_up_to: Option<u64>,
    notes: HashMap<MessageId, AttemptNote>,
    /// One more than the highest offset with a note; 0 if there is none.
    noted: AtomicU64,
}

impl PartitionOwnership {
    pub(crate) fn new(
        slot: u32,
        generation: u32,
        partition: Partition,
        source: Ownership,
        known: Vec<(Grant, Vec<AttemptNote>)>,
    ) -> Self {
        let per_component = known
            .into_iter()
            .map(|(grant, notes)| {
                let noted = notes.iter().map(|note| note.offset).max();
                ComponentGrant {
                    fence: grant.fence,
                    horizon: grant.horizon,
                    lookup_up_to: grant.horizon.max(noted),
                    notes: notes.into_iter().map(|note| (note.message.clone(), note)).collect(),
                    noted: AtomicU64::new(noted.map_or(0, |offset| offset + 1)),
                }
            })
            .collect();
        Self {
            slot,
            generation,
            partition,
            closing: CancellationToken::new(),
            revoked: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            source,
            per_component,
        }
    }

    /// Begins the revocation. Nothing more of this assignment starts, and waiting messages are
    /// abandoned.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Release);
        self.closing.cancel();
    }

    /// Ends the ownership. The caller notifies the shards, which drop the running attempts.
    pub(crate) fn revoke(&self) {
        self.close();
        self.revoked.store(true, Ordering::Release);
    }

    /// Returns `true` if the ownership has ended.
    pub(crate) fn is_revoked(&self) -> bool {
        self.revoked.load(Ordering::Acquire)
    }

    /// Returns `true` if nothing may start any more.
    pub(crate) fn is_closing(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Returns `true` while, as far as the source knows, no other process can own the partition. A
    /// process that was stopped may not know of its revocation yet (I6).
    #[inline]
    pub(crate) fn is_certain(&self) -> bool {
        self.source.is_certain()
    }

    /// Waits until the source has confirmed the ownership. After the loss of the ownership it never
    /// returns.
    pub(crate) async fn confirmed(&self) {
        self.source.confirmed().await;
    }

    /// Returns `true` if a message at this offset may have a letter or a note.
    pub(crate) fn needs_lookup(&self, component: usize, offset: u64) -> bool {
        self.per_component[component].lookup_up_to.is_some_and(|end| offset <= end)
    }

    /// Returns `true` if a message at this offset may have a letter.
    pub(crate) fn may_have_letter(&self, component: usize, offset: u64) -> bool {
        self.per_component[component].horizon.is_some_and(|end| offset <= end)
    }

    /// Returns the note about the message from before the last restart.
    pub(crate) fn note(&self, component: usize, message: &MessageId) -> Option<AttemptNote> {
        self.per_component[component].notes.get(message).cloned()
    }

    /// Records that a note about a message at this offset is being written.
    pub(crate) fn noted(&self, component: usize, offset: u64) {
        self.per_component[component].noted.fetch_max(offset + 1, Ordering::AcqRel);
    }

    /// Returns `true` if there may be notes about messages up to this offset. All of these messages are
    /// settled. It returns `true` until the settled offset has passed every note.
    pub(crate) fn may_forget(&self, component: usize, settled: u64) -> bool {
        let noted = &self.per_component[component].noted;
        let end = noted.load(Ordering::Acquire);
        if end == 0 {
            return false;
        }
        if settled + 1 >= end {
            // If a note was written meanwhile, it has raised the mark again, and the mark stays.
            let _ = noted.compare_exchange(end, 0, Ordering::AcqRel, Ordering::Acquire);
        }
        true
    }

    /// Returns the grant under which this component hands off. The writer numbers its calls.
    pub(crate) fn grant(&self, component: usize) -> GrantFence {
        GrantFence { partition: self.partition.clone(), fence: self.per_component[component].fence, turn: 0 }
    }
}
