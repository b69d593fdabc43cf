//! Parses the values of failure headers: text, decimal numbers, Java's big-endian numbers, and times.
//!
//! Nothing here panics, whatever the bytes. A value that cannot be parsed is omitted with a warning.

use bytes::Bytes;
use lazaret_core::letter::CONTEXT_VALUE_LIMIT;
use lazaret_core::{Headers, Timestamp};

use crate::java::truncate;

/// Reads the failure headers of one record, and collects warnings.
pub(super) struct HeaderReader<'a> {
    headers: &'a Headers,
    warnings: Vec<String>,
}

impl<'a> HeaderReader<'a> {
    pub(super) fn new(headers: &'a Headers) -> Self {
        Self { headers, warnings: Vec::new() }
    }

    pub(super) fn into_warnings(self) -> Vec<String> {
        self.warnings
    }

    pub(super) fn warn(&mut self, warning: impl Into<String>) {
        self.warnings.push(warning.into());
    }

    /// Returns the first non-null header with one of these names, in record order.
    pub(super) fn first(&self, names: &[&str]) -> Option<(&'a str, &'a Bytes)> {
        self.headers.iter_nullable().find_map(|(name, value)| names.contains(&name).then_some((name, value?)))
    }

    /// Returns the last non-null header with one of these names, in record order.
    pub(super) fn last(&self, names: &[&str]) -> Option<(&'a str, &'a Bytes)> {
        let named = self.headers.iter_nullable().filter_map(|(name, value)| Some((name, value?)));
        named.filter(|(name, _)| names.contains(name)).last()
    }

    /// Returns `true` if there is a header with one of these names, even if it is null.
    pub(super) fn has(&self, names: &[&str]) -> bool {
        self.headers.iter_nullable().any(|(name, _)| names.contains(&name))
    }

    /// Returns a value as text. Bytes that are not UTF-8 are replaced, with a warning.
    pub(super) fn text(&mut self, header: Option<(&'a str, &'a Bytes)>) -> Option<String> {
        let (name, value) = header?;
        let text = String::from_utf8_lossy(value);
        if matches!(text, std::borrow::Cow::Owned(_)) {
            self.warn(format!("{name} is not UTF-8"));
        }
        Some(text.into_owned())
    }

    /// Parses a value. A value that does not parse is omitted with a warning.
    pub(super) fn read<T>(
        &mut self,
        header: Option<(&'a str, &'a Bytes)>,
        parse: impl FnOnce(&[u8]) -> Option<T>,
    ) -> Option<T> {
        let (name, value) = header?;
        let parsed = parse(value);
        if parsed.is_none() {
            self.warn(format!("{name} cannot be read: {}", hex(value)));
        }
        parsed
    }
}

/// Parses a decimal number.
pub(super) fn decimal(value: &[u8]) -> Option<i64> {
    let is_decimal = !value.is_empty() && value.iter().all(u8::is_ascii_digit);
    is_decimal.then(|| std::str::from_utf8(value).ok()?.parse().ok()).flatten()
}

/// Parses a number as Java's `ByteBuffer` writes it: 4 or 8 bytes in big-endian order. Also accepts
/// decimal digits, which other writers use. No partition, offset or time is so large that its bytes look
/// like text.
pub(super) fn number(value: &[u8]) -> Option<i64> {
    if let Some(number) = decimal(value) {
        return Some(number);
    }
    if value.iter().all(|byte| (b' '..=b'~').contains(byte)) {
        return None;
    }
    match *value {
        [a, b, c, d] => Some(i64::from(i32::from_be_bytes([a, b, c, d]))),
        [a, b, c, d, e, f, g, h] => Some(i64::from_be_bytes([a, b, c, d, e, f, g, h])),
        _ => None,
    }
}

/// Parses a number as Java's `BigInteger.toByteArray` writes it: 1 to 8 bytes, big-endian, signed.
pub(super) fn big_integer(value: &[u8]) -> Option<i64> {
    if !(1..=8).contains(&value.len()) {
        return None;
    }
    let sign = if value[0] & 0x80 == 0 { 0 } else { -1 };
    Some(value.iter().fold(sign, |number: i64, byte| number << 8 | i64::from(*byte)))
}

/// Parses a partition, which is not negative.
pub(super) fn partition(value: &[u8]) -> Option<u32> {
    number(value).and_then(|n| i32::try_from(n).ok()).and_then(|n| u32::try_from(n).ok())
}

/// Parses an offset, which is not negative.
pub(super) fn offset(value: &[u8]) -> Option<u64> {
    number(value).and_then(|n| u64::try_from(n).ok())
}

/// Converts milliseconds since 1970, which are not negative.
pub(super) fn millis(number: i64) -> Option<Timestamp> {
    Timestamp::from_millisecond(number).ok().filter(|_| number >= 0)
}

/// Parses a time: milliseconds as a number, or RFC 3339.
pub(super) fn time(value: &[u8]) -> Option<Timestamp> {
    number(value).and_then(millis).or_else(|| std::str::from_utf8(value).ok()?.parse().ok())
}

/// Formats a header for display: as text if it is printable, as a number if it can be one, otherwise as
/// hexadecimal digits after `0x`.
pub(super) fn display(value: Option<&Bytes>) -> String {
    let Some(value) = value else { return "(null)".to_owned() };
    match std::str::from_utf8(value) {
        Ok(text) if !text.chars().any(|c| c.is_control() && !c.is_whitespace()) => {
            truncate(text, CONTEXT_VALUE_LIMIT).to_owned()
        }
        _ => big_integer(value).map_or_else(|| hex(value), |number| number.to_string()),
    }
}

/// Formats bytes as hexadecimal digits after `0x`, up to a limit.
fn hex(value: &[u8]) -> String {
    let shown = &value[..value.len().min(CONTEXT_VALUE_LIMIT / 8)];
    let digits: String = shown.iter().map(|byte| format!("{byte:02x}")).collect();
    let more = if shown.len() < value.len() { "…" } else { "" };
    format!("0x{digits}{more}")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn numbers_are_read_as_java_and_others_write_them() {
        assert_eq!(number(&3_i32.to_be_bytes()), Some(3));
        assert_eq!(number(&41_i64.to_be_bytes()), Some(41));
        assert_eq!(number(&(-1_i64).to_be_bytes()), Some(-1));
        assert_eq!(
            (number(b"1234"), number(b"12345678"), number(b"7")),
            (Some(1234), Some(12_345_678), Some(7))
        );
        for wrong in
            [&b""[..], b"\x01", b"\x01\x02\x03", b"-7", b"7 ", b"none", b"no value", b"99999999999999999999"]
        {
            assert_eq!(number(wrong), None, "{wrong:?}");
        }
        assert_eq!((partition(b"-1"), partition(&(-1_i32).to_be_bytes())), (None, None));
        assert_eq!((partition(b"4294967295"), offset(&(-1_i64).to_be_bytes())), (None, None));
    }

    #[test]
    fn javas_big_integers_are_as_short_as_they_can_be() {
        // The result of BigInteger.valueOf(1_700_000_000_123).toByteArray().
        assert_eq!(big_integer(&[0x01, 0x8b, 0xcf, 0xe5, 0x68, 0x7b]), Some(1_700_000_000_123));
        assert_eq!(
            (big_integer(&[0]), big_integer(&[0, 0x80]), big_integer(&[0x80])),
            (Some(0), Some(128), Some(-128))
        );
        assert_eq!(big_integer(&i64::MIN.to_be_bytes()), Some(i64::MIN));
        assert_eq!((big_integer(&[]), big_integer(&[0; 9])), (None, None));
    }

    #[test]
    fn times_are_numbers_or_text() {
        let expected = Some(Timestamp::from_millisecond(1_500).unwrap());
        for value in [&1_500_i64.to_be_bytes()[..], b"1500", b"1970-01-01T00:00:01.5Z"] {
            assert_eq!(time(value), expected);
        }
        assert_eq!(
            (time(b"soon"), time(&i64::MAX.to_be_bytes()), time(&(-1_i64).to_be_bytes())),
            (None, None, None)
        );
    }

    proptest! {
        #[test]
        fn no_bytes_are_too_much(value in proptest::collection::vec(any::<u8>(), 0..40)) {
            // I10
            number(&value);
            big_integer(&value);
            partition(&value);
            offset(&value);
            time(&value);
            display(Some(&value.into()));
        }

        #[test]
        fn what_java_writes_is_read(n in any::<i64>()) {
            let bytes = n.to_be_bytes();
            let skip = (0..7).take_while(|&i| {
                (bytes[i] == 0 && bytes[i + 1] < 0x80) || (bytes[i] == 0xff && bytes[i + 1] >= 0x80)
            }).count();
            prop_assert_eq!(big_integer(&bytes[skip..]), Some(n));
        }
    }
}
