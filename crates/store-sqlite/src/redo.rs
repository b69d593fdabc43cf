//! The redo log: a file beside the database in which hand-offs and posts are durable before their transaction is committed.
//!
//! A commit writes every page that its letters touch, and letters of random sequences touch random pages. So under load
//! the writer leaves its transaction open over many groups of calls. Each group is appended here, as the calls themselves
//! with the time at which they ran, is forced to the disk and then answered. One commit follows for all of them.
//!
//! - **Who may write.** Only who holds the database's write lock, that is, who has the transaction open. So there is one
//!   log for all processes, and no lock of its own.
//! - **What counts.** The database has a random id and a generation, in the table `redo`. A record carries both. It
//!   counts while its generation is that of the database: its transaction was not committed. The commit raises the
//!   generation, and with it all records end at once. The next transaction writes over them from the start.
//! - **After a death.** Whoever takes the write lock next and finds records that count runs them again and commits,
//!   before anything else. The state is the one they ran on the first time, so they come out the same; the log holds
//!   the outcomes to compare with.
//! - **A torn end.** A record that is not whole was not answered. The log ends before it. As SQLite does, the log takes for
//!   granted that a power cut in the middle of a write does no harm to the bytes beside it.
//! - **Who reads** looks at the first record before its view begins. If that one is not in the view, it has the writer of
//!   its own process take the lock, and with it everybody's letters, and looks again.
//!
//! Who waits for the write lock holds a shared lock on the log file meanwhile: a wish, at which the owner commits early.

mod fields;
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
pub(crate) use fields::{Fields, put};
use record::{HEADER_BYTES, Header};

/// How long somebody else is let in who waits for the write lock.
const LET_IN: Duration = Duration::from_millis(20);
const LET_IN_STEP: Duration = Duration::from_micros(500);

/// How much a call brings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Size {
    /// How many letters, notes and posts.
    pub(crate) count: usize,
    /// About how many bytes they take in the log.
    pub(crate) bytes: usize,
}

impl std::ops::AddAssign for Size {
    fn add_assign(&mut self, other: Self) {
        self.count += other.count;
        self.bytes += other.bytes;
    }
}

/// Which records count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mark {
    /// The database.
    pub(crate) id: [u8; 16],
    /// How many transactions with records it has seen.
    pub(crate) generation: i64,
}

impl Mark {
    /// The mark as the database has it.
    pub(crate) fn read(connection: &Connection) -> Work<Self> {
        let mut select = connection.prepare_cached("SELECT id, generation FROM redo")?;
        Ok(select.query_row([], |row| Ok(Self { id: row.get(0)?, generation: row.get(1)? }))?)
    }

    /// Ends all records of this mark, with the commit.
    pub(crate) fn pass(&self, connection: &Connection) -> rusqlite::Result<Self> {
        let next = Self { generation: self.generation + 1, ..*self };
        connection.prepare_cached("UPDATE redo SET generation = ?1")?.execute([next.generation])?;
        Ok(next)
    }
}

/// Where the next record goes.
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

    /// How many bytes are before it.
    pub(crate) fn bytes(&self) -> u64 {
        self.at
    }
}

/// The log file.
pub(crate) struct RedoLog {
    path: PathBuf,
    file: File,
    durability: Durability,
    /// Whether the folder knows of the file, whatever happens.
    is_listed: AtomicBool,
    /// The highest generation that this process has seen in the database.
    seen: AtomicI64,
}

impl RedoLog {
    /// Opens the log of a database, or makes it.
    pub(crate) fn open(database: &Path, durability: Durability) -> io::Result<Self> {
        let path = path_of(database);
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path)?;
        Ok(Self { path, file, durability, is_listed: AtomicBool::new(false), seen: AtomicI64::new(i64::MIN) })
    }

    /// Says that the database has this generation.
    pub(crate) fn saw(&self, mark: &Mark) {
        self.seen.fetch_max(mark.generation, Ordering::AcqRel);
    }

    /// The first record, if there is one that this process has not seen the end of. Who asks before a view begins can
    /// tell from the view whether it is in there.
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

    /// The records that count, for who holds the write lock. A first record that is not whole is removed.
    pub(crate) fn records(&self, mark: &Mark) -> Work<Vec<Vec<u8>>> {
        let mut records = Vec::new();
        let mut end = End::start(*mark);
        while let Some(record) = self.record(&end)? {
            end.at += (HEADER_BYTES + record.len()) as u64;
            end.number += 1;
            records.push(record);
        }
        let is_torn = || Ok(self.header(0)?.is_some_and(|header| header.mark == *mark));
        if records.is_empty() && is_torn().map_err(|error| self.trouble(&error))? {
            self.clear().map_err(|error| self.trouble(&error))?;
        }
        Ok(records)
    }

    /// The record at this place, if it is whole.
    fn record(&self, end: &End) -> Work<Option<Vec<u8>>> {
        let trouble = |error: io::Error| self.trouble(&error);
        let Some(header) = self.header(end.at).map_err(trouble)? else { return Ok(None) };
        if header.mark != end.mark || header.number != end.number {
            return Ok(None);
        }
        if header.version > record::VERSION {
            return Err(Fault::newer_redo_log(&self.path, header.version, record::VERSION));
        }
        let left = self.file.metadata().map_err(trouble)?.len().saturating_sub(end.at);
        if (HEADER_BYTES as u64) + u64::from(header.length) > left {
            return Ok(None);
        }
        let mut bytes = vec![0; header.length as usize];
        let read = read_at(&self.file, &mut bytes, end.at + HEADER_BYTES as u64).map_err(trouble)?;
        Ok((read == bytes.len() && header.fits(&bytes)).then_some(bytes))
    }

    /// Appends a record, and forces it to the disk. `bytes` begins with room for the header.
    ///
    /// When it fails, the record may be there nevertheless.
    pub(crate) fn append(&self, end: &mut End, bytes: &mut [u8]) -> io::Result<()> {
        let (header, body) = bytes.split_at_mut(HEADER_BYTES);
        let length = u32::try_from(body.len()).map_err(io::Error::other)?;
        header.copy_from_slice(&Header::new(end.mark, end.number, length).bytes(body));
        write_all_at(&self.file, bytes, end.at)?;
        if self.durability == Durability::Full {
            self.file.sync_data()?;
            self.list()?;
        }
        end.at += bytes.len() as u64;
        end.number += 1;
        Ok(())
    }

    /// Makes sure that a power cut does not take the name of the file.
    fn list(&self) -> io::Result<()> {
        if !self.is_listed.load(Ordering::Relaxed) {
            let folder = self.path.parent().filter(|folder| !folder.as_os_str().is_empty());
            sync_folder(folder.unwrap_or(Path::new(".")))?;
            self.is_listed.store(true, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Removes all records, for who holds the write lock and knows that none counts.
    pub(crate) fn clear(&self) -> io::Result<()> {
        self.file.set_len(0)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.file.metadata().is_ok_and(|file| file.len() == 0)
    }

    /// Tells the owner of the write lock that somebody waits for it, for as long as the answer lives.
    pub(crate) fn wish(&self) -> io::Result<Wish<'_>> {
        self.file.lock_shared()?;
        Ok(Wish(&self.file))
    }

    /// Whether somebody waits for the write lock.
    pub(crate) fn is_wished(&self) -> bool {
        match self.file.try_lock() {
            // A lock that cannot be given back goes with the file.
            Ok(()) => self.file.unlock().is_err(),
            Err(TryLockError::WouldBlock) => true,
            // Where files cannot be locked nobody can wish.
            Err(TryLockError::Error(_)) => false,
        }
    }

    /// Lets those in who wait for the write lock, for who has just given it back.
    pub(crate) fn let_others_in(&self) {
        let started = Instant::now();
        while self.is_wished() && started.elapsed() < LET_IN {
            std::thread::sleep(LET_IN_STEP);
        }
    }

    /// An error of the file system.
    pub(crate) fn trouble(&self, error: &io::Error) -> Fault {
        Fault::of_file(&self.path, error)
    }
}

/// As long as it lives, others know that somebody waits.
pub(crate) struct Wish<'a>(&'a File);

impl Drop for Wish<'_> {
    fn drop(&mut self) {
        // If it cannot be given back, the others only commit more often.
        _ = self.0.unlock();
    }
}

/// The log of a database.
fn path_of(database: &Path) -> PathBuf {
    let mut name = OsString::from(database.as_os_str());
    name.push("-redo");
    PathBuf::from(name)
}

/// An empty record with room for its header.
pub(crate) fn empty_record(into: &mut Vec<u8>) {
    into.clear();
    into.resize(HEADER_BYTES, 0);
}

/// Reads until the bytes are full or the file ends.
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
fn sync_folder(folder: &Path) -> io::Result<()> {
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
fn sync_folder(_: &Path) -> io::Result<()> {
    Ok(())
}
