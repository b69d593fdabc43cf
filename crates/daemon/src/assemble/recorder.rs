//! Opens the flight recorder of a consumer.

use std::io;
use std::path::Path;
use std::sync::Arc;

use lazaret_core::FlightRecorder;
use lazaret_flight_recorder::{MappedRecorder, Options};

use crate::error::ConsumerError;

/// The minimum number of slots, so that the file need not grow with the concurrency.
const MIN_SLOTS: u32 = 256;

/// Opens the file of a consumer in a directory, which is created if missing. The file stays open across restarts of the
/// consumer, because opening evaluates the records of a crashed process.
pub(crate) fn open(
    folder: &Path,
    consumer: &str,
    concurrency: usize,
) -> Result<Arc<dyn FlightRecorder>, ConsumerError> {
    create(folder).map_err(|source| ConsumerError::Folder { folder: folder.to_owned(), source })?;
    // Consumer names contain no slash, so the path stays in the directory.
    let path = folder.join(format!("{consumer}.flight"));
    let slots = u32::try_from(concurrency).unwrap_or(u32::MAX).max(MIN_SLOTS);
    let (recorder, damaged) = MappedRecorder::open_or_replace(path, Options { slots })?;
    if let Some((aside, error)) = damaged {
        let kept = aside.display();
        tracing::warn!(consumer, %error, %kept, "damaged flight recorder set aside, a crash before it is not attributed");
    }
    Ok(Arc::new(recorder))
}

/// Creates the directory for its owner only. An existing one stays as it is: others may use it, such as `/dev/shm`.
fn create(folder: &Path) -> io::Result<()> {
    let mut builder = std::fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(folder)?;
    #[cfg(unix)]
    warn_if_open(folder);
    Ok(())
}

/// Warns of a directory that others may read or write. The files in it are for their owner only.
#[cfg(unix)]
fn warn_if_open(folder: &Path) {
    use std::os::unix::fs::PermissionsExt;

    const STICKY: u32 = 0o1000;
    let mode = std::fs::metadata(folder).map(|metadata| metadata.permissions().mode());
    if mode.is_ok_and(|mode| mode & 0o077 != 0 && mode & STICKY == 0) {
        let shown = folder.display();
        tracing::warn!(folder = %shown, "directory of the flight recorder is open to others, restrict it with chmod 700");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_damaged_recorder_is_set_aside_and_the_consumer_starts() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("orders.flight");
        std::fs::write(&path, "damaged by a power cut").unwrap();
        let recorder = open(folder.path(), "orders", 4).unwrap();
        assert_eq!(recorder.suspects(), []);
        let aside = folder.path().join("orders.flight.damaged-1");
        assert_eq!(std::fs::read(aside).unwrap(), b"damaged by a power cut");
    }

    #[cfg(unix)]
    #[test]
    fn the_directory_and_its_files_belong_to_their_owner_alone() {
        use std::os::unix::fs::PermissionsExt;

        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        let outer = tempfile::tempdir().unwrap();
        let folder = outer.path().join("lazaret.flight");
        drop(open(&folder, "orders", 4).unwrap());
        let file = folder.join("orders.flight");
        assert_eq!((mode(&folder), mode(&file)), (0o700, 0o600));
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o644)).unwrap();
        drop(open(&folder, "orders", 4).unwrap());
        assert_eq!(mode(&file), 0o600, "an existing file is restricted");
    }

    #[cfg(unix)]
    #[test]
    fn an_existing_directory_keeps_its_permissions() {
        use std::os::unix::fs::PermissionsExt;

        for before in [0o1777, 0o755, 0o770] {
            let folder = tempfile::tempdir().unwrap();
            std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(before)).unwrap();
            // Twice: the second time it holds nothing but recorders.
            for _ in 0..2 {
                drop(open(folder.path(), "orders", 4).unwrap());
                let after = std::fs::metadata(folder.path()).unwrap().permissions().mode() & 0o7777;
                assert_eq!(after, before, "{before:o}");
            }
        }
    }
}
