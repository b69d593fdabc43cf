//! How a record of the redo log begins, and how one that is not whole is known.

use super::Mark;

/// The way in which records are written. A log with newer records that count is refused.
///
/// 1 knows hand-offs and notes, 2 posts to an inbox as well.
pub(super) const VERSION: u32 = 2;
const MAGIC: [u8; 8] = *b"LZRTREDO";
/// Magic, version, length, database, generation, number, checksum.
pub(super) const HEADER_BYTES: usize = 8 + 4 + 4 + 16 + 8 + 4 + 8;
const CHECKSUM_AT: usize = HEADER_BYTES - 8;

/// What stands before a record. The first fields stay where they are in every version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) version: u32,
    pub(super) length: u32,
    pub(super) mark: Mark,
    pub(super) number: u32,
    checksum: u64,
}

impl Header {
    pub(super) fn new(mark: Mark, number: u32, length: u32) -> Self {
        Self { version: VERSION, length, mark, number, checksum: 0 }
    }

    pub(super) fn parse(bytes: &[u8; HEADER_BYTES]) -> Option<Self> {
        let mut rest = bytes.strip_prefix(&MAGIC)?;
        Some(Self {
            version: u32::from_le_bytes(take(&mut rest)?),
            length: u32::from_le_bytes(take(&mut rest)?),
            mark: Mark { id: take(&mut rest)?, generation: i64::from_le_bytes(take(&mut rest)?) },
            number: u32::from_le_bytes(take(&mut rest)?),
            checksum: u64::from_le_bytes(take(&mut rest)?),
        })
    }

    /// The header of a record as bytes, with its checksum.
    pub(super) fn bytes(self, record: &[u8]) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        let fields: [&[u8]; 6] = [
            &MAGIC,
            &self.version.to_le_bytes(),
            &self.length.to_le_bytes(),
            &self.mark.id,
            &self.mark.generation.to_le_bytes(),
            &self.number.to_le_bytes(),
        ];
        let mut at = 0;
        for field in fields {
            bytes[at..at + field.len()].copy_from_slice(field);
            at += field.len();
        }
        let sum = checksum(&bytes[..CHECKSUM_AT], record);
        bytes[CHECKSUM_AT..].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    /// Whether the record behind this header is the one that was written.
    pub(super) fn fits(self, record: &[u8]) -> bool {
        self.bytes(record)[CHECKSUM_AT..] == self.checksum.to_le_bytes()
    }
}

fn take<const N: usize>(bytes: &mut &[u8]) -> Option<[u8; N]> {
    let (taken, rest) = bytes.split_first_chunk()?;
    *bytes = rest;
    Some(*taken)
}

/// A number that changes with every byte. It finds torn writes, not people with bad intentions.
fn checksum(header: &[u8], record: &[u8]) -> u64 {
    /// Odd, with its bits well mixed (the golden ratio).
    const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
    let mix = |sum: u64, word: u64| {
        let mixed = (sum ^ word).wrapping_mul(FACTOR);
        mixed ^ (mixed >> 29)
    };
    let of = |mut sum: u64, bytes: &[u8]| {
        let (words, rest) = bytes.as_chunks::<8>();
        for word in words {
            sum = mix(sum, u64::from_le_bytes(*word));
        }
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        mix(mix(sum, u64::from_le_bytes(last)), bytes.len() as u64)
    };
    of(of(FACTOR, header), record)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MARK: Mark = Mark { id: [7; 16], generation: 3 };

    #[test]
    fn a_record_with_any_other_bit_does_not_fit() {
        let record: Vec<u8> = (0..77).collect();
        let bytes = Header::new(MARK, 5, 77).bytes(&record);
        let header = Header::parse(&bytes).unwrap();
        assert_eq!((header.mark, header.number, header.length, header.version), (MARK, 5, 77, VERSION));
        assert!(header.fits(&record));
        for bit in 0..record.len() * 8 {
            let mut other = record.clone();
            other[bit / 8] ^= 1 << (bit % 8);
            assert!(!header.fits(&other), "bit {bit}");
        }
        for bit in 0..bytes.len() * 8 {
            let mut other = bytes;
            other[bit / 8] ^= 1 << (bit % 8);
            assert!(!Header::parse(&other).is_some_and(|header| header.fits(&record)), "bit {bit}");
        }
        assert!(!header.fits(&record[..76]));
        assert!(!header.fits(&[&record[..], &[0]].concat()));
    }
}
