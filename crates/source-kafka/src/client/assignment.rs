//! Builds partition lists for librdkafka, and answers rebalances.

use lazaret_core::Partition;
use rdkafka::consumer::{BaseConsumer, Consumer, ConsumerContext, RebalanceProtocol};
use rdkafka::error::KafkaResult;
use rdkafka::{Offset, TopicPartitionList};

/// Accepts these partitions, which are all from one rebalance. The group's client fetches none of them:
/// its position is the end, and it is paused before it gets there.
pub(crate) fn assign<C: ConsumerContext>(
    client: &BaseConsumer<C>,
    partitions: &[Partition],
) -> KafkaResult<()> {
    let mut list = list_of(partitions);
    list.set_all_offsets(Offset::End)?;
    match client.rebalance_protocol() {
        RebalanceProtocol::Cooperative => client.incremental_assign(&list)?,
        RebalanceProtocol::Eager | RebalanceProtocol::None => client.assign(&list)?,
    }
    client.pause(&list)
}

/// Gives these partitions, which are all from one rebalance, back to the group.
pub(crate) fn unassign<C: ConsumerContext>(
    client: &BaseConsumer<C>,
    partitions: &[Partition],
) -> KafkaResult<()> {
    match client.rebalance_protocol() {
        RebalanceProtocol::Cooperative => client.incremental_unassign(&list_of(partitions)),
        RebalanceProtocol::Eager | RebalanceProtocol::None => client.unassign(),
    }
}

/// Builds the client's list of these partitions, without offsets.
pub(crate) fn list_of<'a>(partitions: impl IntoIterator<Item = &'a Partition>) -> TopicPartitionList {
    let mut list = TopicPartitionList::new();
    for partition in partitions {
        list.add_partition(partition.stream.as_str(), partition.index as i32);
    }
    list
}

/// Adds a partition with an offset to the client's list.
pub(crate) fn add_offset(list: &mut TopicPartitionList, partition: &Partition, offset: u64, metadata: &str) {
    let mut element = list.add_partition(partition.stream.as_str(), partition.index as i32);
    if element.set_offset(Offset::Offset(offset as i64)).is_ok() && !metadata.is_empty() {
        element.set_metadata(metadata);
    }
}

/// Returns the partition with this topic and number.
pub(crate) fn partition(topic: &str, number: i32) -> Partition {
    Partition::new(topic, number.unsigned_abs())
}
