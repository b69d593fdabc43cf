//! The header of a redo log record, and the detection of incomplete records.

use super::Mark;

/// The version of the record encoding. A log with valid records of a newer version is refused.
///
/// Version 1 has hand-offs and notes, version 2 also posts to an inbox, version 3 also imports, version 4 also leases: claims, renewals,
/// releases, settlements (with or without the next letter of an operation) and the polls of operations.
pub(super) const VERSION: u32 = 4;
const MAGIC: [u8; 8] = *b"LZRTREDO";
/// Magic, version, length, database, generation, number, checksum.
pub(super) const HEADER_BYTES: usize = 8 + 4 + 4 + 16 + 8 + 4 + 8;
const CHECKSUM_AT: usize = HEADER_BYTES - 8;

/// The header of a record. The first fields keep their place in every version.
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

    /// Encodes the header of a record, with its checksum.
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

    /// `true` if the record behind this header is complete and unchanged.
    pub(super) fn is_intact(self, record: &[u8]) -> bool {
        self.bytes(record)[CHECKSUM_AT..] == self.checksum.to_le_bytes()
    }
}

fn take<const N: usize>(bytes: &mut &[u8]) -> Option<[u8; N]> {
    let (taken, rest) = bytes.split_first_chunk()?;
    *bytes = rest;
    Some(*taken)
}

/// A checksum over every byte. It detects torn writes, not tampering.
fn checksum(header: &[u8], record: &[u8]) -> u64 {
    /// Odd, with well-mixed bits (the golden ratio).
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
    fn a_record_with_a_flipped_bit_is_detected() {
        let record: Vec<u8> = (0..77).collect();
        let bytes = Header::new(MARK, 5, 77).bytes(&record);
        let header = Header::parse(&bytes).unwrap();
        assert_eq!((header.mark, header.number, header.length, header.version), (MARK, 5, 77, VERSION));
        assert!(header.is_intact(&record));
        for bit in 0..record.len() * 8 {
            let mut other = record.clone();
            other[bit / 8] ^= 1 << (bit % 8);
            assert!(!header.is_intact(&other), "bit {bit}");
        }
        for bit in 0..bytes.len() * 8 {
            let mut other = bytes;
            other[bit / 8] ^= 1 << (bit % 8);
            assert!(!Header::parse(&other).is_some_and(|header| header.is_intact(&record)), "bit {bit}");
        }
        assert!(!header.is_intact(&record[..76]));
        assert!(!header.is_intact(&[&record[..], &[0]].concat()));
    }
}
