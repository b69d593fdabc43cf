//! Opens, creates, checks and enlarges the file. It never writes a foreign file.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use crate::error::OpenError;
use crate::layout::{self, head};
use crate::map::{Map, WORD};

/// The maximum number of slots: 32 MiB.
pub(crate) const MAX_SLOTS: u32 = 65_536;

/// The maximum number of damaged files that are kept.
const MAX_DAMAGED: u32 = 99;

/// The number of header words that identify a file.
const HEADER_WORDS: usize = 3;

/// A file that is locked, checked and mapped.
#[derive(Debug)]
pub(crate) struct Opened {
    /// The file, which holds the lock.
    pub(crate) file: File,
    pub(crate) map: Map,
    pub(crate) slots: u32,
}

/// Opens or creates the file, with at least this number of slots.
pub(crate) fn open(path: &Path, slots: u32) -> Result<Opened, OpenError> {
    if slots == 0 || slots > MAX_SLOTS {
        return Err(OpenError::Slots { slots, max: MAX_SLOTS });
    }
    let failed = |doing| move |source| OpenError::Io { path: path.to_owned(), doing, source };
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    // The ids of messages are private.
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let mut file = options.open(path).map_err(failed("open"))?;
    restrict(&file);
    file.try_lock().map_err(|error| match error {
        TryLockError::WouldBlock => OpenError::InUse { path: path.to_owned() },
        TryLockError::Error(source) => failed("lock")(source),
    })?;
    let slots = match identify(&mut file).map_err(failed("read"))? {
        Kind::Valid { slots: found } => {
            enlarge(&mut file, found, slots).map_err(failed("enlarge"))?;
            found.max(slots)
        }
        Kind::New => {
            create(&mut file, slots).map_err(failed("allocate"))?;
            slots
        }
        Kind::Foreign => return Err(OpenError::Foreign { path: path.to_owned() }),
        Kind::Version(found) => {
            return Err(OpenError::Version { path: path.to_owned(), found, known: layout::VERSION });
        }
        Kind::Truncated { found, expected } => {
            return Err(OpenError::Truncated { path: path.to_owned(), found, expected });
        }
    };
    let map = Map::new(&file, layout::words_for(slots)).map_err(failed("map"))?;
    Ok(Opened { file, map, slots })
}

/// Opens the file like [`open`], but first renames a damaged one. Returns the new path of the damaged
/// file and the error.
pub(crate) fn open_or_replace(
    path: &Path,
    slots: u32,
) -> Result<(Opened, Option<(PathBuf, OpenError)>), OpenError> {
    let damage = match open(path, slots) {
        Ok(opened) => return Ok((opened, None)),
        Err(error) if error.is_damage() && path.is_file() => error,
        Err(error) => return Err(error),
    };
    let failed = |doing| move |source| OpenError::Io { path: path.to_owned(), doing, source };
    // The lock is held until the new file is open, so that no other process renames the new file.
    let damaged = File::open(path).map_err(failed("open"))?;
    damaged.try_lock().map_err(|_| OpenError::InUse { path: path.to_owned() })?;
    if !is_at(&damaged, path) {
        return Err(OpenError::InUse { path: path.to_owned() });
    }
    let Some(aside) = free_name(path) else { return Err(damage) };
    std::fs::rename(path, &aside).map_err(failed("rename"))?;
    let opened = open(path, slots)?;
    Ok((opened, Some((aside, damage))))
}

/// Returns an unused name for a damaged file.
fn free_name(path: &Path) -> Option<PathBuf> {
    let name = |number: u32| {
        let mut name = path.as_os_str().to_owned();
        name.push(format!(".damaged-{number}"));
        PathBuf::from(name)
    };
    (1..=MAX_DAMAGED).map(name).find(|name| !name.exists())
}

/// Returns `true` if this file is still the one at the path.
#[cfg(unix)]
fn is_at(file: &File, path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let identity = |metadata: std::fs::Metadata| (metadata.dev(), metadata.ino());
    let there = std::fs::metadata(path).map(identity);
    matches!((file.metadata().map(identity), there), (Ok(ours), Ok(theirs)) if ours == theirs)
}

#[cfg(not(unix))]
fn is_at(_: &File, _: &Path) -> bool {
    true
}

/// Restricts the access to a file to its owner. A file that belongs to another user is unchanged.
fn restrict(file: &File) {
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        if let Ok(metadata) = file.metadata()
            && metadata.is_file()
            && metadata.permissions().mode() & 0o077 != 0
        {
            let mode = metadata.permissions().mode() & 0o700;
            _ = file.set_permissions(std::fs::Permissions::from_mode(mode));
        }
    }
    #[cfg(not(unix))]
    let _ = file;
}

/// The kind of a file.
enum Kind {
    New,
    Valid { slots: u32 },
    Foreign,
    Version(u64),
    Truncated { found: u64, expected: u64 },
}

fn bytes_for(slots: u32) -> u64 {
    (layout::words_for(slots) * WORD) as u64
}

fn identify(file: &mut File) -> io::Result<Kind> {
    let metadata = file.metadata()?;
    let length = metadata.len();
    if !metadata.is_file() {
        return Ok(Kind::Foreign);
    }
    let mut start = Vec::with_capacity(HEADER_WORDS * WORD);
    file.take((HEADER_WORDS * WORD) as u64).read_to_end(&mut start)?;
    let (words, rest) = start.as_chunks::<WORD>();
    let word = |at: usize| words.get(at).map(|bytes| u64::from_ne_bytes(*bytes));
    if start.iter().all(|byte| *byte == 0) {
        // The file is empty, or the creating process crashed before it wrote the header, which is
        // written last.
        let only_zeros = length <= bytes_for(MAX_SLOTS) && is_zeros(file)?;
        return Ok(if only_zeros { Kind::New } else { Kind::Foreign });
    }
    if word(head::MAGIC) != Some(layout::MAGIC) {
        return Ok(Kind::Foreign);
    }
    let (Some(version), Some(slots), true) = (word(head::VERSION), word(head::SLOTS), rest.is_empty()) else {
        return Ok(Kind::Truncated { found: length, expected: bytes_for(1) });
    };
    if version != layout::VERSION {
        return Ok(Kind::Version(version));
    }
    match u32::try_from(slots) {
        Ok(slots @ 1..=MAX_SLOTS) => {
            let expected = bytes_for(slots);
            Ok(if length < expected {
                Kind::Truncated { found: length, expected }
            } else {
                Kind::Valid { slots }
            })
        }
        _ => Ok(Kind::Foreign),
    }
}

/// Returns `true` if the rest of the file is zero.
fn is_zeros(file: &mut File) -> io::Result<bool> {
    let mut piece = [0; 8192];
    loop {
        match file.read(&mut piece) {
            Ok(0) => return Ok(true),
            Ok(read) if piece[..read].iter().any(|byte| *byte != 0) => return Ok(false),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// Fills a new file with zeros, then writes the header. If the disk is full, the file is emptied again.
fn create(file: &mut File, slots: u32) -> io::Result<()> {
    let made = write_zeros(file, 0, bytes_for(slots)).and_then(|()| {
        // If the header reached the disk before the zeros, the file would be damaged after a power loss.
        file.sync_all()?;
        let mut header = Vec::with_capacity(HEADER_WORDS * WORD);
        for word in [layout::MAGIC, layout::VERSION, u64::from(slots)] {
            header.extend_from_slice(&word.to_ne_bytes());
        }
        file.seek(SeekFrom::Start(0))?;
        file.write_all(&header)?;
        // Slots that reached the disk before the header would belong to no recorder.
        file.sync_data()
    });
    made.inspect_err(|_| {
        // Only the first error is reported.
        let _ = file.set_len(0);
    })
}

/// Appends slots. If the disk is full, the file is restored.
fn enlarge(file: &mut File, found: u32, wanted: u32) -> io::Result<()> {
    if wanted <= found {
        return Ok(());
    }
    let length = bytes_for(found);
    write_zeros(file, length, bytes_for(wanted)).inspect_err(|_| {
        // Only the first error is reported. A file that is too long is still valid.
        let _ = file.set_len(length);
    })?;
    file.sync_all()?;
    file.seek(SeekFrom::Start((head::SLOTS * WORD) as u64))?;
    file.write_all(&u64::from(wanted).to_ne_bytes())?;
    file.sync_data()
}

/// Writes zeros to allocate disk space. Writing into a hole of a full disk would raise a signal.
fn write_zeros(file: &mut File, from: u64, to: u64) -> io::Result<()> {
    file.seek(SeekFrom::Start(from))?;
    io::copy(&mut io::repeat(0).take(to - from), file)?;
    Ok(())
}
