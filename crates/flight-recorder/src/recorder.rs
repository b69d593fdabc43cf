//! The recorder: slots for what runs, marks for whom to suspect.

use std::fmt;
use std::fs::File;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use lazaret_core::recorder::{FlightRecorder, Identity, Slot, Suspect};
use lazaret_core::{Message, MessageId, QueueName};

use crate::error::OpenError;
use crate::file::{self, Opened};
use crate::free::FreeSlots;
use crate::judge::{self, Known};
use crate::layout::{self, Facts, Mark, head};
use crate::map::Map;

/// How a recorder is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// How many attempts can be recorded at once: at least the consumer's concurrency. Each takes 512 bytes. A file that has
    /// more keeps them; one that has fewer is enlarged.
    pub slots: u32,
}

impl Default for Options {
    /// 256 slots.
    fn default() -> Self {
        Self { slots: 256 }
    }
}

/// A flight recorder in a memory-mapped file. See the [crate's page](crate) for what it promises.
pub struct MappedRecorder {
    map: Map,
    free: FreeSlots,
    slots: u32,
    unrecorded: AtomicU64,
    /// Whom this process suspects. Fixed at the opening, so it is read without a lock.
    known: Vec<(Known, AtomicBool)>,
    /// How many of them are not forgotten.
    left: AtomicUsize,
    /// Holds the lock on the file until the recorder is dropped.
    _file: File,
}

impl MappedRecorder {
    /// Opens a file, or makes it, and judges what a process that died has left in it.
    ///
    /// When this returns, every charge stands in the file, so it counts even if this process dies at once.
    ///
    /// # Errors
    ///
    /// When the file is in use, is not a recorder's file, is cut off or of another version, or when the system says no, for
    /// example because the disk is full. The file stays as it was.
    pub fn open(path: impl AsRef<Path>, options: Options) -> Result<Self, OpenError> {
        let Opened { file, map, slots } = file::open(path.as_ref(), options.slots)?;
        let known = judge::judge(map.words(), slots);
        Ok(Self {
            free: FreeSlots::new(slots),
            slots,
            unrecorded: AtomicU64::new(0),
            left: AtomicUsize::new(known.len()),
            known: known.into_iter().map(|known| (known, AtomicBool::new(false))).collect(),
            map,
            _file: file,
        })
    }

    /// How many attempts can be recorded at once.
    pub const fn slots(&self) -> u32 {
        self.slots
    }

    /// Those that are not forgotten. Costs one look when there are none.
    fn suspected(&self) -> impl Iterator<Item = &(Known, AtomicBool)> {
        let known = if self.left.load(Ordering::Acquire) == 0 { &[] } else { &*self.known };
        known.iter().filter(|(_, forgotten)| !forgotten.load(Ordering::Acquire))
    }

    fn write(&self, slot: u32, queue: &QueueName, message: &Message, attempt: u32) {
        // Where it is committed: from there on it does not come again.
        let (stream, position) = message.place();
        let facts = Facts {
            identity: Identity::NONE,
            offset: position.offset,
            partition: position.partition,
            attempt,
            queue: queue.as_str(),
            stream: stream.as_str(),
            id: message.id.as_str(),
        };
        let identity = if layout::fits(&facts) { facts.identity } else { Identity::of(queue, &message.id) };
        let facts = Facts { identity, ..facts };
        layout::write(layout::slot_of(self.map.words(), slot as usize), &facts, Mark::default());
    }

    fn unrecorded_now(&self) -> &AtomicU64 {
        &self.map.words()[head::UNRECORDED]
    }
}

impl FlightRecorder for MappedRecorder {
    fn enter(&self, queue: &QueueName, message: &Message, attempt: u32) -> Slot {
        let Some(slot) = self.free.take() else {
            // Stands in the file too: whoever is recorded is not alone.
            self.unrecorded_now().fetch_add(1, Ordering::AcqRel);
            self.unrecorded.fetch_add(1, Ordering::Relaxed);
            return Slot::NOT_RECORDED;
        };
        self.write(slot, queue, message, attempt);
        Slot::at(slot)
    }

    fn leave(&self, slot: Slot) {
        match slot.index() {
            None => {
                self.unrecorded_now().fetch_sub(1, Ordering::AcqRel);
            }
            // A slot that nobody entered is not given out twice.
            Some(index) if index < self.slots => {
                if layout::clear(layout::slot_of(self.map.words(), index as usize)) {
                    self.free.give_back(index);
                }
            }
            Some(_) => {}
        }
    }

    fn rest(&self, slot: &Slot) {
        if let Some(index) = slot.index().filter(|index| *index < self.slots) {
            layout::rest(layout::slot_of(self.map.words(), index as usize));
        }
    }

    fn enter_again(&self, slot: &Slot, queue: &QueueName, message: &Message, attempt: u32) {
        if let Some(index) = slot.index().filter(|index| *index < self.slots) {
            self.write(index, queue, message, attempt);
        }
    }

    fn suspects(&self) -> Vec<Suspect> {
        self.suspected().map(|(known, _)| known.suspect.clone()).collect()
    }

    fn crashes(&self, queue: &QueueName, message: &MessageId) -> u32 {
        if self.left.load(Ordering::Acquire) == 0 {
            return 0;
        }
        let identity = Identity::of(queue, message);
        self.suspected()
            .find(|(known, _)| known.suspect.identity == identity)
            .map_or(0, |(known, _)| known.suspect.crashes)
    }

    fn forget(&self, queue: &QueueName, message: &MessageId) {
        if self.left.load(Ordering::Acquire) == 0 {
            return;
        }
        let identity = Identity::of(queue, message);
        for (known, forgotten) in self.suspected().filter(|(known, _)| known.suspect.identity == identity) {
            if !forgotten.swap(true, Ordering::AcqRel) {
                if let Some(mark) = known.mark {
                    layout::clear(layout::mark_of(self.map.words(), mark));
                }
                self.left.fetch_sub(1, Ordering::AcqRel);
            }
        }
    }

    fn unrecorded(&self) -> u64 {
        self.unrecorded.load(Ordering::Relaxed)
    }
}

impl fmt::Debug for MappedRecorder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MappedRecorder")
            .field("slots", &self.slots)
            .field("suspects", &self.left.load(Ordering::Relaxed))
            .field("unrecorded", &self.unrecorded.load(Ordering::Relaxed))
            .finish_non_exhaustive()
    }
}
