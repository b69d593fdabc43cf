//! The redo log: a file beside the database in which hand-offs, posts, claims and settlements are durable before their transaction
//! commits.
//!
//! A commit writes every page that its letters touch, and letters of random sequences touch random pages. Under load
//! the writer therefore keeps its transaction open over many groups of calls. Each group is appended here, as the calls
//! themselves with their time, is synced and then acknowledged. One commit follows for all of them.
//!
//! - **Writers.** Only the holder of the database's write lock, with the open transaction, may write. So there is one
//!   log for all processes, and no lock of its own.
//! - **Valid records.** The database has a random id and a generation, in the table `redo`. A record carries both. It
//!   is valid while both equal the database's: its transaction was not committed. Every commit that changes something increments
//!   the generation, which invalidates all records at once. The next transaction overwrites them from the start.
//! - **Copies.** Each opening gives the database a new id, once the records of the last one are in. So a log belongs to one
//!   opening of one file, and there to one state of it: a copy of the database that is put beside a log of an earlier or later
//!   time ignores that log.
//! - **Recovery.** The next holder of the write lock repeats valid records and commits them,
//!   before anything else. The state is the one of their first execution, so the results are the same; the log holds
//!   the results for comparison.
//! - **Torn end.** An incomplete record was not acknowledged. The log ends before it. As SQLite does, the log assumes
//!   that a power cut during a write does not damage adjacent bytes.
//! - **Readers** check the first record before their snapshot starts. If it is not in the snapshot, the writer of
//!   their process takes the lock, which commits all records, and the query is repeated.
//!
//! A process that waits for the write lock holds a shared lock on the log file meanwhile: a request, upon which the owner
//! commits early.

mod fields;
#[cfg(test)]
mod fuzz;
#[cfg(test)]
mod lease_tests;
mod record;
#[cfg(test)]
mod tests;

use std::ffi::OsString;
use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::{Duration, Instant};

use rusqlite::Connection;

use crate::error::{Fault, Work};
use crate::options::Durability;
use crate::permissions;
pub(crate) use fields::{Fields, put};
use record::{HEADER_BYTES, Header};

/// How long the writer yields the write lock to waiting processes.
const YIELD_TIME: Duration = Duration::from_millis(20);
const LET_IN_STEP: Duration = Duration::from_micros(500);

/// The size of a call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Size {
    /// Number of letters, notes, posts, claims and settlements.
    pub(crate) count: usize,
    /// Approximate number of bytes in the log.
    pub(crate) bytes: usize,
}

impl std::ops::AddAssign for Size {
    fn add_assign(&mut self, other: Self) {
        self.count += other.count;
        self.bytes += other.bytes;
    }
}

/// Identifies valid records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mark {
    /// The id of the database.
    pub(crate) id: [u8; 16],
    /// The number of its transactions with records.
    pub(crate) generation: i64,
}

impl Mark {
    /// Reads the mark of the database.
    pub(crate) fn read(connection: &Connection) -> Work<Self> {
        let mut select = connection.prepare_cached("SELECT id, generation FROM redo")?;
        Ok(select.query_row([], |row| Ok(Self { id: row.get(0)?, generation: row.get(1)? }))?)
    }

    /// Gives the database a new id, with the commit, so that no log that exists now belongs to it.
    pub(crate) fn renew(connection: &Connection) -> rusqlite::Result<()> {
        connection.execute("UPDATE redo SET id = randomblob(16), generation = generation + 1", []).map(drop)
    }

    /// Invalidates all records of this mark, with the commit.
    pub(crate) fn invalidate(&self, connection: &Connection) -> rusqlite::Result<Self> {
        let next = Self { generation: self.generation + 1, ..*self };
        connection.prepare_cached("UPDATE redo SET generation = ?1")?.execute([next.generation])?;
        Ok(next)
    }
}

/// The position of the next record.
#[derive(Clone, Copy, Debug)]
pub(crate) struct End {
    pub(crate) mark: Mark,
    /// The number of the next record.
    pub(crate) number: u32,
    at: u64,
}

impl End {
    /// The start of the log.
    pub(crate) fn start(mark: Mark) -> Self {
        Self { mark, number: 0, at: 0 }
    }

    /// Number of bytes before it.
    pub(crate) fn bytes(&self) -> u64 {
        self.at
    }
}

/// The log file.
pub(crate) struct RedoLog {
    path: PathBuf,
    file: File,
    durability: Durability,
    /// `true` if the directory entry of the file was synced.
    is_directory_synced: AtomicBool,
    /// The highest generation of the database that this process has seen.
    seen: AtomicI64,
}

impl RedoLog {
    /// Opens the log of a database, or creates it.
    pub(crate) fn open(database: &Path, durability: Durability) -> io::Result<Self> {
        let path = path_of(database);
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false);
        let file = permissions::private(&mut options).open(&path)?;
        permissions::restrict(&path);
        Ok(Self {
            path,
            file,
            durability,
            is_directory_synced: AtomicBool::new(false),
            seen: AtomicI64::new(i64::MIN),
        })
    }

    /// Records that the database has this generation.
    pub(crate) fn observe(&self, mark: &Mark) {
        self.seen.fetch_max(mark.generation, Ordering::AcqRel);
    }

    /// The first record, unless this process has seen its commit. A caller that reads it before its snapshot starts can
    /// compare it with the snapshot.
    pub(crate) fn first(&self) -> io::Result<Option<Mark>> {
        let header = self.header(0)?;
        let mark = header.map(|header| header.mark);
        Ok(mark.filter(|mark| mark.generation >= self.seen.load(Ordering::Acquire)))
    }

    fn header(&self, at: u64) -> io::Result<Option<Header>> {
        let mut bytes = [0; HEADER_BYTES];
        let read = read_at(&self.file, &mut bytes, at)?;
        Ok(if read == HEADER_BYTES { Header::parse(&bytes) } else { None })
    }

    /// The valid records; requires the write lock. An incomplete first record is removed.
    pub(crate) fn records(&self, mark: &Mark) -> Work<Vec<Vec<u8>>> {
        let mut records = Vec::new();
        let mut end = End::start(*mark);
        while let Some(record) = self.record(&end)? {
            end.at += (HEADER_BYTES + record.len()) as u64;
            end.number += 1;
            records.push(record);
        }
        let is_torn = || Ok(self.header(0)?.is_some_and(|header| header.mark == *mark));
        if records.is_empty() && is_torn().map_err(|error| self.fault(&error))? {
            self.clear().map_err(|error| self.fault(&error))?;
        }
        Ok(records)
    }

    /// The record at this position, if it is complete.
    fn record(&self, end: &End) -> Work<Option<Vec<u8>>> {
        let failed = |error: io::Error| self.fault(&error);
        let Some(header) = self.header(end.at).map_err(failed)? else { return Ok(None) };
        if header.mark != end.mark || header.number != end.number {
            return Ok(None);
        }
        if header.version > record::VERSION {
            return Err(Fault::newer_redo_log(&self.path, header.version, record::VERSION));
        }
        let left = self.file.metadata().map_err(failed)?.len().saturating_sub(end.at);
        if (HEADER_BYTES as u64) + u64::from(header.length) > left {
            return Ok(None);
        }
        let mut bytes = vec![0; header.length as usize];
        let read = read_at(&self.file, &mut bytes, end.at + HEADER_BYTES as u64).map_err(failed)?;
        Ok((read == bytes.len() && header.is_intact(&bytes)).then_some(bytes))
    }

    /// Appends a record, and syncs it. `bytes` starts with space for the header.
    ///
    /// After an error, the record may have been written nevertheless.
    pub(crate) fn append(&self, end: &mut End, bytes: &mut [u8]) -> io::Result<()> {
        let (header, body) = bytes.split_at_mut(HEADER_BYTES);
        let length = u32::try_from(body.len()).map_err(io::Error::other)?;
        header.copy_from_slice(&Header::new(end.mark, end.number, length).bytes(body));
        write_all_at(&self.file, bytes, end.at)?;
        if self.durability == Durability::Full {
            self.file.sync_data()?;
            self.sync_directory()?;
        }
        end.at += bytes.len() as u64;
        end.number += 1;
        Ok(())
    }

    /// Syncs the directory, so that the file survives a power cut.
    fn sync_directory(&self) -> io::Result<()> {
        if !self.is_directory_synced.load(Ordering::Relaxed) {
            let folder = self.path.parent().filter(|folder| !folder.as_os_str().is_empty());
            sync_folder(folder.unwrap_or(Path::new(".")))?;
            self.is_directory_synced.store(true, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Removes all records; requires the write lock and that none is valid.
    pub(crate) fn clear(&self) -> io::Result<()> {
        self.file.set_len(0)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.file.metadata().is_ok_and(|file| file.len() == 0)
    }

    /// Requests the write lock from its owner, for the lifetime of the result.
    pub(crate) fn request_lock(&self) -> io::Result<LockRequest<'_>> {
        self.file.lock_shared()?;
        Ok(LockRequest(&self.file))
    }

    /// `true` if another process waits for the write lock.
    pub(crate) fn is_lock_requested(&self) -> bool {
        match self.file.try_lock() {
            // A lock that cannot be released ends with the file.
            Ok(()) => self.file.unlock().is_err(),
            Err(TryLockError::WouldBlock) => true,
            // Without file locks there are no requests.
            Err(TryLockError::Error(_)) => false,
        }
    }

    /// Yields the write lock, which was just released, to waiting processes.
    pub(crate) fn yield_lock(&self) {
        let started = Instant::now();
        while self.is_lock_requested() && started.elapsed() < YIELD_TIME {
            std::thread::sleep(LET_IN_STEP);
        }
    }

    /// Converts an error of the file system.
    pub(crate) fn fault(&self, error: &io::Error) -> Fault {
        Fault::of_file(&self.path, error)
    }
}

/// A request for the write lock, which ends when it is dropped.
pub(crate) struct LockRequest<'a>(&'a File);

impl Drop for LockRequest<'_> {
    fn drop(&mut self) {
        // If it cannot be released, the others only commit more often.
        _ = self.0.unlock();
    }
}

/// The path of the log of a database.
pub(crate) fn path_of(database: &Path) -> PathBuf {
    let mut name = OsString::from(database.as_os_str());
    name.push("-redo");
    PathBuf::from(name)
}

/// An empty record with space for its header.
pub(crate) fn empty_record(into: &mut Vec<u8>) {
    into.clear();
    into.resize(HEADER_BYTES, 0);
}

/// `true` if a record has no calls.
pub(crate) fn is_without_calls(record: &[u8]) -> bool {
    record.len() <= HEADER_BYTES
}

/// Reads until the buffer is full or the file ends.
fn read_at(file: &File, bytes: &mut [u8], at: u64) -> io::Result<usize> {
    let mut read = 0;
    while read < bytes.len() {
        match read_once(file, &mut bytes[read..], at + read as u64) {
            Ok(0) => break,
            Ok(more) => read += more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(read)
}

#[cfg(unix)]
fn read_once(file: &File, bytes: &mut [u8], at: u64) -> io::Result<usize> {
    std::os::unix::fs::FileExt::read_at(file, bytes, at)
}

#[cfg(unix)]
fn write_all_at(file: &File, bytes: &[u8], at: u64) -> io::Result<()> {
    std::os::unix::fs::FileExt::write_all_at(file, bytes, at)
}

#[cfg(unix)]
pub(crate) fn sync_folder(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

#[cfg(windows)]
fn read_once(file: &File, bytes: &mut [u8], at: u64) -> io::Result<usize> {
    std::os::windows::fs::FileExt::seek_read(file, bytes, at)
}

#[cfg(windows)]
fn write_all_at(file: &File, mut bytes: &[u8], mut at: u64) -> io::Result<()> {
    while !bytes.is_empty() {
        let written = std::os::windows::fs::FileExt::seek_write(file, bytes, at)?;
        (bytes, at) = (&bytes[written..], at + written as u64);
    }
    Ok(())
}

#[cfg(windows)]
pub(crate) fn sync_folder(_: &Path) -> io::Result<()> {
    Ok(())
}
