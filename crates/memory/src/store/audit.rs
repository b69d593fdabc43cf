//! The audit, bounded.

use std::cmp::Reverse;
use std::collections::{BTreeSet, HashMap, VecDeque};

use async_trait::async_trait;
use jiff::Timestamp;
use lazaret_core::store::rules::AuditLine;
use lazaret_core::store::{Actor, Audit, AuditEntry, AuditNote, DigestKey, Result, stored_digest_key};

use super::MemoryStore;

/// Maximum number of audit entries; older ones are dropped (I7).
pub const AUDIT_LIMIT: usize = 100_000;

#[derive(Default)]
pub(super) struct AuditLog {
    entries: VecDeque<AuditEntry>,
    last: u64,
    /// The numbers of the entries about each subject, oldest first.
    by_subject: HashMap<String, VecDeque<u64>>,
}

impl AuditLog {
    pub(super) fn write(&mut self, at: Timestamp, line: AuditLine) {
        let AuditLine { by, action, subject, before, after } = line;
        if self.entries.len() >= AUDIT_LIMIT {
            self.drop_oldest();
        }
        self.last += 1;
        let number = self.last;
        self.by_subject.entry(subject.clone()).or_default().push_back(number);
        self.entries.push_back(AuditEntry { number, at, by, action, subject, before, after });
    }

    fn drop_oldest(&mut self) {
        let Some(AuditEntry { subject, .. }) = self.entries.pop_front() else { return };
        if let Some(numbers) = self.by_subject.get_mut(&subject) {
            numbers.pop_front();
            if numbers.is_empty() {
                self.by_subject.remove(&subject);
            }
        }
    }

    /// The place of the entry with this number, which follows from it: numbers have no gaps.
    fn place(&self, number: u64) -> usize {
        let first = self.entries.front().map_or(0, |entry| entry.number);
        usize::try_from(number.saturating_sub(first)).unwrap_or(usize::MAX)
    }

    fn after(&self, number: u64, limit: usize) -> Vec<AuditEntry> {
        let skip = self.place(number.saturating_add(1));
        self.entries.iter().skip(skip).take(limit).cloned().collect()
    }

    fn about(&self, subjects: &[String], limit: usize) -> Vec<AuditEntry> {
        let subjects: BTreeSet<&String> = subjects.iter().collect();
        let of_each = subjects.into_iter().filter_map(|subject| self.by_subject.get(subject));
        let mut numbers: Vec<u64> =
            of_each.flat_map(|numbers| numbers.iter().rev().take(limit)).copied().collect();
        numbers.sort_unstable_by_key(|number| Reverse(*number));
        let latest = numbers.into_iter().take(limit);
        latest.filter_map(|number| self.entries.get(self.place(number)).cloned()).collect()
    }
}

#[async_trait]
impl Audit for MemoryStore {
    async fn note(&self, note: &AuditNote, by: &Actor) -> Result<()> {
        let (mut state, now) = self.begin();
        state.audit.write(now, AuditLine::new(by, &note.action, &note.subject, None, note.after.as_deref()));
        Ok(())
    }

    async fn audit(&self, after: u64, limit: usize) -> Result<Vec<AuditEntry>> {
        Ok(self.begin().0.audit.after(after, limit))
    }

    async fn audit_about(&self, subjects: &[String], limit: usize) -> Result<Vec<AuditEntry>> {
        Ok(self.begin().0.audit.about(subjects, limit))
    }

    async fn digest_key(&self) -> Result<DigestKey> {
        stored_digest_key(self).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_audit_keeps_its_newest_entries() {
        // I7
        let mut log = AuditLog::default();
        for _ in 0..AUDIT_LIMIT + 10 {
            log.write(Timestamp::UNIX_EPOCH, AuditLine::new(&Actor::engine("test"), "skip", "", None, None));
        }
        assert_eq!(log.entries.len(), AUDIT_LIMIT);
        let numbers = |after| log.after(after, 2).iter().map(|entry| entry.number).collect::<Vec<_>>();
        assert_eq!(numbers(0), [11, 12]);
        assert_eq!(numbers(20), [21, 22]);
        assert_eq!(numbers(AUDIT_LIMIT as u64 + 9), [AUDIT_LIMIT as u64 + 10]);
        assert!(numbers(u64::MAX - 1).is_empty());
    }

    #[test]
    fn a_subject_whose_entries_were_dropped_is_forgotten() {
        // I7
        let mut log = AuditLog::default();
        let subjects = [("early", 1), ("late", AUDIT_LIMIT)];
        for (subject, entries) in subjects {
            for _ in 0..entries {
                let line = AuditLine::new(&Actor::engine("test"), "skip", subject, None, None);
                log.write(Timestamp::UNIX_EPOCH, line);
            }
        }
        assert_eq!(log.by_subject.keys().collect::<Vec<_>>(), ["late"]);
        assert!(log.about(&["early".to_owned()], 10).is_empty());
        let latest = log.about(&["late".to_owned(), "early".to_owned()], 2);
        let latest: Vec<u64> = latest.iter().map(|entry| entry.number).collect();
        assert_eq!(latest, [AUDIT_LIMIT as u64 + 1, AUDIT_LIMIT as u64]);
    }
}
