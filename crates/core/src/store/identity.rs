//! The identity of a store.

use bytes::Bytes;

use super::key_value::{KeyValue, update};
use super::{ErrorKind, Result, StoreError};

const PLACE: (&str, &str) = ("store", "id");

/// Returns the id of a store. The first caller sets it, to `new`; copies of the store, such as a restored backup, have the same.
///
/// # Errors
/// When the store cannot be read or written, or holds no text as its id.
pub async fn store_id<K: KeyValue + ?Sized>(store: &K, new: &str) -> Result<String> {
    let found = update(store, PLACE, |reading| match &reading.found {
        Some(found) => Ok((found.value.clone(), None)),
        None => Ok((Bytes::copy_from_slice(new.as_bytes()), Some(Bytes::copy_from_slice(new.as_bytes())))),
    });
    String::from_utf8(found.await?.into())
        .map_err(|error| StoreError::not_done(ErrorKind::Corrupt, "store_id", error.to_string()))
}
