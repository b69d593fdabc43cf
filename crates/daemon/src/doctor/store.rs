//! Checks that the store is usable.

use lazaret_config::{Capability, StoreLocation};

use super::finding::Finding;
#[cfg(feature = "sqlite")]
use super::{disk, finding::Health};
use crate::assemble::store_capabilities;

/// The advice where a check needs a value of the store, and cannot read it.
pub(super) const UNREADABLE: &str = "correct what the findings about `store` name, and repeat the check";

/// Checks the store, without creating or migrating it.
pub(super) async fn check(at: &StoreLocation) -> Vec<Finding> {
    let Some(capabilities) = store_capabilities(at) else {
        let detail = format!("this build does not support the store `{}`", at.kind());
        return vec![Finding::fail("store", detail, Capability::OTHER_BUILD)];
    };
    let mut found = match at {
        #[cfg(feature = "sqlite")]
        StoreLocation::Sqlite(path) => sqlite(std::path::Path::new(path)).await,
        #[cfg(feature = "mongodb")]
        StoreLocation::Mongodb(uri) => super::mongodb::check_store(uri).await,
        #[cfg(feature = "postgres")]
        StoreLocation::Postgres(dsn) => super::postgres::check_store(dsn).await,
        _ => Vec::new(),
    };
    if !capabilities.durable {
        let detail =
            format!("the store `{}` is not durable: its content is lost when the process exits", at.kind());
        found.push(Finding::warn("store", detail, "use `sqlite:PATH` for durable letters and positions"));
    }
    found
}

/// A value of the store; `None` if the store or the value does not exist yet.
///
/// # Errors
/// Why the store cannot be read.
pub(super) async fn stored_value(
    at: &StoreLocation,
    (space, name): (&str, &str),
) -> Result<Option<Vec<u8>>, String> {
    let _ = (space, name);
    match at {
        #[cfg(feature = "sqlite")]
        StoreLocation::Sqlite(path) if std::path::Path::new(path).exists() => {
            let (path, space, name) = (path.clone(), space.to_owned(), name.to_owned());
            let read =
                tokio::task::spawn_blocking(move || lazaret_store_sqlite::stored_value(path, &space, &name));
            let read = read.await.map_err(|error| error.to_string())?;
            read.map_err(|error| error.to_string())
        }
        #[cfg(feature = "postgres")]
        StoreLocation::Postgres(dsn) => {
            let timeout = super::finding::PROBE_TIMEOUT.saturating_mul(3);
            let read = lazaret_store_postgres::stored_value(dsn, space, name, timeout).await;
            read.map_err(|error| error.context().to_owned())
        }
        #[cfg(feature = "mongodb")]
        StoreLocation::Mongodb(uri) => super::mongodb::stored_value(uri, (space, name)).await,
        _ => Ok(None),
    }
}

#[cfg(feature = "sqlite")]
async fn sqlite(path: &std::path::Path) -> Vec<Finding> {
    let folder = disk::of_file(path);
    // Log files are created beside the file, so the directory matters even if the file exists.
    let beside = disk::folder("store", &folder, disk::MissingFolder::Fails);
    let store = if path.exists() && beside.health == Health::Ok { file(path).await } else { beside };
    vec![store, disk::free_space("disk", &folder)]
}

/// Checks the file without a change: a daemon may be using it.
#[cfg(feature = "sqlite")]
async fn file(path: &std::path::Path) -> Finding {
    use lazaret_store_sqlite::{FORMAT_VERSION, format_version};
    use rustix::fs::{Access, access};
    let shown = path.display();
    if let Err(error) = access(path, Access::READ_OK | Access::WRITE_OK) {
        let advice = "allow the user of the daemon to read and write it";
        return Finding::fail("store", format!("{shown} is not writable: {error}"), advice);
    }
    let file = path.to_owned();
    let version = tokio::task::spawn_blocking(move || format_version(file)).await;
    match version {
        Ok(Ok(FORMAT_VERSION)) if is_from_the_future(path) => {
            let detail = format!("{shown} has a modification time in the future");
            Finding::warn(
                "store",
                detail,
                "check the clock: it went back, and retries wait until it catches up",
            )
        }
        Ok(Ok(FORMAT_VERSION)) => Finding::ok("store", format!("{shown} is usable, format {FORMAT_VERSION}")),
        Ok(Ok(older)) => {
            let detail =
                format!("{shown} has format {older}; the next start migrates it to {FORMAT_VERSION}");
            Finding::warn("store", detail, "back it up: older versions cannot read the new format")
        }
        Ok(Err(error)) => {
            let advice = "set the right file, use the version of Lazaret that wrote it, or restore a backup";
            Finding::fail("store", error.to_string(), advice)
        }
        Err(error) => Finding::fail("store", format!("{shown}: {error}"), "report this bug"),
    }
}

#[cfg(feature = "sqlite")]
fn is_from_the_future(path: &std::path::Path) -> bool {
    /// The tolerance for inexact clocks of file systems.
    const SLACK: std::time::Duration = std::time::Duration::from_secs(60);
    let written = path.metadata().and_then(|metadata| metadata.modified());
    written.is_ok_and(|written| written > std::time::SystemTime::now() + SLACK)
}

#[cfg(all(test, feature = "sqlite"))]
mod tests {
    use std::time::{Duration, SystemTime};

    use lazaret_store_sqlite::{Options, SqliteStore};

    use super::*;

    #[tokio::test]
    async fn a_store_in_a_missing_directory_fails() {
        let here = tempfile::tempdir().unwrap();
        let path = here.path().join("nope/dir/lazaret.db");
        assert!(SqliteStore::open(&path, Options::default()).is_err(), "the check must fail as well");
        let found = sqlite(&path).await;
        assert_eq!(found[0].health, Health::Fail, "{}", found[0]);
    }

    #[tokio::test]
    async fn a_modification_time_in_the_future_is_a_warning() {
        let here = tempfile::tempdir().unwrap();
        let path = here.path().join("lazaret.db");
        // Closed, not dropped: a store that closes itself in the background writes to the file later.
        SqliteStore::open(&path, Options::default()).unwrap().close().await.unwrap();
        assert_eq!(file(&path).await.health, Health::Ok);
        let later = SystemTime::now() + Duration::from_secs(3600);
        std::fs::File::options().append(true).open(&path).unwrap().set_modified(later).unwrap();
        assert_eq!(file(&path).await.health, Health::Warn);
    }
}
