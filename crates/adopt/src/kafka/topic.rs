//! A dead-letter topic as a source of foreign dead letters.

use std::collections::BTreeMap;

use async_trait::async_trait;
use lazaret_core::source::SourceError;
use lazaret_source_kafka::{KafkaOptions, TopicReader};
use serde::{Deserialize, Serialize};

use super::decode::Decoder;
use crate::source::{Cursor, DeadLetterSource, Found};

/// The offset at which reading continues in each partition of a topic.
///
/// ```
/// use lazaret_adopt::Cursor;
/// use lazaret_adopt::kafka::Offsets;
///
/// let mut next = Offsets([(0, 7), (1, 3)].into());
/// next.move_back_to(&(0, 5));
/// assert!(next.is_past(&(0, 4)) && !next.is_past(&(0, 5)) && next.is_past(&(1, 2)));
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Offsets(pub BTreeMap<u32, u64>);

impl Cursor for Offsets {
    /// The partition and the offset.
    type Place = (u32, u64);

    fn move_back_to(&mut self, (partition, offset): &Self::Place) {
        let next = self.0.entry(*partition).or_insert(*offset);
        *next = (*next).min(*offset);
    }

    fn is_past(&self, (partition, offset): &Self::Place) -> bool {
        self.0.get(partition).is_some_and(|next| offset < next)
    }
}

/// Reads a dead-letter topic.
pub(super) struct DeadLetterTopic {
    pub(super) options: KafkaOptions,
    pub(super) topic: String,
    /// Whether reading ends at the end that the topic has when it is opened.
    pub(super) bounded: bool,
    pub(super) decoder: Decoder,
    /// The reader. `None` until the topic is opened.
    pub(super) reader: Option<TopicReader>,
}

#[async_trait]
impl DeadLetterSource for DeadLetterTopic {
    type Cursor = Offsets;

    async fn open(&mut self, Offsets(next): Offsets) -> Result<(), SourceError> {
        let reader = TopicReader::open(&self.options, &self.topic, &next, self.bounded).await?;
        self.reader = Some(reader);
        Ok(())
    }

    async fn read(&mut self) -> Result<Vec<Found<(u32, u64)>>, SourceError> {
        let Some(reader) = &mut self.reader else { return Ok(Vec::new()) };
        let records = reader.read().await?;
        let found = records.into_iter().map(|record| Found {
            place: (record.partition.index, record.offset),
            address: format!("{}/{}", record.partition, record.offset),
            content: self.decoder.decode(record).into(),
        });
        Ok(found.collect())
    }

    fn cursor(&self) -> Offsets {
        Offsets(self.reader.as_ref().map(TopicReader::next_offsets).unwrap_or_default())
    }

    fn remaining(&self) -> u64 {
        self.reader.as_ref().map_or(0, TopicReader::remaining)
    }

    fn deleted(&self) -> u64 {
        self.reader.as_ref().map_or(0, TopicReader::deleted)
    }
}
