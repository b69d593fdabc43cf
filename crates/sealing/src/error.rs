//! Errors while values are decrypted.

use lazaret_core::store::{Certainty, ErrorKind, StoreError};

use crate::content::Unreadable;
use crate::key_ring::KeyError;

/// A value was not decrypted.
#[derive(Debug)]
pub(crate) enum NotOpened {
    /// It was changed, belongs elsewhere, or needs a key that is not there.
    Unreadable(Unreadable),
    /// The data keys could not be read.
    Keys(KeyError),
}

impl NotOpened {
    /// The error of a call of a store.
    pub(crate) fn during(self, operation: &'static str, certainty: Certainty) -> StoreError {
        let (kind, context) = match &self {
            // Another instance encrypts under a key that this process does not have.
            Self::Unreadable(unreadable) if unreadable.needs_key() => {
                (ErrorKind::Unavailable, unreadable.to_string())
            }
            Self::Unreadable(unreadable) => (ErrorKind::Corrupt, unreadable.to_string()),
            Self::Keys(KeyError::Store(error)) => (error.kind(), format!("data keys: {}", error.context())),
            Self::Keys(error) => (ErrorKind::Unavailable, error.to_string()),
        };
        match certainty {
            Certainty::NotDone => StoreError::not_done(kind, operation, context),
            Certainty::MaybeDone => StoreError::maybe(kind, operation, context),
        }
    }
}
