//! The audit, a hash chain.
//!
//! A change or removal of an entry in the file breaks the chain ([`AuditEntry::chain_hash`]) from there on. A truncated chain is
//! still intact; the daemon therefore logs the last entry at intervals ([`AuditHead`]), so that truncation is detected elsewhere.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use lazaret_core::store::rules::AuditLine;
use lazaret_core::store::{Actor, AuditCheck, AuditEntry, AuditHead};
use rusqlite::{Connection, OptionalExtension, Row, params};

use crate::error::Work;
use crate::rows::{bound, limit as rows_of, time, unsigned};

type Hash = [u8; 32];

/// The hash before the first entry.
const BEGINNING: Hash = [0; 32];
/// Number of entries that are verified per page.
const PAGE: usize = 1000;

/// Writes an entry, in the transaction of the change that it describes.
pub(crate) fn write(connection: &Connection, now: i64, line: &AuditLine) -> Work<()> {
    let AuditLine { by, action, subject, before, after } = line;
    let mut select =
        connection.prepare_cached("SELECT number, hash FROM audit ORDER BY number DESC LIMIT 1")?;
    let last = select.query_row([], |row| Ok((row.get::<_, i64>(0)?, row.get::<_, Hash>(1)?)));
    let (number, previous) = last.optional()?.unwrap_or((0, BEGINNING));
    let entry = AuditEntry {
        number: unsigned(number + 1)?,
        at: time(now),
        by: by.clone(),
        action: action.clone(),
        subject: subject.clone(),
        before: before.clone(),
        after: after.clone(),
    };
    let mut insert = connection.prepare_cached(
        "INSERT INTO audit (number, at, who, via, why, action, subject, before, after, prev_hash, hash)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)",
    )?;
    insert.execute(params![
        number + 1,
        now,
        by.who,
        by.via,
        by.why,
        action,
        subject,
        before,
        after,
        previous,
        entry.chain_hash(&previous),
    ])?;
    Ok(())
}

fn read(row: &Row<'_>) -> Work<AuditEntry> {
    Ok(AuditEntry {
        number: unsigned(row.get(0)?)?,
        at: time(row.get(1)?),
        by: Actor { who: row.get(2)?, via: row.get(3)?, why: row.get(4)? },
        action: row.get(5)?,
        subject: row.get(6)?,
        before: row.get(7)?,
        after: row.get(8)?,
    })
}

/// Entries after a number, each with the previous hash and its own.
pub(crate) fn entries(
    connection: &Connection,
    after: u64,
    limit: usize,
) -> Work<Vec<(AuditEntry, Hash, Hash)>> {
    let mut select = connection.prepare_cached(
        "SELECT number, at, who, via, why, action, subject, before, after, prev_hash, hash FROM audit
         WHERE number > ?1 ORDER BY number LIMIT ?2",
    )?;
    let mut rows = select.query([bound(after), rows_of(limit)])?;
    let mut entries = Vec::new();
    while let Some(row) = rows.next()? {
        entries.push((read(row)?, row.get(9)?, row.get(10)?));
    }
    Ok(entries)
}

/// The entries about any of these subjects, latest first.
pub(crate) fn about(connection: &Connection, subjects: &[String], limit: usize) -> Work<Vec<AuditEntry>> {
    let mut select = connection.prepare_cached(
        "SELECT number, at, who, via, why, action, subject, before, after FROM audit
         WHERE subject = ?1 ORDER BY number DESC LIMIT ?2",
    )?;
    let subjects: BTreeSet<&String> = subjects.iter().collect();
    let mut entries: Vec<AuditEntry> = Vec::new();
    for subject in subjects {
        let mut rows = select.query(params![subject, rows_of(limit)])?;
        while let Some(row) = rows.next()? {
            entries.push(read(row)?);
        }
    }
    entries.sort_by_key(|entry| Reverse(entry.number));
    entries.truncate(limit);
    Ok(entries)
}

/// The entry with this number, or the last one.
pub(crate) fn head(connection: &Connection, number: Option<u64>) -> Work<Option<AuditHead>> {
    let mut select = connection.prepare_cached(
        "SELECT number, hash FROM audit WHERE ?1 IS NULL OR number = ?1 ORDER BY number DESC LIMIT 1",
    )?;
    let read = |row: &Row<'_>| Ok((row.get::<_, i64>(0)?, row.get::<_, Hash>(1)?));
    let found = select.query_row([number.map(bound)], read).optional()?;
    found.map(|(number, hash)| Ok(AuditHead { number: unsigned(number)?, hash })).transpose()
}

/// Verifies a page of entries. Returns `true` after the last one.
pub(crate) fn verify_page(connection: &Connection, check: &mut AuditCheck) -> Work<bool> {
    let page = entries(connection, check.intact, PAGE)?;
    let is_last = page.len() < PAGE;
    for (entry, previous, hash) in page {
        let computed = entry.chain_hash(&previous);
        if entry.number != check.intact + 1 || previous != check.hash || hash != computed {
            check.broken = Some(entry.number);
            return Ok(true);
        }
        (check.intact, check.hash) = (entry.number, hash);
    }
    Ok(is_last)
}
