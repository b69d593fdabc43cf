//! Records for unit tests, at a fixed time.

use std::collections::BTreeMap;

use jiff::Timestamp;
use lazaret_api::{
    Action, Actor, Breaker, Consumer, ConsumerState, Fuse, Letter, LetterError, LetterMessage, Operation,
    OperationState, Phase, State,
};

/// The time this many seconds after the epoch.
pub(crate) fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

/// The current time of the tests: an hour after the epoch.
pub(crate) const NOW: i64 = 3600;

pub(crate) fn letter(id: &str, sequence: &str, state: State) -> Letter {
    let is_waiting = state == State::Waiting;
    let error = LetterError {
        error_type: "DbError".into(),
        message: "connection to 10.0.0.7 reset by peer\nretry later".into(),
    };
    Letter {
        id: format!("{id}-0000-8000-8000-000000000000"),
        queue: "payments/ledger".into(),
        consumer: "payments".into(),
        stream: "charges".into(),
        sequence: sequence.into(),
        left_sequence: None,
        index: 3,
        state,
        reason: (!is_waiting).then(|| "TIMEOUT".into()),
        phase: (!is_waiting).then_some(Phase::Handle),
        error: (!is_waiting).then_some(error),
        attempts: if is_waiting { 0 } else { 5 },
        crash_attempts: 0,
        replay_attempts: u32::from(!is_waiting),
        message: LetterMessage {
            id: "evt-1".into(),
            key: Some(sequence.into()),
            key_base64: None,
            event_type: Some("ChargeRequested".into()),
            position: "0:41".into(),
        },
        enqueued_at: at(60),
        first_failed_at: Some(at(60)),
        last_failed_at: Some(at(120)),
        last_touched_at: at(120),
        due_at: (state == State::Retrying).then(|| at(NOW + 90)),
        expires_at: None,
        owner: (!is_waiting).then(|| "payments-team".into()),
        assignee: None,
        poison: false,
        group: None,
        diagnostics: BTreeMap::new(),
    }
}

pub(crate) fn consumer(name: &str, state: ConsumerState, dead: u64) -> Consumer {
    Consumer {
        name: name.into(),
        state,
        error: None,
        paused: None,
        pauses: vec![],
        lag: Some(12_345),
        in_flight: Some(64),
        handled: Some(9_876_543),
        failed: Some(321),
        retrying: 17,
        dead,
        parked: 0,
        quarantined: 1,
        waiting: 412,
        oldest_age_seconds: Some(22_320.0),
        attempt_age_seconds: None,
        fuse: Fuse::Intact,
        breaker: Breaker::HalfOpen,
        fuse_why: None,
        breaker_cause: None,
        handler: None,
        on_dead: None,
        store_trouble: false,
        incarnations: Vec::new(),
        in_broker: None,
        held_by: None,
        queues: vec![],
    }
}

pub(crate) fn operation(state: OperationState, failed_again: u64) -> Operation {
    let by = Actor { who: "maria".into(), via: "cli".into(), why: "fixed in 2.8.2, OPS-1421".into() };
    Operation {
        id: "op_31".into(),
        state,
        sent: 1240,
        ok: 1240 - failed_again,
        failed_again,
        skipped: 3,
        letters: 1284,
        excluded: Vec::new(),
        plan: "p_7".into(),
        action: Action::Retry,
        note: None,
        stage: 2,
        rate: Some(50.0),
        ramp: vec![1, 5, 25, 100],
        stop_at: Some(0.05),
        start_at: None,
        needs_approval: false,
        by,
        approved_by: None,
        created_at: at(3000),
        updated_at: at(3500),
        ended_at: None,
    }
}
