//! Fuzz target: the file of a crashed process.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

use lazaret_core::recorder::{FlightRecorder, Identity};
use lazaret_fuzz::Fuzz;

use crate::layout::{self, AttemptRecord, Mark, RECORD};
use crate::map::WORD;
use crate::recovery::{KnownSuspect, recover};
use crate::{MappedRecorder, Options};

const SLOTS: u32 = 4;
/// The number of used words in the header.
const HEAD: usize = 6;
/// The number of records in an input: the first half become marks, the others slots.
const RECORDS: usize = 2 * SLOTS as usize;

/// The used words of files: the header, some marks and all slots.
fn corpus() -> Vec<Vec<u8>> {
    let record = |id: &str, mark: Mark| {
        let words: Vec<AtomicU64> = (0..RECORD).map(|_| AtomicU64::new(0)).collect();
        let (queue, stream) = ("orders/mail", "orders");
        let identity = Identity::of(&queue.into(), &id.into());
        let (partition, incarnation, attempt) = (3, 1, 2);
        let data = AttemptRecord { identity, offset: 41, partition, incarnation, attempt, queue, stream, id };
        layout::write(&words, &data, mark);
        words
    };
    let charged = Mark { death: 7, attempt: 2, alone: true, crashes: 2 };
    let all: Vec<Vec<AtomicU64>> = (0..RECORDS)
        .map(|index| match index {
            0 => record("evt-1", charged),
            4 => record("evt-1", Mark::default()),
            5 => record(&"é".repeat(100), Mark::default()),
            _ => (0..RECORD).map(|_| AtomicU64::new(0)).collect(),
        })
        .collect();
    let head = [layout::MAGIC, layout::VERSION, u64::from(SLOTS), 8, 7, 0].map(AtomicU64::new);
    let bytes = |words: &[AtomicU64]| -> Vec<u8> {
        words.iter().flat_map(|word| word.load(Ordering::Relaxed).to_ne_bytes()).collect()
    };
    let whole = [bytes(&head), all.iter().flat_map(|record| bytes(record)).collect()].concat();
    let one = whole[..(HEAD + 5 * RECORD) * WORD].to_vec();
    vec![whole, one]
}

/// Returns the words of the file that an input describes.
fn words(input: &[u8]) -> Vec<AtomicU64> {
    let mut words: Vec<u64> = vec![0; layout::words_for(SLOTS)];
    let slots = layout::words_for(0);
    let given = input.as_chunks::<WORD>().0.iter().map(|chunk| u64::from_ne_bytes(*chunk));
    for (index, word) in given.enumerate().take(HEAD + RECORDS * RECORD) {
        let half = RECORDS / 2 * RECORD;
        let at = match index.checked_sub(HEAD) {
            None => index,
            Some(mark) if mark < half => layout::HEADER + mark,
            Some(slot) => slots + slot - half,
        };
        words[at] = word;
    }
    words.into_iter().map(AtomicU64::new).collect()
}

/// Recovers the words of a file twice. Nothing ran before the second recovery, so no suspect is charged
/// or added by it.
fn check_words(
    words: &[AtomicU64],
    recover: impl Fn(&[AtomicU64]) -> Vec<KnownSuspect>,
) -> Result<(), String> {
    let first = recover(words);
    let crashes = |known: &KnownSuspect| (known.suspect.identity, known.suspect.crashes);
    let charged: Vec<_> = first.iter().map(crashes).collect();
    let second = recover(words);
    match second.iter().map(crashes).find(|known| !charged.contains(known)) {
        None => Ok(()),
        Some(known) => Err(format!("{known:?} is charged without a crash: {charged:?}")),
    }
}

/// Returns the same words with valid checksums, so that mutations reach the records.
fn repaired(input: &[u8]) -> Vec<AtomicU64> {
    let repaired = words(input);
    for index in 0..SLOTS as usize {
        layout::repair(layout::mark_of(&repaired, index));
        layout::repair(layout::slot_of(&repaired, index));
    }
    repaired
}

fn target() -> Fuzz {
    Fuzz::target("recorder-file").corpus(corpus()).count(100)
}

#[test]
fn recorder_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("orders.flight");
    let recover = |words: &[AtomicU64]| recover(words, SLOTS);
    target().run(|input| {
        check_words(&words(input), recover)?;
        let repaired = repaired(input);
        let bytes: Vec<u8> =
            repaired.iter().flat_map(|word| word.load(Ordering::Relaxed).to_ne_bytes()).collect();
        check_words(&repaired, recover)?;
        // The same through a file, truncated depending on the length of the input.
        let cut = bytes.len() - bytes.len().min(input.len() % 97 * WORD / 2);
        std::fs::write(&path, &bytes[..cut]).unwrap();
        match MappedRecorder::open(&path, Options { slots: SLOTS }) {
            Ok(recorder) if recorder.suspects().len() > layout::MARKS + recorder.slots() as usize => {
                Err("more suspects than records".to_owned())
            }
            Ok(_) => Ok(()),
            Err(error) if error.to_string().is_empty() => Err("an error without a reason".to_owned()),
            Err(_) => Ok(()),
        }
    });
}

#[test]
fn a_planted_bug_of_the_recovery_is_found() {
    // A suspect whose offset or attempt differs from the corpus is charged again at every start.
    target().finds(|input| {
        let starts = Cell::new(0);
        check_words(&repaired(input), |words| {
            starts.set(starts.get() + 1);
            let mut known = recover(words, SLOTS);
            known
                .iter_mut()
                .filter(|known| (known.suspect.offset, known.suspect.attempt) != (41, 2))
                .for_each(|known| {
                    known.suspect.crashes += starts.get();
                });
            known
        })
    });
}
