//! Whether the store can be used.

use lazaret_config::StoreAt;

use super::Finding;
#[cfg(feature = "sqlite")]
use super::{Health, disk};

/// Looks at the store, without making it or changing its format.
pub(super) async fn examine(at: &StoreAt) -> Vec<Finding> {
    match at {
        StoreAt::Memory => {
            let advice = "use `sqlite:PATH` for letters and positions that last";
            vec![Finding::warn("store", "it is in memory: all is gone when the process ends", advice)]
        }
        #[cfg(feature = "sqlite")]
        StoreAt::Sqlite(path) => sqlite(std::path::Path::new(path)).await,
        other => {
            let seen = format!("this build does not have the store `{}`", other.kind());
            vec![Finding::fail("store", seen, "use a build that has it")]
        }
    }
}

#[cfg(feature = "sqlite")]
async fn sqlite(path: &std::path::Path) -> Vec<Finding> {
    let folder = disk::of_file(path);
    // Logs are made beside the file, so the folder matters even when the file is there.
    let beside = disk::folder("store", &folder, disk::Maker::Person);
    let store = if path.exists() && beside.health == Health::Ok { file(path).await } else { beside };
    vec![store, disk::room("disk", &folder)]
}

/// Reads the file, and changes nothing: a daemon may be working with it.
#[cfg(feature = "sqlite")]
async fn file(path: &std::path::Path) -> Finding {
    use lazaret_store_sqlite::{FORMAT_VERSION, format_version};
    use rustix::fs::{Access, access};
    let shown = path.display();
    if let Err(error) = access(path, Access::READ_OK | Access::WRITE_OK) {
        let advice = "let the user who runs Lazaret read and write it";
        return Finding::fail("store", format!("{shown} cannot be written to: {error}"), advice);
    }
    let looked_at = path.to_owned();
    let version = tokio::task::spawn_blocking(move || format_version(looked_at)).await;
    match version {
        Ok(Ok(FORMAT_VERSION)) if is_from_the_future(path) => {
            let seen = format!("{shown} was written to at a time that is still to come");
            Finding::warn("store", seen, "the clock went back: retries wait until it has caught up")
        }
        Ok(Ok(FORMAT_VERSION)) => {
            Finding::ok("store", format!("{shown} can be used; its format is {FORMAT_VERSION}"))
        }
        Ok(Ok(older)) => {
            let seen =
                format!("{shown} has format {older}; it is brought to {FORMAT_VERSION} at the next start");
            Finding::warn("store", seen, "keep a copy: an older version cannot read it after that")
        }
        Ok(Err(error)) => {
            let advice =
                "name the right file, use the version of Lazaret that wrote it, or put a good copy back";
            Finding::fail("store", error.to_string(), advice)
        }
        Err(lost) => Finding::fail("store", format!("{shown}: {lost}"), "report this: it is a bug"),
    }
}

#[cfg(feature = "sqlite")]
fn is_from_the_future(path: &std::path::Path) -> bool {
    /// Clocks of file systems are not exact.
    const SLACK: std::time::Duration = std::time::Duration::from_secs(60);
    let written = path.metadata().and_then(|facts| facts.modified());
    written.is_ok_and(|written| written > std::time::SystemTime::now() + SLACK)
}

#[cfg(all(test, feature = "sqlite"))]
mod tests {
    use std::time::{Duration, SystemTime};

    use lazaret_store_sqlite::{Options, SqliteStore};

    use super::*;

    #[tokio::test]
    async fn a_store_in_a_folder_that_is_missing_cannot_be_made() {
        let here = tempfile::tempdir().unwrap();
        let path = here.path().join("nope/dir/lazaret.db");
        assert!(SqliteStore::open(&path, Options::default()).is_err(), "and so the doctor must not say ok");
        let found = sqlite(&path).await;
        assert_eq!(found[0].health, Health::Fail, "{}", found[0]);
    }

    #[tokio::test]
    async fn a_clock_that_went_back_is_found() {
        let here = tempfile::tempdir().unwrap();
        let path = here.path().join("lazaret.db");
        drop(SqliteStore::open(&path, Options::default()).unwrap());
        assert_eq!(file(&path).await.health, Health::Ok);
        let later = SystemTime::now() + Duration::from_secs(3600);
        std::fs::File::options().append(true).open(&path).unwrap().set_modified(later).unwrap();
        assert_eq!(file(&path).await.health, Health::Warn);
    }
}
