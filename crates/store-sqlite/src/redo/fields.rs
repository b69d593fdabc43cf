//! Binary encoding of consecutive values: numbers of eight bytes, and texts and blobs with a length prefix.

use lazaret_core::message::PartitionNumber;

use crate::error::{Fault, Work};

/// Appends values to bytes.
pub(crate) mod put {
    use lazaret_core::message::PartitionNumber;

    pub(crate) fn number(into: &mut Vec<u8>, number: u64) {
        into.extend_from_slice(&number.to_le_bytes());
    }

    pub(crate) fn partition(into: &mut Vec<u8>, partition: PartitionNumber) {
        signed(into, partition.stored());
    }

    pub(crate) fn signed(into: &mut Vec<u8>, number: i64) {
        into.extend_from_slice(&number.to_le_bytes());
    }

    pub(crate) fn bytes(into: &mut Vec<u8>, bytes: &[u8]) {
        number(into, bytes.len() as u64);
        into.extend_from_slice(bytes);
    }

    pub(crate) fn text(into: &mut Vec<u8>, text: &str) {
        bytes(into, text.as_bytes());
    }

    pub(crate) fn option<T>(into: &mut Vec<u8>, value: Option<T>, some: impl FnOnce(&mut Vec<u8>, T)) {
        into.push(value.is_some().into());
        if let Some(value) = value {
            some(into, value);
        }
    }

    /// Appends bytes with a length prefix that is known only after they are written.
    pub(crate) fn sized(into: &mut Vec<u8>, write: impl FnOnce(&mut Vec<u8>)) {
        let start = into.len();
        number(into, 0);
        write(into);
        let length = (into.len() - start - 8) as u64;
        into[start..start + 8].copy_from_slice(&length.to_le_bytes());
    }
}

/// Reads values from the start of bytes.
pub(crate) struct Fields<'a> {
    rest: &'a [u8],
}

impl<'a> Fields<'a> {
    pub(crate) fn of(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    fn chunk<const N: usize>(&mut self) -> Work<[u8; N]> {
        let (chunk, rest) = self.rest.split_first_chunk().ok_or_else(corrupt)?;
        self.rest = rest;
        Ok(*chunk)
    }

    pub(crate) fn byte(&mut self) -> Work<u8> {
        self.chunk::<1>().map(|[byte]| byte)
    }

    pub(crate) fn number(&mut self) -> Work<u64> {
        self.chunk().map(u64::from_le_bytes)
    }

    pub(crate) fn partition(&mut self) -> Work<PartitionNumber> {
        PartitionNumber::from_stored(self.signed()?).ok_or_else(corrupt)
    }

    pub(crate) fn signed(&mut self) -> Work<i64> {
        self.chunk().map(i64::from_le_bytes)
    }

    /// A number that fits into four bytes.
    pub(crate) fn small(&mut self) -> Work<u32> {
        u32::try_from(self.number()?).map_err(|_| corrupt())
    }

    pub(crate) fn bytes(&mut self) -> Work<&'a [u8]> {
        let length = usize::try_from(self.number()?).map_err(|_| corrupt())?;
        let (bytes, rest) = self.rest.split_at_checked(length).ok_or_else(corrupt)?;
        self.rest = rest;
        Ok(bytes)
    }

    pub(crate) fn text(&mut self) -> Work<&'a str> {
        std::str::from_utf8(self.bytes()?).map_err(|_| corrupt())
    }

    pub(crate) fn option<T>(&mut self, some: impl FnOnce(&mut Self) -> Work<T>) -> Work<Option<T>> {
        match self.byte()? {
            0 => Ok(None),
            1 => some(self).map(Some),
            _ => Err(corrupt()),
        }
    }

    /// Values with their number as prefix.
    pub(crate) fn list<T>(&mut self, one: impl Fn(&mut Self) -> Work<T>) -> Work<Vec<T>> {
        let count = self.number()?;
        (0..count).map(|_| one(self)).collect()
    }

    /// The value, or an error for an unknown one.
    pub(crate) fn known<T>(&self, value: Option<T>) -> Work<T> {
        value.ok_or_else(corrupt)
    }
}

fn corrupt() -> Fault {
    Fault::Corrupt("failed to decode a complete record of the redo log".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_round_trip_and_truncated_bytes_are_detected() {
        let mut bytes = Vec::new();
        put::number(&mut bytes, u64::MAX);
        put::signed(&mut bytes, -7);
        put::text(&mut bytes, "ö");
        put::option(&mut bytes, None, put::number);
        put::option(&mut bytes, Some(&b""[..]), put::bytes);
        put::sized(&mut bytes, |into| put::signed(into, 1));
        let read = |bytes: &[u8]| -> Work<()> {
            let mut fields = Fields::of(bytes);
            assert_eq!((fields.number()?, fields.signed()?), (u64::MAX, -7));
            assert_eq!((fields.text()?, fields.option(Fields::number)?), ("ö", None));
            assert_eq!(fields.option(Fields::bytes)?, Some(&b""[..]));
            assert_eq!(Fields::of(fields.bytes()?).signed()?, 1);
            assert!(fields.is_empty());
            Ok(())
        };
        read(&bytes).unwrap();
        for end in 0..bytes.len() {
            assert!(matches!(read(&bytes[..end]), Err(Fault::Corrupt(_))), "cut at {end}");
        }
    }
}
