//! What stands where in the file.
//!
//! | words | what |
//! |---|---|
//! | 512 | header: magic, version, number of slots, generation, judged generation, unrecorded attempts in flight |
//! | 256 × 64 | marks: suspects and how often they were charged |
//! | slots × 64 | one running attempt each |
//!
//! A record (a mark or a slot) is 64 words: state, checksum, identity (2), offset, partition and attempt, lengths, mark, then
//! the texts, each at its fixed place. Words are in the machine's byte order; a file from a machine with another one
//! has a magic that does not fit.

use std::sync::atomic::{AtomicU64, Ordering, fence};

use lazaret_core::recorder::Identity;

/// The first word of each file.
pub(crate) const MAGIC: u64 = u64::from_le_bytes(*b"LAZFLREC");
/// The version of the layout.
pub(crate) const VERSION: u64 = 1;

/// Words in the header.
pub(crate) const HEADER: usize = 512;
/// Words in a record.
pub(crate) const RECORD: usize = 64;
/// How many suspects are remembered from one process to the next.
pub(crate) const MARKS: usize = 256;

/// Places in the header.
pub(crate) mod head {
    pub(crate) const MAGIC: usize = 0;
    pub(crate) const VERSION: usize = 1;
    pub(crate) const SLOTS: usize = 2;
    /// The number of the process that writes slots: each open counts it up.
    pub(crate) const GENERATION: usize = 3;
    /// The last generation whose slots were turned into marks.
    pub(crate) const JUDGED: usize = 4;
    /// How many attempts run unrecorded.
    pub(crate) const UNRECORDED: usize = 5;
}

/// How many words a file with this many slots has.
pub(crate) const fn words_for(slots: u32) -> usize {
    HEADER + (MARKS + slots as usize) * RECORD
}

/// The words of a mark.
pub(crate) fn mark_of(words: &[AtomicU64], index: usize) -> &[AtomicU64] {
    &words[HEADER + index * RECORD..][..RECORD]
}

/// The words of a slot.
pub(crate) fn slot_of(words: &[AtomicU64], index: usize) -> &[AtomicU64] {
    &words[HEADER + (MARKS + index) * RECORD..][..RECORD]
}

/// States of a record.
const FREE: u64 = 0;
const WRITING: u64 = 1;
const WRITTEN: u64 = 2;
/// Somebody's, with nothing in it.
const RESTING: u64 = 3;

/// Places in a record.
const STATE: usize = 0;
const CHECKSUM: usize = 1;
const IDENTITY: usize = 2;
const OFFSET: usize = 4;
const PARTITION_ATTEMPT: usize = 5;
const LENGTHS: usize = 6;
const MARK: usize = 7;
const QUEUE: Text = Text { at: 8, bytes: 128 };
const STREAM: Text = Text { at: 24, bytes: 120 };
const ID: Text = Text { at: 39, bytes: 200 };

/// Where a text stands and how much of it is kept.
#[derive(Clone, Copy)]
struct Text {
    at: usize,
    bytes: usize,
}

/// What a record says about a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Facts<T> {
    pub(crate) identity: Identity,
    pub(crate) offset: u64,
    pub(crate) partition: u32,
    pub(crate) attempt: u32,
    pub(crate) queue: T,
    pub(crate) stream: T,
    pub(crate) id: T,
}

impl Facts<String> {
    /// The same facts with borrowed texts.
    pub(crate) fn as_strs(&self) -> Facts<&str> {
        let Self { identity, offset, partition, attempt, queue, stream, id } = self;
        Facts {
            identity: *identity,
            offset: *offset,
            partition: *partition,
            attempt: *attempt,
            queue,
            stream,
            id,
        }
    }
}

/// What a record holds.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// Nothing, or something that was not written to its end: the attempt had not begun.
    Nothing,
    /// A message.
    Message(Facts<String>),
    /// Something whose checksum does not fit, as after a power cut.
    Garbled,
}

/// What is known of a suspect, in one word, so that it changes at once or not at all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Mark {
    /// The last generation whose death it was part of.
    pub(crate) death: u32,
    /// The attempt that ran then; at most 65 535 is kept.
    pub(crate) attempt: u32,
    /// Whether it was alone then.
    pub(crate) alone: bool,
    /// How often it was charged; at most 32 767 is kept.
    pub(crate) crashes: u32,
}

impl Mark {
    fn to_word(self) -> u64 {
        let attempt = u64::from(self.attempt.min(0xffff));
        let crashes = u64::from(self.crashes.min(0x7fff));
        u64::from(self.death) << 32 | attempt << 16 | crashes << 1 | u64::from(self.alone)
    }

    const fn from_word(word: u64) -> Self {
        Self {
            death: (word >> 32) as u32,
            attempt: (word >> 16 & 0xffff) as u32,
            crashes: (word >> 1 & 0x7fff) as u32,
            alone: word & 1 == 1,
        }
    }
}

/// Writes a record that is free. A process that dies on the way leaves a record that holds nothing.
pub(crate) fn write(record: &[AtomicU64], facts: &Facts<&str>, mark: Mark) {
    record[STATE].store(WRITING, Ordering::Relaxed);
    // Nothing below may move before the line above, neither in the compiler nor in the processor.
    fence(Ordering::Release);
    let mut sum = Checksum::default();
    let mut put = |at: usize, word: u64| {
        record[at].store(word, Ordering::Relaxed);
        sum.add(at, word);
    };
    put(IDENTITY, facts.identity.0 as u64);
    put(IDENTITY + 1, (facts.identity.0 >> 64) as u64);
    put(OFFSET, facts.offset);
    put(PARTITION_ATTEMPT, u64::from(facts.partition) << 32 | u64::from(facts.attempt));
    let mut lengths = 0;
    for (text, value) in [(QUEUE, facts.queue), (STREAM, facts.stream), (ID, facts.id)] {
        let kept = &value.as_bytes()[..value.floor_char_boundary(text.bytes)];
        lengths = lengths << 16 | kept.len() as u64;
        let (whole, rest) = kept.as_chunks::<8>();
        for (index, chunk) in whole.iter().enumerate() {
            put(text.at + index, u64::from_ne_bytes(*chunk));
        }
        if !rest.is_empty() {
            let mut last = [0; 8];
            last[..rest.len()].copy_from_slice(rest);
            put(text.at + whole.len(), u64::from_ne_bytes(last));
        }
    }
    put(LENGTHS, lengths);
    record[CHECKSUM].store(sum.finish(), Ordering::Relaxed);
    record[MARK].store(mark.to_word(), Ordering::Relaxed);
    record[STATE].store(WRITTEN, Ordering::Release);
}

/// What a record holds.
pub(crate) fn read(record: &[AtomicU64]) -> Found {
    match record[STATE].load(Ordering::Acquire) {
        FREE | WRITING | RESTING => Found::Nothing,
        WRITTEN => read_written(record).map_or(Found::Garbled, Found::Message),
        _ => Found::Garbled,
    }
}

fn read_written(record: &[AtomicU64]) -> Option<Facts<String>> {
    let mut sum = Checksum::default();
    let mut get = |at: usize| {
        let word = record[at].load(Ordering::Relaxed);
        sum.add(at, word);
        word
    };
    let identity = Identity(u128::from(get(IDENTITY)) | u128::from(get(IDENTITY + 1)) << 64);
    let offset = get(OFFSET);
    let partition_attempt = get(PARTITION_ATTEMPT);
    // Needed first, summed up last.
    let lengths = record[LENGTHS].load(Ordering::Relaxed);
    let mut texts = [const { String::new() }; 3];
    for (place, (text, shift)) in [(QUEUE, 32), (STREAM, 16), (ID, 0)].into_iter().enumerate() {
        let length = (lengths >> shift & 0xffff) as usize;
        if length > text.bytes {
            return None;
        }
        let mut bytes: Vec<u8> =
            (0..length.div_ceil(8)).flat_map(|index| get(text.at + index).to_ne_bytes()).collect();
        bytes.truncate(length);
        texts[place] = String::from_utf8(bytes).ok()?;
    }
    get(LENGTHS);
    if record[CHECKSUM].load(Ordering::Relaxed) != sum.finish() {
        return None;
    }
    let [queue, stream, id] = texts;
    let whole = || Identity::of(&queue.as_str().into(), &id.as_str().into());
    let identity = if identity == Identity::NONE { whole() } else { identity };
    let (partition, attempt) = ((partition_attempt >> 32) as u32, partition_attempt as u32);
    Some(Facts { identity, offset, partition, attempt, queue, stream, id })
}

/// Makes a record free. Says whether it was written. Only one at a time may do that with a record.
pub(crate) fn clear(record: &[AtomicU64]) -> bool {
    // Not a swap, which would cost more than all the rest of it.
    let taken = matches!(record[STATE].load(Ordering::Relaxed), WRITTEN | RESTING);
    record[STATE].store(FREE, Ordering::Release);
    taken
}

/// Empties a record that stays with its owner.
pub(crate) fn rest(record: &[AtomicU64]) {
    record[STATE].store(RESTING, Ordering::Release);
}

/// Whether queue and id are kept whole.
pub(crate) fn fits(facts: &Facts<&str>) -> bool {
    facts.queue.len() <= QUEUE.bytes && facts.id.len() <= ID.bytes
}

/// The mark in a record.
pub(crate) fn mark(record: &[AtomicU64]) -> Mark {
    Mark::from_word(record[MARK].load(Ordering::Acquire))
}

/// Changes the mark in a record, at once.
pub(crate) fn set_mark(record: &[AtomicU64], mark: Mark) {
    record[MARK].store(mark.to_word(), Ordering::Release);
}

/// A sum that notices torn and foreign words. Not a defence against anybody. The words do not wait for each other, which
/// makes it cheap; each counts with an odd factor of its own, so no single change goes unseen.
#[derive(Default)]
struct Checksum(u64);

impl Checksum {
    const fn add(&mut self, at: usize, word: u64) {
        let factor = 0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(2 * at as u64 + 1);
        self.0 = self.0.wrapping_add((word ^ 0xd6e8_feb8_6659_fd93).wrapping_mul(factor));
    }

    const fn finish(&self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> Vec<AtomicU64> {
        (0..RECORD).map(|_| AtomicU64::new(0)).collect()
    }

    fn facts(id: &str) -> Facts<&str> {
        Facts {
            identity: Identity(u128::MAX - 5),
            offset: u64::MAX,
            partition: 7,
            attempt: 3,
            queue: "orders/mail",
            stream: "orders",
            id,
        }
    }

    #[test]
    fn a_record_gives_back_what_was_written() {
        for id in ["", "a", "12345678", "123456789", &"x".repeat(200)] {
            let record = record();
            write(&record, &facts(id), Mark::default());
            let Found::Message(found) = read(&record) else { panic!("{id}") };
            assert_eq!(found.as_strs(), facts(id));
        }
    }

    #[test]
    fn a_long_text_is_cut_between_characters() {
        let record = record();
        write(&record, &facts(&format!("x{}", "é".repeat(200))), Mark::default());
        let Found::Message(found) = read(&record) else { panic!() };
        assert_eq!(found.id, format!("x{}", "é".repeat(99)));
        assert_eq!(found.queue, "orders/mail");
    }

    #[test]
    fn texts_do_not_run_into_each_other() {
        let record = record();
        let (queue, stream, id) = ("q".repeat(128), "s".repeat(120), "i".repeat(200));
        write(&record, &Facts { queue: &queue, stream: &stream, ..facts(&id) }, Mark::default());
        let Found::Message(found) = read(&record) else { panic!() };
        assert_eq!((found.queue, found.stream, found.id), (queue, stream, id));
    }

    #[test]
    fn a_flipped_bit_is_noticed() {
        for word in (1..7).chain([8, 24, 39]) {
            for bit in 0..64 {
                let record = record();
                write(&record, &facts("evt-1"), Mark::default());
                record[word].fetch_xor(1 << bit, Ordering::Relaxed);
                assert_eq!(read(&record), Found::Garbled, "word {word}, bit {bit}");
            }
        }
    }

    #[test]
    fn what_was_not_written_to_its_end_holds_nothing() {
        let record = record();
        write(&record, &facts("evt-1"), Mark::default());
        record[STATE].store(WRITING, Ordering::Relaxed);
        assert_eq!(read(&record), Found::Nothing);
        assert!(!clear(&record));
        record[STATE].store(77, Ordering::Relaxed);
        assert_eq!(read(&record), Found::Garbled);
    }

    #[test]
    fn a_mark_fits_into_its_word() {
        for mark in [
            Mark::default(),
            Mark { death: u32::MAX, attempt: 0xffff, alone: true, crashes: 0x7fff },
            Mark { death: 1, attempt: 2, alone: false, crashes: 3 },
        ] {
            assert_eq!(Mark::from_word(mark.to_word()), mark);
        }
        let beyond = Mark { death: 0, attempt: u32::MAX, alone: false, crashes: u32::MAX };
        let kept = Mark { attempt: 0xffff, crashes: 0x7fff, ..beyond };
        assert_eq!(Mark::from_word(beyond.to_word()), kept);
    }
}
