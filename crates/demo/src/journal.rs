//! The journal: one line for every call and outcome that the handler and the observer see.
//!
//! The journal is evidence from outside the engine. A line is one `write` to the end of a file, so it
//! survives a crash of the process.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

/// One line of the journal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Entry {
    /// The incarnation of the process, from 1.
    pub(crate) incarnation: u32,
    /// The time, in microseconds since 1970.
    pub(crate) at: i64,
    /// The id of the message.
    pub(crate) id: String,
    /// The event.
    pub(crate) fact: Fact,
}

/// An event of a message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Fact {
    /// The handler was called.
    Begun {
        /// The attempt number, from 1.
        attempt: u32,
        /// Whether it is a replay.
        replay: bool,
        /// The hash of the payload.
        payload: u64,
    },
    /// The handler succeeded.
    Done,
    /// The call ended without success: the handler failed or panicked, or the call was dropped because
    /// its lease was lost.
    Left,
    /// The attempt failed.
    Failed {
        /// The reason code.
        reason: String,
    },
    /// A retry is scheduled for this time, in microseconds since 1970.
    Due(i64),
    /// The retries are exhausted.
    GaveUp,
    /// A letter was stored in this state.
    Letter(String),
    /// The letter was closed in this state.
    Closed(String),
    /// A customer's lease was lost, because the process stalled for longer than the lease. The entry's
    /// id is the customer. The customer's last order may be repeated.
    LeaseLost,
}

/// Writes the journal of one incarnation.
#[derive(Debug)]
pub(crate) struct Journal {
    file: File,
    incarnation: u32,
}

impl Journal {
    /// Opens a journal for appending.
    pub(crate) fn open(path: &Path, incarnation: u32) -> io::Result<Self> {
        let file = OpenOptions::new().create(true).append(true).open(path)?;
        Ok(Self { file, incarnation })
    }

    /// Writes a line.
    pub(crate) fn write(&self, id: &str, fact: Fact) -> io::Result<()> {
        let entry = Entry { incarnation: self.incarnation, at: now_micros(), id: id.to_owned(), fact };
        let mut line = serde_json::to_vec(&entry)?;
        line.push(b'\n');
        // One write in append mode: lines from several threads do not interleave.
        (&self.file).write_all(&line)
    }
}

/// Reads a journal while it is being written.
#[derive(Debug)]
pub(crate) struct Reader {
    path: PathBuf,
    file: Option<File>,
    rest: Vec<u8>,
}

impl Reader {
    /// Creates a reader from the beginning of this file, which may not exist yet.
    pub(crate) fn new(path: PathBuf) -> Self {
        Self { path, file: None, rest: Vec::new() }
    }

    /// Returns the entries since the last call. An incomplete line is left for the next call.
    pub(crate) fn read(&mut self) -> io::Result<Vec<Entry>> {
        if self.file.is_none() {
            match File::open(&self.path) {
                Ok(file) => self.file = Some(file),
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
                Err(error) => return Err(error),
            }
        }
        if let Some(file) = &mut self.file {
            file.read_to_end(&mut self.rest)?;
        }
        let complete = self.rest.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
        let lines: Vec<u8> = self.rest.drain(..complete).collect();
        let lines = lines.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
        lines.map(|line| serde_json::from_slice(line).map_err(io::Error::other)).collect()
    }
}

/// Hashes bytes with FNV-1a, to compare payloads.
pub(crate) fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xCBF2_9CE4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01B3)
    })
}

fn now_micros() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_micros()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_read_once_and_an_incomplete_line_waits() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("journal");
        let mut reader = Reader::new(path.clone());
        assert!(reader.read().unwrap().is_empty());
        let journal = Journal::open(&path, 2).unwrap();
        journal.write("order-1", Fact::Done).unwrap();
        journal.write("order-2", Fact::Due(7)).unwrap();
        (&journal.file).write_all(b"{\"incarnation\":2,\"at\":1,").unwrap();
        let read = reader.read().unwrap();
        assert_eq!(read.len(), 2);
        assert_eq!((read[1].incarnation, read[1].id.as_str(), &read[1].fact), (2, "order-2", &Fact::Due(7)));
        assert!(reader.read().unwrap().is_empty());
        (&journal.file).write_all(b"\"id\":\"x\",\"fact\":\"done\"}\n").unwrap();
        assert_eq!(reader.read().unwrap()[0].id, "x");
    }
}
