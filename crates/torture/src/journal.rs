//! The log of attempts. Each line is appended with one write, so that whole lines survive SIGKILL.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;

/// A line of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry {
    /// A process started to consume.
    Start(u32),
    /// An attempt begins.
    Begin {
        /// The message.
        message: u64,
        /// Which attempt it is, as the engine counts.
        attempt: u32,
    },
    /// An attempt ends.
    End {
        /// The message.
        message: u64,
        /// Which attempt it was.
        attempt: u32,
        /// The handler succeeded.
        handled: bool,
    },
    /// An operator is about to close a letter.
    Close {
        /// Its message.
        message: u64,
    },
    /// The lease of a stored sequence was lost: the process stalled, or its store did.
    Lost {
        /// The key of the sequence.
        key: u32,
    },
}

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Start(number) => write!(f, "process {number}"),
            Self::Begin { message, attempt } => write!(f, "begin {message} {attempt}"),
            Self::End { message, attempt, handled } => {
                write!(f, "end {message} {attempt} {}", if *handled { "handled" } else { "failed" })
            }
            Self::Close { message } => write!(f, "close {message}"),
            Self::Lost { key } => write!(f, "lost {key}"),
        }
    }
}

impl Entry {
    /// Parses a line.
    pub fn parse(line: &str) -> Option<Self> {
        let fields: Vec<&str> = line.split(' ').collect();
        match fields[..] {
            ["process", number] => Some(Self::Start(number.parse().ok()?)),
            ["begin", message, attempt] => {
                Some(Self::Begin { message: message.parse().ok()?, attempt: attempt.parse().ok()? })
            }
            ["end", message, attempt, outcome @ ("handled" | "failed")] => Some(Self::End {
                message: message.parse().ok()?,
                attempt: attempt.parse().ok()?,
                handled: outcome == "handled",
            }),
            ["close", message] => Some(Self::Close { message: message.parse().ok()? }),
            ["lost", key] => Some(Self::Lost { key: key.parse().ok()? }),
            _ => None,
        }
    }
}

/// The end of the log, to write to.
#[derive(Debug)]
pub struct Journal {
    file: File,
}

impl Journal {
    /// Opens the log, or creates it.
    pub fn open(path: &Path) -> io::Result<Self> {
        Ok(Self { file: OpenOptions::new().create(true).append(true).open(path)? })
    }

    /// Appends a line. Lines that any process writes after this returns follow it.
    pub fn write(&self, entry: Entry) -> io::Result<()> {
        (&self.file).write_all(format!("{entry}\n").as_bytes())
    }
}

/// All entries of the log, in order, or the number of the first invalid line.
pub fn read(path: &Path) -> io::Result<Result<Vec<Entry>, usize>> {
    let text = std::fs::read_to_string(path)?;
    Ok(text.lines().enumerate().map(|(number, line)| Entry::parse(line).ok_or(number + 1)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_parsed_as_they_were_written() {
        let entries = [
            Entry::Start(3),
            Entry::Begin { message: 17, attempt: 2 },
            Entry::End { message: 17, attempt: 2, handled: true },
            Entry::End { message: 17, attempt: 2, handled: false },
            Entry::Close { message: 4 },
            Entry::Lost { key: 12 },
        ];
        for entry in entries {
            assert_eq!(Entry::parse(&entry.to_string()), Some(entry));
        }
        for wrong in ["", "begin 1", "end 1 1 maybe", "begin 1 2begin 1 3", "close -1"] {
            assert_eq!(Entry::parse(wrong), None, "{wrong}");
        }
    }
}
