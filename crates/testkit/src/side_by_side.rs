//! Sources with one partition each, seen as one source with several.

use async_trait::async_trait;
use futures_util::future::select_all;
use lazaret_core::source::{Commit, Source, SourceError, SourceEvent};
use lazaret_core::{Message, Partition, Position, StreamName};

/// Several sources with one partition each, so that the [source suite](crate::source_test_suite), whose cases need two
/// partitions, can look at them. The nth source is the nth partition; nothing else changes on the way.
pub struct SideBySide {
    stream: StreamName,
    lanes: Vec<Lane>,
}

struct Lane {
    source: Box<dyn Source>,
    /// The partition as the source calls it.
    inner: Partition,
    ended: bool,
}

impl SideBySide {
    /// These sources as one with this stream. Each comes with the one partition that it has.
    pub fn new(stream: impl Into<StreamName>, sources: Vec<(Box<dyn Source>, Partition)>) -> Self {
        let lane = |(source, inner)| Lane { source, inner, ended: false };
        Self { stream: stream.into(), lanes: sources.into_iter().map(lane).collect() }
    }

    /// The lane of a partition as the outside calls it.
    fn lane(&mut self, partition: &Partition) -> Option<&mut Lane> {
        if partition.stream != self.stream {
            return None;
        }
        self.lanes.get_mut(partition.index as usize)
    }

    /// Does something with the source of each of these partitions.
    fn each(&mut self, partitions: &[Partition], mut act: impl FnMut(&mut dyn Source, &[Partition])) {
        for partition in partitions {
            if let Some(lane) = self.lane(partition) {
                act(&mut *lane.source, std::slice::from_ref(&lane.inner));
            }
        }
    }

    /// What the source in a lane said, in the words of the outside.
    fn outward(&mut self, index: usize, event: SourceEvent) -> Option<SourceEvent> {
        let outer = Partition::new(self.stream.clone(), index as u32);
        let rename = |inner: Vec<Partition>| inner.iter().map(|_| outer.clone()).collect();
        Some(match event {
            SourceEvent::Messages(messages) => {
                let place = |message: Message| Message {
                    stream: outer.stream.clone(),
                    position: Position { partition: outer.index, ..message.position },
                    ..message
                };
                SourceEvent::Messages(messages.into_iter().map(place).collect())
            }
            SourceEvent::Assigned(mut assignments) => {
                self.lanes[index].ended = false;
                for assignment in &mut assignments {
                    assignment.partition = outer.clone();
                }
                SourceEvent::Assigned(assignments)
            }
            SourceEvent::Revoking(partitions) => SourceEvent::Revoking(rename(partitions)),
            SourceEvent::Lost(partitions) => SourceEvent::Lost(rename(partitions)),
            // None is begun here.
            SourceEvent::Committed(_) => return None,
            SourceEvent::End => {
                self.lanes[index].ended = true;
                return self.lanes.iter().all(|lane| lane.ended).then_some(SourceEvent::End);
            }
        })
    }
}

#[async_trait]
impl Source for SideBySide {
    async fn next(&mut self) -> Result<SourceEvent, SourceError> {
        loop {
            let waiting = self.lanes.iter_mut().map(|lane| lane.source.next());
            let (event, index, _) = select_all(waiting).await;
            if let Some(event) = self.outward(index, event?) {
                return Ok(event);
            }
        }
    }

    async fn commit(&mut self, commits: Vec<Commit>) -> Result<(), SourceError> {
        for mut commit in commits {
            let Some(lane) = self.lane(&commit.partition) else { continue };
            commit.partition = lane.inner.clone();
            if let Some(position) = &mut commit.position {
                position.partition = lane.inner.index;
            }
            lane.source.commit(vec![commit]).await?;
        }
        Ok(())
    }

    fn pause(&mut self, partitions: &[Partition]) {
        self.each(partitions, |source, inner| source.pause(inner));
    }

    fn resume(&mut self, partitions: &[Partition]) {
        self.each(partitions, |source, inner| source.resume(inner));
    }

    fn rewind(&mut self, partitions: &[Partition]) {
        self.each(partitions, |source, inner| source.rewind(inner));
    }

    async fn revoked(&mut self, partitions: &[Partition]) -> Result<(), SourceError> {
        for partition in partitions {
            if let Some(lane) = self.lane(partition) {
                lane.source.revoked(std::slice::from_ref(&lane.inner)).await?;
            }
        }
        Ok(())
    }

    async fn close(&mut self) -> Result<(), SourceError> {
        for lane in &mut self.lanes {
            lane.source.close().await?;
        }
        Ok(())
    }

    fn lag(&self) -> Option<u64> {
        self.lanes.iter().map(|lane| lane.source.lag()).sum()
    }
}
