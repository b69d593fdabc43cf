//! The layout of the file.
//!
//! | words | what |
//! |---|---|
//! | 512 | header: magic, version, number of slots, generation, judged generation, unrecorded attempts in flight |
//! | 256 × 64 | marks: suspects and how often they were charged |
//! | slots × 64 | one running attempt each |
//!
//! A record (a mark or a slot) is 64 words: state, checksum, identity (2), offset, partition and
//! attempt, lengths, mark, then the texts, each at a fixed place. The upper quarter of the word with the
//! lengths is the incarnation of the partition; in files from before there were incarnations it is zero.
//! Words are in the machine's byte order. In a file from a machine with another byte order the magic
//! does not match.

use std::sync::atomic::{AtomicU64, Ordering, fence};

use lazaret_core::recorder::Identity;

/// The first word of every file.
pub(crate) const MAGIC: u64 = u64::from_le_bytes(*b"LAZFLREC");
/// The version of the layout.
pub(crate) const VERSION: u64 = 1;

/// Words in the header.
pub(crate) const HEADER: usize = 512;
/// Words in a record.
pub(crate) const RECORD: usize = 64;
/// The number of suspects that are kept across processes.
pub(crate) const MARKS: usize = 256;

/// The places of words in the header.
pub(crate) mod head {
    pub(crate) const MAGIC: usize = 0;
    pub(crate) const VERSION: usize = 1;
    pub(crate) const SLOTS: usize = 2;
    /// The generation of the process that writes slots; incremented by each open.
    pub(crate) const GENERATION: usize = 3;
    /// The last generation whose slots were recovered.
    pub(crate) const JUDGED: usize = 4;
    /// The number of attempts without a slot.
    pub(crate) const UNRECORDED: usize = 5;
}

/// Returns the number of words of a file.
pub(crate) const fn words_for(slots: u32) -> usize {
    HEADER + (MARKS + slots as usize) * RECORD
}

/// Returns the words of a mark.
pub(crate) fn mark_of(words: &[AtomicU64], index: usize) -> &[AtomicU64] {
    &words[HEADER + index * RECORD..][..RECORD]
}

/// Returns the words of a slot.
pub(crate) fn slot_of(words: &[AtomicU64], index: usize) -> &[AtomicU64] {
    &words[HEADER + (MARKS + index) * RECORD..][..RECORD]
}

/// The states of a record.
const FREE: u64 = 0;
const WRITING: u64 = 1;
const WRITTEN: u64 = 2;
/// Occupied, but without a running attempt.
const RESTING: u64 = 3;

/// The places of words in a record.
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

/// The highest incarnation that can be stored. A partition of a later incarnation is stored with this
/// one.
pub(crate) const MAX_INCARNATION: u32 = 0xffff;
/// The place of the incarnation in the word of the lengths.
const INCARNATION_SHIFT: u32 = 48;

/// The location and the maximum size of a text.
#[derive(Clone, Copy)]
struct Text {
    at: usize,
    bytes: usize,
}

/// The recorded attempt of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AttemptRecord<T> {
    pub(crate) identity: Identity,
    pub(crate) offset: u64,
    pub(crate) partition: u32,
    /// The incarnation of the partition; at most [`MAX_INCARNATION`].
    pub(crate) incarnation: u32,
    pub(crate) attempt: u32,
    pub(crate) queue: T,
    pub(crate) stream: T,
    pub(crate) id: T,
}

impl AttemptRecord<String> {
    /// Returns the same record with borrowed texts.
    pub(crate) fn as_strs(&self) -> AttemptRecord<&str> {
        let Self { identity, offset, partition, incarnation, attempt, queue, stream, id } = self;
        AttemptRecord {
            identity: *identity,
            offset: *offset,
            partition: *partition,
            incarnation: *incarnation,
            attempt: *attempt,
            queue,
            stream,
            id,
        }
    }
}

/// The content of a record.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// The record is empty or partially written: the attempt had not started.
    Nothing,
    /// The record of a message.
    Message(AttemptRecord<String>),
    /// The checksum is wrong, for example after a power loss.
    Corrupt,
}

/// The state of a suspect, in one word so that it changes atomically.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Mark {
    /// The last crashed generation in which the suspect was in flight.
    pub(crate) death: u32,
    /// The number of the attempt, at most 65 535.
    pub(crate) attempt: u32,
    /// `true` if it ran alone in that generation.
    pub(crate) alone: bool,
    /// The number of charges, at most 32 767.
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

/// Writes a free record. A crash during the write leaves an empty record.
pub(crate) fn write(record: &[AtomicU64], record_data: &AttemptRecord<&str>, mark: Mark) {
    record[STATE].store(WRITING, Ordering::Relaxed);
    // The stores below must not be reordered before the store above.
    fence(Ordering::Release);
    let mut sum = Checksum::default();
    let mut put = |at: usize, word: u64| {
        record[at].store(word, Ordering::Relaxed);
        sum.add(at, word);
    };
    put(IDENTITY, record_data.identity.0 as u64);
    put(IDENTITY + 1, (record_data.identity.0 >> 64) as u64);
    put(OFFSET, record_data.offset);
    put(PARTITION_ATTEMPT, u64::from(record_data.partition) << 32 | u64::from(record_data.attempt));
    let mut lengths = 0;
    for (text, value) in [(QUEUE, record_data.queue), (STREAM, record_data.stream), (ID, record_data.id)] {
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
    let incarnation = u64::from(record_data.incarnation.min(MAX_INCARNATION));
    put(LENGTHS, incarnation << INCARNATION_SHIFT | lengths);
    record[CHECKSUM].store(sum.finish(), Ordering::Relaxed);
    record[MARK].store(mark.to_word(), Ordering::Relaxed);
    record[STATE].store(WRITTEN, Ordering::Release);
}

/// Reads a record.
pub(crate) fn read(record: &[AtomicU64]) -> Found {
    match record[STATE].load(Ordering::Acquire) {
        FREE | WRITING | RESTING => Found::Nothing,
        WRITTEN => read_written(record).map_or(Found::Corrupt, Found::Message),
        _ => Found::Corrupt,
    }
}

fn read_written(record: &[AtomicU64]) -> Option<AttemptRecord<String>> {
    let mut sum = Checksum::default();
    let mut get = |at: usize| {
        let word = record[at].load(Ordering::Relaxed);
        sum.add(at, word);
        word
    };
    let identity = Identity(u128::from(get(IDENTITY)) | u128::from(get(IDENTITY + 1)) << 64);
    let offset = get(OFFSET);
    let partition_attempt = get(PARTITION_ATTEMPT);
    // Read first, but added to the checksum last.
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
    let incarnation = (lengths >> INCARNATION_SHIFT) as u32;
    let whole = || Identity::in_incarnation(&queue.as_str().into(), &id.as_str().into(), incarnation);
    let identity = if identity == Identity::NONE { whole() } else { identity };
    let (partition, attempt) = ((partition_attempt >> 32) as u32, partition_attempt as u32);
    Some(AttemptRecord { identity, offset, partition, incarnation, attempt, queue, stream, id })
}

/// Sets the checksum of a record from its content.
#[cfg(test)]
pub(crate) fn repair(record: &[AtomicU64]) {
    let mut sum = Checksum::default();
    let lengths = record[LENGTHS].load(Ordering::Relaxed);
    let texts = [(QUEUE, 32), (STREAM, 16), (ID, 0)].into_iter().flat_map(|(text, shift)| {
        let words = ((lengths >> shift & 0xffff) as usize).min(text.bytes).div_ceil(8);
        text.at..text.at + words
    });
    for at in (IDENTITY..=LENGTHS).chain(texts) {
        sum.add(at, record[at].load(Ordering::Relaxed));
    }
    record[CHECKSUM].store(sum.finish(), Ordering::Relaxed);
}

/// Frees a record. Returns `true` if it was occupied. Callers must not do this concurrently for the same
/// record.
pub(crate) fn clear(record: &[AtomicU64]) -> bool {
    // Not a swap, which would cost more than the rest of the function.
    let taken = matches!(record[STATE].load(Ordering::Relaxed), WRITTEN | RESTING);
    record[STATE].store(FREE, Ordering::Release);
    taken
}

/// Empties a record that stays with its owner.
pub(crate) fn rest(record: &[AtomicU64]) {
    record[STATE].store(RESTING, Ordering::Release);
}

/// Returns `true` if queue, id and incarnation are stored untruncated.
pub(crate) fn fits(record_data: &AttemptRecord<&str>) -> bool {
    let AttemptRecord { queue, id, incarnation, .. } = record_data;
    queue.len() <= QUEUE.bytes && id.len() <= ID.bytes && *incarnation < MAX_INCARNATION
}

/// Returns the mark in a record.
pub(crate) fn mark(record: &[AtomicU64]) -> Mark {
    Mark::from_word(record[MARK].load(Ordering::Acquire))
}

/// Changes the mark in a record atomically.
pub(crate) fn set_mark(record: &[AtomicU64], mark: Mark) {
    record[MARK].store(mark.to_word(), Ordering::Release);
}

/// A checksum that detects torn and foreign words. It is not a defence against attackers. The words do
/// not depend on each other, which makes it cheap. Each counts with a different odd factor, so no single
/// change goes undetected.
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

    fn record_data(id: &str) -> AttemptRecord<&str> {
        AttemptRecord {
            identity: Identity(u128::MAX - 5),
            offset: u64::MAX,
            partition: 7,
            incarnation: 2,
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
            write(&record, &record_data(id), Mark::default());
            let Found::Message(found) = read(&record) else { panic!("{id}") };
            assert_eq!(found.as_strs(), record_data(id));
        }
    }

    #[test]
    fn a_record_of_the_first_incarnation_is_one_of_earlier_versions() {
        let record = record();
        write(&record, &AttemptRecord { incarnation: 0, ..record_data("evt-1") }, Mark::default());
        // The lengths of three texts in the format from before there were incarnations.
        assert_eq!(record[LENGTHS].load(Ordering::Relaxed), 11 << 32 | 6 << 16 | 5);
        let Found::Message(found) = read(&record) else { panic!() };
        assert_eq!(found.incarnation, 0);
    }

    #[test]
    fn a_record_without_an_identity_has_that_of_its_incarnation() {
        for incarnation in [0, 1, MAX_INCARNATION - 1] {
            let data = AttemptRecord { identity: Identity::NONE, incarnation, ..record_data("evt-1") };
            assert!(fits(&data));
            let record = record();
            write(&record, &data, Mark::default());
            let Found::Message(found) = read(&record) else { panic!() };
            let identity = Identity::in_incarnation(&"orders/mail".into(), &"evt-1".into(), incarnation);
            assert_eq!((found.identity, found.incarnation), (identity, incarnation));
        }
        let beyond = AttemptRecord { incarnation: u32::MAX, ..record_data("evt-1") };
        assert!(!fits(&beyond));
        let record = record();
        write(&record, &beyond, Mark::default());
        let Found::Message(found) = read(&record) else { panic!() };
        assert_eq!((found.identity, found.incarnation), (beyond.identity, MAX_INCARNATION));
    }

    #[test]
    fn a_long_text_is_cut_between_characters() {
        let record = record();
        write(&record, &record_data(&format!("x{}", "é".repeat(200))), Mark::default());
        let Found::Message(found) = read(&record) else { panic!() };
        assert_eq!(found.id, format!("x{}", "é".repeat(99)));
        assert_eq!(found.queue, "orders/mail");
    }

    #[test]
    fn texts_do_not_run_into_each_other() {
        let record = record();
        let (queue, stream, id) = ("q".repeat(128), "s".repeat(120), "i".repeat(200));
        write(
            &record,
            &AttemptRecord { queue: &queue, stream: &stream, ..record_data(&id) },
            Mark::default(),
        );
        let Found::Message(found) = read(&record) else { panic!() };
        assert_eq!((found.queue, found.stream, found.id), (queue, stream, id));
    }

    #[test]
    fn a_flipped_bit_is_noticed() {
        for word in (1..7).chain([8, 24, 39]) {
            for bit in 0..64 {
                let record = record();
                write(&record, &record_data("evt-1"), Mark::default());
                record[word].fetch_xor(1 << bit, Ordering::Relaxed);
                assert_eq!(read(&record), Found::Corrupt, "word {word}, bit {bit}");
            }
        }
    }

    #[test]
    fn what_was_not_written_to_its_end_holds_nothing() {
        let record = record();
        write(&record, &record_data("evt-1"), Mark::default());
        record[STATE].store(WRITING, Ordering::Relaxed);
        assert_eq!(read(&record), Found::Nothing);
        assert!(!clear(&record));
        record[STATE].store(77, Ordering::Relaxed);
        assert_eq!(read(&record), Found::Corrupt);
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
