//! The documents of plans: one for the plan and its operation, and one for each of its letters.

use lazaret_core::letter::{LetterId, LetterState};
use lazaret_core::store::rules::{FrozenItem, Pending};
use lazaret_core::store::{
    Action, Actor, Exclusion, Item, Operation, OperationId, OperationMachine, OperationState, Outcome,
    PayloadDigest, Plan, PlanId, Result, RolloutPolicy,
};
use lazaret_core::{QueueName, SequenceId, Timestamp};
use serde::{Deserialize, Serialize};

use super::left::Left;
use crate::error::corrupt;
use crate::values::{int, nanos, time, uint};

/// A plan, and its operation if it is carried out.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct PlanDoc {
    #[serde(rename = "_id")]
    pub(crate) id: i64,
    pub(crate) version: i64,
    action: Action,
    query: Option<String>,
    letters: i64,
    sequences: i64,
    followers: i64,
    excluded: Vec<(Exclusion, i64)>,
    hash: String,
    by: Actor,
    frozen_at: i64,
    pub(crate) expires_at: i64,
    pub(crate) operation: Option<OperationDoc>,
    /// `true` if its operation is not over.
    pub(crate) live: bool,
    /// Number of letters of its operation without an outcome.
    pub(crate) pending: i64,
    pub(crate) served_at: Option<i64>,
    pub(crate) unfinished: bool,
    pub(crate) left: Vec<Left>,
}

/// A plan whose operation has letters without an outcome: as much of it as a poll needs to choose.
#[derive(Debug, Deserialize)]
pub(crate) struct Begun {
    #[serde(rename = "_id")]
    pub(crate) plan: i64,
    pub(crate) operation: BegunOperation,
}

#[derive(Debug, Deserialize)]
pub(crate) struct BegunOperation {
    pub(crate) id: i64,
}

/// An operation.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct OperationDoc {
    pub(crate) id: i64,
    rollout: RolloutPolicy,
    state: OperationState,
    note: Option<String>,
    stage: i64,
    letters: i64,
    ok: i64,
    failed_again: i64,
    skipped: i64,
    by: Actor,
    approved_by: Option<Actor>,
    created_at: i64,
    updated_at: i64,
    ended_at: Option<i64>,
    next_at: Option<i64>,
    counted_ok: i64,
    counted_failed: i64,
    released: i64,
}

impl PlanDoc {
    pub(crate) fn new(plan: &Plan) -> Self {
        Self {
            id: int(plan.id.0),
            version: 0,
            action: plan.action,
            query: plan.query.clone(),
            letters: int(plan.letters),
            sequences: int(plan.sequences),
            followers: int(plan.followers),
            excluded: plan.excluded.iter().map(|(why, letters)| (*why, int(*letters))).collect(),
            hash: plan.hash.clone(),
            by: plan.by.clone(),
            frozen_at: nanos(plan.frozen_at),
            expires_at: nanos(plan.expires_at),
            operation: None,
            live: false,
            pending: 0,
            served_at: None,
            unfinished: false,
            left: Vec::new(),
        }
    }

    /// A plan whose letters are not written yet. Nobody finds it, and it is deleted like an expired one if they never are.
    pub(crate) fn hidden(plan: &Plan, until: Timestamp) -> Self {
        Self { hash: String::new(), expires_at: nanos(until), ..Self::new(plan) }
    }

    /// Makes a plan visible whose letters are written.
    pub(crate) fn show(&mut self, plan: &Plan) {
        self.hash.clone_from(&plan.hash);
        self.expires_at = nanos(plan.expires_at);
    }

    /// Hides a plan whose letters are deleted.
    pub(crate) fn hide(&mut self) {
        self.hash.clear();
    }

    /// Gives a plan the hash that it has after one of its letters was erased. `false` if it has it.
    pub(crate) fn erase_hash(&mut self) -> bool {
        let erased = Plan::erased_hash(PlanId(uint(self.id)));
        let is_new = self.hash != erased;
        self.hash = erased;
        is_new
    }

    /// `true` while its letters are written or deleted.
    pub(crate) const fn is_hidden(&self) -> bool {
        self.hash.is_empty()
    }

    pub(crate) fn plan(&self) -> Plan {
        Plan {
            id: PlanId(uint(self.id)),
            action: self.action,
            query: self.query.clone(),
            letters: uint(self.letters),
            sequences: uint(self.sequences),
            followers: uint(self.followers),
            excluded: self.excluded.iter().map(|(why, letters)| (*why, uint(*letters))).collect(),
            hash: self.hash.clone(),
            by: self.by.clone(),
            frozen_at: time(self.frozen_at),
            expires_at: time(self.expires_at),
        }
    }

    pub(crate) fn machine(&self) -> Option<OperationMachine> {
        let doc = self.operation.as_ref()?;
        let operation = Operation {
            id: OperationId(uint(doc.id)),
            plan: PlanId(uint(self.id)),
            action: self.action,
            rollout: doc.rollout.clone(),
            state: doc.state,
            note: doc.note.clone(),
            stage: usize::try_from(doc.stage).unwrap_or_default(),
            letters: uint(doc.letters),
            ok: uint(doc.ok),
            failed_again: uint(doc.failed_again),
            skipped: uint(doc.skipped),
            by: doc.by.clone(),
            approved_by: doc.approved_by.clone(),
            created_at: time(doc.created_at),
            updated_at: time(doc.updated_at),
            ended_at: doc.ended_at.map(time),
        };
        Some(OperationMachine {
            operation,
            next_at: doc.next_at.map(time),
            counted_ok: uint(doc.counted_ok),
            counted_failed: uint(doc.counted_failed),
            released: uint(doc.released),
        })
    }

    pub(crate) fn set_machine(&mut self, machine: &OperationMachine) {
        let operation = &machine.operation;
        self.live = !operation.state.is_over();
        self.pending = int(machine.pending());
        self.operation = Some(OperationDoc {
            id: int(operation.id.0),
            rollout: operation.rollout.clone(),
            state: operation.state,
            note: operation.note.clone(),
            stage: int(operation.stage as u64),
            letters: int(operation.letters),
            ok: int(operation.ok),
            failed_again: int(operation.failed_again),
            skipped: int(operation.skipped),
            by: operation.by.clone(),
            approved_by: operation.approved_by.clone(),
            created_at: nanos(operation.created_at),
            updated_at: nanos(operation.updated_at),
            ended_at: operation.ended_at.map(nanos),
            next_at: machine.next_at.map(nanos),
            counted_ok: int(machine.counted_ok),
            counted_failed: int(machine.counted_failed),
            released: int(machine.released),
        });
    }
}

/// A letter of a plan.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct ItemDoc {
    #[serde(rename = "_id")]
    id: String,
    pub(crate) plan: i64,
    pub(crate) ordinal: i64,
    pub(crate) queue: QueueName,
    pub(crate) sequence: SequenceId,
    #[serde(with = "crate::values::text")]
    pub(crate) letter: LetterId,
    state: LetterState,
    digest: String,
    last: i64,
    outcome: Option<Outcome>,
}

impl ItemDoc {
    /// The id of a letter of a plan.
    fn key(plan: i64, ordinal: i64) -> String {
        format!("{plan}:{ordinal}")
    }

    pub(crate) fn new(plan: PlanId, ordinal: usize, item: &FrozenItem) -> Self {
        Self {
            id: Self::key(int(plan.0), int(ordinal as u64)),
            plan: int(plan.0),
            ordinal: int(ordinal as u64),
            queue: item.queue.clone(),
            sequence: item.sequence.clone(),
            letter: item.letter,
            state: item.state,
            digest: item.digest.to_string(),
            last: int(item.last),
            outcome: None,
        }
    }

    fn digest(&self) -> Result<PayloadDigest> {
        self.digest.parse().map_err(|_| corrupt(format!("{:?} is not a digest", self.digest)))
    }

    pub(crate) fn pending(&self) -> Result<Pending> {
        Ok(Pending {
            ordinal: uint(self.ordinal),
            last: uint(self.last),
            letter: self.letter,
            state: self.state,
            digest: Some(self.digest()?),
        })
    }

    pub(crate) fn to_item(&self) -> Result<Item> {
        Ok(Item {
            ordinal: uint(self.ordinal),
            queue: self.queue.clone(),
            sequence: self.sequence.clone(),
            letter: self.letter,
            digest: Some(self.digest()?),
            outcome: self.outcome,
        })
    }
}
