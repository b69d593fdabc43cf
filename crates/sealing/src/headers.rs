//! The bytes of headers.

use std::sync::Arc;

use bytes::Bytes;
use lazaret_core::Headers;

/// The length that marks a null value.
const NULL: u32 = u32::MAX;

/// Writes headers: name and value of each, with their lengths in front.
pub(crate) fn encode(headers: &Headers) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(headers.byte_size() + 8 * headers.len());
    for (name, value) in headers.iter_nullable() {
        put(&mut bytes, name.as_bytes());
        match value {
            Some(value) => put(&mut bytes, value),
            None => bytes.extend_from_slice(&NULL.to_be_bytes()),
        }
    }
    bytes
}

fn put(into: &mut Vec<u8>, part: &[u8]) {
    let length = u32::try_from(part.len()).expect("a header is shorter than 4 GiB");
    into.extend_from_slice(&length.to_be_bytes());
    into.extend_from_slice(part);
}

/// Reads headers; `None` if the bytes are none.
pub(crate) fn decode(mut bytes: &[u8]) -> Option<Headers> {
    let mut headers = Headers::new();
    while !bytes.is_empty() {
        let name: Arc<str> = std::str::from_utf8(take(&mut bytes)??).ok()?.into();
        match take(&mut bytes)? {
            Some(value) => headers.push(name, Bytes::copy_from_slice(value)),
            None => headers.push_null(name),
        }
    }
    Some(headers)
}

/// Takes one part; the inner `None` is a null value.
fn take<'a>(bytes: &mut &'a [u8]) -> Option<Option<&'a [u8]>> {
    let (length, rest) = bytes.split_first_chunk::<4>()?;
    let length = u32::from_be_bytes(*length);
    if length == NULL {
        *bytes = rest;
        return Some(None);
    }
    let (part, rest) = rest.split_at_checked(usize::try_from(length).ok()?)?;
    *bytes = rest;
    Some(Some(part))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_come_back_as_they_were() {
        // I5
        let mut headers = Headers::new();
        assert_eq!(decode(&encode(&headers)).unwrap(), headers);
        headers.push("", "");
        headers.push("binary", (0..=255).collect::<Vec<u8>>());
        headers.push_null("again");
        headers.push("again", "2");
        let bytes = encode(&headers);
        assert_eq!(decode(&bytes).unwrap(), headers);
        for end in [1, 5, bytes.len() - 1] {
            assert!(decode(&bytes[..end]).is_none(), "cut at {end}");
        }
    }
}
