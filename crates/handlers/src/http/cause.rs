//! Finds the root cause of an error, and tells if it is an invalid response.

use std::error::Error as StdError;
use std::io;

/// Returns the message of the root cause. The outer errors add no information.
pub(super) fn root_cause(error: &(dyn StdError + 'static)) -> String {
    let mut bottom = error;
    while let Some(source) = bottom.source() {
        bottom = source;
    }
    bottom.to_string()
}

/// Returns `true` if the peer sent something that is not HTTP. A closed or reset connection does not
/// count.
pub(super) fn is_invalid_response(error: &(dyn StdError + 'static)) -> bool {
    let mut next = Some(error);
    while let Some(cause) = next {
        let is_unparsable = cause.downcast_ref().is_some_and(hyper::Error::is_parse);
        // Violations that this side found in the peer's frames.
        let is_violation = cause.downcast_ref().is_some_and(h2::Error::is_library);
        // An invalid encoding of the body.
        let is_undecodable = cause.downcast_ref::<io::Error>().is_some_and(|error| {
            matches!(error.kind(), io::ErrorKind::InvalidInput | io::ErrorKind::InvalidData)
        });
        if is_unparsable || is_violation || is_undecodable {
            return true;
        }
        next = cause.source();
    }
    false
}
