//! Finds unhandled messages: letters in a store that all members share, or records in topics.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use lazaret_core::store::LetterStore;
use lazaret_core::{Headers, LetterState, MessageId, QueueName};
use lazaret_source_kafka::{RetryTopics, headers};
use lazaret_store_sqlite::SqliteStore;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::message::{Headers as _, Message as _};
use rdkafka::{Offset, TopicPartitionList};

use super::{CONSUMER, PARTITIONS, Which};
use crate::support::{LONG, Topic, client};

/// Finds which positions of unhandled messages are held durably elsewhere.
pub(crate) trait Letters {
    async fn are_held(&mut self, places: &[(u32, u64)]) -> Vec<bool>;

    /// Returns `true` if nothing will be tried any more.
    async fn are_quiet(&mut self) -> bool;
}

/// The letters of the store that all members share.
pub(crate) struct Stored<'a> {
    store: Arc<SqliteStore>,
    topic: &'a str,
    queue: QueueName,
}

impl<'a> Stored<'a> {
    pub(crate) fn new(store: Arc<SqliteStore>, topic: &'a Topic) -> Self {
        Self { store, topic: &topic.name, queue: QueueName::of(CONSUMER, CONSUMER) }
    }
}

impl Letters for Stored<'_> {
    async fn are_held(&mut self, places: &[(u32, u64)]) -> Vec<bool> {
        let ids: Vec<MessageId> = places
            .iter()
            .map(|(partition, offset)| format!("{}/{partition}/{offset}", self.topic).into())
            .collect();
        let states = self.store.lookup(&self.queue, &ids).await.unwrap();
        states.into_iter().map(|state| state.is_some()).collect()
    }

    /// Letters that wait behind a head are tried in sequence when the head is handled. Counting the
    /// letters to be retried is therefore not enough: each open sequence must have a head that will not
    /// be tried any more.
    async fn are_quiet(&mut self) -> bool {
        let mut after = None;
        loop {
            let page = self.store.heads(&self.queue, after.as_deref(), 500).await.unwrap();
            if page.heads.iter().any(|head| head.state != LetterState::Dead) {
                return false;
            }
            after = page.next;
            if after.is_none() {
                return true;
            }
        }
    }
}

/// The records in retry topics and the dead-letter topic, and the letters that the store took because
/// the broker did not.
pub(crate) struct InTopics<'a> {
    stored: Stored<'a>,
    reader: BaseConsumer,
    asker: BaseConsumer,
    retries: Vec<String>,
    all: Vec<String>,
    held: BTreeSet<(u32, u64)>,
    /// The next offset to read in each partition.
    next: BTreeMap<(String, i32), i64>,
}

impl<'a> InTopics<'a> {
    /// Reads the topics of this chain, which must exist, without a group.
    pub(crate) fn new(store: Arc<SqliteStore>, topic: &'a Topic, topics: &RetryTopics) -> Self {
        let retries = topics.retry_topics(&topic.name);
        let all: Vec<String> =
            retries.iter().cloned().chain([topics.dead_letter_topic(&topic.name)]).collect();
        let reader: BaseConsumer = client(&topic.brokers).set("group.id", "nobody").create().unwrap();
        let asker = client(&topic.brokers).set("group.id", &topic.group).create().unwrap();
        let mut list = TopicPartitionList::new();
        let mut next = BTreeMap::new();
        for name in &all {
            for partition in 0..PARTITIONS as i32 {
                list.add_partition_offset(name, partition, Offset::Beginning).unwrap();
                next.insert((name.clone(), partition), 0);
            }
        }
        reader.assign(&list).unwrap();
        Self { stored: Stored::new(store, topic), reader, asker, retries, all, held: BTreeSet::new(), next }
    }

    fn ends(&self) -> BTreeMap<(String, i32), i64> {
        let places =
            self.all.iter().flat_map(|name| (0..PARTITIONS as i32).map(move |partition| (name, partition)));
        places
            .map(|(name, partition)| {
                let (_, end) = self.reader.fetch_watermarks(name, partition, LONG).unwrap();
                ((name.clone(), partition), end)
            })
            .collect()
    }

    /// Reads up to the current ends of the topics.
    fn read(&mut self) {
        let (ends, started) = (self.ends(), Instant::now());
        while ends.iter().any(|(place, end)| self.next[place] < *end) {
            assert!(started.elapsed() < LONG, "{ends:?} {:?}", self.next);
            let Some(record) = self.reader.poll(Duration::from_millis(50)) else { continue };
            let record = record.unwrap();
            self.next.insert((record.topic().to_owned(), record.partition()), record.offset() + 1);
            let mut found = Headers::new();
            for header in record.headers().unwrap().iter() {
                found.push(header.key, header.value.unwrap_or_default().to_vec());
            }
            let relayed = headers::read(&found).unwrap();
            // I5: the message is unchanged.
            let which = Which::parse(std::str::from_utf8(record.payload().unwrap()).unwrap());
            assert_eq!(record.key(), Some(which.key.to_string().as_bytes()));
            assert_eq!(relayed.partition, which.key % PARTITIONS);
            self.held.insert((relayed.partition, relayed.offset));
        }
    }
}

impl Letters for InTopics<'_> {
    async fn are_held(&mut self, places: &[(u32, u64)]) -> Vec<bool> {
        if !places.iter().all(|place| self.held.contains(place)) {
            self.read();
        }
        let stored = self.stored.are_held(places).await;
        places.iter().zip(stored).map(|(place, stored)| stored || self.held.contains(place)).collect()
    }

    async fn are_quiet(&mut self) -> bool {
        let mut list = TopicPartitionList::new();
        self.retries.iter().for_each(|name| list.add_partition_range(name, 0, PARTITIONS as i32 - 1));
        let list = self.asker.committed_offsets(list, LONG).unwrap();
        // Requested only now: a message that moved on from one topic is in the next one before its
        // position is committed.
        let ends = self.ends();
        let drained = list.elements().iter().all(|element| {
            let end = ends[&(element.topic().to_owned(), element.partition())];
            end == 0 || element.offset() == Offset::Offset(end)
        });
        drained && self.stored.are_quiet().await
    }
}
