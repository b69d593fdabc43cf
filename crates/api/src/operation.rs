//! Plans and operations.

use jiff::Timestamp;
use lazaret_core::store;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::audit::Actor;
use crate::enums::{Action, Exclusion, OperationState, Outcome};
use crate::selection::Selection;

/// A request to freeze a plan.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub struct PlanRequest {
    /// The action.
    pub action: Action,
    /// The letters.
    #[serde(flatten)]
    pub selection: Selection,
    /// How long the plan is valid; default: 15 minutes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub valid_for_seconds: Option<u64>,
    /// The reason; default: `plan`, because a plan changes nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// Letters that are not part of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub struct Excluded {
    /// Why they are excluded.
    pub reason: Exclusion,
    /// The number of letters.
    pub letters: u64,
}

/// A frozen set of letters and an action.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub struct Plan {
    /// The id.
    pub id: String,
    /// The action.
    pub action: Action,
    /// The number of letters.
    pub letters: u64,
    /// The number of sequences.
    pub sequences: u64,
    /// The number of open letters behind those of the plan, which may run after them. Its rate bounds them, too.
    pub followers: u64,
    /// The number of letters that would run out of order: they left their sequences when they died (`on-dead: continue`). 0 for actions
    /// that run no handler.
    #[serde(default)]
    pub out_of_order: u64,
    /// How long the letters and their followers take at the rate that applies without another, in seconds; `null` without a rate.
    pub takes_seconds: Option<u64>,
    /// The selected letters that are excluded, by reason, most first.
    pub excluded: Vec<Excluded>,
    /// The hash: equal for plans with the same letters and action.
    pub hash: String,
    /// When the plan expires.
    pub expires_at: Timestamp,
    /// Whether a second person must approve the operation.
    pub needs_approval: bool,
    /// The query; `null` when letters were selected by id.
    pub query: Option<String>,
    /// Who froze the plan.
    pub by: Actor,
    /// When the plan was frozen.
    pub frozen_at: Timestamp,
}

impl Plan {
    /// Returns the time in seconds that the letters and their followers take at this rate.
    pub fn seconds_at(&self, rate: f64) -> u64 {
        let letters = self.letters.saturating_add(self.followers);
        (letters as f64 / rate).ceil() as u64
    }

    /// Converts a plan of the core. The plan's consumers decide `needs_approval` and the rate; its
    /// letters decide `out_of_order`.
    pub fn of(plan: &store::Plan, needs_approval: bool, rate: Option<f64>, out_of_order: u64) -> Self {
        let mut converted = Self {
            id: plan.id.to_string(),
            action: plan.action.into(),
            letters: plan.letters,
            sequences: plan.sequences,
            followers: plan.followers,
            out_of_order,
            takes_seconds: None,
            excluded: excluded(plan),
            hash: plan.hash.clone(),
            expires_at: plan.expires_at,
            needs_approval,
            query: plan.query.clone(),
            by: (&plan.by).into(),
            frozen_at: plan.frozen_at,
        };
        converted.takes_seconds = rate.map(|rate| converted.seconds_at(rate));
        converted
    }
}

/// Returns the letters that a plan excludes, counted by reason.
fn excluded(plan: &store::Plan) -> Vec<Excluded> {
    let of = |(reason, letters): &(store::Exclusion, u64)| Excluded {
        reason: (*reason).into(),
        letters: *letters,
    };
    plan.excluded.iter().map(of).collect()
}

/// A page of plans, the latest first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub struct PlanPage {
    /// The plans.
    pub plans: Vec<Plan>,
    /// The `after` parameter of the next page; `null` on the last one.
    pub next: Option<String>,
}

/// A request to start an operation: from a plan, or from an action and a selection that are frozen in the same call.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub struct BeginRequest {
    /// The plan.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plan: Option<String>,
    /// The action, without a plan.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub action: Option<Action>,
    /// The letters, without a plan.
    #[serde(flatten)]
    pub selection: Selection,
    /// Letters per second; default: 50, 0 for unlimited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<f64>,
    /// Letters per stage; default: 1, 5, 25, 100 and the rest, empty for a single stage.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ramp: Option<Vec<u64>>,
    /// The share of failed letters at which the operation pauses; default: 0.05, 1 for never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop_at: Option<f64>,
    /// The earliest start time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<Timestamp>,
    /// Requires a second person's approval even where the consumer does not.
    #[serde(default)]
    pub needs_approval: bool,
    /// The reason.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = String, required = true)]
    pub reason: Option<String>,
}

impl BeginRequest {
    /// Returns the rollout policy: the core's default, overridden by the given values.
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

/// A command to an operation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct CommandRequest {
    /// The reason.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = String, required = true)]
    pub reason: Option<String>,
}

/// The durable execution of a plan.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub struct Operation {
    /// The id.
    pub id: String,
    /// The state.
    pub state: OperationState,
    /// The number of letters attempted or changed.
    pub sent: u64,
    /// The number of successful letters.
    pub ok: u64,
    /// The number of letters that failed again.
    pub failed_again: u64,
    /// The number of skipped letters.
    pub skipped: u64,
    /// The number of letters.
    pub letters: u64,
    /// The letters that were selected for its plan and are not part of it, by reason, most first. Absent without any, and in lists; the
    /// status has them for its latest 20 operations.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub excluded: Vec<Excluded>,
    /// The plan.
    pub plan: String,
    /// The action.
    pub action: Action,
    /// A note on the state, where it needs an explanation: who paused it, why it was stopped, or why it has no letters.
    pub note: Option<String>,
    /// The current stage of the ramp, from 0.
    pub stage: u64,
    /// Letters per second; `null` for unlimited.
    pub rate: Option<f64>,
    /// Letters per stage.
    pub ramp: Vec<u64>,
    /// The share of failed letters at which the operation pauses.
    pub stop_at: Option<f64>,
    /// The earliest start time.
    pub start_at: Option<Timestamp>,
    /// Whether a second person must approve it.
    pub needs_approval: bool,
    /// Who started it.
    pub by: Actor,
    /// Who approved or rejected it.
    pub approved_by: Option<Actor>,
    /// When it was created.
    pub created_at: Timestamp,
    /// When it last changed.
    pub updated_at: Timestamp,
    /// When it ended.
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
            excluded: Vec::new(),
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

impl Operation {
    /// Adds the letters that the operation's plan excludes.
    #[must_use]
    pub fn with_excluded(self, plan: &store::Plan) -> Self {
        Self { excluded: excluded(plan), ..self }
    }
}

/// A page of operations, the latest first.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub struct OperationPage {
    /// The operations.
    pub operations: Vec<Operation>,
    /// The `after` parameter of the next page; `null` on the last one.
    pub next: Option<String>,
}

/// One letter of a plan or an operation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub struct Item {
    /// The position in the plan, from 0: the order of execution.
    pub ordinal: u64,
    /// The queue.
    pub queue: String,
    /// The sequence.
    pub sequence: String,
    /// The letter.
    pub letter: String,
    /// The digest of the payload when the plan was frozen, as the audit of an edit has it: an HMAC-SHA-256 with a key of the store, or
    /// `none` without a payload. A letter that has another payload by now is skipped as changed. `null` in a plan of an earlier version,
    /// and where payloads are redacted for a caller without the scope `reveal`.
    pub digest: Option<String>,
    /// The outcome; `null` until the letter is finished.
    pub outcome: Option<Outcome>,
}

impl From<&store::Item> for Item {
    fn from(item: &store::Item) -> Self {
        Self {
            ordinal: item.ordinal,
            queue: item.queue.to_string(),
            sequence: item.sequence.to_string(),
            letter: item.letter.to_string(),
            digest: item.digest.map(|digest| digest.to_string()),
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
    /// The `after` parameter of the next page; `null` on the last one.
    pub next: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn absent_values_take_the_default() {
        let request: BeginRequest = serde_json::from_str(r#"{"plan": "p_1"}"#).unwrap();
        assert_eq!(request.rollout(), store::RolloutPolicy::default());
        let request: BeginRequest =
            serde_json::from_str(r#"{"plan": "p_1", "rate": 0, "ramp": [], "stop-at": 1}"#).unwrap();
        assert_eq!(
            request.rollout(),
            store::RolloutPolicy { stop_at: Some(1.0), ..store::RolloutPolicy::unlimited() }
        );
    }
}
