//! When the next letters of groups expire. What is read for that is decided by [`NextExpiries`].

use std::collections::{BTreeMap, BTreeSet};

use lazaret_core::Timestamp;
use lazaret_core::store::Result;
use lazaret_core::store::rules::{EXPIRIES_OF_GROUP, EXPIRIES_OF_QUEUE, GroupExpiry, NextExpiries};
use tokio_postgres::Row;

use crate::error::Work;
use crate::store::PostgresStore;
use crate::values::{Columns, limit as rows_of};

/// A group: the number of its queue, and its fingerprint.
pub(crate) type Key = (i64, String);

/// Letters that wait (4) do not expire.
pub(crate) const NEXT: &str = "SELECT q.qid, l.cause_group, l.expires_at FROM unnest($1::bigint[]) AS q (qid)
    CROSS JOIN LATERAL (SELECT l.cause_group, l.expires_at FROM letters l WHERE l.qid = q.qid AND l.sid IS NOT NULL
        AND l.expires_at IS NOT NULL AND l.state <> 4 ORDER BY l.expires_at, l.lid LIMIT $2) l";
/// The letters are looked for by hash and number: only their index has this order. By number alone, a server with a small table reads all
/// letters of the queue, and goes on so when the table grows.
pub(crate) const OF_OLDEST: &str =
    "SELECT k.qid, k.fingerprint, min(l.expires_at) FILTER (WHERE l.state <> 4)
    FROM unnest($1::bigint[], $2::text[]) AS k (qid, fingerprint)
    CROSS JOIN LATERAL (SELECT l.expires_at, l.state FROM letters l
        WHERE l.qid = k.qid AND l.cause_group = k.fingerprint AND l.sid IS NOT NULL
        AND hashtextextended(l.cause_group, 0) >= hashtextextended(k.fingerprint, 0)
        AND hashtextextended(l.cause_group, 0) <= hashtextextended(k.fingerprint, 0)
        ORDER BY hashtextextended(l.cause_group, 0), l.lid LIMIT $3) l
    GROUP BY k.qid, k.fingerprint";

impl PostgresStore {
    /// When the next open letter of each of these groups expires. Groups of which none does are left out.
    pub(crate) async fn group_expiries(
        &self,
        operation: &'static str,
        groups: &[Key],
    ) -> Result<BTreeMap<Key, Timestamp>> {
        let mut found = BTreeMap::new();
        if groups.is_empty() {
            return Ok(found);
        }
        let next = self.next_expiries(operation, groups).await?;
        let (mut qids, mut fingerprints) = (Vec::new(), Vec::new());
        for key in groups {
            let (qid, fingerprint) = key;
            match next.get(qid).map(|next| next.of(fingerprint)) {
                Some(GroupExpiry::Known(Some(at))) => _ = found.insert(key.clone(), at),
                Some(GroupExpiry::OfOldest) => {
                    qids.push(*qid);
                    fingerprints.push(fingerprint.clone());
                }
                Some(GroupExpiry::Known(None)) | None => {}
            }
        }
        if qids.is_empty() {
            return Ok(found);
        }
        let limit = rows_of(EXPIRIES_OF_GROUP);
        for row in &self.ask(operation, OF_OLDEST, &[&qids, &fingerprints, &limit]).await? {
            let read = |row: &Row| -> Work<(Key, Option<Timestamp>)> {
                let mut c = Columns::of(row);
                Ok(((c.get()?, c.get()?), c.moment()?))
            };
            let (key, at) = read(row).map_err(|fault| fault.into_error(operation))?;
            found.extend(at.map(|at| (key, at)));
        }
        Ok(found)
    }

    /// The letters of the queues of these groups that expire next. Queues without one are left out.
    async fn next_expiries(
        &self,
        operation: &'static str,
        groups: &[Key],
    ) -> Result<BTreeMap<i64, NextExpiries<String>>> {
        let queues: BTreeSet<i64> = groups.iter().map(|(qid, _)| *qid).collect();
        let (queues, limit) = (Vec::from_iter(queues), rows_of(EXPIRIES_OF_QUEUE));
        let mut letters = BTreeMap::<i64, Vec<_>>::new();
        for row in &self.ask(operation, NEXT, &[&queues, &limit]).await? {
            let read = |row: &Row| -> Work<(i64, (Option<String>, Timestamp))> {
                let mut c = Columns::of(row);
                Ok((c.get()?, (c.get()?, c.time()?)))
            };
            let (qid, letter) = read(row).map_err(|fault| fault.into_error(operation))?;
            letters.entry(qid).or_default().push(letter);
        }
        Ok(letters.into_iter().map(|(qid, letters)| (qid, NextExpiries::new(letters))).collect())
    }
}
