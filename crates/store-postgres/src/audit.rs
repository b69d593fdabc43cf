//! The audit: a hash chain whose entries are written in the transactions of the changes that they describe.
//!
//! An advisory lock until the commit makes the numbers consecutive. It needs no right on the table but to read and to insert.

use async_trait::async_trait;
use lazaret_core::store::rules::AuditLine;
use lazaret_core::store::{
    Actor, Audit, AuditCheck, AuditEntry, AuditHead, AuditNote, DigestKey, Result, stored_digest_key,
};
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use crate::error::{Fault, Work};
use crate::store::{PostgresStore, first};
use crate::transaction::{Transaction, transaction};
use crate::values::{Columns, bound, limit as rows_of, lock_key, nanos, text};

type Hash = [u8; 32];

/// Number of entries that are verified per page.
const PAGE: usize = 1000;

pub(crate) const INSERT: &str = "INSERT INTO audit (number, at, who, via, why, action, subject, before, after, previous, hash)
    SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[],
    $8::text[], $9::text[], $10::bytea[], $11::bytea[])";
const LOCK: &str = "SELECT pg_advisory_xact_lock($1)";
const LAST: &str = "SELECT number, hash FROM audit ORDER BY number DESC LIMIT 1";
const ENTRIES: &str =
    "SELECT number, at, who, via, why, action, subject, before, after, previous, hash FROM audit
    WHERE number > $1 ORDER BY number LIMIT $2";
pub(crate) const ABOUT: &str = "SELECT found.* FROM (SELECT DISTINCT unnest($1::text[])) AS wanted (subject)
    CROSS JOIN LATERAL (
        SELECT number, at, who, via, why, action, audit.subject, before, after, previous, hash FROM audit
        WHERE hashtextextended(audit.subject, 0) = hashtextextended(wanted.subject, 0) AND audit.subject = wanted.subject
        ORDER BY number DESC LIMIT $2) AS found
    ORDER BY found.number DESC LIMIT $2";
const ONE: &str = "SELECT number, hash FROM audit WHERE number = $1";

/// The columns of entries to insert, an array each.
#[derive(Default)]
pub(crate) struct AuditArrays {
    number: Vec<i64>,
    at: Vec<i64>,
    who: Vec<String>,
    via: Vec<String>,
    why: Vec<String>,
    action: Vec<String>,
    subject: Vec<String>,
    before: Vec<Option<String>>,
    after: Vec<Option<String>>,
    previous: Vec<Vec<u8>>,
    hash: Vec<Vec<u8>>,
}

impl AuditArrays {
    pub(crate) const fn is_empty(&self) -> bool {
        self.number.is_empty()
    }

    fn push(&mut self, entry: &AuditEntry, previous: &Hash, hash: &Hash) {
        let owned = |plain: &str| text(plain).into_owned();
        self.number.push(bound(entry.number));
        self.at.push(nanos(entry.at));
        self.who.push(owned(&entry.by.who));
        self.via.push(owned(&entry.by.via));
        self.why.push(owned(&entry.by.why));
        self.action.push(owned(&entry.action));
        self.subject.push(owned(&entry.subject));
        self.before.push(entry.before.as_deref().map(owned));
        self.after.push(entry.after.as_deref().map(owned));
        self.previous.push(previous.to_vec());
        self.hash.push(hash.to_vec());
    }

    pub(crate) fn parameters(&self) -> Vec<&(dyn ToSql + Sync)> {
        vec![
            &self.number,
            &self.at,
            &self.who,
            &self.via,
            &self.why,
            &self.action,
            &self.subject,
            &self.before,
            &self.after,
            &self.previous,
            &self.hash,
        ]
    }
}

fn hash(bytes: Vec<u8>) -> Work<Hash> {
    bytes.try_into().map_err(|_| Fault::Corrupt("a hash of the audit has a wrong length".to_owned()))
}

fn read_head(row: &Row) -> Work<AuditHead> {
    let mut c = Columns::of(row);
    Ok(AuditHead { number: c.unsigned()?, hash: hash(c.get()?)? })
}

fn read_entry(row: &Row) -> Work<(AuditEntry, Hash, Hash)> {
    let mut c = Columns::of(row);
    let (number, at) = (c.unsigned()?, c.time()?);
    let by = Actor { who: c.text()?, via: c.text()?, why: c.text()? };
    let (action, subject) = (c.text()?, c.text()?);
    let (before, after) = (c.optional_text()?, c.optional_text()?);
    let (previous, hash) = (hash(c.get()?)?, hash(c.get()?)?);
    Ok((AuditEntry { number, at, by, action, subject, before, after }, previous, hash))
}

impl Transaction<'_> {
    /// The entries of these lines, behind the last one. No other transaction adds one before this one has ended.
    pub(crate) async fn next_audit_entries(&self, lines: Vec<AuditLine>) -> Work<AuditArrays> {
        let key = lock_key(&["lazaret audit", self.store.schema()]);
        let [_, last] = self.query_all([(LOCK, &[&key]), (LAST, &[])]).await?;
        let start = AuditHead { number: 0, hash: [0; 32] };
        let AuditHead { mut number, hash: mut previous } = first(&last, read_head)?.unwrap_or(start);
        let mut entries = AuditArrays::default();
        // As it is read back.
        let at = crate::values::time(nanos(self.now()));
        for AuditLine { by, action, subject, before, after } in lines {
            number += 1;
            let entry = AuditEntry { number, at, by, action, subject, before, after };
            let hash = entry.chain_hash(&previous);
            entries.push(&entry, &previous, &hash);
            previous = hash;
        }
        Ok(entries)
    }

    async fn note(&mut self, note: &AuditNote, by: &Actor) -> Work<()> {
        self.read_clock().await?;
        self.unit.audit.push(AuditLine::new(by, &note.action, &note.subject, None, note.after.as_deref()));
        Ok(())
    }
}

impl PostgresStore {
    async fn entries(&self, after: u64, limit: usize) -> Result<Vec<(AuditEntry, Hash, Hash)>> {
        let rows = self.ask("audit", ENTRIES, &[&bound(after), &rows_of(limit)]).await?;
        read_entries(&rows)
    }
}

fn read_entries(rows: &[Row]) -> Result<Vec<(AuditEntry, Hash, Hash)>> {
    rows.iter().map(read_entry).collect::<Work<_>>().map_err(|fault| fault.into_error("audit"))
}

#[async_trait]
impl Audit for PostgresStore {
    async fn note(&self, note: &AuditNote, by: &Actor) -> Result<()> {
        transaction!(self, "note", |tx| tx.note(note, by));
        Ok(())
    }

    async fn audit(&self, after: u64, limit: usize) -> Result<Vec<AuditEntry>> {
        Ok(self.entries(after, limit).await?.into_iter().map(|(entry, ..)| entry).collect())
    }

    async fn audit_about(&self, subjects: &[String], limit: usize) -> Result<Vec<AuditEntry>> {
        let subjects: Vec<String> = subjects.iter().map(|subject| text(subject).into_owned()).collect();
        let rows = self.ask("audit_about", ABOUT, &[&subjects, &rows_of(limit)]).await?;
        Ok(read_entries(&rows)?.into_iter().map(|(entry, ..)| entry).collect())
    }

    async fn digest_key(&self) -> Result<DigestKey> {
        stored_digest_key(self).await
    }

    async fn verify_audit(&self) -> Result<Option<AuditCheck>> {
        let _turn = self.turn_to_scan("verify_audit").await?;
        let mut check = AuditCheck::default();
        loop {
            let page = self.entries(check.intact, PAGE).await?;
            let is_last = page.len() < PAGE;
            for (entry, previous, hash) in page {
                let computed = entry.chain_hash(&previous);
                if entry.number != check.intact + 1 || previous != check.hash || hash != computed {
                    check.broken = Some(entry.number);
                    return Ok(Some(check));
                }
                (check.intact, check.hash) = (entry.number, hash);
            }
            if is_last {
                return Ok(Some(check));
            }
        }
    }

    async fn audit_head(&self, number: Option<u64>) -> Result<Option<AuditHead>> {
        let rows = match number {
            Some(number) => self.ask("audit_head", ONE, &[&bound(number)]).await?,
            None => self.ask("audit_head", LAST, &[]).await?,
        };
        first(&rows, read_head).map_err(|fault| fault.into_error("audit_head"))
    }
}
