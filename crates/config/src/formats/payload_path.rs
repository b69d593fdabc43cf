//! Parses paths into JSON payloads.

use lazaret_core::redaction::PayloadPath;

use super::error::{FormatError, bad};
use crate::code::Code;

/// Parses a path to values of a payload.
pub(crate) fn payload_path(text: &str) -> Result<PayloadPath, FormatError> {
    text.parse().map_err(|_| {
        let pointer = text.trim_start_matches("$.").replace("[*]", ".*").replace('.', "/");
        bad(
            Code::InvalidPattern,
            "is not a JSON pointer",
            &format!("start with a slash: `/{}`", pointer.trim_start_matches('/')),
        )
    })
}
