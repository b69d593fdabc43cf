//! Opens the flight recorder of a consumer.

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
    std::fs::create_dir_all(folder)
        .map_err(|source| ConsumerError::Folder { folder: folder.to_owned(), source })?;
    // Consumer names contain no slash, so the path stays in the directory.
    let path = folder.join(format!("{consumer}.flight"));
    let slots = u32::try_from(concurrency).unwrap_or(u32::MAX).max(MIN_SLOTS);
    Ok(Arc::new(MappedRecorder::open(path, Options { slots })?))
}
