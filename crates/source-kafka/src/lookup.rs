//! Where to begin reading a partition: what was committed, and what the log still has.
//!
//! The questions to the brokers block, so they are asked in a thread of their own. The beginning is always an offset, never
//! "the end": a consumer that begins at the end and dies before its first commit would begin at a later end.

use std::ops::RangeInclusive;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use lazaret_core::Partition;
use lazaret_core::source::SourceError;
use rdkafka::Offset;
use rdkafka::consumer::{CommitMode, Consumer};
use rdkafka::error::{KafkaError, KafkaResult};
use tokio::sync::oneshot;

use crate::chain::Chain;
use crate::member::{Client, Clients, Member, add_offset, list_of, partition};
use crate::options::Reset;
use crate::settled::{self, Place};

/// How long to wait for one answer of the brokers.
const PATIENCE: Duration = Duration::from_secs(10);

/// Where a partition begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Beginning {
    pub(crate) partition: Partition,
    /// The first offset to read.
    pub(crate) start: u64,
    /// What is committed: the first offset that is not settled.
    pub(crate) committed: Option<u64>,
    /// What is settled from there on.
    pub(crate) settled: Vec<RangeInclusive<u64>>,
    /// The offset behind the last message.
    pub(crate) end: u64,
}

/// What the brokers know of a partition.
#[derive(Clone, Debug)]
struct Found {
    partition: Partition,
    committed: Option<(u64, String)>,
    low: u64,
    high: u64,
}

/// Where to begin without a committed position.
#[derive(Clone, Debug)]
pub(crate) struct Resets {
    pub(crate) streams: Reset,
    pub(crate) chain: Option<Arc<Chain>>,
}

impl Resets {
    /// Where to begin. What is in a retry topic was passed on by this group before it ever read there, and must not be missed.
    fn begin(&self, found: Found) -> Result<Beginning, Failed> {
        let topic = found.partition.stream.as_str();
        let retries = self.chain.as_ref().is_some_and(|chain| chain.of_retry_topic(topic).is_some());
        begin(found, if retries { Reset::Earliest } else { self.streams })
    }
}

/// Why there is no beginning.
#[derive(Debug)]
pub(crate) enum Failed {
    Client(KafkaError),
    Source(SourceError),
}

impl From<KafkaError> for Failed {
    fn from(error: KafkaError) -> Self {
        Self::Client(error)
    }
}

/// What a look-up is for.
#[derive(Clone, Debug)]
pub(crate) enum Purpose {
    /// The partitions were given to us.
    Come(Vec<Partition>),
    /// The partitions are ours and shall be read again, without a committed position from the offset where we began.
    Again(Vec<(Partition, u64)>),
}

/// An answer that is awaited.
pub(crate) type Answer = oneshot::Receiver<Result<Vec<Beginning>, Failed>>;

/// Asks the brokers. The member is woken when the answer is there.
pub(crate) fn start(clients: Clients, member: Member, purpose: Purpose, resets: Resets) -> Answer {
    let (sender, answer) = oneshot::channel();
    let ask = move || {
        let beginnings = look_up(&clients, &purpose, &resets);
        // The clients go first: whoever hears the answer may be the last one to hold them.
        drop(clients);
        // Nobody may be waiting any more.
        let _ = sender.send(beginnings);
        member.wake();
    };
    // Without a thread the sender is dropped, and that is an answer too.
    if let Err(error) = thread::Builder::new().name("lazaret-kafka-lookup".to_owned()).spawn(ask) {
        tracing::warn!(%error, "no thread to look up positions");
    }
    answer
}

fn look_up(clients: &Clients, purpose: &Purpose, resets: &Resets) -> Result<Vec<Beginning>, Failed> {
    match purpose {
        Purpose::Come(partitions) => {
            let found = ask(&clients.group, partitions)?;
            let beginnings: Vec<_> =
                found.into_iter().map(|found| resets.begin(found)).collect::<Result<_, _>>()?;
            if resets.streams == Reset::Latest {
                keep(&clients.group, &beginnings)?;
            }
            Ok(beginnings)
        }
        Purpose::Again(places) => {
            let partitions: Vec<_> = places.iter().map(|(partition, _)| partition.clone()).collect();
            let found = ask(&clients.group, &partitions)?;
            let mut beginnings = Vec::new();
            for (found, (_, began)) in found.into_iter().zip(places) {
                let mut beginning = begin(found, Reset::Earliest)?;
                if beginning.committed.is_none() {
                    beginning.start = beginning.start.max(*began);
                }
                let Beginning { partition, start, .. } = &beginning;
                let offset = Offset::Offset(*start as i64);
                clients.reading.seek(partition.stream.as_str(), partition.index as i32, offset, PATIENCE)?;
                beginnings.push(beginning);
            }
            Ok(beginnings)
        }
    }
}

fn ask(client: &Client, partitions: &[Partition]) -> KafkaResult<Vec<Found>> {
    let list = client.committed_offsets(list_of(partitions), PATIENCE)?;
    let mut found = Vec::new();
    for element in list.elements() {
        element.error()?;
        let committed = match element.offset() {
            Offset::Offset(offset) => {
                // The client panics at metadata that is no UTF-8. It is as good as any other that is not ours.
                let metadata = catch_unwind(AssertUnwindSafe(|| element.metadata().to_owned()));
                Some((offset.unsigned_abs(), metadata.unwrap_or_else(|_| "not UTF-8".to_owned())))
            }
            _ => None,
        };
        let (topic, number) = (element.topic(), element.partition());
        let (low, high) = client.fetch_watermarks(topic, number, PATIENCE)?;
        let (low, high) = (low.unsigned_abs(), high.unsigned_abs());
        found.push(Found { partition: partition(topic, number), committed, low, high });
    }
    Ok(found)
}

/// Where to begin, given what the brokers know.
fn begin(found: Found, reset: Reset) -> Result<Beginning, Failed> {
    let Found { partition, committed, low, high } = found;
    let elsewhere = match reset {
        Reset::Earliest => Some(low),
        Reset::Latest => Some(high),
        Reset::Error => None,
    };
    let nowhere = |what: String| {
        let advice = "auto.offset.reset is error; set a position for the group or choose earliest or latest";
        Failed::Source(SourceError::permanent(format!("{what} and {advice}")))
    };
    let Some((offset, metadata)) = committed else {
        let start = elsewhere.ok_or_else(|| nowhere(format!("{partition} has no committed position")))?;
        return Ok(Beginning { partition, start, committed: None, settled: Vec::new(), end: high });
    };
    let place = Place { topic: partition.stream.as_str(), partition: partition.index, offset };
    let settled = settled::decode(&metadata, place).unwrap_or_else(|why| {
        tracing::warn!(%partition, offset, why, "the metadata of the commit is ignored; some messages may be repeated");
        Vec::new()
    });
    if (low..=high).contains(&offset) {
        let settled = settled::within(settled, offset, high);
        return Ok(Beginning { partition, start: offset, committed: Some(offset), settled, end: high });
    }
    let start = elsewhere
        .ok_or_else(|| nowhere(format!("the committed position {offset} of {partition} is gone")))?;
    if offset < low {
        let gone = low - offset;
        tracing::warn!(%partition, offset, gone, start, "the log was shortened before it was read");
        let settled = settled::within(settled, start, high);
        return Ok(Beginning { partition, start, committed: None, settled, end: high });
    }
    // The log is another one, or was cut: what was settled in the old one says nothing about this one.
    tracing::warn!(%partition, offset, high, start, "the committed position lies beyond the end of the log");
    Ok(Beginning { partition, start, committed: None, settled: Vec::new(), end: high })
}

/// Commits beginnings that nobody has committed yet. Who begins at the end and dies must not begin at a later end.
fn keep(client: &Client, beginnings: &[Beginning]) -> KafkaResult<()> {
    let mut list = list_of([]);
    for Beginning { partition, start, .. } in beginnings.iter().filter(|b| b.committed.is_none()) {
        add_offset(&mut list, partition, *start, "");
    }
    if list.count() == 0 { Ok(()) } else { client.commit(&list, CommitMode::Sync) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(committed: Option<(u64, &str)>) -> Found {
        let committed = committed.map(|(offset, metadata)| (offset, metadata.to_owned()));
        Found { partition: Partition::new("orders", 3), committed, low: 10, high: 20 }
    }

    fn metadata(offset: u64, ranges: &[RangeInclusive<u64>]) -> String {
        let place = Place { topic: "orders", partition: 3, offset };
        settled::encode(ranges, place, settled::DEFAULT_LIMIT)
    }

    fn beginning(found: Found, reset: Reset) -> (u64, Option<u64>, Vec<RangeInclusive<u64>>) {
        let beginning = begin(found, reset).unwrap();
        assert_eq!(beginning.end, 20);
        (beginning.start, beginning.committed, beginning.settled)
    }

    #[test]
    fn the_committed_position_comes_first() {
        for reset in [Reset::Earliest, Reset::Latest, Reset::Error] {
            let text = metadata(12, &[14..=15, 18..=30]);
            assert_eq!(beginning(found(Some((12, &text))), reset), (12, Some(12), vec![14..=15, 18..=19]));
            assert_eq!(beginning(found(Some((20, ""))), reset), (20, Some(20), vec![]));
        }
    }

    #[test]
    fn without_a_position_the_reset_decides() {
        assert_eq!(beginning(found(None), Reset::Earliest), (10, None, vec![]));
        assert_eq!(beginning(found(None), Reset::Latest), (20, None, vec![]));
        let Failed::Source(error) = begin(found(None), Reset::Error).unwrap_err() else {
            panic!("no source error")
        };
        assert!(!error.is_temporary() && error.to_string().contains("orders/3 has no committed position"));
    }

    #[test]
    fn damaged_metadata_costs_only_repetitions() {
        // I1
        for text in ["nonsense", "not UTF-8", &metadata(11, &[14..=15])] {
            assert_eq!(beginning(found(Some((12, text))), Reset::Earliest), (12, Some(12), vec![]));
        }
    }

    #[test]
    fn a_position_that_is_gone_gives_way_to_the_reset() {
        let text = metadata(4, &[6..=11, 15..=16]);
        assert_eq!(beginning(found(Some((4, &text))), Reset::Earliest), (10, None, vec![10..=11, 15..=16]));
        assert!(begin(found(Some((4, ""))), Reset::Error).is_err());
    }

    #[test]
    fn a_position_beyond_the_end_is_of_another_log() {
        let text = metadata(25, &[27..=30]);
        assert_eq!(beginning(found(Some((25, &text))), Reset::Earliest), (10, None, vec![]));
    }
}
