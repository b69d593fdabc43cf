//! Recovers the slots of a crashed process.
//!
//! Recovery can be restarted at any point. Charges are marked with the crashed generation, so no crash
//! is charged twice. Slots are cleared only after all of them were marked.

use std::sync::atomic::{AtomicU64, Ordering};

use lazaret_core::Partition;
use lazaret_core::recorder::Suspect;

use crate::layout::{self, AttemptRecord, Found, MARKS, Mark, head};

/// A suspect and the index of its mark. A suspect without a mark is known only to this process.
#[derive(Debug)]
pub(crate) struct KnownSuspect {
    pub(crate) suspect: Suspect,
    pub(crate) mark: Option<usize>,
}

/// Converts occupied slots to marks, clears the slots, starts a new generation, and returns the
/// suspects.
pub(crate) fn recover(words: &[AtomicU64], slots: u32) -> Vec<KnownSuspect> {
    let dead = words[head::GENERATION].load(Ordering::Acquire);
    let beyond = if words[head::JUDGED].load(Ordering::Acquire) == dead {
        // An earlier recovery crashed before it cleared the slots.
        Vec::new()
    } else {
        mark_all(words, slots, dead)
    };
    words[head::JUDGED].store(dead, Ordering::Release);
    for slot in 0..slots as usize {
        layout::clear(layout::slot_of(words, slot));
    }
    words[head::UNRECORDED].store(0, Ordering::Release);
    words[head::GENERATION].store(dead.wrapping_add(1), Ordering::Release);
    let mut known: Vec<KnownSuspect> = marked(words).chain(beyond).collect();
    known.sort_by(|a, b| place(&a.suspect).cmp(&place(&b.suspect)));
    known
}

fn place(suspect: &Suspect) -> (&Partition, u64, &str, &str) {
    (&suspect.partition, suspect.offset, suspect.queue.as_str(), suspect.message.as_str())
}

/// Marks every message that was in flight. Returns the messages without a free mark.
fn mark_all(words: &[AtomicU64], slots: u32, dead: u64) -> Vec<KnownSuspect> {
    let found: Vec<Found> =
        (0..slots as usize).map(|slot| layout::read(layout::slot_of(words, slot))).collect();
    let in_flight = found.iter().filter(|found| **found != Found::Nothing).count();
    let unrecorded = words[head::UNRECORDED].load(Ordering::Acquire);
    let alone = in_flight == 1 && unrecorded == 0;
    let death = dead as u32;
    let mut beyond = Vec::new();
    for found in found {
        let Found::Message(record_data) = found else { continue };
        let fresh = Mark { death, attempt: record_data.attempt, alone, crashes: u32::from(alone) };
        if let Some((record, before)) = find(words, &record_data) {
            // Already marked by an earlier recovery that crashed.
            if before.death != death {
                layout::set_mark(record, Mark { crashes: before.crashes + fresh.crashes, ..fresh });
            }
        } else if let Some(record) = available_mark(words, death) {
            layout::clear(record);
            layout::write(record, &record_data.as_strs(), fresh);
        } else {
            beyond.push(KnownSuspect { suspect: suspect(record_data, fresh), mark: None });
        }
    }
    beyond
}

/// Finds the mark of a message.
fn find<'a>(words: &'a [AtomicU64], record_data: &AttemptRecord<String>) -> Option<(&'a [AtomicU64], Mark)> {
    (0..MARKS).map(|index| layout::mark_of(words, index)).find_map(|record| match layout::read(record) {
        Found::Message(marked) if marked.identity == record_data.identity => {
            Some((record, layout::mark(record)))
        }
        _ => None,
    })
}

/// Finds a record for a new mark: a free one, else the oldest without a charge, else the oldest. Marks
/// of this crash are kept.
fn available_mark(words: &[AtomicU64], death: u32) -> Option<&[AtomicU64]> {
    let rank = |record: &[AtomicU64]| match layout::read(record) {
        Found::Nothing | Found::Corrupt => Some((0, 0)),
        Found::Message(_) => {
            let mark = layout::mark(record);
            (mark.death != death).then_some((1 + u32::from(mark.crashes > 0), mark.death))
        }
    };
    (0..MARKS)
        .map(|index| layout::mark_of(words, index))
        .filter_map(|record| Some((rank(record)?, record)))
        .min_by_key(|(rank, _)| *rank)
        .map(|(_, record)| record)
}

/// Returns all marked messages.
fn marked(words: &[AtomicU64]) -> impl Iterator<Item = KnownSuspect> {
    (0..MARKS).filter_map(|index| {
        let record = layout::mark_of(words, index);
        match layout::read(record) {
            Found::Message(record_data) => {
                Some(KnownSuspect { suspect: suspect(record_data, layout::mark(record)), mark: Some(index) })
            }
            Found::Nothing | Found::Corrupt => None,
        }
    })
}

fn suspect(record_data: AttemptRecord<String>, mark: Mark) -> Suspect {
    Suspect {
        queue: record_data.queue.into(),
        message: record_data.id.into(),
        partition: Partition::new(record_data.stream, record_data.partition)
            .in_incarnation(record_data.incarnation),
        offset: record_data.offset,
        attempt: mark.attempt,
        alone: mark.alone,
        crashes: mark.crashes,
        identity: record_data.identity,
    }
}

#[cfg(test)]
mod tests {
    use lazaret_core::recorder::Identity;

    use super::*;

    const SLOTS: u32 = 300;

    /// A file in plain memory, for a process that can crash at any point.
    struct Memory(Vec<AtomicU64>);

    impl Memory {
        fn new() -> Self {
            let memory = Self((0..layout::words_for(SLOTS)).map(|_| AtomicU64::new(0)).collect());
            assert!(memory.open().is_empty());
            memory
        }

        fn enter(&self, slot: usize, id: &str) {
            let (queue, stream) = ("orders/mail", "orders");
            let identity = Identity::of(&queue.into(), &id.into());
            let (partition, incarnation, attempt) = (0, 0, 2);
            let offset = slot as u64;
            let record_data =
                AttemptRecord { identity, offset, partition, incarnation, attempt, queue, stream, id };
            layout::write(layout::slot_of(&self.0, slot), &record_data, Mark::default());
        }

        /// Opens the file and returns the suspects with their charges.
        fn open(&self) -> Vec<(String, u32)> {
            let known = recover(&self.0, SLOTS);
            known
                .into_iter()
                .map(|known| (known.suspect.message.to_string(), known.suspect.crashes))
                .collect()
        }

        fn snapshot(&self) -> Vec<u64> {
            self.0.iter().map(|word| word.load(Ordering::Relaxed)).collect()
        }

        /// Restores some words to their earlier values.
        fn restore(&self, before: &[u64], range: std::ops::Range<usize>) {
            for at in range {
                self.0[at].store(before[at], Ordering::Relaxed);
            }
        }
    }

    fn some(pairs: &[(&str, u32)]) -> Vec<(String, u32)> {
        pairs.iter().map(|(id, crashes)| ((*id).to_owned(), *crashes)).collect()
    }

    /// Returns the index of the first slot's first word.
    fn slots_from() -> usize {
        layout::words_for(0)
    }

    #[test]
    fn only_one_that_was_alone_is_charged() {
        let memory = Memory::new();
        memory.enter(0, "a");
        memory.enter(1, "b");
        assert_eq!(memory.open(), some(&[("a", 0), ("b", 0)]));
        memory.enter(0, "b");
        assert_eq!(memory.open(), some(&[("a", 0), ("b", 1)]));
        memory.enter(0, "b");
        assert_eq!(memory.open(), some(&[("a", 0), ("b", 2)]));
        assert_eq!(memory.open(), some(&[("a", 0), ("b", 2)]), "nobody ran, nobody is charged");
    }

    #[test]
    fn an_unrecorded_attempt_is_company() {
        let memory = Memory::new();
        memory.enter(0, "a");
        memory.0[head::UNRECORDED].store(1, Ordering::Relaxed);
        assert_eq!(memory.open(), some(&[("a", 0)]));
        memory.enter(0, "a");
        assert_eq!(memory.open(), some(&[("a", 1)]), "the count begins anew with each process");
    }

    #[test]
    fn a_garbled_slot_is_company_and_an_unfinished_one_is_not() {
        let memory = Memory::new();
        memory.enter(0, "a");
        memory.enter(1, "b");
        layout::slot_of(&memory.0, 1)[1].fetch_xor(1, Ordering::Relaxed);
        assert_eq!(memory.open(), some(&[("a", 0)]));
        memory.enter(0, "a");
        memory.enter(1, "b");
        // The state of a slot that is being written.
        layout::slot_of(&memory.0, 1)[0].store(1, Ordering::Relaxed);
        assert_eq!(memory.open(), some(&[("a", 1)]));
    }

    #[test]
    fn a_death_is_charged_once_though_the_judge_dies_before_it_says_so() {
        let memory = Memory::new();
        memory.enter(5, "a");
        let before = memory.snapshot();
        memory.open();
        // The process crashed right after it made the mark.
        memory.restore(&before, 0..layout::HEADER);
        memory.restore(&before, slots_from()..before.len());
        assert_eq!(memory.open(), some(&[("a", 1)]));
        memory.enter(5, "a");
        assert_eq!(memory.open(), some(&[("a", 2)]));
    }

    #[test]
    fn nobody_becomes_alone_by_half_a_clearing() {
        let memory = Memory::new();
        for (slot, id) in ["a", "b", "c"].into_iter().enumerate() {
            memory.enter(slot, id);
        }
        let before = memory.snapshot();
        memory.open();
        // The process crashed after it judged the generation and cleared two slots.
        memory.restore(&before, head::GENERATION..head::GENERATION + 1);
        let third = slots_from() + 2 * layout::RECORD;
        memory.restore(&before, third..third + layout::RECORD);
        assert_eq!(memory.open(), some(&[("a", 0), ("b", 0), ("c", 0)]));
        memory.enter(0, "c");
        assert_eq!(memory.open(), some(&[("a", 0), ("b", 0), ("c", 1)]), "the next death counts");
    }

    #[test]
    fn uncharged_suspects_give_way_before_charged_ones_and_old_before_new() {
        let memory = Memory::new();
        memory.enter(0, "guilty");
        memory.open();
        memory.enter(1, "old-1");
        memory.enter(2, "old-2");
        memory.open();
        for slot in 0..MARKS - 2 {
            memory.enter(slot, &format!("new-{slot}"));
        }
        let known = memory.open();
        assert_eq!(known.len(), MARKS);
        assert!(known.contains(&("guilty".to_owned(), 1)));
        let old = known.iter().filter(|(id, _)| id.starts_with("old")).count();
        assert_eq!(old, 1, "one had to give way");
    }

    #[test]
    fn more_suspects_than_marks_are_all_known_to_the_next_process() {
        let memory = Memory::new();
        for slot in 0..SLOTS as usize {
            memory.enter(slot, &format!("m-{slot}"));
        }
        assert_eq!(memory.open().len(), SLOTS as usize);
        assert_eq!(memory.open().len(), MARKS, "what has room stays");
    }

    #[test]
    fn nobody_without_a_mark_becomes_alone_by_half_a_clearing() {
        let memory = Memory::new();
        for slot in 0..SLOTS as usize {
            memory.enter(slot, &format!("m-{slot}"));
        }
        let before = memory.snapshot();
        memory.open();
        // All slots were cleared except the last, whose message found no free mark.
        memory.restore(&before, head::GENERATION..head::GENERATION + 1);
        memory.restore(&before, before.len() - layout::RECORD..before.len());
        assert!(memory.open().iter().all(|(_, crashes)| *crashes == 0));
    }
}
