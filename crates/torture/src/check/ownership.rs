//! Which processes of a fleet are late, by the log: they lost a partition or a lease, and have not noticed it yet.
//!
//! A process that is stopped goes on where it was when it is woken. If others have taken over, it may end an attempt, and begin one in each
//! of its shards: that in which it was stopped, just before the handler was called. It can settle nothing of it.

use std::collections::HashMap;
use std::ops::RangeInclusive;
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
    /// Who got each partition.
    assigned: HashMap<u32, Acts>,
    /// Who began attempts of each key.
    begun: HashMap<u32, Acts>,
}

/// Lines, and the processes that wrote them.
type Acts = Vec<(usize, u32)>;

/// A time during which a process was stopped.
struct Stop {
    line: usize,
    /// When it went on.
    woken: Option<Duration>,
}

impl<'r> Ownership<'r> {
    /// Reads the log. `key` is that of a message.
    pub(super) fn new(records: &'r [Record], partitions: u32, key: impl Fn(u64) -> u32) -> Self {
        let mut ownership = Self {
            records,
            partitions,
            of_partitions: HashMap::new(),
            of_keys: HashMap::new(),
            stops: HashMap::new(),
            assigned: HashMap::new(),
            begun: HashMap::new(),
        };
        for (line, Record { process, at, entry }) in records.iter().enumerate() {
            match *entry {
                Entry::Begin { message, .. } => {
                    ownership.begun.entry(key(message)).or_default().push((line, *process));
                }
                Entry::Assigned { partition } => {
                    ownership.assigned.entry(partition).or_default().push((line, *process));
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
                let since = stop.line..=line;
                let knows = |notices: &Notices| notices.iter().any(|(at, _)| since.contains(at));
                let is_long_ago = |woken: Duration| self.records[line].at > woken + NOTICED_WITHIN;
                !knows(of_partition)
                    && !knows(of_key)
                    && !stop.woken.is_some_and(is_long_ago)
                    && self.is_taken_over(process, key, &since)
            })
    }

    /// The stop of the process before this line, if it had the partition of the key then, another one got it since, and the process has
    /// not heard of that. Stored attempts need no partition: a process that had none is not stopped as its owner.
    pub(super) fn lost_in_stop(&self, process: u32, key: u32, line: usize) -> Option<usize> {
        let partition = self.partition(key);
        let stop = self.stops.get(&process)?.iter().rfind(|stop| stop.line < line)?.line;
        let notices = self.of_partitions.get(&(process, partition)).map_or(&[][..], Vec::as_slice);
        let before = notices[..notices.partition_point(|(at, _)| *at < stop)].last();
        let had_it = matches!(before, Some((_, Notice::Assigned | Notice::AssignedAgain)));
        let knows = notices.iter().any(|(at, _)| (stop..=line).contains(at));
        let acts = self.assigned.get(&partition)?;
        let is_taken = acts.iter().any(|(at, by)| *by != process && (stop..=line).contains(at));
        (had_it && is_taken && !knows).then_some(stop)
    }

    /// Returns `true` if another process got the partition of the key, or began an attempt of the key, in these lines.
    fn is_taken_over(&self, process: u32, key: u32, lines: &RangeInclusive<usize>) -> bool {
        let acts = [self.assigned.get(&self.partition(key)), self.begun.get(&key)];
        let of_others = |(line, by): &(usize, u32)| *by != process && lines.contains(line);
        acts.into_iter().flatten().any(|acts| acts.iter().any(of_others))
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

    /// All messages of a log have this key.
    fn ownership(records: &[Record], partitions: u32, key: u32) -> Ownership<'_> {
        Ownership::new(records, partitions, move |_| key)
    }

    #[test]
    fn a_process_that_was_stopped_is_late_until_it_hears_of_its_partition() {
        let records = log(&[
            (1, 0, Entry::Assigned { partition: 0 }),
            (1, 1, Entry::Start),
            (1, 2, Entry::Stopped),
            (2, 20, Entry::Assigned { partition: 0 }),
            (1, 30, Entry::Woken),
            (1, 31, Entry::Start),
            (1, 39, Entry::Dropped { partition: 0 }),
            (1, 40, Entry::Start),
            (1, 41, Entry::Assigned { partition: 0 }),
            (1, 42, Entry::Start),
        ]);
        let ownership = ownership(&records, 8, 9);
        let late: Vec<usize> = (0..records.len()).filter(|line| ownership.is_late(1, 8, *line)).collect();
        assert_eq!(late, [3, 4, 5], "key 8 is in partition 0");
        assert_eq!((ownership.lost_in_stop(1, 8, 5), ownership.lost_in_stop(1, 8, 7)), (Some(2), None));
        assert_eq!(ownership.lost_in_stop(1, 9, 5), None);
        assert!(!ownership.is_late(1, 9, 5), "nobody has taken over partition 1");
        assert!(!ownership.is_late(2, 8, 5));
    }

    #[test]
    fn a_process_that_was_stopped_is_late_for_some_time_if_another_works_on_the_key() {
        let records = log(&[
            (1, 2, Entry::Stopped),
            (2, 20, Entry::Begin { message: 0, attempt: 1 }),
            (1, 30, Entry::Woken),
            (1, 39, Entry::Start),
            (1, 41, Entry::Start),
        ]);
        let ownership = ownership(&records, 8, 9);
        let late: Vec<usize> = (0..records.len()).filter(|line| ownership.is_late(1, 9, *line)).collect();
        assert_eq!(late, [1, 2, 3], "it would have heard of it by now");
        assert!(!ownership.is_late(1, 17, 3), "another key of the partition");
    }

    #[test]
    fn a_process_that_had_no_partition_loses_none_in_a_stop() {
        // Its stored attempts have leases of their own.
        let records = log(&[
            (2, 0, Entry::Assigned { partition: 0 }),
            (1, 2, Entry::Stopped),
            (3, 20, Entry::Assigned { partition: 0 }),
            (1, 30, Entry::Woken),
            (1, 31, Entry::Start),
        ]);
        assert_eq!(ownership(&records, 1, 0).lost_in_stop(1, 0, 4), None);
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
        let ownership = ownership(&records, 1, 0);
        let late = |key| -> Vec<usize> {
            (0..records.len()).filter(|line| ownership.is_late(1, key, *line)).collect()
        };
        assert_eq!(late(3), [2, 3], "it lost the lease, and was fenced");
        assert_eq!(late(4), [2, 3], "it was fenced: the partition was assigned twice");
    }
}
