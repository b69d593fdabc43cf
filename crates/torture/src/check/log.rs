//! Checks the log alone: order, attempts, delays and repetitions.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use super::ownership::Ownership;
use super::{Findings, Scope};
use crate::journal::{Entry, Record};
use crate::plan::{MAX_ATTEMPTS, Plan};

/// A process, and how often the partition of the message was assigned to it: it may repeat what it did before.
pub(super) type Owner = (u32, u32);

/// The state of a message by the log.
#[derive(Clone, Copy, Default)]
pub(super) struct Observed {
    /// The highest attempt that began, and by whom.
    pub(super) begun: Option<(u32, Owner)>,
    /// The last attempt that failed.
    pub(super) failed: Option<Failed>,
    /// Who last handled it.
    pub(super) handled: Option<Owner>,
    /// An operator has closed it, or was about to.
    pub(super) closed: bool,
}

/// An attempt that failed.
#[derive(Clone, Copy)]
pub(super) struct Failed {
    attempt: u32,
    at: Duration,
    process: u32,
}

/// An attempt that has begun and not ended.
struct Run {
    process: u32,
    message: u64,
    attempt: u32,
    /// Its process has lost the key since: it is dropped, or its outcome is refused.
    given_up: bool,
}

/// Checks order, attempts, delays and repetitions.
pub(super) fn check_log(scope: &Scope, records: &[Record], findings: &mut Findings) -> Vec<Observed> {
    let mut check = Check {
        scope,
        observed: vec![Observed::default(); scope.plan.messages as usize],
        keys: Keys::new(scope.plan),
        losses: Losses::new(records),
        ownership: Ownership::new(records, scope.partitions, |message| scope.plan.key(message)),
        runs: HashMap::new(),
        assignments: HashMap::new(),
        killed: HashSet::new(),
        begun_lost: HashMap::new(),
        clock: MachineClock::default(),
        findings: &mut *findings,
    };
    check.findings.lost = check.losses.count();
    for (line, record) in records.iter().enumerate() {
        check.take(line, record);
    }
    let observed = check.observed;
    findings.handled = observed.iter().filter(|observed| observed.handled.is_some()).count() as u64;
    observed
}

struct Check<'c> {
    scope: &'c Scope,
    observed: Vec<Observed>,
    keys: Keys,
    losses: Losses,
    ownership: Ownership<'c>,
    /// By key.
    runs: HashMap<u32, Vec<Run>>,
    /// How often each partition was assigned to each process.
    assignments: HashMap<(u32, u32), u32>,
    killed: HashSet<u32>,
    /// How many attempts each process began of partitions that it lost in one of its stops.
    begun_lost: HashMap<(u32, usize), usize>,
    clock: MachineClock,
    findings: &'c mut Findings,
}

impl Check<'_> {
    fn take(&mut self, line: usize, record: &Record) {
        let process = record.process;
        match record.entry {
            Entry::Begin { message, attempt } => self.begin(line, record, message, attempt),
            Entry::End { message, attempt, handled } => self.end(line, record, (message, attempt), handled),
            Entry::Close { message } => self.observed[message as usize].closed = true,
            Entry::Lost { key } => self.give_up(process, |of| of == key),
            Entry::Assigned { partition } => {
                *self.assignments.entry((process, partition)).or_default() += 1;
            }
            Entry::Revoked { partition } | Entry::Dropped { partition } => {
                let partitions = self.scope.partitions;
                self.give_up(process, |key| key % partitions == partition);
            }
            Entry::Altered { message } => {
                self.findings.violated(|| format!("I5: message {message} was altered in process {process}"));
            }
            Entry::Killed => {
                self.killed.insert(process);
                self.runs.values_mut().for_each(|runs| runs.retain(|run| run.process != process));
            }
            Entry::Clock { ahead } => self.clock.is_ahead(ahead),
            // The latter are part of the ownership.
            Entry::Start | Entry::Stopped | Entry::Woken => {}
        }
    }

    fn give_up(&mut self, process: u32, concerns: impl Fn(u32) -> bool) {
        for (_, runs) in self.runs.iter_mut().filter(|(key, _)| concerns(**key)) {
            runs.iter_mut().filter(|run| run.process == process).for_each(|run| run.given_up = true);
        }
    }

    fn owner(&self, process: u32, key: u32) -> Owner {
        let times = self.assignments.get(&(process, self.ownership.partition(key)));
        (process, times.copied().unwrap_or_default())
    }

    fn is_late(&self, process: u32, key: u32, line: usize) -> bool {
        self.scope.fleet && self.ownership.is_late(process, key, line)
    }

    fn begin(&mut self, line: usize, record: &Record, message: u64, attempt: u32) {
        let (process, key) = (record.process, self.scope.plan.key(message));
        self.findings.attempts += 1;
        if attempt > MAX_ATTEMPTS {
            self.findings
                .violated(|| format!("I4: message {message} begins attempt {attempt} in process {process}"));
        }
        let late = self.is_late(process, key, line);
        self.findings.late += u64::from(late);
        self.check_woken(line, process, key);
        if !late {
            self.keys.check_begin(message, process, &self.observed, self.findings);
            self.check_under_way(line, message, process);
            self.check_delay(record, message, attempt);
        }
        self.check_repetition(message, attempt, self.owner(process, key), late);
        // An attempt that was dropped has no end in the log.
        let runs = self.runs.entry(key).or_default();
        runs.retain(|run| run.process != process || run.message != message);
        runs.push(Run { process, message, attempt, given_up: false });
    }

    /// I6: a process that was stopped confirms what it owns before it calls a handler again. It may have been stopped after that, once in
    /// each shard.
    fn check_woken(&mut self, line: usize, process: u32, key: u32) {
        let Some(stop) = self.ownership.lost_in_stop(process, key, line).filter(|_| self.scope.fleet) else {
            return;
        };
        let begun = self.begun_lost.entry((process, stop)).or_default();
        *begun += 1;
        if *begun == shards() + 1 {
            self.findings.violated(|| {
                format!("I6: process {process} was woken, and begins attempts of partitions that it has lost")
            });
        }
    }

    /// I2, I6: nothing else of the key is under way.
    fn check_under_way(&mut self, line: usize, message: u64, process: u32) {
        let key = self.scope.plan.key(message);
        let lost = self.losses.of(process, key).any;
        let Some(runs) = self.runs.get(&key) else { return };
        for run in runs.iter().filter(|run| !run.given_up) {
            let (other, by) = (run.message, run.process);
            if by == process && other != message && !lost {
                self.findings.violated(|| {
                    format!("I2: message {message} of key {key} begins in process {process} while message {other} is under way")
                });
            }
            if by != process && !self.is_late(by, key, line) {
                self.findings.violated(|| {
                    format!("I6: message {message} of key {key} begins in process {process} while message {other} is under way in process {by}")
                });
            }
        }
    }

    /// I12: not before its delay has passed, by the clock that the store goes by: a due time comes sooner by as much as that clock is
    /// set forward. The attempt of a process that died may have been counted without one.
    fn check_delay(&mut self, record: &Record, message: u64, attempt: u32) {
        let Some(failed) = self.observed[message as usize].failed else { return };
        if failed.attempt + 1 != attempt || self.killed.contains(&failed.process) {
            return;
        }
        let least = least_delay(self.scope, failed.attempt);
        let after = record.at.saturating_sub(failed.at);
        if after + self.clock.set_forward() < least {
            self.findings.violated(|| {
                format!("I12: message {message} begins attempt {attempt} {after:?} after it failed, and {least:?} is the least delay")
            });
        }
    }

    /// Checks a new attempt against the earlier ones of its message.
    fn check_repetition(&mut self, message: u64, attempt: u32, owner: Owner, late: bool) {
        let observed = &mut self.observed[message as usize];
        let (process, key) = (owner.0, self.scope.plan.key(message));
        let lost = self.losses.of(process, key);
        let repeats = observed.begun.is_some_and(|(before, by)| by == owner && attempt <= before)
            || observed.handled == Some(owner);
        let explained = late || (repeats && lost.unused > 0);
        lost.unused -= u64::from(explained && !late);
        let findings = &mut *self.findings;
        if let Some((before, by)) = observed.begun {
            if by == owner && attempt <= before && !explained {
                findings.violated(|| {
                    format!("I6: message {message} begins attempt {attempt} twice in process {process}")
                });
            }
            if attempt < before && !late {
                findings.violated(|| {
                    format!(
                        "I4: message {message} begins attempt {attempt} in process {process}, after attempt {before}"
                    )
                });
            }
            findings.repeated += u64::from(attempt <= before);
        }
        if observed.handled == Some(owner) && !explained {
            findings.violated(|| {
                format!("I8: message {message} begins again in process {process}, which has handled it")
            });
        }
        if !late {
            observed.begun = Some((attempt, owner));
        }
    }

    fn end(&mut self, line: usize, record: &Record, (message, attempt): (u64, u32), handled: bool) {
        let (process, key) = (record.process, self.scope.plan.key(message));
        let (owner, mut late) = (self.owner(process, key), self.is_late(process, key, line));
        let runs = self.runs.entry(key).or_default();
        let is_it = |run: &Run| (run.process, run.message, run.attempt) == (process, message, attempt);
        match runs.iter().position(is_it) {
            Some(place) => late |= runs.swap_remove(place).given_up,
            None => self
                .findings
                .violated(|| format!("attempt {attempt} of message {message} ends without a beginning")),
        }
        let observed = &mut self.observed[message as usize];
        if handled {
            observed.handled = Some(owner);
        } else {
            self.findings.failed += 1;
            if !late {
                observed.failed = Some(Failed { attempt, at: record.at, process });
            }
        }
    }
}

/// The number of shards of a process.
fn shards() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// The clock of the machine, which somebody may set during the run.
#[derive(Default)]
struct MachineClock {
    /// How far it was ahead of the monotonic clock, in microseconds: the least, and the last.
    ahead: Option<(i64, i64)>,
}

impl MachineClock {
    fn is_ahead(&mut self, ahead: i64) {
        let least = self.ahead.map_or(ahead, |(least, _)| least.min(ahead));
        self.ahead = Some((least, ahead));
    }

    /// By how much it was set forward.
    fn set_forward(&self) -> Duration {
        self.ahead.map_or(Duration::ZERO, |(least, last)| Duration::from_micros(last.abs_diff(least)))
    }
}

/// The shortest delay after this attempt, whatever the jitter.
fn least_delay(scope: &Scope, failed_attempt: u32) -> Duration {
    let retry = &scope.retry;
    let plain = lazaret_core::policy::RetryPolicy { jitter: 0.0, ..retry.clone() };
    plain.delay(failed_attempt, None, 0).mul_f64((1.0 - retry.jitter).max(0.0))
}

/// The leases that each process lost, by key. Counted before the check: the loss is logged beside the next attempt, not before
/// it.
struct Losses(HashMap<(u32, u32), Lost>);

/// The losses of one key in one process.
#[derive(Clone, Copy, Default)]
struct Lost {
    /// There was one.
    any: bool,
    /// Those that no repetition was explained with.
    unused: u64,
}

impl Losses {
    fn new(records: &[Record]) -> Self {
        let mut losses = HashMap::<_, Lost>::new();
        for record in records {
            if let Entry::Lost { key } = record.entry {
                let lost = losses.entry((record.process, key)).or_default();
                *lost = Lost { any: true, unused: lost.unused + 1 };
            }
        }
        Self(losses)
    }

    fn count(&self) -> u64 {
        self.0.values().map(|lost| lost.unused).sum()
    }

    fn of(&mut self, process: u32, key: u32) -> &mut Lost {
        self.0.entry((process, key)).or_default()
    }
}

/// The messages of each key, in order, and the progress of each key.
struct Keys {
    plan: Plan,
    messages: Vec<Vec<u64>>,
    /// For each key, how many of its messages, from the first on, are known to be handled or closed.
    settled: Vec<usize>,
}

impl Keys {
    fn new(plan: Plan) -> Self {
        let mut messages = vec![Vec::new(); plan.keys as usize];
        for number in 0..plan.messages {
            messages[plan.key(number) as usize].push(number);
        }
        Self { plan, messages, settled: vec![0; plan.keys as usize] }
    }

    /// I2: no earlier message of the key is neither handled nor closed.
    fn check_begin(&mut self, message: u64, process: u32, observed: &[Observed], findings: &mut Findings) {
        let key = self.plan.key(message) as usize;
        let (messages, settled) = (&self.messages[key], &mut self.settled[key]);
        let is_settled = |message: u64| {
            let observed = &observed[message as usize];
            observed.handled.is_some() || observed.closed
        };
        while messages.get(*settled).is_some_and(|message| is_settled(*message)) {
            *settled += 1;
        }
        if let Some(earlier) = messages.get(*settled).filter(|earlier| **earlier < message) {
            findings.violated(|| {
                format!("I2: message {message} of key {key} begins in process {process} before message {earlier} has ended")
            });
        }
    }
}

#[cfg(test)]
#[path = "log_tests.rs"]
mod tests;
