//! Which processes of a fleet are late, by the log: they lost a partition or a lease, and have not noticed it yet.
//!
//! A process that is stopped goes on where it was when it is woken. It may end an attempt, and begin those that it had in its lanes, until it
//! hears that others have taken over. It can settle nothing of that.

use std::collections::HashMap;
use std::time::Duration;

use crate::journal::{Entry, Record};

/// How soon a process that runs notices a loss. Generous: the machine may be busy.
const NOTICED_WITHIN: Duration = Duration::from_secs(10);

/// A line that tells what a process knows about its ownership.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Notice {
    /// It has the partition from now on.
    Assigned,
    /// It has the partition again, and was not told before that it was revoked: it was fenced.
    AssignedAgain,
    /// It had ended its work.
    Revoked,
    /// Another process may have been faster.
    Lost,
}

type Notices = Vec<(usize, Notice)>;

/// What each process knew about its partitions and leases, and when.
pub(super) struct Ownership<'r> {
    records: &'r [Record],
    partitions: u32,
    of_partitions: HashMap<(u32, u32), Notices>,
    of_keys: HashMap<(u32, u32), Notices>,
    stops: HashMap<u32, Vec<Stop>>,
}

/// A time during which a process was stopped.
struct Stop {
    line: usize,
    /// When it went on.
    woken: Option<Duration>,
}

impl<'r> Ownership<'r> {
    pub(super) fn new(records: &'r [Record], partitions: u32) -> Self {
        let mut ownership = Self {
            records,
            partitions,
            of_partitions: HashMap::new(),
            of_keys: HashMap::new(),
            stops: HashMap::new(),
        };
        for (line, Record { process, at, entry }) in records.iter().enumerate() {
            match *entry {
                Entry::Assigned { partition } => {
                    let notices = ownership.of_partitions.entry((*process, partition)).or_default();
                    let has_it =
                        matches!(notices.last(), Some((_, Notice::Assigned | Notice::AssignedAgain)));
                    notices.push((line, if has_it { Notice::AssignedAgain } else { Notice::Assigned }));
                }
                Entry::Revoked { partition } => {
                    ownership.notice(*process, partition, line, Notice::Revoked);
                }
                Entry::Dropped { partition } => ownership.notice(*process, partition, line, Notice::Lost),
                Entry::Lost { key } => {
                    ownership.of_keys.entry((*process, key)).or_default().push((line, Notice::Lost));
                }
                Entry::Stopped => {
                    ownership.stops.entry(*process).or_default().push(Stop { line, woken: None });
                }
                Entry::Woken => {
                    if let Some(stop) = ownership.stops.get_mut(process).and_then(|stops| stops.last_mut()) {
                        stop.woken = Some(*at);
                    }
                }
                _ => {}
            }
        }
        ownership
    }

    fn notice(&mut self, process: u32, partition: u32, line: usize, notice: Notice) {
        self.of_partitions.entry((process, partition)).or_default().push((line, notice));
    }

    /// The partition of a key.
    pub(super) fn partition(&self, key: u32) -> u32 {
        key % self.partitions
    }

    /// Returns `true` if the process may work on the key at this line although another one has taken it over.
    pub(super) fn is_late(&self, process: u32, key: u32, line: usize) -> bool {
        let none = Notices::new();
        let of_partition = self.of_partitions.get(&(process, self.partition(key))).unwrap_or(&none);
        let of_key = self.of_keys.get(&(process, key)).unwrap_or(&none);
        let behind = |notices: &Notices| notices.partition_point(|(at, _)| *at <= line);
        let next = of_partition.get(behind(of_partition)).into_iter().chain(of_key.get(behind(of_key)));
        let finds_out = next.min_by_key(|(at, _)| *at).is_some_and(|(at, notice)| {
            matches!(notice, Notice::AssignedAgain | Notice::Lost)
                && self.records[*at].at.saturating_sub(self.records[line].at) <= NOTICED_WITHIN
        });
        let stops = self.stops.get(&process).map_or(&[][..], Vec::as_slice);
        finds_out
            || stops.iter().rfind(|stop| stop.line < line).is_some_and(|stop| {
                let knows = |notices: &Notices| notices.iter().any(|(at, _)| (stop.line..=line).contains(at));
                let is_long_ago = |woken: Duration| self.records[line].at > woken + NOTICED_WITHIN;
                !knows(of_partition) && !knows(of_key) && !stop.woken.is_some_and(is_long_ago)
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log(entries: &[(u32, u64, Entry)]) -> Vec<Record> {
        let record = |(process, seconds, entry): &(u32, u64, Entry)| Record {
            process: *process,
            at: Duration::from_secs(*seconds),
            entry: *entry,
        };
        entries.iter().map(record).collect()
    }

    #[test]
    fn a_process_that_was_stopped_is_late_until_it_hears_of_its_partition() {
        let records = log(&[
            (1, 0, Entry::Assigned { partition: 0 }),
            (1, 1, Entry::Start),
            (1, 2, Entry::Stopped),
            (1, 30, Entry::Woken),
            (1, 31, Entry::Start),
            (1, 39, Entry::Dropped { partition: 0 }),
            (1, 40, Entry::Start),
            (1, 41, Entry::Assigned { partition: 0 }),
            (1, 42, Entry::Start),
        ]);
        let ownership = Ownership::new(&records, 8);
        let late: Vec<usize> = (0..records.len()).filter(|line| ownership.is_late(1, 8, *line)).collect();
        assert_eq!(late, [3, 4], "key 8 is in partition 0");
        assert!(ownership.is_late(1, 9, 6), "it has heard nothing of partition 1");
        assert!(!ownership.is_late(1, 9, 7), "but would have by now");
        assert!(!ownership.is_late(2, 8, 4));
    }

    #[test]
    fn a_process_that_finds_out_soon_was_late() {
        let records = log(&[
            (1, 0, Entry::Assigned { partition: 0 }),
            (1, 5, Entry::Start),
            (1, 50, Entry::Start),
            (1, 51, Entry::Lost { key: 3 }),
            (1, 52, Entry::Assigned { partition: 0 }),
            (1, 53, Entry::Start),
            (1, 54, Entry::Revoked { partition: 0 }),
        ]);
        let ownership = Ownership::new(&records, 1);
        let late = |key| -> Vec<usize> {
            (0..records.len()).filter(|line| ownership.is_late(1, key, *line)).collect()
        };
        assert_eq!(late(3), [2, 3], "it lost the lease, and was fenced");
        assert_eq!(late(4), [2, 3], "it was fenced: the partition was assigned twice");
    }
}
