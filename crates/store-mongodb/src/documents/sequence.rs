//! The document of a sequence: all that has to be exclusive about it, and what is left to do elsewhere.

use std::time::Duration;

use lazaret_core::store::rules::{Head, HeldLease, LeaseKind, Pace, SequenceRow};
use lazaret_core::store::{LeaseUse, OperationId};
use lazaret_core::{Fingerprint, QueueName, SequenceId};
use serde::{Deserialize, Serialize};

use super::left::Left;
use crate::values::{int, nanos, time, uint};

/// How many of its first letters a sequence names.
pub(crate) const AHEAD: usize = 32;

/// Added to the revision of a sequence that was opened, until it has one. No reader asks for a revision below 0.
const UNNUMBERED: i64 = i64::MIN / 2;

/// The id of the document of a sequence. The length in front keeps ("ab", "c") and ("a", "bc") apart.
pub(crate) fn sequence_key(queue: &QueueName, sequence: &SequenceId) -> String {
    format!("{}:{queue}{sequence}", queue.as_str().len())
}

/// A sequence, open or not.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct SequenceDoc {
    #[serde(rename = "_id")]
    pub(crate) id: String,
    pub(crate) queue: QueueName,
    pub(crate) sequence: SequenceId,
    /// Grows with every write; 0 before the first.
    pub(crate) version: i64,
    pub(crate) open: bool,
    /// Its row while it is open.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) row: Option<RowDoc>,
    /// The fence of its last lease.
    pub(crate) fence: i64,
    /// Its letters by state, open and closed. The counts of a queue are the sum over its sequences.
    pub(crate) by_state: [i64; 9],
    /// Its first open letters, in order, so that the head is read by its id: those with an index up to that of the last one here.
    /// Empty if they are to be looked up.
    pub(crate) ahead: Vec<(i64, String)>,
    /// Number of letters that it has ever held.
    pub(crate) taken_in: i64,
    /// The revision of the queue with which it was opened last. Written after the decision, so that a reader who has seen a
    /// revision never misses one before it. Until then it is negative: see [`SequenceDoc::open_as`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) revision: Option<i64>,
    /// When the scheduler may claim it at the earliest, pauses and reservations apart.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) free_at: Option<i64>,
    /// When its head was touched.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) touched: Option<i64>,
    /// The latest of its times that a clock that is set back would prolong.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) latest: Option<i64>,
    /// `true` if it is to get a new revision.
    pub(crate) opened: bool,
    /// `true` if something is left to do. Left out if not: versions of Lazaret that do not know batches require it, and fail to read a
    /// sequence rather than miss what is left in its batch.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) unfinished: bool,
    /// The batch that opened it, if nothing was decided about it since. While that is there, something may be left to do in it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) batch: Option<String>,
    /// What is left to do in other documents.
    #[serde(default, with = "super::left::packed", skip_serializing_if = "Vec::is_empty")]
    pub(crate) left: Vec<Left>,
}

impl SequenceDoc {
    /// A sequence that was never written.
    pub(crate) fn new(queue: &QueueName, sequence: &SequenceId) -> Self {
        Self {
            id: sequence_key(queue, sequence),
            queue: queue.clone(),
            sequence: sequence.clone(),
            version: 0,
            open: false,
            row: None,
            fence: 0,
            by_state: [0; 9],
            ahead: Vec::new(),
            taken_in: 0,
            revision: None,
            free_at: None,
            touched: None,
            latest: None,
            opened: false,
            unfinished: false,
            batch: None,
            left: Vec::new(),
        }
    }

    /// Gives a sequence that was opened its place among those of the same decision. The revisions of all of them are then written by
    /// one statement, which adds the same number to each.
    pub(crate) fn open_as(&mut self, place: usize) {
        if self.opened {
            self.revision = Some(UNNUMBERED + int(place as u64));
        }
    }

    /// Its place among those of the same decision, while it has no revision.
    pub(crate) fn opened_as(&self) -> Option<u64> {
        self.opened.then(|| uint(self.revision.unwrap_or(UNNUMBERED) - UNNUMBERED))
    }

    /// What is added to the revision of one at place 0, so that it is this one.
    pub(crate) fn to_revision(revision: u64) -> i64 {
        int(revision) - UNNUMBERED
    }

    /// Its row.
    pub(crate) fn row(&self) -> Option<SequenceRow> {
        self.row.as_ref().map(RowDoc::to_row)
    }

    /// The operation that keeps it for itself, as far as the sequence knows.
    pub(crate) fn reserved(&self) -> Option<OperationId> {
        self.row.as_ref()?.reserved.map(|operation| OperationId(uint(operation)))
    }

    /// Sets the row, and the fields that indexes need.
    pub(crate) fn set_row(&mut self, row: Option<&SequenceRow>) {
        // Pauses and reservations are those of other documents.
        let schedule = row.map(|row| SequenceRow { paused: false, reserved: None, ..row.clone() }.schedule());
        self.open = row.is_some();
        self.row = row.map(RowDoc::of);
        self.free_at = schedule.and_then(|schedule| schedule.due.or(schedule.busy)).map(nanos);
        self.touched = row.map(|row| nanos(row.head.touched));
        let lease = row.and_then(|row| row.lease.as_ref()).map(|lease| nanos(lease.until));
        self.latest = self.touched.max(lease);
    }

    /// Keeps the first letters up to date. `count` is the number of open letters before the change.
    pub(crate) fn move_ahead(&mut self, id: &str, index: Option<u64>, count: u64) {
        let covers_all = self.ahead.len() as u64 == count;
        self.ahead.retain(|(_, other)| other != id);
        let Some(index) = index.map(int) else { return };
        if covers_all || self.ahead.last().is_some_and(|(last, _)| index < *last) {
            let at = self.ahead.partition_point(|(other, _)| *other < index);
            self.ahead.insert(at, (index, id.to_owned()));
            self.ahead.truncate(AHEAD);
        }
    }
}

/// The row of an open sequence.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct RowDoc {
    pub(crate) count: i64,
    pub(crate) index: i64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    due: Option<i64>,
    touched: i64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    group: Option<Fingerprint>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) lease: Option<LeaseDoc>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) reserved: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pace: Option<PaceDoc>,
}

/// A lease.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct LeaseDoc {
    owner: String,
    fence: i64,
    until: i64,
    kind: KindDoc,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    operation: Option<i64>,
    waits: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum KindDoc {
    Due,
    Replay,
    Operation,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct PaceDoc {
    next: i64,
    interval_nanos: i64,
    left: i64,
}

impl RowDoc {
    fn of(row: &SequenceRow) -> Self {
        Self {
            count: int(row.count),
            index: int(row.head.index),
            due: row.head.due.map(nanos),
            touched: nanos(row.head.touched),
            group: row.head.group,
            lease: row.lease.as_ref().map(LeaseDoc::of),
            reserved: row.reserved.map(|operation| int(operation.0)),
            pace: row.pace.map(|pace| PaceDoc {
                next: nanos(pace.next),
                interval_nanos: i64::try_from(pace.interval.as_nanos()).unwrap_or(i64::MAX),
                left: int(pace.left),
            }),
        }
    }

    /// The row, not paused.
    pub(crate) fn to_row(&self) -> SequenceRow {
        SequenceRow {
            count: uint(self.count),
            head: Head {
                index: uint(self.index),
                due: self.due.map(time),
                touched: time(self.touched),
                group: self.group,
            },
            paused: false,
            lease: self.lease.as_ref().map(LeaseDoc::to_lease),
            reserved: self.reserved.map(|operation| OperationId(uint(operation))),
            pace: self.pace.as_ref().map(|pace| Pace {
                next: time(pace.next),
                interval: Duration::from_nanos(uint(pace.interval_nanos)),
                left: uint(pace.left),
            }),
        }
    }
}

impl LeaseDoc {
    fn of(lease: &HeldLease) -> Self {
        let kind = match lease.kind {
            LeaseKind::Due => KindDoc::Due,
            LeaseKind::Replay => KindDoc::Replay,
            LeaseKind::Operation(_) => KindDoc::Operation,
        };
        Self {
            owner: lease.owner.clone(),
            fence: int(lease.fence),
            until: nanos(lease.until),
            kind,
            operation: lease.kind.operation().map(|operation| int(operation.0)),
            waits: lease.used_for == LeaseUse::Wait,
        }
    }

    fn to_lease(&self) -> HeldLease {
        let kind = match (self.kind, self.operation) {
            (KindDoc::Operation, operation) => {
                LeaseKind::Operation(OperationId(uint(operation.unwrap_or_default())))
            }
            (KindDoc::Due, _) => LeaseKind::Due,
            (KindDoc::Replay, _) => LeaseKind::Replay,
        };
        HeldLease {
            owner: self.owner.clone(),
            fence: uint(self.fence),
            until: time(self.until),
            kind,
            used_for: if self.waits { LeaseUse::Wait } else { LeaseUse::Attempt },
        }
    }
}

#[cfg(test)]
mod tests {
    use lazaret_core::Timestamp;

    use super::*;

    fn row() -> SequenceRow {
        let at = |second| Timestamp::from_second(second).unwrap();
        SequenceRow {
            count: 3,
            head: Head { index: 7, due: Some(at(5)), touched: at(4), group: None },
            paused: false,
            lease: Some(HeldLease {
                owner: "w".into(),
                fence: 9,
                until: at(30),
                kind: LeaseKind::Operation(OperationId(2)),
                used_for: LeaseUse::Wait,
            }),
            reserved: Some(OperationId(2)),
            pace: Some(Pace { next: at(6), interval: Duration::from_millis(20), left: 4 }),
        }
    }

    #[test]
    fn a_row_comes_back_as_it_was() {
        for kind in [LeaseKind::Due, LeaseKind::Replay, LeaseKind::Operation(OperationId(2))] {
            let mut row = row();
            row.lease.as_mut().unwrap().kind = kind;
            let mut doc = SequenceDoc::new(&"a/b".into(), &"k".into());
            doc.set_row(Some(&row));
            let back: SequenceDoc =
                bson::deserialize_from_slice(&bson::serialize_to_vec(&doc).unwrap()).unwrap();
            assert_eq!(back.row(), Some(row));
        }
    }

    #[test]
    fn a_leased_sequence_is_free_at_the_end_of_its_lease() {
        let mut doc = SequenceDoc::new(&"a/b".into(), &"k".into());
        doc.set_row(Some(&row()));
        assert_eq!(doc.free_at, Some(30_000_000_000), "whether it is reserved is read from the plan");
        doc.set_row(None);
        assert_eq!((doc.open, doc.free_at, doc.latest), (false, None, None));
    }

    #[test]
    fn the_first_letters_are_known_without_a_gap() {
        let mut doc = SequenceDoc::new(&"a/b".into(), &"k".into());
        let ids = |doc: &SequenceDoc| doc.ahead.iter().map(|(_, id)| id.clone()).collect::<Vec<_>>();
        for (count, index) in (0..40).map(|count| (count, 100 + count)) {
            doc.move_ahead(&index.to_string(), Some(index), count);
        }
        assert_eq!(doc.ahead.len(), AHEAD);
        doc.move_ahead("200", Some(200), 40);
        assert_eq!(doc.ahead.last().unwrap().1, "131", "one behind the known ones is not named");
        doc.move_ahead("0", Some(0), 41);
        assert_eq!(ids(&doc)[..2], ["0", "100"]);
        doc.move_ahead("0", None, 42);
        doc.move_ahead("100", Some(100), 41);
        assert_eq!(ids(&doc)[..2], ["100", "101"], "a letter that stays is named once");
        let mut one = SequenceDoc::new(&"a/b".into(), &"k".into());
        one.move_ahead("7", Some(7), 0);
        one.move_ahead("7", None, 1);
        assert!(one.ahead.is_empty());
    }

    #[test]
    fn two_sequences_never_share_a_document() {
        assert_ne!(sequence_key(&"ab".into(), &"c".into()), sequence_key(&"a".into(), &"bc".into()));
    }
}
