//! The error for a text that does not match its format.

use crate::code::Code;

/// Describes why a text does not match its format. The message omits the text, which may be a secret.
pub(crate) struct FormatError {
    pub(crate) code: Code,
    pub(crate) why: String,
    pub(crate) hint: Option<String>,
}

/// Creates an error. An empty hint means no hint.
pub(crate) fn bad(code: Code, why: impl Into<String>, hint: &str) -> FormatError {
    let hint = (!hint.is_empty()).then(|| hint.to_owned());
    FormatError { code, why: why.into(), hint }
}
