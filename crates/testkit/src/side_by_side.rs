//! Sources with one partition each, seen as one source with several.

use std::sync::Arc;

use async_trait::async_trait;
use futures_util::future::select_all;
use lazaret_core::incarnation::IncarnationRegistry;
use lazaret_core::source::{Commit, Source, SourceError, SourceEvent};
use lazaret_core::{Message, Partition, Position, StreamName};

/// Several sources with one partition each, so that the [source suite](crate::source_test_suite), whose cases need two
/// partitions, can test them. The nth source is the nth partition; nothing else is changed.
pub struct SideBySide {
    stream: StreamName,
    parts: Vec<Part>,
}

struct Part {
    source: Box<dyn Source>,
    /// The partition by its name in the source.
    inner: Partition,
    ended: bool,
}

impl SideBySide {
    /// These sources as one with this stream. Each comes with the one partition that it has.
    pub fn new(stream: impl Into<StreamName>, sources: Vec<(Box<dyn Source>, Partition)>) -> Self {
        let part = |(source, inner)| Part { source, inner, ended: false };
        Self { stream: stream.into(), parts: sources.into_iter().map(part).collect() }
    }

    /// The source of an outer partition.
    fn part(&mut self, partition: &Partition) -> Option<&mut Part> {
        if partition.stream != self.stream {
            return None;
        }
        self.parts.get_mut(partition.index as usize)
    }

    /// Calls `act` with the source of each of these partitions.
    fn each(&mut self, partitions: &[Partition], mut act: impl FnMut(&mut dyn Source, &[Partition])) {
        for partition in partitions {
            if let Some(part) = self.part(partition) {
                act(&mut *part.source, std::slice::from_ref(&part.inner));
            }
        }
    }

    /// Translates an event of a source: its partition becomes the outer one.
    fn translate(&mut self, index: usize, event: SourceEvent) -> Option<SourceEvent> {
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
                self.parts[index].ended = false;
                for assignment in &mut assignments {
                    assignment.partition = outer.clone();
                }
                SourceEvent::Assigned(assignments)
            }
            SourceEvent::Revoking(partitions) => SourceEvent::Revoking(rename(partitions)),
            SourceEvent::Lost(partitions) => SourceEvent::Lost(rename(partitions)),
            SourceEvent::Recreated(partitions) => SourceEvent::Recreated(rename(partitions)),
            // No commit is begun here.
            SourceEvent::Committed(_) => return None,
            SourceEvent::End => {
                self.parts[index].ended = true;
                return self.parts.iter().all(|part| part.ended).then_some(SourceEvent::End);
            }
        })
    }
}

#[async_trait]
impl Source for SideBySide {
    fn attach(&mut self, registry: Arc<dyn IncarnationRegistry>) {
        self.parts.iter_mut().for_each(|part| part.source.attach(registry.clone()));
    }

    async fn next(&mut self) -> Result<SourceEvent, SourceError> {
        loop {
            let waiting = self.parts.iter_mut().map(|part| part.source.next());
            let (event, index, _) = select_all(waiting).await;
            if let Some(event) = self.translate(index, event?) {
                return Ok(event);
            }
        }
    }

    async fn commit(&mut self, commits: Vec<Commit>) -> Result<(), SourceError> {
        for mut commit in commits {
            let Some(part) = self.part(&commit.partition) else { continue };
            commit.partition = part.inner.clone();
            if let Some(position) = &mut commit.position {
                position.partition = part.inner.index;
            }
            part.source.commit(vec![commit]).await?;
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
            if let Some(part) = self.part(partition) {
                part.source.revoked(std::slice::from_ref(&part.inner)).await?;
            }
        }
        Ok(())
    }

    async fn close(&mut self) -> Result<(), SourceError> {
        for part in &mut self.parts {
            part.source.close().await?;
        }
        Ok(())
    }

    fn lag(&self) -> Option<u64> {
        self.parts.iter().map(|part| part.source.lag()).sum()
    }
}
