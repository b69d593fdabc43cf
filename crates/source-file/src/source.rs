//! The source: a reader on a blocking thread, and positions in a checkpoint.

use std::fmt;
use std::fs::File;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;
use lazaret_core::source::{Assignment, Commit, Source, SourceError, SourceEvent};
use lazaret_core::store::{Anchor, Checkpoints};
use lazaret_core::{Message, Partition, Position, StreamName};
use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::Instant;

use crate::error::FileError;
use crate::options::Options;
use crate::position::{FilePosition, HEAD_BYTES};
use crate::progress::{FileProgress, Progress};
use crate::reader::{ReadLine, ReadResult, Reader, read_tail};

/// A file with one JSON message per line. See the [crate documentation](crate) for guarantees and an example.
pub struct FileSource {
    path: PathBuf,
    stream: StreamName,
    poll: Duration,
    checkpoints: Arc<dyn Checkpoints>,
    name: String,
    /// The committed position.
    committed: FilePosition,
    /// The first bytes of the file.
    head: Vec<u8>,
    /// The same file, for reads independent of the reader.
    file: Arc<File>,
    state: ReaderState,
    /// Messages that were read but not returned yet.
    ready: Vec<Message>,
    /// The offset up to which content was read.
    read_to: u64,
    progress: Arc<Progress>,
    assigned: bool,
    paused: bool,
    /// `true` if the reader must first seek to the committed position.
    rewound: bool,
    /// The position of the last returned message.
    delivered: u64,
    /// The time at which the end was reached. Kept here so that a cancelled wait does not restart.
    at_end: Option<Instant>,
    /// `true` once `End` was returned.
    ended: bool,
    follow: bool,
    closed: bool,
}

/// The state of the reader.
enum ReaderState {
    /// The source owns the reader.
    Idle(Box<Reader>),
    /// The reader is on a blocking thread. The handle survives a cancelled wait, so that no read is
    /// lost.
    Busy(JoinHandle<(Box<Reader>, Result<ReadResult, FileError>)>),
    /// The reader is lost: its thread panicked, or the runtime was shut down.
    Broken,
}

impl FileSource {
    /// Opens a file at the position of the named checkpoint, or at the beginning.
    ///
    /// # Errors
    /// Fails if the file cannot be read, is not a regular file, or does not match the checkpoint, or if
    /// the checkpoint cannot be read.
    pub async fn open(
        path: impl AsRef<Path>,
        checkpoints: Arc<dyn Checkpoints>,
        name: impl Into<String>,
        options: Options,
    ) -> Result<Self, SourceError> {
        let (path, name) = (path.as_ref().to_owned(), name.into());
        let stored = checkpoints.load(&name).await?;
        let position = match stored.and_then(|checkpoint| checkpoint.processed) {
            None => None,
            Some(anchor) => Some(FilePosition::from_token(&anchor.token).map_err(|why| {
                SourceError::permanent(format!(
                    "the checkpoint {name} does not belong to a file source: {why}"
                ))
            })?),
        };
        let opened = {
            let path = path.clone();
            let (follow, max_line, batch) = (options.follow, options.max_line, options.batch);
            spawn_blocking(move || -> Result<_, FileError> {
                let opened = Reader::open(path.clone(), follow, max_line, batch);
                let mut reader = opened.map_err(|error| match error {
                    FileError::Unreadable(path, error) if follow && error.kind() == ErrorKind::NotFound => {
                        FileError::NotCreatedYet(path)
                    }
                    other => other,
                })?;
                let file = reader.reopen()?;
                let Some((position, identity)) = position else {
                    return Ok((reader, file, FilePosition::default()));
                };
                let unreadable = |error| FileError::Unreadable(path.clone(), error);
                let (length, read) = (reader.length().map_err(unreadable)?, position.reach());
                if length < read {
                    return Err(FileError::Truncated { path, length, read });
                }
                let tail = read_tail(&file, read).map_err(unreadable)?;
                if !identity.head.matches(reader.head())
                    || identity.tail.is_some_and(|expected| !expected.is_of(&tail))
                {
                    return Err(FileError::Replaced(path));
                }
                reader.seek(position.offset);
                Ok((reader, file, position))
            })
        };
        let (reader, file, committed) = opened.await.map_err(lost)??;
        let stream = options.stream.unwrap_or_else(|| {
            path.file_name()
                .map_or_else(|| path.to_string_lossy(), |name| name.to_string_lossy())
                .as_ref()
                .into()
        });
        let (file, read_to) = (Arc::new(file), committed.offset);
        Ok(Self {
            path,
            stream,
            poll: options.poll,
            checkpoints,
            name,
            committed,
            head: reader.head().to_vec(),
            progress: Progress::new(file.clone(), read_to),
            file,
            state: ReaderState::Idle(Box::new(reader)),
            ready: Vec::new(),
            read_to,
            assigned: false,
            paused: false,
            rewound: false,
            at_end: None,
            delivered: 0,
            ended: false,
            follow: options.follow,
            closed: false,
        })
    }

    /// Returns the stream of the source's messages.
    pub const fn stream(&self) -> &StreamName {
        &self.stream
    }

    /// Returns the only partition of the source.
    pub fn partition(&self) -> Partition {
        Partition::new(self.stream.clone(), 0)
    }

    /// Returns a handle that reports how far the source has read, while it runs.
    pub fn progress(&self) -> FileProgress {
        FileProgress::of(&self.progress)
    }

    fn contains_own(&self, partitions: &[Partition]) -> bool {
        partitions.iter().any(|partition| partition.index == 0 && partition.stream == self.stream)
    }

    /// Reads on a blocking thread. Cancellation safe: the read continues, and the next call returns its
    /// result.
    async fn read(&mut self) -> Result<ReadResult, SourceError> {
        if let ReaderState::Idle(_) = &self.state
            && let ReaderState::Idle(mut reader) = std::mem::replace(&mut self.state, ReaderState::Broken)
        {
            if std::mem::take(&mut self.rewound) {
                reader.seek(self.committed.offset);
            }
            self.state = ReaderState::Busy(spawn_blocking(move || {
                let found = reader.read_lines();
                (reader, found)
            }));
        }
        let ReaderState::Busy(handle) = &mut self.state else {
            return Err(SourceError::permanent("the file reader was lost"));
        };
        let (reader, found) = match handle.await {
            Ok(done) => done,
            Err(error) => {
                self.state = ReaderState::Broken;
                return Err(lost(error));
            }
        };
        // No await from here on, so that cancellation cannot lose the result.
        if self.head.len() < HEAD_BYTES {
            self.head = reader.head().to_vec();
        }
        let position = reader.position();
        self.state = ReaderState::Idle(reader);
        // A result from before a rewind is discarded.
        if self.rewound {
            return Ok(ReadResult::More);
        }
        self.read_to = position;
        Ok(found?)
    }

    /// Reads the last settled bytes at a position, which identify the file.
    async fn tail(&self, position: &FilePosition) -> Result<Vec<u8>, SourceError> {
        let (file, read) = (self.file.clone(), position.reach());
        let tail = spawn_blocking(move || Ok((read_tail(&file, read)?, file.metadata()?.len())));
        let unreadable = |error| FileError::Unreadable(self.path.clone(), error);
        let (tail, length) = tail.await.map_err(lost)?.map_err(unreadable)?;
        match length < read {
            true => Err(FileError::Truncated { path: self.path.clone(), length, read }.into()),
            false => Ok(tail),
        }
    }

    fn messages(&self, lines: Vec<ReadLine>) -> Vec<Message> {
        lines
            .into_iter()
            .map(|(message, end)| message.at(self.stream.clone(), Position::new(0, end)))
            .collect()
    }
}

fn lost(error: tokio::task::JoinError) -> SourceError {
    SourceError::permanent("the file reader was lost").with_source(error)
}

#[async_trait]
impl Source for FileSource {
    async fn next(&mut self) -> Result<SourceEvent, SourceError> {
        loop {
            if self.closed {
                return Err(SourceError::permanent("the source was closed"));
            }
            if !self.assigned {
                self.assigned = true;
                let settled = self.committed.settled.clone();
                return Ok(SourceEvent::Assigned(vec![Assignment::new(self.partition(), settled)]));
            }
            if self.paused || self.ended {
                // Waits until another method is called.
                std::future::pending::<()>().await;
            }
            if !self.ready.is_empty() {
                let last = self.ready.iter().map(|message| message.position.offset).max();
                self.delivered = last.map_or(self.delivered, |last| last.max(self.delivered));
                self.progress.deliver_up_to(self.read_to);
                return Ok(SourceEvent::Messages(std::mem::take(&mut self.ready)));
            }
            if let Some(reached) = self.at_end {
                if !self.follow {
                    self.ended = true;
                    return Ok(SourceEvent::End);
                }
                tokio::time::sleep_until(reached + self.poll).await;
                self.at_end = None;
            }
            match self.read().await? {
                ReadResult::Lines(lines) => self.ready = self.messages(lines),
                ReadResult::More => {}
                ReadResult::End => self.at_end = Some(Instant::now()),
            }
            // Empty lines are not messages.
            if self.ready.is_empty() {
                self.progress.deliver_up_to(self.read_to);
            }
        }
    }

    async fn commit(&mut self, commits: Vec<Commit>) -> Result<(), SourceError> {
        for mut commit in commits {
            if !self.assigned || !self.contains_own(std::slice::from_ref(&commit.partition)) {
                continue;
            }
            // Nothing else can be settled, and the file may end before such a range.
            commit.settled_beyond.retain(|range| *range.end() <= self.delivered);
            let position = self.committed.after(commit);
            if position == self.committed {
                continue;
            }
            let tail = self.tail(&position).await?;
            let anchor = Anchor { token: position.to_token(&self.head, &tail), at: Timestamp::now() };
            self.checkpoints.save_processed(&self.name, anchor, None).await?;
            self.committed = position;
        }
        Ok(())
    }

    fn pause(&mut self, partitions: &[Partition]) {
        self.paused |= self.contains_own(partitions);
    }

    fn resume(&mut self, partitions: &[Partition]) {
        self.paused &= !self.contains_own(partitions);
    }

    fn rewind(&mut self, partitions: &[Partition]) {
        if self.assigned && self.contains_own(partitions) {
            self.ready.clear();
            self.read_to = self.committed.offset;
            self.progress.deliver_up_to(self.read_to);
            (self.assigned, self.paused, self.at_end, self.ended) = (false, false, None, false);
            self.rewound = true;
        }
    }

    /// A file is never revoked.
    async fn revoked(&mut self, _partitions: &[Partition]) -> Result<(), SourceError> {
        Ok(())
    }

    async fn close(&mut self) -> Result<(), SourceError> {
        self.closed = true;
        Ok(())
    }
}

impl fmt::Debug for FileSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FileSource")
            .field("path", &self.path)
            .field("stream", &self.stream)
            .field("committed", &self.committed.offset)
            .finish_non_exhaustive()
    }
}
