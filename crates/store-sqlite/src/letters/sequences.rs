//! The rows of open sequences.

use std::sync::Arc;
use std::time::Duration;

use lazaret_core::SequenceId;
use lazaret_core::store::rules::{Head, HeldLease, LeaseKind, Pace, Schedule, SequenceChange, SequenceRow};
use lazaret_core::store::{LeaseUse, OperationId};
use rusqlite::{Row, params};

use super::Queue;
use crate::error::{Fault, Work};
use crate::rows::{bound, first, nanos, time, unsigned};

/// An open sequence, and the number of its row.
pub(crate) struct OpenSequence {
    pub(crate) sid: i64,
    pub(crate) name: SequenceId,
    pub(crate) row: SequenceRow,
}

/// A bit of the column `lease_replay`: the lease is not for due letters.
const REPLAY: i64 = 1;
/// A bit of the column `lease_replay`: the owner of the lease waits.
const WAITING: i64 = 2;

/// The column `lease_replay`.
fn lease_bits(lease: &HeldLease) -> i64 {
    let replay = if lease.kind == LeaseKind::Due { 0 } else { REPLAY };
    let waiting = if lease.used_for == LeaseUse::Wait { WAITING } else { 0 };
    replay | waiting
}

/// The columns of an [`OpenSequence`].
pub(crate) struct OpenSequenceRow {
    pub(crate) open: OpenSequence,
    head_gid: Option<i64>,
}

/// A query for [`OpenSequenceRow::read`].
macro_rules! select_sequence {
    ($rest:literal) => {
        concat!(
            "SELECT sid, name, count, head_idx, head_due, touched, paused, lease_owner, lease_fence, lease_until, \
             lease_replay, lease_operation, head_gid, reserved, pace_next, pace_interval, pace_left ",
            $rest
        )
    };
}
pub(crate) use select_sequence;

/// The columns `due` and `busy` of rows that change in bulk, as [`SequenceRow::schedule`] has them; `$paused` and `$reserved` are the new
/// values. An expired lease ends in 1970.
macro_rules! set_schedule {
    ($paused:literal, $reserved:literal) => {
        concat!(
            "due = CASE WHEN NOT ",
            $paused,
            " AND ",
            $reserved,
            " IS NULL AND ifnull(lease_until, 0) <= 0 THEN max(head_due, ifnull(pace_next, head_due)) END, \
             busy = CASE WHEN NOT ",
            $paused,
            " AND ",
            $reserved,
            " IS NULL AND lease_until > 0 THEN max(head_due, ifnull(pace_next, head_due), lease_until) END "
        )
    };
}
pub(crate) use set_schedule;

impl OpenSequenceRow {
    pub(crate) fn read(row: &Row<'_>) -> Work<Self> {
        let operation = |number: Option<i64>| number.map(|id| unsigned(id).map(OperationId)).transpose();
        let lease = match row.get::<_, Option<i64>>(8)? {
            Some(fence) => Some(HeldLease {
                owner: row.get(7)?,
                fence: unsigned(fence)?,
                until: time(row.get(9)?),
                kind: match (operation(row.get(11)?)?, row.get::<_, i64>(10)? & REPLAY) {
                    (Some(operation), _) => LeaseKind::Operation(operation),
                    (None, REPLAY) => LeaseKind::Replay,
                    (None, _) => LeaseKind::Due,
                },
                used_for: match row.get::<_, i64>(10)? & WAITING {
                    WAITING => LeaseUse::Wait,
                    _ => LeaseUse::Attempt,
                },
            }),
            None => None,
        };
        let head = Head {
            index: unsigned(row.get(3)?)?,
            due: row.get::<_, Option<i64>>(4)?.map(time),
            touched: time(row.get(5)?),
            group: None,
        };
        let row_of = SequenceRow {
            count: unsigned(row.get(2)?)?,
            head,
            paused: row.get(6)?,
            lease,
            reserved: operation(row.get(13)?)?,
            pace: match row.get::<_, Option<i64>>(14)? {
                Some(next) => Some(Pace {
                    next: time(next),
                    interval: Duration::from_nanos(unsigned(row.get(15)?)?),
                    left: unsigned(row.get(16)?)?,
                }),
                None => None,
            },
        };
        let name = SequenceId::new(row.get::<_, Arc<str>>(1)?);
        Ok(Self { open: OpenSequence { sid: row.get(0)?, name, row: row_of }, head_gid: row.get(12)? })
    }
}

impl Queue<'_> {
    pub(super) fn opened(&mut self, row: OpenSequenceRow) -> Work<OpenSequence> {
        let OpenSequenceRow { mut open, head_gid } = row;
        open.row.head.group = self.group_name(head_gid)?;
        Ok(open)
    }

    /// The row of a sequence, if open.
    pub(crate) fn sequence(&mut self, name: &SequenceId) -> Work<Option<OpenSequence>> {
        let mut select = self
            .connection
            .prepare_cached(select_sequence!("FROM sequences WHERE qid = ?1 AND name = ?2"))?;
        let row = first(select.query(params![self.numbers.qid, name.as_str()])?, OpenSequenceRow::read)?;
        row.map(|row| self.opened(row)).transpose()
    }

    /// `true` if a sequence is paused, open or not.
    pub(super) fn is_paused(&self, name: &SequenceId) -> Work<bool> {
        if !self.numbers.has_pauses {
            return Ok(false);
        }
        let scope = crate::rows::sequence_scope(name)?;
        let mut select =
            self.connection.prepare_cached("SELECT 1 FROM pauses WHERE consumer = ?1 AND scope = ?2")?;
        Ok(select.exists([self.name.consumer(), &scope])?)
    }

    /// Writes the change of a sequence. Returns the number of its row, if it has one afterwards.
    pub(crate) fn write_sequence(
        &mut self,
        name: Option<&SequenceId>,
        before: Option<&OpenSequence>,
        change: &SequenceChange,
    ) -> Work<Option<i64>> {
        match (change, before) {
            (SequenceChange::Keep, before) => Ok(before.map(|open| open.sid)),
            (SequenceChange::Open(row), _) => {
                let unnamed = || Fault::Corrupt("a sequence was opened without a name".to_owned());
                self.insert_row(name.ok_or_else(unnamed)?, row).map(Some)
            }
            (SequenceChange::Remove, Some(OpenSequence { sid, .. })) => {
                self.connection.prepare_cached("DELETE FROM sequences WHERE sid = ?1")?.execute([sid])?;
                self.numbers.sequences -= 1;
                Ok(None)
            }
            (SequenceChange::Put(row) | SequenceChange::Reopen(row), Some(open)) => {
                self.update_row(open, row)?;
                if matches!(change, SequenceChange::Reopen(_)) {
                    self.numbers.revision += 1;
                    let mut update = self
                        .connection
                        .prepare_cached("UPDATE sequences SET revision = ?2 WHERE sid = ?1")?;
                    update.execute([open.sid, self.numbers.revision])?;
                }
                Ok(Some(open.sid))
            }
            (SequenceChange::Put(_) | SequenceChange::Reopen(_) | SequenceChange::Remove, None) => {
                Err(Fault::Corrupt("the row of an open sequence is missing".to_owned()))
            }
        }
    }

    fn insert_row(&mut self, name: &SequenceId, row: &SequenceRow) -> Work<i64> {
        self.numbers.revision += 1;
        self.numbers.sequences += 1;
        let gid = self.group_number(row.head.group)?;
        let mut insert = self.connection.prepare_cached(
            "INSERT INTO sequences (qid, name, count, head_idx, head_due, touched, revision, paused, due, head_gid)
             VALUES (?1, ?2, 1, ?3, ?4, ?5, ?6, ?7, ?8, ?9)",
        )?;
        insert.execute(params![
            self.numbers.qid,
            name.as_str(),
            bound(row.head.index),
            row.head.due.map(nanos),
            nanos(row.head.touched),
            self.numbers.revision,
            row.paused,
            row.schedule().due.map(nanos),
            gid,
        ])?;
        Ok(self.connection.last_insert_rowid())
    }

    /// Updates a row, only its changed columns: indexed ones are expensive.
    fn update_row(&mut self, before: &OpenSequence, row: &SequenceRow) -> Work<()> {
        let OpenSequence { sid, row: old, .. } = before;
        if *row == (SequenceRow { count: row.count, ..old.clone() }) {
            let mut update =
                self.connection.prepare_cached("UPDATE sequences SET count = ?2 WHERE sid = ?1")?;
            update.execute([*sid, bound(row.count)])?;
            return Ok(());
        }
        if (row.count, row.head, row.reserved, row.pace) == (old.count, old.head, old.reserved, old.pace) {
            return self.write_lease(*sid, row);
        }
        let gid = self.group_number(row.head.group)?;
        let continues = (&row.lease, row.reserved, row.pace) == (&old.lease, old.reserved, old.pace);
        if continues && row.schedule() == old.schedule() {
            // The next letter of a sequence under the same lease.
            let mut update = self.connection.prepare_cached(
                "UPDATE sequences SET count = ?2, head_idx = ?3, head_due = ?4, touched = ?5, head_gid = ?6
                 WHERE sid = ?1",
            )?;
            let head = &row.head;
            let (due, touched) = (head.due.map(nanos), nanos(head.touched));
            update.execute(params![sid, bound(row.count), bound(head.index), due, touched, gid])?;
            return Ok(());
        }
        let Schedule { due, busy } = row.schedule();
        let lease = row.lease.as_ref();
        let mut update = self.connection.prepare_cached(
            "UPDATE sequences SET count = ?2, head_idx = ?3, head_due = ?4, touched = ?5, lease_owner = ?6,
             lease_fence = ?7, lease_until = ?8, lease_replay = ?9, lease_operation = ?10, due = ?11, busy = ?12,
             head_gid = ?13, reserved = ?14, pace_next = ?15, pace_interval = ?16, pace_left = ?17 WHERE sid = ?1",
        )?;
        update.execute(params![
            sid,
            bound(row.count),
            bound(row.head.index),
            row.head.due.map(nanos),
            nanos(row.head.touched),
            lease.map(|lease| &lease.owner),
            lease.map(|lease| bound(lease.fence)),
            lease.map(|lease| nanos(lease.until)),
            lease.map(lease_bits),
            lease.and_then(|lease| lease.kind.operation()).map(|id| bound(id.0)),
            due.map(nanos),
            busy.map(nanos),
            gid,
            row.reserved.map(|id| bound(id.0)),
            row.pace.map(|pace| nanos(pace.next)),
            row.pace.map(|pace| i64::try_from(pace.interval.as_nanos()).unwrap_or(i64::MAX)),
            row.pace.map(|pace| bound(pace.left)),
        ])?;
        Ok(())
    }

    /// Writes the lease of a row without a change of its letters.
    pub(super) fn write_lease(&self, sid: i64, row: &SequenceRow) -> Work<()> {
        let Schedule { due, busy } = row.schedule();
        let lease = row.lease.as_ref();
        let mut update = self.connection.prepare_cached(
            "UPDATE sequences SET lease_owner = ?2, lease_fence = ?3, lease_until = ?4, lease_replay = ?5,
             lease_operation = ?6, due = ?7, busy = ?8 WHERE sid = ?1",
        )?;
        update.execute(params![
            sid,
            lease.map(|lease| &lease.owner),
            lease.map(|lease| bound(lease.fence)),
            lease.map(|lease| nanos(lease.until)),
            lease.map(lease_bits),
            lease.and_then(|lease| lease.kind.operation()).map(|id| bound(id.0)),
            due.map(nanos),
            busy.map(nanos),
        ])?;
        Ok(())
    }
}
