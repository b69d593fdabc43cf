//! Cursors: opaque to clients, and bound to their list.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use lazaret_api::{Code, Problem};

use crate::api_error::Result;

/// The longest accepted cursor.
const MAX_BYTES: usize = 4096;

/// The largest number of a list.
const MAX_NUMBER: u64 = i64::MAX.unsigned_abs();

/// Encodes the cursor of the next page.
pub(crate) fn write(list: &str, inner: &str) -> String {
    URL_SAFE_NO_PAD.encode(format!("1 {list} {inner}"))
}

/// Decodes a cursor of this list.
pub(crate) fn read(list: &str, cursor: Option<&str>) -> Result<Option<String>> {
    let Some(cursor) = cursor else { return Ok(None) };
    let invalid = || {
        Problem::new(Code::InvalidCursor).at("after").with_hint("pass the next value of the previous page")
    };
    let bytes =
        Some(cursor).filter(|cursor| cursor.len() <= MAX_BYTES).map(|cursor| URL_SAFE_NO_PAD.decode(cursor));
    let text = bytes.and_then(std::result::Result::ok).and_then(|bytes| String::from_utf8(bytes).ok());
    let inner =
        text.as_deref().and_then(|text| text.strip_prefix("1 ")?.strip_prefix(list)?.strip_prefix(' '));
    Ok(Some(inner.map(str::to_owned).ok_or_else(invalid)?))
}

/// Decodes a cursor of a list that is paged by number.
pub(crate) fn read_number(list: &str, cursor: Option<&str>) -> Result<Option<u64>> {
    let Some(inner) = read(list, cursor)? else { return Ok(None) };
    // Stores have no larger numbers, and would take one for their last.
    let number = inner.parse::<u64>().ok().filter(|number| *number <= MAX_NUMBER);
    Ok(Some(number.ok_or_else(|| Problem::new(Code::InvalidCursor).at("after"))?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_round_trips_for_its_own_list_only() {
        let cursor = write("letters", "a b/ü:1");
        assert_eq!(read("letters", Some(&cursor)).unwrap().as_deref(), Some("a b/ü:1"));
        assert!(read("letters", None).unwrap().is_none());
        for list in ["groups", "letter", "lettersx"] {
            assert!(read(list, Some(&cursor)).is_err(), "{list}");
        }
        for wrong in ["", "!", "MSA", &"A".repeat(10_000)] {
            assert!(read("letters", Some(wrong)).is_err(), "{wrong}");
        }
        assert_eq!(read_number("ops", Some(&write("ops", "7"))).unwrap(), Some(7));
        for wrong in ["x", "-1", "9223372036854775808", "18446744073709551615"] {
            assert!(read_number("ops", Some(&write("ops", wrong))).is_err(), "{wrong}");
        }
    }
}
