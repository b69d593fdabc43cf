//! The source as one life sees it, with an ear on the wire.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use lazaret_core::Partition;
use lazaret_core::source::{Commit, Source, SourceError, SourceEvent};
use lazaret_memory::MemorySource;
use tokio::time::Instant;

use super::world::{Life, World};

/// A memory source whose deliveries and commits are noted and checked.
pub(crate) struct Tap {
    world: Arc<World>,
    life: Life,
    inner: MemorySource,
    /// A commit that was begun.
    begun: Option<Begun>,
    /// How many were begun.
    begins: u32,
    closed: bool,
}

/// A commit that was begun.
struct Begun {
    commits: Vec<Commit>,
    /// After how many other events it is over.
    after: u32,
    /// When it is over at the latest. Whoever asks may stop asking and ask again, which takes no longer for it.
    until: Instant,
}

/// After this time a commit that was begun is over, whatever else happens.
const COMMITTING: Duration = Duration::from_millis(3);
/// One of so many commits that were begun fails.
const FAILING: u32 = 7;

impl Tap {
    pub(crate) fn new(world: &Arc<World>, life: Life, inner: MemorySource) -> Self {
        Self { world: world.clone(), life, inner, begun: None, begins: 0, closed: false }
    }

    /// Checks what is committed, and commits it.
    async fn commit_checked(&mut self, commits: Vec<Commit>) -> Result<(), SourceError> {
        for commit in &commits {
            let partition = commit.partition.index;
            if self.world.log.owner(partition) == Some(self.inner.member()) {
                self.world.trace(|| format!("life {} commits {:?}", self.life.number, commit.position));
                if let Some(position) = &commit.position {
                    self.world.check_commit(partition, position.offset).await;
                }
                for range in &commit.settled_beyond {
                    self.world.check_settled(partition, range.clone()).await;
                }
            }
        }
        self.inner.commit(commits).await
    }

    /// Ends the commit that was begun, and says what came of it.
    async fn end_commit(&mut self) -> Result<SourceEvent, SourceError> {
        if self.begins.is_multiple_of(FAILING) {
            self.begun = None;
            return Ok(SourceEvent::Committed(Err("this commit fails".to_owned())));
        }
        // It stays begun until it is done: whoever asks may stop asking.
        let commits = self.begun.as_ref().map(|begun| begun.commits.clone()).unwrap_or_default();
        self.commit_checked(commits).await?;
        self.begun = None;
        Ok(SourceEvent::Committed(Ok(())))
    }

    fn note(&self, what: &str, partitions: &[Partition]) {
        self.world.trace(|| {
            let numbers: Vec<u32> = partitions.iter().map(|partition| partition.index).collect();
            format!("life {} {what} {numbers:?}", self.life.number)
        });
    }
}

#[async_trait]
impl Source for Tap {
    async fn next(&mut self) -> Result<SourceEvent, SourceError> {
        let event = match &mut self.begun {
            None => self.inner.next().await?,
            Some(Begun { after: 0, .. }) => return self.end_commit().await,
            Some(begun) => tokio::select! {
                biased;
                event = self.inner.next() => {
                    begun.after -= 1;
                    event?
                }
                () = tokio::time::sleep_until(begun.until) => return self.end_commit().await,
            },
        };
        match &event {
            SourceEvent::Messages(messages) => {
                self.world.delivered(messages);
                self.world.trace(|| {
                    let ids: Vec<&str> = messages.iter().map(|message| message.id.as_str()).collect();
                    format!("life {} reads {ids:?}", self.life.number)
                });
            }
            SourceEvent::Assigned(all) => {
                let partitions: Vec<Partition> = all.iter().map(|a| a.partition.clone()).collect();
                self.note("gets", &partitions);
            }
            SourceEvent::Revoking(partitions) => {
                self.note("has to leave", partitions);
                self.world.leaving(&self.life);
            }
            SourceEvent::Lost(partitions) => {
                self.note("lost", partitions);
                let numbers: Vec<u32> = partitions.iter().map(|partition| partition.index).collect();
                self.world.died(self.life.number, Some(&numbers));
            }
            SourceEvent::End | SourceEvent::Committed(_) => {}
        }
        Ok(event)
    }

    async fn commit(&mut self, commits: Vec<Commit>) -> Result<(), SourceError> {
        if let Some(begun) = self.begun.take() {
            self.commit_checked(begun.commits).await?;
        }
        self.commit_checked(commits).await
    }

    fn begin_commit(&mut self, commits: Vec<Commit>) -> Result<(), Vec<Commit>> {
        self.begins += 1;
        let after = (self.begins + self.life.number as u32) % 4;
        self.begun = Some(Begun { commits, after, until: Instant::now() + COMMITTING });
        Ok(())
    }

    fn pause(&mut self, partitions: &[Partition]) {
        self.note("holds", partitions);
        self.inner.pause(partitions);
    }

    fn resume(&mut self, partitions: &[Partition]) {
        self.note("reads on", partitions);
        self.inner.resume(partitions);
    }

    fn rewind(&mut self, partitions: &[Partition]) {
        self.note("asks again for", partitions);
        let numbers: Vec<u32> = partitions.iter().map(|partition| partition.index).collect();
        self.world.died(self.life.number, Some(&numbers));
        self.inner.rewind(partitions);
    }

    async fn revoked(&mut self, partitions: &[Partition]) -> Result<(), SourceError> {
        self.note("leaves", partitions);
        let numbers: Vec<u32> = partitions.iter().map(|partition| partition.index).collect();
        self.world.left(&self.life, &numbers);
        self.inner.revoked(partitions).await
    }

    async fn close(&mut self) -> Result<(), SourceError> {
        self.world.trace(|| format!("life {} closes its source", self.life.number));
        let all: Vec<u32> = (0..self.world.plan.partitions).collect();
        self.world.left(&self.life, &all);
        self.closed = true;
        self.inner.close().await
    }
}

impl Drop for Tap {
    fn drop(&mut self) {
        if !self.closed {
            // The process is dead from here on, and others get what it had. What it knew is lost.
            self.world.died(self.life.number, None);
        }
    }
}
