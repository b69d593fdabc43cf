//! The source as one life sees it, with an ear on the wire.

use std::sync::Arc;

use async_trait::async_trait;
use lazaret_core::Partition;
use lazaret_core::source::{Commit, Source, SourceError, SourceEvent};
use lazaret_memory::MemorySource;

use super::world::{Life, World};

/// A memory source whose deliveries and commits are noted and checked.
pub(crate) struct Tap {
    world: Arc<World>,
    life: Life,
    inner: MemorySource,
    closed: bool,
}

impl Tap {
    pub(crate) fn new(world: &Arc<World>, life: Life, inner: MemorySource) -> Self {
        Self { world: world.clone(), life, inner, closed: false }
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
        let event = self.inner.next().await?;
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
            SourceEvent::End => {}
        }
        Ok(event)
    }

    async fn commit(&mut self, commits: Vec<Commit>) -> Result<(), SourceError> {
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
