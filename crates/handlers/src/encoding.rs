//! Encodes bytes for headers and variables losslessly, with percent-encoding.

use std::borrow::Cow;

/// Returns `true` if a byte is allowed in a CloudEvents header: printable ASCII except space, quote and
/// percent. This is the rule of the HTTP binding, so every CloudEvents library can decode the value.
pub(crate) const fn is_attribute_byte(byte: u8) -> bool {
    matches!(byte, 0x21..=0x7e) && !matches!(byte, b'"' | b'%')
}

/// Returns `true` if a byte is allowed in another header: printable ASCII except percent.
pub(crate) const fn is_value_byte(byte: u8) -> bool {
    matches!(byte, 0x20..=0x7e) && byte != b'%'
}

/// Returns `true` if a byte is allowed in a header name. Percent marks encoded bytes.
pub(crate) const fn is_name_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric()
        || matches!(byte, b'!' | b'#' | b'$' | b'&' | b'\'' | b'*' | b'+' | b'-' | b'.' | b'^')
        || matches!(byte, b'_' | b'`' | b'|' | b'~')
}

/// Encodes all bytes for which `passes` returns `false` as `%` and two hexadecimal digits. Decoding
/// restores the bytes.
pub(crate) fn percent(bytes: &[u8], passes: fn(u8) -> bool) -> Cow<'_, [u8]> {
    let Some(first) = bytes.iter().position(|&byte| !passes(byte)) else {
        return Cow::Borrowed(bytes);
    };
    let mut encoded = Vec::with_capacity(bytes.len() + 16);
    encoded.extend_from_slice(&bytes[..first]);
    for &byte in &bytes[first..] {
        if passes(byte) {
            encoded.push(byte);
        } else {
            push_encoded(&mut encoded, byte);
        }
    }
    Cow::Owned(encoded)
}

/// Encodes a header value like [`percent`]. Spaces at both ends are also encoded, because proxies trim
/// them.
pub(crate) fn value(bytes: &[u8]) -> Cow<'_, [u8]> {
    let edge = |byte: Option<&u8>| byte == Some(&b' ');
    if !edge(bytes.first()) && !edge(bytes.last()) {
        return percent(bytes, is_value_byte);
    }
    let leading = bytes.iter().take_while(|&&byte| byte == b' ').count();
    let trailing = bytes[leading..].iter().rev().take_while(|&&byte| byte == b' ').count();
    let middle = &bytes[leading..bytes.len() - trailing];
    let mut encoded = Vec::with_capacity(bytes.len() + 16);
    (0..leading).for_each(|_| push_encoded(&mut encoded, b' '));
    encoded.extend_from_slice(&percent(middle, is_value_byte));
    (0..trailing).for_each(|_| push_encoded(&mut encoded, b' '));
    Cow::Owned(encoded)
}

fn push_encoded(to: &mut Vec<u8>, byte: u8) {
    const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
    to.extend([b'%', DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]]);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decoded(mut encoded: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        while let Some((&first, rest)) = encoded.split_first() {
            encoded = rest;
            if first == b'%' {
                let digits = std::str::from_utf8(&rest[..2]).unwrap();
                bytes.push(u8::from_str_radix(digits, 16).unwrap());
                encoded = &rest[2..];
            } else {
                bytes.push(first);
            }
        }
        bytes
    }

    #[test]
    fn encoding_is_lossless_and_emits_only_allowed_bytes() {
        // I5
        let all: Vec<u8> = (0..=255).collect();
        for passes in [is_attribute_byte, is_value_byte, is_name_byte] {
            let encoded = percent(&all, passes);
            assert_eq!(decoded(&encoded), all);
            assert!(encoded.iter().all(|&byte| passes(byte) || byte == b'%'));
        }
        assert_eq!(decoded(&value(&all)), all);
    }

    #[test]
    fn allowed_bytes_are_unchanged() {
        assert_eq!(*percent(b"order-7/\xc3", is_attribute_byte), *b"order-7/%C3");
        assert!(matches!(percent(b"order-7", is_attribute_byte), Cow::Borrowed(_)));
        assert_eq!(*percent(b"say \"50%\"", is_attribute_byte), *b"say%20%2250%25%22");
        assert_eq!(*value(b"say \"50%\""), *b"say \"50%25\"");
    }

    #[test]
    fn spaces_at_the_ends_are_kept() {
        for (raw, expected) in
            [(" a b ", "%20a b%20"), ("  ", "%20%20"), (" ", "%20"), ("a ", "a%20"), ("", "")]
        {
            assert_eq!(*value(raw.as_bytes()), *expected.as_bytes(), "{raw:?}");
        }
    }
}
