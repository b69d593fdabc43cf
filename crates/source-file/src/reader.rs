//! Reads lines from a file. Blocks, so it runs on a blocking thread.

use std::fs::{File, Metadata};
use std::io::{self, Read, Seek, SeekFrom};
use std::path::PathBuf;

use bytes::Bytes;
use lazaret_core::source::{NewMessage, jsonl};

use crate::error::FileError;
use crate::position::HEAD_BYTES;

/// The size of a read.
const CHUNK: usize = 256 * 1024;
/// The maximum number of bytes per call.
const MAX_READ_BYTES: usize = 4 * 1024 * 1024;
/// A byte order mark, which a file may start with.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// A message and the end of its line, without the line end.
pub(crate) type ReadLine = (NewMessage, u64);

/// The result of reading.
#[derive(Debug)]
pub(crate) enum ReadResult {
    /// Complete lines.
    Lines(Vec<ReadLine>),
    /// There is no complete line yet, but more content.
    More,
    /// The end of the file was reached.
    End,
}

/// A file and the position in it.
#[derive(Debug)]
pub(crate) struct Reader {
    path: PathBuf,
    file: File,
    follow: bool,
    max_line: usize,
    batch: usize,
    /// The first bytes of the file, which must not change.
    head: Vec<u8>,
    /// Content that was read but not returned yet.
    buffer: Vec<u8>,
    /// The offset of the buffer in the file.
    offset: u64,
    /// The length of the buffer prefix without a line end.
    scanned: usize,
    /// The first bytes of an overlong line, during the search for its end.
    too_long: Option<Bytes>,
}

impl Reader {
    /// Opens a file.
    pub(crate) fn open(
        path: PathBuf,
        follow: bool,
        max_line: usize,
        batch: usize,
    ) -> Result<Self, FileError> {
        let unreadable = |error| FileError::Unreadable(path.clone(), error);
        // Checked before opening, because opening a pipe blocks until it has a writer.
        if !std::fs::metadata(&path).map_err(unreadable)?.is_file() {
            return Err(FileError::NotAFile(path));
        }
        let file = File::open(&path).map_err(unreadable)?;
        let mut reader = Self {
            path: path.clone(),
            file,
            follow,
            max_line,
            batch: batch.max(1),
            head: Vec::new(),
            buffer: Vec::new(),
            offset: 0,
            scanned: 0,
            too_long: None,
        };
        reader.head = reader.read_head().map_err(unreadable)?;
        Ok(reader)
    }

    /// Returns the first bytes of the file.
    pub(crate) fn head(&self) -> &[u8] {
        &self.head
    }

    /// Opens the file again, for reads independent of this reader.
    pub(crate) fn reopen(&self) -> Result<File, FileError> {
        let unreadable = |error| FileError::Unreadable(self.path.clone(), error);
        let file = File::open(&self.path).map_err(unreadable)?;
        let same = is_same(&file.metadata().map_err(unreadable)?, &self.file.metadata().map_err(unreadable)?);
        if same { Ok(file) } else { Err(FileError::Replaced(self.path.clone())) }
    }

    /// Returns the current length of the file.
    pub(crate) fn length(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    /// Returns the offset up to which content was returned.
    pub(crate) fn position(&self) -> u64 {
        self.offset
    }

    /// Continues at another offset, which must be the end of a line.
    pub(crate) fn seek(&mut self, offset: u64) {
        self.buffer.clear();
        self.scanned = 0;
        self.too_long = None;
        self.offset = offset;
    }

    /// Reads the next lines. After an error, the next call continues at the same position.
    pub(crate) fn read_lines(&mut self) -> Result<ReadResult, FileError> {
        self.verify_content()?;
        let mut taken = Vec::new();
        let mut bytes = 0;
        loop {
            self.take_lines(&mut taken);
            if taken.len() >= self.batch || bytes >= MAX_READ_BYTES {
                return Ok(if taken.is_empty() { ReadResult::More } else { ReadResult::Lines(taken) });
            }
            self.bound_line();
            let read = match self.read_more() {
                Ok(read) => read,
                // Complete lines are returned first. The next call reports the error, if it persists.
                Err(_) if !taken.is_empty() => return Ok(ReadResult::Lines(taken)),
                Err(error) => return Err(FileError::Unreadable(self.path.clone(), error)),
            };
            bytes += read;
            if read > 0 {
                continue;
            }
            if !self.follow && (!self.buffer.is_empty() || self.too_long.is_some()) {
                // The unterminated last line counts as complete.
                let line = std::mem::take(&mut self.buffer);
                self.scanned = 0;
                self.take(&line, &mut taken);
            }
            if !taken.is_empty() {
                return Ok(ReadResult::Lines(taken));
            }
            if self.follow {
                self.verify_path()?;
            }
            return Ok(ReadResult::End);
        }
    }

    /// Moves complete lines out of the buffer until the batch is full.
    fn take_lines(&mut self, taken: &mut Vec<ReadLine>) {
        let mut buffer = std::mem::take(&mut self.buffer);
        let (mut start, mut scanned) = (0, self.scanned);
        while taken.len() < self.batch {
            let Some(length) = buffer[scanned..].iter().position(|byte| *byte == b'\n') else {
                scanned = buffer.len();
                break;
            };
            let end = scanned + length;
            self.take(&buffer[start..end], taken);
            self.offset += 1;
            (start, scanned) = (end + 1, end + 1);
        }
        buffer.drain(..start);
        self.buffer = buffer;
        self.scanned = scanned - start;
    }

    /// Parses a line, or the rest of an overlong line, and advances the offset.
    fn take(&mut self, line: &[u8], taken: &mut Vec<ReadLine>) {
        let begin = self.offset;
        self.offset += line.len() as u64;
        let mut content = line.strip_suffix(b"\r").unwrap_or(line);
        let end = begin + content.len() as u64;
        if let Some(first) = self.too_long.take() {
            taken.push((too_long(first, self.max_line), end));
            return;
        }
        if begin == 0 {
            content = content.strip_prefix(BYTE_ORDER_MARK).unwrap_or(content);
        }
        if jsonl::is_blank(content) {
            return;
        }
        let message = if content.len() > self.max_line {
            too_long(Bytes::copy_from_slice(&content[..self.max_line]), self.max_line)
        } else {
            jsonl::message(Bytes::copy_from_slice(content))
        };
        taken.push((message, end));
    }

    /// Keeps only the first bytes of an overlong line (I7). Called if the buffer contains no line end.
    fn bound_line(&mut self) {
        // One more byte, for the carriage return of a line end.
        if self.too_long.is_none() && self.buffer.len() <= self.max_line + 1 {
            return;
        }
        // The last byte is kept, because it may be a carriage return.
        let passed = self.buffer.len().saturating_sub(1);
        if self.too_long.is_none() {
            self.too_long = Some(Bytes::copy_from_slice(&self.buffer[..self.max_line]));
        }
        self.buffer.drain(..passed);
        self.offset += passed as u64;
        self.scanned = self.buffer.len();
    }

    fn read_more(&mut self) -> io::Result<usize> {
        self.file.seek(SeekFrom::Start(self.offset + self.buffer.len() as u64))?;
        let before = self.buffer.len();
        self.buffer.resize(before + CHUNK, 0);
        let read = loop {
            match self.file.read(&mut self.buffer[before..]) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                read => break read,
            }
        };
        self.buffer.truncate(before + *read.as_ref().unwrap_or(&0));
        read
    }

    fn read_head(&mut self) -> io::Result<Vec<u8>> {
        let mut head = Vec::with_capacity(HEAD_BYTES);
        self.file.seek(SeekFrom::Start(0))?;
        (&mut self.file).take(HEAD_BYTES as u64).read_to_end(&mut head)?;
        Ok(head)
    }

    /// Verifies that the content before the position has not changed.
    fn verify_content(&mut self) -> Result<(), FileError> {
        let unreadable = |error| FileError::Unreadable(self.path.clone(), error);
        let (read, length) = (self.offset + self.buffer.len() as u64, self.length().map_err(unreadable)?);
        if length < read {
            return Err(FileError::Truncated { path: self.path.clone(), length, read });
        }
        let head = self.read_head().map_err(|error| FileError::Unreadable(self.path.clone(), error))?;
        if !head.starts_with(&self.head) {
            return Err(FileError::Replaced(self.path.clone()));
        }
        self.head = head;
        Ok(())
    }

    /// Verifies that the path still refers to this file.
    fn verify_path(&self) -> Result<(), FileError> {
        let unreadable = |error| FileError::Unreadable(self.path.clone(), error);
        match std::fs::metadata(&self.path) {
            Ok(there) if is_same(&there, &self.file.metadata().map_err(unreadable)?) => Ok(()),
            Ok(_) => Err(FileError::Replaced(self.path.clone())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                Err(FileError::Removed(self.path.clone()))
            }
            Err(error) => Err(unreadable(error)),
        }
    }
}

/// Reads the last bytes before an offset, or fewer if the file ends before it.
pub(crate) fn read_tail(mut file: &File, offset: u64) -> io::Result<Vec<u8>> {
    let begin = offset.saturating_sub(HEAD_BYTES as u64);
    let mut tail = Vec::with_capacity(HEAD_BYTES);
    file.seek(SeekFrom::Start(begin))?;
    file.take(offset - begin).read_to_end(&mut tail)?;
    Ok(tail)
}

fn too_long(first: Bytes, max_line: usize) -> NewMessage {
    NewMessage::undecodable(first, format!("the line is longer than {max_line} bytes and was truncated"))
}

#[cfg(unix)]
fn is_same(one: &Metadata, other: &Metadata) -> bool {
    use std::os::unix::fs::MetadataExt;
    (one.dev(), one.ino()) == (other.dev(), other.ino())
}

/// Without inode numbers, only the first bytes are compared.
#[cfg(not(unix))]
fn is_same(_one: &Metadata, _other: &Metadata) -> bool {
    true
}
