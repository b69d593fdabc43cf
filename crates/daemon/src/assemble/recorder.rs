//! Opens the flight recorder of a consumer.

use std::path::Path;
use std::sync::Arc;

use lazaret_core::FlightRecorder;
use lazaret_flight_recorder::{MappedRecorder, Options};

use crate::error::Trouble;

/// The fewest slots: a file that has them need not grow when a consumer gets wider.
const LEAST_SLOTS: u32 = 256;

/// Opens the file of a consumer in this folder, which is made if it is missing. It is open as long as the consumer may be
/// started anew, because whoever opens it judges what a dead process has left.
pub(crate) fn open(
    folder: &Path,
    consumer: &str,
    concurrency: usize,
) -> Result<Arc<dyn FlightRecorder>, Trouble> {
    std::fs::create_dir_all(folder)
        .map_err(|source| Trouble::Folder { folder: folder.to_owned(), source })?;
    // Names of consumers have no slash in them, so this is a file in the folder.
    let path = folder.join(format!("{consumer}.flight"));
    let slots = u32::try_from(concurrency).unwrap_or(u32::MAX).max(LEAST_SLOTS);
    Ok(Arc::new(MappedRecorder::open(path, Options { slots })?))
}
