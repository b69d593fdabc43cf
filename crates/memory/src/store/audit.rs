//! The audit, bounded.

use std::collections::VecDeque;

use async_trait::async_trait;
use jiff::Timestamp;
use lazaret_core::store::rules::AuditLine;
use lazaret_core::store::{Actor, Audit, AuditEntry, AuditNote, Result};

use super::MemoryStore;

/// Maximum number of audit entries; older ones are dropped (I7).
pub const AUDIT_LIMIT: usize = 100_000;

#[derive(Default)]
pub(super) struct AuditLog {
    entries: VecDeque<AuditEntry>,
    last: u64,
}

impl AuditLog {
    pub(super) fn write(&mut self, at: Timestamp, line: AuditLine) {
        let AuditLine { by, action, subject, before, after } = line;
        if self.entries.len() >= AUDIT_LIMIT {
            self.entries.pop_front();
        }
        self.last += 1;
        let number = self.last;
        self.entries.push_back(AuditEntry { number, at, by, action, subject, before, after });
    }

    fn after(&self, number: u64, limit: usize) -> Vec<AuditEntry> {
        // Numbers have no gaps, so the place follows from the number.
        let first = self.entries.front().map_or(0, |entry| entry.number);
        let skip = usize::try_from(number.saturating_add(1).saturating_sub(first)).unwrap_or(usize::MAX);
        self.entries.iter().skip(skip).take(limit).cloned().collect()
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
}
