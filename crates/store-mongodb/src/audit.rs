//! The audit: a hash chain of documents, one for each number.
//!
//! An entry takes the number behind the last one, unless it is there already. The last number is read before the look for the
//! entry: if another call writes it in between, the number is taken, and the look is repeated. So numbers have no gaps, and no
//! entry stands twice.
//!
//! The lines of many calls of a process are inserted by one command, in order. It ends at the first number that is taken: each entry that
//! was inserted continues the one before it.

use std::collections::BTreeSet;

use async_trait::async_trait;
use bson::{Bson, Document, doc};
use futures_util::future;
use lazaret_core::store::rules::AuditLine;
use lazaret_core::store::{
    Actor, Audit, AuditCheck, AuditEntry, AuditHead, AuditNote, DigestKey, Result, audit_hash_text,
    stored_digest_key,
};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::database::{encode, first, get, list, project};
use crate::documents::left::{Left, LineDoc};
use crate::error::corrupt;
use crate::store::MongoStore;
use crate::together::{Line, Work, done_together, same_for_all};
use crate::values::{int, time, uint};

type Hash = [u8; 32];

/// The hash before the first entry.
const BEGINNING: Hash = [0; 32];
/// Number of entries that are verified per page.
const PAGE: usize = 1000;
/// Number of tokens that one read asks for.
const TOKENS: usize = 100;

/// An entry, with the decision that wrote it.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct EntryDoc {
    #[serde(rename = "_id")]
    number: i64,
    token: String,
    #[serde(flatten)]
    line: LineDoc,
    previous: String,
    hash: String,
}

impl EntryDoc {
    fn new(number: i64, token: &str, line: LineDoc, previous: &Hash) -> Self {
        let mut doc = Self {
            number,
            token: token.to_owned(),
            line,
            previous: audit_hash_text(previous),
            hash: String::new(),
        };
        doc.hash = audit_hash_text(&doc.entry().chain_hash(previous));
        doc
    }

    fn entry(&self) -> AuditEntry {
        let LineDoc { at, by, action, subject, before, after } = self.line.clone();
        AuditEntry { number: uint(self.number), at: time(at), by, action, subject, before, after }
    }

    fn head(&self) -> Result<AuditHead> {
        Ok(AuditHead { number: uint(self.number), hash: unhex(&self.hash)? })
    }
}

fn unhex(text: &str) -> Result<Hash> {
    let mut hash = BEGINNING;
    for (place, byte) in hash.iter_mut().enumerate() {
        let digits = text.get(2 * place..2 * place + 2).unwrap_or_default();
        *byte = u8::from_str_radix(digits, 16).map_err(|_| corrupt(format!("{text:?} is not a hash")))?;
    }
    Ok(hash)
}

/// Lines of many callers, which one worker appends: those of several would take each other's numbers.
pub(crate) struct AppendLines;

impl Work for AppendLines {
    type Item = Vec<(String, LineDoc)>;
    type Answer = ();
    type Kind = ();
    type Key = ();

    const MOST: usize = 256;
    const WORKERS: usize = 1;

    fn line(store: &MongoStore) -> &Line<Self> {
        &store.lines().audit
    }

    fn kind(_: &Self::Item) {}

    fn key(_: &Self::Item) -> Option<()> {
        None
    }

    async fn run(store: &MongoStore, items: Vec<Self::Item>) -> Vec<Result<()>> {
        let callers = items.len();
        same_for_all(store.append_all(items.into_iter().flatten().collect()).await, callers)
    }
}

impl MongoStore {
    /// Appends lines in their order, once for each token.
    pub(crate) async fn append_lines(&self, lines: Vec<(String, LineDoc)>) -> Result<()> {
        if lines.is_empty() {
            return Ok(());
        }
        done_together::<AppendLines>(self, lines).await
    }

    async fn append_all(&self, mut lines: Vec<(String, LineDoc)>) -> Result<()> {
        loop {
            let last = self.last_entry().await?;
            let mut known = self.known_tokens(&lines).await?;
            // Two callers may carry out one decision.
            lines.retain(|(token, _)| known.insert(token.clone()));
            if lines.is_empty() {
                return Ok(());
            }
            let first = last.as_ref().map_or(1, |last| last.number + 1);
            let mut previous = last.map_or(Ok(BEGINNING), |last| unhex(&last.hash))?;
            let mut entries = Vec::with_capacity(lines.len());
            for (number, (token, line)) in (first..).zip(&lines) {
                let entry = EntryDoc::new(number, token, line.clone(), &previous);
                previous = unhex(&entry.hash)?;
                entries.push(encode(&entry)?);
            }
            if self.db().insert_in_order(&self.db().audit, &entries).await? {
                return Ok(());
            }
        }
    }

    /// The tokens of these lines that have an entry.
    async fn known_tokens(&self, lines: &[(String, LineDoc)]) -> Result<BTreeSet<String>> {
        #[derive(Deserialize)]
        struct TokenDoc {
            token: String,
        }
        let reads = lines.chunks(TOKENS).map(|lines| {
            let tokens: Vec<&str> = lines.iter().map(|(token, _)| token.as_str()).collect();
            let fields = doc! { "_id": 0, "token": 1 };
            project(&self.db().audit, doc! { "token": { "$in": tokens } }, fields, Document::new())
        });
        let found: Vec<Vec<TokenDoc>> = future::try_join_all(reads).await?;
        Ok(found.into_iter().flatten().map(|doc| doc.token).collect())
    }

    /// Writes a line that belongs to no decision.
    pub(crate) async fn write_line(&self, line: AuditLine) -> Result<()> {
        let now = self.now().await?;
        match Left::audit(line, now) {
            Left::Audit(line) => self.append_lines(vec![(Uuid::new_v4().to_string(), line)]).await,
            _ => Ok(()),
        }
    }

    async fn last_entry(&self) -> Result<Option<EntryDoc>> {
        first(&self.db().audit, Document::new(), doc! { "_id": -1 }).await
    }

    async fn entries(&self, after: u64, limit: usize) -> Result<Vec<EntryDoc>> {
        list(&self.db().audit, doc! { "_id": { "$gt": int(after) } }, doc! { "_id": 1 }, limit).await
    }
}

#[async_trait]
impl Audit for MongoStore {
    async fn note(&self, note: &AuditNote, by: &Actor) -> Result<()> {
        self.write_line(AuditLine::new(by, &note.action, &note.subject, None, note.after.as_deref())).await
    }

    async fn audit(&self, after: u64, limit: usize) -> Result<Vec<AuditEntry>> {
        if limit == 0 {
            return Ok(Vec::new());
        }
        self.catch_up().await?;
        Ok(self.entries(after, limit).await?.iter().map(EntryDoc::entry).collect())
    }

    async fn audit_about(&self, subjects: &[String], limit: usize) -> Result<Vec<AuditEntry>> {
        if limit == 0 || subjects.is_empty() {
            return Ok(Vec::new());
        }
        self.catch_up().await?;
        // The index has the entries of each subject in this order, and the server merges them up to the limit.
        let about = doc! { "subject": { "$in": subjects.to_vec() } };
        let found: Vec<EntryDoc> = list(&self.db().audit, about, doc! { "_id": -1 }, limit).await?;
        Ok(found.iter().map(EntryDoc::entry).collect())
    }

    async fn digest_key(&self) -> Result<DigestKey> {
        stored_digest_key(self).await
    }

    async fn verify_audit(&self) -> Result<Option<AuditCheck>> {
        self.catch_up().await?;
        let mut check = AuditCheck::default();
        loop {
            let page = self.entries(check.intact, PAGE).await?;
            let is_last = page.len() < PAGE;
            for entry in page {
                let computed = entry.entry().chain_hash(&check.hash);
                let follows =
                    uint(entry.number) == check.intact + 1 && entry.previous == audit_hash_text(&check.hash);
                if !follows || entry.hash != audit_hash_text(&computed) {
                    check.broken = Some(uint(entry.number));
                    return Ok(Some(check));
                }
                (check.intact, check.hash) = (uint(entry.number), computed);
            }
            if is_last {
                return Ok(Some(check));
            }
        }
    }

    async fn audit_head(&self, number: Option<u64>) -> Result<Option<AuditHead>> {
        self.catch_up().await?;
        let entry = match number {
            Some(number) => get::<EntryDoc>(&self.db().audit, Bson::Int64(int(number))).await?,
            None => self.last_entry().await?,
        };
        entry.map(|entry| entry.head()).transpose()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hash_comes_back_from_its_text() {
        let hash: Hash = std::array::from_fn(|place| place as u8 * 7);
        assert_eq!(unhex(&audit_hash_text(&hash)).unwrap(), hash);
        assert!(unhex("xy").is_err());
    }

    #[test]
    fn the_hash_of_an_entry_depends_on_the_one_before_it() {
        let line = LineDoc {
            at: 5,
            by: Actor::engine("test"),
            action: "evict".into(),
            subject: "x".into(),
            before: None,
            after: None,
        };
        let one = EntryDoc::new(1, "t", line.clone(), &BEGINNING);
        let other = EntryDoc::new(1, "t", line, &[1; 32]);
        assert_ne!(one.hash, other.hash);
        assert_ne!(one.previous, other.previous);
    }
}
