//! Validates names, header values and token hashes.

use super::error::{FormatError, bad};
use crate::code::Code;

/// Checks the name of a consumer or a token by the rules of the engine.
pub(crate) fn name(text: &str) -> Result<(), FormatError> {
    if text.len() > 200 || text.contains('/') || text.chars().any(char::is_control) {
        return Err(bad(
            Code::InvalidName,
            "is not a valid name",
            "use 1 to 200 characters, without slashes and control characters",
        ));
    }
    Ok(())
}

/// Checks the name of a collection by the rules of MongoDB.
pub(crate) fn collection(text: &str) -> Result<(), FormatError> {
    let is_valid = text.len() <= 200
        && !text.contains(['$', '\0'])
        && !text.starts_with(['.', ' '])
        && !text.starts_with("system.");
    if is_valid {
        return Ok(());
    }
    let hint = "use at most 200 bytes, without `$`, and not `system.` at the beginning";
    Err(bad(Code::InvalidName, "is not a valid name of a collection", hint))
}

/// Checks that a text consists only of letters, digits and the characters in `also`.
pub(crate) fn token(text: &str, also: &str, why: &str) -> Result<(), FormatError> {
    let fits = text.chars().all(|c| c.is_ascii_alphanumeric() || also.contains(c));
    if fits {
        Ok(())
    } else {
        Err(bad(Code::InvalidName, why, "use letters, digits, dots, dashes and underscores"))
    }
}

/// Checks a header value: one line without control characters.
pub(crate) fn header_value(text: &str) -> Result<(), FormatError> {
    if text.bytes().all(|byte| byte == b'\t' || !byte.is_ascii_control()) {
        return Ok(());
    }
    let hint = "write one line without control characters; a secret that was read from a file may end with a line break";
    Err(bad(Code::OutOfRange, "is not a valid header value", hint))
}

/// Checks the hash of a token.
pub(crate) fn hash(text: &str) -> Result<(), FormatError> {
    let digits = text.strip_prefix("sha256:");
    if digits.is_some_and(|digits| digits.len() == 64 && digits.bytes().all(|b| b.is_ascii_hexdigit())) {
        return Ok(());
    }
    Err(bad(
        Code::InvalidToken,
        "is not a token hash",
        "write `sha256:` and 64 hexadecimal digits; `lazaret token` creates one",
    ))
}
