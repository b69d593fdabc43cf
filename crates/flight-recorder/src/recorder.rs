//! The recorder: slots for running attempts and marks for suspects.

use std::fmt;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use lazaret_core::recorder::{FlightRecorder, Identity, Slot, Suspect};
use lazaret_core::{Message, QueueName};

use crate::error::OpenError;
use crate::file::{self, Opened};
use crate::free::FreeSlots;
use crate::layout::{self, AttemptRecord, Mark, head};
use crate::map::Map;
use crate::recovery::{self, KnownSuspect};

/// The options of a recorder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// The number of attempts that can be recorded at once. Use at least the concurrency of the
    /// consumer. Each slot takes 512 bytes. A smaller file is enlarged; a larger one is kept.
    pub slots: u32,
}

impl Default for Options {
    /// Sets 256 slots.
    fn default() -> Self {
        Self { slots: 256 }
    }
}

/// A flight recorder in a memory-mapped file. See the [crate documentation](crate) for its guarantees.
pub struct MappedRecorder {
    map: Map,
    free: FreeSlots,
    slots: u32,
    unrecorded: AtomicU64,
    /// The suspects. They are fixed when the file is opened, so they are read without a lock.
    known: Vec<(KnownSuspect, AtomicBool)>,
    /// The number of suspects that are not forgotten.
    left: AtomicUsize,
    /// Holds the lock on the file until the recorder is dropped.
    _file: File,
}

impl MappedRecorder {
    /// Opens or creates a file, and recovers the records of a crashed process.
    ///
    /// All charges are written to the file before this returns, so they count even if this process
    /// crashes at once.
    ///
    /// # Errors
    ///
    /// Fails if the file is in use, foreign, truncated or of another version, or on an I/O error such as
    /// a full disk. In these cases the file is unchanged.
    pub fn open(path: impl AsRef<Path>, options: Options) -> Result<Self, OpenError> {
        file::open(path.as_ref(), options.slots).map(Self::of)
    }

    /// Opens a file like [`open`](Self::open), but first renames a damaged one and starts with a new
    /// file. Returns the new name of the damaged file and its error. A crash that the damaged file
    /// recorded is not attributed. No message is lost.
    ///
    /// # Errors
    ///
    /// Fails if the file is in use, or on an I/O error such as a full disk.
    ///
    /// ```
    /// use lazaret_flight_recorder::{MappedRecorder, Options};
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let path = folder.path().join("orders.flight");
    /// std::fs::write(&path, "damaged").unwrap();
    /// let (_recorder, damaged) = MappedRecorder::open_or_replace(&path, Options::default()).unwrap();
    /// let (aside, error) = damaged.unwrap();
    /// assert_eq!(std::fs::read(aside).unwrap(), b"damaged");
    /// assert!(error.to_string().ends_with("is not a flight recorder file"));
    /// ```
    pub fn open_or_replace(
        path: impl AsRef<Path>,
        options: Options,
    ) -> Result<(Self, Option<(PathBuf, OpenError)>), OpenError> {
        let (opened, damaged) = file::open_or_replace(path.as_ref(), options.slots)?;
        Ok((Self::of(opened), damaged))
    }

    fn of(Opened { file, map, slots }: Opened) -> Self {
        let known = recovery::recover(map.words(), slots);
        Self {
            free: FreeSlots::new(slots),
            slots,
            unrecorded: AtomicU64::new(0),
            left: AtomicUsize::new(known.len()),
            known: known.into_iter().map(|known| (known, AtomicBool::new(false))).collect(),
            map,
            _file: file,
        }
    }

    /// Returns the number of attempts that can be recorded at once.
    pub const fn slots(&self) -> u32 {
        self.slots
    }

    /// Returns the suspects that are not forgotten. Costs one load if there are none.
    fn suspected(&self) -> impl Iterator<Item = &(KnownSuspect, AtomicBool)> {
        let known = if self.left.load(Ordering::Acquire) == 0 { &[] } else { &*self.known };
        known.iter().filter(|(_, forgotten)| !forgotten.load(Ordering::Acquire))
    }

    fn write(&self, slot: u32, queue: &QueueName, message: &Message, attempt: u32) {
        // The position that is committed for this message.
        let (stream, position) = message.place();
        message.id.with_str(|id| {
            let record_data = AttemptRecord {
                identity: Identity::NONE,
                offset: position.offset,
                partition: position.partition,
                incarnation: position.incarnation,
                attempt,
                queue: queue.as_str(),
                stream: stream.as_str(),
                id,
            };
            // If the record fits, its identity is computed when it is read.
            let fits = layout::fits(&record_data) && position.incarnation == message.position.incarnation;
            let identity = if fits { record_data.identity } else { Identity::of_message(queue, message) };
            let record_data = AttemptRecord { identity, ..record_data };
            layout::write(layout::slot_of(self.map.words(), slot as usize), &record_data, Mark::default());
        });
    }

    fn unrecorded_now(&self) -> &AtomicU64 {
        &self.map.words()[head::UNRECORDED]
    }
}

impl FlightRecorder for MappedRecorder {
    fn enter(&self, queue: &QueueName, message: &Message, attempt: u32) -> Slot {
        let Some(slot) = self.free.acquire() else {
            // Also counted in the file: recorded attempts then do not run alone.
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
            // A slot that is not occupied is not released again.
            Some(index) if index < self.slots => {
                if layout::clear(layout::slot_of(self.map.words(), index as usize)) {
                    self.free.release(index);
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

    fn crashes(&self, message: Identity) -> u32 {
        self.suspected()
            .find(|(known, _)| known.suspect.identity == message)
            .map_or(0, |(known, _)| known.suspect.crashes)
    }

    fn forget(&self, message: Identity) {
        for (known, forgotten) in self.suspected().filter(|(known, _)| known.suspect.identity == message) {
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
