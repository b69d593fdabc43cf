//! Checks that the partitions which its topics have are assigned to members of the group.
//!
//! A group assigns the partitions that the leader knows when a member joins. A static member that comes back gets what it had, without a
//! new assignment, also if its topics were recreated or got more partitions meanwhile; and librdkafka looks at topics every five
//! minutes only. Until then some partitions are read by nobody. So a member that sees such an assignment twice leaves and joins again.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rdkafka::consumer::Consumer;
use rdkafka::error::KafkaResult;

use super::session::Membership;
use crate::client::callbacks::Client;
use crate::client::topic_ids::Topics;
use crate::error::config_error;

/// The delay of the second look: the group may be about to rebalance by itself.
pub(super) const SECOND_LOOK: Duration = Duration::from_secs(5);
/// Joining anew does not help while the leader knows less than this member. It is not repeated sooner.
const JOIN_INTERVAL: Duration = Duration::from_secs(60);

/// The numbers of the partitions of topics.
type PartitionCounts = BTreeMap<String, u32>;

/// What is known about the assignment of the group.
#[derive(Debug, Default)]
pub(super) struct Coverage {
    /// The numbers of partitions that the current assignment covers.
    covered: Option<PartitionCounts>,
    /// The numbers of partitions that it did not cover at the last look.
    uncovered: Option<PartitionCounts>,
    joined_anew_at: Option<Instant>,
}

/// What a look at the group showed.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Look {
    counts: PartitionCounts,
    /// `None` if the group is rebalancing, or its assignment cannot be read.
    is_covered: Option<bool>,
}

impl Membership {
    /// Notes that the group has assigned partitions.
    pub(super) fn note_assignment(&mut self) {
        (self.coverage.covered, self.coverage.uncovered) = (None, None);
        self.topic_check.is_due_within(SECOND_LOOK);
    }

    /// Returns the numbers of partitions that need no look; `None` where the brokers assign.
    pub(super) fn covered(&self) -> Option<PartitionCounts> {
        let is_assigned_by_members = self.joined && !self.options.has_new_protocol();
        is_assigned_by_members.then(|| self.coverage.covered.clone().unwrap_or_default())
    }

    /// Joins anew if the assignment leaves out partitions, or has some that do not exist or are not subscribed to, at the second look, too.
    pub(super) fn compare_coverage(&mut self, look: Look) {
        let Look { counts, is_covered } = look;
        let is_subscribed = |topic: &str| self.subscribed().any(|one| one == topic || one.starts_with('^'));
        let is_own = self.owned.iter().all(|owned| is_subscribed(owned.partition.stream.as_str()));
        let coverage = &mut self.coverage;
        match is_covered.map(|is_covered| is_covered && is_own) {
            Some(true) => (coverage.covered, coverage.uncovered) = (Some(counts), None),
            Some(false) if coverage.uncovered.as_ref() == Some(&counts) => self.join_anew(),
            Some(false) => {
                coverage.uncovered = Some(counts);
                self.topic_check.is_due_within(SECOND_LOOK);
            }
            None => self.topic_check.is_due_within(SECOND_LOOK),
        }
    }

    /// Leaves the group when the engine has finished what it works on, and joins again: then the group assigns what the topics have now.
    fn join_anew(&mut self) {
        if self.coverage.joined_anew_at.is_some_and(|at| at.elapsed() < JOIN_INTERVAL) {
            return;
        }
        self.coverage.joined_anew_at = Some(Instant::now());
        let group = &self.options.group;
        tracing::warn!(
            group,
            "assignment of the group is not that of the partitions which exist, joining anew"
        );
        if let Some(clients) = &self.clients {
            clients.group.unsubscribe();
        }
        if let Err(error) = self.subscribe() {
            self.report(config_error(error));
        }
    }
}

/// Looks whether the assignment of a group is that of the partitions of these topics, unless they have these numbers of partitions. Blocks.
pub(super) fn look(
    client: &Arc<Client>,
    group: &str,
    topics: &Topics,
    covered: &PartitionCounts,
    timeout: Duration,
) -> KafkaResult<Option<Look>> {
    let counts: PartitionCounts =
        topics.iter().filter_map(|(name, topic)| Some((name.clone(), topic.partitions?))).collect();
    if counts == *covered {
        return Ok(None);
    }
    let groups = client.fetch_group_list(Some(group), timeout)?;
    let found = groups.groups().iter().find(|found| found.name() == group && found.state() == "Stable");
    let is_covered = found.and_then(|found| {
        let assignments = found.members().iter().map(|member| member.assignment().unwrap_or_default());
        let assigned: Vec<_> = assignments.map(assigned).collect::<Option<_>>()?;
        Some(is_covered(&counts, &assigned.into_iter().flatten().collect()))
    });
    Ok(Some(Look { counts, is_covered }))
}

/// Returns whether these partitions are those of the topics with these numbers of partitions.
fn is_covered(counts: &PartitionCounts, assigned: &BTreeSet<(String, u32)>) -> bool {
    let existing = counts.iter().flat_map(|(topic, count)| (0..*count).map(|index| (topic.clone(), index)));
    let assigned = assigned.iter().filter(|(topic, _)| counts.contains_key(topic));
    existing.collect::<BTreeSet<_>>().iter().eq(assigned)
}

/// Decodes the partitions of a member: a version, and the partitions of each topic. Nothing is an assignment without partitions.
fn assigned(mut bytes: &[u8]) -> Option<Vec<(String, u32)>> {
    let bytes = &mut bytes;
    let mut found = Vec::new();
    if bytes.is_empty() {
        return Some(found);
    }
    let _version = i16::from_be_bytes(take(bytes)?);
    for _ in 0..i32::from_be_bytes(take(bytes)?) {
        let length = usize::try_from(i16::from_be_bytes(take(bytes)?)).ok()?;
        let (name, rest) = bytes.split_at_checked(length)?;
        *bytes = rest;
        let name = std::str::from_utf8(name).ok()?;
        for _ in 0..i32::from_be_bytes(take(bytes)?) {
            found.push((name.to_owned(), u32::try_from(i32::from_be_bytes(take(bytes)?)).ok()?));
        }
    }
    Some(found)
}

fn take<const N: usize>(bytes: &mut &[u8]) -> Option<[u8; N]> {
    let (first, rest) = bytes.split_first_chunk()?;
    *bytes = rest;
    Some(*first)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_assignment_is_decoded_as_members_write_it() {
        let bytes = b"\0\x01\0\0\0\x02\0\x01a\0\0\0\x02\0\0\0\0\0\0\0\x03\0\x02bc\0\0\0\x01\0\0\0\x07\xff\xff\xff\xff";
        let found = vec![("a".to_owned(), 0), ("a".to_owned(), 3), ("bc".to_owned(), 7)];
        assert_eq!(assigned(bytes), Some(found));
        assert_eq!(assigned(b""), Some(Vec::new()));
        for cut in 1..bytes.len() - 4 {
            assert_eq!(assigned(&bytes[..cut]), None, "{cut}");
        }
    }

    #[test]
    fn an_assignment_covers_exactly_the_partitions_that_exist() {
        let counts = PartitionCounts::from([("a".to_owned(), 2), ("b".to_owned(), 1)]);
        let is = |assigned: &[(&str, u32)]| {
            is_covered(
                &counts,
                &assigned.iter().map(|(topic, index)| ((*topic).to_owned(), *index)).collect(),
            )
        };
        assert!(is(&[("a", 0), ("a", 1), ("b", 0)]));
        assert!(is(&[("a", 0), ("a", 1), ("b", 0), ("of-another-subscription", 0)]));
        assert!(!is(&[("a", 0), ("b", 0)]), "partitions were added");
        assert!(!is(&[("a", 0), ("a", 1), ("a", 2), ("b", 0)]), "the topic was recreated with fewer");
        assert!(!is(&[]));
    }
}
