//! Locks of groups.
//!
//! Every transaction locks the groups that exist, in the order of their keys, and then creates the missing ones in that order: so two of
//! them never wait for each other, unless a group appears or is removed in between.

use std::collections::BTreeMap;

use lazaret_core::Fingerprint;
use lazaret_core::store::rules::GroupRow;
use tokio_postgres::Row;

use crate::error::{Fault, Work};
use crate::groups::{read_group, select_group};
use crate::transaction::Transaction;
use crate::values::nanos;

/// The key of a group: its queue and its fingerprint.
pub(crate) type GroupKey = (i64, Fingerprint);

/// The groups that a hand-off changes: those of its letters, and those of the heads that they wait behind. The sequences are locked, so
/// their heads do not change.
pub(crate) const LOCK_GROUPS_OF_HAND_OFF: &str = select_group!(
    "",
    "FROM (SELECT u.fingerprint COLLATE \"C\" AS fingerprint FROM unnest($2::text[]) AS u (fingerprint)
         UNION SELECT s.head_group FROM unnest($3::uuid[]) AS k (hash) CROSS JOIN LATERAL (
             SELECT x.head_group FROM sequences x WHERE x.qid = $1 AND x.hash = k.hash OFFSET 0) s
         ORDER BY 1) u
     CROSS JOIN LATERAL (SELECT * FROM groups x WHERE x.qid = $1 AND x.fingerprint = u.fingerprint FOR UPDATE) g"
);
const LOCK: &str = select_group!(
    "",
    "FROM groups g JOIN unnest($1::bigint[], $2::text[]) AS u (qid, fingerprint)
     ON g.qid = u.qid AND g.fingerprint = u.fingerprint ORDER BY g.qid, g.fingerprint FOR UPDATE OF g"
);
const CREATE: &str = "INSERT INTO groups (qid, fingerprint, reason, error_type, message, sequences, behind,
    first_seen, last_seen, trend, by_state)
    SELECT qid, fingerprint, '', '', '', 0, 0, $3, $4, 'null', '{}'
    FROM unnest($1::bigint[], $2::text[]) AS u (qid, fingerprint) ORDER BY qid, fingerprint COLLATE \"C\"
    ON CONFLICT DO NOTHING";

/// The columns of the keys that are not locked yet, an array each.
fn missing(keys: &[GroupKey], locked: &BTreeMap<GroupKey, GroupRow>) -> (Vec<i64>, Vec<String>) {
    let missing = keys.iter().filter(|key| !locked.contains_key(*key));
    missing.map(|(qid, group)| (*qid, group.to_string())).unzip()
}

impl Transaction<'_> {
    /// Remembers groups that were locked.
    pub(crate) fn hold_groups(&mut self, rows: &[Row]) -> Work<()> {
        for row in rows {
            let (key, group) = read_group(row, self.now())?;
            self.unit.locked_groups.insert(key, group);
        }
        Ok(())
    }

    /// Locks these groups as far as they are not yet, and creates those that do not exist. Returns all that are locked.
    pub(crate) async fn lock_groups(&mut self, keys: &[GroupKey]) -> Work<BTreeMap<GroupKey, GroupRow>> {
        let (qids, names) = missing(keys, &self.unit.locked_groups);
        if !qids.is_empty() {
            let rows = self.query(LOCK, &[&qids, &names]).await?;
            self.hold_groups(&rows)?;
        }
        let (qids, names) = missing(keys, &self.unit.locked_groups);
        if !qids.is_empty() {
            let new = GroupRow::new(self.now());
            let (first, last) = (nanos(new.first_seen), nanos(new.last_seen));
            let [_, rows] =
                self.query_all([(CREATE, &[&qids, &names, &first, &last]), (LOCK, &[&qids, &names])]).await?;
            self.hold_groups(&rows)?;
        }
        let locked = std::mem::take(&mut self.unit.locked_groups);
        match keys.iter().all(|key| locked.contains_key(key)) {
            true => Ok(locked),
            // Another transaction has removed one after it was found.
            false => Err(Fault::Interfered),
        }
    }
}
