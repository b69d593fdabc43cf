//! Checks that all partitions of the subscribed topics are assigned to members of the group.
//!
//! A group assigns the partitions that the leader knows when a member joins. A static member that
//! returns gets its former partitions without a new assignment, even if its topics were recreated or got
//! more partitions in the meantime. librdkafka checks topics only every five minutes. Until then, nobody
//! reads some partitions. A member that sees such a gap twice therefore leaves and joins again.
//!
//! All members see the same gap at the same time, because their checks follow the assignment that they
//! all got together. One member is enough to close it, because the leader requests the partitions again
//! whenever a member joins. The members therefore take turns, in the order of their first partitions. If
//! the gap remains after a new assignment, the leader knows less than they do, and no member tries again
//! for a while.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rdkafka::consumer::Consumer;
use rdkafka::error::KafkaResult;

use super::session::Membership;
use crate::client::callbacks::Client;
use crate::client::topic_ids::Topics;
use crate::error::config_error;

/// The delay before the second check, because the group may be about to rebalance by itself.
pub(super) const SECOND_LOOK: Duration = Duration::from_secs(5);
/// How long a member leaves the gap to the member before it. That member first finishes its work in
/// progress, or cannot rejoin.
const TURN: Duration = Duration::from_secs(30);
/// The minimum interval between rejoins. Rejoining does not help while the leader knows less than this
/// member.
const JOIN_INTERVAL: Duration = Duration::from_secs(60);

/// The number of partitions of each topic.
type PartitionCounts = BTreeMap<String, u32>;

/// A partition of a topic.
type Place = (String, u32);

/// The state of the group's assignment.
#[derive(Debug, Default)]
pub(super) struct Coverage {
    /// The partition counts that the current assignment covers.
    covered: Option<PartitionCounts>,
    /// The partition counts that it did not cover at the last check, and when this was first seen.
    uncovered: Option<(PartitionCounts, Instant)>,
    /// The uncovered partition counts for which the group made an assignment, or was asked to make one,
    /// and when.
    tried: Option<(PartitionCounts, Instant)>,
}

/// The result of a check of the group.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Look {
    counts: PartitionCounts,
    /// Whether the assignment covers the partitions. `None` if the group is rebalancing, or its
    /// assignment cannot be read.
    is_covered: Option<bool>,
    /// The first partition of each member that has one of these topics, in order.
    firsts: Vec<Place>,
}

/// The action after a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    /// Wait for the regular check.
    Wait,
    LookAgain,
    JoinAnew,
}

impl Coverage {
    /// Records that the group has assigned partitions to all of its members.
    fn assigned(&mut self, now: Instant) {
        self.covered = None;
        if let Some((counts, _)) = self.uncovered.take() {
            self.tried = Some((counts, now));
        }
    }

    /// Decides the action after a check. `turn` is the number of members before this one.
    fn decide(
        &mut self,
        counts: PartitionCounts,
        is_covered: Option<bool>,
        turn: usize,
        now: Instant,
    ) -> Next {
        match is_covered {
            None => return Next::LookAgain,
            Some(true) => {
                *self = Self { covered: Some(counts), ..Self::default() };
                return Next::Wait;
            }
            Some(false) => {}
        }
        let was_tried = |(known, at): &(PartitionCounts, Instant)| {
            *known == counts && now.duration_since(*at) < JOIN_INTERVAL
        };
        if self.tried.as_ref().is_some_and(was_tried) {
            // Afterwards, the turns start over.
            self.uncovered = None;
            return Next::Wait;
        }
        let seen = self.uncovered.take().filter(|(known, _)| *known == counts);
        let is_second = seen.is_some();
        let since = seen.map_or(now, |(_, since)| since);
        self.uncovered = Some((counts.clone(), since));
        let patience = TURN.saturating_mul(u32::try_from(turn).unwrap_or(u32::MAX));
        if !is_second || now.duration_since(since) < patience {
            return Next::LookAgain;
        }
        self.tried = Some((counts, now));
        Next::JoinAnew
    }
}

impl Membership {
    /// Records that the group has assigned partitions.
    pub(super) fn note_assignment(&mut self) {
        self.coverage.assigned(Instant::now());
        self.topic_check.is_due_within(SECOND_LOOK);
    }

    /// Returns the partition counts that need no check, or `None` where the brokers assign.
    pub(super) fn covered(&self) -> Option<PartitionCounts> {
        let is_assigned_by_members = self.joined && !self.options.has_new_protocol();
        is_assigned_by_members.then(|| self.coverage.covered.clone().unwrap_or_default())
    }

    /// Rejoins if the assignment omits partitions, or has partitions that do not exist or are not
    /// subscribed to. This requires a second check with the same result, and that it is this member's
    /// turn.
    pub(super) fn compare_coverage(&mut self, look: Look) {
        let Look { counts, is_covered, firsts } = look;
        let is_subscribed = |topic: &str| self.subscribed().any(|one| one == topic || one.starts_with('^'));
        let is_own = self.owned.iter().all(|owned| is_subscribed(owned.partition.stream.as_str()));
        let has = |(topic, index): &Place| {
            let is_it = |stream: &str, number: u32| stream == topic && number == *index;
            self.owned.iter().any(|owned| is_it(owned.partition.stream.as_str(), owned.partition.index))
        };
        // Only this member can give back partitions that it has and does not subscribe to.
        let turn = if is_own { firsts.iter().position(has).unwrap_or(firsts.len()) } else { 0 };
        let is_covered = is_covered.map(|is_covered| is_covered && is_own);
        match self.coverage.decide(counts, is_covered, turn, Instant::now()) {
            Next::Wait => {}
            Next::LookAgain => self.topic_check.is_due_within(SECOND_LOOK),
            Next::JoinAnew => self.join_anew(),
        }
    }

    /// Leaves the group when the engine has finished its work in progress, and joins again. The group
    /// then assigns the partitions that the topics have now.
    fn join_anew(&mut self) {
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

/// Checks whether the assignment of a group matches the partitions of these topics, unless the topics
/// have the counts in `covered`. Blocks.
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
    let members = found.and_then(|found| {
        let assignments = found.members().iter().map(|member| member.assignment().unwrap_or_default());
        assignments.map(assigned).collect::<Option<Vec<_>>>()
    });
    let firsts = members.as_deref().map_or_else(Vec::new, |members| firsts(&counts, members));
    let is_covered = members.map(|members| is_covered(&counts, &members.into_iter().flatten().collect()));
    Ok(Some(Look { counts, is_covered, firsts }))
}

/// Returns the first partition of these topics that each member has, in order.
fn firsts(counts: &PartitionCounts, members: &[Vec<Place>]) -> Vec<Place> {
    let first = |assigned: &Vec<Place>| {
        assigned.iter().filter(|(topic, _)| counts.contains_key(topic)).min().cloned()
    };
    let mut firsts: Vec<Place> = members.iter().filter_map(first).collect();
    firsts.sort();
    firsts
}

/// Returns `true` if the assigned partitions of these topics are exactly the existing ones.
fn is_covered(counts: &PartitionCounts, assigned: &BTreeSet<Place>) -> bool {
    let existing = counts.iter().flat_map(|(topic, count)| (0..*count).map(|index| (topic.clone(), index)));
    let assigned = assigned.iter().filter(|(topic, _)| counts.contains_key(topic));
    existing.collect::<BTreeSet<_>>().iter().eq(assigned)
}

/// Decodes the partitions of a member: a version, and the partitions of each topic. Empty bytes are an
/// assignment without partitions.
fn assigned(mut bytes: &[u8]) -> Option<Vec<Place>> {
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

    fn counts(partitions: u32) -> PartitionCounts {
        [("a".to_owned(), partitions)].into()
    }

    #[test]
    fn members_take_turns_in_the_order_of_their_first_partitions() {
        let place = |topic: &str, index: u32| (topic.to_owned(), index);
        let members = [
            vec![place("a", 5), place("a", 2)],
            vec![],
            vec![place("of-another-subscription", 0)],
            vec![place("a", 0), place("a", 9)],
        ];
        assert_eq!(firsts(&counts(10), &members), [place("a", 0), place("a", 2)]);
    }

    #[test]
    fn one_member_joins_anew_at_the_second_look_and_the_next_one_only_much_later() {
        let mut members: Vec<Coverage> = (0..3).map(|_| Coverage::default()).collect();
        let start = Instant::now();
        let mut look =
            |turn: usize, after: Duration| members[turn].decide(counts(9), Some(false), turn, start + after);
        // All members check at the same times.
        assert_eq!([0, 1, 2].map(|turn| look(turn, Duration::ZERO)), [Next::LookAgain; 3]);
        let second = [0, 1, 2].map(|turn| look(turn, SECOND_LOOK));
        assert_eq!(second, [Next::JoinAnew, Next::LookAgain, Next::LookAgain]);
        // The first member cannot rejoin, because its handlers do not end.
        assert_eq!([0, 1, 2].map(|turn| look(turn, TURN)), [Next::Wait, Next::JoinAnew, Next::LookAgain]);
        assert_eq!([0, 1, 2].map(|turn| look(turn, TURN * 2)), [Next::Wait, Next::Wait, Next::JoinAnew]);
    }

    #[test]
    fn an_assignment_that_covers_everything_ends_the_turns() {
        let (mut member, start) = (Coverage::default(), Instant::now());
        assert_eq!(member.decide(counts(9), Some(false), 1, start), Next::LookAgain);
        member.assigned(start + SECOND_LOOK);
        assert_eq!(member.decide(counts(9), Some(true), 1, start + SECOND_LOOK * 2), Next::Wait);
        assert_eq!(member.covered, Some(counts(9)));
        // The next gap counts as new.
        let later = start + SECOND_LOOK * 4;
        assert_eq!(member.decide(counts(12), Some(false), 0, later), Next::LookAgain);
        assert_eq!(member.decide(counts(12), Some(false), 0, later + SECOND_LOOK), Next::JoinAnew);
    }

    #[test]
    fn a_gap_that_joining_anew_does_not_close_makes_a_group_rebalance_once_a_minute() {
        // The leader knows less than the members for an hour.
        const MEMBERS: usize = 5;
        let mut members: Vec<Coverage> = (0..MEMBERS).map(|_| Coverage::default()).collect();
        let (start, mut joins) = (Instant::now(), 0);
        for second in (0..3600).step_by(5) {
            let now = start + Duration::from_secs(second);
            let next = |(turn, member): (usize, &mut Coverage)| {
                // A member that rejoins gets a new place among the others.
                let turn = (turn + joins) % MEMBERS;
                member.decide(counts(9), Some(false), turn, now)
            };
            let decided: Vec<Next> = members.iter_mut().enumerate().map(next).collect();
            let who_join = decided.iter().filter(|next| **next == Next::JoinAnew).count();
            assert!(who_join <= 1, "{decided:?}");
            if who_join > 0 {
                joins += who_join;
                members.iter_mut().for_each(|member| member.assigned(now));
            }
        }
        assert!((50..=60).contains(&joins), "{joins}");
    }
}
