//! Parses the rule that assigns messages to sequences.

use super::error::{FormatError, bad};
use crate::code::Code;

/// The rule that assigns messages to sequences.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum SequenceRule {
    /// One sequence per key.
    Key,
    /// One sequence per value of this header.
    Header(String),
    /// One sequence per value at this JSON pointer into the payload.
    Json(String),
    /// One sequence per partition.
    Partition,
}

impl SequenceRule {
    pub(crate) fn parse(text: &str) -> Result<Self, FormatError> {
        let wrong = |why: &str, hint: &str| Err(bad(Code::InvalidSequence, why, hint));
        match text.split_once(':') {
            None if text == "key" => Ok(Self::Key),
            None if text == "partition" => Ok(Self::Partition),
            Some(("header", "")) => wrong("has no header name", "write `header:NAME`"),
            Some(("header", name)) => Ok(Self::Header(name.trim().to_owned())),
            Some(("json", pointer)) if pointer.starts_with('/') => Ok(Self::Json(pointer.to_owned())),
            Some(("json", pointer)) => {
                let hint = format!(
                    "start the JSON pointer with a slash: `json:/{}`",
                    pointer.trim_start_matches("$.").replace('.', "/")
                );
                wrong("is not a JSON pointer", &hint)
            }
            _ => {
                wrong("is not a sequence rule", "write `key`, `header:NAME`, `json:/pointer` or `partition`")
            }
        }
    }
}
