//! The stream of a run: messages made from the plan, with the position of each partition in the store's checkpoints.

use std::ops::RangeInclusive;
use std::sync::Arc;

use async_trait::async_trait;
use lazaret_core::source::{Assignment, Commit, SourceError, SourceEvent};
use lazaret_core::store::{Anchor, Checkpoint, Checkpoints, StoreError};
use lazaret_core::{Partition, Source, Timestamp};

use crate::plan::{CONSUMER, PARTITIONS, Plan};

/// The most messages per event.
const BATCH: usize = 64;
/// The metadata key of the ranges settled beyond the position.
const SETTLED: &str = "settled";

/// A finite source that generates its messages.
pub struct PlannedSource<C> {
    plan: Plan,
    checkpoints: Arc<C>,
    /// The last committed offset of each partition; `None` until it was read.
    committed: Option<Vec<Option<u64>>>,
    next: u64,
    held: [bool; PARTITIONS as usize],
    ended: bool,
}

impl<C: Checkpoints> PlannedSource<C> {
    /// The messages of a plan, from the checkpoints on.
    pub fn new(plan: Plan, checkpoints: Arc<C>) -> Self {
        let held = [false; PARTITIONS as usize];
        Self { plan, checkpoints, committed: None, next: 0, held, ended: false }
    }

    async fn assign(&mut self) -> Result<SourceEvent, SourceError> {
        let mut committed = Vec::new();
        let mut assignments = Vec::new();
        for index in 0..PARTITIONS {
            let checkpoint = self.checkpoints.load(&name(index)).await.map_err(unavailable)?;
            let (offset, settled) = read(checkpoint.unwrap_or_default())?;
            committed.push(offset);
            assignments.push(Assignment::new(Partition::new(CONSUMER, index), settled));
        }
        self.next = committed.iter().map(|offset| offset.map_or(0, |offset| offset + 1)).min().unwrap_or(0);
        self.committed = Some(committed);
        Ok(SourceEvent::Assigned(assignments))
    }
}

/// The name of the checkpoint of a partition.
pub fn name(partition: u32) -> String {
    format!("{CONSUMER}/{partition}")
}

/// The committed offset of a checkpoint, and the ranges settled beyond it.
pub fn read(checkpoint: Checkpoint) -> Result<(Option<u64>, Vec<RangeInclusive<u64>>), SourceError> {
    let wrong = |text: &str| SourceError::permanent(format!("invalid checkpoint {text:?}"));
    let offset = match &checkpoint.processed {
        Some(anchor) => {
            let text = String::from_utf8_lossy(&anchor.token);
            Some(text.parse().map_err(|_| wrong(&text))?)
        }
        None => None,
    };
    let ranges = checkpoint.metadata.get(SETTLED).map(String::as_str).unwrap_or_default();
    let ranges = ranges.split_terminator(',').map(|range| {
        let (from, to) = range.split_once('-').ok_or_else(|| wrong(range))?;
        Ok(from.parse().map_err(|_| wrong(range))?..=to.parse().map_err(|_| wrong(range))?)
    });
    Ok((offset, ranges.collect::<Result<_, SourceError>>()?))
}

fn unavailable(error: StoreError) -> SourceError {
    SourceError::temporary("the checkpoints are unavailable").with_source(error)
}

#[async_trait]
impl<C: Checkpoints> Source for PlannedSource<C> {
    async fn next(&mut self) -> Result<SourceEvent, SourceError> {
        let Some(committed) = &self.committed else { return self.assign().await };
        if self.ended || self.held.contains(&true) {
            // In most cases all partitions are paused, or none.
            return std::future::pending().await;
        }
        let mut messages = Vec::with_capacity(BATCH);
        while self.next < self.plan.messages && messages.len() < BATCH {
            let number = self.next;
            self.next += 1;
            if committed[self.plan.partition(number) as usize].is_none_or(|offset| number > offset) {
                messages.push(self.plan.message(number));
            }
        }
        if messages.is_empty() {
            self.ended = true;
            return Ok(SourceEvent::End);
        }
        Ok(SourceEvent::Messages(messages))
    }

    async fn commit(&mut self, commits: Vec<Commit>) -> Result<(), SourceError> {
        for commit in commits {
            let place = commit.partition.index as usize;
            let before = self.committed.as_ref().and_then(|committed| committed[place]);
            let Some(offset) = commit.position.map(|position| position.offset).or(before) else { continue };
            let settled =
                commit.settled_beyond.iter().map(|range| format!("{}-{},", range.start(), range.end()));
            let anchor = Anchor { token: offset.to_string().into(), at: Timestamp::now() };
            let checkpoint = Checkpoint {
                processed: Some(anchor),
                metadata: [(SETTLED.to_owned(), settled.collect())].into(),
                ..Checkpoint::default()
            };
            self.checkpoints.save(&name(commit.partition.index), checkpoint).await.map_err(unavailable)?;
            if let Some(committed) = &mut self.committed {
                committed[place] = Some(offset);
            }
        }
        Ok(())
    }

    fn pause(&mut self, partitions: &[Partition]) {
        partitions.iter().for_each(|partition| self.held[partition.index as usize] = true);
    }

    fn resume(&mut self, partitions: &[Partition]) {
        partitions.iter().for_each(|partition| self.held[partition.index as usize] = false);
    }

    fn rewind(&mut self, _: &[Partition]) {
        // All partitions: the engine recognizes or repeats what is delivered twice.
        self.committed = None;
        self.ended = false;
        self.held = [false; PARTITIONS as usize];
    }

    async fn revoked(&mut self, _: &[Partition]) -> Result<(), SourceError> {
        Ok(())
    }

    async fn close(&mut self) -> Result<(), SourceError> {
        Ok(())
    }
}
