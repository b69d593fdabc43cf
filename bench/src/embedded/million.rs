//! A file with a million open letters in a hundred thousand sequences, created once for all benchmarks that need it.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Instant;

use lazaret_core::{Letter, LetterState, Timestamp};
use lazaret_store_sqlite::Durability;

use super::disk::Disk;
use super::open_with;
use crate::Scale;
use crate::letters::{Mould, fill};

const LETTERS: usize = 1_000_000;
/// The letters per sequence.
pub(super) const DEPTH: usize = 10;
/// The payload size: small, as the number of letters matters.
const PAYLOAD: usize = 128;

/// The file, filled on first use.
pub(super) struct Million {
    path: PathBuf,
    letters: usize,
    filled: OnceLock<()>,
}

impl Million {
    pub(super) fn new(disk: &Disk, scale: Scale) -> Self {
        Self { path: disk.file(), letters: scale.count(LETTERS), filled: OnceLock::new() }
    }

    /// The number of letters.
    pub(super) fn letters(&self) -> usize {
        self.letters
    }

    /// Returns the path of the filled file.
    pub(super) async fn path(&self) -> &Path {
        if self.filled.get().is_none() {
            let started = Instant::now();
            fill_sequences(&self.path, self.letters).await;
            eprintln!("filled {} letters in {:.0} s", self.letters, started.elapsed().as_secs_f64());
            self.filled.get_or_init(|| ());
        }
        &self.path
    }
}

/// Returns the name of a sequence. Names are scattered, so that consecutive ones are far apart in an index.
pub(super) fn sequence(number: usize) -> String {
    format!("order-{:016x}", (number as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

/// Fills a file with sequences of [`DEPTH`] letters. Every second head is due, the others are dead.
pub(super) async fn fill_sequences(path: &Path, letters: usize) {
    let store = open_with(path, Durability::Normal);
    let (mould, now) = (Mould::new(PAYLOAD), Timestamp::now());
    let sequences = letters / DEPTH;
    let made = (0..letters).map(|number| letter(&mould, number, number % sequences, number < sequences, now));
    fill(&*store, made).await;
}

fn letter(mould: &Mould, number: usize, sequence_number: usize, is_head: bool, now: Timestamp) -> Letter {
    let state = match (is_head, sequence_number % 2) {
        (false, _) => LetterState::Waiting,
        (true, 0) => LetterState::Retrying,
        (true, _) => LetterState::Dead,
    };
    let mut letter = mould.letter(number, &sequence(sequence_number), state);
    letter.due_at = (state == LetterState::Retrying).then_some(now);
    letter
}

/// Returns a letter that is appended to one of these sequences.
pub(super) fn follower(mould: &Mould, number: usize, sequence_number: usize) -> Letter {
    mould.letter(number, &sequence(sequence_number), LetterState::Waiting)
}
