//! The collections of the example store and what their documents hold.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use lazaret_core::letter::{Letter, LetterId, LetterState};
use lazaret_core::store::rules::{
    AuditLine, CountChange, Failed, FrozenItem, GrantRow, GroupRow, SequenceRow,
};
use lazaret_core::store::{
    AttemptNote, AuditEntry, OperationId, OperationMachine, Outcome, Pause, PauseScope, Plan, PlanId,
};
use lazaret_core::{
    ConsumerName, Failure, Fingerprint, MessageId, Partition, QueueName, SequenceId, Timestamp,
};

use crate::documents::{Collection, Connection};

/// A document that decides: what it holds, and what is left to do in other documents since its last write.
///
/// Its compare-and-set is the moment at which a call has happened. What is left is done afterwards, by the call itself or, if
/// that died, by the next one that comes by.
#[derive(Clone, Default)]
pub(crate) struct Deciding<V> {
    pub(crate) value: V,
    pub(crate) left: Vec<Left>,
}

/// What is left to do after a decision. Doing it twice changes nothing.
#[derive(Clone)]
pub(crate) enum Left {
    /// Write this letter.
    Letter(Box<LetterDoc>),
    /// Count a letter and its sequence in their groups.
    Count(Box<Count>),
    /// Append to a log, behind the number with which it ended before the decision.
    Arrival(u64, (QueueName, LetterId)),
    Opened(u64, (QueueName, SequenceId)),
    Audit(u64, AuditLine, Timestamp),
    /// Write down what became of a letter in an operation.
    Outcome(ItemOutcome),
    /// Open the sequence of a letter that left the deciding one: its document, with the letter as what is left to do in it. So who
    /// finds the document finds the letter.
    Sequence((QueueName, SequenceId), Box<Deciding<SequenceDoc>>),
}

/// What became of a letter in an operation.
#[derive(Clone, Copy)]
pub(crate) struct ItemOutcome {
    pub(crate) operation: OperationId,
    pub(crate) letter: LetterId,
    pub(crate) outcome: Outcome,
    /// Whether it counts for the rate only now.
    pub(crate) spend: bool,
    /// Number of letters outside of the plan that the operation lets run.
    pub(crate) released: u64,
    pub(crate) at: Timestamp,
}

/// A change of what groups count.
#[derive(Clone)]
pub(crate) struct Count {
    pub(crate) queue: QueueName,
    pub(crate) sequence: SequenceId,
    pub(crate) count_change: CountChange,
    pub(crate) failed: Option<(Failed, Failure)>,
    pub(crate) at: Timestamp,
}

/// A letter, or what is left of it after a purge.
#[derive(Clone)]
pub(crate) struct LetterDoc {
    pub(crate) queue: QueueName,
    pub(crate) sequence: SequenceId,
    pub(crate) id: LetterId,
    pub(crate) state: LetterState,
    /// `None` when it was purged.
    pub(crate) letter: Option<Letter>,
    pub(crate) closed_at: Option<Timestamp>,
    /// The version of the sequence's document that decided about it last.
    pub(crate) decided_by: u64,
}

/// A sequence, open or not: everything about it that has to be exclusive.
#[derive(Clone, Default)]
pub(crate) struct SequenceDoc {
    /// Its row while it is open.
    pub(crate) row: Option<SequenceRow>,
    /// Its open letters by index. Shared by copies until one changes it; a database has an index of the letters for it.
    pub(crate) letters: Arc<BTreeMap<u64, LetterId>>,
    /// The fence of its last lease.
    pub(crate) fence: u64,
    /// Its letters by state, open and closed. The counts of a queue are the sum over its sequences.
    pub(crate) by_state: [u64; 9],
}

/// A group, and up to which version it has counted each of its sequences.
#[derive(Clone, Default)]
pub(crate) struct GroupDoc {
    /// `None` while it has no letters.
    pub(crate) row: Option<GroupRow>,
    pub(crate) counted: BTreeMap<SequenceId, u64>,
}

/// The grant of a partition, and the sequences to which a hand-off under it is under way.
#[derive(Clone, Default)]
pub(crate) struct GrantDoc {
    pub(crate) row: GrantRow,
    pub(crate) under_way: BTreeSet<SequenceId>,
}

/// A plan, and its operation if it is carried out: outcomes and counters in one document, so they never differ.
#[derive(Clone)]
pub(crate) struct PlanDoc {
    pub(crate) plan: Plan,
    pub(crate) items: Vec<FrozenItem>,
    pub(crate) outcomes: Vec<Option<Outcome>>,
    pub(crate) machine: Option<OperationMachine>,
    pub(crate) served_at: Option<Timestamp>,
}

/// An entry of a log, with the version and the place of what was left to do that wrote it.
#[derive(Clone)]
pub(crate) struct Logged<T> {
    pub(crate) token: (u64, usize),
    pub(crate) value: T,
}

/// A value by name.
#[derive(Clone)]
pub(crate) struct Value {
    pub(crate) value: Bytes,
    pub(crate) expires_at: Option<Timestamp>,
}

type Pauses = BTreeMap<PauseScope, Pause>;

/// All collections.
pub(crate) struct Database {
    pub(crate) connection: Connection,
    pub(crate) sequences: Collection<(QueueName, SequenceId), Deciding<SequenceDoc>>,
    pub(crate) plans: Collection<PlanId, Deciding<PlanDoc>>,
    pub(crate) pauses: Collection<ConsumerName, Deciding<Pauses>>,
    pub(crate) letters: Collection<(QueueName, LetterId), LetterDoc>,
    pub(crate) groups: Collection<(QueueName, Fingerprint), GroupDoc>,
    pub(crate) grants: Collection<(QueueName, Partition), GrantDoc>,
    pub(crate) notes: Collection<(QueueName, Partition, u64, MessageId), AttemptNote>,
    /// The last index given in a queue.
    pub(crate) indexes: Collection<QueueName, u64>,
    pub(crate) operations: Collection<OperationId, PlanId>,
    pub(crate) values: Collection<(String, String), Value>,
    /// The logs: letters in the order in which they were taken in, sequences in the order in which they were opened, the audit.
    pub(crate) arrivals: Collection<u64, Logged<(QueueName, LetterId)>>,
    pub(crate) opened: Collection<u64, Logged<(QueueName, SequenceId)>>,
    pub(crate) audit: Collection<u64, Logged<AuditEntry>>,
}

impl Default for Database {
    fn default() -> Self {
        let connection = Connection::default();
        Self {
            sequences: Collection::new(&connection),
            plans: Collection::new(&connection),
            pauses: Collection::new(&connection),
            letters: Collection::new(&connection),
            groups: Collection::new(&connection),
            grants: Collection::new(&connection),
            notes: Collection::new(&connection),
            indexes: Collection::new(&connection),
            operations: Collection::new(&connection),
            values: Collection::new(&connection),
            arrivals: Collection::new(&connection),
            opened: Collection::new(&connection),
            audit: Collection::new(&connection),
            connection,
        }
    }
}
