//! The rows of open sequences.

use std::time::Duration;

use lazaret_core::SequenceId;
use lazaret_core::store::rules::{Head, HeldLease, LeaseKind, Pace, SequenceRow};
use lazaret_core::store::{LeaseUse, OperationId};
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;
use uuid::Uuid;

use crate::error::{Fault, Work};
use crate::values::{Columns, bound, key_of, nanos, text, time, unsigned, untext};

/// The column `lease_kind`.
const DUE: i16 = 0;
const REPLAY: i16 = 1;
const OPERATION: i16 = 2;

/// An open sequence with its row.
#[derive(Clone, Debug)]
pub(crate) struct OpenSequence {
    pub(crate) sid: i64,
    pub(crate) qid: i64,
    pub(crate) name: SequenceId,
    pub(crate) row: SequenceRow,
}

/// The key of a sequence in its queue.
pub(crate) fn sequence_key(sequence: &SequenceId) -> Uuid {
    key_of(&[sequence.as_str()])
}

/// A query for [`OpenSequence::read`].
macro_rules! select_sequence {
    ($rest:literal) => {
        concat!(
            "SELECT s.sid, s.qid, s.name, s.count, s.head_idx, s.head_due, s.head_group, s.touched, s.paused, \
             s.lease_owner, s.lease_fence, s.lease_until, s.lease_kind, s.lease_waits, s.lease_operation, s.reserved, \
             s.pace_next, s.pace_interval, s.pace_left ",
            $rest
        )
    };
}
pub(crate) use select_sequence;

impl OpenSequence {
    pub(crate) fn read(row: &Row) -> Work<Self> {
        let mut c = Columns::of(row);
        let (sid, qid, name) = (c.get()?, c.get()?, SequenceId::new(c.arc_text()?));
        let (count, index, due) = (c.unsigned()?, c.unsigned()?, c.moment()?);
        let group = c.get::<Option<String>>()?.map(|group| group.parse()).transpose();
        let group =
            group.map_err(|_| Fault::Corrupt(format!("failed to decode the group of sequence {sid}")))?;
        let (touched, paused) = (c.time()?, c.get()?);
        let owner: Option<String> = c.get()?;
        let (fence, until): (Option<i64>, Option<i64>) = (c.get()?, c.get()?);
        let (kind, waits): (Option<i16>, Option<bool>) = (c.get()?, c.get()?);
        let operation: Option<i64> = c.get()?;
        let lease = match fence {
            Some(fence) => Some(HeldLease {
                owner: untext(owner.unwrap_or_default()),
                fence: unsigned(fence)?,
                until: time(until.unwrap_or_default()),
                kind: lease_kind(kind, operation)?,
                used_for: if waits == Some(true) { LeaseUse::Wait } else { LeaseUse::Attempt },
            }),
            None => None,
        };
        let reserved = c.get::<Option<i64>>()?.map(|id| unsigned(id).map(OperationId)).transpose()?;
        let (next, interval, left): (Option<i64>, Option<i64>, Option<i64>) = (c.get()?, c.get()?, c.get()?);
        let pace = match next {
            Some(next) => Some(Pace {
                next: time(next),
                interval: Duration::from_nanos(unsigned(interval.unwrap_or_default())?),
                left: unsigned(left.unwrap_or_default())?,
            }),
            None => None,
        };
        let head = Head { index, due, touched, group };
        Ok(Self { sid, qid, name, row: SequenceRow { count, head, paused, lease, reserved, pace } })
    }
}

fn lease_kind(kind: Option<i16>, operation: Option<i64>) -> Work<LeaseKind> {
    match (kind, operation) {
        (Some(DUE), _) => Ok(LeaseKind::Due),
        (Some(REPLAY), _) => Ok(LeaseKind::Replay),
        (Some(OPERATION), Some(operation)) => Ok(LeaseKind::Operation(OperationId(unsigned(operation)?))),
        (kind, _) => Err(Fault::Corrupt(format!("unknown kind {kind:?} of a lease"))),
    }
}

/// The columns of rows to write, an array each.
#[derive(Default)]
pub(crate) struct SequenceArrays {
    sid: Vec<i64>,
    qid: Vec<i64>,
    hash: Vec<Uuid>,
    name: Vec<String>,
    count: Vec<i64>,
    head_idx: Vec<i64>,
    head_due: Vec<Option<i64>>,
    head_group: Vec<Option<String>>,
    touched: Vec<i64>,
    paused: Vec<bool>,
    lease_owner: Vec<Option<String>>,
    lease_fence: Vec<Option<i64>>,
    lease_until: Vec<Option<i64>>,
    lease_kind: Vec<Option<i16>>,
    lease_waits: Vec<Option<bool>>,
    lease_operation: Vec<Option<i64>>,
    reserved: Vec<Option<i64>>,
    pace_next: Vec<Option<i64>>,
    pace_interval: Vec<Option<i64>>,
    pace_left: Vec<Option<i64>>,
    free_at: Vec<Option<i64>>,
    /// How far its new revision is behind the last one of the queue; `None` keeps the revision.
    back: Vec<Option<i64>>,
}

impl SequenceArrays {
    pub(crate) fn push(&mut self, open: &OpenSequence, back: Option<i64>) {
        let OpenSequence { sid, qid, name, row } = open;
        let (lease, schedule) = (row.lease.as_ref(), row.schedule());
        self.sid.push(*sid);
        self.qid.push(*qid);
        self.hash.push(sequence_key(name));
        self.name.push(text(name.as_str()).into_owned());
        self.count.push(bound(row.count));
        self.head_idx.push(bound(row.head.index));
        self.head_due.push(row.head.due.map(nanos));
        self.head_group.push(row.head.group.map(|group| group.to_string()));
        self.touched.push(nanos(row.head.touched));
        self.paused.push(row.paused);
        self.lease_owner.push(lease.map(|lease| text(&lease.owner).into_owned()));
        self.lease_fence.push(lease.map(|lease| bound(lease.fence)));
        self.lease_until.push(lease.map(|lease| nanos(lease.until)));
        self.lease_kind.push(lease.map(|lease| match lease.kind {
            LeaseKind::Due => DUE,
            LeaseKind::Replay => REPLAY,
            LeaseKind::Operation(_) => OPERATION,
        }));
        self.lease_waits.push(lease.map(|lease| lease.used_for == LeaseUse::Wait));
        self.lease_operation.push(lease.and_then(|lease| lease.kind.operation()).map(|id| bound(id.0)));
        self.reserved.push(row.reserved.map(|id| bound(id.0)));
        self.pace_next.push(row.pace.map(|pace| nanos(pace.next)));
        self.pace_interval
            .push(row.pace.map(|pace| i64::try_from(pace.interval.as_nanos()).unwrap_or(i64::MAX)));
        self.pace_left.push(row.pace.map(|pace| bound(pace.left)));
        self.free_at.push(schedule.due.or(schedule.busy).map(nanos));
        self.back.push(back);
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.sid.is_empty()
    }

    /// The parameters of a statement, in the order of the fields.
    pub(crate) fn parameters(&self) -> Vec<&(dyn ToSql + Sync)> {
        vec![
            &self.sid,
            &self.qid,
            &self.hash,
            &self.name,
            &self.count,
            &self.head_idx,
            &self.head_due,
            &self.head_group,
            &self.touched,
            &self.paused,
            &self.lease_owner,
            &self.lease_fence,
            &self.lease_until,
            &self.lease_kind,
            &self.lease_waits,
            &self.lease_operation,
            &self.reserved,
            &self.pace_next,
            &self.pace_interval,
            &self.pace_left,
            &self.free_at,
            &self.back,
        ]
    }
}
