//! One partition from its coming to its going.

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use lazaret_core::source::Assignment;
use lazaret_core::{Message, Partition};
use rdkafka::consumer::base_consumer::PartitionQueue;
use rdkafka::error::KafkaError;

use crate::batch::Batches;
use crate::chain::Chain;
use crate::lookup::Beginning;
use crate::member::{Client, Member};
use crate::record::{Place, Reader};
use crate::relay::Standing;
use crate::returning::Returning;
use crate::settled;

/// A partition that is ours.
///
/// Its records come by a queue of their own. Holding it back means not to ask that queue: nothing is fetched twice, and
/// what librdkafka has fetched ahead stays where it is, bounded by `queued.max.messages.kbytes`.
pub(crate) struct Slot {
    pub(crate) partition: Partition,
    batches: Batches,
    /// The same queue as the client knows it. It wakes us when something comes.
    _queue: PartitionQueue<Member>,
    place: Place,
    pub(crate) stage: Stage,
    pub(crate) paused: bool,
    /// Which life this is: no two are the same, of whatever partition.
    pub(crate) life: u64,
    /// Where this assignment began.
    pub(crate) start: u64,
    /// The first offset that was not delivered, as far as is known.
    pub(crate) next: u64,
    pub(crate) committed: Option<u64>,
    /// What was settled before this assignment.
    settled: Vec<RangeInclusive<u64>>,
    /// The offset behind the last message when it was assigned.
    pub(crate) end: u64,
    /// The end was reached.
    at_end: bool,
    /// What is needed to read a retry topic; none for others.
    returning: Option<Returning>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// It is read.
    Held,
    /// It will be read again from where it was committed.
    Rewinding,
    /// The engine is about to let it go.
    Going,
}

/// Why a partition gives no more messages for now.
pub(crate) enum Pause {
    /// There are none, or as many as were asked for.
    Done,
    /// The log goes on at an offset that lies before what was delivered: it was cut.
    Back(u64),
}

fn next_life() -> u64 {
    static LIVES: AtomicU64 = AtomicU64::new(0);
    LIVES.fetch_add(1, Ordering::Relaxed)
}

impl Slot {
    /// Takes a partition that has not been assigned yet, so that its records never come by the common queue. `None`
    /// when the client does not know it.
    pub(crate) fn new(
        client: &Arc<Client>,
        member: &Member,
        beginning: Beginning,
        chain: Option<&Arc<Chain>>,
    ) -> Option<Self> {
        let Beginning { partition, start, committed, settled, end } = beginning;
        let mut queue = client.split_partition_queue(partition.stream.as_str(), partition.index as i32)?;
        let member = member.clone();
        queue.set_nonempty_callback(move || member.wake());
        let batches = Batches::of(client, partition.stream.as_str(), partition.index as i32)?;
        let place = Place::new(&partition);
        let (stage, paused, at_end) = (Stage::Held, false, false);
        let next = start;
        let returning = chain.and_then(|chain| Returning::new(chain, &partition, start));
        Some(Self {
            partition,
            batches,
            _queue: queue,
            place,
            stage,
            paused,
            life: next_life(),
            start,
            next,
            committed,
            settled,
            end,
            at_end,
            returning,
        })
    }

    /// Begins anew, after the client was told to.
    pub(crate) fn begin_again(&mut self, beginning: Beginning) {
        let Beginning { start, committed, settled, end, .. } = beginning;
        let (stage, paused, at_end) = (Stage::Held, false, false);
        (self.stage, self.paused, self.at_end) = (stage, paused, at_end);
        (self.start, self.next, self.end) = (start, start, end);
        (self.committed, self.settled) = (committed, settled);
        self.life = next_life();
        if let Some(returning) = &mut self.returning {
            returning.begin_again(start);
        }
    }

    pub(crate) fn assignment(&self) -> Assignment {
        Assignment { partition: self.partition.clone(), settled: self.settled.clone() }
    }

    /// How far it is settled as it came.
    pub(crate) fn standing(&self, limit: usize) -> Standing {
        Standing::new(self.committed.unwrap_or(self.start), self.settled.clone(), limit)
    }

    /// Whether its messages may be delivered.
    pub(crate) fn flows(&self) -> bool {
        self.stage == Stage::Held && !self.paused
    }

    /// Whether all was delivered that was there when it was assigned, and in a retry topic what we wrote since.
    pub(crate) fn is_read(&self) -> bool {
        let written = self.returning.as_ref().map_or(0, Returning::written);
        self.stage == Stage::Held && (self.at_end || self.next >= self.end) && self.next >= written
    }

    /// Adds messages that are there to the batch, up to its size, and what went wrong to the errors. A finite one gives
    /// none that was written after it was assigned.
    pub(crate) fn read(
        &mut self,
        messages: &mut Vec<Message>,
        size: usize,
        reader: &mut Reader,
        finite: bool,
        errors: &mut Vec<KafkaError>,
    ) -> Pause {
        while messages.len() < size && !(finite && self.is_read()) {
            // How much is to be read of a retry topic may change with every message, and what was taken cannot be put back.
            let limit = if finite && self.returning.is_some() { 1 } else { size - messages.len() };
            let batch = self.batches.take(limit);
            let mut at_hand = batch.len();
            if at_hand == 0 {
                break;
            }
            messages.reserve_exact(limit.min(at_hand));
            for record in batch.iter() {
                at_hand -= 1;
                let record = match record {
                    Ok(record) => record,
                    Err(KafkaError::PartitionEOF(_)) => {
                        self.at_end = true;
                        continue;
                    }
                    Err(error) => {
                        errors.push(error);
                        continue;
                    }
                };
                let offset = record.offset();
                if offset < self.next {
                    reader.finish(&mut self.place, messages);
                    return Pause::Back(offset);
                }
                // What lies between is gone, or was never a message: compacted, aborted, a mark.
                self.next = offset + 1;
                if let Some(returning) = &mut self.returning {
                    messages.push(returning.read(reader, &record, offset, &mut self.place));
                } else if !(finite && offset >= self.end) {
                    reader.copy(&record, offset, at_hand + 1, &mut self.place, messages);
                }
            }
            reader.finish(&mut self.place, messages);
        }
        Pause::Done
    }

    /// What is settled from this offset on, given what the engine says.
    pub(crate) fn settled_beyond(
        &self,
        told: Vec<RangeInclusive<u64>>,
        offset: u64,
    ) -> Vec<RangeInclusive<u64>> {
        settled::with_earlier(told, &self.settled, offset)
    }
}
