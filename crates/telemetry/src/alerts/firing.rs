//! Tracks firing alerts: one notice when an alert starts, one when it is resolved. Does no I/O.

use std::collections::BTreeMap;
use std::time::Duration;

use lazaret_core::Timestamp;
use uuid::Uuid;

use super::notice::{Facts, Notice, Status, Subject};
use super::rules::AlertEvent;
use crate::age::age;

/// The maximum number of firing alerts. Further ones are dropped: they add nothing for a person (I7).
const FIRING_LIMIT: usize = 4096;

/// The alerts that fire now.
#[derive(Debug, Default)]
pub(super) struct FiringAlerts {
    firing: BTreeMap<Subject, FiringAlert>,
}

#[derive(Debug)]
struct FiringAlert {
    facts: Facts,
    owner: Option<String>,
    since: Timestamp,
    last: Timestamp,
    count: u64,
    /// Resolved after this time without an occurrence; `None`: resolved explicitly.
    quiet: Option<Duration>,
}

/// An occurrence of an alert condition.
pub(super) struct Occurrence {
    pub(super) facts: Facts,
    pub(super) owner: Option<String>,
    pub(super) count: u64,
    pub(super) quiet: Option<Duration>,
}

impl FiringAlerts {
    /// Records an occurrence. Returns a notice if the alert was not firing.
    pub(super) fn fire(
        &mut self,
        subject: &Subject,
        occurrence: Occurrence,
        now: Timestamp,
    ) -> Option<Notice> {
        if let Some(alert) = self.firing.get_mut(subject) {
            alert.last = now;
            alert.count += occurrence.count;
            return None;
        }
        if self.firing.len() >= FIRING_LIMIT {
            return None;
        }
        let Occurrence { facts, owner, count, quiet } = occurrence;
        let alert = FiringAlert { facts, owner, since: now, last: now, count, quiet };
        let notice = alert.notice(subject, Status::Firing, now);
        self.firing.insert(subject.clone(), alert);
        Some(notice)
    }

    /// Resolves an alert. Returns a notice if it was firing.
    pub(super) fn resolve(&mut self, subject: &Subject, now: Timestamp) -> Option<Notice> {
        Some(self.firing.remove(subject)?.notice(subject, Status::Resolved, now))
    }

    /// Fires or resolves by whether the condition holds.
    pub(super) fn set(
        &mut self,
        holds: bool,
        subject: &Subject,
        occurrence: Occurrence,
        now: Timestamp,
    ) -> Option<Notice> {
        if holds { self.fire(subject, occurrence, now) } else { self.resolve(subject, now) }
    }

    /// Resolves the alerts whose quiet time has passed.
    pub(super) fn resolve_quiet(&mut self, now: Timestamp) -> Vec<Notice> {
        let is_quiet = |alert: &FiringAlert| alert.quiet.is_some_and(|quiet| age(alert.last, now) >= quiet);
        let quiet: Vec<_> =
            self.firing.iter().filter(|(_, alert)| is_quiet(alert)).map(|(s, _)| s.clone()).collect();
        quiet.iter().filter_map(|subject| self.resolve(subject, now)).collect()
    }

    /// The subjects that fire for an event.
    pub(super) fn of(&self, event: AlertEvent) -> Vec<Subject> {
        self.firing.keys().filter(|subject| subject.event == event).cloned().collect()
    }
}

impl FiringAlert {
    fn notice(&self, subject: &Subject, status: Status, now: Timestamp) -> Notice {
        let rule = subject.event.rule();
        Notice {
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
            runbook: Notice::runbook(rule.event, None),
            audit_head: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(seconds).unwrap()
    }

    fn poison() -> Subject {
        Subject { event: AlertEvent::Poison, consumer: Some("orders".to_owned()), detail: None }
    }

    fn occurrence(quiet: Option<Duration>) -> Occurrence {
        Occurrence { facts: Facts::default(), owner: None, count: 1, quiet }
    }

    #[test]
    fn a_recurring_event_fires_once_and_resolves_once() {
        let mut alerts = FiringAlerts::default();
        let quiet = Some(Duration::from_secs(60));
        let firing = alerts.fire(&poison(), occurrence(quiet), at(0)).unwrap();
        assert_eq!((firing.status, firing.key.as_str(), firing.count), (Status::Firing, "poison:orders", 1));
        assert!(alerts.fire(&poison(), occurrence(quiet), at(50)).is_none());
        assert!(alerts.resolve_quiet(at(100)).is_empty(), "the last occurrence was 50 seconds ago");
        let resolved = alerts.resolve_quiet(at(110));
        assert_eq!(
            (resolved.len(), resolved[0].status, resolved[0].count, resolved[0].since),
            (1, Status::Resolved, 2, at(0))
        );
        assert!(alerts.resolve_quiet(at(999)).is_empty() && alerts.resolve(&poison(), at(999)).is_none());
        assert!(alerts.fire(&poison(), occurrence(quiet), at(1000)).is_some(), "it fires again");
    }

    #[test]
    fn the_number_of_firing_alerts_is_bounded() {
        // I7
        let mut alerts = FiringAlerts::default();
        for n in 0..=FIRING_LIMIT {
            let subject = Subject { detail: Some(n.to_string()), ..poison() };
            assert_eq!(alerts.fire(&subject, occurrence(None), at(0)).is_some(), n < FIRING_LIMIT);
        }
    }
}
