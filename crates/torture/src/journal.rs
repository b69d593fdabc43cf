//! The log of attempts, which all processes of a run share. Each line is appended with one write, so that whole lines survive SIGKILL.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// The least step of the machine's clock that is logged, in microseconds.
const STEP: u64 = 1000;
/// The most time that may pass while both clocks are read, in microseconds.
const READING: i64 = 100;

/// An event in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry {
    /// The process started to consume.
    Start,
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
    /// A partition was assigned to the process.
    Assigned {
        /// The partition.
        partition: u32,
    },
    /// A partition was revoked, after the work on it had ended or was given up.
    Revoked {
        /// The partition.
        partition: u32,
    },
    /// A partition was lost: another process may have it already.
    Dropped {
        /// The partition.
        partition: u32,
    },
    /// The handler got a message whose key or payload was not the one that was sent.
    Altered {
        /// The message.
        message: u64,
    },
    /// The driver is about to stop the process for longer than its leases last.
    Stopped,
    /// The driver has let the process go on.
    Woken,
    /// The driver has killed the process.
    Killed,
    /// How far the machine's clock is ahead of its monotonic clock. Another number than before means that it was set.
    Clock {
        /// In microseconds.
        ahead: i64,
    },
}

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Start => write!(f, "start"),
            Self::Begin { message, attempt } => write!(f, "begin {message} {attempt}"),
            Self::End { message, attempt, handled } => {
                write!(f, "end {message} {attempt} {}", if *handled { "handled" } else { "failed" })
            }
            Self::Close { message } => write!(f, "close {message}"),
            Self::Lost { key } => write!(f, "lost {key}"),
            Self::Assigned { partition } => write!(f, "assigned {partition}"),
            Self::Revoked { partition } => write!(f, "revoked {partition}"),
            Self::Dropped { partition } => write!(f, "dropped {partition}"),
            Self::Altered { message } => write!(f, "altered {message}"),
            Self::Stopped => write!(f, "stopped"),
            Self::Woken => write!(f, "woken"),
            Self::Killed => write!(f, "killed"),
            Self::Clock { ahead } => write!(f, "clock {ahead}"),
        }
    }
}

impl Entry {
    fn parse(fields: &[&str]) -> Option<Self> {
        match *fields {
            ["start"] => Some(Self::Start),
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
            ["assigned", partition] => Some(Self::Assigned { partition: partition.parse().ok()? }),
            ["revoked", partition] => Some(Self::Revoked { partition: partition.parse().ok()? }),
            ["dropped", partition] => Some(Self::Dropped { partition: partition.parse().ok()? }),
            ["altered", message] => Some(Self::Altered { message: message.parse().ok()? }),
            ["stopped"] => Some(Self::Stopped),
            ["woken"] => Some(Self::Woken),
            ["killed"] => Some(Self::Killed),
            ["clock", ahead] => Some(Self::Clock { ahead: ahead.parse().ok()? }),
            _ => None,
        }
    }
}

/// A line of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// The process of which it speaks, by its number.
    pub process: u32,
    /// When it was written, by the machine's monotonic clock.
    pub at: Duration,
    /// The event.
    pub entry: Entry,
}

impl fmt::Display for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}", self.process, self.at.as_micros(), self.entry)
    }
}

impl Record {
    /// Parses a line.
    pub fn parse(line: &str) -> Option<Self> {
        let fields: Vec<&str> = line.split(' ').collect();
        let [process, at, entry @ ..] = &fields[..] else { return None };
        let at = Duration::from_micros(at.parse().ok()?);
        Some(Self { process: process.parse().ok()?, at, entry: Entry::parse(entry)? })
    }
}

/// The end of the log, to write to.
#[derive(Debug)]
pub struct Journal {
    file: File,
    process: u32,
    /// The last [`Entry::Clock`].
    ahead: AtomicI64,
}

impl Journal {
    /// Opens the log for a process, or creates it.
    pub fn open(path: &Path, process: u32) -> io::Result<Self> {
        let file = OpenOptions::new().create(true).append(true).open(path)?;
        Ok(Self { file, process, ahead: AtomicI64::new(i64::MIN) })
    }

    /// Appends a line. Lines that any process writes after this returns follow it.
    pub fn write(&self, entry: Entry) -> io::Result<()> {
        self.write_of(self.process, entry)
    }

    /// Appends a line about another process.
    pub fn write_of(&self, process: u32, entry: Entry) -> io::Result<()> {
        let line = |entry| format!("{}\n", Record { process, at: now(), entry });
        let mut lines = self.set_clock().map(line).unwrap_or_default();
        lines += &line(entry);
        (&self.file).write_all(lines.as_bytes())
    }

    /// The entry that the machine's clock was set since the last one.
    fn set_clock(&self) -> Option<Entry> {
        let (known, ahead) = (self.ahead.load(Ordering::Relaxed), clock_ahead()?);
        if ahead.abs_diff(known) < STEP {
            return None;
        }
        self.ahead.store(ahead, Ordering::Relaxed);
        Some(Entry::Clock { ahead })
    }
}

/// The time of a clock that all processes share, and that nobody sets.
pub(crate) fn now() -> Duration {
    let time = clock_gettime(ClockId::Monotonic);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs().try_into().unwrap_or_default())
}

/// How far the machine's clock is ahead of [`now`], in microseconds. None if the reading was interrupted.
fn clock_ahead() -> Option<i64> {
    let micros = |id| {
        let time = clock_gettime(id);
        time.tv_sec * 1_000_000 + time.tv_nsec / 1000
    };
    let (before, clock, after) =
        (micros(ClockId::Monotonic), micros(ClockId::Realtime), micros(ClockId::Monotonic));
    (after - before <= READING).then_some(clock - before)
}

/// All records of the log, in order, or the number of the first invalid line.
pub fn read(path: &Path) -> io::Result<Result<Vec<Record>, usize>> {
    let text = std::fs::read_to_string(path)?;
    Ok(text.lines().enumerate().map(|(number, line)| Record::parse(line).ok_or(number + 1)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_parsed_as_they_were_written() {
        let entries = [
            Entry::Start,
            Entry::Begin { message: 17, attempt: 2 },
            Entry::End { message: 17, attempt: 2, handled: true },
            Entry::End { message: 17, attempt: 2, handled: false },
            Entry::Close { message: 4 },
            Entry::Lost { key: 12 },
            Entry::Assigned { partition: 3 },
            Entry::Revoked { partition: 3 },
            Entry::Dropped { partition: 3 },
            Entry::Altered { message: 9 },
            Entry::Stopped,
            Entry::Woken,
            Entry::Killed,
            Entry::Clock { ahead: -12 },
        ];
        for entry in entries {
            let record = Record { process: 3, at: Duration::from_micros(1_234_567), entry };
            assert_eq!(Record::parse(&record.to_string()), Some(record));
        }
        for wrong in
            ["", "start", "1 begin 1", "1 5 end 1 1 maybe", "1 5 begin 1 21 6 begin 1 3", "1 5 close -1"]
        {
            assert_eq!(Record::parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn time_does_not_go_back() {
        let before = now();
        assert!(now() >= before && before > Duration::ZERO);
    }
}
