//! The source of one process, whose deliveries and commits are traced and checked.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use lazaret_core::Partition;
use lazaret_core::incarnation::IncarnationRegistry;
use lazaret_core::source::{Commit, Ownership, Source, SourceError, SourceEvent};
use lazaret_memory::MemorySource;
use tokio::time::Instant;

use crate::broker::Returns;
use crate::suspend::SESSION;
use crate::world::{Process, World};

/// A memory source whose deliveries and commits are traced and checked.
pub(crate) struct CheckedSource {
    world: Arc<World>,
    process: Process,
    inner: MemorySource,
    /// The commit in progress.
    pending: Option<PendingCommit>,
    /// The number of commits started so far.
    started_commits: u32,
    closed: bool,
    returns: Returns,
    /// How long the member is certainly one of the group. Another one after each loss.
    ownership: Ownership,
}

/// A commit in progress.
struct PendingCommit {
    commits: Vec<Commit>,
    /// The number of other events after which it ends.
    after: u32,
    /// When it ends at the latest. A point in time, because the engine may cancel `next` and call it again.
    until: Instant,
}

/// The longest duration of a commit.
const COMMIT_TIME: Duration = Duration::from_millis(3);
/// Every commit with a multiple of this number fails.
const FAILS_EVERY: u32 = 7;

impl CheckedSource {
    pub(crate) fn new(world: &Arc<World>, process: Process, inner: MemorySource) -> Self {
        Self {
            world: world.clone(),
            process,
            inner,
            pending: None,
            started_commits: 0,
            closed: false,
            returns: Returns::default(),
            ownership: world.ownership(),
        }
    }

    /// Checks the commits, then commits them.
    async fn commit_checked(&mut self, commits: Vec<Commit>) -> Result<(), SourceError> {
        for commit in &commits {
            let partition = commit.partition.index;
            // The log ignores positions of earlier incarnations.
            let is_current = commit.partition.incarnation == self.world.log.incarnation();
            if is_current && self.world.log.owner(partition) == Some(self.inner.member()) {
                self.world
                    .trace(|| format!("process {} committed {:?}", self.process.number, commit.position));
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

    /// Waits for the next event of the log, and shows the group meanwhile that the member lives.
    async fn next_of_log(&mut self) -> Result<SourceEvent, SourceError> {
        if !self.world.plan.suspends {
            return self.inner.next().await;
        }
        self.world.has_asked(&self.process);
        loop {
            if self.world.log.members().contains(&self.process.member) {
                self.ownership.confirm(self.ownership.now(), SESSION);
            }
            tokio::select! {
                biased;
                event = self.inner.next() => return event,
                () = tokio::time::sleep(SESSION / 3) => {}
            }
        }
    }

    /// Ends the commit in progress and returns its result.
    async fn end_commit(&mut self) -> Result<SourceEvent, SourceError> {
        if self.started_commits.is_multiple_of(FAILS_EVERY) {
            self.pending = None;
            return Ok(SourceEvent::Committed(Err(SourceError::temporary("this commit fails"))));
        }
        // It stays in progress until it is done: the engine may cancel this call.
        let commits = self.pending.as_ref().map(|pending| pending.commits.clone()).unwrap_or_default();
        self.commit_checked(commits).await?;
        self.pending = None;
        Ok(SourceEvent::Committed(Ok(())))
    }

    fn trace(&self, what: &str, partitions: &[Partition]) {
        self.world.trace(|| {
            let numbers: Vec<u32> = partitions.iter().map(|partition| partition.index).collect();
            format!("process {} {what} {numbers:?}", self.process.number)
        });
    }
}

#[async_trait]
impl Source for CheckedSource {
    fn attach(&mut self, registry: Arc<dyn IncarnationRegistry>) {
        self.inner.attach(registry);
    }

    async fn next(&mut self) -> Result<SourceEvent, SourceError> {
        let mut event = match &mut self.pending {
            None => self.next_of_log().await?,
            Some(PendingCommit { after: 0, .. }) => return self.end_commit().await,
            Some(pending) => tokio::select! {
                biased;
                event = self.inner.next() => {
                    pending.after -= 1;
                    event?
                }
                () = tokio::time::sleep_until(pending.until) => return self.end_commit().await,
            },
        };
        match &mut event {
            SourceEvent::Messages(messages) => {
                messages.iter_mut().for_each(|message| self.returns.returned(message));
                self.world.delivered(messages);
                self.world.trace(|| {
                    let ids: Vec<&str> = messages.iter().map(|message| message.id.as_str()).collect();
                    format!("process {} read {ids:?}", self.process.number)
                });
            }
            SourceEvent::Assigned(all) => {
                self.ownership.confirm(self.ownership.now(), SESSION);
                all.iter_mut().for_each(|assignment| assignment.ownership = self.ownership.clone());
                let partitions: Vec<Partition> = all.iter().map(|a| a.partition.clone()).collect();
                self.trace("was assigned", &partitions);
                let now = self.world.now();
                for partition in &partitions {
                    let key = (self.process.number, partition.index);
                    let mut history = self.world.history();
                    history.assigned.insert(key, now);
                    history.leaving.remove(&key);
                }
                let retries = self.world.retry_partition();
                if partitions.iter().any(|partition| Some(partition.index) == retries) {
                    self.returns.assigned();
                }
            }
            SourceEvent::Revoking(partitions) => {
                self.trace("has to give up", partitions);
                self.world.leaving(self.process.number, Some(partitions));
            }
            SourceEvent::Lost(partitions) => {
                self.trace("lost", partitions);
                self.ownership.end();
                self.ownership = self.world.ownership();
                let numbers: Vec<u32> = partitions.iter().map(|partition| partition.index).collect();
                self.world.process_lost(self.process.number, Some(&numbers));
            }
            SourceEvent::Recreated(partitions) => self.trace("saw the recreation of", partitions),
            SourceEvent::End | SourceEvent::Committed(_) => {}
        }
        Ok(event)
    }

    async fn commit(&mut self, commits: Vec<Commit>) -> Result<(), SourceError> {
        if let Some(pending) = self.pending.take() {
            self.commit_checked(pending.commits).await?;
        }
        self.commit_checked(commits).await
    }

    fn begin_commit(&mut self, commits: Vec<Commit>) -> Result<(), Vec<Commit>> {
        self.started_commits += 1;
        let after = (self.started_commits + self.process.number as u32) % 4;
        self.pending = Some(PendingCommit { commits, after, until: Instant::now() + COMMIT_TIME });
        Ok(())
    }

    fn pause(&mut self, partitions: &[Partition]) {
        self.trace("paused", partitions);
        self.inner.pause(partitions);
    }

    fn resume(&mut self, partitions: &[Partition]) {
        self.trace("resumed", partitions);
        self.inner.resume(partitions);
    }

    fn rewind(&mut self, partitions: &[Partition]) {
        self.trace("rewound", partitions);
        let numbers: Vec<u32> = partitions.iter().map(|partition| partition.index).collect();
        self.world.process_lost(self.process.number, Some(&numbers));
        self.inner.rewind(partitions);
    }

    async fn revoked(&mut self, partitions: &[Partition]) -> Result<(), SourceError> {
        self.trace("gave up", partitions);
        let numbers: Vec<u32> = partitions.iter().map(|partition| partition.index).collect();
        self.world.partitions_returned(&self.process, &numbers);
        self.inner.revoked(partitions).await
    }

    async fn close(&mut self) -> Result<(), SourceError> {
        self.world.trace(|| format!("process {} closed its source", self.process.number));
        let all: Vec<u32> = (0..self.world.log.partitions()).collect();
        self.world.partitions_returned(&self.process, &all);
        self.closed = true;
        self.inner.close().await
    }
}

impl Drop for CheckedSource {
    fn drop(&mut self) {
        if !self.closed {
            // The process has crashed, and its partitions go to other members. Its memory is lost.
            self.world.process_lost(self.process.number, None);
        }
    }
}
