//! Wire types of the HTTP API, shared by the server, the command line and the console.
//!
//! Every type is plain data with the field names of the public contract, in kebab-case. The server
//! responds with these types, the command line parses and prints them, and the
//! [OpenAPI document](utoipa) is generated from them. A type that mirrors a `lazaret-core` type converts
//! from it with `From`, or with a function where the caller's scopes matter.
//!
//! ```
//! use lazaret_api::Letter;
//! use lazaret_core::{Message, Position, QueueName, Timestamp};
//!
//! let message = Message::new("evt-1", "orders", Position::new(0, 41)).with_key("order-7");
//! let letter =
//!     lazaret_core::Letter::new(QueueName::of("shop", "shop"), "order-7".into(), message.into(), Timestamp::UNIX_EPOCH);
//! let json = serde_json::to_value(Letter::from(&letter)).unwrap();
//! assert_eq!(json["message"]["position"], "0:41");
//! assert_eq!(json["enqueued-at"], "1970-01-01T00:00:00Z");
//! ```
//!
//! # Routes
//!
//! | CLI verb | request | body | response |
//! |---|---|---|---|
//! | `status` | `GET /v1/status` | | [`Status`] |
//! | `groups [QUERY]` | `GET /v1/groups?q=&closed=&after=&limit=` | | [`GroupPage`] |
//! | `group ID` | `GET /v1/groups/{id}` | | [`Group`] |
//! | | `GET /v1/groups/{id}/facets` | | [`GroupFacets`] |
//! | | `GET /v1/activity` | | [`Activity`] |
//! | `ls [QUERY]` | `GET /v1/letters?q=&after=&limit=` | | [`LetterPage`]; with `Accept: application/x-ndjson` one [`Letter`] per line, every match |
//! | `export` | `GET /v1/letters?q=&view=full`, `Accept: application/x-ndjson` | | one [`LetterDetail`] per line, every match |
//! | `import` | `POST /v1/letters/import?queue=` | the output of `export`, `application/x-ndjson` | [`ImportAnswer`] |
//! | | `GET /v1/letters/count?q=` | | [`LetterMatches`] |
//! | `show ID` | `GET /v1/letters/{id}` | | [`LetterDetail`] |
//! | | `GET /v1/letters/{id}/payload` | | the payload bytes |
//! | `edit ID` | `PUT /v1/letters/{id}/payload` | [`EditRequest`] | [`Letter`] |
//! | `comment`, `assign` | `POST /v1/letters/{id}/comments`, `PUT /v1/letters/{id}/assignee`, `…/owner` | [`CommentRequest`], [`AssignRequest`] | [`Letter`] |
//! | | `PUT /v1/letters/{id}/expiry` | [`ExpiryRequest`] | [`Letter`] |
//! | `evict`, `park`, `release`, `restore` of one letter | `POST /v1/letters/{id}/evict`, `…/resolve`, `…/park`, `…/quarantine`, `…/release`, `…/restore` | [`ActRequest`] | [`Letter`] |
//! | `purge ID` | `POST /v1/letters/{id}/purge` | [`ActRequest`] | 204 without a body |
//! | `restore`, `purge`, `resolve`, `quarantine` of many | `POST /v1/letters/restore`, `…/purge`, `…/resolve`, `…/quarantine` | [`BulkRequest`] | [`BulkAnswer`] |
//! | `seq QUEUE SEQUENCE` | `GET /v1/sequences?queue=&sequence=&after=&limit=` | | [`Sequence`] |
//! | `plan ACTION [QUERY]` | `POST /v1/plans` | [`PlanRequest`] | [`Plan`] |
//! | | `GET /v1/plans?after=&limit=` | | [`PlanPage`] |
//! | | `GET /v1/plans/{id}`, `GET /v1/plans/{id}/items?after=&limit=` | | [`Plan`], [`ItemPage`] |
//! | `retry` (`replay`), `evict`, `park`, `release` | `POST /v1/operations` | [`BeginRequest`] | [`Operation`], 201 |
//! | `op ls` | `GET /v1/operations?after=&limit=` | | [`OperationPage`] |
//! | `op show` | `GET /v1/operations/{id}`, `GET /v1/operations/{id}/items?outcome=&after=&limit=` | | [`Operation`], [`ItemPage`]; with `Accept: application/x-ndjson` one [`Item`] per line |
//! | `op watch`, `tail` | `GET /v1/events?consumer=&kind=&latest=` | | server-sent [`Event`]s |
//! | `op pause`, `resume`, `cancel`, `approve`, `reject` | `POST /v1/operations/{id}/pause`, … | [`CommandRequest`] | [`Operation`] |
//! | `pause`, `resume` | `POST /v1/consumers/{name}/pause`, `…/resume` | [`PauseRequest`] | [`Pause`], [`ResumeAnswer`] |
//! | | `GET /v1/consumers/{name}` | | [`Consumer`] |
//! | `audit` | `GET /v1/audit?after=&limit=` | | [`AuditPage`]; with `Accept: application/x-ndjson` one [`AuditEntry`] per line |
//! | `audit verify` | `GET /v1/audit/verify` | | [`AuditCheck`] |
//! | | `GET /v1/whoami` | | [`Identity`] |
//! | `send CONSUMER` | `POST /v1/inbox/{consumer}`, `POST /v1/inbox/{consumer}/batch`, `GET /v1/inbox/{consumer}` | | [`InboxAnswer`], [`BatchAnswer`], [`InboxBacklog`] |
//! | `doctor` | `GET /healthz`, `GET /readyz`, `GET /metrics` | | [`Health`], [`Readiness`], text |
//!
//! Errors are [`Problem`]s. Tokens are sent as `Authorization: Bearer`. `lazaret-via` names the client
//! ([`Via`]). Where no tokens are configured, `lazaret-actor` names the caller. Mutations accept an
//! `Idempotency-Key`.

mod activity;
mod admin;
mod audit;
mod bytes_text;
mod duration;
mod enums;
mod event;
mod facets;
mod failure;
mod group;
mod identity;
mod import;
mod inbox;
mod invalid_letter;
mod letter;
pub mod numbers;
mod operation;
mod pause;
mod problem;
mod selection;
mod status;
pub mod text;
pub mod values;

pub use activity::{Activity, ConsumerActivity};
pub use admin::{ConsumerConfig, EffectiveConfig, GroupingRules, TokenInfo, TokenList};
pub use audit::{Actor, AuditCheck, AuditEntry, AuditPage};
pub use bytes_text::InvalidBase64;
pub use duration::InvalidDuration;
pub use enums::{
    Act, Action, AttemptKind, Command, Exclusion, OperationState, Outcome, Phase, State, UnknownValue,
};
pub use event::{Event, EventKind};
pub use facets::{Facet, FacetValue, GroupAssignment, GroupComment, GroupFacets, SequenceShare, Variant};
pub use failure::{CauseLink, Failure, LetterError};
pub use group::{Group, GroupPage, StateCounts};
pub use identity::{CsrfToken, Identity, Scope, Via};
pub use import::{ImportAnswer, ImportFailure};
pub use inbox::{BatchAnswer, InboxAnswer, InboxBacklog};
pub use invalid_letter::InvalidLetter;
pub use letter::{
    Attempt, Comment, Edit, Erasure, Header, Letter, LetterDetail, LetterMatches, LetterMessage, LetterPage,
    MessageDetail, PayloadState, Sequence,
};
pub use operation::{
    BeginRequest, CommandRequest, Excluded, Item, ItemPage, Operation, OperationPage, Plan, PlanPage,
    PlanRequest,
};
pub use pause::{InvalidPauseScope, Pause, PauseRequest, PauseScope, ResumeAnswer};
pub use problem::{Code, Problem};
pub use selection::{
    ActRequest, AssignRequest, BulkAnswer, BulkAssignRequest, BulkFailure, BulkRequest, CommentRequest,
    EditRequest, ExpiryRequest, ExportRequest, Selection,
};
pub use status::{
    Breaker, BreakerCause, BrokerCounts, Consumer, ConsumerState, Fuse, Health, Instance, InstanceList,
    InstancePartition, OnDead, QueueStatus, Readiness, Status, StoreCapabilities, StreamIncarnation,
};

#[cfg(test)]
mod tests {
    use lazaret_core::store::{self, OperationId, OperationMachine, PlanId, RolloutPolicy, plan_hash};
    use lazaret_core::{Failure, Message, Position, QueueName, Reason, Timestamp};
    use serde::Serialize;
    use serde_json::Value;

    use super::*;

    /// Asserts that every field is present, even if `null`, because scripts rely on the fields.
    #[track_caller]
    fn has(value: impl Serialize, fields: &str) -> Value {
        let value = serde_json::to_value(value).unwrap();
        for field in fields.split(' ') {
            assert!(value.get(field).is_some(), "{field} is missing in {value}");
        }
        value
    }

    #[test]
    fn a_letter_always_has_every_field_of_the_contract() {
        let message = Message::new("m", "orders", Position::new(0, 0));
        let queue = QueueName::of("shop", "mail");
        let mut letter = lazaret_core::Letter::new(queue, "k".into(), message.into(), Timestamp::UNIX_EPOCH);
        let fields = "id queue consumer stream sequence index state reason phase error attempts crash-attempts \
                      replay-attempts message enqueued-at first-failed-at last-failed-at last-touched-at due-at \
                      expires-at owner poison group diagnostics";
        let waiting = has(Letter::from(&letter), fields);
        has(&waiting["message"], "id key type position");
        letter.cause = Some(Failure::new(Reason::TIMEOUT, "DbError", "no answer"));
        let failed = has(LetterDetail::of(&letter, false), fields);
        has(&failed["error"], "type message");
        assert_eq!((&waiting["error"], &failed["reason"]), (&Value::Null, &Value::from("TIMEOUT")));
    }

    #[test]
    fn plans_and_operations_have_the_fields_of_the_contract() {
        let (now, by) = (Timestamp::UNIX_EPOCH, store::Actor::new("ada", "cli", "x"));
        let plan = store::Plan {
            id: PlanId(1),
            action: store::Action::Retry,
            query: None,
            letters: 3,
            sequences: 2,
            followers: 0,
            excluded: vec![(store::Exclusion::Behind, 1)],
            hash: plan_hash(store::Action::Retry, []),
            by: by.clone(),
            frozen_at: now,
            expires_at: Timestamp::MAX,
        };
        let shown = has(
            Plan::of(&plan, true, Some(2.0), 0),
            "id action letters sequences followers excluded hash expires-at needs-approval",
        );
        assert_eq!(shown["excluded"], serde_json::json!([{"reason": "behind", "letters": 1}]));
        let machine =
            OperationMachine::begin(OperationId(1), &plan, &RolloutPolicy::default(), &by, now).unwrap();
        has(Operation::from(&machine.operation), "id state sent ok failed-again skipped");
    }

    #[test]
    fn the_status_has_the_fields_of_the_contract() {
        let consumer = Consumer {
            name: "orders".into(),
            state: ConsumerState::Elsewhere,
            error: None,
            paused: None,
            pauses: Vec::new(),
            lag: None,
            in_flight: None,
            handled: None,
            failed: None,
            retrying: 0,
            dead: 0,
            parked: 0,
            quarantined: 0,
            waiting: 0,
            oldest_age_seconds: None,
            attempt_age_seconds: None,
            fuse: Fuse::None,
            breaker: Breaker::None,
            fuse_why: None,
            breaker_cause: None,
            handler: None,
            on_dead: None,
            store_trouble: false,
            incarnations: Vec::new(),
            in_broker: None,
            held_by: None,
            queues: Vec::new(),
        };
        let store = StoreCapabilities::from(&store::Capabilities::default());
        let status = has(
            Status {
                consumers: vec![consumer],
                operations: Vec::new(),
                instances: Vec::new(),
                store,
                erasure: None,
            },
            "consumers operations store instances",
        );
        let named = store::Capabilities::default().named();
        has(&status["store"], &named.map(|(name, _)| name).join(" "));
        let fields = "name state paused lag in-flight handled failed retrying dead parked quarantined waiting \
                      oldest-age-seconds fuse breaker";
        has(&status["consumers"][0], fields);
    }
}
