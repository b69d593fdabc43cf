//! Incarnations: the lives of a stream.
//!
//! A Kafka topic lives from its creation to its deletion, a collection until it is dropped, an outbox table until it is replaced. When
//! the same name exists again, its offsets begin again, and say nothing about the messages of the life before. Whatever is known by
//! position belongs to one incarnation: positions, the ids that sources [make](crate::MessageId::given) from them, horizons, attempt
//! notes, and the marks of the duplicate filter. In a new incarnation nothing is taken for known (I1).
//!
//! A source learns an id of the incarnation from its server, such as the topic id of Kafka. The store keeps, per consumer and stream,
//! which incarnations were seen, and counts them: the number is part of each [`Partition`] and
//! [`Position`](crate::Position). The first has the number 0, which is not written.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::message::{Partition, PartitionNumber, StreamName};
use crate::store::Result;

/// One life of a stream, or of a partition.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Incarnation {
    /// Its number: how many were seen before it.
    pub number: u32,
    /// Its id, as its server gives it. `None` where a server has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<Arc<str>>,
    /// When it was first seen, by the store's clock.
    pub since: Timestamp,
}

/// The current incarnations of one stream.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StreamIncarnations {
    /// That of the whole stream.
    pub stream: Incarnation,
    /// Those of partitions that began anew by themselves, such as one whose log was truncated, while the stream went on.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub partitions: BTreeMap<u32, Incarnation>,
}

impl StreamIncarnations {
    /// The current incarnation of a partition.
    pub fn of(&self, index: u32) -> &Incarnation {
        self.partitions.get(&index).unwrap_or(&self.stream)
    }

    /// Gives the current incarnations this id, and returns whether the stream had none. Partitions that began anew by themselves are
    /// of the same server's stream.
    fn identify(&mut self, id: Option<&Arc<str>>) -> bool {
        let Some(id) = id.filter(|_| self.stream.id.is_none()) else { return false };
        let all = std::iter::once(&mut self.stream).chain(self.partitions.values_mut());
        all.filter(|known| known.id.is_none()).for_each(|known| known.id = Some(id.clone()));
        true
    }

    /// The highest number that was given.
    fn highest(&self) -> u32 {
        self.partitions.values().map(|partition| partition.number).fold(self.stream.number, u32::max)
    }
}

/// The beginning of an incarnation, as a source saw it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Beginning {
    /// The stream.
    pub stream: StreamName,
    /// The partition that began anew by itself; `None` for the whole stream.
    pub partition: Option<u32>,
    /// Its id, if its server has one.
    pub id: Option<Arc<str>>,
    /// The number of the incarnation that it follows; `None` if it follows none: the stream was not seen before, or was recorded when
    /// its server had no ids, and has this one. Of several instances that see the same beginning, one records it, and the others get
    /// what it recorded.
    pub after: Option<u32>,
}

/// The incarnations of the streams of one consumer.
///
/// ```
/// use lazaret_core::incarnation::{Beginning, Incarnations};
/// use lazaret_core::{Partition, Timestamp};
/// let mut seen = Incarnations::default();
/// let orders = Partition::new("orders", 3);
/// let beginning = |id: &str, after| {
///     Beginning { stream: "orders".into(), partition: None, id: Some(id.into()), after }
/// };
/// assert!(seen.begin(&beginning("a", None), Timestamp::UNIX_EPOCH));
/// assert!(seen.begin(&beginning("b", Some(0)), Timestamp::UNIX_EPOCH));
/// assert_eq!(seen.current(&orders).unwrap().number, 1);
/// // Another instance saw the same.
/// assert!(!seen.begin(&beginning("b", Some(0)), Timestamp::UNIX_EPOCH));
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Incarnations(pub BTreeMap<StreamName, StreamIncarnations>);

impl Incarnations {
    /// The current incarnation of the stream of a partition; `None` if the stream was not seen yet.
    pub fn current(&self, partition: &Partition) -> Option<&Incarnation> {
        self.0.get(&partition.stream).map(|stream| stream.of(partition.index))
    }

    /// Records a beginning, and returns whether it was new. Nothing changes when another instance has recorded one after the
    /// incarnation that the caller knew, or when no number is free any more.
    ///
    /// A beginning that follows none gives its id to a stream that was recorded without one, and begins nothing there.
    pub fn begin(&mut self, beginning: &Beginning, now: Timestamp) -> bool {
        let Beginning { stream, partition, id, after } = beginning;
        let first = Incarnation { number: 0, id: id.clone(), since: now };
        let Some(known) = self.0.get_mut(stream) else {
            if after.is_none() {
                self.0.insert(
                    stream.clone(),
                    StreamIncarnations { stream: first, partitions: BTreeMap::new() },
                );
            }
            return after.is_none();
        };
        if after.is_none() && partition.is_none() {
            return known.identify(id.as_ref());
        }
        let current = partition.map_or(&known.stream, |index| known.of(index));
        let number = known.highest() + 1;
        if *after != Some(current.number) || number > PartitionNumber::MAX_INCARNATION {
            return false;
        }
        let begun = Incarnation { number, ..first };
        match partition {
            Some(index) => {
                known.partitions.insert(*index, begun);
            }
            // Partitions that had begun anew are of the earlier incarnation.
            None => *known = StreamIncarnations { stream: begun, partitions: BTreeMap::new() },
        }
        true
    }
}

/// The incarnations that one consumer has seen, durably. A source gets it when its consumer starts
/// ([`Source::attach`](crate::Source::attach)).
#[async_trait]
pub trait IncarnationRegistry: Send + Sync + 'static {
    /// All that are known.
    async fn incarnations(&self) -> Result<Incarnations>;

    /// Records a beginning, and returns all that are known then. See [`Incarnations::begin`].
    async fn begin(&self, beginning: &Beginning) -> Result<Incarnations>;

    /// The highest offset of each of these partitions that the consumer ever handed off to its store, in order; `None` for none. A
    /// partition with one was read, whatever its server says. The default knows none.
    async fn horizons(&self, partitions: &[Partition]) -> Result<Vec<Option<u64>>> {
        Ok(vec![None; partitions.len()])
    }
}

/// For streams that begin anew as a whole, such as a collection or an outbox.
impl dyn IncarnationRegistry + '_ {
    /// The current incarnation of a stream; the first one is recorded, with this id. `None` if the registry recorded none.
    pub async fn current_or_first(
        &self,
        stream: &StreamName,
        id: Option<&Arc<str>>,
    ) -> Result<Option<Incarnation>> {
        match in_stream(&self.incarnations().await?, stream) {
            Some(current) => Ok(Some(current)),
            None => self.begin_whole(stream, id, None).await,
        }
    }

    /// Records that an incarnation with this id follows the current one, and returns the one that is recorded then: another instance
    /// may have been faster. `None` if the registry recorded none.
    pub async fn begin_after(
        &self,
        current: u32,
        stream: &StreamName,
        id: Option<&Arc<str>>,
    ) -> Result<Option<Incarnation>> {
        let begun = self.begin_whole(stream, id, Some(current)).await?;
        Ok(begun.filter(|begun| begun.number > current))
    }

    async fn begin_whole(
        &self,
        stream: &StreamName,
        id: Option<&Arc<str>>,
        after: Option<u32>,
    ) -> Result<Option<Incarnation>> {
        let beginning = Beginning { stream: stream.clone(), partition: None, id: id.cloned(), after };
        Ok(in_stream(&self.begin(&beginning).await?, stream))
    }
}

fn in_stream(known: &Incarnations, stream: &StreamName) -> Option<Incarnation> {
    known.0.get(stream).map(|known| known.stream.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp::UNIX_EPOCH;

    fn stream(id: &str, after: Option<u32>) -> Beginning {
        Beginning { stream: "orders".into(), partition: None, id: Some(id.into()), after }
    }

    fn partition(index: u32, after: u32) -> Beginning {
        Beginning { partition: Some(index), ..stream("a", Some(after)) }
    }

    fn number(seen: &Incarnations, index: u32) -> u32 {
        seen.current(&Partition::new("orders", index)).unwrap().number
    }

    #[test]
    fn no_two_incarnations_of_a_partition_have_one_number() {
        // I1: their positions would be taken for the same.
        let mut seen = Incarnations::default();
        assert!(seen.begin(&stream("a", None), NOW));
        assert!(seen.begin(&partition(2, 0), NOW));
        assert!(seen.begin(&partition(5, 0), NOW));
        assert!(seen.begin(&partition(2, 1), NOW));
        assert_eq!([0, 2, 5].map(|index| number(&seen, index)), [0, 3, 2]);
        assert!(seen.begin(&stream("b", Some(0)), NOW));
        assert_eq!([0, 2, 5].map(|index| number(&seen, index)), [4, 4, 4]);
    }

    #[test]
    fn one_beginning_that_several_instances_see_is_recorded_once() {
        let mut seen = Incarnations::default();
        assert!(seen.begin(&stream("a", None), NOW));
        assert!(!seen.begin(&stream("a", None), NOW));
        assert!(seen.begin(&stream("b", Some(0)), NOW));
        let before = seen.clone();
        assert!(!seen.begin(&stream("b", Some(0)), NOW));
        assert!(!seen.begin(&stream("c", Some(0)), NOW));
        assert!(!seen.begin(&partition(1, 0), NOW));
        assert_eq!(seen, before);
    }

    #[test]
    fn a_stream_that_was_recorded_without_an_id_gets_the_one_that_it_has() {
        // I1: without it, the next stream of that name would be taken for this one.
        let unnamed = |after| Beginning { id: None, ..stream("", after) };
        let mut seen = Incarnations::default();
        assert!(seen.begin(&unnamed(None), NOW));
        assert!(seen.begin(&Beginning { partition: Some(3), ..unnamed(Some(0)) }, NOW));
        assert!(!seen.begin(&unnamed(None), NOW));
        let later = NOW + std::time::Duration::from_secs(60);
        assert!(seen.begin(&stream("a", None), later));
        let known = &seen.0[&StreamName::from("orders")];
        assert_eq!(known.stream, Incarnation { number: 0, id: Some("a".into()), since: NOW });
        assert_eq!((known.of(3).number, known.of(3).id.as_deref()), (1, Some("a")));
        assert!(!seen.begin(&stream("b", None), later), "an id is given once");
        assert!(seen.begin(&stream("b", Some(0)), later));
        assert_eq!(number(&seen, 3), 2);
    }

    #[test]
    fn nothing_begins_after_an_incarnation_that_was_never_seen() {
        let mut seen = Incarnations::default();
        assert!(!seen.begin(&stream("a", Some(0)), NOW));
        assert_eq!(seen, Incarnations::default());
    }

    #[test]
    fn what_was_recorded_is_read_back() {
        let mut seen = Incarnations::default();
        seen.begin(&stream("a", None), NOW);
        seen.begin(&partition(7, 0), NOW);
        let text = serde_json::to_string(&seen).unwrap();
        assert_eq!(serde_json::from_str::<Incarnations>(&text).unwrap(), seen);
    }

    /// A registry in memory.
    #[derive(Default)]
    struct Registry(std::sync::Mutex<Incarnations>);

    #[async_trait]
    impl IncarnationRegistry for Registry {
        async fn incarnations(&self) -> Result<Incarnations> {
            Ok(self.0.lock().unwrap().clone())
        }

        async fn begin(&self, beginning: &Beginning) -> Result<Incarnations> {
            let mut known = self.0.lock().unwrap();
            known.begin(beginning, NOW);
            Ok(known.clone())
        }
    }

    #[tokio::test]
    async fn a_stream_that_begins_anew_as_a_whole_is_recorded_once_per_beginning() {
        // I1
        let registry: &dyn IncarnationRegistry = &Registry::default();
        let orders = StreamName::from("orders");
        let [a, b, c]: [Arc<str>; 3] = ["a", "b", "c"].map(Into::into);
        let first = registry.current_or_first(&orders, Some(&a)).await.unwrap().unwrap();
        assert_eq!((first.number, first.id), (0, Some(a)));
        let again = registry.current_or_first(&orders, Some(&b)).await.unwrap().unwrap();
        assert_eq!(again.number, 0, "a look begins nothing");
        let begun = registry.begin_after(0, &orders, Some(&b)).await.unwrap().unwrap();
        assert_eq!((begun.number, begun.id.clone()), (1, Some(b)));
        let slower = registry.begin_after(0, &orders, Some(&c)).await.unwrap().unwrap();
        assert_eq!(slower, begun, "another instance recorded it");
        assert_eq!(registry.begin_after(5, &orders, Some(&c)).await.unwrap(), None);
    }
}
