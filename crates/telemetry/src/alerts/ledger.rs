//! What is firing now: tells each thing once when it begins and once when it ends. Pure, but for what it remembers.

use std::collections::BTreeMap;
use std::time::Duration;

use lazaret_core::Timestamp;
use uuid::Uuid;

use super::notice::{Facts, Notice, Status, Subject};
use super::rules::rule;
use crate::metrics::age;

/// How many things may be firing at once. Further ones are not told: there is nothing new in them for a person (I7).
const FIRING_LIMIT: usize = 4096;

/// What is firing.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    firing: BTreeMap<Subject, Firing>,
}

#[derive(Debug)]
pub(super) struct Firing {
    pub(super) facts: Facts,
    owner: Option<String>,
    since: Timestamp,
    last: Timestamp,
    count: u64,
    /// Ends when it has not happened for so long; without it, when somebody says so.
    quiet: Option<Duration>,
}

/// Something that happened, or is so.
pub(super) struct Report {
    pub(super) facts: Facts,
    pub(super) owner: Option<String>,
    pub(super) count: u64,
    pub(super) quiet: Option<Duration>,
}

impl Ledger {
    /// It happened, or it is so. A notice comes of it when it was not so before.
    pub(super) fn fire(&mut self, subject: &Subject, report: Report, now: Timestamp) -> Option<Notice> {
        if let Some(firing) = self.firing.get_mut(subject) {
            firing.last = now;
            firing.count += report.count;
            return None;
        }
        if self.firing.len() >= FIRING_LIMIT {
            return None;
        }
        let Report { facts, owner, count, quiet } = report;
        let firing = Firing { facts, owner, since: now, last: now, count, quiet };
        let notice = firing.notice(subject, Status::Firing, now);
        self.firing.insert(subject.clone(), firing);
        notice
    }

    /// It is over. A notice comes of it when it was so before.
    pub(super) fn resolve(&mut self, subject: &Subject, now: Timestamp) -> Option<Notice> {
        self.firing.remove(subject)?.notice(subject, Status::Resolved, now)
    }

    /// As `fire` or `resolve`.
    pub(super) fn level(
        &mut self,
        up: bool,
        subject: &Subject,
        report: Report,
        now: Timestamp,
    ) -> Option<Notice> {
        if up { self.fire(subject, report, now) } else { self.resolve(subject, now) }
    }

    /// Ends what has been quiet for long enough.
    pub(super) fn quieted(&mut self, now: Timestamp) -> Vec<Notice> {
        let is_quiet = |firing: &Firing| firing.quiet.is_some_and(|quiet| age(firing.last, now) >= quiet);
        let over: Vec<_> =
            self.firing.iter().filter(|(_, firing)| is_quiet(firing)).map(|(s, _)| s.clone()).collect();
        over.iter().filter_map(|subject| self.resolve(subject, now)).collect()
    }

    /// What is firing by this rule.
    pub(super) fn of(&self, event: &'static str) -> Vec<Subject> {
        self.firing.keys().filter(|subject| subject.event == event).cloned().collect()
    }
}

impl Firing {
    fn notice(&self, subject: &Subject, status: Status, now: Timestamp) -> Option<Notice> {
        let rule = rule(subject.event)?;
        Some(Notice {
            version: 1,
            id: Uuid::now_v7().to_string(),
            key: subject.key(),
            event: rule.event,
            status,
            severity: rule.severity,
            summary: rule.summary,
            consumer: subject.consumer.clone(),
            owner: self.owner.clone(),
            facts: self.facts.clone(),
            count: self.count,
            since: self.since,
            at: now,
            runbook: Notice::runbook(rule),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::rules;
    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(seconds).unwrap()
    }

    fn poison() -> Subject {
        Subject { event: rules::POISON, consumer: Some("orders".to_owned()), detail: None }
    }

    fn report(quiet: Option<Duration>) -> Report {
        Report { facts: Facts::default(), owner: None, count: 1, quiet }
    }

    #[test]
    fn what_happens_again_and_again_is_told_once_and_its_end_once() {
        let mut ledger = Ledger::default();
        let quiet = Some(Duration::from_secs(60));
        let told = ledger.fire(&poison(), report(quiet), at(0)).unwrap();
        assert_eq!((told.status, told.key.as_str(), told.count), (Status::Firing, "poison:orders", 1));
        assert!(ledger.fire(&poison(), report(quiet), at(50)).is_none());
        assert!(ledger.quieted(at(100)).is_empty(), "it happened 50 seconds ago");
        let over = ledger.quieted(at(110));
        assert_eq!(
            (over.len(), over[0].status, over[0].count, over[0].since),
            (1, Status::Resolved, 2, at(0))
        );
        assert!(ledger.quieted(at(999)).is_empty() && ledger.resolve(&poison(), at(999)).is_none());
        assert!(ledger.fire(&poison(), report(quiet), at(1000)).is_some(), "it is news again");
    }

    #[test]
    fn what_is_firing_is_bounded() {
        // I7
        let mut ledger = Ledger::default();
        for n in 0..=FIRING_LIMIT {
            let subject = Subject { detail: Some(n.to_string()), ..poison() };
            assert_eq!(ledger.fire(&subject, report(None), at(0)).is_some(), n < FIRING_LIMIT);
        }
    }
}
