//! The contracts that need one document a call: triage as far as it reads, the audit, and small values.

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use lazaret_core::letter::{Letter, LetterId};
use lazaret_core::query::Query;
use lazaret_core::store::rules::AuditLine;
use lazaret_core::store::{
    Actor, Audit, AuditEntry, AuditNote, Change, DigestKey, Expect, Expired, GroupsPage, GroupsRequest,
    KeyValue, LettersPage, QueueSummary, Reading, Result, Triage, Versioned, Written, stored_digest_key,
};
use lazaret_core::{QueueName, Timestamp};

use crate::DocumentStore;
use crate::database::Value;
use crate::documents::Stored;

#[async_trait]
impl Triage for DocumentStore {
    async fn find(&self, query: &Query, after: Option<&str>, limit: usize) -> Result<LettersPage> {
        self.search(query, after, limit)
    }

    async fn groups(&self, request: &GroupsRequest) -> Result<GroupsPage> {
        self.list_groups(request)
    }

    async fn queues(&self) -> Result<Vec<QueueSummary>> {
        self.summaries()
    }

    async fn change(
        &self,
        queue: &QueueName,
        letter: LetterId,
        change: &Change,
        by: &Actor,
    ) -> Result<Letter> {
        let key = stored_digest_key(self).await?;
        self.edit(queue, letter, change, by, &key)
    }

    async fn purge(&self, queue: &QueueName, letter: LetterId, by: &Actor) -> Result<()> {
        self.purge_letter(queue, letter, Some(by))
    }

    async fn erase(&self, queue: &QueueName, letter: LetterId, by: &Actor) -> Result<Letter> {
        self.erase_letter(queue, letter, by)
    }

    async fn expire(
        &self,
        queue: &QueueName,
        closed_before: Option<Timestamp>,
        limit: usize,
    ) -> Result<Expired> {
        self.expire_letters(queue, closed_before, limit)
    }
}

#[async_trait]
impl Audit for DocumentStore {
    async fn note(&self, note: &AuditNote, by: &Actor) -> Result<()> {
        self.write_line(AuditLine::new(by, &note.action, &note.subject, None, note.after.as_deref()))
    }

    async fn audit(&self, after: u64, limit: usize) -> Result<Vec<AuditEntry>> {
        self.catch_up()?;
        let entries = self.db.audit.scan(after.saturating_add(1).., |_, entry| Some(entry.value.clone()));
        Ok(entries.into_iter().take(limit).collect())
    }

    async fn audit_about(&self, subjects: &[String], limit: usize) -> Result<Vec<AuditEntry>> {
        self.catch_up()?;
        // Stands for an index.
        let about = |entry: &AuditEntry| subjects.contains(&entry.subject);
        let entries = self.db.audit.scan(0.., |_, entry| Some(&entry.value).filter(|of| about(of)).cloned());
        Ok(entries.into_iter().rev().take(limit).collect())
    }

    async fn digest_key(&self) -> Result<DigestKey> {
        stored_digest_key(self).await
    }
}

impl DocumentStore {
    /// The value as it is stored, expired or not.
    fn stored_value(&self, key: &(String, String)) -> Reading {
        let found = self.db.values.get(key).map(|Stored { value: Value { value, expires_at }, version }| {
            Versioned { value, version, expires_at }
        });
        Reading { found, now: self.clock.now() }
    }
}

#[async_trait]
impl KeyValue for DocumentStore {
    async fn read(&self, space: &str, name: &str) -> Result<Reading> {
        let stored = self.stored_value(&(space.to_owned(), name.to_owned()));
        self.expiry.unexpired(self, space, stored).await
    }

    async fn write(
        &self,
        space: &str,
        name: &str,
        expect: Expect,
        value: Option<Bytes>,
        ttl: Option<Duration>,
    ) -> Result<Written> {
        let time = self.expiry.time(self, space).await?;
        let key = (space.to_owned(), name.to_owned());
        loop {
            let reading = self.stored_value(&key);
            let stored = reading.found.as_ref().map_or(0, |stored| stored.version);
            let reading = time.unexpired(reading);
            let found = reading.found.as_ref().map(|found| found.version);
            let holds = match expect {
                Expect::Anything => true,
                Expect::Absent => found.is_none(),
                Expect::Version(version) => found == Some(version),
            };
            if !holds {
                return Ok(Written::Conflict(reading));
            }
            let expires_at = ttl.map(|ttl| time.end_of(ttl));
            let written = match value.clone() {
                Some(value) => self.db.values.put_if_version(&key, stored, Value { value, expires_at })?,
                None => stored == 0 || self.db.values.delete_if_version(&key, stored)?,
            };
            if written {
                return Ok(Written::Done);
            }
        }
    }
}
