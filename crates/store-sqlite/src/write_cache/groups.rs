//! Cached groups, whose counters change with nearly every write.

use std::collections::{HashMap, HashSet};

use lazaret_core::store::rules::{GroupRow, LatestFailure};
use lazaret_core::{Fingerprint, Reason};
use rusqlite::{Connection, OptionalExtension, Row, params};

use crate::error::{Fault, Work};
use crate::rows::{bound, nanos, time, unsigned};

/// Maximum number of cached groups; beyond that the cache is cleared (I7). Small in tests.
const LIMIT: usize = if cfg!(test) { 3 } else { 4096 };

/// A group with its number and its name.
#[derive(Clone, Debug)]
pub(crate) struct CachedGroup {
    pub(crate) qid: i64,
    pub(crate) fingerprint: Fingerprint,
    pub(crate) row: GroupRow,
}

/// The cached groups by number.
#[derive(Default)]
pub(crate) struct Groups {
    known: HashMap<i64, CachedGroup>,
    names: HashMap<(i64, Fingerprint), i64>,
    /// The groups with unwritten changes.
    changed: HashSet<i64>,
    /// The changes of the current request.
    new: HashMap<i64, CachedGroup>,
    new_names: HashMap<(i64, Fingerprint), i64>,
}

impl Groups {
    /// Keeps the changes of the current request.
    pub(crate) fn keep(&mut self) {
        self.changed.extend(self.new.keys());
        self.known.extend(self.new.drain());
        self.names.extend(self.new_names.drain());
    }

    /// Discards the changes of the current request.
    pub(super) fn undo(&mut self) {
        self.new.clear();
        self.new_names.clear();
    }

    /// Forgets what is a copy of the file.
    pub(super) fn forget_copies(&mut self) {
        let changed = &self.changed;
        self.known.retain(|gid, _| changed.contains(gid));
        self.names.retain(|_, gid| changed.contains(gid));
    }

    /// Writes the changes since the last time. A group without letters is removed.
    pub(crate) fn write(&mut self, connection: &Connection) -> Work<()> {
        for gid in self.changed.drain() {
            let Some(numbers) = self.known.get(&gid) else { continue };
            if numbers.row.is_empty() {
                connection.prepare_cached("DELETE FROM groups WHERE gid = ?1")?.execute([gid])?;
                self.names.remove(&(numbers.qid, numbers.fingerprint));
                self.known.remove(&gid);
            } else {
                write_group(connection, gid, numbers)?;
            }
        }
        if self.known.len() > LIMIT {
            self.known.clear();
            self.names.clear();
        }
        Ok(())
    }

    /// The number of a group, which is created if necessary: `now` is when it was first seen.
    pub(crate) fn named(
        &mut self,
        connection: &Connection,
        qid: i64,
        fingerprint: Fingerprint,
        now: i64,
    ) -> Work<i64> {
        let name = (qid, fingerprint);
        if let Some(gid) = self.names.get(&name).or_else(|| self.new_names.get(&name)) {
            return Ok(*gid);
        }
        let text = fingerprint.to_string();
        let mut select =
            connection.prepare_cached("SELECT gid FROM groups WHERE qid = ?1 AND fingerprint = ?2")?;
        if let Some(gid) = select.query_row(params![qid, text], |row| row.get(0)).optional()? {
            self.names.insert(name, gid);
            return Ok(gid);
        }
        let mut insert =
            connection.prepare_cached("INSERT INTO groups (qid, fingerprint) VALUES (?1, ?2)")?;
        insert.execute(params![qid, text])?;
        let gid = connection.last_insert_rowid();
        self.new.insert(gid, CachedGroup { qid, fingerprint, row: GroupRow::new(time(now)) });
        self.new_names.insert(name, gid);
        Ok(gid)
    }

    /// The fingerprint of a group.
    pub(crate) fn fingerprint(&mut self, connection: &Connection, gid: i64) -> Work<Fingerprint> {
        if let Some(group) = self.new.get(&gid).or_else(|| self.known.get(&gid)) {
            return Ok(group.fingerprint);
        }
        let group = read_by_number(connection, gid)?;
        let fingerprint = group.fingerprint;
        self.known.insert(gid, group);
        Ok(fingerprint)
    }

    /// The counters of a group, for the current request to change.
    pub(crate) fn get(&mut self, connection: &Connection, gid: i64) -> Work<&mut CachedGroup> {
        if !self.new.contains_key(&gid) {
            let numbers = match self.known.get(&gid) {
                Some(numbers) => numbers.clone(),
                None => read_by_number(connection, gid)?,
            };
            self.new.insert(gid, numbers);
        }
        self.new.get_mut(&gid).ok_or_else(|| Fault::Corrupt(format!("group {gid} not found")))
    }
}

/// A query for [`read_group`].
macro_rules! select_group {
    ($rest:literal) => {
        concat!(
            "SELECT gid, qid, fingerprint, reason, error_type, message, sequences, behind, first_seen, last_seen, trend, \
             retrying, dead, parked, quarantined, waiting, resolved, evicted, skipped, expired FROM groups ",
            $rest
        )
    };
}
pub(crate) use select_group;

/// Reads a group and its number from a query made with [`select_group`].
pub(crate) fn read_group(row: &Row<'_>) -> Work<(i64, CachedGroup)> {
    let gid: i64 = row.get(0)?;
    let corrupt = |what: &str| Fault::Corrupt(format!("failed to decode the {what} of group {gid}"));
    let fingerprint = row.get_ref(2)?.as_str().map_err(rusqlite::Error::from)?;
    let trend = row.get_ref(10)?.as_str().map_err(rusqlite::Error::from)?;
    let mut by_state = [0; 9];
    for (place, count) in by_state.iter_mut().enumerate() {
        *count = unsigned(row.get(11 + place)?)?;
    }
    let reason: String = row.get(3)?;
    let latest = LatestFailure {
        reason: Reason::new(&*reason).unwrap_or_else(|_| Reason::from_words(&reason)),
        error_type: row.get(4)?,
        message: row.get(5)?,
    };
    let stored = GroupRow {
        latest: latest.into(),
        by_state,
        sequences: unsigned(row.get(6)?)?,
        behind: unsigned(row.get(7)?)?,
        first_seen: time(row.get(8)?),
        last_seen: time(row.get(9)?),
        trend: serde_json::from_str(trend).map_err(|_| corrupt("trend"))?,
    };
    let fingerprint = fingerprint.parse().map_err(|_| corrupt("fingerprint"))?;
    let numbers = CachedGroup { qid: row.get(1)?, fingerprint, row: stored };
    Ok((gid, numbers))
}

fn read_by_number(connection: &Connection, gid: i64) -> Work<CachedGroup> {
    let mut select = connection.prepare_cached(select_group!("WHERE gid = ?1"))?;
    let mut rows = select.query([gid])?;
    let row = rows.next()?.ok_or_else(|| Fault::Corrupt(format!("group {gid} not found")))?;
    Ok(read_group(row)?.1)
}

fn write_group(connection: &Connection, gid: i64, group: &CachedGroup) -> Work<()> {
    let numbers = &group.row;
    let trend = serde_json::to_string(&numbers.trend)
        .map_err(|error| Fault::Corrupt(format!("failed to encode a trend: {error}")))?;
    let [retrying, dead, parked, quarantined, waiting, resolved, evicted, skipped, expired] =
        numbers.by_state.map(bound);
    let mut update = connection.prepare_cached(
        "UPDATE groups SET reason = ?2, error_type = ?3, message = ?4, retrying = ?5, dead = ?6, parked = ?7,
         quarantined = ?8, waiting = ?9, resolved = ?10, evicted = ?11, skipped = ?12, expired = ?13, sequences = ?14,
         behind = ?15, first_seen = ?16, last_seen = ?17, trend = ?18 WHERE gid = ?1",
    )?;
    update.execute(params![
        gid,
        numbers.latest.reason.as_str(),
        numbers.latest.error_type,
        numbers.latest.message,
        retrying,
        dead,
        parked,
        quarantined,
        waiting,
        resolved,
        evicted,
        skipped,
        expired,
        bound(numbers.sequences),
        bound(numbers.behind),
        nanos(numbers.first_seen),
        nanos(numbers.last_seen),
        trend,
    ])?;
    Ok(())
}
