//! Finds the root cause of an error.

use std::error::Error as StdError;

/// Returns the message of the root cause: the outer errors add nothing.
pub(super) fn root_cause(error: &(dyn StdError + 'static)) -> String {
    let mut bottom = error;
    while let Some(source) = bottom.source() {
        bottom = source;
    }
    bottom.to_string()
}
