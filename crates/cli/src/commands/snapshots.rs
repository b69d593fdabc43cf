//! How the tables look, at fixed widths and at a fixed time.

use std::collections::BTreeMap;

use jiff::Timestamp;
use lazaret_api::{
    Action, Actor, AuditEntry, Breaker, Consumer, ConsumerState, Fuse, Group, Item, Letter, LetterError,
    LetterMessage, Operation, OperationState, Outcome, Phase, State, StateCounts,
};

use crate::output::Record;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

/// An hour after the epoch, which is when all of this is looked at.
const NOW: i64 = 3600;

/// A table at the widths that terminals have.
fn at_widths<R: Record>(records: &[R]) -> String {
    let table = R::table(records, at(NOW));
    [160, 100, 80, 50].map(|width| format!("{width}:\n{}", table.render(width, false))).join("\n")
}

pub(super) fn letter(id: &str, sequence: &str, state: State) -> Letter {
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

#[test]
fn letters() {
    let letters = [
        letter("0a1b2c3d", "order-7", State::Dead),
        letter("ffffffff", "order-7", State::Waiting),
        letter("12345678", "customer \u{202e}kl\u{1b}[2J", State::Retrying),
    ];
    insta::assert_snapshot!(at_widths(&letters));
}

#[test]
fn groups() {
    let group = |letters, message: &str| Group {
        id: "g1_4f1c0a2b99887766@payments/ledger".into(),
        queue: "payments/ledger".into(),
        fingerprint: "g1_4f1c0a2b99887766".into(),
        reason: "TIMEOUT".into(),
        error: LetterError { error_type: "TimeoutError".into(), message: message.into() },
        letters,
        states: StateCounts { dead: letters, ..StateCounts::default() },
        sequences: 96,
        blocked_behind: 412,
        oldest_at: Some(at(0)),
        first_seen_at: at(0),
        last_seen_at: at(1800),
        trend: vec![0, 1, 2, 5, 9, 3, 0, 0],
        trend_bucket_seconds: 3600,
    };
    insta::assert_snapshot!(at_widths(&[
        group(1284, "timeout after 30000 ms calling bank.example.com"),
        group(7, "field is required")
    ]));
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
        fuse: Fuse::Intact,
        breaker: Breaker::HalfOpen,
        store_trouble: false,
        queues: vec![],
    }
}

#[test]
fn consumers() {
    let elsewhere = Consumer {
        lag: None,
        in_flight: None,
        handled: None,
        failed: None,
        ..consumer("mail", ConsumerState::Elsewhere, 0)
    };
    insta::assert_snapshot!(at_widths(&[
        consumer("notification-service", ConsumerState::Running, 1284),
        elsewhere
    ]));
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

#[test]
fn operations() {
    insta::assert_snapshot!(at_widths(&[
        operation(OperationState::Running, 7),
        operation(OperationState::AwaitingApproval, 0)
    ]));
}

#[test]
fn items() {
    let item = |ordinal, outcome| Item {
        ordinal,
        queue: "payments/ledger".into(),
        sequence: "order-7".into(),
        letter: "0a1b2c3d-0000-8000-8000-000000000000".into(),
        outcome,
    };
    let outcomes = [Some(Outcome::Ok), Some(Outcome::FailedAgain), Some(Outcome::SkippedBehindFailed), None];
    let items: Vec<Item> =
        outcomes.into_iter().zip(0..).map(|(outcome, ordinal)| item(ordinal, outcome)).collect();
    insta::assert_snapshot!(at_widths(&items));
}

#[test]
fn audit_entries() {
    let entry = |number, who: &str, why: &str| AuditEntry {
        number,
        at: at(120),
        who: who.into(),
        via: "cli".into(),
        why: why.into(),
        action: "letter.evict".into(),
        subject: "payments/ledger/0a1b2c3d-0000-8000-8000-000000000000".into(),
        before: Some("dead".into()),
        after: Some("evicted".into()),
    };
    insta::assert_snapshot!(at_widths(&[
        entry(1, "maria", "fixed in 2.8.2"),
        entry(1204, "lazaret", "it is in the way of order-7")
    ]));
}
