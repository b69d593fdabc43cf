//! Reads lines off a file. Blocks; runs on a thread for that.

use std::fs::{File, Metadata};
use std::io::{self, Read, Seek, SeekFrom};
use std::path::PathBuf;

use bytes::Bytes;
use lazaret_core::source::{NewMessage, jsonl};

use crate::error::Trouble;
use crate::place::HEAD;

/// How many bytes are read at once.
const CHUNK: usize = 256 * 1024;
/// After this many bytes a look ends, whatever it has found.
const LOOK_BYTES: usize = 4 * 1024 * 1024;
/// Some programs begin a file with it.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// A line, and where it ends: before its line end, so that the place is the same whether that is there yet or not.
pub(crate) type Taken = (NewMessage, u64);

/// What a look into the file brought.
#[derive(Debug)]
pub(crate) enum Look {
    /// Lines.
    Lines(Vec<Taken>),
    /// No line yet, but there is more to read.
    More,
    /// The end of the file.
    End,
}

/// A file and the place in it.
#[derive(Debug)]
pub(crate) struct Reader {
    path: PathBuf,
    file: File,
    follow: bool,
    max_line: usize,
    batch: usize,
    /// The first bytes of the file, as far as they were read: they must not change.
    head: Vec<u8>,
    /// What was read and not yet taken.
    buffer: Vec<u8>,
    /// Where in the file the buffer begins.
    offset: u64,
    /// How much of the buffer is known to hold no line end.
    scanned: usize,
    /// The first bytes of a line that is too long, while its end is looked for.
    too_long: Option<Bytes>,
}

impl Reader {
    /// Opens a file.
    pub(crate) fn open(path: PathBuf, follow: bool, max_line: usize, batch: usize) -> Result<Self, Trouble> {
        let unreadable = |error| Trouble::Unreadable(path.clone(), error);
        // Asked before it is opened: to open a pipe would wait for somebody to write to it.
        if !std::fs::metadata(&path).map_err(unreadable)?.is_file() {
            return Err(Trouble::NotAFile(path));
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

    /// The first bytes of the file.
    pub(crate) fn head(&self) -> &[u8] {
        &self.head
    }

    /// How long the file is now.
    pub(crate) fn length(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    /// Goes on at another place, which is the end of a line.
    pub(crate) fn seek(&mut self, offset: u64) {
        self.buffer.clear();
        self.scanned = 0;
        self.too_long = None;
        self.offset = offset;
    }

    /// Takes the next lines. What was not taken when this fails is there the next time.
    pub(crate) fn look(&mut self) -> Result<Look, Trouble> {
        self.still_the_same()?;
        let mut taken = Vec::new();
        let mut bytes = 0;
        loop {
            self.take_lines(&mut taken);
            if taken.len() >= self.batch || bytes >= LOOK_BYTES {
                return Ok(if taken.is_empty() { Look::More } else { Look::Lines(taken) });
            }
            self.bound_line();
            let read = match self.read_more() {
                Ok(read) => read,
                // What was taken goes out first. The trouble will be there the next time, if it is still there.
                Err(_) if !taken.is_empty() => return Ok(Look::Lines(taken)),
                Err(error) => return Err(Trouble::Unreadable(self.path.clone(), error)),
            };
            bytes += read;
            if read > 0 {
                continue;
            }
            if !self.follow && (!self.buffer.is_empty() || self.too_long.is_some()) {
                // The last line has no end, and none will come.
                let line = std::mem::take(&mut self.buffer);
                self.scanned = 0;
                self.take(&line, &mut taken);
            }
            if !taken.is_empty() {
                return Ok(Look::Lines(taken));
            }
            if self.follow {
                self.still_at_its_path()?;
            }
            return Ok(Look::End);
        }
    }

    /// Takes whole lines out of the buffer, until the batch is full.
    fn take_lines(&mut self, taken: &mut Vec<Taken>) {
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

    /// Takes a line, or the rest of one that is too long. Moves behind it.
    fn take(&mut self, line: &[u8], taken: &mut Vec<Taken>) {
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

    /// Keeps only the first bytes of a line that is longer than allowed (I7). Called when the buffer holds no line end.
    fn bound_line(&mut self) {
        // One more, for a carriage return that may belong to the line end.
        if self.too_long.is_none() && self.buffer.len() <= self.max_line + 1 {
            return;
        }
        // The last byte stays, as it may be a carriage return too.
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
        let mut head = Vec::with_capacity(HEAD);
        self.file.seek(SeekFrom::Start(0))?;
        (&mut self.file).take(HEAD as u64).read_to_end(&mut head)?;
        Ok(head)
    }

    /// Makes sure that what was read is still what stands in the file.
    fn still_the_same(&mut self) -> Result<(), Trouble> {
        let unreadable = |error| Trouble::Unreadable(self.path.clone(), error);
        let (read, length) = (self.offset + self.buffer.len() as u64, self.length().map_err(unreadable)?);
        if length < read {
            return Err(Trouble::Shorter { path: self.path.clone(), length, read });
        }
        let head = self.read_head().map_err(|error| Trouble::Unreadable(self.path.clone(), error))?;
        if !head.starts_with(&self.head) {
            return Err(Trouble::Replaced(self.path.clone()));
        }
        self.head = head;
        Ok(())
    }

    /// Makes sure that the path still leads to this file.
    fn still_at_its_path(&self) -> Result<(), Trouble> {
        let unreadable = |error| Trouble::Unreadable(self.path.clone(), error);
        match std::fs::metadata(&self.path) {
            Ok(there) if is_same(&there, &self.file.metadata().map_err(unreadable)?) => Ok(()),
            Ok(_) => Err(Trouble::Replaced(self.path.clone())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Err(Trouble::Gone(self.path.clone())),
            Err(error) => Err(unreadable(error)),
        }
    }
}

fn too_long(first: Bytes, max_line: usize) -> NewMessage {
    NewMessage::undecodable(first, format!("the line is longer than {max_line} bytes; these are the first"))
}

#[cfg(unix)]
fn is_same(one: &Metadata, other: &Metadata) -> bool {
    use std::os::unix::fs::MetadataExt;
    (one.dev(), one.ino()) == (other.dev(), other.ino())
}

/// Without a number for files, their first bytes must do.
#[cfg(not(unix))]
fn is_same(_one: &Metadata, _other: &Metadata) -> bool {
    true
}
