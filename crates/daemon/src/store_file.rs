//! Implements `lazaret backup` and `lazaret restore`: copies of the embedded store.

use std::path::{Path, PathBuf};

pub use lazaret_store_sqlite::Restored;
use lazaret_store_sqlite::{RestoreOptions, backup as write_backup, restore as put_back};

use crate::error::Error;

/// Writes a copy of the store to a new file. A daemon may be using the store.
///
/// # Errors
/// When there is no store, the file exists, or it cannot be written.
pub async fn backup(store: &Path, to: &Path) -> Result<(), Error> {
    Ok(write_backup(store, to).await?)
}

/// Puts a backup in the place of a store that no daemon uses.
///
/// # Errors
/// When there is a store and `replace` is not set, it is in use, or the backup is not a complete store.
pub async fn restore(backup: PathBuf, store: PathBuf, replace: bool) -> Result<Restored, Error> {
    let options = RestoreOptions { replace };
    let restored = tokio::task::spawn_blocking(move || put_back(backup, store, options));
    Ok(restored.await.map_err(|error| Error::Panicked(error.to_string()))??)
}
