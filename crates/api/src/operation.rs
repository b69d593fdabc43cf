//! Plans and operations over the wire.

use jiff::Timestamp;
use lazaret_core::store;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::audit::Actor;
use crate::selection::Selection;
use crate::words::{Action, Exclusion, OperationState, Outcome};

/// What to freeze.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub struct PlanRequest {
    /// What is to be done.
    pub action: Action,
    /// To which letters.
    #[serde(flatten)]
    pub selection: Selection,
    /// How long the plan can be carried out; 15 minutes unless said otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub valid_for_seconds: Option<u64>,
    /// What it is for; `plan` unless said otherwise, because a plan changes nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// How many letters are not part of a plan, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub struct Excluded {
    /// Why.
    pub reason: Exclusion,
    /// How many.
    pub letters: u64,
}

/// A frozen set of letters and what is to be done with them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub struct Plan {
    /// Its name.
    pub id: String,
    /// What is to be done.
    pub action: Action,
    /// How many letters.
    pub letters: u64,
    /// Of how many sequences.
    pub sequences: u64,
    /// How many selected letters are not part of it, by reason, most first.
    pub excluded: Vec<Excluded>,
    /// Two plans with one hash do the same.
    pub hash: String,
    /// Until when it can be carried out.
    pub expires_at: Timestamp,
    /// Whether a second person must approve the operation.
    pub needs_approval: bool,
    /// The query as it was written; `null` when letters were named.
    pub query: Option<String>,
    /// Who froze it.
    pub by: Actor,
    /// When.
    pub frozen_at: Timestamp,
}

impl Plan {
    /// A plan, and whether carrying it out needs a second person.
    pub fn of(plan: &store::Plan, needs_approval: bool) -> Self {
        let excluded = |(reason, letters): &(store::Exclusion, u64)| Excluded {
            reason: (*reason).into(),
            letters: *letters,
        };
        Self {
            id: plan.id.to_string(),
            action: plan.action.into(),
            letters: plan.letters,
            sequences: plan.sequences,
            excluded: plan.excluded.iter().map(excluded).collect(),
            hash: plan.hash.clone(),
            expires_at: plan.expires_at,
            needs_approval,
            query: plan.query.clone(),
            by: (&plan.by).into(),
            frozen_at: plan.frozen_at,
        }
    }
}

/// What to carry out, and how. Either a plan, or an action and a selection, which are frozen and begun in one call.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub struct BeginRequest {
    /// The plan.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plan: Option<String>,
    /// What is to be done, without a plan.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub action: Option<Action>,
    /// To which letters, without a plan.
    #[serde(flatten)]
    pub selection: Selection,
    /// Letters per second; 50 unless said otherwise, 0 for as fast as it goes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<f64>,
    /// How many letters each stage takes; 1, 5, 25, 100 and the rest unless said otherwise, empty for all at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ramp: Option<Vec<u64>>,
    /// The share of letters that may fail again before the operation pauses; 0.05 unless said otherwise, 1 for never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop_at: Option<f64>,
    /// Not before this time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<Timestamp>,
    /// Ask for a second person even where none is demanded.
    #[serde(default)]
    pub needs_approval: bool,
    /// Why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

impl BeginRequest {
    /// How the operation shall go about its letters. What is not said is as the core's default has it.
    pub fn rollout(&self) -> store::RolloutPolicy {
        let default = store::RolloutPolicy::default();
        store::RolloutPolicy {
            rate: match self.rate {
                None => default.rate,
                Some(0.0) => None,
                given => given,
            },
            ramp: self.ramp.clone().unwrap_or(default.ramp),
            stop_at: self.stop_at.or(default.stop_at),
            start_at: self.at,
            needs_approval: self.needs_approval,
        }
    }
}

/// What to tell an operation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct CommandRequest {
    /// Why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// A plan that is carried out.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub struct Operation {
    /// Its name.
    pub id: String,
    /// Where it stands.
    pub state: OperationState,
    /// How many letters were given to their handler, or acted upon.
    pub sent: u64,
    /// How many went well.
    pub ok: u64,
    /// How many failed again.
    pub failed_again: u64,
    /// How many were not tried.
    pub skipped: u64,
    /// How many letters it is about.
    pub letters: u64,
    /// The plan.
    pub plan: String,
    /// What is done.
    pub action: Action,
    /// Why it stands there, when that needs a word.
    pub note: Option<String>,
    /// The stage of the ramp that it is in, from 0.
    pub stage: u64,
    /// Letters per second; `null` for as fast as it goes.
    pub rate: Option<f64>,
    /// How many letters each stage takes.
    pub ramp: Vec<u64>,
    /// The share of letters that may fail again before it pauses.
    pub stop_at: Option<f64>,
    /// Not before this time.
    pub start_at: Option<Timestamp>,
    /// Whether a second person has to approve it.
    pub needs_approval: bool,
    /// Who began it.
    pub by: Actor,
    /// Who approved or rejected it.
    pub approved_by: Option<Actor>,
    /// When it was begun.
    pub created_at: Timestamp,
    /// When the last thing happened in it.
    pub updated_at: Timestamp,
    /// When it was over.
    pub ended_at: Option<Timestamp>,
}

impl From<&store::Operation> for Operation {
    fn from(operation: &store::Operation) -> Self {
        Self {
            id: operation.id.to_string(),
            state: operation.state.into(),
            sent: operation.sent(),
            ok: operation.ok,
            failed_again: operation.failed_again,
            skipped: operation.skipped,
            letters: operation.letters,
            plan: operation.plan.to_string(),
            action: operation.action.into(),
            note: operation.note.clone(),
            stage: operation.stage as u64,
            rate: operation.rollout.rate,
            ramp: operation.rollout.ramp.clone(),
            stop_at: operation.rollout.stop_at,
            start_at: operation.rollout.start_at,
            needs_approval: operation.rollout.needs_approval,
            by: (&operation.by).into(),
            approved_by: operation.approved_by.as_ref().map(Actor::from),
            created_at: operation.created_at,
            updated_at: operation.updated_at,
            ended_at: operation.ended_at,
        }
    }
}

/// A page of operations, the latest first.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub struct OperationPage {
    /// The operations.
    pub operations: Vec<Operation>,
    /// What to pass as `after` to get the next page; `null` at the end.
    pub next: Option<String>,
}

/// One letter of a plan or an operation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub struct Item {
    /// Its place, from 0: the order in which letters have their turn.
    pub ordinal: u64,
    /// Its queue.
    pub queue: String,
    /// Its sequence.
    pub sequence: String,
    /// The letter.
    pub letter: String,
    /// What became of it; `null` when its turn has not come, or is not over.
    pub outcome: Option<Outcome>,
}

impl From<&store::Item> for Item {
    fn from(item: &store::Item) -> Self {
        Self {
            ordinal: item.ordinal,
            queue: item.queue.to_string(),
            sequence: item.sequence.to_string(),
            letter: item.letter.to_string(),
            outcome: item.outcome.map(Outcome::from),
        }
    }
}

/// A page of the letters of a plan or an operation, in order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub struct ItemPage {
    /// The letters.
    pub items: Vec<Item>,
    /// What to pass as `after` to get the next page; `null` at the end.
    pub next: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_said_is_as_the_default_has_it() {
        let said: BeginRequest = serde_json::from_str(r#"{"plan": "p_1"}"#).unwrap();
        assert_eq!(said.rollout(), store::RolloutPolicy::default());
        let said: BeginRequest =
            serde_json::from_str(r#"{"plan": "p_1", "rate": 0, "ramp": [], "stop-at": 1}"#).unwrap();
        assert_eq!(
            said.rollout(),
            store::RolloutPolicy { stop_at: Some(1.0), ..store::RolloutPolicy::unlimited() }
        );
    }
}
