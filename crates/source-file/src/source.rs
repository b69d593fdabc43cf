//! The source: a reader on another thread, and positions in a checkpoint.

use std::fmt;
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

use crate::error::Trouble;
use crate::options::Options;
use crate::place::{HEAD, Place};
use crate::reader::{Look, Reader, Taken};

/// A file with one JSON message a line. See the [crate's page](crate) for what it promises, and for an example.
pub struct FileSource {
    path: PathBuf,
    stream: StreamName,
    poll: Duration,
    checkpoints: Arc<dyn Checkpoints>,
    name: String,
    /// How far the file is settled, as the checkpoint says.
    committed: Place,
    /// The first bytes of the file.
    head: Vec<u8>,
    work: Work,
    /// What was read while the partition is paused.
    ready: Vec<Message>,
    assigned: bool,
    paused: bool,
    /// The reader goes back to the committed place before it goes on.
    back: bool,
    /// The end was reached. When to look again is kept here, because a wait that is broken off must not begin anew.
    at_end: Option<Instant>,
    /// `End` was said.
    ended: bool,
    follow: bool,
    closed: bool,
}

/// Where the reader is.
enum Work {
    /// Here.
    Idle(Box<Reader>),
    /// On a thread. The handle stays here when a wait is cancelled, so what was read is not lost.
    Busy(JoinHandle<(Box<Reader>, Result<Look, Trouble>)>),
    /// Lost: its thread has panicked or the runtime has ended.
    Broken,
}

impl FileSource {
    /// Opens a file, and goes on where the checkpoint of this name says, or at the beginning.
    ///
    /// # Errors
    /// When the file cannot be read, is not a regular file, or is not the one that the checkpoint speaks of; when the
    /// checkpoint cannot be read.
    pub async fn open(
        path: impl AsRef<Path>,
        checkpoints: Arc<dyn Checkpoints>,
        name: impl Into<String>,
        options: Options,
    ) -> Result<Self, SourceError> {
        let (path, name) = (path.as_ref().to_owned(), name.into());
        let stored = checkpoints.load(&name).await?;
        let place = match stored.and_then(|checkpoint| checkpoint.processed) {
            None => None,
            Some(anchor) => Some(Place::from_token(&anchor.token).map_err(|why| {
                SourceError::permanent(format!("the checkpoint {name} is not one of a file: {why}"))
            })?),
        };
        let opened = {
            let path = path.clone();
            let (follow, max_line, batch) = (options.follow, options.max_line, options.batch);
            spawn_blocking(move || -> Result<_, Trouble> {
                let opened = Reader::open(path.clone(), follow, max_line, batch);
                let mut reader = opened.map_err(|trouble| match trouble {
                    Trouble::Unreadable(path, error) if follow && error.kind() == ErrorKind::NotFound => {
                        Trouble::NotThereYet(path)
                    }
                    other => other,
                })?;
                let Some((place, head)) = place else { return Ok((reader, Place::default())) };
                let length = reader.length().map_err(|error| Trouble::Unreadable(path.clone(), error))?;
                if length < place.offset {
                    return Err(Trouble::Shorter { path, length, read: place.offset });
                }
                if !head.fits(reader.head()) {
                    return Err(Trouble::Replaced(path));
                }
                reader.seek(place.offset);
                Ok((reader, place))
            })
        };
        let (reader, committed) = opened.await.map_err(lost)??;
        let stream = options.stream.unwrap_or_else(|| {
            path.file_name()
                .map_or_else(|| path.to_string_lossy(), |name| name.to_string_lossy())
                .as_ref()
                .into()
        });
        Ok(Self {
            path,
            stream,
            poll: options.poll,
            checkpoints,
            name,
            committed,
            head: reader.head().to_vec(),
            work: Work::Idle(Box::new(reader)),
            ready: Vec::new(),
            assigned: false,
            paused: false,
            back: false,
            at_end: None,
            ended: false,
            follow: options.follow,
            closed: false,
        })
    }

    /// The stream its messages come on.
    pub const fn stream(&self) -> &StreamName {
        &self.stream
    }

    /// Its only partition.
    pub fn partition(&self) -> Partition {
        Partition { stream: self.stream.clone(), index: 0 }
    }

    fn is_ours(&self, partitions: &[Partition]) -> bool {
        partitions.iter().any(|partition| partition.index == 0 && partition.stream == self.stream)
    }

    /// Looks into the file on another thread. Cancellation safe: the look goes on, and the next call takes what it found.
    async fn look(&mut self) -> Result<Look, SourceError> {
        if let Work::Idle(_) = &self.work
            && let Work::Idle(mut reader) = std::mem::replace(&mut self.work, Work::Broken)
        {
            if std::mem::take(&mut self.back) {
                reader.seek(self.committed.offset);
            }
            self.work = Work::Busy(spawn_blocking(move || {
                let found = reader.look();
                (reader, found)
            }));
        }
        let Work::Busy(handle) = &mut self.work else {
            return Err(SourceError::permanent("the reader of the file was lost"));
        };
        let (reader, found) = match handle.await {
            Ok(done) => done,
            Err(error) => {
                self.work = Work::Broken;
                return Err(lost(error));
            }
        };
        // From here to the caller nothing waits, so nothing can be lost.
        if self.head.len() < HEAD {
            self.head = reader.head().to_vec();
        }
        self.work = Work::Idle(reader);
        // What was looked for before the partition was rewound is read again.
        if self.back { Ok(Look::More) } else { Ok(found?) }
    }

    fn messages(&self, lines: Vec<Taken>) -> Vec<Message> {
        lines
            .into_iter()
            .map(|(message, end)| message.at(self.stream.clone(), Position::new(0, end)))
            .collect()
    }
}

fn lost(error: tokio::task::JoinError) -> SourceError {
    SourceError::permanent("the reader of the file was lost").with_source(error)
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
                return Ok(SourceEvent::Assigned(vec![Assignment { partition: self.partition(), settled }]));
            }
            if self.paused || self.ended {
                // Nothing changes before the next call of another method.
                std::future::pending::<()>().await;
            }
            if !self.ready.is_empty() {
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
            match self.look().await? {
                Look::Lines(lines) => self.ready = self.messages(lines),
                Look::More => {}
                Look::End => self.at_end = Some(Instant::now()),
            }
        }
    }

    async fn commit(&mut self, commits: Vec<Commit>) -> Result<(), SourceError> {
        for commit in commits {
            if !self.assigned || !self.is_ours(std::slice::from_ref(&commit.partition)) {
                continue;
            }
            let place = self.committed.after(commit);
            if place == self.committed {
                continue;
            }
            let anchor = Anchor { token: place.to_token(&self.head), at: Timestamp::now() };
            self.checkpoints.save_processed(&self.name, anchor, None).await?;
            self.committed = place;
        }
        Ok(())
    }

    fn pause(&mut self, partitions: &[Partition]) {
        self.paused |= self.is_ours(partitions);
    }

    fn resume(&mut self, partitions: &[Partition]) {
        self.paused &= !self.is_ours(partitions);
    }

    fn rewind(&mut self, partitions: &[Partition]) {
        if self.assigned && self.is_ours(partitions) {
            self.ready.clear();
            (self.assigned, self.paused, self.at_end, self.ended) = (false, false, None, false);
            self.back = true;
        }
    }

    /// A file is never taken away, so there is nothing to do.
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
